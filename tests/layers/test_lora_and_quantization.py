"""LoRA and Keras' quantisation through every layer that has kernels: near, small, saved, and nothing else moved."""

import gc
import warnings

import keras
import numpy as np
import pytest
from helpers_layers import (
    LENGTHS,
    assert_equal,
    compiled,
    flat_arrays,
    functional_model,
    gradients,
    prefix_mask,
    run,
    split,
    tensors,
)
from keras import ops

from keras_attn.layers import (
    BahdanauAttention,
    DecoderBlock,
    DifferentialAttention,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    RelativePositionBias,
    RotaryEmbedding,
    TalkingHeadsAttention,
    TokenEmbedding,
    WindowAttention,
)

# Keras transposes a vector, of which torch warns.
pytestmark = [
    pytest.mark.extended,
    pytest.mark.filterwarnings("ignore:The use of `x.T` on tensors of dimension other than 2"),
]

B, S, D, E = 3, 7, 14, 11
# Of the largest magnitude, for weights of standard deviation 0.4: measured are 0.02 and 0.38 at most.
BOUNDS = {"int8": 0.03, "int4": 0.4}
# Layers without kernels stay as they are, of which Keras warns.
WITHOUT_KERNELS = {
    "Dropout",
    "InputLayer",
    "LayerNormalization",
    "RelativePositionBias",
    "RMSNormalization",
    "RotaryEmbedding",
}


def normal(*shape, seed=3):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def sequences(length):
    return {"query": normal(B, length, D), "value": normal(B, S, E), "value_mask": prefix_mask((B, S))}


def one_sequence(length):
    return {"inputs": normal(B, length, D)}


def padded_sequence(length):
    return {**one_sequence(length), "padding_mask": prefix_mask((B, length))}


def two_sequences(length):
    return {
        "decoder_sequence": normal(B, length, D),
        "encoder_sequence": normal(B, S, E),
        "encoder_padding_mask": prefix_mask((B, S)),
    }


def images(length):
    return {"inputs": normal(B, length, 5, D)}


def token_ids(length):
    return {"inputs": np.random.default_rng(3).integers(0, 19, (B, length)).astype("int32")}


def block_with_given_attention():
    attention = MultiHeadAttention(2, 4, rotary_embedding=RotaryEmbedding(), name="rotating")
    return EncoderBlock(17, self_attention=attention, normalize_first=True, gated=True)


CASES = {
    "attention": (lambda: MultiHeadAttention(3, 5, value_dim=2, use_gate=True), sequences),
    "attention_of_groups": (
        lambda: MultiHeadAttention(
            4, 5, num_key_value_heads=2, position_bias=RelativePositionBias(), use_bias=False
        ),
        sequences,
    ),
    "differential": (lambda: DifferentialAttention(3, 5), sequences),
    "talking_heads": (lambda: TalkingHeadsAttention(3, 5), sequences),
    "window": (lambda: WindowAttention(3, 5, window_size=(2, 3)), images),
    "bahdanau": (lambda: BahdanauAttention(13), sequences),
    "feed_forward": (lambda: FeedForward(17, gated=True, activation="silu"), one_sequence),
    "embedding": (lambda: TokenEmbedding(19, D), token_ids),
    "embedding_untied": (lambda: TokenEmbedding(19, D, tie_weights=False), token_ids),
    "encoder_block": (lambda: EncoderBlock(17, 2), padded_sequence),
    "encoder_block_given": (block_with_given_attention, padded_sequence),
    "decoder_block": (lambda: DecoderBlock(17, 2, norm=keras.layers.RMSNormalization()), two_sequences),
}
# Every layer in one of the modes: what differs between layers is which kernels they have.
EITHER_MODE = [(name, ("int4", "int8")[i % 2]) for i, name in enumerate(CASES)]


