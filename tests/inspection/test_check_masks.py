"""`check_masks` finds every mutant, with the layer at fault, and nothing in models whose masks are right."""

import re

import numpy as np
import pytest
from helpers_masked_models import MUTANTS, RIGHT, made

import keras_attn

# One of each kind, and the cheapest; the others are extended.
QUICK_RIGHT = {
    "ours: packed language model",
    "ours: language model, padded on the left",
    "ours: stacked cross-attention",
    "keras.io: translation",
    "Keras: LSTM",
    "Keras: mean of masked frames",
    "Keras: Attention",
    "a masked maximum",
}
QUICK_MUTANTS = {
    "polarity flipped",
    "causal off by one",
    "Keras' stacked cross-attention",
    "softmax over the batch",
    "masked by -10",
    "a mean over pads",
    "segments not told to cross-attention",
    "a leak of the gradient alone",
    "causal lost with dropout",
}


def ranked(names, quick):
    assert quick <= set(names)
    return [pytest.param(name, marks=() if name in quick else pytest.mark.extended) for name in names]


@pytest.mark.parametrize("name", ranked(RIGHT, QUICK_RIGHT))
def test_a_right_model_has_no_leak(name):
    model, inputs, declared = made(RIGHT[name])
    weights = model.get_weights()
    report = keras_attn.check_masks(model, inputs, **declared)
    assert not report.leaks, str(report)
    report.raise_if_leaking()
    assert any(reach.any() for reach in report.reach.values())
    if name.startswith("ours"):
        assert not report.nan_spreads
    assert all(np.array_equal(x, y) for x, y in zip(model.get_weights(), weights, strict=True))
    assert not any("call" in vars(layer) for layer in model._flatten_layers())


@pytest.mark.parametrize("name", ranked(MUTANTS, QUICK_MUTANTS))
def test_a_mutant_is_found_with_its_layer(name):
    make, kinds, layer, *modes = MUTANTS[name]
    model, inputs, declared = made(make)
    report = keras_attn.check_masks(model, inputs, **declared, **({"modes": modes[0]} if modes else {}))
    assert {leak.kind for leak in report.leaks} == kinds, str(report)
    with pytest.raises(AssertionError, match="depends on"):
        report.raise_if_leaking()
    for leak in report.leaks:
        if layer is None:
            assert leak.layer is None
        else:
            # Keras numbers the names of layers that have none.
            pattern = "/".join(rf"{part}(_\d+)?" for part in layer.split("/"))
            assert re.fullmatch(pattern, leak.layer or ""), leak
    found_by = {way for leak in report.leaks for way in leak.found_by}
    if name == "a leak of the gradient alone":
        assert found_by == {("eager", "gradient")}
    elif modes:
        assert {mode for mode, _ in found_by} == {modes[0][1]}
    else:
        assert {("eager", "forward"), ("eager", "gradient")} <= found_by


def test_counts():
    assert len(RIGHT) >= 30
    assert len(MUTANTS) >= 20
