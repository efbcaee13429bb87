"""The attention that is captured is what the layers would return, and nothing else changes."""

import functools
import re
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_keras_models import VOCABULARY_SIZE, Subclassed, classifier, randomize, token_ids, translator
from helpers_models import make_batch
from keras import ops

import keras_attn
from keras_attn.layers import (
    BahdanauAttention,
    DifferentialAttention,
    EncoderBlock,
    MultiHeadAttention,
    TalkingHeadsAttention,
    WindowAttention,
)

SIZES = {"hidden_dim": 14, "num_heads": 2, "intermediate_dim": 17, "max_sequence_length": 23}


def of_kerashub(name):
    keras_hub = pytest.importorskip("keras_hub", reason='pip install "keras_attn[peers]"')
    model = getattr(keras_hub.models, name)(
        vocabulary_size=VOCABULARY_SIZE, num_layers=2, **{**SIZES, "dropout": 0.0}
    )
    ids = token_ids(5, 3)
    inputs = {"token_ids": ids, "padding_mask": ids != 0}
    if name == "BertBackbone":
        inputs["segment_ids"] = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
    return model, inputs


def subclassed():
    model = Subclassed()
    model(token_ids(5, 3))
    return model, token_ids(5, 3)


def seq2seq():
    model = keras_attn.models.Seq2SeqTransformer.from_sizes(13, 2, 2, **SIZES)
    batch = make_batch()
    return model, {name: batch[name] for name in ("encoder_token_ids", "decoder_token_ids")}


# Each with its number of calls of attention.
MODELS = {
    "KerasHub's BERT": (lambda: of_kerashub("BertBackbone"), 2),
    "KerasHub's GPT-2": (lambda: of_kerashub("GPT2Backbone"), 2),
    "keras.io's classifier": (lambda: (classifier(), token_ids(7, 4)), 1),
    "keras.io's translator": (
        lambda: (
            translator(),
            {"encoder_inputs": token_ids(7, 4), "decoder_inputs": token_ids(3, 5, seed=9)},
        ),
        3,
    ),
    "a subclassed model": (subclassed, 5),
    "Seq2SeqTransformer": (seq2seq, 6),
    "DecoderTransformer": (lambda: of_one_stack(keras_attn.models.DecoderTransformer), 2),
    "EncoderTransformer": (lambda: of_one_stack(keras_attn.models.EncoderTransformer), 2),
}


def of_one_stack(cls):
    return cls.from_sizes(VOCABULARY_SIZE, 2, **SIZES), token_ids(7, 4)


@pytest.fixture
def returned(monkeypatch):
    """What `return_attention_scores=True` returns in every call of the attention classes: the other road to the scores."""
    seen = []

    def spy_on(cls):
        original = cls.call

        @functools.wraps(original)
        def call(self, *args, **kwargs):
            masks = [(x, x._keras_mask) for x in (*args, *kwargs.values()) if hasattr(x, "_keras_mask")]
            _, scores, *_ = original(self, *args, **{**kwargs, "return_attention_scores": True})
            seen.append(ops.convert_to_numpy(scores))
            for x, mask in masks:  # which Keras' layer erases
                x._keras_mask = mask
            return original(self, *args, **kwargs)

        monkeypatch.setattr(cls, "call", call)

    def spy(model):
        layers = model._flatten_layers()
        kinds = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention, MultiHeadAttention)
        for cls in {type(layer) for layer in layers if isinstance(layer, kinds)}:
            spy_on(cls)
        return seen

    return spy


# Two others of their kinds are in the default run.
EXTENDED = {"KerasHub's BERT", "a subclassed model", "EncoderTransformer"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.extended if name in EXTENDED else ()) for name in MODELS]
)
def test_the_maps_are_the_scores_that_the_layers_return_and_no_output_changes(name, returned):
    make, num_calls = MODELS[name]
    model, inputs = make()
    randomize(model)
    attributes = {id(layer): set(vars(layer)) for layer in model._flatten_layers()}
    before = outputs_of(model, inputs)
    with keras_attn.capture_attention(model, dtype="float32") as maps:
        during = outputs_of(model, inputs)
    assert all(np.array_equal(x, y) for x, y in zip(before, during, strict=True))
    assert {id(layer): set(vars(layer)) for layer in model._flatten_layers()} == attributes
    expected = returned(model)
    outputs_of(model, inputs)
    assert len(maps) == len(expected) == num_calls
    for scores, truth in zip(maps.values(), expected):
        assert scores.dtype == "float32"
        np.testing.assert_allclose(scores, truth, rtol=0, atol=1e-6)
        assert np.ptp(scores[scores > 0]) > 0.2  # not the same everywhere


