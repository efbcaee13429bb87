"""Habits around masks: pads of all kinds, and what Keras does to a mask between two layers."""

import functools
import inspect
import warnings

import keras
import numpy as np
import pytest
from habits import both, habit, is_masked, reads_ids, reads_vectors
from keras import ops
from things import FRAMES, LENGTHS, B, D, T, V, as_array, assert_close

from keras_attn import layers, models


def has_real_tokens(thing):
    return thing.takes_mask or thing.makes_mask


def takes_left_pads(thing):
    return thing.pads_on_the_left and has_real_tokens(thing)


def with_garbage(thing, batch, fill):
    """The batch with something else at pads, which the mask says."""
    mask = batch["mask"]
    if thing.reads == "ids":
        x = np.where(mask, batch["x"], np.int32(fill))
    else:
        x = np.where(mask[..., None], batch["x"], np.float32(fill))
    return {**batch, "x": x}


def assert_same_tokens(thing, actual, expected, tolerance=1e-5):
    """(output, batch) twice: the answers at real tokens are equal, and at least one says something."""
    actual, expected = (thing.real(*pair) for pair in (actual, expected))
    assert np.abs(expected).max() > 1e-3
    assert_close(actual, expected, tolerance)


# --- pads ---


@habit(has_real_tokens)
def more_pads_on_the_right(thing, folder):
    made = thing.made()
    short, long = thing.batch(), thing.batch(length=T + 4)
    assert_same_tokens(thing, (thing.answer(made, long), long), (thing.answer(made, short), short))


@habit(takes_left_pads)
def pads_on_the_left(thing, folder):
    made = thing.made()
    right, left = thing.batch(), thing.batch(length=T + 4, left=True)
    assert_same_tokens(thing, (thing.answer(made, left), left), (thing.answer(made, right), right))


@habit(both(is_masked, reads_ids, takes_left_pads))
def pads_on_the_left_without_a_mask(thing, folder):
    """Pads are known by their id then, in a functional model too."""
    made = thing.made()
    right, left = thing.batch(), thing.batch(length=T + 4, left=True)
    expected = thing.answer(made, right), right
    assert_same_tokens(thing, (thing.answer(made, left, with_mask=False), left), expected)
    inputs = {name: array for name, array in left.items() if name != "mask"}
    assert_same_tokens(thing, (as_array(thing.functional(made)(inputs)), left), expected)


@habit(has_real_tokens)
def a_row_alone(thing, folder):
    """A row without its pads and neighbours answers as it does in a batch."""
    made, batch = thing.made(), thing.batch()
    output = thing.answer(made, batch)
    for row, length in enumerate(LENGTHS):
        alone = {name: array[row : row + 1] for name, array in batch.items()}
        alone |= {name: alone[name][:, :length] for name in ("x", "mask")}
        expected = thing.answer(made, alone)
        actual = output[row : row + 1]
        assert_close(actual[:, :length] if thing.keeps_time else actual, expected)


@habit(is_masked)
def other_content_at_pads(thing, folder):
    made, batch = thing.made(), thing.batch()
    other = with_garbage(thing, batch, 5)
    assert_same_tokens(thing, (thing.answer(made, other), other), (thing.answer(made, batch), batch))


@habit(is_masked)
def an_empty_row(thing, folder):
    """A row of pads alone is finite, and its neighbours do not notice."""
    made = thing.made()
    batch, with_empty = thing.batch(), thing.batch(lengths=(*LENGTHS[:-1], 0))
    output, expected = thing.answer(made, with_empty), thing.answer(made, batch)
    assert np.isfinite(output).all()
    for row, length in enumerate(LENGTHS[:-1]):
        rows = (output[row], expected[row])
        assert_close(*(x[:length] if thing.keeps_time else x for x in rows))


@habit(both(is_masked, reads_vectors, lambda thing: not thing.pointwise), seconds=0.6)
def nan_at_pads(thing, folder):
    """Neither the output nor the weights after one update know what stands at pads."""
    outputs, weights = [], []
    for fill in (0, np.nan):
        made = thing.made()
        batch = with_garbage(thing, thing.batch(), fill)
        outputs.append((thing.answer(made, batch), batch))
        model = thing.functional(made, with_mask=True, sizes=(B, T))
        update(model, batch, thing)
        weights.append([as_array(weight) for weight in made.weights])
    for output, batch in outputs:
        assert np.isfinite(thing.real(output, batch)).all()
    assert_same_tokens(thing, outputs[1], outputs[0])
    for of_nan, of_zeros in zip(*weights[::-1]):
        assert_close(of_nan, of_zeros)


