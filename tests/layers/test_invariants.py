"""What must hold of attention for any sizes and masks (drawn by hypothesis, the same ones in every run)."""

import numpy as np
from helpers_layers import BACKEND, assert_equal, flat_arrays, gradients, run
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_attn.layers import DecoderBlock, EncoderBlock, MultiHeadAttention, SinusoidalPositionEncoding

D = 12
# JAX compiles every op for every shape.
repeatable = settings(max_examples=15 if BACKEND == "tensorflow" else 1, deadline=None, derandomize=True)
sizes = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 4),
        "length": st.integers(1, 17),
        "heads": st.sampled_from([1, 2, 3]),
        "seed": st.integers(0, 999),
    }
)


class Drawn:
    """Random inputs and layers of the drawn sizes."""

    def __init__(self, batch, length, heads, seed):
        self.batch, self.length, self.heads = batch, length, heads
        self.rng = np.random.default_rng(seed)

    def sequence(self, length=None):
        return self.rng.normal(size=(self.batch, length or self.length, D)).astype("float32")

    def mask(self, *shape):
        """Random, with rows that are all False."""
        mask = self.rng.random(shape) < 0.6
        mask[self.rng.random(shape[:-1]) < 0.2] = False
        return mask

    def attention(self, inputs, **arguments):
        return self.with_weights(MultiHeadAttention(self.heads, 5, **arguments), inputs)

    def with_weights(self, layer, inputs):
        run(layer, inputs)
        layer.set_weights([self.rng.normal(0, 0.5, w.shape) for w in layer.weights])
        return layer


@repeatable
@given(sizes)
def test_a_later_token_changes_no_earlier_output(drawn):
    drawn = Drawn(**drawn)
    x = drawn.sequence()
    t = int(drawn.rng.integers(drawn.length))
    changed = x.copy()
    changed[:, t + 1 :] = drawn.rng.normal(size=changed[:, t + 1 :].shape)
    causal = {"query": x, "value": x, "use_causal_mask": True}
    attention = drawn.attention(causal)
    block = drawn.with_weights(DecoderBlock(7, drawn.heads), {"decoder_sequence": x})
    for layer, names in ((attention, ("query", "value")), (block, ("decoder_sequence",))):
        options = {"use_causal_mask": True}
        before = run(layer, {**dict.fromkeys(names, x), **options})[0]
        after = run(layer, {**dict.fromkeys(names, changed), **options})[0]
        assert_equal([after[:, : t + 1]], [before[:, : t + 1]], 0)
        by_input, _ = gradients(layer, {**dict.fromkeys(names, x), **options}, lambda y: y[:, t] * 1.5)
        assert not any(gradient[:, t + 1 :].any() for gradient in by_input.values())


@repeatable
@given(sizes, st.integers(1, 17))
def test_padding_content_changes_nothing(drawn, source_length):
    drawn = Drawn(**drawn)
    query, value = drawn.sequence(), drawn.sequence(source_length)
    mask = drawn.mask(drawn.batch, source_length)
    inputs = {"query": query, "value": value, "value_mask": mask}
    layer = drawn.attention(inputs)
    other = np.where(mask[..., None], value, drawn.sequence(source_length))
    assert_equal(run(layer, {**inputs, "value": other}), run(layer, inputs), 0)


@repeatable
@given(sizes, st.integers(1, 17))
def test_a_batch_is_its_rows_in_any_order(drawn, source_length):
    drawn = Drawn(**drawn)
    inputs = {
        "query": drawn.sequence(),
        "value": drawn.sequence(source_length),
        "attention_mask": drawn.mask(drawn.batch, drawn.length, source_length),
    }
    layer = drawn.attention(inputs)
    expected = run(layer, inputs)[0]
    order = drawn.rng.permutation(drawn.batch)
    assert_equal(run(layer, {name: x[order] for name, x in inputs.items()}), [expected[order]])
    rows = [run(layer, {name: x[i : i + 1] for name, x in inputs.items()})[0] for i in range(drawn.batch)]
    assert_equal([np.concatenate(rows)], [expected])


@repeatable
@given(sizes, st.integers(0, 5), st.integers(0, 5))
def test_more_padding_on_either_side_changes_nothing(drawn, left, right):
    drawn = Drawn(**drawn)
    x, mask = drawn.sequence(), drawn.mask(drawn.batch, drawn.length)
    inputs = {"inputs": x, "padding_mask": mask}
    layer = drawn.with_weights(EncoderBlock(7, drawn.heads), inputs)
    expected = run(layer, inputs)[0]
    padded = {
        "inputs": np.pad(x, [(0, 0), (left, right), (0, 0)], constant_values=3.5),
        "padding_mask": np.pad(mask, [(0, 0), (left, right)]),
    }
    actual = run(layer, padded)[0][:, left : left + drawn.length]
    assert_equal([actual[mask]], [expected[mask]])


