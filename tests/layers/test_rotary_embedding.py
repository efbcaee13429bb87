"""RotaryEmbedding against transformers' models, and what it promises of padding, decoding, batches and lengths."""

import itertools

import helpers_transformers  # noqa: F401 -- imports, before the fork
import keras
import numpy as np
import pytest
from helpers_layers import BACKEND, compiled
from keras import ops

from keras_attn.layers import MultiHeadAttention, RotaryEmbedding
from keras_attn.ops import implicit_mask

B, N, T, H = 2, 3, 7, 22
DYNAMIC = {"type": "dynamic_ntk", "factor": 2.0, "original_max_sequence_length": 5}
PEERS = 'pip install "keras_attn[peers]"'


@pytest.fixture
def x(rng):
    return rng.normal(size=(B, N, T, H)).astype("float32")


@pytest.mark.parametrize("rope_type", ["default", "dynamic"])
def test_equals_transformers_llama(x, rope_type):
    """Each kind of scaling: tests/ops/test_rotary.py."""
    torch = pytest.importorskip("torch", reason=PEERS)
    llama = pytest.importorskip("transformers.models.llama.modeling_llama", reason=PEERS)
    is_dynamic = rope_type == "dynamic"
    config = llama.LlamaConfig(
        head_dim=H,
        max_position_embeddings=5,
        rope_parameters={"rope_type": rope_type, "rope_theta": 1000.0}
        | ({"factor": 2.0} if is_dynamic else {}),
    )
    positions = np.array([[0, 1, 2, 3, 4, 5, 6], [1, 0, 4, 6, 2, 5, 3]])
    cos, sin = llama.LlamaRotaryEmbedding(config)(torch.tensor(x), torch.tensor(positions))
    expected, _ = llama.apply_rotary_pos_emb(torch.tensor(x), torch.tensor(x), cos, sin)
    layer = RotaryEmbedding(max_wavelength=1000.0, scaling=DYNAMIC if is_dynamic else None)
    np.testing.assert_allclose(layer(x, positions=positions), expected.numpy(), atol=1e-5)


