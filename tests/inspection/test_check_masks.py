"""`check_masks` finds every mutant, with the layer at fault, and nothing in models whose masks are right."""

import re

import keras
import numpy as np
import pytest
from helpers_keras_models import VOCABULARY_SIZE, token_ids
from helpers_masked_models import MUTANTS, RIGHT, SOURCE, made, one_sequence, seq2seq
from keras import layers, ops

import keras_attn

# One of each kind, and the cheapest; the others are extended.
QUICK_RIGHT = {"ours: stacked cross-attention", "Keras: mean of masked frames", "Keras: Attention"}
QUICK_MUTANTS = {
    "causal off by one",
    "softmax over the batch",
    "masked by -10",
    "segments not told to cross-attention",
    "a leak of the gradient alone",
    "causal lost with dropout",
}


def ranked(names, quick):
    assert quick <= set(names)
    return [pytest.param(name, marks=() if name in quick else pytest.mark.extended) for name in names]


@pytest.mark.extended
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ranked(MUTANTS, QUICK_MUTANTS))
@pytest.mark.filterwarnings("ignore:The layer .* sees padding")  # it tells of the lost mask, too
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


ALL_MODES = ("eager", "graph", "xla", "training", "dropout", "mixed_float16", "mixed_bfloat16")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("Keras' stacked cross-attention", marks=pytest.mark.extended),
        "a maximum over pads",
        pytest.param("softmax over the batch", marks=pytest.mark.extended),
        pytest.param("causal off by one", marks=pytest.mark.extended),
    ],
)
def test_every_mode_finds_a_leak(name):
    model, inputs, declared = made(MUTANTS[name][0])
    policies = [layer.dtype_policy.name for layer in model._flatten_layers()]
    leaks = keras_attn.check_masks(model, inputs, **declared, modes=ALL_MODES).leaks
    assert {leak.kind for leak in leaks} == MUTANTS[name][1]
    for leak in leaks:
        assert {mode for mode, _ in leak.found_by} == set(ALL_MODES)
    assert [layer.dtype_policy.name for layer in model._flatten_layers()] == policies
    attention = [x for x in model._flatten_layers() if isinstance(x, keras.layers.MultiHeadAttention)]
    assert not any(layer._dropout for layer in attention)


@pytest.mark.extended
@pytest.mark.parametrize(
    "name", ["ours: translation", "Keras: dropout in attention", "Keras: batch normalisation", "Keras: LSTM"]
)
def test_no_mode_finds_a_leak_in_a_right_model(name):
    model, inputs, declared = made(RIGHT[name])
    means = [np.array(variable) for variable in model.non_trainable_variables]
    keras_attn.check_masks(model, inputs, **declared, modes=ALL_MODES).raise_if_leaking()
    assert all(np.array_equal(x, y) for x, y in zip(means, model.non_trainable_variables, strict=True))
    assert all(layer.trainable for layer in model._flatten_layers())


def test_the_report_shows_what_depends_on_what(tmp_path):
    model, inputs, declared = made(RIGHT["ours: language model"])
    report = keras_attn.check_masks(model, inputs, **declared)
    (reach,) = report.reach.values()
    seen = np.tri(7, dtype=bool)
    # A pad of one row is real in the other: the table is of both.
    assert np.array_equal(reach, seen)
    assert "  2 ###....\n" in report.table()
    assert str(report).startswith("No leak.\n")
    figure = report.plot(path=tmp_path / "reach.png")
    assert (tmp_path / "reach.png").stat().st_size > 1000
    assert "depends on" in figure.get_suptitle()
    with pytest.raises(ValueError, match="`output` and `input` must name one of"):
        report.plot(output="nothing")


def test_a_leak_is_told_in_words():
    model, inputs, declared = made(MUTANTS["Keras' stacked cross-attention"][0])
    report = keras_attn.check_masks(model, inputs, **declared)
    (leak,) = report.leaks
    assert leak.input == "source"
    assert leak.pairs == [(1, position, pad) for position in range(5) for pad in (4, 5, 6)]
    text = str(report)
    assert text.startswith("1 leak\n- ")
    assert "depends on the padding of 'source' (found by: eager forward, eager gradient)." in text
    assert "It enters in 'cross_1'. Row 1 position 0 sees position 4;" in text
    assert "NaN in the padding of 'source' reaches real positions" in text


