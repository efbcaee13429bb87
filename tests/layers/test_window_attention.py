"""WindowAttention against the paper's rule, one pair of pixels at a time in float64, and against transformers' Swin."""

import helpers_transformers  # noqa: F401 -- imports, before the fork
import keras
import numpy as np
import pytest
from helpers_layers import BACKEND, assert_equal, flat_arrays, gradients, run
from keras import ops

from keras_attn.layers import WindowAttention

B, N, H, D = 2, 3, 5, 11
WINDOW = (4, 3)


def fresh(image, rng, **arguments):
    """A built layer with random weights."""
    layer = WindowAttention(**{"num_heads": N, "key_dim": H, "window_size": WINDOW, **arguments})
    run(layer, {"inputs": image})
    layer.set_weights([rng.normal(0, 0.5, w.shape) for w in layer.weights])
    return layer


def pixels(rng, height, width):
    return rng.normal(size=(B, height, width, D)).astype("float32")


def wide(weight):
    return ops.convert_to_numpy(weight).astype("float64")


def projected(x, dense):
    """(D,) -> (N, H)."""
    return np.einsum("d,dnh->nh", x, wide(dense.kernel)) + (0 if dense.bias is None else wide(dense.bias))


def by_pixels(layer, image, padding_mask):
    """Every real pixel attends to the real pixels in its cell of the grid, which begins `shift_size` from the corner.

    An axis that one window covers has one cell. A row of the table of biases stands for each way from key to query.
    """
    shift = [
        s if size > m else 0 for s, size, m in zip(layer.shift_size, image.shape[1:3], layer.window_size)
    ]
    rows, columns = layer.window_size
    table = wide(layer.relative_position_bias).reshape(2 * rows - 1, 2 * columns - 1, layer.num_heads)
    heads = np.zeros((*image.shape[:3], layer.num_heads, layer.key_dim))
    for i in range(len(image)):
        places = np.argwhere(padding_mask[i])
        cells = (places - shift) // layer.window_size
        query, key, value = (
            np.array([projected(image[i, y, x], dense) for y, x in places])
            for dense in (layer.query_dense, layer.key_dense, layer.value_dense)
        )
        for p, (y, x) in enumerate(places):
            seen = np.flatnonzero((cells == cells[p]).all(-1))
            bias = [table[y - places[q, 0] + rows - 1, x - places[q, 1] + columns - 1] for q in seen]
            logits = np.einsum("nh,qnh->qn", query[p], key[seen]) / np.sqrt(layer.key_dim) + bias
            scores = np.exp(logits) / np.exp(logits).sum(0)
            heads[i, y, x] = np.einsum("qn,qnh->nh", scores, value[seen])
    dense = layer.output_dense
    output = np.einsum("byxnh,nhd->byxd", heads, wide(dense.kernel))
    return output + (0 if dense.bias is None else wide(dense.bias))


# A rest in both axes, and in one; whole windows; one window in an axis, exactly and with a rest; smaller than a window.
SIZES = [(11, 13), (9, 2), (8, 7), (8, 6), (5, 6), (4, 7), (3, 3), (2, 1)]
SIZES = SIZES[:2] if BACKEND == "jax" else SIZES  # it compiles every op for every size


SHIFTS = [0, (2, 1), (0, 2), (3, 0)]


# Each size with two of the shifts, one of them with pads.
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("sizes", "shift_size", "padded"),
    [(sizes, SHIFTS[(i + j) % 4], bool(j)) for i, sizes in enumerate(SIZES) for j in (0, 1)],
)
def test_two_pixels_attend_where_they_share_a_cell_of_the_grid(sizes, shift_size, padded, rng):
    image = pixels(rng, *sizes)
    layer = fresh(image, rng, shift_size=shift_size, use_bias=sizes != (8, 7))
    padding_mask = rng.random(image.shape[:3]) < (0.6 if padded else 2)
    inputs = {"inputs": image, "padding_mask": padding_mask} if padded else {"inputs": image}
    assert_equal(run(layer, inputs), [by_pixels(layer, image, padding_mask)], 2e-6)