def make(name, seed=5):
    """A functional model of the layer, with random weights, and the layer."""
    make_layer, make_inputs = CASES[name]
    layer = make_layer()
    model = both_ways(layer) if name.startswith("embedding") else functional_model(layer, make_inputs)
    randomize(layer.weights, seed)
    return model, layer, split(make_inputs(LENGTHS[0]))[0]


def both_ways(embedding):
    """Ids to vectors to logits."""
    ids = keras.Input((None,), dtype="int32", name="inputs")
    return keras.Model({"inputs": ids}, embedding(embedding(ids), reverse=True))


def randomize(weights, seed):
    rng = np.random.default_rng(seed)
    for weight in weights:
        weight.assign(rng.normal(0, 0.4, weight.shape))


def quantize(model, *arguments, **options):
    """`model.quantize`, which may warn of layers without kernels alone."""
    gc.freeze()  # Keras collects garbage once a kernel, for half a second of old objects each time
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.quantize(*arguments, **options)
    gc.unfreeze()
    messages = [str(warning.message) for warning in caught]
    passed_by = {message.split()[1] for message in messages if "`quantize`" in message}
    assert passed_by <= WITHOUT_KERNELS


def num_bytes(weights):
    sizes = {"float32": 4, "int8": 1}
    return sum(int(np.prod(w.shape)) * sizes[keras.backend.standardize_dtype(w.dtype)] for w in weights)


def outputs_of(model, arrays):
    return flat_arrays(model(tensors(arrays)))


@pytest.mark.parametrize(("name", "mode"), EITHER_MODE)
def test_quantised_layers_are_near_small_and_come_back(name, mode, tmp_path, child):
    model, layer, arrays = make(name)
    exact, size = outputs_of(model, arrays), num_bytes(layer.weights)
    kernels = num_bytes([weight for weight in layer.trainable_weights if is_quantisable(weight)])
    quantize(model, mode)
    expected = outputs_of(model, arrays)
    assert_equal(expected, exact, BOUNDS[mode])
    assert not np.array_equal(expected[0], exact[0])
    # What was quantised takes a quarter or an eighth, and a few numbers for each column.
    scales = num_bytes([weight for weight in layer.weights if is_of_quantisation(weight)])
    saved = size - num_bytes(layer.weights) + scales
    assert kernels * (0.75 if mode == "int8" else 0.84) <= saved <= kernels * 0.88
    function = compiled(lambda arrays: model(arrays), jit=False)
    assert_equal(flat_arrays(function(tensors(arrays))), expected, 1e-5)
    np.savez(tmp_path / "inputs_0.npz", **arrays)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    (tmp_path / "model.json").write_text(model.to_json())
    for kind in ("keras", "weights"):
        assert_equal(child(kind, tmp_path, 1)[0], expected, tolerance=0)


def is_quantisable(weight):
    return (
        weight.name in ("kernel", "embeddings", "reverse_embeddings") and "position_bias" not in weight.path
    )


def is_of_quantisation(weight):
    return weight.name.endswith(("_scale", "_zero", "g_idx"))


def test_kernels_are_rounded_to_half_a_step():
    """One scale a column: 127 steps for the largest weight of it."""
    model, layer, _ = make("attention")
    kernel = ops.convert_to_numpy(layer.query_dense.kernel)
    quantize(model, "int8")
    step = np.abs(kernel).max(axis=0, keepdims=True) / 127
    restored = ops.convert_to_numpy(layer.query_dense.kernel).astype("float32") * step
    assert (np.abs(restored - kernel) <= step * 0.501).all()


@pytest.mark.parametrize("mode", BOUNDS)
def test_quantised_attention_keeps_its_masks(mode):
    model, layer, arrays = make("attention")
    quantize(model, mode)
    arrays["value_mask"] = arrays["value_mask"].copy()
    arrays["value_mask"][0] = False
    output, scores = run(layer, arrays, return_attention_scores=True)
    bias = ops.convert_to_numpy(layer.output_dense.bias.value)
    np.testing.assert_array_equal(output[0], np.broadcast_to(bias, output[0].shape))
    assert not scores[0].any()
    for fill in (9.5, np.nan, np.inf):
        filled = np.where(arrays["value_mask"][..., None], arrays["value"], np.float32(fill))
        assert_equal(run(layer, {**arrays, "value": filled}), [output], tolerance=0)
    unmasked = run(layer, {**arrays, "value_mask": np.ones_like(arrays["value_mask"])})[0]
    assert not np.allclose(unmasked, output, atol=1e-3)


