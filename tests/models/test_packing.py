"""Sequences packed into one row answer as they do in rows of their own, in both stacks and between them."""

import keras
import numpy as np
import pytest
from helpers_layers import BACKEND, assert_equal
from helpers_models import PAD, shared_model
from keras import ops

from keras_attn.layers import (
    PositionEmbedding,
    SequenceEmbedding,
    SinusoidalPositionEncoding,
    TokenEmbedding,
)

# Source and target lengths of the sequences in each row.
ROWS = [[(3, 2), (5, 4)], [(2, 5), (4, 1), (1, 3)]]
D = 14


def padded(rows, dtype="int32"):
    length = 2 + max(map(len, rows))
    out = np.zeros((len(rows), length, *np.shape(rows[0])[1:]), dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


def packed(per_sequence, side):
    """Rows of per-sequence values, side 0 the sources and 1 the targets, and their segment ids."""
    rows = [np.concatenate([pair[side] for pair in row]) for row in per_sequence]
    ids = [np.repeat(np.arange(1, len(row) + 1), [len(pair[side]) for pair in row]) for row in per_sequence]
    return padded(rows, rows[0].dtype), padded(ids)


def in_segments(output, segment_ids):
    """The parts of each row that belong to the segments, in order."""
    output = ops.convert_to_numpy(output)
    return [row[ids == i] for row, ids in zip(output, segment_ids) for i in range(1, ids.max() + 1)]


@pytest.mark.parametrize("variant", ["post_norm"])
def test_packed_rows_equal_separate_rows(rng, variant):
    model = shared_model(variant)
    pairs = [
        [tuple(rng.integers(4, 11, n).astype("int32") for n in lengths) for lengths in row] for row in ROWS
    ]
    encoder_token_ids, encoder_segment_ids = packed(pairs, 0)
    decoder_token_ids, decoder_segment_ids = packed(pairs, 1)
    inputs = {
        "encoder_token_ids": encoder_token_ids,
        "decoder_token_ids": decoder_token_ids,
        "encoder_segment_ids": encoder_segment_ids,
        "decoder_segment_ids": decoder_segment_ids,
    }
    positions = {}
    for side, name in enumerate(("encoder_positions", "decoder_positions")):
        counts = [[(np.arange(len(pair[0])), np.arange(len(pair[1]))) for pair in row] for row in pairs]
        positions[name] = packed(counts, side)[0].astype("int32")
    separate = [
        ops.convert_to_numpy(model({"encoder_token_ids": source[None], "decoder_token_ids": target[None]}))[0]
        for row in pairs
        for source, target in row
    ]
    for given in (inputs, inputs | positions):
        assert_equal(in_segments(model(given), decoder_segment_ids), separate, 1e-5)
    unpacked = {name: inputs[name] for name in ("encoder_token_ids", "decoder_token_ids")}
    assert not np.allclose(in_segments(model(unpacked), decoder_segment_ids)[-1], separate[-1], atol=1e-3)


def test_positions_alone_serve_padding_on_the_left(rng):
    model = shared_model()
    source, target = rng.integers(4, 11, (2, 5)).astype("int32"), rng.integers(4, 11, (2, 4)).astype("int32")
    expected = ops.convert_to_numpy(model({"encoder_token_ids": source, "decoder_token_ids": target}))
    left = np.full((2, 3), PAD, "int32")
    inputs = {
        "encoder_token_ids": np.concatenate([left, source], 1),
        "decoder_token_ids": np.concatenate([left, target], 1),
        "encoder_positions": np.broadcast_to(np.maximum(np.arange(8) - 3, 0), (2, 8)).astype("int32"),
        "decoder_positions": np.broadcast_to(np.maximum(np.arange(7) - 3, 0), (2, 7)).astype("int32"),
    }
    assert_equal([ops.convert_to_numpy(model(inputs))[:, 3:]], [expected], 1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("variant", ["post_norm", "untied_gated_rms_learned"])
def test_pads_anywhere_change_no_logits_of_a_model_with_absolute_positions(rng, variant):
    """Of the source and of the target: before, between and after the tokens, found by their id or told by a mask."""
    model = shared_model(variant)
    source, target = rng.integers(4, 11, (2, 5)).astype("int32"), rng.integers(4, 11, (2, 4)).astype("int32")
    expected = ops.convert_to_numpy(model({"encoder_token_ids": source, "decoder_token_ids": target}))
    for of_source, of_target in (([0, 0, 0], [4, 4]), ([0, 0, 2, 5], [0, 0]), ([1, 3], [0, 2, 2, 4])):
        inputs = {
            "encoder_token_ids": np.insert(source, of_source, PAD, axis=1),
            "decoder_token_ids": np.insert(target, of_target, PAD, axis=1),
        }
        is_real = inputs["decoder_token_ids"][0] != PAD
        assert_equal([ops.convert_to_numpy(model(inputs))[:, is_real]], [expected], 1e-5)
        other = {name: np.where(ids == PAD, 6, ids) for name, ids in inputs.items()}
        masks = {name.replace("token_ids", "padding_mask"): ids != PAD for name, ids in inputs.items()}
        assert_equal([ops.convert_to_numpy(model(other | masks))[:, is_real]], [expected], 1e-5)


@pytest.mark.parametrize(
    "position", [SinusoidalPositionEncoding(), PositionEmbedding(97)], ids=["sines", "table"]
)
def test_the_first_real_token_has_position_0_in_layers_used_alone(rng, position):
    """By a mask that Keras carries, by an argument, and in a functional model of unknown length."""
    ids = rng.integers(1, 11, (2, 5)).astype("int32")
    padded_ids, is_real = np.insert(ids, [0, 0, 2, 5], 0, axis=1), [2, 3, 5, 6, 7]
    token = TokenEmbedding(11, D, mask_zero=True)
    embedding = SequenceEmbedding(token, position=position)
    expected = ops.convert_to_numpy(embedding(ids))
    tokens = keras.Input((None,), dtype="int32")
    added = keras.layers.Add()([token(tokens), position(token(tokens))])
    outputs = [keras.Model(tokens, x).predict_on_batch(padded_ids) for x in (embedding(tokens), added)]
    unmasked = SequenceEmbedding(TokenEmbedding(11, D), position=position)
    unmasked.build((None, None))
    unmasked.token.set_weights(token.get_weights())
    outputs.append(unmasked(padded_ids, padding_mask=padded_ids > 0))
    x = ops.convert_to_tensor(ops.convert_to_numpy(unmasked.token(padded_ids)))
    outputs.append(x + position(x, padding_mask=padded_ids > 0))
    for output in outputs:
        assert_equal([ops.convert_to_numpy(output)[:, is_real]], [expected], 1e-6)
    given = position(x, padding_mask=padded_ids > 0, positions=np.arange(9))
    assert_equal([ops.convert_to_numpy(given)], [ops.convert_to_numpy(position(x))], 0)


def test_a_position_layer_of_ones_own_gets_the_positions():
    class Scaled(keras.layers.Layer):
        def call(self, x, positions=None):
            return ops.cast(positions, "float32")[..., None] * ops.ones_like(x)

    embedding = SequenceEmbedding(TokenEmbedding(11, D, embeddings_initializer="zeros"), position=Scaled())
    sequence = embedding(
        np.array([[0, 0, 3, 4, 0]]), padding_mask=np.array([[False, False, True, True, False]])
    )
    np.testing.assert_array_equal(ops.convert_to_numpy(sequence)[0, :, 0], [0, 0, 0, 1, 1])


@pytest.mark.parametrize("missing", ["encoder_segment_ids", "decoder_segment_ids"])
def test_segments_of_one_side_alone_are_refused(missing):
    ids = np.ones((2, 3), "int32")
    names = ("encoder_token_ids", "decoder_token_ids", "encoder_segment_ids", "decoder_segment_ids")
    inputs = {name: ids for name in names if name != missing}
    with pytest.raises(ValueError, match="must be given together"):
        shared_model()(inputs)


@pytest.mark.extended
@pytest.mark.skipif(BACKEND != "tensorflow", reason="the trace with unknown sizes is TensorFlow's")
def test_packed_batches_of_any_length_train_in_one_trace(rng):
    import tensorflow as tf

    model = shared_model()
    names = ("encoder_token_ids", "decoder_token_ids", "encoder_segment_ids", "decoder_segment_ids")
    traces = []

    @tf.function(
        input_signature=[{name: tf.TensorSpec((None, None), tf.int32) for name in names}], autograph=False
    )
    def call(inputs):
        traces.append(1)
        return model(inputs)

    for length in (5, 8):
        inputs = {name: rng.integers(1, 3, (2, length)).astype("int32") for name in names}
        inputs |= {name: np.sort(x, 1) for name, x in inputs.items() if "segment" in name}
        assert_equal([call(inputs).numpy()], [ops.convert_to_numpy(model(inputs))], 1e-5)
    assert len(traces) == 1
