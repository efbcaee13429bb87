"""The masks that Keras carries on tensors, on the way between layers of Keras and layers of this library."""

import keras
import numpy as np
import pytest
from helpers_models import assert_close
from keras import ops

from keras_attn import layers

V, D = 17, 6
IDS = np.array(
    [[5, 7, 3, 2, 11], [4, 9, 0, 0, 0], [6, 0, 0, 0, 0], [3, 2, 8, 1, 0], [8, 4, 4, 0, 0]], "int32"
)


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize(
    "make_layer",
    [layers.SinusoidalPositionEncoding, lambda **kwargs: layers.PositionEmbedding(13, **kwargs)],
    ids=["sinusoidal", "learned"],
)
def test_positions_have_the_shape_of_the_sequence_and_its_mask(make_layer, rank):
    # As many rows as tokens: Keras' `Add` took an axis of tokens for that of rows.
    shape = (5, 5, D) if rank == 3 else (5, 2, 5, D)
    x = ops.convert_to_tensor(np.random.default_rng(3).normal(size=shape).astype("float32"))
    layer = make_layer()
    vectors = layer(x)
    assert tuple(vectors.shape) == shape
    for positions in (None, np.array([3, 1, 4, 1, 5])):
        expected = layer.encoding(x, positions=positions)
        assert tuple(expected.shape) == (5, D)
        vectors = layer(x, positions=positions)
        assert_close(
            ops.convert_to_numpy(keras.layers.Add()([x, vectors])), ops.convert_to_numpy(x + expected)
        )
    token_ids = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(V, D, mask_zero=True)(token_ids)
    together = keras.layers.Add()([embedded, layer(embedded)])
    assert layer(embedded).shape == (None, None, D)
    pooled = keras.Model(token_ids, layers.Pooling("mean")(together))
    actual = ops.convert_to_numpy(pooled(ops.convert_to_tensor(IDS)))
    assert_close(actual[1], ops.convert_to_numpy(pooled(ops.convert_to_tensor(IDS[1:2, :2])))[0])
