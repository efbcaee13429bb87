"""LoRA merged into the kernels of a whole model: the same outputs without it, and base weights that were never touched."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.layers import ClassificationHead
from keras_attn.models import EncoderTransformer, EncoderWithHead, merge_lora

V = 19


def make_model():
    encoder = EncoderTransformer.from_sizes(
        V, 2, hidden_dim=10, num_heads=2, intermediate_dim=13, dropout=0.0
    )
    return EncoderWithHead(encoder, ClassificationHead(3, intermediate_dim=7))


@pytest.mark.extended
def test_the_merged_model_is_an_ordinary_one_with_the_same_outputs(rng):
    model = make_model()
    before = {id(weight): ops.convert_to_numpy(weight) for weight in model.weights}
    model.encoder.enable_lora(rank=2, lora_alpha=5)
    trained = sum(
        weight.shape.num_elements() if hasattr(weight.shape, "num_elements") else np.prod(weight.shape)
        for weight in model.encoder.trainable_weights
    )
    # Queries and values of two layers: (D, N, 2) and (2, D/N).
    assert trained == 2 * 2 * (10 * 2 * 2 + 2 * 5)
    model.compile(
        keras.optimizers.Adam(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        run_eagerly=True,
    )
    token_ids, labels = rng.integers(1, V, (5, 7)), rng.integers(0, 3, 5)
    for _ in range(3):
        model.train_on_batch(token_ids, labels)
    for weight in model.encoder.weights:
        if id(weight) in before:
            np.testing.assert_array_equal(ops.convert_to_numpy(weight), before[id(weight)])
    merged = merge_lora(model)
    expected = ops.convert_to_numpy(model(token_ids))
    np.testing.assert_allclose(
        ops.convert_to_numpy(merged(token_ids)), expected, rtol=0, atol=2e-5 * abs(expected).max()
    )
    assert len(merged.weights) == len(before)
    assert merged.trainable
    with_zeros = make_model()
    with_zeros.set_weights(merged.get_weights())  # the same weights in the same order


def test_a_model_without_lora_is_refused():
    with pytest.raises(ValueError, match="needs a model with LoRA"):
        merge_lora(make_model())