def outputs_of(model, inputs):
    return [ops.convert_to_numpy(x) for x in keras.tree.flatten(model(inputs))]


@pytest.mark.extended
def test_paths_are_the_names_on_the_way_down_and_calls_are_kept_apart():
    model, inputs = subclassed()
    with keras_attn.capture_attention(model) as maps:
        model(inputs)
    first, second = (f"{block.name}/{block.att.name}" for block in model.blocks)
    assert list(maps) == [first, second, "inner/grouped", "shared", "shared#2"]
    assert maps.paths == [first, second, "inner/grouped", "shared"]
    assert [scores.shape for scores in maps.calls("shared")] == [(2, 2, 5, 5), (2, 2, 3, 5)]
    assert maps["shared#2"] is maps.calls("shared")[1]
    assert maps["inner/grouped"].dtype == "float16"
    assert "'inner/grouped': (2, 4, 5, 5)" in repr(maps)
    with pytest.raises(KeyError):
        maps["nothing"]


def test_two_layers_of_one_name_have_two_paths():
    class Twins(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.first = keras.layers.MultiHeadAttention(2, 3, name="attention")
            self.second = keras.layers.MultiHeadAttention(3, 3, name="attention")

        def call(self, x):
            return self.second(x, self.first(x, x))

    model = keras.Sequential([Twins()])
    x = keras.random.normal((2, 5, 7))
    model(x)
    with keras_attn.capture_attention(model) as maps:
        model(x)
    assert [scores.shape[1] for scores in maps.values()] == [2, 3]
    assert [path.split("/")[1] for path in maps] == ["attention", "attention_2"]


LAYERS = {
    "rank 4, one axis attended": (lambda: keras.layers.MultiHeadAttention(2, 3, attention_axes=2), 4),
    "rank 4, both attended": (lambda: keras.layers.MultiHeadAttention(2, 3), 4),
    "grouped and gated": (lambda: keras.layers.GroupQueryAttention(5, 6, 3, use_gate=True), 3),
    "dropout configured": (lambda: keras.layers.MultiHeadAttention(2, 3, dropout=0.3), 3),
    "ours, rank 4, one axis": (lambda: MultiHeadAttention(2, 3, attention_axes=2), 4),
    "ours, rank 4, both": (lambda: MultiHeadAttention(2, 3), 4),
    "talking heads": (lambda: TalkingHeadsAttention(2, 3), 3),
    "differential": (lambda: DifferentialAttention(2, 3), 3),
    "additive": (lambda: BahdanauAttention(5), 3),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("training", [False, True])
def test_one_layer_gives_the_scores_that_it_returns_to_the_bit(name, training):
    make, rank = LAYERS[name]
    layer = make()
    sizes = [(2, 5, 7), (2, 3, 7)] if rank == 3 else [(2, 5, 3, 7), (2, 5, 3, 7)]
    query, value = (keras.random.normal(size, seed=seed) for seed, size in enumerate(sizes))
    _, truth = layer(query, value, return_attention_scores=True, training=training)
    with keras_attn.capture_attention(layer, dtype="float32") as maps:
        layer(query, value, training=training)
    (scores,) = maps.values()
    truth = ops.convert_to_numpy(truth)
    truth = truth[:, None] if truth.ndim == 3 else truth
    if truth.ndim == 6:  # (B, N, T1, T2, S1, S2)
        truth = truth.reshape(*truth.shape[:2], 15, 15)
    assert scores.shape == truth.shape
    assert np.array_equal(scores, truth)


def test_a_layer_that_must_save_memory_is_captured_if_it_is_asked_for():
    layer, dense = (MultiHeadAttention(2, 3, memory_efficient=forced) for forced in (True, False))
    x = keras.random.normal((2, 5, 7))
    expected = layer(x, x, use_causal_mask=True)
    dense(x, x)
    dense.set_weights(layer.get_weights())
    _, truth = dense(x, x, use_causal_mask=True, return_attention_scores=True)
    with keras_attn.capture_attention(layer, dtype="float32") as maps:
        output = layer(x, x, use_causal_mask=True)
    assert np.array_equal(output, expected)
    assert np.array_equal(maps[layer.name], truth)


def test_windows_are_captured():
    layer = WindowAttention(2, 3, window_size=3, shift_size=1)
    images = keras.random.normal((2, 7, 5, 6))
    _, truth = layer(images, return_attention_scores=True)
    with keras_attn.capture_attention(layer, dtype="float32") as maps:
        layer(images)
    assert np.array_equal(maps[layer.name], truth)


class Noisy(keras.layers.Layer):
    """Attention of a user's own: random in training, with moving means, and it erases its caller's mask."""

    def __init__(self):
        super().__init__()
        self.noise = keras.layers.GaussianNoise(1.0, seed=3)
        self.norm = keras.layers.BatchNormalization()
        self.supports_masking = True

    def build(self, input_shape):
        self.norm.build(input_shape)

    def call(self, x, return_attention_scores=False, training=None):
        mask = getattr(x, "_keras_mask", None)
        x._keras_mask = None
        y = self.norm(self.noise(x, training=training), training=training)
        logits = ops.matmul(y, ops.transpose(y, (0, 2, 1)))
        scores = ops.softmax(logits if mask is None else ops.where(mask[:, None], logits, -1e9))
        output = ops.matmul(scores, y)
        return (output, scores) if return_attention_scores else output


def test_a_layer_of_a_users_own_keeps_its_random_numbers_its_means_and_its_masks():
    model = keras.Sequential([keras.layers.Embedding(31, 7, mask_zero=True), Noisy()])
    twin = keras.Sequential([keras.layers.Embedding(31, 7, mask_zero=True), Noisy()])
    ids = token_ids(5, 3)
    model(ids), twin(ids)
    twin.set_weights(model.get_weights())
    for _ in range(2):
        with keras_attn.capture_attention(model) as maps:
            captured = model(ids, training=True)
        assert np.array_equal(captured, twin(ids, training=True))
    for ours, theirs in zip(model.variables, twin.variables):
        assert np.array_equal(ours, theirs)
    (scores,) = maps.values()
    assert scores.shape == (2, 1, 5, 5)
    assert (scores[1, :, :, 3:] == 0).all()
    assert (scores[0] > 0).any(axis=-2).all()


def test_keras_masks_are_left_as_the_layers_leave_them():
    embedding = keras.layers.Embedding(31, 7, mask_zero=True)
    layer = keras.layers.MultiHeadAttention(2, 3)
    ids = token_ids(5, 3)
    x, y = embedding(ids), embedding(ids)
    expected = layer(x, x)
    with keras_attn.capture_attention(layer) as maps:
        output = layer(y, y)
    assert np.array_equal(output, expected)
    assert y._keras_mask is x._keras_mask is None  # Keras' layer erases it
    assert np.array_equal(output._keras_mask, ids != 0)
    assert (maps[layer.name][1, :, :, 3:] == 0).all()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("make", [keras.layers.MultiHeadAttention, MultiHeadAttention])
def test_half_precision(policy, make):
    layer = make(2, 3, dtype=policy)
    x = keras.random.normal((2, 5, 7))
    _, truth = layer(x, x, return_attention_scores=True)
    with keras_attn.capture_attention(layer, dtype="float32") as maps:
        layer(x, x)
    assert np.array_equal(maps[layer.name], ops.cast(truth, "float32"))


@pytest.mark.extended
def test_layers_and_rows_are_chosen():
    model, inputs = seq2seq()
    with keras_attn.capture_attention(model, dtype="float32") as every:
        model(inputs)
    encoder = model.encoder_blocks[1]
    for layers, expected in (
        ("cross_attention", [path for path in every if path.endswith("cross_attention")]),
        (re.compile("^encoder"), [path for path in every if path.startswith("encoder")]),
        (encoder.self_attention_layer, [f"{encoder.name}/self_attention"]),
        (["_1/cross", f"{encoder.name}/self_attention"], [list(every)[1], list(every)[5]]),
    ):
        with keras_attn.capture_attention(model, layers=layers, dtype="float32") as maps:
            model(inputs)
        assert list(maps) == expected
    for rows, chosen in ((1, [1]), ([2, 0], [2, 0]), (slice(1, None), [1, 2]), ([-1], [2])):
        with keras_attn.capture_attention(model, rows=rows, dtype="float32") as maps:
            model(inputs)
        for path, scores in maps.items():
            assert np.array_equal(scores, every[path][chosen])


seq2seq_once = functools.cache(seq2seq)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"layers": "decoder_block_7"},
            r"`layers` must name attention layers.*'decoder_block_7'.*encoder_block_0/",
        ),
        ({"layers": [3]}, r"`layers` must name attention layers.*Received: 3"),
        ({"layers": 3}, r"`layers` must name attention layers.*Received: 3"),
        ({"layers": []}, r"`layers` must name attention layers.*Received: \[\]"),
        ({"layers": "("}, r"`layers` must name attention layers.*Received: '\('"),
        ({"layers": ["cross_attention", "["]}, r"`layers` must name attention layers.*Received: '\['"),
        ({"dtype": "uint8"}, "`dtype` must be a float dtype.*Received: dtype='uint8'"),
        ({"dtype": bool}, "`dtype` must be a float dtype.*Received: dtype=<class 'bool'>"),
        ({"dtype": "half of it"}, "`dtype` must be a float dtype.*Received: dtype='half of it'"),
        ({"dtype": None}, "`dtype` must be a float dtype.*Received: dtype=None"),
        ({"rows": 3}, r"`rows` must be rows of the batch, which has 3. Received: rows=\[3\]"),
    ],
)
def test_what_does_not_exist_is_refused(arguments, message):
    model, inputs = seq2seq_once()
    with pytest.raises(ValueError, match=message), keras_attn.capture_attention(model, **arguments):
        model(inputs)


