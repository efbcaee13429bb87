"""SwinTransformer against its layers called one by one, copies against the original; parity is in tests/huggingface."""

import keras
import numpy as np
import pytest
from helpers_models import assert_close, randomize
from keras import ops

from keras_attn import layers
from keras_attn.models import EncoderWithHead, SwinTransformer

C, D, L = 2, 6, 5
SIZES = {"patch_size": (3, 2), "hidden_dim": D, "num_layers": (2, 1), "num_heads": (3, 2)}
SIZES |= {"window_size": 5, "num_channels": C}


def make_model(**options):
    keras.utils.set_random_seed(3)
    return randomize(SwinTransformer.from_sizes(**{**SIZES, **options}), seed=5)


def images(height, width, seed=1):
    return np.random.default_rng(seed).normal(size=(3, height, width, C)).astype("float32")


def run(model, x):
    return ops.convert_to_numpy(model(ops.convert_to_tensor(x)))


@pytest.mark.parametrize("attend_to_padding", [False, True])
def test_it_is_its_layers(attend_to_padding):
    model = make_model(attend_to_padding=attend_to_padding)
    first, second, merging, last = model.blocks
    assert [block.self_attention_layer.shift_size for block in (first, second, last)] == [
        (0, 0),
        (2, 2),
        (0, 0),
    ]
    x = images(22, 17)  # 8 x 9 patches, then 4 x 5
    y = ops.reshape(model.embedding(ops.convert_to_tensor(x)), (3, 8, 9, D))
    y = last(merging(second(first(y))))
    expected = model.norm(ops.reshape(y, (3, 20, 2 * D)))
    assert_close(run(model, x), ops.convert_to_numpy(expected))
    assert model.hidden_dim == 2 * D


def test_merging_joins_four_neighbours_the_one_below_first():
    layer = layers.PatchMerging(hidden_dim=7)
    x = np.random.default_rng(2).normal(size=(2, 5, 3, D)).astype("float32")
    y = run(layer, x)
    assert y.shape == tuple(layer.compute_output_shape(x.shape)) == (2, 3, 2, 7)
    padded = np.pad(x, [(0, 0), (0, 1), (0, 1), (0, 0)]).astype("float64")
    kernel = ops.convert_to_numpy(layer.reduction_dense.kernel)
    for row in range(3):
        for column in range(2):
            four = padded[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            joined = np.concatenate([four[:, 0, 0], four[:, 1, 0], four[:, 0, 1], four[:, 1, 1]], axis=-1)
            joined -= joined.mean(-1, keepdims=True)
            joined /= np.sqrt((joined**2).mean(-1, keepdims=True) + 1e-5)
            assert_close(y[:, row, column], joined @ kernel)


@pytest.mark.extended
def test_what_stands_beyond_the_edge_counts_for_nothing_by_default():
    """Zeros that complete an image's patches are patches; those that complete windows are seen only if it is wished."""
    x = images(24, 18)  # 8 x 9 patches: windows of 5 x 5 are completed
    assert np.abs(run(make_model(), x) - run(make_model(attend_to_padding=True), x)).max() > 1e-3
    whole = images(30, 20)  # 10 x 10, then 5 x 5: whole windows
    assert_close(run(make_model(), whole), run(make_model(attend_to_padding=True), whole))


@pytest.mark.parametrize(
    "size", [(2, 31), *(pytest.param(size, marks=pytest.mark.extended) for size in ((3, 2), (1, 1)))]
)
def test_images_may_be_smaller_than_a_window_or_than_a_patch(size):
    for attend_to_padding in (False, True):
        sequence = run(make_model(attend_to_padding=attend_to_padding), images(*size))
        assert sequence.shape[1] == -(-size[0] // 6) * -(-size[1] // 4)
        assert np.isfinite(sequence).all()


def make_classifier(**options):
    head = layers.ImageClassificationHead(L, "mean", num_special_tokens=0, name="head")
    return EncoderWithHead(make_model(**options), head)


def test_a_head_reads_the_mean():
    model = make_classifier()
    sequence = run(model.encoder, images(22, 17))
    dense = model.head.output_dense
    expected = sequence.mean(axis=1) @ ops.convert_to_numpy(dense.kernel)
    assert_close(run(model, images(22, 17)), expected + ops.convert_to_numpy(dense.bias))


@pytest.mark.extended
def test_it_trains_with_dropout_and_stochastic_depth():
    keras.utils.set_random_seed(3)
    rates = {"dropout": 0.1, "attention_dropout": 0.1, "stochastic_depth": 0.2}
    encoder = SwinTransformer.from_sizes(**SIZES, **rates)
    first, second, _, last = encoder.blocks
    assert [block.stochastic_depth for block in (first, second, last)] == [0.0, 0.1, 0.2]
    model = EncoderWithHead(encoder, layers.ImageClassificationHead(L, "mean", num_special_tokens=0))
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(images(22, 17), np.array([0, 3, 4]), epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 2


@pytest.mark.extended
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="sizes that are unknown in a graph")
@pytest.mark.parametrize("attend_to_padding", [pytest.param(False, marks=pytest.mark.extended), True])
def test_image_sizes_may_be_unknown_before_the_run(attend_to_padding):
    import tensorflow as tf

    model = make_classifier(attend_to_padding=attend_to_padding)
    graph = tf.function(model, input_signature=[tf.TensorSpec((None, None, None, C))])
    for size in ((22, 17), (14, 60), (30, 20), (5, 5)):
        assert_close(graph(images(*size)).numpy(), run(model, images(*size)))


def test_lora_adapts_queries_and_values():
    model = make_model()
    model.enable_lora(2)
    assert len(model.trainable_weights) == 3 * 2 * 2


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_heads": (3,)}, "`num_layers` and `num_heads` must have a number for each stage"),
        ({"num_heads": (4, 2)}, "The width of a stage must be divisible by its heads"),
        ({"num_layers": (0, 1)}, "`num_layers` must be a positive integer"),
        ({"window_size": 0}, "`window_size` must be a positive integer"),
        ({"hidden_dim": 0}, "`hidden_dim` must be a positive integer"),
    ],
)
def test_wrong_sizes(options, match):
    with pytest.raises(ValueError, match=match):
        SwinTransformer.from_sizes(**{**SIZES, **options})


def test_windows_hold_no_special_tokens():
    embedding = layers.PatchEmbedding(3, D, image_size=9)
    with pytest.raises(ValueError, match="must have no special tokens"):
        SwinTransformer(embedding, [layers.PatchMerging()])
    with pytest.raises(ValueError, match=r"must have the shape \(B, height, width, D\)"):
        layers.PatchMerging().build((None, None, D))