def test_the_next_position_alone_is_a_leak():
    model, inputs, declared = one_sequence(lambda x: ops.roll(x, -1, axis=1), True, token_ids(7, 7), False)
    (leak,) = keras_attn.check_masks(model, inputs, **declared).leaks
    assert leak.kind == "causal"
    assert leak.pairs == [(row, position, position + 1) for row in range(2) for position in range(6)]


def test_an_output_without_positions_and_float_inputs():
    model, frames, _ = made(RIGHT["Keras: mean of masked frames"])
    report = keras_attn.check_masks(model, frames)
    ((_, name),) = report.reach
    assert name == "frames"
    np.testing.assert_array_equal(report.reach[next(iter(report.reach))], np.ones((1, 7), bool))
    # The same without `Masking`: nothing says what is padding, until it is declared.
    inputs = keras.Input((None, 6), name="frames")
    plain = keras.Model(inputs, layers.GlobalAveragePooling1D()(inputs))
    assert not keras_attn.check_masks(plain, frames).leaks
    declared = {"frames": (frames != 0).any(axis=-1)}
    (leak,) = keras_attn.check_masks(plain, frames, padding=declared).leaks
    assert (leak.kind, leak.layer) == ("padding", plain.layers[-1].name)
    assert leak.pairs[0] == (1, None, 4)
    assert "Row 1 sees position 4" in str(leak)


class SumsIds(keras.Model):
    """It is told its mask, and still looks at the ids of pads."""

    def __init__(self):
        super().__init__()
        self.embedding = layers.Embedding(VOCABULARY_SIZE, 5)
        self({"token_ids": SOURCE, "padding_mask": SOURCE != 0})

    def call(self, inputs):
        x = ops.where(inputs["padding_mask"][..., None], self.embedding(inputs["token_ids"]), 0.0)
        return x + ops.mean(ops.cast(inputs["token_ids"], "float32"), axis=1)[:, None, None]


def test_ids_at_pads_are_changed_where_the_model_is_told_its_mask():
    inputs = {"token_ids": token_ids(7, 7), "padding_mask": SOURCE != 0}
    report = keras_attn.check_masks(SumsIds(), inputs, padding={"token_ids": SOURCE != 0})
    (leak,) = report.leaks
    assert (leak.kind, leak.found_by) == ("padding", [("eager", "ids")])


@pytest.mark.extended
def test_ids_that_no_layer_embeds_are_changed_themselves():
    def one_hot(x, shift):
        vectors = ops.one_hot(x, VOCABULARY_SIZE)
        return ops.cumsum(ops.roll(vectors, -shift, axis=1), axis=1)

    for shift, kinds in ((0, []), (1, ["causal"])):
        ids = keras.Input((None,), dtype="int32", name="ids")
        model = keras.Model(ids, layers.Dense(3)(one_hot(ids, shift)))
        leaks = keras_attn.check_masks(model, token_ids(7, 7), causal=["ids"]).leaks
        assert [leak.kind for leak in leaks] == kinds
    with pytest.raises(ValueError, match="The padding of 'ids' cannot be checked: no layer embeds"):
        keras_attn.check_masks(model, SOURCE, padding={"ids": SOURCE != 0})


@pytest.mark.extended
def test_what_is_not_declared_is_not_judged():
    for name in ("causal off by one", "segments not told"):
        model, inputs, declared = made(MUTANTS[name][0])
        padding = declared.get("padding", {})
        assert not keras_attn.check_masks(model, inputs, padding=padding).leaks


def test_one_row_is_checked_too():
    model, inputs, _ = made(MUTANTS["causal off by one"][0])
    report = keras_attn.check_masks(model, inputs[:1], causal=["token_ids"])
    assert {leak.kind for leak in report.leaks} == {"causal"}
    assert report.notes == ["Whether rows mix is not checked: there is one row."]


