"""DecoderTransformer against transformers' GPT-2 of the same weights, against itself in steps, and its `generate` against
the search written out over the model's own forward pass."""

import functools

import keras
import numpy as np
import pytest
from helpers_generation import answer, beam_search_by_hand, compilers, padded, quickest
from helpers_models import END, PAD, START, assert_close, randomize
from keras import ops

from keras_attn.generation import DecodingOptions
from keras_attn.models import DecoderTransformer

B, P, V, MAX_LENGTH = 3, 5, 11, 7
VARIANTS = {
    "learned": {},
    "rotary_untied": {"position_encoding": "rotary", "tie_output": False, "normalization": "rms_norm"},
    "sinusoidal_post_norm": {
        "position_encoding": "sinusoidal",
        "normalize_first": False,
        "scale_embedding": True,
        "gated": True,
    },
}


@functools.cache
def make_model(variant="learned", seed=5, **options):
    sizes = {"num_layers": 2, "hidden_dim": 20, "num_heads": 2, "intermediate_dim": 17}
    sizes |= {"max_sequence_length": 23, **VARIANTS[variant], **options}
    return randomize(DecoderTransformer.from_sizes(V, **sizes), seed)


def prompts():
    """Prompts of 5, 1 and 3 tokens."""
    ids = np.random.default_rng(3).integers(4, V, (B, P)).astype("int32")
    ids[:, 0] = START
    ids[1, 1:] = ids[2, 3:] = PAD
    return ids


def tokens_of(row):
    return tuple(int(token) for token in row if token != PAD)


def run(model, token_ids):
    return ops.convert_to_numpy(model(ops.convert_to_tensor(token_ids, "int32")))


@functools.cache
def search(model, compiler=None, **options):
    """A function of prompts: `model.generate`, compiled once for each size of prompts."""
    function = compilers()[compiler or quickest()](lambda ids: model.generate(ids, END, **options))

    def generate(prompt):
        found = function(ops.convert_to_tensor(prompt, "int32"))
        if isinstance(found, tuple):
            return tuple(ops.convert_to_numpy(x) for x in found)
        return ops.convert_to_numpy(found)

    return generate


def generate(model, prompt, **options):
    """For a search that is made once: `search` without a place among those that are kept."""
    return search.__wrapped__(model, **options)(prompt)


@functools.cache
def forward(model):
    return compilers()[quickest()](model)


def log_probabilities(model, prompt, prefix):
    """After the tokens of a prompt and those of a prefix, in one pass of a fixed length."""
    tokens = (*tokens_of(prompt), *prefix)
    token_ids = np.full((1, P + MAX_LENGTH), PAD, "int32")
    token_ids[0, : len(tokens)] = tokens
    logits = ops.convert_to_numpy(forward(model)(ops.convert_to_tensor(token_ids)))
    logits = logits[0, len(tokens) - 1].astype("float64")
    found = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    found[PAD] = -1e30  # never chosen
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", VARIANTS)
def test_later_tokens_and_pads_change_nothing(variant):
    model, ids = make_model(variant), prompts()
    logits = run(model, ids)
    changed = ids.copy()
    changed[0, 3] = 4 + (changed[0, 3] - 3) % (V - 4)
    changed_logits = run(model, changed)
    assert_close(changed_logits[0, :3], logits[0, :3], 0)
    assert np.abs(changed_logits[0, 3:] - logits[0, 3:]).max() > 1e-2
    longer = run(model, np.pad(ids, ((0, 0), (0, 3))))
    for row, row_ids in enumerate(ids):
        length = len(tokens_of(row_ids))
        assert_close(longer[row, :length], logits[row, :length])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_call_reads_left_padded_rows_as_generate_does(variant):
    """Positions count the real tokens, wherever the pads stand: a score is that of a forward pass over the padded rows."""
    model, ids = make_model(variant), prompts()
    rows = [[PAD, *ids[0]], [*[PAD] * 4, START, 9]]
    if variant != "rotary_untied":  # distances count the pads between tokens
        rows += [[START, PAD, 5, 6, PAD, 7], [PAD, *ids[2][:3], PAD, PAD]]
    rows = np.array(rows, "int32")
    alone = [run(model, np.array([tokens_of(row)], "int32"))[0] for row in rows]
    for row_logits, row, expected in zip(run(model, rows), rows, alone):
        assert_close(row_logits[row != PAD], expected)
    found, scores = generate(model, rows, num_return_sequences=1, length_penalty=0.0, max_length=MAX_LENGTH)
    logits = run(model, np.concatenate([rows, found[:, 0]], axis=1)).astype("float64")
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for row, answered, score, of_row in zip(rows, found[:, 0], scores[:, 0], log_probs):
        before = np.flatnonzero(row != PAD)[-1]
        places = [before, *range(len(row), len(row) + len(answered) - 1)]
        length = int((answered != PAD).sum())
        assert_close(sum(of_row[place, token] for place, token in zip(places[:length], answered)), score)