def test_a_path_that_is_no_regular_expression_is_still_a_path():
    inputs = keras.Input((5, 7))
    x = MultiHeadAttention(2, 3, name="after")(inputs, inputs)
    model = keras.Model(inputs, MultiHeadAttention(2, 3, name="of (all")(x, x))
    with keras_attn.capture_attention(model, layers="of (all", dtype="bfloat16") as maps:
        model(np.ones((2, 5, 7), "float32"))
    assert list(maps) == ["of (all"]
    np.testing.assert_allclose(maps["of (all"].astype("float32").sum(axis=-1), 1, atol=0.01)


def test_what_is_no_model_with_attention_is_refused():
    dense = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    for model, message in (
        (object(), "`model` must be a `keras.Model` or a layer"),
        (Subclassed(), "must be built"),
        (dense, "no attention layer that can be watched"),
    ):
        with pytest.raises(ValueError, match=message), keras_attn.capture_attention(model):
            pass


@pytest.mark.extended
def test_compiled_calls_raise_and_say_what_to_do():
    model, inputs = classifier(), token_ids(7, 4)
    model.compile()
    function = tf.function(model)
    with pytest.raises(RuntimeError, match="eager calls only"), keras_attn.capture_attention(model):
        model.predict(inputs, verbose=0)
    with pytest.raises(RuntimeError, match="eager calls only"), keras_attn.capture_attention(model):
        function(inputs)
    function = tf.function(model)
    function(inputs)  # traced before, so that no Python runs in the block
    with (
        pytest.raises(RuntimeError, match="No attention layer was called"),
        keras_attn.capture_attention(model),
    ):
        function(inputs)
    assert model.predict(inputs, verbose=0).shape == (2, 3)
    model.compile(run_eagerly=True)
    with keras_attn.capture_attention(model) as maps:
        model.predict(inputs, batch_size=1, verbose=0)
    assert [scores.shape[0] for scores in maps.values()] == [1, 1]


