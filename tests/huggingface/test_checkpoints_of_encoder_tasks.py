"""Tasks of encoders from checkpoints' folders against the pipelines of transformers."""

import json

import helpers_transformers  # noqa: F401 -- imports, before the fork
import numpy as np
import pytest
import tokenizers
import transformers
from helpers_checkpoints import randomized
from helpers_encoder_tasks import LABELS, MAX_LENGTH, VOCABULARY_SIZE, D, word_tokenizer

import keras_attn
from keras_attn.tasks import (
    FillMask,
    QuestionAnswerer,
    TextClassifier,
    TextEmbedder,
    TokenClassifier,
    load_task,
)

TEXTS = ["Ada Lovelace lives in London.", "é 😀 Ada  é in LONDON", "the dog runs. where? in the dogs.", "b"]


def config_of(architecture, **options):
    if architecture == "Bert":
        sizes = {"hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 17}
    else:
        sides = {"layers": 2, "attention_heads": 2, "ffn_dim": 17}
        sizes = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sides.items()}
        sizes |= {"d_model": D, "d_ff": 17, "d_kv": 5, "num_layers": 2, "num_heads": 3}
        end, pad = (word_tokenizer().token_id(token) for token in ("[SEP]", "[PAD]"))
        sizes |= {
            "eos_token_id": end,
            "pad_token_id": pad,
            "bos_token_id": end,
            "decoder_start_token_id": end,
        }
        of_t5 = {"d_model", "d_ff", "d_kv", "num_layers", "num_heads"}
        known = [name for name in sizes if (name in of_t5) == (architecture == "T5") or name.endswith("_id")]
        sizes = {name: sizes[name] for name in ("d_model", *known)}
    if architecture != "T5":
        sizes["max_position_embeddings"] = MAX_LENGTH
    return getattr(transformers, f"{architecture}Config")(vocab_size=VOCABULARY_SIZE, **sizes, **options)


def checkpoint(kind, folder, **options):
    """Transformers' model of a kind and its tokenizer, after both were saved in a folder."""
    config = config_of(kind.partition("For")[0].removesuffix("Model"), **options)
    twin = randomized(getattr(transformers, kind)(config), spread=0.4)
    description = {**word_tokenizer().description, "version": "1.0", "truncation": None, "padding": None}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(description)),
        clean_up_tokenization_spaces=False,
        **word_tokenizer().special_tokens,
    )
    twin.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return twin, tokenizer


def pipeline(task, twin, tokenizer, **options):
    return transformers.pipeline(task, model=twin, tokenizer=tokenizer, device="cpu", **options)


@pytest.mark.extended
@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification"])
def test_text_classification(problem, tmp_path):
    names = dict(enumerate(["good", "bad", "é"]))
    theirs = checkpoint("BertForSequenceClassification", tmp_path, id2label=names, problem_type=problem)
    task = keras_attn.load(tmp_path)
    assert isinstance(task, TextClassifier)
    assert task.multi_label == problem.startswith("multi")
    labels, scores = task(TEXTS, top_k=3, return_scores=True)
    for row, of_text in enumerate(pipeline("text-classification", *theirs)(TEXTS, top_k=None)):
        assert labels[row] == [answer["label"] for answer in of_text]
        np.testing.assert_allclose(scores[row], [answer["score"] for answer in of_text], rtol=1e-4)


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["Bart", "T5"])
def test_text_classification_by_a_model_that_reads_twice(kind, tmp_path):
    names = dict(enumerate(["good", "bad", "é"]))
    theirs = checkpoint(f"{kind}ForSequenceClassification", tmp_path, id2label=names)
    task = keras_attn.load(tmp_path)
    labels, scores = task(TEXTS, top_k=3, return_scores=True)
    for row, of_text in enumerate(pipeline("text-classification", *theirs)(TEXTS, top_k=None)):
        assert labels[row] == [answer["label"] for answer in of_text]
        np.testing.assert_allclose(scores[row], [answer["score"] for answer in of_text], rtol=1e-4)


@pytest.mark.extended
def test_regression_gives_the_number_itself(tmp_path):
    theirs = checkpoint("BertForSequenceClassification", tmp_path, num_labels=1, problem_type="regression")
    labels, scores = load_task(tmp_path)(TEXTS, return_scores=True)
    expected = pipeline("text-classification", *theirs)(TEXTS, function_to_apply="none")
    assert labels == ["LABEL_0"] * len(TEXTS)
    np.testing.assert_allclose(scores, [answer["score"] for answer in expected], rtol=1e-4)


