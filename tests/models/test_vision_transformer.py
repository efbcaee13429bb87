"""VisionTransformer against its blocks called one by one, its heads against NumPy, copies against the original."""

import keras
import numpy as np
import pytest
from helpers_models import assert_close, randomize
from keras import ops

from keras_attn import layers
from keras_attn.models import EncoderWithHead, SwinTransformer, VisionTransformer, quantized_copy

C, D, L = 2, 12, 5
SIZES = {"image_size": (9, 10), "patch_size": (3, 5), "num_layers": 2, "num_channels": C}
SIZES |= {"hidden_dim": D, "num_heads": 3, "intermediate_dim": 17}
POSITIONS = ("learned", "sinusoidal", "rotary")
# Where graphs and files are concerned, rotary positions go the longest way.
MOST = [pytest.param(name, marks=() if name == "rotary" else pytest.mark.extended) for name in POSITIONS]


def make_model(**options):
    keras.utils.set_random_seed(3)
    return randomize(VisionTransformer.from_sizes(**{**SIZES, **options}), seed=5)


def images(height=9, width=10, seed=1):
    return np.random.default_rng(seed).normal(size=(3, height, width, C)).astype("float32")


def run(model, x):
    return ops.convert_to_numpy(model(ops.convert_to_tensor(x)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("position_encoding", POSITIONS)
def test_it_is_its_blocks(position_encoding):
    model = make_model(position_encoding=position_encoding, num_register_tokens=2, layer_scale=0.3)
    x = ops.convert_to_tensor(images(13, 11))
    y = model.embedding(x)
    is_rotary = position_encoding == "rotary"
    positions = np.array([0, 0, 0, *(row * 2**16 + column for row in (1, 2, 3, 4) for column in (1, 2))])
    for block in model.blocks:
        y = block(y, positions=positions if is_rotary else None)
    assert_close(run(model, images(13, 11)), ops.convert_to_numpy(model.norm(y)))
    assert run(model, images(13, 11)).shape == (3, 3 + 4 * 2, D)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("position_encoding", POSITIONS)
def test_where_a_patch_is_matters(position_encoding):
    model = make_model(position_encoding=position_encoding)
    x = images()
    moved = x.copy()
    moved[:, :3], moved[:, 3:6] = x[:, 3:6], x[:, :3]
    assert np.abs(run(model, moved)[:, 0] - run(model, x)[:, 0]).max() > 1e-3


def test_blocks_may_be_one_block():
    embedding = layers.PatchEmbedding((3, 5), D, image_size=(9, 10), num_channels=C)
    block = layers.EncoderBlock(7, num_heads=3)
    model = VisionTransformer(embedding, [block] * 3)
    y = model.embedding(ops.convert_to_tensor(images()))
    for _ in range(3):
        y = block(y)
    assert_close(run(model, images()), ops.convert_to_numpy(y))
    again = VisionTransformer.from_config(model.get_config())
    assert again.blocks[0] is again.blocks[2]
    assert again.blocks[0] is not block


def numpy_logits(head, dense, vectors):
    kernel, bias = (ops.convert_to_numpy(weight) for weight in (dense.kernel, dense.bias))
    return vectors @ kernel + bias


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pooling", ["first", "mean", "first_and_mean"])
def test_heads_read_the_class_token_and_the_patches(pooling):
    model = make_model(num_register_tokens=2)
    head = layers.ImageClassificationHead(L, pooling, num_special_tokens=model.num_special_tokens)
    classifier = EncoderWithHead(model, head)
    sequence = run(model, images())
    first, mean = sequence[:, 0], sequence[:, 3:].mean(axis=1)
    vectors = {"first": first, "mean": mean, "first_and_mean": np.concatenate([first, mean], axis=1)}
    assert_close(run(classifier, images()), numpy_logits(head, head.output_dense, vectors[pooling]))


def test_a_distillation_token_has_logits_of_its_own():
    sequence = np.random.default_rng(1).normal(size=(3, 7, D)).astype("float32")
    head = layers.ImageClassificationHead(L, num_special_tokens=2, use_distillation_token=True)
    logits = run(head, sequence)
    of_class = numpy_logits(head, head.output_dense, sequence[:, 0])
    of_distillation = numpy_logits(head, head.distillation_dense, sequence[:, 1])
    assert_close(logits, (of_class + of_distillation) / 2)


def test_a_mean_leaves_masked_patches_out():
    sequence = np.random.default_rng(1).normal(size=(3, 7, D)).astype("float32")
    mask = np.arange(7) < np.array([[7], [4], [2]])
    sequence[~mask] = np.nan
    head = layers.ImageClassificationHead(L, "mean", num_special_tokens=1)
    logits = ops.convert_to_numpy(head(ops.convert_to_tensor(sequence), padding_mask=mask))
    means = [row[1:length].mean(axis=0) for row, length in zip(sequence, (7, 4, 2))]
    assert_close(logits, numpy_logits(head, head.output_dense, np.array(means)))


def make_classifier(**options):
    model = make_model(**options)
    count = model.num_special_tokens
    return EncoderWithHead(model, layers.ImageClassificationHead(L, "first_and_mean", count, name="head"))


@pytest.mark.extended
def test_it_trains_with_dropout_and_stochastic_depth():
    model = make_classifier(dropout=0.1, attention_dropout=0.1, stochastic_depth=0.2)
    assert [block.stochastic_depth for block in model.encoder.blocks] == [0.0, 0.2]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    losses = model.fit(images(), np.array([0, 3, 4]), epochs=15, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 2


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="sizes that are unknown in a graph")
@pytest.mark.parametrize("position_encoding", MOST)
def test_image_sizes_may_be_unknown_before_the_run(position_encoding):
    import tensorflow as tf

    model = make_classifier(position_encoding=position_encoding)
    graph = tf.function(model, input_signature=[tf.TensorSpec((None, None, None, C))])
    for size in ((9, 10), (13, 11)):
        assert_close(graph(images(*size)).numpy(), run(model, images(*size)))


def test_lora_adapts_queries_and_values():
    model = make_model()
    model.enable_lora(2)
    assert len(model.trainable_weights) == 2 * 2 * 2


def test_wrong_parts():
    with pytest.raises(ValueError, match="`embedding` must be a `PatchEmbedding`"):
        VisionTransformer(layers.TokenEmbedding(7, D), [layers.EncoderBlock(7, num_heads=3)])
    with pytest.raises(ValueError, match="`blocks` must be a list of layers"):
        VisionTransformer(layers.PatchEmbedding(3, D, image_size=9), [])
    with pytest.raises(ValueError, match="`pooling` must be one of"):
        layers.ImageClassificationHead(L, "last")
    with pytest.raises(ValueError, match='`use_distillation_token` needs pooling="first"'):
        layers.ImageClassificationHead(L, use_distillation_token=True)


def make_swin():
    keras.utils.set_random_seed(3)
    return SwinTransformer.from_sizes((3, 2), 6, (2, 1), (3, 2), 5, num_channels=C)


@pytest.mark.extended
@pytest.mark.parametrize("make", [make_model, make_swin])
def test_it_is_a_layer_of_a_functional_model(make, tmp_path):
    model = make()
    inputs = keras.Input((None, None, C))
    outputs = model(inputs)
    assert outputs.shape == (None, None, model.hidden_dim)
    functional = keras.Model(inputs, outputs)
    functional.save(tmp_path / "functional.keras")
    x = images(13, 11)
    for found in (functional, keras.saving.load_model(tmp_path / "functional.keras")):
        assert_close(run(found, x), run(model, x))
    assert run(model, x[:0]).shape == (0, *run(model, x).shape[1:])


@pytest.mark.extended
@pytest.mark.parametrize("make", [make_model, make_swin])
@pytest.mark.parametrize(("quantization", "bound"), [("int8", 0.06), ("bfloat16", 0.03)])
def test_a_quantised_model_comes_back(make, quantization, bound, tmp_path):
    model = make()
    quantized = quantized_copy(model, quantization)
    x = images(13, 11)
    assert_close(run(lambda x: ops.cast(quantized(x), "float32"), x), run(model, x), bound)
    quantized.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        *(run(lambda x, m=m: ops.cast(m(x), "float32"), x) for m in (again, quantized))
    )
