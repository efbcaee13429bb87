"""The tasks of encoders against the pipelines of transformers, with the weights of one BERT for each head."""

import json

import helpers_transformers  # noqa: F401 -- imports, before the fork
import numpy as np
import pytest
from helpers_encoder_tasks import LABELS, MAX_LENGTH, VOCABULARY_SIZE, D, word_tokenizer

import keras_attn
from keras_attn import huggingface, layers
from keras_attn.models import EncoderWithHead

torch = pytest.importorskip("torch", reason='needs torch: pip install "keras_attn[peers]"')
transformers = pytest.importorskip(
    "transformers", reason='needs transformers: pip install "keras_attn[peers]"'
)
tokenizers = pytest.importorskip("tokenizers", reason='needs tokenizers: pip install "keras_attn[peers]"')

pytestmark = pytest.mark.extended

TEXTS = ["Ada Lovelace lives in London.", "é 😀 Ada  é in LONDON", "the dog runs. where? in the dogs.", "b"]


def twin_of(kind, folder, **options):
    """Transformers' model of a kind, its tokenizer, and its body in our form."""
    config = transformers.BertConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=D,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=17,
        max_position_embeddings=MAX_LENGTH,
        **options,
    )
    twin = getattr(transformers, kind)(config).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in twin.named_parameters():
            weight.copy_(
                name.endswith("LayerNorm.weight") + 0.4 * torch.randn(weight.shape, generator=generator)
            )
    twin.save_pretrained(folder)
    description = {**word_tokenizer().description, "version": "1.0", "truncation": None, "padding": None}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(description)),
        clean_up_tokenization_spaces=False,
        **word_tokenizer().special_tokens,
    )
    return twin, tokenizer, huggingface.load_model(folder)


def with_weights(body, head, twin, names):
    """The model with the weights of the twin's head: {its name: our variable's path in the head}."""
    model = EncoderWithHead(body, head)
    arrays = {name: array.numpy() for name, array in twin.state_dict().items()}
    variables = {variable.path.rpartition(f"{head.name}/")[2]: variable for variable in head.weights}
    for name, path in names.items():
        variables[path].assign(arrays[name].T)
    return model


def pipeline(task, twin, tokenizer, **options):
    return transformers.pipeline(task, model=twin, tokenizer=tokenizer, device="cpu", **options)


def linear(theirs, ours):
    return {f"{theirs}.weight": f"{ours}/kernel", f"{theirs}.bias": f"{ours}/bias"}


@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification"])
def test_text_classification(problem, tmp_path):
    names = dict(enumerate(["good", "bad", "é"]))
    twin, tokenizer, body = twin_of(
        "BertForSequenceClassification", tmp_path, id2label=names, problem_type=problem
    )
    head = layers.ClassificationHead(3, intermediate_dim=D)
    weights = linear("bert.pooler.dense", "intermediate") | linear("classifier", "output")
    model = with_weights(body, head, twin, weights)
    multi_label = problem.startswith("multi")
    task = keras_attn.TextClassifier(model, word_tokenizer(), list(names.values()), multi_label)
    labels, scores = task(TEXTS, top_k=3, return_scores=True)
    expected = pipeline("text-classification", twin, tokenizer)(TEXTS, top_k=None)
    for row, of_text in enumerate(expected):
        assert labels[row] == [answer["label"] for answer in of_text]
        np.testing.assert_allclose(scores[row], [answer["score"] for answer in of_text], rtol=1e-4)


@pytest.mark.parametrize("aggregation", ["simple", "none"])
def test_token_classification(aggregation, tmp_path):
    twin, tokenizer, body = twin_of("BertForTokenClassification", tmp_path, id2label=dict(enumerate(LABELS)))
    head = layers.TokenClassificationHead(len(LABELS))
    model = with_weights(body, head, twin, linear("classifier", "output"))
    task = keras_attn.TokenClassifier(model, word_tokenizer(), LABELS, aggregation)
    expected = pipeline("token-classification", twin, tokenizer, aggregation_strategy=aggregation)(TEXTS)
    for spans, of_text in zip(task(TEXTS), expected, strict=True):
        name = "entity" if aggregation == "none" else "entity_group"
        assert [(span.label, span.start, span.end) for span in spans] == [
            (entity[name], entity["start"], entity["end"]) for entity in of_text
        ]
        scores = [entity["score"] for entity in of_text]
        np.testing.assert_allclose([span.score for span in spans], scores, rtol=1e-4)


def test_fill_mask(tmp_path):
    twin, tokenizer, body = twin_of("BertForMaskedLM", tmp_path)
    head = layers.MaskedLanguageModelHead(body.embedding.token)
    weights = linear("cls.predictions.transform.dense", "intermediate") | {
        "cls.predictions.transform.LayerNorm.weight": "norm/gamma",
        "cls.predictions.transform.LayerNorm.bias": "norm/beta",
        "cls.predictions.bias": "output_bias",
    }
    model = with_weights(body, head, twin, weights)
    task = keras_attn.FillMask(model, word_tokenizer(), top_k=3)
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