@pytest.mark.extended
def test_a_model_with_a_state_of_its_own_is_called_from_the_same_state():
    ids = keras.Input(batch_shape=(2, 7), dtype="int32", name="ids")
    x = layers.Embedding(VOCABULARY_SIZE, 6, mask_zero=True)(ids)
    model = keras.Model(ids, layers.GRU(5, return_sequences=True, stateful=True)(x))
    model(SOURCE)
    states = [np.array(state) for state in model.layers[-1].states]
    assert not keras_attn.check_masks(model, SOURCE, causal=["ids"]).leaks
    assert all(np.array_equal(x, y) for x, y in zip(states, model.layers[-1].states, strict=True))


@pytest.mark.extended
def test_two_inputs_of_equal_values_and_of_equal_lengths():
    model, _, _ = made(seq2seq)
    for target in (SOURCE, token_ids(7, 7)[:, ::-1].copy()):
        inputs = {"encoder_token_ids": SOURCE, "decoder_token_ids": target}
        padding = {name: ids != 0 for name, ids in inputs.items()}
        report = keras_attn.check_masks(model, inputs, padding=padding, causal=["decoder_token_ids"])
        assert not report.leaks
        assert report.reach["output", "encoder_token_ids"].sum() > 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"padding": {"ids": SOURCE != 0}},
            r"`padding` must name inputs of the model, \['token_ids'\]. Received: \['ids'\]",
        ),
        ({"causal": ["ids"]}, "`causal` must name inputs"),
        (
            {"padding": {"token_ids": SOURCE[:, :3] != 0}},
            r"must have the shape \(2, 7\).*Received: shape \(2, 3\)",
        ),
        ({"padding": {"token_ids": SOURCE}}, "`padding` must hold booleans"),
        (
            {"padding": SOURCE != 0},
            r"`padding` must be a dict from names of the model's inputs, \['token_ids'\], to arrays",
        ),
        ({"segments": "token_ids"}, "`segments` must be a dict.*Received: segments='token_ids'"),
        ({"causal": "ids"}, r"`causal` must name inputs.*Received: \['ids'\]"),
        (
            {"causal": True},
            r"`causal` must be a list of names of the model's inputs, \['token_ids'\]. Received: causal=True",
        ),
        ({"modes": ("fast",)}, r"`modes` must be one of \['dropout', 'eager', 'graph'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    model, inputs, _ = one_sequence(lambda x: layers.Dense(3)(x), mask_zero=False)
    with pytest.raises(ValueError, match=message):
        keras_attn.check_masks(model, inputs, **arguments)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (SOURCE[:, :0], r"must have rows and positions to change. Received: inputs of shape \(2, 0\)"),
        ({"token_ids": SOURCE[:0]}, r"Received: 'token_ids' of shape \(0, 7\)"),
        ([SOURCE[:, :0]], r"Received: inputs\[0\] of shape \(2, 0\)"),
        (
            {"token_ids": {"of": SOURCE}},
            "a flat dict or list of arrays. Received: 'token_ids' is of the type dict",
        ),
    ],
)
def test_inputs_without_a_position_or_in_a_nested_structure_are_refused(inputs, message):
    model, _, _ = one_sequence(lambda x: layers.Dense(3)(x), mask_zero=False)
    with pytest.raises(ValueError, match=message):
        keras_attn.check_masks(model, inputs)


def test_one_name_of_a_causal_input_is_a_list_of_it():
    model, inputs, _ = one_sequence(lambda x: layers.Dense(3)(x[:, ::-1]), mask_zero=False)
    reports = [
        keras_attn.check_masks(model, inputs, causal=causal) for causal in ("token_ids", ["token_ids"])
    ]
    assert [leak.kind for leak in reports[0].leaks] == [leak.kind for leak in reports[1].leaks] == ["causal"]


