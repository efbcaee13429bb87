"""A mask that a layer refuses eagerly never becomes its inverse in a graph, in `predict`, in `fit` or when saved."""

import keras
import numpy as np
import pytest
from helpers_layers import BACKEND, compiled, flat_arrays
from keras import ops

from keras_attn.layers import BahdanauAttention, MultiHeadAttention, WindowAttention

B, T, S, D = 2, 3, 5, 7
SHAPES = {
    "query_mask": (B, T),
    "value_mask": (B, S),
    "key_mask": (B, S),
    "attention_mask": (B, T, S),
    "prefix_mask": (B, S),
}
only_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow's graphs can raise")
not_torch = pytest.mark.skipif(BACKEND == "torch", reason="eager")


def attention():
    layer = MultiHeadAttention(num_heads=2, key_dim=3)
    return lambda masks: layer(
        *(ops.convert_to_tensor(x) for x in sequences()),
        **masks,
        use_causal_mask=True,
        return_attention_scores=True,
    )


def bahdanau():
    layer = BahdanauAttention(units=3)
    query, value = sequences()
    return lambda masks: layer(query, value, **masks, return_attention_scores=True)


def window():
    layer = WindowAttention(num_heads=2, key_dim=3, window_size=(2, 3))
    images = np.random.default_rng(5).normal(size=(B, 3, 5, D)).astype("float32")
    return lambda masks: layer(images, **masks, return_attention_scores=True)


def sequences():
    rng = np.random.default_rng(3)
    return [rng.normal(size=(B, length, D)).astype("float32") for length in (T, S)]


# Masks of queries, of keys and of pairs.
CASES = {
    "query_mask": (attention, "query_mask", (B, T)),
    "value_mask": (attention, "value_mask", (B, S)),
    "attention_mask": (attention, "attention_mask", (B, T, S)),
    "bahdanau-value_mask": (bahdanau, "value_mask", (B, S)),
    "window-padding_mask": (window, "padding_mask", (B, 3, 5)),
}