def test_a_quantised_layer_moves_to_another_place():
    """Saved as a layer of its own, and built as part of another: its policies are found there too."""
    model, layer, arrays = make("encoder_block_given")
    quantize(model, "int8")
    config = layer.get_config()

    class Wrapper(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="elsewhere")
            self.block = EncoderBlock.from_config(config)

        def build(self, input_shape):
            self.block.build(input_shape)

        def call(self, inputs, padding_mask=None):
            return self.block(inputs, padding_mask=padding_mask)

    wrapper = Wrapper()
    wrapper(**tensors(arrays))
    wrapper.set_weights(layer.get_weights())
    assert_equal(run(wrapper, arrays), run(layer, arrays), tolerance=0)


def test_a_policy_map_in_the_way_of_keras_finds_the_projections():
    """KerasHub's backbones write the whole path of each quantised layer."""
    policy = keras.dtype_policies.DTypePolicyMap("mixed_bfloat16")
    policy["block/self_attention/query"] = "int8_from_mixed_bfloat16"
    policy["block/feed_forward/output"] = "float16"
    block = EncoderBlock(17, 2, dtype=policy, name="block")
    block.build((B, None, D))
    projections = {
        name: getattr(block.self_attention_layer, f"{name}_dense")
        for name in ("query", "key", "value", "output")
    }
    modes = {name: layer.quantization_mode for name, layer in projections.items()}
    assert modes == {"query": "int8", "key": None, "value": None, "output": None}
    assert block.feed_forward_layer.output_dense.compute_dtype == "float16"
    assert block.compute_dtype == projections["query"].compute_dtype == "bfloat16"
    # All of it is in the config.
    again = EncoderBlock.from_config(block.get_config())
    again.build((B, None, D))
    assert again.self_attention_layer.query_dense.dtype_policy.name == "int8_from_mixed_bfloat16"
    assert again.feed_forward_layer.output_dense.compute_dtype == "float16"


def test_what_is_quantised_in_part_can_be_quantised_in_full_when_it_is_back(tmp_path):
    model, _, arrays = make("decoder_block")
    quantize(model, "int8", filters="query|value")
    model.save(tmp_path / "part.keras")
    part = keras.saving.load_model(tmp_path / "part.keras")
    assert_equal(outputs_of(part, arrays), outputs_of(model, arrays), tolerance=0)
    for each in (model, part):
        quantize(each, "int4", filters="^key|output|intermediate")
    part.save(tmp_path / "full.keras")
    full = keras.saving.load_model(tmp_path / "full.keras")
    assert_equal(outputs_of(full, arrays), outputs_of(model, arrays), tolerance=0)
    assert {policy.quantization_mode for policy in full.layers[-1].dtype_policy.values()} == {"int8", "int4"}


def test_a_quantizer_that_the_config_cannot_hold_is_refused(tmp_path):
    model, layer, arrays = make("encoder_block")
    config = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    quantize(model, config=config)
    expected = outputs_of(model, arrays)
    with pytest.raises(
        ValueError, match=r"call `quantize` with the same config before you load them\. Received"
    ):
        layer.get_config()
    model.save_weights(tmp_path / "model.weights.h5")
    again, _, _ = make("encoder_block", seed=6)
    quantize(again, config=config)
    again.load_weights(tmp_path / "model.weights.h5")
    assert_equal(outputs_of(again, arrays), expected, tolerance=0)
    spelled_out = keras.quantizers.AbsMaxQuantizer(axis=-1)
    model, layer, _ = make("encoder_block")
    quantize(model, config=keras.quantizers.Int8QuantizationConfig(activation_quantizer=spelled_out))
    assert "int8" in str(layer.get_config()["dtype"])