def test_an_error_in_the_block_restores_every_layer():
    model, inputs = seq2seq()
    attributes = [set(vars(layer)) for layer in model._flatten_layers()]

    def fail():
        model(inputs)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), keras_attn.capture_attention(model):
        fail()
    assert [set(vars(layer)) for layer in model._flatten_layers()] == attributes


def test_blocks_nest():
    model, inputs = seq2seq()
    with keras_attn.capture_attention(model, dtype="float32") as outer:
        model(inputs)
        with keras_attn.capture_attention(model, layers="cross_attention") as inner:
            model(inputs)
        model(inputs)
    assert {len(outer.calls(path)) for path in outer.paths} == {3}
    assert {len(inner.calls(path)) for path in inner.paths} == {1}
    assert all("cross_attention" in path for path in inner)


def test_threads_see_their_own_calls_alone():
    model, inputs = classifier(), token_ids(7, 4)
    start, captured, plain = threading.Barrier(3), {}, []

    def capture(row):
        start.wait()
        with keras_attn.capture_attention(model, dtype="float32") as maps:
            for _ in range(5):
                model(inputs[row : row + 1])
        captured[row] = maps

    def call():
        start.wait()
        plain.extend(np.array(model(inputs)) for _ in range(10))

    expected = np.array(model(inputs))
    threads = [threading.Thread(target=capture, args=(row,)) for row in (0, 1)]
    threads.append(threading.Thread(target=call))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with keras_attn.capture_attention(model, dtype="float32") as maps:
        model(inputs)
    (path,) = maps
    for row in (0, 1):
        calls = captured[row].calls(path)
        assert len(calls) == 5
        for scores in calls:
            np.testing.assert_allclose(scores[0], maps[path][row], rtol=0, atol=1e-6)
    assert all(np.array_equal(y, expected) for y in plain)
    assert "_compute_attention" not in vars(model.layers[2].att)