@repeatable
@given(sizes, st.data())
def test_any_chunks_with_any_left_padding_equal_the_full_pass(drawn, data):
    drawn = Drawn(**drawn)
    x = drawn.sequence()
    first = drawn.rng.integers(0, drawn.length, (drawn.batch, 1))
    mask = np.arange(drawn.length) >= first
    inputs = {"query": x, "value": x, "value_mask": mask, "use_causal_mask": True}
    layer = drawn.attention(inputs)
    expected = run(layer, inputs)[0]
    cache, index, outputs = layer.empty_cache(drawn.batch, drawn.length), 0, []
    while index < drawn.length:
        end = index + data.draw(st.integers(1, drawn.length - index))
        chunk = x[:, index:end]
        output, cache = layer(
            chunk, chunk, value_mask=mask, use_causal_mask=True, cache=cache, cache_update_index=index
        )
        outputs += flat_arrays(output)
        index = end
    assert_equal([np.concatenate(outputs, axis=1)[mask]], [expected[mask]])


@repeatable
@given(sizes)
def test_a_reordered_cache_goes_on_as_the_reordered_rows(drawn):
    drawn = Drawn(**drawn)
    x = drawn.sequence(drawn.length + 1)
    layer = drawn.attention({"query": x, "value": x})
    expected = run(layer, {"query": x, "value": x, "use_causal_mask": True})[0]
    cache = layer.empty_cache(drawn.batch, drawn.length + 1)
    _, cache = layer(x[:, :-1], x[:, :-1], use_causal_mask=True, cache=cache, cache_update_index=0)
    order = drawn.rng.integers(0, drawn.batch, drawn.batch)
    cache = tuple(ops.take(part, order, axis=0) for part in cache)
    last = x[order, -1:]
    output, _ = layer(last, last, use_causal_mask=True, cache=cache, cache_update_index=drawn.length)
    assert_equal(flat_arrays(output), [expected[order, -1:]])


@repeatable
@given(sizes)
def test_an_encoder_sees_order_by_its_positions_alone(drawn):
    drawn = Drawn(**{**drawn, "length": drawn["length"] + 2})
    x = drawn.sequence()
    layer = drawn.with_weights(EncoderBlock(7, drawn.heads, normalize_first=True), {"inputs": x})
    order = np.roll(np.arange(drawn.length), 1)
    assert_equal(run(layer, {"inputs": x[:, order]}), [run(layer, {"inputs": x})[0][:, order]])
    positions = flat_arrays(SinusoidalPositionEncoding()(x))[0]
    plain = run(layer, {"inputs": x + positions})[0][:, order]
    assert not np.allclose(run(layer, {"inputs": x[:, order] + positions})[0], plain, atol=1e-3)


@repeatable
@given(sizes, st.integers(1, 17), st.booleans())
def test_scores_sum_to_1_or_are_all_0_and_constant_values_come_out(drawn, source_length, use_causal_mask):
    drawn = Drawn(**drawn)
    mask = drawn.mask(drawn.batch, 1, drawn.length, source_length)
    query = drawn.sequence()
    value = np.ones((drawn.batch, source_length, D), "float32") * drawn.sequence(1)
    key = drawn.sequence(source_length)
    inputs = {
        "query": query,
        "value": value,
        "key": key,
        "attention_mask": mask,
        "use_causal_mask": use_causal_mask,
    }
    layer = drawn.attention(inputs)
    output, scores = run(layer, inputs, return_attention_scores=True)
    allowed = mask & np.tri(drawn.length, source_length, dtype=bool) if use_causal_mask else mask
    assert not scores[~np.broadcast_to(allowed, scores.shape)].any()
    answered = allowed.any(-1)
    expected = np.broadcast_to(answered, scores.shape[:-1]).astype("float32")
    np.testing.assert_allclose(scores.sum(-1), expected, atol=1e-5)
    assert not scores.sum(-1)[expected == 0].any()
    unmasked = run(layer, {"query": query, "value": value[:, :1], "key": key[:, :1]})[0]
    bias = ops.convert_to_numpy(layer.output_dense.bias.value)
    assert_equal([output], [np.where(answered[:, 0, :, None], unmasked, bias)])