def update(model, batch, thing):
    """One step of `fit` that looks at real tokens alone."""
    targets = np.random.default_rng(3).normal(size=model(batch).shape)
    if thing.keeps_time:
        real = batch["mask"]

        def loss(y_true, y_pred):
            kept = ops.where(real[..., None], y_pred, 0.0)
            return ops.sum(ops.square(ops.where(real[..., None], y_true, 0.0) - kept))
    else:
        loss = "mse"
    model.compile(keras.optimizers.SGD(0.01), loss, run_eagerly=True)
    if model.trainable_weights:
        model.train_on_batch(batch, targets)


# --- how a mask comes to a layer ---


def functional_pair(thing, before):
    """A model whose mask comes with `x`, from ids through `before`, one with the same layer that is given it, and the
    warnings of making the first.
    """
    made = thing.made()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        implicit = thing.functional(made, before)
    explicit = thing.functional(made, lambda ids: without_mask(before(ids)), with_mask=True)
    return implicit, explicit, [w for w in caught if "mask" in str(w.message)]


class Forget(keras.layers.Layer):
    """The same numbers without a mask."""

    def call(self, x):
        return x

    def compute_mask(self, x, mask=None):
        return None


def without_mask(x):
    return Forget()(x)


def embedded(ids):
    """Keras' embedding, with its mask."""
    rng = np.random.default_rng(2)
    table = keras.initializers.Constant(rng.normal(size=(V, D)))
    return keras.layers.Embedding(V, D, mask_zero=True, embeddings_initializer=table)(ids)


def token_embedded(ids):
    rng = np.random.default_rng(2)
    table = keras.initializers.Constant(rng.normal(size=(V, D)))
    return layers.TokenEmbedding(V, D, mask_zero=True, embeddings_initializer=table)(ids)


def sequence_embedded(ids):
    rng = np.random.default_rng(2)
    table = keras.initializers.Constant(rng.normal(size=(V, D)))
    token = layers.TokenEmbedding(V, D, mask_zero=True, embeddings_initializer=table)
    return layers.SequenceEmbedding(token, position=layers.SinusoidalPositionEncoding())(ids)


def encoded(ids):
    keras.utils.set_random_seed(4)
    return models.EncoderTransformer.from_sizes(V, 1, hidden_dim=D, num_heads=2, intermediate_dim=17)(ids)


def constant(units=D, **options):
    """Weights drawn from a seed of their own."""
    return keras.initializers.RandomNormal(stddev=0.4, seed=units + 3)


# What a person puts between an embedding and a layer; each keeps the mask.
KEEPING = {
    "keras_embedding": embedded,
    "token_embedding": token_embedded,
    "sequence_embedding": sequence_embedded,
    "encoder_transformer": encoded,
    "add_layer": lambda ids: keras.layers.Add()(
        [embedded(ids), keras.layers.Dense(D, kernel_initializer=constant())(embedded(ids))]
    ),
    "add_positions": lambda ids: (lambda x: keras.layers.Add()([x, layers.SinusoidalPositionEncoding()(x)]))(
        embedded(ids)
    ),
    "keras_norm": lambda ids: keras.layers.LayerNormalization()(embedded(ids)),
    "keras_dropout": lambda ids: keras.layers.Dropout(0.3)(embedded(ids)),
    "time_distributed_dense": lambda ids: keras.layers.TimeDistributed(
        keras.layers.Dense(D, kernel_initializer=constant())
    )(embedded(ids)),
    "feed_forward": lambda ids: layers.FeedForward(7, kernel_initializer=constant(7))(embedded(ids)),
    "encoder_block": lambda ids: layers.EncoderBlock(7, 2, kernel_initializer=constant(7))(embedded(ids)),
    "decoder_block": lambda ids: layers.DecoderBlock(7, 2, kernel_initializer=constant(7))(embedded(ids)),
    "keras_gru": lambda ids: keras.layers.GRU(
        D, return_sequences=True, kernel_initializer=constant(), recurrent_initializer=constant(7)
    )(embedded(ids)),
    "masking": lambda ids: keras.layers.Masking()(without_mask(zeros_at_pads(ids))),
}
# And what loses it in Keras.
LOSING = {
    "times_a_number": lambda ids: embedded(ids) * 4.0,
    "half_of_it": lambda ids: embedded(ids) / 2,
    "plus_a_number": lambda ids: embedded(ids) + 0.5,
    "plus_positions": lambda ids: (lambda x: x + layers.SinusoidalPositionEncoding()(x))(embedded(ids)),
    "plus_itself": lambda ids: (lambda x: x + keras.layers.Dense(D, kernel_initializer=constant())(x))(
        embedded(ids)
    ),
    "cast": lambda ids: ops.cast(ops.cast(embedded(ids), "float16"), "float32"),
    "an_operation": lambda ids: ops.tanh(embedded(ids)),
    "two_operations": lambda ids: ops.tanh(embedded(ids) * 0.7),
    "operation_of_attention": lambda ids: (
        lambda x: x + layers.MultiHeadAttention(2, 6, kernel_initializer=constant())(x, x)
    )(embedded(ids)),
}