def additive(shape, dtype="float32"):
    mask = np.random.default_rng(7).random(shape) < 0.6
    return np.where(mask, 0, -1e9).astype(dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_an_additive_mask_raises(case):
    make, name, shape = CASES[case]
    call, errors = make(), ValueError
    if BACKEND == "tensorflow":
        import tensorflow as tf

        call, errors = compiled(call, jit=False), tf.errors.InvalidArgumentError
    elif BACKEND == "jax":
        pytest.skip("JAX's graphs raise nothing")
    with pytest.raises(errors, match=f"`{name}` must be boolean, or hold only 0 and 1"):
        call({name: ops.convert_to_tensor(additive(shape))})


@pytest.mark.sampled(2)
@not_torch
@pytest.mark.parametrize("case", CASES)
def test_a_compiled_layer_answers_nan(case):
    make, name, shape = CASES[case]
    for answer in flat_arrays(compiled(make())({name: ops.convert_to_tensor(additive(shape))})):
        assert np.isnan(answer).all()


@not_torch
@pytest.mark.parametrize("dtype", ["int32", "float16"])
def test_zeros_and_ones_of_any_dtype_are_masks(dtype):
    rng = np.random.default_rng(11)
    masks = {name: rng.random(shape) < 0.8 for name, shape in SHAPES.items()}
    call = attention()
    expected = flat_arrays(call(masks))
    actual = compiled(call, jit=False)({name: ops.cast(mask, dtype) for name, mask in masks.items()})
    for one, other in zip(flat_arrays(actual), expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@not_torch
@pytest.mark.parametrize("jit", [True, False] if BACKEND == "tensorflow" else [True])
def test_keys_projected_to_a_cache_refuse_it_too(jit):
    layer = MultiHeadAttention(num_heads=2, key_dim=3)
    query, value = sequences()
    layer(query, value)
    project = compiled(lambda given: layer.project_to_cache(value, value_mask=given["mask"]), jit)
    given = {"mask": ops.convert_to_tensor(additive((B, S)))}
    if jit:
        assert all(np.isnan(x).all() for x in flat_arrays(project(given)))
    else:
        with pytest.raises(Exception, match="`value_mask` must be boolean"):
            project(given)


def model_with_a_mask_input(dtype="float32"):
    query, value = keras.Input((T, D)), keras.Input((None, D))
    mask = keras.Input((None,), dtype=dtype)
    outputs = MultiHeadAttention(num_heads=2, key_dim=3)(query, value, value_mask=mask)
    return keras.Model([query, value, mask], outputs)


def is_refused(call):
    """Whether it raises the error of a mask, or answers NaN."""
    try:
        return bool(np.isnan(call()).all())
    except Exception as error:
        return "`value_mask` must be boolean" in str(error)


# Without a compiler a model does not run on JAX, and PyTorch's needs a compiler of C++.
JIT_COMPILE = {"tensorflow": [False], "jax": [True], "torch": [False]}[BACKEND]


@pytest.mark.extended
@pytest.mark.parametrize("jit_compile", JIT_COMPILE)
def test_predict_and_fit_refuse_it(jit_compile):
    model = model_with_a_mask_input()
    model.compile(loss="mse", optimizer="sgd", jit_compile=jit_compile)
    query, value = sequences()
    wrong, target = additive((B, S)), np.ones((B, T, D), "float32")
    assert is_refused(lambda: model.predict([query, value, wrong], verbose=0))
    right = [query, value, (wrong == 0).astype("float32")]
    expected = model_with_a_mask_input("bool")
    expected.set_weights(model.get_weights())
    np.testing.assert_allclose(
        model.predict(right, verbose=0),
        ops.convert_to_numpy(expected([query, value, wrong == 0])),
        rtol=1e-5,
        atol=1e-6,
    )
    assert np.isfinite(model.fit(right, target, verbose=0).history["loss"]).all()
    assert is_refused(lambda: model.fit([query, value, wrong], target, verbose=0).history["loss"])


@only_tensorflow
def test_a_saved_model_refuses_it(tmp_path):
    import tensorflow as tf

    model = model_with_a_mask_input("int32")
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    serve = loaded.serve
    query, value = sequences()
    right = np.array([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0]], "int32")
    expected = model([query, value, right])
    np.testing.assert_allclose(serve([query, value, right]), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`value_mask` must be boolean"):
        serve([query, value, right * 2])


LAYERS = {
    "multi_head": lambda: MultiHeadAttention(num_heads=2, key_dim=3),
    "bahdanau": lambda: BahdanauAttention(units=3),
}


@only_tensorflow
@pytest.mark.parametrize("name", ["query_mask", "value_mask"])
def test_a_mask_of_one_entry_does_not_stand_for_a_sequence_of_unknown_length(name):
    import tensorflow as tf

    layer = LAYERS["multi_head"]()
    function = tf.function(
        lambda query, value, mask: layer(query, value, **{name: mask}),
        input_signature=[*[tf.TensorSpec([None, None, D])] * 2, tf.TensorSpec([None, None], tf.bool)],
    )
    query, value = sequences()
    length = T if name == "query_mask" else S
    mask = np.arange(length) < np.array([[2], [3]])
    np.testing.assert_allclose(
        function(query, value, mask), layer(query, value, **{name: mask}), rtol=1e-5, atol=1e-6
    )
    with pytest.raises(ValueError, match=f"`{name}` must have shape"):
        layer(query, value, **{name: mask[:, :1]})
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have the sizes"):
        function(query, value, mask[:, :1])


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("shapes", [((None, T), (None, T)), ((B, None), (B, None))], ids=["batch", "length"])
def test_a_padding_mask_in_place_of_pairs_is_refused_where_its_shape_shows_it(kind, shapes):
    """With as many rows as queries it would be a mask of all rows, which mixes the rows of the batch."""
    of_tokens, of_mask = shapes
    x = keras.Input(batch_shape=(*of_tokens, D))
    mask = keras.Input(batch_shape=of_mask, dtype="bool")
    with pytest.raises(
        ValueError, match=r"`attention_mask` must[^.]*\. Received[^.]*\. Pass a padding mask \(B, S\) as"
    ):
        LAYERS[kind]()(x, x, attention_mask=mask)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_mask_of_all_rows_is_taken(kind):
    """As Keras' layer takes it: with a known length or not, given as an array or as a symbol."""
    layer, triangle = LAYERS[kind](), np.tri(T, dtype=bool)
    query = sequences()[0]
    expected = flat_arrays(layer(query, query, attention_mask=triangle[None]))
    for length, mask in ((T, triangle), (T, keras.Input(batch_shape=(T, T), dtype="bool"))):
        x = keras.Input((length, D))
        is_array = isinstance(mask, np.ndarray)
        model = keras.Model(x if is_array else [x, mask], layer(x, x, attention_mask=mask))
        actual = flat_arrays(model(query if is_array else [query, triangle]))
        np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5, atol=1e-6)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        function = tf.function(
            lambda x: layer(x, x, attention_mask=triangle), input_signature=[tf.TensorSpec([None, None, D])]
        )
        np.testing.assert_allclose(function(query), expected[0], rtol=1e-5, atol=1e-6)
