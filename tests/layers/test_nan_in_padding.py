"""What paddings hide reaches nobody: not outputs, not gradients of inputs, and not those of the layer's weights.

The truth is the same layer with the same mask written out for all pairs, on inputs without NaN.
"""

import keras
import numpy as np
import pytest
from helpers_layers import assert_equal, gradients, run

from keras_attn.layers import DifferentialAttention, MultiHeadAttention, TalkingHeadsAttention

B, T, S, D = 5, 7, 11, 13
ORDERS = {
    "free": {},
    "causal": {"use_causal_mask": True},
    "given_positions": {"use_causal_mask": True, "positions": np.array([3, 4, 5, 6, 9, 10, 20], "int32")},
    "keys_after_queries": {"use_causal_mask": True, "key_positions": np.arange(T, dtype="int32") + 2},
}
PADDINGS = ["same", "different", "of_queries", "of_keys"]


def padding(rng, length):
    """Pads on both sides and between, a row of one token, and one of padding only."""
    mask = rng.random((B, length)) < 0.6
    mask[0], mask[1, :2], mask[2], mask[-1] = True, False, np.arange(length) == 0, False
    return mask


def make_masks(rng, name, num_keys):
    of_queries, of_keys = padding(rng, T), padding(rng, num_keys)
    if name == "different":  # a row of queries without keys, and one of keys without queries
        of_queries[2], of_keys[2] = True, False
        of_queries[3], of_keys[3] = False, True
    return {
        "same": {"query_mask": of_queries, "value_mask": of_queries},
        "different": {"query_mask": of_queries, "value_mask": of_keys},
        "of_queries": {"query_mask": of_queries},
        "of_keys": {"value_mask": of_keys},
    }[name]


def as_pairs(masks, order, window, num_keys):
    allowed = np.ones((B, T, num_keys), bool)
    allowed &= masks.get("query_mask", np.ones((B, T), bool))[:, :, None]
    allowed &= masks.get("value_mask", np.ones((B, num_keys), bool))[:, None, :]
    positions = order.get("positions", np.arange(T))
    distance = positions[:, None] - order.get(
        "key_positions", positions if num_keys == T else np.arange(num_keys)
    )
    if order:
        allowed &= distance >= 0
    if window:
        allowed &= np.abs(distance) < window
    return allowed


class OfItself(keras.layers.Layer):
    """Self-attention, in which query and value, and with `same` their masks, are one tensor each."""

    def __init__(self, attention, same):
        super().__init__()
        self.attention, self.same = attention, same

    def build(self, query_shape):
        self.attention.build(query_shape, query_shape)

    def call(
        self,
        query,
        query_mask=None,
        value_mask=None,
        attention_mask=None,
        use_causal_mask=False,
        positions=None,
        key_positions=None,
    ):
        return self.attention(
            query,
            query,
            query_mask=query_mask,
            value_mask=query_mask if self.same else value_mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
            positions=positions,
            key_positions=key_positions,
        )


def check(rng, cls, of_itself, padding_name, order, fill, weights_too=True, **arguments):
    num_keys = T if of_itself else S
    masks = make_masks(rng, padding_name, num_keys)
    allowed = as_pairs(masks, order, arguments.get("sliding_window"), num_keys)
    sequences = {"query": rng.normal(size=(B, T, D)).astype("float32")}
    takes_part = {"query": allowed.any(-1)}
    layer = cls(3, 5, **arguments)
    if of_itself:
        layer = OfItself(layer, same=padding_name == "same")
        takes_part["query"] |= allowed.any(-2)
    else:
        sequences["value"] = rng.normal(size=(B, S, D)).astype("float32")
        takes_part["value"] = allowed.any(-2)
    spoilt = {
        name: np.where(takes_part[name][..., None], x, np.float32(fill)) for name, x in sequences.items()
    }
    written_out = {**sequences, **order, "attention_mask": allowed}
    with_paddings = {**spoilt, **order, **masks}
    run(layer, written_out)
    layer.set_weights([rng.normal(0, 0.5, weight.shape) for weight in layer.weights])
    results = []
    for inputs in (with_paddings, written_out):
        by_input, by_weight = gradients(layer, inputs, lambda output: output**2)
        found = run(layer, inputs) + [by_input[name] for name in sequences]
        results.append(found + by_weight if weights_too else found)
    assert_equal(*results, 1e-5)


@pytest.mark.parametrize("fill", [np.nan, -np.inf, 7.0], ids=str)
@pytest.mark.parametrize("padding_name", PADDINGS)
def test_of_a_sequence_that_attends_to_itself(rng, padding_name, fill):
    check(rng, MultiHeadAttention, True, padding_name, {}, fill, use_gate=True)


@pytest.mark.parametrize("fill", [np.nan, -np.inf, 7.0], ids=str)
@pytest.mark.parametrize("padding_name", PADDINGS[1:])
def test_of_one_sequence_that_attends_to_another(rng, padding_name, fill):
    check(rng, MultiHeadAttention, False, padding_name, {}, fill, use_gate=True)


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        (MultiHeadAttention, {"memory_efficient": True}),
        (DifferentialAttention, {}),
        (DifferentialAttention, {"memory_efficient": True}),
        (TalkingHeadsAttention, {}),
    ],
    ids=str,
)
def test_of_variants(rng, cls, arguments):
    check(rng, cls, True, "same", ORDERS["causal"], np.nan, **arguments)


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("order", ORDERS)
def test_of_one_padding_where_positions_hide_keys_too(rng, order, window):
    # The gradients of weights are not promised to survive NaN in a real key that nobody sees.
    weights_too = order != "keys_after_queries"
    check(
        rng,
        MultiHeadAttention,
        True,
        "same",
        ORDERS[order],
        np.nan,
        weights_too=weights_too,
        sliding_window=window,
    )