def zeros_at_pads(ids):
    """Vectors that are 0 at pads, without a mask."""
    return ops.cast(ops.expand_dims(ids != 0, -1), "float32") * without_mask(embedded(ids))


def ids_and_mask(thing, left=False):
    """Inputs of a functional model whose `x` are ids."""
    batch = thing.batch(left=left)
    ids = np.random.default_rng(9).integers(1, V, batch["mask"].shape)
    return {**batch, "x": np.where(batch["mask"], ids, 0).astype("int32")}


def mask_comes_with(before, may_warn):
    def check(thing, folder):
        implicit, explicit, warned = functional_pair(thing, before)
        if warned:
            assert may_warn, [str(w.message) for w in warned]
            assert len(warned) == 1
            return
        for left in (False, True):
            batch = ids_and_mask(thing, left)
            unmasked = {name: array for name, array in batch.items() if name != "mask"}
            outputs = as_array(implicit(unmasked)), as_array(explicit(batch))
            assert_same_tokens(thing, (outputs[0], batch), (outputs[1], batch))

    return check


for _name, _before in KEEPING.items():
    habit(both(is_masked, reads_vectors), name=f"after_{_name}")(mask_comes_with(_before, may_warn=False))
for _name, _before in LOSING.items():
    habit(both(is_masked, reads_vectors), name=f"after_{_name}")(mask_comes_with(_before, may_warn=True))


def no_warning_where_the_mask_is_given(before):
    def check(thing, folder):
        """Warnings are errors in tests."""
        made = thing.made()
        thing.functional(made, before, with_mask=True)

    return check


for _name, _before in LOSING.items():
    habit(both(is_masked, reads_vectors), name=f"given_a_mask_after_{_name}")(
        no_warning_where_the_mask_is_given(_before)
    )


@habit(both(is_masked, reads_vectors))
def an_eager_mask_comes_with_the_tensor(thing, folder):
    made, batch = thing.made(), thing.batch()
    masked = keras.layers.Masking()(batch["x"])
    others = {name: array for name, array in batch.items() if name not in ("x", "mask")}
    output = as_array(thing.call(made, masked, **others))
    assert_same_tokens(thing, (output, batch), (thing.answer(made, batch), batch))


def mask_of(x):
    x = x[0] if isinstance(x, (tuple, list)) else x
    return getattr(x, "_keras_mask", None)


@habit(lambda thing: (thing.keeps_time and thing.makes_mask) or (thing.keeps_time and thing.takes_mask))
def its_output_carries_the_mask(thing, folder):
    """The next layer, Keras' losses and metrics see it, eagerly and in a functional model."""
    made, batch = thing.made(), thing.batch()
    x = keras.layers.Masking()(batch["x"]) if thing.reads == "vectors" else ops.convert_to_tensor(batch["x"])
    others = {name: array for name, array in batch.items() if name not in ("x", "mask")}
    found = mask_of(thing.call(made, x, **others))
    assert found is not None
    np.testing.assert_array_equal(ops.convert_to_numpy(found), batch["mask"])
    before = keras.layers.Masking() if thing.reads == "vectors" else None
    symbols = {
        name: keras.Input(array.shape[1:], dtype=str(array.dtype))
        for name, array in batch.items()
        if name != "mask"
    }
    x = symbols.pop("x") if before is None else before(symbols.pop("x"))
    assert mask_of(thing.call(made, x, **symbols)) is not None


