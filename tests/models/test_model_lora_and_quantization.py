"""Fine-tuning and quantising a whole model: it stays right, gets small, and comes back as it was saved."""

import gc
import json
import warnings

import keras
import numpy as np
import pytest
from helpers_models import SIZES, B, assert_close, call, generate, make_batch, make_model
from keras import ops

from keras_attn.models import Seq2SeqTransformer, load_weights, save_weights

pytestmark = pytest.mark.extended

EITHER_MODE = [("post_norm", "int8"), ("untied_gated_rms_learned", "int4")]
# Of the largest logit, through 5 layers with weights of standard deviation 0.4: measured are 0.03 and 0.5 at most.
# Trained weights, which are no white noise, lose less.
BOUNDS = {"int8": 0.06, "int4": 0.6}


def quantize(model, mode):
    gc.freeze()  # Keras collects garbage once a kernel, for half a second of old objects each time
    with warnings.catch_warnings():
        # Of layers without kernels, each by its name.
        warnings.filterwarnings("ignore", message=r"Layer \w+ does not have a `quantize` method")
        model.quantize(mode)
    gc.unfreeze()


def quantized(variant, mode, **options):
    model = make_model(variant, **options)
    quantize(model, mode)
    return model


def num_bytes(model):
    return sum(np.asarray(ops.convert_to_numpy(weight.value)).nbytes for weight in model.weights)


@pytest.mark.parametrize(("variant", "mode"), EITHER_MODE)
def test_quantised_logits_are_near(variant, mode):
    # Gates of random weights this large multiply the rounding, by very different factors for different weights.
    seed = {"untied_gated_rms_learned": 2, "post_norm": 7}.get(variant, 5)
    model, batch = make_model(variant, seed=seed), make_batch()
    exact = call(model, batch)
    quantize(model, mode)
    assert_close(call(model, batch), exact, BOUNDS[mode])
    assert not np.allclose(call(model, batch), exact, atol=1e-4)


@pytest.mark.parametrize(("mode", "share"), [("int8", 0.27), ("int4", 0.16)])
def test_memory_falls(mode, share):
    """At the sizes of a small model, scales, biases and norms are a few hundredths of what there was."""
    model = Seq2SeqTransformer.from_sizes(997, 2, 2, hidden_dim=256, num_heads=4, intermediate_dim=512)
    before = num_bytes(model)
    quantize(model, mode)
    assert num_bytes(model) < share * before


@pytest.mark.parametrize(("variant", "mode"), EITHER_MODE)
def test_quantised_pads_count_for_nothing(variant, mode):
    model, batch = quantized(variant, mode), make_batch()
    expected = call(model, batch)
    longer = {name: np.pad(ids, ((0, 0), (0, 3))) for name, ids in batch.items()}
    actual = call(model, longer)[:, : expected.shape[1]]
    real = batch["decoder_token_ids"] != 0
    assert_close(actual[real], expected[real], 1e-2)
    assert_close(
        call(model, {name: ids[1:2] for name, ids in batch.items()})[real[1:2]], expected[1][real[1]], 1e-2
    )


@pytest.mark.parametrize(("variant", "mode"), EITHER_MODE)
def test_quantised_steps_equal_the_whole(variant, mode):
    model, batch = quantized(variant, mode), make_batch(pads=False)
    whole = call(model, batch)
    length = batch["decoder_token_ids"].shape[1]
    cache, steps = model.init_cache(ops.convert_to_tensor(batch["encoder_token_ids"]), length), []
    for index in range(length):
        token_ids = ops.convert_to_tensor(batch["decoder_token_ids"][:, index : index + 1])
        logits, cache = model.call_with_cache(token_ids, cache, index)
        steps.append(ops.convert_to_numpy(logits))
    # A rounding that falls the other way moves an activation by one of 127 steps.
    assert_close(np.concatenate(steps, axis=1), whole, 2e-2)


def test_safetensors_hold_quantised_weights(tmp_path):
    model, batch = quantized("post_norm", "int4"), make_batch()
    save_weights(model, tmp_path / "model.safetensors")
    twin = Seq2SeqTransformer.from_config(model.get_config())
    load_weights(twin, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(call(twin, batch), call(model, batch))
    with pytest.raises(ValueError, match=r"does not hold the weights of this model.*kernel_scale"):
        load_weights(make_model(), tmp_path / "model.safetensors")


def test_a_config_names_the_policies_of_two_embeddings():
    model = quantized("two_vocabularies", "int8")
    config = json.loads(json.dumps(model.get_config()))
    twin = Seq2SeqTransformer.from_config(config)
    assert (
        twin.source_embedding.token.quantization_mode
        == twin.target_embedding.token.quantization_mode
        == "int8"
    )
    assert [weight.dtype for weight in twin.weights] == [weight.dtype for weight in model.weights]
    assert twin.compute_dtype == "float32"


# --- LoRA ---


def fit(model, batch, epochs=3):
    model.compile(keras.optimizers.Adam(0.002), loss="mse", run_eagerly=True)  # a graph takes longer
    target = np.random.default_rng(3).normal(size=call(model, batch).shape)
    return model.fit(batch, target, batch_size=B, epochs=epochs, verbose=0).history["loss"]


def test_only_lora_is_trained():
    model, batch = make_model("untied_gated_rms_learned", dropout=0.0), make_batch()
    expected = call(model, batch)
    model.enable_lora(2)
    assert_close(call(model, batch), expected, 1e-5)
    # Queries and values of 2 encoder and 2 decoder layers, the latter with two attentions: 2 matrices each.
    assert len(model.trainable_weights) == 2 * 2 * (2 + 2 * 2)
    size, rank, heads = SIZES["hidden_dim"], 2, SIZES["num_heads"]
    each = size * heads * rank + rank * size // heads
    assert sum(int(np.prod(weight.shape)) for weight in model.trainable_weights) == 2 * 6 * each
    before = model.get_weights()
    losses = fit(model, batch)
    assert losses[-1] < losses[0]
    for weight, start in zip(model.weights, before):
        assert np.array_equal(ops.convert_to_numpy(weight.value), start) != weight.trainable, weight.path
    assert generate(model, batch["encoder_token_ids"], max_length=3).shape == (B, 3)


def test_lora_of_a_choice_of_projections():
    model = make_model()
    model.enable_lora(2, lora_alpha=5, target_layer_names=["key", "intermediate", "token_embedding"])
    names = {weight.path.split("/")[-2] for weight in model.trainable_weights}
    assert names == {"key", "intermediate", "token_embedding"}
    assert model.encoder_blocks[0].feed_forward_layer.intermediate_dense.lora_alpha == 5
    with pytest.raises(
        ValueError, match=r"must be some of \['attention_output', 'intermediate', 'key', 'output'"
    ):
        make_model().enable_lora(2, target_layer_names=["gate"])


def test_our_files_hold_the_matrices_of_lora(tmp_path):
    model, batch = make_model(), make_batch()
    model.enable_lora(2)
    fit(model, batch)
    expected = call(model, batch)
    save_weights(model, tmp_path / "model.safetensors")
    apart = make_model(seed=6)
    with pytest.raises(ValueError, match=r"Not in the model: .*lora_kernel_a"):
        load_weights(apart, tmp_path / "model.safetensors")
    apart.enable_lora(2)
    load_weights(apart, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(call(apart, batch), expected)
