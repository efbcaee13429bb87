"""What must hold of attention for any sizes and masks (drawn by hypothesis, the same ones in every run)."""

import numpy as np
import pytest
from helpers_attention_oracle import attention_oracle, make_attention, named_weights
from helpers_layers import BACKEND, assert_equal, flat_arrays, gradients, run
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_attn.layers import DecoderBlock, EncoderBlock, MultiHeadAttention, SinusoidalPositionEncoding

D = 12
# JAX compiles every op for every shape.
repeatable = settings(max_examples=6 if BACKEND == "tensorflow" else 1, deadline=None, derandomize=True)
# An example with every option takes long, and the combinations of options have tests of their own.
less_often = settings(repeatable, max_examples=3 if BACKEND == "tensorflow" else 1)
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
        self.batch, self.length, self.heads, self.seed = batch, length, heads, seed
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


@pytest.mark.extended
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


@pytest.mark.extended
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


@pytest.mark.extended
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


# --- the variants of MultiHeadAttention, in any combination ---

SCHEMES = {
    "none": {},
    "rotary": {"rotary_embedding": {"max_wavelength": 100.0}},
    "rotary_interleaved": {"rotary_embedding": {"rotary_dim": 4, "interleaved": True}},
    "alibi": {"position_bias": ("alibi", {})},
    "t5": {"position_bias": ("t5", {"num_buckets": 8, "max_distance": 11})},
    "shaw": {"position_bias": ("shaw", {"max_distance": 3})},
}
options = st.fixed_dictionaries(
    {
        "scheme": st.sampled_from(list(SCHEMES)),
        "multi_query": st.booleans(),
        "query_key_norm": st.sampled_from([None, "rms_norm", "layer_norm"]),
        "logit_soft_cap": st.sampled_from([None, 2.0]),
        "use_sink_logits": st.booleans(),
        "window": st.sampled_from([(None, 0), (1, 0), (3, 0), (2, 2)]),
        "memory_efficient": st.booleans(),
    }
)


def variant_arguments(drawn, scheme, multi_query, window, **rest):
    """The constructor arguments that `make_attention` and the oracle take."""
    heads = {"num_heads": drawn.heads, "key_dim": 6, "num_key_value_heads": 1 if multi_query else drawn.heads}
    return {**heads, "sliding_window": window[0], "num_sink_tokens": window[1], **SCHEMES[scheme], **rest}


def variant(drawn, inputs, arguments):
    return drawn.with_weights(make_attention(arguments), inputs)


def itself(x, **given):
    return {"query": x, "value": x, **given}


@pytest.mark.extended
@less_often
@given(sizes, options)
def test_variants_equal_the_oracle_and_their_dense_form(drawn, chosen):
    drawn = Drawn(**drawn)
    arguments = variant_arguments(drawn, **chosen)
    x = drawn.sequence()
    inputs = itself(
        x,
        attention_mask=drawn.mask(drawn.batch, drawn.length, drawn.length),
        use_causal_mask=bool(drawn.seed % 2),
    )
    blocks, dense = (
        variant(drawn, inputs, {**arguments, "memory_efficient": answer}) for answer in (True, False)
    )
    dense.set_weights(blocks.get_weights())
    expected, scores = attention_oracle(named_weights(dense), arguments, inputs)
    assert_equal(run(blocks, inputs), [expected])
    assert_equal(run(dense, inputs, return_attention_scores=True), [expected, scores])
    sums = scores.sum(-1)
    limit = sums <= 1 if chosen["use_sink_logits"] else np.abs(sums - 1) < 1e-9
    assert (limit | (sums == 0)).all()
    of_blocks, of_dense = (gradients(layer, inputs, lambda y: y * 1.5) for layer in (blocks, dense))
    assert_equal(
        [of_blocks[0][name] for name in inputs if name in ("query", "value")], list(of_dense[0].values())
    )
    assert_equal(of_blocks[1], of_dense[1])


@pytest.mark.extended
@less_often
@given(sizes, options)
def test_in_no_variant_a_later_token_changes_an_earlier_output(drawn, chosen):
    drawn = Drawn(**drawn)
    x, t = drawn.sequence(), drawn.seed % drawn.length
    inputs = itself(x, use_causal_mask=True)
    layer = variant(drawn, inputs, variant_arguments(drawn, **chosen))
    changed = x.copy()
    changed[:, t + 1 :] = drawn.rng.normal(size=changed[:, t + 1 :].shape)
    before, after = (run(layer, itself(y, use_causal_mask=True))[0] for y in (x, changed))
    assert_equal([after[:, : t + 1]], [before[:, : t + 1]], 0)
    by_input, _ = gradients(layer, inputs, lambda y: y[:, t] * 1.5)
    assert not any(gradient[:, t + 1 :].any() for gradient in by_input.values())


@pytest.mark.extended
@repeatable
@given(sizes, options, st.integers(0, 5), st.integers(0, 5))
def test_in_no_variant_padding_changes_anything(drawn, chosen, left, right):
    drawn = Drawn(**drawn)
    x, mask = drawn.sequence(), drawn.mask(drawn.batch, drawn.length)
    layer = variant(drawn, itself(x), variant_arguments(drawn, **chosen))
    # Given, because sinks are else counted among real tokens, and masks drawn here have pads between them.
    positions = np.arange(drawn.length, dtype="int32")
    expected = run(layer, itself(x, value_mask=mask, positions=positions))[0]
    other = np.where(mask[..., None], x, drawn.sequence())
    changed = {"query": x, "value": other, "value_mask": mask, "positions": positions}
    assert_equal(run(layer, changed), [expected], 0)
    sides = [(0, 0), (left, right)]
    padded = itself(
        np.pad(x, [*sides, (0, 0)], constant_values=3.5),
        value_mask=np.pad(mask, sides),
        positions=np.arange(-left, drawn.length + right, dtype="int32"),
    )
    assert_equal([run(layer, padded)[0][:, left : left + drawn.length]], [expected])