@habit(both(is_masked, reads_vectors))
def nobodys_tensor_is_changed(thing, folder):
    made, batch = thing.made(), thing.batch()
    masked = keras.layers.Masking()(batch["x"])
    before = as_array(masked), mask_of(masked)
    others = {name: array for name, array in batch.items() if name not in ("x", "mask")}
    thing.call(made, masked, **others)
    np.testing.assert_array_equal(as_array(masked), before[0])
    assert mask_of(masked) is before[1]


# --- wrappers ---


def takes_one_input(thing):
    return thing.reads == "vectors" and not thing.others and thing.takes_mask


class OnItself(keras.layers.Layer):
    """A thing as a layer of one input, for wrappers; the mask comes with it."""

    def __init__(self, thing, made, **kwargs):
        super().__init__(**kwargs)
        self.thing, self.made = thing, made
        self.supports_masking = True

    def call(self, x):
        return self.thing.call(self.made, x)


def frames_of(thing):
    """A batch for each of two frames, padded on different sides."""
    return [thing.batch(seed=1), thing.batch(lengths=(3, 7, 4), seed=2, left=True)]


@habit(both(takes_one_input, lambda thing: calls_with_one_argument(thing)), seconds=0.6)
def time_distributed(thing, folder):
    """The same as a loop over frames, whose mask comes with the tensor, and which the result carries again."""
    made = thing.made()
    batches = frames_of(thing)
    expected = np.stack([thing.answer(made, batch) for batch in batches], 1)
    x = np.stack([batch["x"] for batch in batches], 1)
    mask = np.stack([batch["mask"] for batch in batches], 1)
    frames = keras.layers.Masking()(x)
    output = keras.layers.TimeDistributed(made)(frames)
    real = mask if thing.keeps_time else np.ones(mask.shape[:2], bool)
    assert_close(as_array(output)[real], expected[real])
    if thing.keeps_time:
        np.testing.assert_array_equal(ops.convert_to_numpy(mask_of(output)), mask)
    symbol = keras.Input((FRAMES, None, D))
    model = keras.Model(symbol, keras.layers.TimeDistributed(made)(keras.layers.Masking()(symbol)))
    assert_close(as_array(model(x))[real], expected[real])


@habit(both(takes_one_input, lambda thing: calls_with_one_argument(thing)))
def sequential(thing, folder):
    made, batch = thing.made(), thing.batch()
    model = keras.Sequential([keras.Input((None, D)), keras.layers.Masking(), made])
    output = as_array(model(batch["x"]))
    assert_same_tokens(thing, (output, batch), (thing.answer(made, batch), batch))


def calls_with_one_argument(thing):
    """Whether the class is called with `x` alone."""
    cls = getattr(layers, thing.public_name.partition(".")[2], None)
    if cls is None or cls is layers.Residual:
        return False
    parameters = [p for p in inspect.signature(cls.call).parameters.values() if p.name != "self"]
    return sum(p.default is p.empty for p in parameters) == 1


# --- what is no mask ---


def mask_arguments(thing):
    """The arguments of its call that are masks of pairs."""
    cls = getattr(layers, thing.public_name.partition(".")[2], None)
    if cls is None:
        return []
    return [name for name in inspect.signature(cls.call).parameters if name.endswith("attention_mask")]


def takes_pairs(thing):
    return thing.reads == "vectors" and bool(mask_arguments(thing)) and not thing.name.endswith("causal")


@habit(takes_pairs)
def a_padding_mask_given_as_attention_mask(thing, folder):
    """(B, S) and not (T, S): refused where B is T, as it is everywhere else; in a functional model too."""
    made = thing.made()
    cls = getattr(layers, thing.public_name.partition(".")[2])
    others = thing.batch(lengths=(7, 5, 2, 7, 5, 2, 7))
    x, others = others["x"], {n: a for n, a in others.items() if n not in ("x", "mask")}
    assert x.shape[:2] == (T, T)
    is_block = "padding_mask" in " ".join(inspect.signature(cls.call).parameters)
    for name in mask_arguments(thing):
        if name.startswith("encoder") and "other" not in others:
            continue
        keys = others["other"].shape[1] if name.startswith("encoder") and "other" in others else x.shape[1]
        wrong = np.arange(keys) < np.array([[7], [5], [2], [7], [5], [2], [7]])

        def call(tensor, mask, name=name):
            extra = {n: ops.convert_to_tensor(a) for n, a in others.items()}
            if "other" in extra and "memory" in thing.name:
                return made(tensor, extra["other"], **{name: mask})
            return made(tensor, tensor, **{name: mask}) if not is_block else made(tensor, **{name: mask})

        if is_block:
            with pytest.raises(ValueError, match=name):
                call(ops.convert_to_tensor(x), ops.convert_to_tensor(wrong))
        with pytest.raises(ValueError, match=r"attention_mask"):
            call(keras.Input((T, D)), keras.Input((keys,), dtype="bool"))