@pytest.mark.extended
def test_token_classification(tmp_path):
    theirs = checkpoint("BertForTokenClassification", tmp_path, id2label=dict(enumerate(LABELS)))
    task = load_task(tmp_path)
    assert isinstance(task, TokenClassifier)
    for aggregation in ("simple", "none"):
        task = TokenClassifier(task.model, task.tokenizer, task.labels, aggregation)
        expected = pipeline("token-classification", *theirs, aggregation_strategy=aggregation)(TEXTS)
        for spans, of_text in zip(task(TEXTS), expected, strict=True):
            name = "entity" if aggregation == "none" else "entity_group"
            assert [(span.label, span.start, span.end) for span in spans] == [
                (entity[name], entity["start"], entity["end"]) for entity in of_text
            ]
            scores = [entity["score"] for entity in of_text]
            np.testing.assert_allclose([span.score for span in spans], scores, rtol=1e-4)


@pytest.mark.extended
def test_fill_mask(tmp_path):
    twin, tokenizer = checkpoint("BertForMaskedLM", tmp_path)
    task = load_task(tmp_path)
    assert isinstance(task, FillMask)
    task = FillMask(task.model, task.tokenizer, top_k=3)
    theirs = pipeline("fill-mask", twin, tokenizer)
    # Theirs also fills with ids that the tokenizer does not have.
    words = task.tokenizer.token_strings(range(task.tokenizer.vocabulary_size))
    for text in ("the [MASK] runs.", "Ada lives in [MASK]"):
        [fills] = task(text)
        expected = theirs(text, targets=words, top_k=3)
        assert [fill.token for fill in fills] == [
            task.tokenizer.decode([[answer["token"]]])[0] for answer in expected
        ]
        total = sum(answer["score"] for answer in theirs(text, targets=words, top_k=len(words)))
        np.testing.assert_allclose(
            [fill.score for fill in fills], [answer["score"] / total for answer in expected], rtol=1e-4
        )
        assert [fill.text for fill in fills] == [answer["sequence"] for answer in expected]


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["Bert", "Bart"])
def test_question_answering(kind, tmp_path):
    import torch

    twin, tokenizer = checkpoint(f"{kind}ForQuestionAnswering", tmp_path)
    task = load_task(tmp_path)
    assert isinstance(task, QuestionAnswerer)
    question, context = "where lives Ada?", "Ada lives in London."
    answer = task(question, context)
    # Their pipeline is gone in version 5: the best pair of a first and a last token of the context.
    wanted = {"return_offsets_mapping": True, "return_token_type_ids": kind == "Bert"}
    encoded = tokenizer(question, context, return_tensors="pt", **wanted)
    offsets = encoded.pop("offset_mapping")[0].tolist()
    assert len(offsets) <= MAX_LENGTH  # one window
    with torch.no_grad():
        found = twin(**encoded)
    is_context = [number == 1 for number in encoded.sequence_ids(0)]
    scores = {
        (i, j): float(found.start_logits[0, i] + found.end_logits[0, j])
        for i in range(len(offsets))
        for j in range(i, len(offsets))
        if is_context[i] and is_context[j]
    }
    first, last = max(scores, key=scores.get)
    assert (answer.start, answer.end) == (offsets[first][0], offsets[last][1])
    assert answer.text == context[answer.start : answer.end]


@pytest.mark.extended
def test_an_encoder_alone_gives_vectors(tmp_path):
    import torch

    twin, tokenizer = checkpoint("BertModel", tmp_path)
    task = load_task(tmp_path, normalize=False)
    assert isinstance(task, TextEmbedder)
    encoded = tokenizer(TEXTS, return_tensors="pt", padding=True)
    with torch.no_grad():
        sequence = twin(**encoded).last_hidden_state.double().numpy()
    mask = encoded["attention_mask"].numpy()[..., np.newaxis]
    expected = (sequence * mask).sum(1) / mask.sum(1)
    np.testing.assert_allclose(task(TEXTS), expected, atol=1e-5 * np.abs(expected).max())


def test_options_of_a_task_that_it_does_not_have(tmp_path):
    checkpoint("BertForMaskedLM", tmp_path)
    with pytest.raises(ValueError, match=r"A FillMask of a checkpoint has no such option: .*num_beams"):
        load_task(tmp_path, num_beams=3)