@pytest.mark.extended
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow's graphs can raise")
def test_a_prompt_outside_the_vocabulary_or_past_the_positions_stops_a_graph():
    import tensorflow as tf

    model, ids = make_model(), prompts()
    spec = tf.TensorSpec([None, None], "int32")
    forward = tf.function(model, input_signature=[spec], autograph=False)
    answers = tf.function(
        lambda ids: model.generate(ids, END, max_length=2),
        input_signature=[tf.TensorSpec([None, P], "int32")],
    )
    assert_close(forward(ids).numpy(), run(model, ids))
    np.testing.assert_array_equal(answers(ids), generate(model, ids, max_length=2))
    ids[1, 2] = 4
    for place in (1, 4):  # a token that is read before the loop, and the one that its first step reads
        wrong = ids.copy()
        wrong[0, place] = V
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"Token ids must lie in \[0, {V}\)"):
            answers(wrong)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"no longer than `max_sequence_length`"):
        forward(np.full((2, 24), 5, "int32"))
    given = tf.function(lambda positions: model({"token_ids": ids, "positions": positions}), autograph=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Positions must lie in .* \[-1\] \[to\] \[3\]"):
        given(tf.constant(np.arange(P) - 1))


@pytest.mark.parametrize("variant", ["learned", "rotary_untied"])
def test_steps_and_chunks_equal_one_pass(variant):
    model = make_model(variant)
    ids = np.random.default_rng(1).integers(4, V, (2, 7)).astype("int32")
    expected = run(model, ids)
    for ends in ([7], [1, 2, 5, 7]):
        cache, start = model.empty_cache(2, 7), 0
        for end in ends:
            logits, cache = model.call_with_cache(ops.convert_to_tensor(ids[:, start:end]), cache, start)
            assert_close(ops.convert_to_numpy(logits), expected[:, start:end])
            start = end


# The tests of one variant share its compiled search.
NUM_BEAMS = {"learned": 3, "rotary_untied": 3, "sinusoidal_post_norm": 2}


def n_best(variant, compiler=None):
    num_beams = NUM_BEAMS[variant]
    options = {"num_beams": num_beams, "num_return_sequences": num_beams, "max_length": MAX_LENGTH}
    return search(make_model(variant), compiler or quickest(), **options)


@pytest.mark.extended
def test_generate_is_the_search_written_out():
    variant = "learned"
    model, ids = make_model(variant), prompts()
    token_ids, scores = n_best(variant)(ids)
    for row, row_ids, row_scores in zip(ids, token_ids, scores):
        by_hand = beam_search_by_hand(
            functools.partial(log_probabilities, model, row), MAX_LENGTH, NUM_BEAMS[variant]
        )
        expected_ids, expected_scores = padded(by_hand, MAX_LENGTH, PAD)
        np.testing.assert_array_equal(row_ids, expected_ids)
        np.testing.assert_allclose(row_scores, expected_scores, atol=1e-5)


@pytest.mark.parametrize(("variant", "compiler"), [("learned", quickest()), ("rotary_untied", quickest())])
def test_the_side_of_the_pads_and_batch_mates_change_nothing(variant, compiler):
    ids, generate = prompts(), n_best(variant, compiler)
    token_ids, scores = generate(ids)
    size = P + 2 if variant == "learned" else P  # another size is another trace
    left = np.stack([np.pad(tokens_of(row), (size - len(tokens_of(row)), 0)) for row in ids])
    left_ids, left_scores = generate(left)
    np.testing.assert_array_equal(left_ids, token_ids)
    np.testing.assert_allclose(left_scores, scores, atol=1e-5)
    for row, row_ids in enumerate(ids):
        # Its like alone beside it; the first row has no pads.
        same_ids, same_scores = generate(np.stack([row_ids] * B))
        np.testing.assert_array_equal(same_ids, token_ids[[row] * B])
        np.testing.assert_allclose(same_scores, scores[[row] * B], atol=1e-5)


@pytest.mark.extended
def test_options_see_the_prompt():
    """By hand, the prompt is part of the prefix, without its START."""
    model, ids = make_model("rotary_untied"), prompts()
    given = {"no_repeat_ngram_size": 1, "repetition_penalty": 1.3}
    token_ids, scores = generate(
        model,
        ids,
        num_beams=2,
        num_return_sequences=2,
        max_length=MAX_LENGTH,
        options=DecodingOptions(**given),
    )
    for row, row_ids, row_scores in zip(ids, token_ids, scores):
        before = tokens_of(row)

        def after(prefix, before=before, row=row):
            log_probs = log_probabilities(model, row, prefix)
            for token in {*before} - {*prefix}:
                log_probs[token] = -np.inf
            return log_probs

        by_hand = beam_search_by_hand(after, MAX_LENGTH, 2, **given)
        expected_ids, expected_scores = padded(by_hand, MAX_LENGTH, PAD)
        np.testing.assert_array_equal(row_ids[: len(by_hand)], expected_ids)
        np.testing.assert_allclose(row_scores[: len(by_hand)], expected_scores, atol=1e-5)


@pytest.mark.extended
def test_the_answer_may_be_longer_than_the_first_segment_of_the_cache():
    """The best tokens of one pass over a prompt and its answer are that answer."""
    model, lengths = make_model(seed=6, num_layers=1, max_sequence_length=61), set()
    for row, tokens in zip(prompts(), generate(model, prompts(), max_length=37)):
        tokens = answer(tokens[tokens != PAD])
        logits = run(model, [[*tokens_of(row), *tokens[:-1]]])[0, len(tokens_of(row)) - 1 :]
        np.testing.assert_array_equal(1 + logits[:, 1:].argmax(-1), tokens)  # a pad is never chosen
        lengths.add(len(tokens))
    assert max(lengths) > 32


def test_the_default_length_is_what_the_model_has_room_for():
    assert make_model(num_layers=1, max_sequence_length=P + 3).generate(prompts(), END).shape == (B, 3)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        (np.zeros((2, 0)), {}, "A prompt must have a token"),
        (np.array([[2, 4], [0, 0]]), {}, "only pads in row 1"),
        (np.ones((1, 9)), {"max_length": 15}, "9 tokens, max_length=15, max_sequence_length=23"),
        (np.ones((1, 2)), {"num_return_sequences": 2}, "num_return_sequences=2, num_beams=1"),
        (
            np.ones((1, 2)),
            {"options": DecodingOptions(coverage_penalty=0.1)},
            "`coverage_penalty` needs source tokens",
        ),
    ],
    ids=str,
)
def test_wrong_prompts_and_options(prompt, options, message):
    with pytest.raises(ValueError, match=message):
        make_model().generate(prompt, END, **options)


@pytest.mark.extended
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow traces unknown lengths")
def test_a_graph_must_know_the_length_of_its_prompts():
    import tensorflow as tf

    graph = tf.function(lambda ids: make_model().generate(ids, END), [tf.TensorSpec([None, None], "int32")])
    with pytest.raises(ValueError, match="length of the prompt must be known when a graph is traced"):
        graph.get_concrete_function()


def test_wrong_inputs():
    with pytest.raises(ValueError, match=r"`inputs` must be a dict of \[\'token_ids\'\], and may have"):
        make_model()({"tokens": np.ones((1, 2))})
