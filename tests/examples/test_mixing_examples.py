"""The layers that stand in the place of attention: the examples learn, and keep what the blocks promise."""

import re

import numpy as np
import pytest
from keras import ops
from test_examples import load, run_example

from keras_attn.layers import EncoderBlock

pytestmark = pytest.mark.extended


def accuracies(printed):
    return [
        float(number) / 100 for number in re.findall(r"^Accuracy .*: (\S+)%$", printed, flags=re.MULTILINE)
    ]


@pytest.mark.slow
def test_fourier_mixing_tells_a_place_of_the_others(tmp_path):
    mixed, alone = accuracies(run_example("fourier_mixing.py", tmp_path))
    assert mixed > 0.95
    # What one of 17 tokens tells of their majority: (1 + C(16, 8) / 2^16) / 2.
    assert abs(alone - 0.598) < 0.06


@pytest.mark.slow
def test_conformer_needs_convolution_and_attention(tmp_path):
    convolution, conformer = accuracies(run_example("conformer.py", tmp_path))
    assert conformer > 0.95
    assert 0.5 < convolution < 0.8


def test_fourier_mixing_is_the_two_dimensional_transform(rng):
    x = rng.normal(size=(2, 5, 7)).astype("float32")
    actual = ops.convert_to_numpy(load("fourier_mixing").FourierMixing()(x))
    t, s, d, e = (np.arange(n) for n in (5, 5, 7, 7))
    angles = 2 * np.pi * (np.einsum("t,s->ts", t, s)[..., None, None] / 5 + np.einsum("d,e->de", d, e) / 7)
    np.testing.assert_allclose(actual, np.einsum("bse,tsde->btd", x, np.cos(angles)), rtol=0, atol=1e-4)


def test_fourier_mixing_refuses_padding():
    block = EncoderBlock(11, self_attention=load("fourier_mixing").FourierMixing())
    with pytest.raises(ValueError, match="`padding_mask` is not an argument"):
        block(np.ones((2, 5, 7), "float32"), padding_mask=np.ones((2, 5), bool))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("form", ["block", "slot"])
def test_what_stands_at_pads_changes_no_real_place_of_a_conformer(form, training, rng):
    conformer = load("conformer")
    block = {
        "block": lambda: conformer.ConformerBlock(11, num_heads=2, kernel_size=3),
        "slot": lambda: EncoderBlock(11, self_attention=conformer.ConvolutionModule(3)),
    }[form]()
    x = rng.normal(size=(2, 5, 14)).astype("float32")
    mask = np.arange(5) < [[5], [3]]
    expected = block(x, padding_mask=mask, training=training)
    for content in (-7.5, np.nan):
        filled = np.where(mask[..., None], x, np.float32(content))
        actual = block(filled, padding_mask=mask, training=training)
        np.testing.assert_array_equal(
            ops.convert_to_numpy(actual)[mask], ops.convert_to_numpy(expected)[mask]
        )
    statistics = block.non_trainable_weights
    assert len(statistics) == 2
    assert all(np.isfinite(ops.convert_to_numpy(x)).all() for x in statistics)
    unmasked = block(x, padding_mask=np.ones_like(mask), training=training)
    assert not np.allclose(
        ops.convert_to_numpy(unmasked)[mask], ops.convert_to_numpy(expected)[mask], atol=1e-3
    )