@pytest.mark.extended
@less_often
@given(sizes, options)
def test_in_every_variant_a_batch_is_its_rows_in_any_order(drawn, chosen):
    drawn = Drawn(**drawn)
    x = drawn.sequence()
    inputs = itself(x, value_mask=drawn.mask(drawn.batch, drawn.length))
    layer = variant(drawn, inputs, variant_arguments(drawn, **chosen))
    expected = run(layer, inputs)[0]
    order = drawn.rng.permutation(drawn.batch)
    assert_equal(run(layer, {name: x[order] for name, x in inputs.items()}), [expected[order]])
    rows = [run(layer, {name: x[i : i + 1] for name, x in inputs.items()})[0] for i in range(drawn.batch)]
    assert_equal([np.concatenate(rows)], [expected])


@pytest.mark.extended
@repeatable
@given(sizes, options, st.data())
def test_in_every_variant_chunks_through_a_cache_equal_the_full_pass(drawn, chosen, data):
    drawn = Drawn(**drawn)
    x = drawn.sequence()
    first = drawn.rng.integers(0, drawn.length, (drawn.batch, 1))
    mask = np.arange(drawn.length) >= first
    positions = (np.arange(drawn.length) - first).astype("int32")
    inputs = itself(x, value_mask=mask, positions=positions, use_causal_mask=True)
    layer = variant(drawn, inputs, variant_arguments(drawn, **chosen))
    expected = run(layer, inputs)[0]
    cache, index, outputs = layer.empty_cache(drawn.batch, drawn.length), 0, []
    while index < drawn.length:
        end = index + data.draw(st.integers(1, drawn.length - index))
        chunk = x[:, index:end]
        output, cache = layer(
            chunk,
            chunk,
            use_causal_mask=True,
            cache=cache,
            cache_update_index=index,
            positions=positions[:, index:end],
        )
        outputs += flat_arrays(output)
        index = end
    assert_equal([np.concatenate(outputs, axis=1)[mask]], [expected[mask]])


@less_often
@given(sizes, options)
def test_only_positions_tell_a_variant_the_order(drawn, chosen):
    drawn = Drawn(**{**drawn, "length": drawn["length"] + 2})
    x = drawn.sequence()
    arguments = variant_arguments(drawn, **{**chosen, "window": (None, 0)})
    layer = variant(drawn, itself(x), arguments)
    order = np.roll(np.arange(drawn.length), 1)
    expected = run(layer, itself(x))[0][:, order]
    moved = run(layer, itself(x[:, order]))[0]
    if chosen["scheme"] == "none":
        assert_equal([moved], [expected])
    else:
        assert not np.allclose(moved, expected, atol=1e-3)
        assert_equal([run(layer, itself(x[:, order], positions=order.astype("int32")))[0]], [expected])


@pytest.mark.extended
@repeatable
@given(sizes, options, st.sampled_from([1, 7, 64, 4096]))
def test_only_distances_matter(drawn, chosen, shift):
    drawn = Drawn(**drawn)
    x = drawn.sequence()
    # Sinks are the first positions of all, which a shift moves away.
    layer = variant(drawn, itself(x), variant_arguments(drawn, **{**chosen, "window": (3, 0)}))
    positions = np.arange(drawn.length, dtype="int32")
    here, there = (
        run(layer, itself(x, positions=where, use_causal_mask=True))[0]
        for where in (positions, positions + np.int32(shift))
    )
    rotary = 5e-4 if shift > 64 else 1e-5
    assert_equal([there], [here], rotary if "rotary" in chosen["scheme"] else 0)


@pytest.mark.extended
@less_often
@given(sizes, options)
def test_in_every_variant_packed_rows_are_separate_rows(drawn, chosen):
    drawn = Drawn(**{**drawn, "length": drawn["length"] + 1})
    x, cut = drawn.sequence(), 1 + drawn.seed % drawn.length
    layer = variant(drawn, itself(x), variant_arguments(drawn, **chosen))
    index = np.arange(drawn.length)
    packed = itself(
        x,
        segment_ids=np.tile(np.where(index < cut, 1, 2).astype("int32"), (drawn.batch, 1)),
        positions=np.where(index < cut, index, index - cut).astype("int32"),
        use_causal_mask=True,
    )
    parts = [part for part in (x[:, :cut], x[:, cut:]) if part.shape[1]]
    expected = [run(layer, itself(part, use_causal_mask=True))[0] for part in parts]
    assert_equal(run(layer, packed), [np.concatenate(expected, axis=1)])


@pytest.mark.extended
@less_often
@given(sizes, options)
def test_a_shared_key_head_is_a_repeated_one(drawn, chosen):
    drawn = Drawn(**drawn)
    x = drawn.sequence()
    shared, each = (
        variant(drawn, itself(x), variant_arguments(drawn, **{**chosen, "multi_query": answer}))
        for answer in (True, False)
    )
    for one, many in zip(shared.weights, each.weights):
        weight = ops.convert_to_numpy(one.value)
        repeats = drawn.heads if one.path.split("/")[-2] in ("key", "value") else 1
        many.assign(np.repeat(weight, repeats, axis=-2) if repeats > 1 else weight)
    assert_equal(run(shared, itself(x)), run(each, itself(x)))