@habit(lambda thing: thing.one_axis and thing.reads == "vectors" and thing.takes_mask)
def two_axes_of_time(thing, folder):
    """Refused, because it would be attended, or pooled, over both."""
    made, batch = thing.made(), thing.batch()
    x = np.stack([batch["x"]] * FRAMES, 1)
    others = {name: array for name, array in batch.items() if name not in ("x", "mask")}
    symbols = {name: keras.Input(array.shape[1:]) for name, array in others.items()}
    refused = functools.partial(pytest.raises, ValueError, match="shape")
    with refused():
        thing.call(thing.make(), x, **others)
    with refused():
        thing.call(made, x, **others)
    with refused():
        thing.call(thing.make(), keras.Input((None, None, D)), **symbols)


def data_of(inputs, target, unknown):
    """A dataset of one batch, whose sizes are known or not."""
    import tensorflow as tf

    data = tf.data.Dataset.from_tensors((inputs, target))
    if not unknown:
        return data
    spec = tf.nest.map_structure(
        lambda x: tf.TensorSpec([None, None, *x.shape[2:]][: len(x.shape)], x.dtype), data.element_spec
    )
    return tf.data.Dataset.from_generator(lambda: iter(data), output_signature=spec)


def assert_stopped(thing, made, damaged, mask):
    """Wrong inputs are stopped eagerly, in `predict` and in `fit`, which leaves the weights as they were."""
    import tensorflow as tf

    stopped = pytest.raises((ValueError, tf.errors.InvalidArgumentError))
    with stopped:
        thing.answer(made, {**damaged, "mask": mask})
    model = thing.functional(made)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    start = [as_array(weight) for weight in made.weights]
    target = np.zeros((mask.shape[0], 1), "float32")
    for unknown in (False, True):
        with stopped:
            model.predict(data_of(damaged, target, unknown), verbose=0)
        if thing.trains:
            with stopped:
                model.fit(data_of(damaged, target, unknown), shuffle=False, verbose=0)
    for weight, before in zip(made.weights, start):
        np.testing.assert_array_equal(as_array(weight), before)


@habit(reads_ids, backends=("tensorflow",), seconds=4.0)
def ids_outside_the_vocabulary(thing, folder):
    made, batch = thing.made(), thing.batch()
    mask = batch.pop("mask")
    for wrong in (V, -1):
        damaged = {**batch, "x": batch["x"].copy()}
        damaged["x"][1, 2] = wrong
        assert_stopped(thing, made, damaged, mask)


@habit(lambda thing: thing.longest is not None, backends=("tensorflow",), seconds=1.0)
def longer_than_the_table(thing, folder):
    """Rows of more tokens than there are positions; as many are taken."""
    made = thing.made()
    for length in (thing.longest, thing.longest + 2):
        batch = thing.batch(length=length)
        batch["x"] = np.resize(batch["x"][:, :2], batch["x"].shape)  # no pads
        mask = np.ones_like(batch.pop("mask"))
        if length == thing.longest:
            assert np.isfinite(as_array(thing.functional(made).predict(batch, verbose=0))).all()
        else:
            assert_stopped(thing, made, batch, mask)


def generates(thing):
    return hasattr(thing.public_class, "generate")