@pytest.mark.extended
def test_gradients_are_those_without_a_capture():
    model, inputs = seq2seq()
    randomize(model)

    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(inputs) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    expected = gradients()
    with keras_attn.capture_attention(model):
        found = gradients()
    for ours, theirs in zip(found, expected, strict=True):
        assert np.array_equal(tf.convert_to_tensor(ours), tf.convert_to_tensor(theirs))


def test_recurrent_decoders_and_shared_blocks_give_a_map_for_every_call():
    block = EncoderBlock(intermediate_dim=17, num_heads=2)
    token = keras_attn.layers.TokenEmbedding(vocabulary_size=31, hidden_dim=14)
    albert = keras_attn.models.EncoderTransformer(keras_attn.layers.SequenceEmbedding(token), [block] * 3)
    with keras_attn.capture_attention(albert) as maps:
        albert(token_ids(5, 3))
    path = f"{block.name}/self_attention"
    assert list(maps) == [path, f"{path}#2", f"{path}#3"]
    model = keras_attn.models.RNNSeq2Seq(13, hidden_dim=6)
    batch = make_batch()
    with keras_attn.capture_attention(model, dtype="float32") as maps:
        model({name: batch[name] for name in ("encoder_token_ids", "decoder_token_ids")})
    assert {scores.shape for scores in maps.calls("attention")} == {(3, 1, 1, 7)}
    assert len(maps) == 5
    assert (maps["attention#2"][batch["encoder_token_ids"][:, None, None] == 0] == 0).all()


def test_every_step_of_a_generation_is_a_call_with_the_rows_of_the_whole_text():
    model = keras_attn.models.DecoderTransformer.from_sizes(VOCABULARY_SIZE, 1, **SIZES)
    randomize(model)
    prompt = np.array([[5, 6, 7]])
    with keras_attn.capture_attention(model, dtype="float32") as steps:
        generated = np.array(model.generate(prompt, end_token_id=VOCABULARY_SIZE - 1, max_length=4))
    with keras_attn.capture_attention(model, dtype="float32") as whole:
        model(np.concatenate([prompt, generated], axis=1))
    (scores,) = whole.values()
    (path,) = steps.paths
    start, *calls = steps.calls(path)  # all but the prompt's last token, then one token each
    np.testing.assert_allclose(start, scores[:, :, :2, :2], rtol=0, atol=1e-6)
    assert len(calls) >= 4
    for position, step in enumerate(calls[:4], 2):
        slots = step.shape[-1]  # those after the position are empty
        np.testing.assert_allclose(step[..., 0, :], scores[..., position, :slots], rtol=0, atol=1e-6)
