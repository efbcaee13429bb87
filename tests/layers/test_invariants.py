"""What must hold of attention for any sizes and masks (drawn by hypothesis, the same ones in every run)."""

import numpy as np
import pytest
from helpers_attention_oracle import make_attention
from helpers_layers import BACKEND, assert_equal, flat_arrays, gradients, run
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_attn.layers import MultiHeadAttention

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