def test_int4_in_blocks_comes_back(tmp_path):
    model, _, arrays = make("decoder_block")
    quantize(model, config=keras.quantizers.Int4QuantizationConfig(block_size=3))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert_equal(outputs_of(again, arrays), outputs_of(model, arrays), tolerance=0)


# --- LoRA ---


@pytest.mark.parametrize("name", ["attention", "window", "bahdanau", "encoder_block_given", "decoder_block"])
def test_lora_alone_is_trained_and_starts_from_the_same_answers(name):
    model, layer, arrays = make(name)
    expected, num_weights = outputs_of(model, arrays), len(layer.weights)
    layer.enable_lora(2)
    assert_equal(outputs_of(model, arrays), expected, 1e-6)
    assert {weight.name for weight in layer.trainable_weights} == {"lora_kernel_a", "lora_kernel_b"}
    num_attentions = 2 if name == "decoder_block" else 1
    assert len(layer.trainable_weights) == 4 * num_attentions == len(layer.weights) - num_weights
    before = {weight.path: ops.convert_to_numpy(weight.value) for weight in layer.weights}
    model.compile(keras.optimizers.Adam(0.05), loss="mse", run_eagerly=True)  # a graph takes longer
    model.fit(arrays, normal(*expected[0].shape, seed=4), batch_size=B, epochs=3, verbose=0)
    for weight in layer.weights:
        same = np.array_equal(ops.convert_to_numpy(weight.value), before[weight.path])
        assert same != weight.trainable, weight.path


def test_a_product_is_added_to_the_kernel():
    _, layer, arrays = make("attention")
    kernel = ops.convert_to_numpy(layer.value_dense.kernel)
    layer.enable_lora(2, lora_alpha=3, target_layer_names=["value"])
    assert {weight.path.split("/")[-2] for weight in layer.trainable_weights} == {"value"}
    randomize(layer.trainable_weights, seed=8)
    a, b = (ops.convert_to_numpy(weight.value) for weight in layer.trainable_weights)
    assert a.shape == (E, 3, 2)
    assert b.shape == (2, 2)
    adapted_output = run(layer, arrays)
    plain, plain_layer, _ = make("attention")
    plain_layer.value_dense.kernel.assign(kernel + 3 / 2 * np.einsum("dnr,rh->dnh", a, b))
    assert_equal(adapted_output, outputs_of(plain, arrays), 1e-5)


@pytest.mark.parametrize("mode", BOUNDS)
def test_lora_on_a_quantised_layer(mode, tmp_path):
    model, layer, arrays = make("attention")
    quantize(model, mode)
    expected = outputs_of(model, arrays)
    layer.enable_lora(2)
    assert_equal(outputs_of(model, arrays), expected, 1e-6)
    model.compile(keras.optimizers.Adam(0.05), loss="mse", run_eagerly=True)  # a graph takes longer
    before = layer.get_weights()
    history = model.fit(arrays, normal(*expected[0].shape, seed=4), batch_size=B, epochs=5, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    for weight, start in zip(layer.weights, before):
        assert np.array_equal(ops.convert_to_numpy(weight.value), start) != weight.trainable, weight.path
    # The sum is quantised anew when it is saved. The optimizer knows matrices that are gone then.
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    assert_equal(outputs_of(loaded, arrays), outputs_of(model, arrays), BOUNDS[mode])


@pytest.mark.parametrize("mode", [None, *BOUNDS])
def test_lora_of_a_tied_embedding_works_both_ways(mode):
    layer = TokenEmbedding(19, D, scale=False)
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, layer(ids))
    randomize(layer.weights, 5)
    if mode:
        quantize(model, mode)
    token_ids, vectors = np.arange(19)[None], normal(B, 5, D)
    table, logits = run(layer, {"inputs": token_ids})[0], run(layer, {"inputs": vectors}, reverse=True)[0]
    layer.enable_lora(2)
    randomize([layer.lora_embeddings_a, layer.lora_embeddings_b], seed=8)
    a, b = (ops.convert_to_numpy(x.value) for x in (layer.lora_embeddings_a, layer.lora_embeddings_b))
    assert_equal(run(layer, {"inputs": token_ids}), [table + a @ b], 1e-5)
    assert_equal(run(layer, {"inputs": vectors}, reverse=True), [logits + vectors @ (a @ b).T], 1e-5)