def test_scores_are_those_of_the_windows_and_change_nothing(rng):
    image = pixels(rng, 5, 7)
    layer = fresh(image, rng, shift_size=1)
    output, scores = run(layer, {"inputs": image}, return_attention_scores=True)
    assert_equal([output], run(layer, {"inputs": image}), tolerance=0)
    # 5 x 7 pixels make 2 x 3 windows of 4 x 3.
    assert scores.shape == (B, 6, N, 12, 12)
    sums = scores.sum(-1)
    assert ((sums == 0) | (np.abs(sums - 1) < 1e-6)).all()
    # Real pixels have scores, what fills the windows up has none.
    assert (sums[:, :, 0] > 0).sum() == B * 5 * 7
    # The first window begins at (1, 1); its last line holds the image's last row, (4, 1) to (4, 3).
    assert (scores[:, 0] > 0).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sizes", SIZES)
def test_pixels_attend_to_padding_if_it_is_wished(sizes, rng):
    """The padding is then made of pixels that are 0, and an image that one window covers in either axis is not shifted."""
    image = pixels(rng, *sizes)
    layer = fresh(image, rng, shift_size=(2, 1), attend_to_padding=True, use_bias=False, use_output_bias=True)
    is_shifted = all(size > window for size, window in zip(sizes, WINDOW))
    shift_size = (2, 1) if is_shifted else 0
    plain = fresh(image, rng, shift_size=shift_size, use_bias=False, use_output_bias=True)
    plain.set_weights(layer.get_weights())
    completed = np.pad(image, [(0, 0), *((0, -size % window) for size, window in zip(sizes, WINDOW)), (0, 0)])
    expected = by_pixels(plain, completed, np.ones(completed.shape[:3], bool))[:, : sizes[0], : sizes[1]]
    assert_equal(run(layer, {"inputs": image}), [expected], 2e-6)
    everywhere = np.ones(image.shape[:3], bool)
    assert_equal(run(layer, {"inputs": image, "padding_mask": everywhere}), [expected], 2e-6)


def test_a_padding_mask_is_obeyed_where_pixels_attend_to_padding(rng):
    image = pixels(rng, 9, 7)
    layer = fresh(image, rng, shift_size=(2, 1), attend_to_padding=True)
    padding_mask = rng.random(image.shape[:3]) < 0.7
    filled = [np.where(padding_mask[..., None], image, np.float32(fill)) for fill in (0, np.nan, 5)]
    first, *others = [run(layer, {"inputs": x, "padding_mask": padding_mask})[0] for x in filled]
    for other in others:
        assert_equal([other[padding_mask]], [first[padding_mask]], 1e-6)


@pytest.mark.parametrize("shift_size", [0, (2, 1)])
def test_pads_below_and_to_the_right_change_nothing(shift_size, rng):
    image = pixels(rng, 9, 7)
    layer = fresh(image, rng, shift_size=shift_size)
    expected = run(layer, {"inputs": image})[0]
    for below, right in ((1, 0), (3, 2), (6, 11)):
        padding = [(0, 0), (0, below), (0, right)]
        larger = {
            "inputs": np.pad(image, [*padding, (0, 0)], constant_values=np.nan),
            "padding_mask": np.pad(np.ones(image.shape[:3], bool), padding),
        }
        output = run(layer, larger)[0]
        assert_equal([output[:, :9, :7]], [expected], 1e-6)
        bias = np.broadcast_to(ops.convert_to_numpy(layer.output_dense.bias), output.shape)
        np.testing.assert_array_equal(
            output[~larger["padding_mask"]], bias[~larger["padding_mask"]].astype("float32")
        )


def test_an_image_of_pads_answers_zero_before_the_output_projection(rng):
    image = pixels(rng, 9, 7)
    layer = fresh(image, rng, shift_size=(2, 1), use_bias=False)
    padding_mask = np.broadcast_to(np.array([False, True])[:, None, None], image.shape[:3])
    inputs = {"inputs": image, "padding_mask": padding_mask}
    output, scores = run(layer, inputs, return_attention_scores=True)
    assert not output[0].any()
    assert not scores[0].any()
    by_input, by_weight = gradients(layer, inputs, lambda y: ops.where(padding_mask[..., None], 0.0, y))
    assert not any(x.any() for x in (*by_input.values(), *by_weight))


