"""The constants of Wang et al. 2022, figure 2, at depths where their roots are whole or known."""

import math
import re

import pytest

from keras_attn.ops import deep_norm_scales


def test_an_encoder_alone():
    # (2 N)^(1/4) and (8 N)^(-1/4)
    encoder, decoder = deep_norm_scales(num_encoder_layers=8)
    assert decoder is None
    assert encoder.alpha == pytest.approx(2, rel=1e-12)
    assert encoder.beta == pytest.approx(1 / math.sqrt(8), rel=1e-12)
    encoder, _ = deep_norm_scales(num_encoder_layers=2)
    assert encoder == pytest.approx((math.sqrt(2), 0.5), rel=1e-12)


def test_a_decoder_alone():
    # (2 M)^(1/4) and (8 M)^(-1/4)
    encoder, decoder = deep_norm_scales(num_decoder_layers=512)
    assert encoder is None
    assert decoder.alpha == pytest.approx(math.sqrt(32), rel=1e-12)
    assert decoder.beta == pytest.approx(1 / 8, rel=1e-12)


def test_both():
    # 0.81 (N^4 M)^(1/16) and 0.87 (N^4 M)^(-1/16), here with N^4 M = 2^16; (3 M)^(1/4) and (12 M)^(-1/4).
    encoder, decoder = deep_norm_scales(num_encoder_layers=8, num_decoder_layers=16)
    assert encoder == pytest.approx((1.62, 0.435), rel=1e-12)
    assert decoder == pytest.approx((48**0.25, 192**-0.25), rel=1e-12)
    encoder, decoder = deep_norm_scales(num_encoder_layers=2, num_decoder_layers=27)
    assert encoder == pytest.approx((0.81 * 432 ** (1 / 16), 0.87 / 432 ** (1 / 16)), rel=1e-12)
    assert decoder == pytest.approx((3, 1 / math.sqrt(18)), rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "`num_encoder_layers` or `num_decoder_layers` must be given. Received: None."),
        (
            {"num_encoder_layers": 0},
            "`num_encoder_layers` must be a positive integer or None. Received: num_encoder_layers=0.",
        ),
        (
            {"num_encoder_layers": 3, "num_decoder_layers": 2.0},
            "`num_decoder_layers` must be a positive integer or None. Received: num_decoder_layers=2.0.",
        ),
    ],
)
def test_numbers_that_are_none_are_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        deep_norm_scales(**arguments)
