"""Summaries of attention maps against loops, sums by hand and heads that are known to be of a kind."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_keras_models import VOCABULARY_SIZE, classifier, randomize, token_ids
from helpers_models import make_batch
from keras import ops

import keras_attn
from keras_attn import inspection
from keras_attn.layers import DifferentialAttention, WindowAttention


def random_scores(*shape, seed=0, causal=False, sharpness=2.0):
    logits = np.random.default_rng(seed).normal(size=shape) * sharpness
    if causal:
        logits = np.where(np.tri(shape[-2], shape[-1], dtype=bool), logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def test_rollout_is_the_sum_over_all_ways_through_the_layers():
    maps = [random_scores(2, 3, 5, 5, seed=seed) for seed in range(3)]
    expected = np.zeros((2, 5, 5))
    mixed = [0.3 * np.eye(5) + 0.7 * scores.mean(axis=1) for scores in maps]
    for b, last, second, first, start in np.ndindex(2, 5, 5, 5, 5):
        expected[b, last, start] += (
            mixed[2][b, last, second] * mixed[1][b, second, first] * mixed[0][b, first, start]
        )
    found = inspection.rollout(maps, residual=0.3)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=-1), 1, rtol=0, atol=1e-6)
    by_path = dict(zip(("a", "b", "c"), maps))
    np.testing.assert_array_equal(inspection.rollout(by_path, residual=0.3), found)


def test_rollout_of_pads_keeps_them_to_themselves():
    scores = random_scores(1, 2, 5, 5)
    scores[..., 3:, :] = 0
    scores[..., 3:] = 0
    found = inspection.rollout([scores, scores])
    np.testing.assert_array_equal(found[0, 3:], np.eye(5)[3:])
    assert (found[0, :3, 3:] == 0).all()


@pytest.mark.parametrize("shapes", [[], [(1, 2, 5, 7)], [(1, 2, 5, 5), (1, 2, 3, 3)]])
def test_what_is_no_stack_of_self_attention_is_refused(shapes):
    with pytest.raises(ValueError, match="must be of self-attention, all over the same positions"):
        inspection.rollout([np.ones(shape) for shape in shapes])


def test_windows_and_layers_of_several_lengths_are_refused_with_what_to_do():
    layer = "stage_0/self_attention"
    windows = {layer: random_scores(2, 7, 3, 5, 5)}
    in_place = r"`windows_in_place` makes one of windows.*Received: '{}' of shape \(2, 7, 3, 5, 5\)"
    for summary in (inspection.rollout, inspection.head_kinds, lambda maps: inspection.relevance(maps, maps)):
        with pytest.raises(ValueError, match=in_place.format(layer)):
            summary(windows)
    with pytest.raises(ValueError, match=in_place.format("maps")):
        inspection.head_kinds(windows[layer])
    stages = {"stage_0": random_scores(2, 3, 5, 5), "stage_1": random_scores(2, 3, 3, 3)}
    of_one_length = r"layers of one length.*'stage_0': \(2, (3, )?5, 5\), 'stage_1': \(2, (3, )?3, 3\)"
    for summary in (inspection.rollout, lambda maps: inspection.relevance(maps, maps)):
        with pytest.raises(ValueError, match=of_one_length):
            summary(stages)


@pytest.mark.parametrize(
    "summary",
    [
        inspection.entropy,
        inspection.mean_of_heads,
        lambda scores: inspection.word_scores(scores, [0, 0, 1, 1, 1]),
        lambda scores: inspection.windows_in_place(scores, 7, 6, 3),
    ],
    ids=["entropy", "mean of heads", "words", "windows"],
)
def test_summaries_of_one_layer_refuse_maps_of_several(summary):
    maps = inspection.AttentionMaps([("first", random_scores(2, 3, 5, 5))])
    with pytest.raises(ValueError, match=r"`scores` must be those of one layer, `maps\[path\]`.*'first'"):
        summary(maps)


def test_entropy():
    scores = np.array([[[[0.5, 0.5, 0, 0], [0.25] * 4, [0, 1, 0, 0], [0] * 4]]])
    expected = np.array([[[np.log(2), np.log(4), 0, np.nan]]])
    np.testing.assert_allclose(inspection.entropy(scores), expected, rtol=1e-6)
    normalized = inspection.entropy(scores, normalized=True)
    np.testing.assert_allclose(normalized, [[[1, 1, np.nan, np.nan]]], rtol=1e-6)


def test_word_scores_by_hand():
    scores = random_scores(2, 3, 5, 7)
    found = inspection.word_scores(scores, [0, 0, 1, None, 2], [None, 0, 1, 1, 1, 2, None])
    assert found.shape == (2, 3, 3, 3)
    rows = (scores[..., 0, :] + scores[..., 1, :]) / 2
    np.testing.assert_allclose(found[..., 0, 1], rows[..., 2:5].sum(axis=-1), rtol=1e-6)
    np.testing.assert_allclose(found[..., 2, 2], scores[..., 4, 5], rtol=1e-6)
    all_words = inspection.word_scores(scores, key_words=[0, 0, 1, 1, 2, 3, 3])
    np.testing.assert_allclose(all_words.sum(axis=-1), 1, rtol=1e-6)
    for words, message in (([0, 1], "an item for each of 5 tokens"), ([0, 2, 2, 2, 2], "words 0, 1, 2")):
        with pytest.raises(ValueError, match=message):
            inspection.word_scores(scores, words)


def one_hot_head(columns, length, causal=True):
    """A head (T, T) whose row t attends to `columns(t)`, or to itself where that is no position."""
    head = np.full((length, length), 0.01)
    for t in range(length):
        head[t, columns(t) if 0 <= columns(t) < length else t] = 1
    head = head * np.tri(length) if causal else head
    return head / head.sum(axis=-1, keepdims=True)


def test_heads_that_were_made_of_a_kind_are_found():
    ids = inspection.repeated_tokens(7, 50, batch_size=2)
    assert (ids[:, :7] == ids[:, 7:]).all()
    assert all(len(set(row)) == 7 for row in ids[:, :7])
    heads = {
        "previous": one_hot_head(lambda t: t - 1, 14),
        "next": one_hot_head(lambda t: t + 1, 14, causal=False),
        "first": one_hot_head(lambda t: 0, 14),
        "own": one_hot_head(lambda t: t, 14),
        "induction": one_hot_head(lambda t: t - 6 if t >= 7 else 0, 14),
        "broad": np.tri(14) / np.arange(1, 15)[:, None],
    }
    maps = np.broadcast_to(np.stack(list(heads.values())), (2, len(heads), 14, 14))
    kinds = inspection.head_kinds(maps, ids)
    assert set(kinds) == {*heads, "local"}
    for kind, scores in kinds.items():
        assert scores.shape == (len(heads),)
        assert ((scores >= 0) & (scores <= 1)).all()
        if kind in heads:
            assert list(heads)[np.argmax(scores)] == kind
            assert scores.max() > 0.8
            assert np.sort(scores)[-2] < 0.7
    assert (kinds["local"][[0, 1, 3]] > 0.85).all()
    # One head looks ahead, so that the first token could too.
    np.testing.assert_allclose(
        kinds["local"][5], np.mean([min(3, t + 1) / (t + 1) for t in range(14)]), rtol=1e-6
    )


def test_pads_and_rows_without_a_choice_do_not_count():
    scores = random_scores(2, 3, 5, 5, causal=True)
    padded = np.zeros((2, 3, 7, 7))
    padded[:, :, :5, :5] = scores
    for kind, of_padded in inspection.head_kinds(padded).items():
        np.testing.assert_allclose(of_padded, inspection.head_kinds(scores)[kind], rtol=1e-6)
    # The first row of a causal map sees itself alone.
    expected = np.mean([scores[:, :, t, t - 1] for t in range(1, 5)], axis=(0, 1))
    np.testing.assert_allclose(inspection.head_kinds(scores)["previous"], expected, rtol=1e-6)


def padded_maps(scores, queries, keys):
    """The maps of texts with pads: so many before and after the queries, and the keys."""
    return np.pad(scores, [(0, 0), (0, 0), queries, keys])


@pytest.mark.parametrize("pads", [(2, 0), (0, 2), (1, 3)])
@pytest.mark.parametrize("causal", [True, False])
def test_a_head_has_the_same_kinds_wherever_the_pads_are(pads, causal):
    ids = np.array([[7, 9, 30, 7, 9, 30], [8, 8, 5, 5, 8, 5]])
    scores = random_scores(2, 3, 6, 6, causal=causal)
    # A pad's id may be that of a token.
    padded_ids = np.pad(ids, [(0, 0), pads], constant_values=8)
    expected = inspection.head_kinds(scores, ids)
    assert set(expected) >= {"first", "previous", "own", "local", "induction", "broad"}
    for kind, found in inspection.head_kinds(padded_maps(scores, pads, pads), padded_ids).items():
        np.testing.assert_allclose(found, expected[kind], rtol=1e-6, err_msg=kind)
    across = random_scores(2, 3, 5, 13)
    expected = inspection.head_kinds(across)
    for kind, found in inspection.head_kinds(padded_maps(across, pads, pads[::-1])).items():
        np.testing.assert_allclose(found, expected[kind], rtol=1e-6, err_msg=kind)


def test_texts_of_one_batch_have_their_own_first_tokens():
    short, long = random_scores(1, 3, 4, 4), random_scores(1, 3, 7, 7)
    batch = np.concatenate([padded_maps(short, (3, 0), (3, 0)), long])
    for kind, asked in {"first": (3, 6), "previous": (3, 6), "next": (3, 6), "own": (4, 7)}.items():
        alone = [inspection.head_kinds(scores)[kind] for scores in (short, long)]
        expected = np.average(alone, axis=0, weights=asked)
        np.testing.assert_allclose(inspection.head_kinds(batch)[kind], expected, rtol=1e-6)


def test_cross_attention_has_kinds_of_its_own_and_mappings_are_answered_by_key():
    kinds = inspection.head_kinds({"cross": random_scores(2, 3, 5, 7), "own": random_scores(2, 3, 5, 5)})
    assert set(kinds["cross"]) == {"first", "diagonal", "broad"}
    assert "previous" in kinds["own"]
    with pytest.raises(ValueError, match=r"`token_ids` must have the shape \(2, 5\)"):
        inspection.head_kinds(random_scores(2, 3, 5, 5), np.zeros((2, 3)))
    with pytest.raises(ValueError, match="as many ids as the part is long"):
        inspection.repeated_tokens(7, 7)


@pytest.mark.parametrize("shift_size", [0, (2, 1)])
def test_windows_go_back_to_their_places(shift_size):
    height, width = 7, 6
    layer = WindowAttention(2, 3, window_size=(4, 3), shift_size=shift_size)
    images = np.random.default_rng(3).normal(size=(2, height, width, 5)).astype("float32")
    layer(images)
    with keras_attn.capture_attention(layer, dtype="float32") as maps:
        layer(images)
    whole = inspection.windows_in_place(maps[layer.name], height, width, (4, 3), shift_size)
    # The maps of the whole image and the values give the layer's output.
    values = ops.convert_to_numpy(layer.value_dense(images.reshape(2, 1, -1, 5)))[:, 0]  # (B, T, N, H)
    mixed = np.einsum("bnts,bsnh->btnh", whole, values)
    output = ops.convert_to_numpy(layer.output_dense(mixed[:, None]))[:, 0]
    np.testing.assert_allclose(output.reshape(images.shape), layer(images), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"`scores` must have the shape \(B, 4, N, 12, 12\)"):
        inspection.windows_in_place(maps[layer.name][:, :3], height, width, (4, 3), shift_size)


def hand_made(attention):
    """A classifier (B, T, D) -> (B, 3) whose scores can be had by hand."""
    inputs = keras.Input((None, 6))
    x = inputs
    for layer in attention:
        x = x + layer(x, x)
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(x)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.layers.MultiHeadAttention(2, 3),
        lambda: keras.layers.GroupQueryAttention(3, 4, 2),
        lambda: keras_attn.layers.MultiHeadAttention(4, 3, num_key_value_heads=2),
        lambda: keras_attn.layers.TalkingHeadsAttention(2, 3),
    ],
    ids=["Keras", "Keras, grouped", "ours, grouped", "talking heads"],
)
def test_gradients_with_respect_to_scores_are_those_of_a_tape_on_the_scores(make):
    layers = [make(), make()]
    model = randomize(hand_made(layers))
    x = tf.constant(np.random.default_rng(5).normal(size=(2, 5, 6)), "float32")
    maps, gradients = inspection.attention_gradients(model, x, target=1)
    # The same model by hand: here the layers return the scores that their outputs were computed from.
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y, scores = x, []
        for layer in layers:
            update, of_layer = layer(y, y, return_attention_scores=True)
            scores.append(of_layer)
            y = y + update
        output = tf.reduce_sum(model.layers[-1](tf.reduce_mean(y, axis=1))[:, 1])
    for found, gradient, truth in zip(maps.values(), gradients.values(), scores, strict=True):
        np.testing.assert_allclose(found, truth, rtol=0, atol=1e-6)
        np.testing.assert_allclose(gradient, tape.gradient(output, truth), rtol=0, atol=1e-5)
        assert np.abs(gradient).max() > 1e-2


def test_relevance_of_one_stack_by_hand():
    model = randomize(classifier())
    ids = token_ids(7, 7)
    maps, gradients = inspection.attention_gradients(model, ids, target=np.array([2, 0]))
    (scores,), (gradient,) = maps.values(), gradients.values()
    expected = np.eye(7) + np.maximum(scores.astype("float64") * gradient, 0).mean(axis=1)
    np.testing.assert_allclose(inspection.relevance(maps, gradients), expected, rtol=1e-5)
    # Each row's own class: as if it were alone.
    alone, of_alone = inspection.attention_gradients(model, ids[1:], target=0)
    np.testing.assert_allclose(inspection.relevance(alone, of_alone)[0], expected[1], rtol=0, atol=1e-6)
    largest = np.argmax(model(ids), axis=-1)
    by_default = inspection.attention_gradients(model, ids)[1]
    by_index = inspection.attention_gradients(model, ids, target=largest)[1]
    np.testing.assert_allclose(*(next(iter(maps.values())) for maps in (by_default, by_index)), atol=1e-7)


def test_relevance_of_two_layers_and_of_cross_attention_by_hand():
    shapes = {
        "e1": (2, 3, 7, 7),
        "e2": (2, 3, 7, 7),
        "d1": (2, 3, 5, 5),
        "c1": (2, 3, 5, 7),
        "d2": (2, 3, 5, 5),
        "c2": (2, 3, 5, 7),
    }
    maps = {key: random_scores(*shape, seed=seed) for seed, (key, shape) in enumerate(shapes.items())}
    rng = np.random.default_rng(9)
    gradients = {key: rng.normal(size=shape) for key, shape in shapes.items()}
    a = {key: np.maximum(maps[key] * gradients[key], 0).mean(axis=1) for key in shapes}

    def normalized(r):
        added = r - np.eye(r.shape[-1])
        return added / added.sum(axis=-1, keepdims=True) + np.eye(r.shape[-1])

    r_ii = np.eye(7) + a["e1"]
    r_ii = r_ii + a["e2"] @ r_ii
    stack = {key: maps[key] for key in ("e1", "e2")}, {key: gradients[key] for key in ("e1", "e2")}
    np.testing.assert_allclose(inspection.relevance(*stack), r_ii, rtol=1e-5)
    r_qq = np.eye(5) + a["d1"]
    r_qi = np.swapaxes(normalized(r_qq), 1, 2) @ a["c1"] @ normalized(r_ii)
    r_qi = r_qi + a["d2"] @ r_qi
    r_qq = r_qq + a["d2"] @ r_qq
    r_qi = r_qi + np.swapaxes(normalized(r_qq), 1, 2) @ a["c2"] @ normalized(r_ii)
    names = {"encoder": ["e1", "e2"], "decoder": ["d1", "d2"], "cross": ["c1", "c2"]}
    np.testing.assert_allclose(inspection.relevance(maps, gradients, **names), r_qi, rtol=1e-5)
    for arguments, message in (
        ({"encoder": ["e1"]}, "need `cross`"),
        ({"cross": ["c1"]}, "must be given together"),
        ({**names, "cross": ["c1"]}, "as many decoder layers as cross layers"),
    ):
        with pytest.raises(ValueError, match=message):
            inspection.relevance(maps, gradients, **arguments)
    with pytest.raises(ValueError, match="same layers and shapes"):
        inspection.relevance(maps, stack[1])


@pytest.mark.extended
def test_relevance_of_a_translation_finds_the_source_token_that_decides():
    model = keras_attn.models.Seq2SeqTransformer.from_sizes(
        13, 2, 2, hidden_dim=14, num_heads=2, intermediate_dim=17, max_sequence_length=23
    )
    randomize(model)
    batch = make_batch()
    inputs = {name: batch[name] for name in ("encoder_token_ids", "decoder_token_ids")}
    maps, gradients = inspection.attention_gradients(model, inputs, target=lambda y: y[:, 2, 5])
    assert len(maps) == 6
    kinds = {
        "encoder": [path for path in maps if path.startswith("encoder")],
        "decoder": [path for path in maps if path.startswith("decoder") and path.endswith("self_attention")],
        "cross": [path for path in maps if path.endswith("cross_attention")],
    }
    found = inspection.relevance(maps, gradients, **kinds)
    assert found.shape == (3, 5, 7)
    assert (found >= 0).all()
    assert (found.sum(axis=(1, 2)) > 0).all()
    pads = batch["encoder_token_ids"] == 0
    assert pads.any()
    assert (np.swapaxes(found, 1, 2)[pads] == 0).all()
    # The output at position 2 has no gradient with respect to later rows of the last layer.
    assert (gradients[kinds["decoder"][-1]][:, :, 3:] == 0).all()


def test_targets_and_layers_without_a_gradient_are_refused():
    model = keras_attn.models.EncoderTransformer.from_sizes(
        VOCABULARY_SIZE, 1, hidden_dim=14, num_heads=2, intermediate_dim=17, max_sequence_length=23
    )
    with pytest.raises(ValueError, match="`target` must be a function"):
        inspection.attention_gradients(model, token_ids(5, 3), target=1)
    model, x = hand_made([keras.layers.MultiHeadAttention(2, 3)]), np.ones((2, 5, 6), "float32")
    for target in (3, -4, [1], [1, 3], [[1, 2]], [0.5, 1.5], True, "1"):
        message = rf"`target` must be the index of a class .*shape \(2, 3\). Received: target={re.escape(repr(target))}"
        with pytest.raises(ValueError, match=message):
            inspection.attention_gradients(model, x, target=target)
    model = hand_made([DifferentialAttention(2, 3)])
    with pytest.raises(
        ValueError, match=r"(?s)gradient with respect to the attention scores is known for.*differential"
    ):
        inspection.attention_gradients(model, np.ones((2, 5, 6), "float32"), target=1)


@pytest.mark.extended
def test_swin_blocks_go_back_to_the_whole_image_and_a_vit_shows_its_class_token():
    images = np.random.default_rng(3).uniform(size=(2, 13, 10, 3)).astype("float32")
    swin = keras_attn.models.SwinTransformer.from_sizes(
        patch_size=2, hidden_dim=6, num_layers=(2, 1), num_heads=(2, 3), window_size=3
    )
    swin(images)
    with keras_attn.capture_attention(swin, dtype="float32") as maps:
        swin(images)
    layers = list(inspection.attention_layers(swin).values())
    assert len(maps) == len(layers) == 3
    assert layers[1].shift_size != (0, 0)
    for layer, scores, sizes in zip(layers, maps.values(), [(7, 5), (7, 5), (4, 3)], strict=True):
        whole = inspection.windows_in_place(scores, *sizes, layer.window_size, layer.shift_size)
        np.testing.assert_allclose(whole.sum(axis=-1), 1, rtol=1e-5)  # nothing is lost in the padding
    vit = keras_attn.models.VisionTransformer.from_sizes(
        image_size=(12, 8), patch_size=4, num_layers=2, hidden_dim=8, num_heads=2, intermediate_dim=17
    )
    maps, gradients = inspection.attention_gradients(vit, images[:, :12, :8], target=lambda y: y[:, 0, 3])
    assert [scores.shape for scores in maps.values()] == [(2, 2, 7, 7)] * 2
    of_class_token = inspection.relevance(maps, gradients)[:, 0, 1:]  # of the 3 x 2 patches
    assert of_class_token.shape == inspection.rollout(maps)[:, 0, 1:].shape == (2, 6)
    assert (of_class_token > 0).any(axis=-1).all()
