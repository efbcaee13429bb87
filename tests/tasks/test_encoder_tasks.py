"""The tasks of encoders against their models called on one text at a time, with NumPy for the rest."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_encoder_tasks import (
    CONTEXT,
    LABELS,
    MAKERS,
    MAX_LENGTH,
    TEXTS,
    WORDS,
    answerer,
    classifier,
    embedder,
    encoder,
    fill_mask,
    tagger,
    with_random_weights,
    word_tokenizer,
)
from helpers_marks import CUTS_ARE_EXPECTED, slow_but
from helpers_models import assert_close

import keras_attn
from keras_attn import layers
from keras_attn.models import EncoderWithHead
from keras_attn.tasks import Answer, Span, load_task
from keras_attn.tasks.encoder_task import EncoderTask
from keras_attn.text import ByteTokenizer

pytestmark = CUTS_ARE_EXPECTED

MASKED = ["the [MASK] runs [MASK].", "", "[MASK]", "no mask", "the dog " * 11 + "[MASK]"]
QUESTIONS = ["Where lives Ada?", "", "the dog " * 20, "b?"]


@pytest.fixture(autouse=True)
def without_graphs(monkeypatch):
    """Most calls here are of a task that no other test calls, whose graph takes ten times as long to make as to run."""
    monkeypatch.setattr(EncoderTask, "graph_of", lambda task, key, function, specs: function)


@pytest.mark.extended
@pytest.mark.parametrize("make", MAKERS)
def test_graphs_give_the_same_answers(make, monkeypatch):
    task, texts = make(), ["the [MASK] runs", *TEXTS]
    expected = task.default_answers(texts)
    monkeypatch.undo()
    for answer, other in zip(task.default_answers(texts), expected):
        if isinstance(answer, str):
            assert answer == other
        else:
            assert_close(answer, other, 1e-6)
    assert len(task._graphs)


def one(task, text, pair=None):
    """The token ids of a text, cut, and what the model returns for it alone, float64."""
    pairs = None if pair is None else [pair]
    token_ids, types = task.tokenizer.preprocess([text], pairs, task.max_length)
    inputs = {"token_ids": token_ids.to_tensor(), "token_type_ids": types.to_tensor()}
    [output] = keras.ops.convert_to_numpy(task.model(inputs))
    return token_ids.to_list()[0], output.astype("float64")


def softmax(logits, axis=-1):
    powers = np.exp(logits - logits.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def as_text(text):
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def of_words(text):
    """The span in the text of each token that the tokenizer reads there, by Python's own strings."""
    _, starts, ends = word_tokenizer().tokenize_with_offsets([text])
    content = as_text(text).encode()
    return [
        tuple(len(content[:place].decode()) for place in pair)
        for pair in zip(starts.to_list()[0], ends.to_list()[0])
    ]


@pytest.mark.extended
@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_vectors_are_those_of_each_text_alone(pooling):
    task = embedder(pooling=pooling)
    vectors = task(TEXTS)
    assert (vectors.dtype, vectors.shape) == (np.float32, (len(TEXTS), 22))
    for text, vector in zip(TEXTS, vectors):
        sequence = one(task, text)[1]
        expected = sequence.mean(0) if pooling == "mean" else sequence[0]
        assert_close(vector, expected / np.linalg.norm(expected), 1e-6)
        assert_close(task(text), vector, 1e-6)
    assert task([]).shape == (0, 22)


@pytest.mark.extended
def test_similarity_is_the_cosine():
    task = embedder(normalize=False)
    vectors = task(TEXTS).astype("float64")
    assert not np.allclose(np.linalg.norm(vectors, axis=1), 1)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert_close(task.similarity(TEXTS, TEXTS[:2]), unit @ unit[:2].T)
    assert_close(task.similarity(TEXTS[:2], TEXTS[2:4], pairwise=True), (unit[:2] * unit[2:4]).sum(1))
    assert np.shape(task.similarity(TEXTS[0], TEXTS[1])) == ()
    with pytest.raises(ValueError, match="must be as many"):
        task.similarity(TEXTS[:2], TEXTS[:3], pairwise=True)