@habit(generates, seconds=2.0)
def generate_of_padded_prompts(thing, folder):
    """The same answers for pads on either side, and the first token is the model's own best."""
    made, right = thing.made(), thing.batch(length=T + 2)
    is_source = "other" in right
    if is_source and not thing.name.endswith("source"):
        return
    options = {"start_token_id": 2} if is_source else {}
    found = {}
    for left in (False, True) if thing.pads_on_the_left else (False,):
        batch = thing.batch(length=T + 2, left=left)
        found[left] = np.array(
            ops.convert_to_numpy(made.generate(batch["x"], end_token_id=3, max_length=4, **options))
        )
        if is_source:
            start = np.full((B, 1), 2, "int32")
            logits = thing.answer(made, {**batch, "other": start})[:, -1]
        else:
            last = T + 1 - np.argmax(batch["mask"][:, ::-1], axis=1)
            logits = thing.answer(made, batch)[np.arange(B), last]
        logits[:, 0] = -np.inf  # pads are never written
        np.testing.assert_array_equal(found[left][:, 0], logits.argmax(-1))
    np.testing.assert_array_equal(found[False], found[max(found)])


@habit(lambda thing: thing.takes_mask and not thing.pointwise and not thing.is_model)
def values_that_are_no_mask(thing, folder):
    """An additive or fractional mask is refused eagerly, and in a graph it is never taken for its inverse."""
    made, batch = thing.made(), thing.batch()
    wrong = {**batch, "mask": np.where(batch["mask"], 0.0, -1e9).astype("float32")}
    with pytest.raises(ValueError, match="mask"):
        thing.answer(made, wrong)


# --- other forms of inputs ---


@habit(lambda thing: thing.segments is not None)
def packed_rows(thing, folder):
    """Two sequences in a row, numbered, answer as each does alone; pads after them belong to none."""
    made = thing.made()
    whole = thing.batch(lengths=(T, T))["x"]
    first, second = whole[:1, :5], whole[1:, :3]
    pads = np.zeros_like(whole[:1, :2])
    packed = np.concatenate([first, second, pads], 1)
    segments = np.array([[1] * 5 + [2] * 3 + [0] * 2], "int32")
    output = as_array(thing.call(made, packed, **{thing.segments: segments}))
    assert_close(output[:, :5], thing.answer(made, {"x": first}))
    assert_close(output[:, 5:8], thing.answer(made, {"x": second}))


@habit(reads_ids)
def ids_of_other_types(thing, folder):
    """`keras.Input((None,))` is float32; what a mask is made of has any type."""
    made, batch = thing.made(), thing.batch()
    expected = thing.answer(made, batch), batch
    for dtype in ("int64", "uint8", "float32"):
        inputs = {**batch, "x": batch["x"].astype(dtype)}
        assert_same_tokens(thing, (thing.answer(made, inputs), batch), expected)
        if thing.makes_mask:
            found = mask_of(thing.call(made, ops.convert_to_tensor(inputs["x"])))
            np.testing.assert_array_equal(ops.convert_to_numpy(found), batch["mask"])


@habit(reads_vectors)
def vectors_of_other_types(thing, folder):
    """Keras casts what a layer is called on to its dtype."""
    made, batch = thing.made(), thing.batch()
    batch["x"] = batch["x"].astype("float16")
    expected = thing.answer(made, {**batch, "x": batch["x"].astype("float32")})
    for dtype in ("float64", "float16"):
        assert_close(thing.answer(made, {**batch, "x": batch["x"].astype(dtype)}), expected)


@habit(lambda thing: thing.takes_mask and not thing.pointwise)
def a_mask_of_numbers(thing, folder):
    """0 and 1 in place of booleans: the same, or refused."""
    made, batch = thing.made(), thing.batch()
    expected = thing.answer(made, batch), batch
    for dtype in ("int32", "float32"):
        try:
            output = thing.answer(made, {**batch, "mask": batch["mask"].astype(dtype)})
        except (ValueError, TypeError):
            continue
        assert_same_tokens(thing, (output, batch), expected)


@habit(both(takes_one_input, calls_with_one_argument), seconds=0.6)
def time_distributed_sequential(thing, folder):
    """A Sequential in TimeDistributed, whose mask its first layer makes."""
    made = thing.made()
    batches = frames_of(thing)
    expected = np.stack([thing.answer(made, batch) for batch in batches], 1)
    mask = np.stack([batch["mask"] for batch in batches], 1)
    inner = keras.Sequential([keras.Input((T, D)), keras.layers.Masking(), made])
    output = as_array(keras.layers.TimeDistributed(inner)(np.stack([batch["x"] for batch in batches], 1)))
    real = mask if thing.keeps_time else np.ones(mask.shape[:2], bool)
    assert_close(output[real], expected[real])
