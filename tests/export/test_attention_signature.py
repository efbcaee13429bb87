"""The signature `attention` of exports, answered by TensorFlow's C library in a process of its own, against each text alone."""

import base64

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_encoder_tasks import WORDS, answerer, classifier, embedder, encoder, word_tokenizer
from helpers_explorer import ExplorerParser
from helpers_images import patch_classifier
from helpers_marks import CUTS_ARE_EXPECTED, slow_but
from helpers_seed import set_seed
from helpers_text_generators import byte_generator
from helpers_translators import INVALID_UTF8, SENTENCES, byte_translator, serving, subword_translator

import keras_attn
from keras_attn.export import run_saved_model, verify_saved_model
from keras_attn.generation import DecodingOptions
from keras_attn.inspection import capture_attention
from keras_attn.layers import EncoderBlock
from keras_attn.models import EncoderWithHead, Seq2SeqReader
from keras_attn.plots import explore_answer
from keras_attn.tasks import ImagePreprocessing, Languages, SourceForm, Translator
from keras_attn.tasks.attention_maps import ATTENTION_LENGTH, AttentionFunction
from keras_attn.tasks.search_functions import GeneratorFunctions, TranslatorFunctions
from keras_attn.tasks.text_classifier import TextClassifierFunctions
from keras_attn.tasks.text_embedder import EmbedderFunctions
from keras_attn.tasks.text_forms import LANGUAGE
from keras_attn.text import ByteTokenizer

pytestmark = CUTS_ARE_EXPECTED

LONG = "word " * 300
TOLERANCE = 2e-5


def captured(model, inputs):
    """The scores (N, T, S) of the layers of one text by their paths, and what the model returns."""
    with capture_attention(model, dtype="float32") as maps:
        outputs = model(inputs)
    return {path: scores[0] for path, scores in maps.items()}, outputs