def test_what_cannot_be_judged_is_refused():
    pooled, inputs, _ = one_sequence(lambda x: layers.GlobalAveragePooling1D()(x))
    with pytest.raises(
        ValueError, match="`causal` names 'token_ids' of 7 positions, but no output has as many"
    ):
        keras_attn.check_masks(pooled, inputs, causal=["token_ids"])
    with pytest.raises(ValueError, match="`segments` needs an output with the positions"):
        keras_attn.check_masks(pooled, inputs, segments={"token_ids": np.ones((2, 7), int)})
    with pytest.raises(ValueError, match="`model` must be a built"):
        keras_attn.check_masks(keras.Sequential([layers.Dense(3)]), inputs)
    broken, inputs, _ = one_sequence(lambda x: x / 0.0)
    with pytest.raises(ValueError, match=r"In the mode 'eager' the outputs .* hold NaN or Inf"):
        keras_attn.check_masks(broken, inputs)


class Noisy(layers.Layer):
    supports_masking = True

    def call(self, x):
        return x + keras.random.normal(ops.shape(x))


def test_random_numbers_without_a_seed_are_no_leaks():
    model, inputs, declared = one_sequence(Noisy())
    with pytest.raises(
        ValueError, match=r"In the mode 'eager' two calls with the same inputs give other outputs"
    ):
        keras_attn.check_masks(model, inputs, **declared)
    seeded, inputs, declared = one_sequence(layers.GaussianNoise(0.5, seed=3))
    assert not keras_attn.check_masks(seeded, inputs, modes=("eager", "training"), **declared).leaks


@pytest.mark.filterwarnings("ignore:.*destroy the mask information")
@pytest.mark.parametrize("is_right", [True, False])
def test_a_quantised_model_is_judged_too(is_right):
    inputs = np.array([[5, 6, 7, 8, 9], [9, 5, 4, 0, 0]])
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = layers.Embedding(23, 16, mask_zero=True)(ids)
    y = layers.Dense(13)(x)
    pooled = layers.GlobalAveragePooling1D()(y) if is_right else layers.GlobalMaxPooling1D()(y)
    model = keras.Model(ids, pooled)
    for layer in model.layers[1:3]:
        layer.quantize("int8")
    report = keras_attn.check_masks(model, inputs)
    assert {leak.kind for leak in report.leaks} == (set() if is_right else {"padding"})
    assert report.notes == []


class ToldItsMask(keras.Model):
    """Its `call` takes its inputs one by one, as models of one's own often do."""

    def __init__(self, uses_mask):
        super().__init__()
        self.uses_mask = uses_mask
        self.embedding = layers.Embedding(23, 16)
        self.attention = layers.MultiHeadAttention(2, 8)

    def call(self, ids, mask, training=False):
        x = self.embedding(ids)
        return self.attention(x, x, attention_mask=mask[:, None] if self.uses_mask else None)


@pytest.mark.parametrize("as_list", [False, True])
def test_inputs_are_given_to_a_call_of_several_arguments(as_list):
    ids = np.array([[5, 6, 7, 8, 9], [9, 5, 4, 11, 3]])
    mask = np.array([[True] * 5, [True] * 3 + [False] * 2])
    for uses_mask in (True, False):
        model = ToldItsMask(uses_mask)
        model(ids, mask)
        inputs = [ids, mask] if as_list else {"ids": ids, "mask": mask}
        name = "inputs_0" if as_list else "ids"
        report = keras_attn.check_masks(model, inputs, padding={name: mask})
        assert {leak.kind for leak in report.leaks} == (set() if uses_mask else {"padding"})
        [used] = keras_attn.explain_masks(model, inputs).values()
        assert used[1].any(axis=0).tolist() == (mask[1].tolist() if uses_mask else [True] * 5)


@pytest.mark.extended
def test_it_works_where_attention_is_captured():
    model, inputs, declared = made(RIGHT["ours: language model"])
    with keras_attn.capture_attention(model, rows=0) as maps:
        assert not keras_attn.check_masks(model, inputs, **declared).leaks
    assert len(maps) > 2