@pytest.mark.parametrize("fill", [np.nan, np.inf])
def test_what_stands_at_pads_reaches_no_gradient_of_a_weight(fill, rng):
    image = pixels(rng, 9, 7)
    layer = fresh(image, rng, shift_size=(2, 1))
    padding_mask = rng.random(image.shape[:3]) < 0.7
    filled = np.where(padding_mask[..., None], image, np.float32(fill))
    expected, actual = (
        gradients(layer, {"inputs": x, "padding_mask": padding_mask}, lambda y: y * y)[1]
        for x in (image, filled)
    )
    assert_equal(actual, expected)


def test_implicit_masks_are_obeyed_and_left_where_they_are(rng):
    image = pixels(rng, 9, 7)
    layer = fresh(image, rng, shift_size=(2, 1))
    padding_mask = rng.random(image.shape[:3]) < 0.7
    expected = run(layer, {"inputs": image, "padding_mask": padding_mask})
    masked = keras.layers.Masking(mask_value=-3.0)(
        ops.convert_to_tensor(np.where(padding_mask[..., None], image, np.float32(-3)))
    )
    for _ in range(2):
        output = layer(masked)
        assert_equal(flat_arrays(output), expected, tolerance=0)
        np.testing.assert_array_equal(output._keras_mask, padding_mask)
    np.testing.assert_array_equal(masked._keras_mask, padding_mask)
    further = rng.random(image.shape[:3]) < 0.7
    both = run(layer, {"inputs": image, "padding_mask": padding_mask & further})
    assert_equal(flat_arrays(layer(masked, padding_mask=ops.convert_to_tensor(further))), both, tolerance=0)


def test_images_of_a_batch_do_not_meet(rng):
    image = pixels(rng, 9, 7)
    layer = fresh(image, rng, shift_size=(2, 1))
    expected = run(layer, {"inputs": image})[0]
    alone = [run(layer, {"inputs": image[i : i + 1]})[0] for i in range(B)]
    assert_equal([np.concatenate(alone)], [expected], 1e-6)
    assert run(layer, {"inputs": image[:0]})[0].shape == (0, 9, 7, D)


def test_sizes_of_one_integer_are_both_of_a_pair():
    layer = WindowAttention(num_heads=2, key_dim=3, window_size=7, shift_size=[3, 2])
    assert (layer.window_size, layer.shift_size) == ((7, 7), (3, 2))
    layer.build((None, None, None, D))
    assert tuple(layer.relative_position_bias.shape) == (169, 2)


def test_the_bias_stays_float32_under_mixed_precision(rng):
    image = pixels(rng, 9, 7)
    # 300.25 is no half-precision number; equal biases of every way change nothing.
    layer = fresh(image, rng, dtype="mixed_bfloat16")
    expected = run(layer, {"inputs": image})
    layer.relative_position_bias.assign(layer.relative_position_bias + 300.25)
    assert_equal(run(layer, {"inputs": image}), expected, 1e-2)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="Sizes that are unknown before the run are TensorFlow's.")
@pytest.mark.parametrize(
    ("jit_compile", "padded", "attend_to_padding"),
    [
        (False, True, False),
        pytest.param(False, False, True, marks=pytest.mark.extended),
        pytest.param(True, False, False, marks=pytest.mark.extended),
    ],
)
def test_one_trace_serves_images_of_all_sizes(jit_compile, padded, attend_to_padding, rng):
    import tensorflow as tf

    layer = fresh(pixels(rng, 8, 6), rng, shift_size=(2, 1), attend_to_padding=attend_to_padding)

    def output_and_gradient(image, padding_mask=None):
        with tf.GradientTape() as tape:
            tape.watch(image)
            output = layer(image, padding_mask=padding_mask)
            loss = tf.reduce_sum(output**2)
        return output, tape.gradient(loss, image)

    signature = [tf.TensorSpec((None, None, None, D)), tf.TensorSpec((None, None, None), tf.bool)]
    function = tf.function(
        output_and_gradient, input_signature=signature[: 1 + padded], jit_compile=jit_compile, autograph=False
    )
    for sizes in SIZES[:: 4 if jit_compile else 1]:  # XLA compiles each anew
        image = tf.constant(pixels(rng, *sizes))
        mask = [tf.constant(rng.random((B, *sizes)) < 0.7)] if padded else []
        actual, expected = function(image, *mask), output_and_gradient(image, *mask)
        assert actual[0].shape == image.shape
        assert_equal(flat_arrays(actual), flat_arrays(expected))
    assert function.experimental_get_tracing_count() == 1