def assert_padded(found, expected):
    """An output of a batch is that of a text alone, and 0 past its end."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.ndim == expected.ndim
    inside = tuple(map(slice, expected.shape))
    np.testing.assert_allclose(found[inside], expected, atol=TOLERANCE)
    rest = found.copy()
    rest[inside] = 0
    assert not rest.any()


def without_end(tokens):
    return [token for number, token in enumerate(tokens) if any(tokens[number:])]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    translator = subword_translator()
    folder = tmp_path_factory.mktemp("attention") / "model"
    return translator, translator.export(folder, SENTENCES[:2], signatures=[], attention=True)


@pytest.fixture(scope="module")
def ask(exported):
    """Asks for the attention for texts, and for translations that are given."""
    with serving(exported[1]) as answer:

        def ask(texts, given=None):
            inputs = {"inputs": list(texts), "given_targets": given or [""] * len(texts)}
            return answer({"signature": "attention", "inputs": inputs})[0]

        yield ask


def check_translation(translator, answer, row, text, target_ids):
    """Whether a row is what the model does where it reads a text and writes ids: one forward pass, without a cache."""
    source, target = translator.source_tokenizer, translator.target_tokenizer
    longest = translator.model.max_sequence_length
    source_ids = [*source.encode([text])[0][: longest - 1], source.end_token_id]
    before = [translator.start_token_id, *target_ids[:-1]]
    inputs = {"encoder_token_ids": np.array([source_ids]), "decoder_token_ids": np.array([before])}
    scores, logits = captured(translator.model, inputs)
    parts = {"encoder": ("encoder", "self"), "decoder": ("decoder", "self"), "cross": ("decoder", "cross")}
    for kind, parts_of_path in parts.items():
        of_kind = {path: scores[path] for path in scores if all(part in path for part in parts_of_path)}
        assert answer[f"{kind}_layers"][row] == list(of_kind)
        assert_padded(answer[f"{kind}_attention"][row], list(of_kind.values()))
    assert without_end(answer["encoder_tokens"][row]) == source.token_strings(source_ids)
    assert without_end(answer["decoder_tokens"][row]) == target.token_strings(before)
    assert without_end(answer["target_tokens"][row]) == target.token_strings(target_ids)
    probabilities = tf.nn.softmax(logits[0]).numpy()
    assert_padded(answer["token_scores"][row], np.log(probabilities[np.arange(len(target_ids)), target_ids]))
    assert_padded(answer["next_probabilities"][row], -np.sort(-probabilities)[:, :5])
    names = np.array(target.token_strings(range(target.vocabulary_size)))
    best = names[np.argsort(-probabilities, kind="stable")[:, :5]]
    assert answer["next_tokens"][row][: len(target_ids)] == best.tolist()
    assert not any(token for step in answer["next_tokens"][row][len(target_ids) :] for token in step)


@pytest.mark.extended
def test_a_batch_has_the_attention_of_each_text_alone(exported, ask):
    translator, _ = exported
    invalid = {"b64": base64.b64encode(INVALID_UTF8).decode()}
    texts = [SENTENCES[0], "", LONG, "a", invalid]
    answer = ask(texts)
    for row, text in enumerate([*texts[:4], INVALID_UTF8.decode("utf-8", "replace")]):
        if text:
            _, attention_map = translator(text, return_attention_scores=True)
            # The translator's own map comes by another way: its scores are returned, not watched.
            assert_padded(answer["cross_attention"][row], attention_map.attention_scores)
            names = translator.target_tokenizer.token_strings(
                range(translator.target_tokenizer.vocabulary_size)
            )
            target_ids = [names.index(token) for token in attention_map.target_tokens]
            check_translation(translator, answer, row, text, target_ids)
    assert answer["outputs"] == translator([*texts[:4], INVALID_UTF8])
    found = [set(status.split(",")) - {"unfinished"} for status in answer["status"]]
    assert found == [found[0] & {"ok"}, {"ok"}, {"source_truncated"}, found[3] & {"ok"}, {"source_repaired"}]
    # An empty text is END alone, and nothing is written.
    assert without_end(answer["encoder_tokens"][1]) == ["</s>"]
    assert_padded(answer["encoder_attention"][1], np.ones((1, 3, 1, 1)))
    for name in ("decoder_attention", "cross_attention", "next_probabilities", "token_scores"):
        assert not np.any(answer[name][1])
    assert not any(answer["decoder_tokens"][1] + answer["target_tokens"][1])


@pytest.mark.extended
def test_given_translations_are_looked_at_beside_found_ones(exported, ask):
    translator, _ = exported
    tokenizer, longest = translator.target_tokenizer, translator.model.max_sequence_length
    given = ["ein Hund", "", LONG, "</s>"]
    answer = ask(SENTENCES[:4], given)
    for row in (0, 2, 3):
        ids = [*tokenizer.encode([given[row]])[0][: longest - 1], tokenizer.end_token_id]
        check_translation(translator, answer, row, SENTENCES[row], ids)
    [alone] = [ask([SENTENCES[1]])]
    for name in ("encoder", "decoder", "cross"):
        assert_padded(answer[f"{name}_attention"][1], alone[f"{name}_attention"][0])
    assert answer["status"][2] == "target_truncated"
    assert answer["outputs"][0] == "ein Hund"
    assert answer["outputs"][1] == translator(SENTENCES[1])


@pytest.mark.extended
def test_an_empty_batch_has_an_answer(ask):
    assert set(map(len, ask([]).values())) == {0}


@pytest.mark.extended
def test_the_page_of_an_answer_shows_the_same_as_that_of_the_task(exported, ask):
    translator, _ = exported
    text = "the dog"
    answer = {name: value[1] for name, value in ask([SENTENCES[0], text]).items()}
    page, expected = (
        ExplorerParser(explorer.html)
        for explorer in (explore_answer(answer, title=text), translator.show(text))
    )
    for key in ("title", "image", "models"):
        assert page.data[key] == expected.data[key]
    for group, of_task in zip(page.data["groups"], expected.data["groups"], strict=True):
        names = ("kind", "queries", "keys", "paths", "isSelf")
        assert [group[name] for name in names] == [of_task[name] for name in names]
    for place in ("0.0.0", "0.1.0", "0.1.1", "0.2.0", "0.2.1"):
        for head in range(3):
            codes = page.codes(place, head).astype(int) - expected.codes(place, head)
            assert np.abs(codes).max() <= 1  # `show` keeps float16
    for step, of_task in zip(page.data["steps"], expected.data["steps"], strict=True):
        assert dict(map(tuple, step)) == pytest.approx(dict(map(tuple, of_task)), rel=1e-3)


@pytest.mark.extended
@pytest.mark.slow  # three processes load the export
def test_verify_compares_the_attention_with_that_of_the_task(exported):
    translator, version = exported
    texts = [SENTENCES[0], "", LONG]
    checks = verify_saved_model(version, texts, translator.default_answers, translator.attention_answers)
    assert checks[-1].name == "answers of attention"
    assert not any(check.problems for check in checks)

    def other_answers(texts):
        inputs, answers, is_rounded = translator.attention_answers(texts)
        assert not is_rounded
        answers[1]["decoder_attention"] = answers[1]["decoder_attention"] + 1e-3
        answers[0]["encoder_tokens"] = answers[0]["encoder_tokens"][:-1]
        return inputs, [{**answers[0], "more": np.zeros(3)}, answers[1]], is_rounded

    *_, check = verify_saved_model(version, texts, translator.default_answers, other_answers)
    assert len(check.problems) == 3
    assert "`encoder_tokens` of `attention` for inputs='a dog" in check.problems[0]
    assert check.problems[0].endswith("holds something past the end of the text.")
    assert check.problems[1] == "`attention` has no output `more`."
    assert "differs by 0.001 from Python's" in check.problems[2]


@pytest.mark.extended
@pytest.mark.slow  # three processes load the export
def test_verify_knows_that_bfloat16_rounds(tmp_path):
    set_seed(3)
    model = keras_attn.models.Seq2SeqTransformer.from_sizes(
        259,
        1,
        1,
        hidden_dim=20,
        num_heads=2,
        intermediate_dim=23,
        max_sequence_length=37,
        dtype="mixed_bfloat16",
    )
    for weight in model.trainable_weights:
        if "query/kernel" in weight.path:
            weight.assign(16 * weight)  # logits whose rounding a softmax shows
    tokenizer = ByteTokenizer()
    translator = keras_attn.Translator(model, tokenizer, tokenizer, num_beams=1, max_length=11)
    version = translator.export(tmp_path / "model", signatures=[], attention=True)
    texts = [*SENTENCES[:2], "a" * 30]
    assert translator.attention_answers(texts)[2]
    checks = verify_saved_model(version, texts, translator.default_answers, translator.attention_answers)
    assert checks[-1].name == "answers of attention"
    assert not any(check.problems for check in checks)


def recurrent_translator():
    tokenizer = ByteTokenizer()
    model = keras_attn.models.RNNSeq2Seq(tokenizer.vocabulary_size, hidden_dim=8, max_sequence_length=13)
    return keras_attn.Translator(model, tokenizer, tokenizer, num_beams=2, max_length=4)


def of_cut_images():
    """2 x 3 patches, which do not read the last rows and columns."""
    body = keras_attn.models.VisionTransformer.from_sizes(
        image_size=(17, 23), patch_size=7, num_layers=1, hidden_dim=8, num_heads=2, intermediate_dim=9
    )
    model = EncoderWithHead(body, keras_attn.layers.ImageClassificationHead(2))
    return keras_attn.ImageClassifier(model, ImagePreprocessing((17, 23), std=0.3), ["a", "b"])


def reader_of_two_sides():
    tokenizer = word_tokenizer()
    seq2seq = keras_attn.models.Seq2SeqTransformer.from_sizes(
        tokenizer.vocabulary_size, 2, 1, hidden_dim=8, num_heads=2, intermediate_dim=9, max_sequence_length=17
    )
    model = EncoderWithHead(
        Seq2SeqReader(seq2seq), keras_attn.layers.ClassificationHead(2, intermediate_dim=8)
    )
    return keras_attn.TextClassifier(model, tokenizer, ["a", "b"])


@pytest.mark.extended
@pytest.mark.parametrize(
    ("make", "outputs"),
    [
        (recurrent_translator, {"cross", "encoder_tokens", "decoder_tokens"}),
        (byte_generator, {"decoder"}),
        (embedder, {"encoder"}),
        pytest.param(answerer, {"encoder"}, marks=pytest.mark.slow),
        pytest.param(reader_of_two_sides, {"encoder", "decoder", "cross"}, marks=pytest.mark.slow),
        pytest.param(patch_classifier, {"encoder", "grid", "image"}, marks=pytest.mark.slow),
        pytest.param(of_cut_images, {"encoder", "grid", "image"}, marks=pytest.mark.slow),
    ],
)
def test_every_task_gives_the_attention_of_its_model(make, outputs, tmp_path):
    task = make()
    version = task.export(tmp_path / "model", signatures=["attention"])
    texts = [text for text in task.verification_inputs() if isinstance(text, str | bytes)]
    inputs, answers, _ = task.attention_answers(texts)
    as_json = {
        name: [
            {"b64": base64.b64encode(text).decode()} if isinstance(text, bytes) else text for text in column
        ]
        for name, column in inputs.items()
    }
    [answer] = run_saved_model(version, [{"signature": "attention", "inputs": as_json}])
    assert len(answers) >= 2
    for row, expected in enumerate(answers):
        assert {name.removesuffix("_attention").removesuffix("_layers") for name in expected} >= outputs
        for name, value in expected.items():
            found = answer["outputs"][name][row]
            if value.dtype.kind == "U":
                assert without_end(found) == value.tolist()
            else:
                assert_padded(found, value)
    first = {name: value[0] for name, value in answer["outputs"].items()}
    page = ExplorerParser(explore_answer(first).html)
    assert {group["kind"] for group in page.data["groups"]} == (
        {""} if "grid" in outputs else {*outputs} & {"encoder", "decoder", "cross"}
    )


@pytest.mark.parametrize("is_start", slow_but([False], [False, True]))
def test_languages_are_those_of_each_row(is_start):
    names = {"en": 100, "de": 101}
    end = ByteTokenizer().end_token_id
    translator = byte_translator().replaced(
        languages=Languages(names, "en", "de", is_start),
        source_form=SourceForm(before=(LANGUAGE,), after=(end,)),
        **(
            {"start_token_id": names["de"]}
            if is_start
            else {"options": DecodingOptions(first_token_id=names["de"])}
        ),
    )
    rows = [("en", "de", "", ""), ("de", "en", "de", "en"), ("en", "de", "xx", "xx")]
    languages = [tf.constant(column) for column in zip(*(row[2:] for row in rows))]
    signatures = TranslatorFunctions(translator, ["attention"])
    assert [spec.name for spec in signatures.all()["attention"][1]][2:] == [
        "source_language",
        "target_language",
    ]
    answer = signatures.attention(tf.constant(["ab"] * 3), tf.constant(["cd", "cd", "éé"]), *languages)
    for row, (source, target, *_) in enumerate(rows):
        text = [byte + 3 for byte in ("cd" if row < 2 else "éé").encode()]
        start, first = (names[target], []) if is_start else (translator.start_token_id, [names[target]])
        inputs = {
            "encoder_token_ids": np.array([[names[source], 3 + ord("a"), 3 + ord("b"), end]]),
            "decoder_token_ids": np.array([[start, *first, *text]]),
        }
        scores, _ = captured(translator.model, inputs)
        for kind, of_layer in zip(("encoder", "decoder", "cross"), scores.values(), strict=True):
            assert_padded(answer[f"{kind}_attention"][row], [of_layer])
        written = [token.decode() for token in answer["target_tokens"][row].numpy()]
        assert without_end(written) == translator.target_tokenizer.token_strings([*first, *text, end])
    assert answer["status"].numpy().tolist() == [
        *(b"ok", b"ok", b"source_language_unknown,target_language_unknown")
    ]


def layer_norm(x, gamma, beta, epsilon=1e-3):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * gamma + beta


@pytest.mark.extended
def test_the_attention_of_a_block_is_that_of_numpy():
    task = classifier()
    weights = {
        weight.path.removeprefix("encoder/"): np.asarray(weight, "float64") for weight in task.model.weights
    }
    answer = TextClassifierFunctions(task, ["attention"]).attention(
        tf.constant(["the dog runs", "b", "Ada " * 40])
    )
    for row, words in enumerate((["the", "dog", "runs"], ["b"], ["ada"] * 21)):
        tokens = ["[CLS]", *words, "[SEP]"]
        ids = [WORDS.index(token) for token in tokens]
        x = weights["embedding/token/embeddings"][ids] + weights["embedding/position/embeddings"][: len(ids)]
        x += weights["embedding/token_type/embeddings"][0]
        x = layer_norm(x, weights["embedding/norm/gamma"], weights["embedding/norm/beta"])
        query, key = (
            np.einsum("td,dnh->nth", x, weights[f"block_0/self_attention/{name}/kernel"])
            + weights[f"block_0/self_attention/{name}/bias"][:, np.newaxis]
            for name in ("query", "key")
        )
        expected = np.exp(query @ key.transpose(0, 2, 1) / np.sqrt(11))
        assert_padded(
            answer["encoder_attention"][row], expected[np.newaxis] / expected.sum(-1, keepdims=True)
        )
        shown = [token.decode() for token in answer["encoder_tokens"][row].numpy()]
        assert shown == [*tokens, *[""] * (23 - len(tokens))]
    assert answer["status"].numpy().tolist() == [b"ok", b"ok", b"text_truncated"]
    assert answer["encoder_layers"].numpy().tolist() == [[b"encoder/block_0/self_attention"]] * 3


def test_what_is_not_asked_for_is_not_there():
    translator = byte_translator()
    assert list(TranslatorFunctions(translator).all()) == list(Translator.signatures)
    assert list(TranslatorFunctions(translator, attention=True).all()) == [
        *Translator.signatures,
        "attention",
    ]
    assert list(TranslatorFunctions(translator, ["score"], attention=True).all()) == [
        "serving_default",
        "score",
        "attention",
    ]
    for signatures in (GeneratorFunctions(byte_generator()), TextClassifierFunctions(classifier())):
        assert "attention" not in signatures.all()


def test_a_request_cannot_take_the_memory_of_a_server():
    model = keras_attn.models.EncoderTransformer.from_sizes(
        259, 1, hidden_dim=8, num_heads=2, intermediate_dim=9, max_sequence_length=500
    )
    signatures = EmbedderFunctions(keras_attn.TextEmbedder(model, ByteTokenizer()), attention=True)
    answer = signatures.attention(tf.constant(["x" * 400]))
    assert answer["encoder_attention"].shape == (1, 1, 2, ATTENTION_LENGTH, ATTENTION_LENGTH)
    assert answer["status"].numpy().tolist() == [b"text_truncated"]
    assert f"at most {ATTENTION_LENGTH} tokens of a text" in signatures.limits()[-1]


def of_two_widths():
    body = encoder()
    blocks = [EncoderBlock(17, num_heads, name=f"block_{num_heads}") for num_heads in (2, 11)]
    return keras_attn.TextEmbedder(
        keras_attn.models.EncoderTransformer(body.embedding, blocks, name="encoder"), word_tokenizer()
    )


def of_unknown_patches():
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(2)])
    return keras_attn.ImageClassifier(model, ImagePreprocessing((8, 8), num_channels=1), ["a", "b"])


def of_windows():
    body = keras_attn.models.SwinTransformer.from_sizes(
        patch_size=2, hidden_dim=8, num_layers=(1,), num_heads=(2,), window_size=3
    )
    model = EncoderWithHead(body, keras_attn.layers.ImageClassificationHead(2))
    return keras_attn.ImageClassifier(model, ImagePreprocessing((12, 14)), ["a", "b"])


def of_many_patches():
    body = keras_attn.models.VisionTransformer.from_sizes(
        image_size=42, patch_size=2, num_layers=1, hidden_dim=8, num_heads=2, intermediate_dim=9
    )
    model = EncoderWithHead(body, keras_attn.layers.ImageClassificationHead(2))
    return keras_attn.ImageClassifier(model, ImagePreprocessing((42, 42)), ["a", "b"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (byte_translator, {"xla": True}, "export `attention` to another folder, without `xla`"),
        (classifier, {"xla": True}, "export `attention` to another folder, without `xla`"),
        pytest.param(
            of_two_widths,
            {},
            r"the same number of heads.*Export without `attention`, and look by `show`",
            marks=pytest.mark.extended,
        ),
        (of_unknown_patches, {}, r"models that say their patches.*Export without `attention`"),
        pytest.param(
            of_windows,
            {},
            r"No attention layer of the model looks from each of the 42 patches at each.*Export without `attention`",
            marks=pytest.mark.extended,
        ),
        pytest.param(
            of_many_patches,
            {},
            r"at most 400 tokens\. Received: 442\. Export without `attention`",
            marks=pytest.mark.extended,
        ),
    ],
)
def test_what_an_export_cannot_give_is_refused_before_a_version_is_there(make, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        make().export(tmp_path / "model", signatures=None if options else [], attention=True, **options)
    assert not list(tmp_path.rglob("saved_model.pb"))


class Looping(keras.Model):
    """A model whose attention is called in the body of a loop."""

    def __init__(self):
        super().__init__()
        self.attention = keras_attn.layers.MultiHeadAttention(2, 3, name="attention")

    def call(self, x):
        return keras.ops.fori_loop(0, 2, lambda _, x: self.attention(x, x), x)


def test_scores_in_a_loop_are_refused_in_a_graph():
    model = Looping()
    model(np.ones((1, 5, 7)))
    with pytest.raises(ValueError, match=r"The scores of \['attention'\] are computed inside a loop"):
        AttentionFunction(
            model,
            model,
            [tf.TensorSpec([None, None, 7])],
            (np.ones((1, 5, 7), "float32"),),
            lambda maps: {"": maps},
        )