def test_a_head_may_give_the_vectors():
    model = with_random_weights(EncoderWithHead(encoder(), layers.Pooling("max")))
    task = keras_attn.TextEmbedder(model, word_tokenizer(), pooling=None, normalize=False)
    assert_close(task(TEXTS[0]), one(task, TEXTS[0])[1], 1e-6)
    with pytest.raises(ValueError, match="`pooling` must be None"):
        keras_attn.TextEmbedder(model, word_tokenizer())


@pytest.mark.parametrize("multi_label", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_labels_and_scores(multi_label):
    task = classifier(multi_label=multi_label)
    pairs = TEXTS[::-1]
    for given in (None, pairs):
        labels, scores = task(TEXTS, given, top_k=3, return_scores=True)
        given_labels = task(TEXTS, given)
        for row, text in enumerate(TEXTS):
            logits = one(task, text, given and given[row])[1]
            expected = 1 / (1 + np.exp(-logits)) if multi_label else softmax(logits)
            order = np.argsort(-expected)
            assert labels[row] == [task.labels[number] for number in order]
            assert_close(scores[row], expected[order], 1e-6)
            best = [task.labels[number] for number in order if expected[number] >= 0.5]
            assert given_labels[row] == (best if multi_label else labels[row][0])
    assert task(TEXTS[0]) == task(TEXTS)[0]
    assert classifier(labels=("only",)).activation == "sigmoid"
    with pytest.raises(ValueError, match="as many as their pairs"):
        task(TEXTS, pairs[:2])


def spans_of(task, text):
    """What transformers calls "simple": successive tokens with one tag, unless the later one begins a span."""
    ids, logits = one(task, text)
    scores = softmax(logits)[1 : len(ids) - 1]
    found = []
    for (start, end), of_token in zip(of_words(text), scores):
        label = LABELS[of_token.argmax()]
        place, _, tag = label.rpartition("-")
        if found and found[-1][0] == tag and place != "B":
            found[-1][1].append(of_token.max())
            found[-1][3] = end
        else:
            found.append([tag, [of_token.max()], start, end])
    return [
        Span(tag, np.mean(of_span), start, end, as_text(text)[start:end])
        for tag, of_span, start, end in found
        if tag != "O"
    ]


def test_spans_have_characters():
    task = tagger()
    answers = task(TEXTS)
    marked = task.default_answers(TEXTS)
    for text, answer, with_marks in zip(TEXTS, answers, marked):
        expected = spans_of(task, text)
        assert [span._replace(score=0) for span in answer] == [span._replace(score=0) for span in expected]
        np.testing.assert_allclose(
            [span.score for span in answer], [span.score for span in expected], rtol=1e-5
        )
        plain, end = "", 0
        for span in expected:
            plain += f"{as_text(text)[end : span.start]}[{span.text}]({span.label})"
            end = span.end
        assert with_marks == plain + as_text(text)[end:]
    assert any(len(answer) > 1 for answer in answers)
    assert [span[2:] for span in task(TEXTS[2])] == [span[2:] for span in answers[2]]


def test_spans_of_single_tokens():
    task = tagger(aggregation="none")
    [answer] = task([TEXTS[2]])
    ids, logits = one(task, TEXTS[2])
    labels = [LABELS[number] for number in logits[1 : len(ids) - 1].argmax(-1)]
    places = [place for place, label in zip(of_words(TEXTS[2]), labels) if label != "O"]
    assert [(span.start, span.end) for span in answer] == places
    assert [span.label for span in answer] == [label for label in labels if label != "O"]


def test_masks_are_filled():
    task = fill_mask()
    answers, filled = task(MASKED), task.filled(MASKED)
    assert [len(answer) for answer in answers] == [2, 0, 1, 0, 0]
    for text, answer, whole in zip(MASKED, answers, filled):
        ids, logits = one(task, text)
        places = [place for place, number in enumerate(ids) if number == 4]
        probabilities = softmax(logits[:, : task.tokenizer.vocabulary_size])
        best = [probabilities[place].argmax() if place in places else ids[place] for place in range(len(ids))]
        [expected] = task.tokenizer.decode([best])
        assert whole == expected
        for place, fills in zip(places, answer):
            order = np.argsort(-probabilities[place])[:3]
            np.testing.assert_allclose([fill.score for fill in fills], probabilities[place][order], rtol=1e-5)
            assert [fill.token for fill in fills] == task.tokenizer.decode([[number] for number in order])
            changed = [[*best[:place], number, *best[place + 1 :]] for number in order]
            assert [fill.text for fill in fills] == task.tokenizer.decode(changed)


def best_in(task, ids, logits):
    """(score, first, last) of the best answer among the tokens between the two last [SEP]."""
    first_end = ids.index(3)
    context = range(first_end + 1, len(ids) - 1)
    starts, ends = (softmax(logits[context, side]) for side in (0, 1))
    scores = np.triu(np.outer(starts, ends))
    scores -= np.triu(scores, task.max_answer_length)
    first, last = np.unravel_index(scores.argmax(), scores.shape)
    return scores[first, last], first, last


@pytest.mark.extended
def test_answers_of_a_context_that_fits():
    task = answerer()
    for question in ("Where lives Ada?", "", "b?"):
        score, first, last = best_in(task, *one(task, question, CONTEXT))
        places = of_words(CONTEXT)
        start, end = places[first][0], places[last][1]
        answer = task(question, CONTEXT)
        assert answer._replace(score=0) == Answer(CONTEXT[start:end], 0, start, end)
        assert answer.score == pytest.approx(score, rel=1e-5)


@pytest.mark.extended
def test_long_contexts_are_read_in_windows():
    task = answerer(max_length=15, stride=2)
    context = "é 😀 " + CONTEXT * 2
    [question] = task.tokenizer.encode(["Where lives Ada?"])
    [ids], size = task.tokenizer.encode([context]), 15 - 3 - 4
    best = (0.0, 0, 0)
    for begin in range(0, len(ids) - 2, size - 2):
        window = [2, *question, 3, *ids[begin : begin + size], 3]
        types = [0] * 6 + [1] * (len(window) - 6)
        inputs = {"token_ids": np.array([window]), "token_type_ids": np.array([types])}
        logits = keras.ops.convert_to_numpy(task.model(inputs))[0].astype("float64")
        score, first, last = best_in(task, window, logits)
        best = max(best, (score, begin + first, begin + last))
    places = of_words(context)
    answer = task("Where lives Ada?", context)
    start, end = places[best[1]][0], places[best[2]][1]
    assert answer._replace(score=0) == Answer(context[start:end], 0, start, end)
    assert answer.score == pytest.approx(best[0], rel=1e-5)
    several = task(QUESTIONS, [context, CONTEXT, "", "b"])
    assert several[0]._replace(score=0) == answer._replace(score=0)
    assert several[2] == Answer("", 0.0, 0, 0)
    assert task([], []) == []


@pytest.mark.extended
def test_texts_of_which_nothing_is_left_and_batches_of_none():
    nothing = ["\ufffd", "", "\x01"]  # BERT drops these characters
    assert tagger()(nothing) == [[], [], []]
    assert answerer()(["Where?"] * 3, nothing) == [Answer("", 0.0, 0, 0)] * 3
    strings = tf.constant([], tf.string)
    assert not tagger().answers(strings)["outputs"].shape[0]
    assert not answerer().answers(strings, strings)["outputs"].shape[0]


@pytest.mark.extended
@pytest.mark.parametrize("make", slow_but([tagger, answerer], MAKERS))
def test_tasks_are_saved_and_loaded(make, tmp_path):
    task = make()
    task.save(tmp_path / "saved")
    task.save(tmp_path / "saved")  # replaces it
    again = load_task(tmp_path / "saved")
    assert type(again) is type(task)
    texts = ["the [MASK] runs"] if make is fill_mask else TEXTS[:2]
    for one_answer, other in zip(task.default_answers(texts), again.default_answers(texts)):
        np.testing.assert_array_equal(one_answer, other)
    options = {name: getattr(task, name) for name in (*task.saved_options, *task.saved_lists)}
    assert {name: getattr(again, name) for name in options} == options
    [config_file] = [path for path in (tmp_path / "saved").glob("*.json") if path.stem != "tokenizer"]
    config = json.loads(config_file.read_text())
    config_file.write_text(json.dumps({**config, "options": {**config["options"], "max_length": [1]}}))
    with pytest.raises(ValueError, match="something else than a"):
        load_task(tmp_path / "saved")


def test_other_tokenizers_get_their_special_tokens():
    model, tokenizer = with_random_weights(encoder(259, token_types=0)), ByteTokenizer()
    task = keras_attn.TextEmbedder(model, tokenizer, pooling="last")
    ids = np.array([[tokenizer.start_token_id, *tokenizer.encode(["dog"])[0], tokenizer.end_token_id]])
    last = keras.ops.convert_to_numpy(task.model(ids))[0, -1].astype("float64")
    assert_close(task("dog"), last / np.linalg.norm(last), 1e-6)


def test_a_table_of_one_token_type_is_read_for_both_texts():
    model = EncoderWithHead(encoder(token_types=1), layers.ClassificationHead(3))
    task = keras_attn.TextClassifier(with_random_weights(model), word_tokenizer(), ["good", "bad", "é"])
    ids = [WORDS.index(word) for word in ["[CLS]", "the", "dog", "[SEP]", "runs", "[SEP]"]]
    logits = keras.ops.convert_to_numpy(task.model(np.array([ids])))[0].astype("float64")
    labels, scores = task("the dog", "runs", top_k=3, return_scores=True)
    assert labels == [task.labels[number] for number in np.argsort(-logits)]
    assert_close(scores, np.sort(softmax(logits))[::-1], 1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: embedder(pooling="cls"), "`pooling` must be one of"),
        (lambda: embedder(max_length=2), "`max_length` must have room for 3 special tokens"),
        (lambda: embedder(max_length=MAX_LENGTH + 1), "at most the model's max_sequence_length=23"),
        (lambda: classifier(activation="relu"), "`activation` must be one of"),
        (
            lambda: keras_attn.TextClassifier(tagger().model, word_tokenizer(), ["a", "b"]),
            "must be 5 different",
        ),
        (lambda: keras_attn.TextClassifier(tagger().model, word_tokenizer(), "abcde"), "must be a list"),
        (lambda: tagger(aggregation="first"), "`aggregation` must be one of"),
        (lambda: fill_mask(mask_token="<mask>"), "must read `mask_token` as one token"),
        (lambda: fill_mask(top_k=99), "`top_k` must be at most"),
        (lambda: answerer(stride=20), r"`stride` must be in \[0, 9\]"),
        (lambda: keras_attn.QuestionAnswerer(tagger().model, word_tokenizer()), "two logits"),
        (
            lambda: keras_attn.TextClassifier(encoder(), word_tokenizer(), ["a"]),
            r"must be a keras_attn\.models\.EncoderWithHead\. Received: EncoderTransformer\. .*WithHead\(encoder, head\)",
        ),
        (
            lambda: keras_attn.ImageClassifier(encoder, None, ["a"]),
            r"must be a keras\.Model\. Received: function\.$",
        ),
        (lambda: keras_attn.TextEmbedder(encoder(), ByteTokenizer()), "no more ids than the model"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