# --- transformers' Swin ---


def swin_layer(torch, window_size, shift_size, num_features):
    """transformers' `SwinLayer` without norms and feed-forward, what fills windows up masked: x + attention(x)."""
    swin = pytest.importorskip(
        "transformers.models.swin.modeling_swin", reason='needs transformers: pip install "keras_attn[peers]"'
    )
    config = swin.SwinConfig(window_size=window_size, attn_implementation="eager")

    class MaskedSwinLayer(swin.SwinLayer):
        def forward(self, hidden_states, input_dimensions):
            self.sizes = input_dimensions
            return super().forward(hidden_states, input_dimensions)[0]

        def get_attn_mask(self, height, width, dtype, device):
            real = torch.zeros(1, height, width, 1)
            real[:, : self.sizes[0], : self.sizes[1]] = 1
            windows = swin.window_partition(self.cyclic_shift(real), self.window_size)
            real = windows.reshape(len(windows), 1, -1)
            regions = super().get_attn_mask(height, width, dtype, device)
            mask = ((real - 1) * 1e9).expand(-1, real.shape[-1], -1)
            return mask if regions is None else regions * 1e9 + mask

    class Zero(torch.nn.Module):
        def forward(self, x):
            return 0 * x

    layer = MaskedSwinLayer(config, num_features, (64, 64), N, shift_size=shift_size)
    layer.layernorm_before = layer.layernorm_after = torch.nn.Identity()
    layer.mlp = Zero()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer.eval()


def copy_weights(theirs, ours):
    """From torch's (out, in) with heads side by side to (D, N, H) and (N, H, D)."""

    def array(tensor, *shape):
        return tensor.detach().numpy().T.reshape(shape)

    attention, size = theirs.attention, (ours.num_heads, ours.key_dim)
    features = ours.output_dense.kernel.shape[-1]
    for dense, linear in (
        (ours.query_dense, attention.q_proj),
        (ours.key_dense, attention.k_proj),
        (ours.value_dense, attention.v_proj),
    ):
        dense.kernel.assign(array(linear.weight, features, *size))
        dense.bias.assign(array(linear.bias, *size))
    ours.output_dense.kernel.assign(array(attention.o_proj.weight, *size, features))
    ours.output_dense.bias.assign(array(attention.o_proj.bias, features))
    return attention.relative_position_bias.relative_position_bias_table.detach().numpy()


def swin_pair(rng, sizes, window_size, shift_size, arguments=()):
    """An image, a layer of ours with transformers' projections, transformers' biases, and its answer."""
    torch = pytest.importorskip("torch", reason='needs torch: pip install "keras_attn[peers]"')
    torch.manual_seed(7)
    image = rng.normal(size=(B, *sizes, N * H)).astype("float32")
    theirs = swin_layer(torch, window_size, shift_size, N * H)
    grid = {"window_size": window_size, "shift_size": shift_size, **dict(arguments)}
    ours = WindowAttention(num_heads=N, key_dim=H, **grid)
    ours(image)
    table = copy_weights(theirs, ours)
    with torch.no_grad():
        output = theirs(torch.tensor(image).reshape(B, -1, N * H), sizes).numpy()
    return image, ours, table, output.reshape(image.shape) - image


@pytest.mark.parametrize("sizes", [(8, 12), (9, 12), (7, 13), (5, 11)])
@pytest.mark.parametrize("shift_size", [0, 3])
def test_it_is_the_attention_of_transformers_swin(sizes, shift_size, rng):
    image, ours, table, expected = swin_pair(rng, sizes, 4, shift_size)
    ours.relative_position_bias.assign(table)
    assert_equal(run(ours, {"inputs": image}), [expected], 5e-6)


def test_a_window_larger_than_the_image_is_one_as_large_as_the_image(rng):
    image, ours, table, expected = swin_pair(rng, (3, 3), 3, 0, {"window_size": 7, "shift_size": 3})
    larger = rng.normal(size=(13, 13, N)).astype("float32")
    larger[4:9, 4:9] = table.reshape(5, 5, N)
    ours.relative_position_bias.assign(larger.reshape(169, N))
    assert_equal(run(ours, {"inputs": image}), [expected], 5e-6)