def test_equals_transformers_gptj(x):
    """GPT-J rotates the first features of each head, interleaved, and has time before heads."""
    torch = pytest.importorskip("torch", reason=PEERS)
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj", reason=PEERS)
    sin, cos = torch.split(gptj.create_sinusoidal_positions(T + 4, 14)[None, 4:], 7, dim=-1)
    rows = torch.tensor(x).permute(0, 2, 1, 3)
    rotated = gptj.apply_rotary_pos_emb(rows[..., :14], sin, cos)
    expected = torch.cat([rotated, rows[..., 14:]], dim=-1).permute(0, 2, 1, 3)
    layer = RotaryEmbedding(rotary_dim=14, interleaved=True)
    np.testing.assert_allclose(layer(x, start_index=4), expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_step_by_step_and_in_chunks_equals_the_whole(x, interleaved):
    layer = RotaryEmbedding(rotary_dim=14, interleaved=interleaved)
    expected = np.asarray(layer(x, start_index=100))
    step = compiled(lambda arguments: layer(arguments["x"], start_index=arguments["start"]))
    for bounds in (range(T + 1), (0, 2, 7)):
        for start, stop in itertools.pairwise(bounds):
            chunk = {
                "x": ops.convert_to_tensor(x[:, :, start:stop]),
                "start": ops.convert_to_tensor(100 + start),
            }
            np.testing.assert_allclose(step(chunk), expected[:, :, start:stop], atol=1e-5)


def test_a_longer_neighbour_changes_no_frequency(x):
    layer = RotaryEmbedding(scaling=DYNAMIC)
    positions = np.stack([np.arange(T), np.arange(T) + 1000])
    together = np.asarray(layer(x, positions=positions))
    np.testing.assert_allclose(together[:1], layer(x[:1], positions=positions[:1]), atol=1e-6)
    np.testing.assert_allclose(together[1:], layer(x[1:], positions=positions[1:]), atol=1e-3)


def compiled_for_any_length(layer):
    if BACKEND != "tensorflow":
        return compiled(layer)  # traces anew for each length
    import tensorflow as tf

    return tf.function(layer, input_signature=[tf.TensorSpec((None, N, None, H), tf.float32)])


def test_dynamic_ntk_in_a_graph_of_unknown_length(rng):
    function = compiled_for_any_length(RotaryEmbedding(scaling=DYNAMIC))
    for length in (0, 1, 3, 5, 6, 11, 103):
        x = rng.normal(size=(B, N, length, H)).astype("float32")
        # The frequencies of the stretched wavelength, and each pair as a complex number.
        wavelength = 10000.0 * max(2 * length / 5 - 1, 1) ** (H / (H - 2))
        angles = np.arange(length)[:, None] * wavelength ** -(np.arange(0, H, 2) / H)
        turned = (x[..., : H // 2] + 1j * x[..., H // 2 :]) * np.exp(1j * angles)
        expected = np.concatenate([turned.real, turned.imag], axis=-1)
        np.testing.assert_allclose(function(ops.convert_to_tensor(x)), expected, atol=3e-5)


def test_only_dynamic_ntk_depends_on_the_length():
    assert RotaryEmbedding(scaling=DYNAMIC).depends_on_length
    assert not RotaryEmbedding().depends_on_length
    assert not RotaryEmbedding(scaling={"type": "linear", "factor": 2.0}).depends_on_length


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "bfloat16", "float16"])
def test_position_5000_under_every_policy(x, policy):
    layer = RotaryEmbedding(dtype=policy)
    half = ops.cast(x, layer.compute_dtype)
    actual = layer(half, start_index=5000)
    assert keras.backend.standardize_dtype(actual.dtype) == layer.compute_dtype
    given = np.asarray(ops.cast(half, "float32")).astype("float64")
    angles = (5000 + np.arange(T))[:, None] * 10000.0 ** -(np.arange(0, H, 2) / H)
    turned = (given[..., : H // 2] + 1j * given[..., H // 2 :]) * np.exp(1j * angles)
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    errors = np.abs(np.asarray(ops.cast(actual, "float32")) - expected)
    tolerance = 2**-8 if "bfloat16" in policy else 1e-3
    assert (errors <= tolerance * np.tile(np.abs(turned), 2)).all()


def test_an_implicit_mask_passes():
    x = np.ones((B, T, H), "float32")
    x[0, 5:] = 0
    masked = keras.layers.Masking()(x)
    mask = implicit_mask(RotaryEmbedding()(masked))
    np.testing.assert_array_equal(mask, x.any(-1))


def test_the_scaling_is_the_layers_own():
    scaling = dict(DYNAMIC)
    layer = RotaryEmbedding(scaling=scaling)
    scaling["factor"] = 17.0
    assert layer.scaling == DYNAMIC
    layer.get_config()["scaling"]["factor"] = 17.0
    assert layer.scaling == DYNAMIC


def test_one_layer_serves_queries_and_keys_of_other_sizes(x, rng):
    layer = RotaryEmbedding(rotary_dim=14)
    layer(x)
    key = rng.normal(size=(B, 1, 11, 16)).astype("float32")
    np.testing.assert_allclose(layer(key), RotaryEmbedding(rotary_dim=14)(key), atol=1e-6)
    with pytest.raises(ValueError, match=r"7 frequencies for pairs of features, x of shape \(2, 3, 7, 12\)"):
        layer(x[..., :12])


def rows_of_tokens(rng, lengths):
    return [rng.normal(size=(1, length, 10)).astype("float32") for length in lengths]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "arguments",
    [{"scaling": DYNAMIC}, {"scaling": DYNAMIC, "window": True}, {"window": True}],
    ids=["length", "length_and_first", "first"],
)
@pytest.mark.parametrize("tells", ["value_mask", "segment_ids"])
def test_attention_counts_the_real_tokens_where_their_number_or_order_matters(rng, arguments, tells):
    """The length of "dynamic_ntk", and the first tokens that a window leaves visible, are those of the row's own tokens."""
    layer = MultiHeadAttention(
        2,
        6,
        rotary_embedding=RotaryEmbedding(scaling=arguments.get("scaling")),
        **({"sliding_window": 2, "num_sink_tokens": 1} if "window" in arguments else {}),
    )
    lengths, first = (11, 2, 7), (1, 9, 3)
    rows = rows_of_tokens(rng, lengths)
    expected = [ops.convert_to_numpy(layer(row, row, use_causal_mask=True))[0] for row in rows]
    if tells == "value_mask":  # each row behind its pads
        x, ids = np.full((3, 13, 10), 9.0, "float32"), np.zeros((3, 13), "int32")
        for number, (start, row) in enumerate(zip(first, rows)):
            x[number, start : start + row.shape[1]] = row[0]
            ids[number, start : start + row.shape[1]] = 1
        given, ids = ids > 0, ids * np.array([[1], [2], [3]])
    else:  # all in one row, after one another
        x = np.concatenate([*rows, np.full((1, 3, 10), 9.0, "float32")], axis=1)
        given = ids = np.repeat([[1, 2, 3, 0]], [*lengths, 3], axis=1).astype("int32")
    for call in (layer, compiled_attention(layer, tells)):
        outputs = ops.convert_to_numpy(call(x, x, use_causal_mask=True, **{tells: given}))
        for number, of_row in enumerate(expected):
            np.testing.assert_allclose(outputs[ids == number + 1], of_row, atol=2e-6)


def compiled_attention(layer, tells):
    function = compiled(
        lambda given: layer(given["x"], given["x"], use_causal_mask=True, **{tells: given[tells]})
    )
    return lambda x, _, use_causal_mask, **tokens: function(
        {"x": ops.convert_to_tensor(x)}
        | {name: ops.convert_to_tensor(value) for name, value in tokens.items()}
    )
