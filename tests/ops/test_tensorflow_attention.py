"""A causal mask written into logits, against NumPy's triangles."""

import keras
import numpy as np
import pytest

import keras_attn.ops.blockwise_attention as blockwise_attention
from keras_attn.layers import MultiHeadAttention
from keras_attn.ops import MaskRule, memory_efficient_attention
from keras_attn.ops.tensorflow_attention import with_later_keys_masked

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="writes by an operation of TensorFlow's"
)


@pytest.mark.parametrize(("dtype", "batch_size"), [("float32", 2), ("float32", None), ("bfloat16", None)])
@pytest.mark.parametrize(
    ("num_queries", "num_keys", "first"),
    [(3, 7, 4), (5, 5, 0), (5, 11, 2), (5, 7, 5), (5, 7, 6), (2, 3, 3), (1, 13, 7)],
)
def test_keys_after_a_query_are_masked_and_no_other_changes(
    rng, num_queries, num_keys, first, dtype, batch_size
):
    import tensorflow as tf

    logits = tf.cast(rng.normal(size=(2, 3, num_queries, num_keys)), dtype)
    is_later = ~np.tri(num_queries, num_keys, first, dtype=bool)
    expected = np.where(is_later, np.float32(tf.cast(-1e30, dtype)), np.float32(logits))
    signature = [tf.TensorSpec([batch_size, *logits.shape[1:]], dtype)]
    found = tf.function(lambda x: (with_later_keys_masked(x * 1, first), x), signature, autograph=False)(
        logits
    )
    assert found[0].shape == logits.shape
    np.testing.assert_array_equal(np.float32(found[0]), expected)
    np.testing.assert_array_equal(np.float32(found[1]), np.float32(logits))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_compiler_gets_another_mask(monkeypatch, jit_compile):
    """XLA would compile one operation for each diagonal."""
    import tensorflow as tf

    monkeypatch.setattr(blockwise_attention, "_BLOCK_SCORES_OF_HEAD", 1)
    positions = tf.range(17)
    rule = MaskRule(query_positions=positions, key_positions=positions, causal=True, offset=0)
    attend = tf.function(
        lambda x: memory_efficient_attention(x, x, x, rule), autograph=False, jit_compile=jit_compile
    )
    graph = attend.get_concrete_function(tf.TensorSpec((2, 3, 17, 5))).graph.as_graph_def()
    nodes = {node.op for function in graph.library.function for node in function.node_def}
    assert "BatchMatMulV2" in nodes
    assert ("MatrixSetDiagV3" in nodes) is not jit_compile


@pytest.mark.extended
def test_a_model_of_batches_of_any_size(rng, monkeypatch):
    """Its blocks have several queries, so that several diagonals of keys come after them."""
    monkeypatch.setattr(blockwise_attention, "_BLOCK_SCORES_OF_HEAD", 1)
    inputs, mask = keras.Input((97, 11)), keras.Input((97,), dtype="bool")
    layer = MultiHeadAttention(3, 5, memory_efficient=True)
    model = keras.Model(
        [inputs, mask], layer(inputs, inputs, query_mask=mask, value_mask=mask, use_causal_mask=True)
    )
    x = rng.normal(size=(2, 97, 11)).astype("float32")
    is_real = np.arange(97) < np.array([[97], [53]])
    dense = MultiHeadAttention(3, 5, memory_efficient=False)
    dense.build(x.shape, x.shape)
    dense.set_weights(layer.get_weights())
    expected = dense(x, x, query_mask=is_real, value_mask=is_real, use_causal_mask=True)
    np.testing.assert_allclose(
        model.predict([x, is_real], verbose=0), keras.ops.convert_to_numpy(expected), rtol=1e-4, atol=1e-6
    )
