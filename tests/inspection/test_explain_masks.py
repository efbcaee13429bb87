"""The masks that layers really used, against masks by hand."""

import keras
import numpy as np
import pytest
from helpers_keras_models import token_ids, translator
from helpers_masked_models import (
    LEFT,
    SEGMENTS,
    SOURCE,
    TARGET,
    decoder,
    keras_attention,
    our_attention,
    stacked_cross_attention,
)
from keras import layers

import keras_attn
from keras_attn.layers import WindowAttention

SOURCE_MASK, TARGET_MASK = SOURCE != 0, TARGET != 0
CAUSAL = np.tri(5, dtype=bool)


@pytest.mark.extended
def test_keras_stacked_cross_attention_uses_a_mask_once():
    model, inputs, _ = stacked_cross_attention(keras_attention)
    masks = keras_attn.explain_masks(model, inputs)
    assert list(masks) == ["self_0", "cross_0", "self_1", "cross_1"]
    own = CAUSAL & TARGET_MASK[:, None] & TARGET_MASK[:, :, None]
    np.testing.assert_array_equal(masks["self_0"], own)
    assert masks["cross_1"].all()
    model, inputs, _ = stacked_cross_attention(our_attention)
    masks = keras_attn.explain_masks(model, inputs)
    across = TARGET_MASK[:, :, None] & SOURCE_MASK[:, None]
    for i in range(2):
        np.testing.assert_array_equal(masks[f"self_{i}"], own)
        np.testing.assert_array_equal(masks[f"cross_{i}"], across)


def test_masks_are_told_in_a_table():
    table = str(keras_attn.explain_masks(translator(), {"encoder_inputs": SOURCE, "decoder_inputs": TARGET}))
    lines = table.splitlines()
    assert lines[0].split() == ["layer", "queries", "x", "keys", "allowed", "mask"]
    assert (
        lines[1].endswith("7 x 7           79%      3 of 14 keys hidden") or "3 of 14 keys hidden" in lines[1]
    )
    assert "5 x 5" in lines[2]
    assert "causal" in lines[2]
    plain = keras.Sequential([keras.Input((3, 6)), SelfAttention()])
    assert str(keras_attn.explain_masks(plain, np.ones((2, 3, 6)))).endswith("3 x 3           100%     all")


class SelfAttention(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, 3, name="attention")

    def build(self, input_shape):
        self.attention.build(input_shape, input_shape)

    def call(self, x):
        return self.attention(x, x)


def test_left_padding_and_packed_segments():
    model, _, _ = decoder()
    masks = keras_attn.explain_masks(model, {"token_ids": token_ids(5, 5), "padding_mask": LEFT})
    for mask in masks.values():
        np.testing.assert_array_equal(mask, CAUSAL & LEFT[:, None] & LEFT[:, :, None])
    masks = keras_attn.explain_masks(model, {"token_ids": token_ids(7, 7), "segment_ids": SEGMENTS})
    same = (SEGMENTS[:, :, None] == SEGMENTS[:, None]) & (SEGMENTS != 0)[:, None]
    for mask in masks.values():
        np.testing.assert_array_equal(mask, np.tri(7, dtype=bool) & same)
    assert "causal" in str(masks)
    assert "between pairs" in str(masks)
    assert "2 of 14 queries without a key" in str(masks)


def test_heads_that_differ_and_several_axes():
    rng = np.random.default_rng(3)
    given = rng.random((2, 3, 5, 7)) < 0.6
    query, value = rng.normal(size=(2, 5, 6)), rng.normal(size=(2, 7, 6))
    for make in (layers.MultiHeadAttention, keras_attn.layers.MultiHeadAttention):
        inputs = keras.Input((5, 6)), keras.Input((7, 6)), keras.Input((3, 5, 7), dtype="bool")
        model = keras.Model(inputs, make(3, 2, name="a")(inputs[0], inputs[1], attention_mask=inputs[2]))
        masks = keras_attn.explain_masks(model, [query, value, given])
        np.testing.assert_array_equal(masks["a"], given)
        assert "heads differ" in str(masks)
        image = keras.Input((2, 3, 6))
        layer = make(2, 3, attention_axes=2, name="a")
        masks = keras_attn.explain_masks(
            keras.Model(image, layer(image, image, attention_mask=np.tri(3, dtype=bool))),
            rng.normal(size=(2, 2, 3, 6)),
        )
        np.testing.assert_array_equal(masks["a"], np.broadcast_to(np.tri(3, dtype=bool), (2, 2, 3, 3)))


def test_grouped_attention_with_the_causal_mask_alone_and_windows():
    x = keras.Input((5, 6))
    model = keras.Model(x, layers.GroupQueryAttention(3, 4, 2, name="a")(x, x, use_causal_mask=True))
    masks = keras_attn.explain_masks(model, np.ones((2, 5, 6)))
    np.testing.assert_array_equal(masks["a"], np.broadcast_to(CAUSAL, (2, 5, 5)))
    layer = WindowAttention(2, 3, window_size=3, shift_size=1)
    images = np.random.default_rng(3).normal(size=(1, 4, 3, 6))
    layer(images)
    (mask,) = keras_attn.explain_masks(layer, images).values()
    assert mask.shape == (1, 2, 9, 9)
    # The second window holds one row of pixels, which the shift leaves apart, and two rows of padding.
    assert mask[0].sum(axis=(1, 2)).tolist() != [81, 81]
    assert (mask == np.swapaxes(mask, -1, -2)).all()