@pytest.mark.parametrize("tie_weights", [True, False])
@pytest.mark.parametrize("mode", BOUNDS)
def test_quantised_logits_have_the_gradient_of_the_product(mode, tie_weights):
    layer = TokenEmbedding(19, D, scale=False, tie_weights=tie_weights, logit_soft_cap=5.0)
    model = both_ways(layer)
    randomize(layer.weights, 5)
    quantize(model, mode)
    vectors, upstream = normal(B, 5, D), normal(B, 5, 19, seed=4)
    inputs = {"inputs": vectors, "reverse": True}
    found, _ = gradients(layer, inputs, lambda logits: logits * ops.convert_to_tensor(upstream))
    logits = run(layer, inputs)[0]
    # Rows of the identity are rounded to themselves. Small ones: the cap leaves them alone.
    table = run(layer, {"inputs": np.eye(D, dtype="float32")[None] * 1e-2, "reverse": True})[0][0].T * 1e2
    slope = 1 - (logits / 5.0) ** 2
    assert_equal([found["inputs"]], [(upstream * slope) @ table], 1e-4)


def test_lora_freezes_a_given_layer_of_another_library_whole():
    """Moving statistics are state that training moves, too."""

    @keras.saving.register_keras_serializable(package="test_lora_and_quantization")
    class Mixer(keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.norm = keras.layers.BatchNormalization()

        def build(self, input_shape):
            self.norm.build(input_shape)

        def call(self, inputs, training=None):
            return self.norm(inputs, training=training)

    inputs = keras.Input((5, D))
    block = EncoderBlock(17, self_attention=Mixer())
    model = keras.Model(inputs, block(inputs))
    block.enable_lora(2, target_layer_names=("intermediate", "output"))
    before = [ops.convert_to_numpy(weight.value) for weight in block.self_attention.weights]
    model.compile("sgd", loss="mse")
    model.fit(normal(B, 5, D) + 3, normal(B, 5, D, seed=4), verbose=0)
    assert_equal([ops.convert_to_numpy(weight.value) for weight in block.self_attention.weights], before, 0)
    assert len(block.trainable_weights) == 4


def test_lora_thaws_what_was_frozen_as_a_whole():
    _, layer, _ = make("attention")
    layer.trainable = False
    layer.enable_lora(2)
    assert len(layer.trainable_weights) == 4


REFUSED = {
    "rank": ({"rank": 0}, r"`rank` must be a positive integer. Received: rank=0"),
    "name": (
        {"target_layer_names": ("query", "querry")},
        r"must be some of \['attention_output', 'gate', 'key', 'query', 'value'\]. Received: .*'querry'",
    ),
    "no_name": ({"target_layer_names": ()}, r"must be some of .* Received: target_layer_names=\(\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_lora_refuses(name):
    options, message = REFUSED[name]
    _, layer, _ = make("attention")
    with pytest.raises(ValueError, match=message):
        layer.enable_lora(**{"rank": 2, **options})
    assert len(layer.trainable_weights) == len(layer.weights)


def test_lora_refuses_a_second_time_and_before_there_are_weights():
    with pytest.raises(ValueError, match=r"needs a built layer. Received: 'young'"):
        MultiHeadAttention(3, 5, name="young").enable_lora(2)
    _, layer, _ = make("attention")
    layer.enable_lora(2)
    with pytest.raises(ValueError, match="can be called once a layer"):
        layer.enable_lora(2, target_layer_names=("key",))
