"""Translator: strings in, strings out; the same through a folder and a new process."""

import gc
import json
import resource
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_marks import CUTS_ARE_EXPECTED
from helpers_translators import (
    INVALID_UTF8,
    ODD_TEXTS,
    SENTENCES,
    byte_translator,
    files_below,
    in_new_process,
    subword_translator,
)

import keras_attn
from keras_attn.generation import DecodingOptions
from keras_attn.models import has_lora, quantize
from keras_attn.tasks.search_functions import TranslatorFunctions
from keras_attn.text import ByteTokenizer

pytestmark = CUTS_ARE_EXPECTED


@pytest.fixture(scope="module")
def translator():
    """With two vocabularies. No test changes what a fixture gives: the graphs of one serve all."""
    return subword_translator()


@pytest.fixture(scope="module")
def bytes_translator():
    return byte_translator()


def assert_same_weights(translator, other):
    weights, others = translator.model.get_weights(), other.model.get_weights()
    for array, expected in zip(weights, others, strict=True):
        np.testing.assert_array_equal(array, expected)


def token_log_probs_by_hand(translator, source, target):
    """Ids of a target, END included, and log-softmax at each of them of a plain forward pass, in float64."""
    tokenizer = translator.target_tokenizer
    source_ids = [*translator.source_tokenizer.encode([source])[0], translator.source_tokenizer.end_token_id]
    target_ids = [*tokenizer.encode([target])[0], tokenizer.end_token_id]
    logits = (
        translator.model(
            {
                "encoder_token_ids": np.array([source_ids]),
                "decoder_token_ids": np.array([[tokenizer.start_token_id, *target_ids[:-1]]]),
            }
        )
        .numpy()[0]
        .astype("float64")
    )
    log_probs = (
        logits
        - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - logits.max(-1, keepdims=True)
    )
    return target_ids, [log_probs[step, token] for step, token in enumerate(target_ids)]


def log_prob_by_hand(translator, source, target):
    """Sum of log-softmax of a plain forward pass, and the number of tokens."""
    target_ids, log_probs = token_log_probs_by_hand(translator, source, target)
    return sum(log_probs), len(target_ids)


@pytest.mark.extended
def test_the_answer_has_the_shape_of_the_question(translator):
    text = translator(SENTENCES[0])
    assert isinstance(text, str)
    assert translator([SENTENCES[0]]) == [text]
    assert translator((SENTENCES[0], SENTENCES[1]))[0] == text
    assert translator([]) == []
    texts, scores = translator(SENTENCES[:2], return_scores=True)
    assert texts[0] == text
    assert [type(score) for score in scores] == [float, float]
    best, score = translator(SENTENCES[0], return_scores=True)
    assert (best, score) == (text, pytest.approx(scores[0], abs=1e-5))


@pytest.mark.extended
def test_n_best_lists_are_sorted_and_begin_with_the_best(translator):
    many, scores = translator(SENTENCES[:3], num_return_sequences=2, return_scores=True)
    assert [texts[0] for texts in many] == translator(SENTENCES[:3])
    assert all(len(texts) == 2 and first >= second for texts, (first, second) in zip(many, scores))


def test_batch_size_order_and_neighbours_change_nothing(translator):
    alone = [translator(text) for text in SENTENCES]
    assert translator(SENTENCES) == alone
    assert translator(SENTENCES, batch_size=2) == alone
    assert translator(SENTENCES[::-1], batch_size=3) == alone[::-1]
    assert translator([*SENTENCES, "", "x" * 300])[: len(SENTENCES)] == alone


@pytest.mark.extended
def test_jit_compiled_answers_are_the_same(bytes_translator):
    compiled = byte_translator(jit_compile=True)
    texts, scores = compiled(SENTENCES[:3], return_scores=True)
    expected_texts, expected_scores = bytes_translator(SENTENCES[:3], return_scores=True)
    assert (texts, scores) == (expected_texts, pytest.approx(expected_scores, abs=1e-4))


def test_token_scores_equal_a_forward_pass_by_hand(translator):
    sources, targets = SENTENCES[:3], ["ein Hund läuft", "", "Schnee ."]
    scores, tokens = translator.score(sources, targets, return_token_scores=True)
    assert scores == translator.score(sources, targets)
    for source, target, score, pairs in zip(sources, targets, scores, tokens):
        ids, expected = token_log_probs_by_hand(translator, source, target)
        names, log_probs = zip(*pairs)
        assert list(names) == translator.target_tokenizer.token_strings(ids)
        assert log_probs == pytest.approx(expected, abs=1e-4)
        assert score == pytest.approx(sum(log_probs) / len(ids) ** translator.length_penalty, rel=1e-6)
    assert translator.score([], [], return_token_scores=True) == ([], [])
    score, pairs = translator.score(sources[2], targets[2], return_token_scores=True)
    assert score == pytest.approx(scores[2], abs=1e-5)
    assert [name for name, _ in pairs] == [name for name, _ in tokens[2]]


def test_score_refuses_what_cannot_be_scored(translator):
    with pytest.raises(ValueError, match="2 sources, 1 targets"):
        translator.score(["a", "b"], ["c"])
    with pytest.raises(ValueError, match="two strings or two lists"):
        translator.score("a", ["c"])
    with pytest.raises(ValueError, match="`max_sequence_length` of the model is"):
        translator.score("a", "Z" * 400)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("text", [*ODD_TEXTS, INVALID_UTF8, "lone \ud800 surrogate"])
@pytest.mark.parametrize("kind", ["bytes_translator", "translator"])
def test_odd_text_is_answered_and_the_next_call_works(kind, text, request):
    translator = request.getfixturevalue(kind)
    neighbour = translator(SENTENCES[1])
    answers = translator([text, SENTENCES[1]])
    assert isinstance(answers[0], str)
    answers[0].encode("utf-8")
    assert answers[1] == neighbour == translator(SENTENCES[1])
    if text == "":
        assert answers[0] == ""


@pytest.mark.extended
def test_an_empty_text_has_one_answer(bytes_translator):
    texts, scores, attention_map = bytes_translator(
        "", num_return_sequences=2, return_scores=True, return_attention_scores=True
    )
    assert (texts, scores) == ([""], [0.0])
    assert attention_map.attention_scores.shape[-2:] == (0, 0)


def test_long_text_is_cut_to_the_models_length(bytes_translator):
    kept = bytes_translator.model.max_sequence_length - 1  # END has the last place
    assert bytes_translator("ab" * 300) == bytes_translator(("ab" * 300)[:kept])
    assert bytes_translator("ab" * 300) == bytes_translator(("ab" * 300)[:kept] + "z" * 7)


def test_a_text_that_was_cut_still_ends_with_end(bytes_translator):
    kept = ("ab" * 300)[: bytes_translator.model.max_sequence_length - 1]
    log_prob, _ = log_prob_by_hand(bytes_translator, kept, "x")
    assert bytes_translator.score("ab" * 300, "x", length_penalty=0.0) == pytest.approx(log_prob, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 0}, "`num_beams` must be a positive integer. Received: num_beams=0."),
        ({"num_return_sequences": 4}, "`num_return_sequences` must be at least 1 and at most `num_beams`"),
        ({"max_length": 38}, "`max_length` must be at most `max_sequence_length`. Received: max_length=38"),
        ({"max_length": 0}, "`max_length` must be a positive integer"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"num_beams": 10**6}, "`num_beams` must be at most 1024 .* Received: num_beams=1000000"),
        (
            {"options": DecodingOptions(num_beams=10**6)},
            r"`num_beams` must be in \[1, 1024\]. Received: 1000000",
        ),
    ],
)
def test_bad_options_say_what_they_must_be(bytes_translator, options, message):
    with pytest.raises(ValueError, match=message):
        bytes_translator("a", **options)
    assert isinstance(bytes_translator("a"), str)


@pytest.mark.extended
def test_numpy_integers_are_integers(bytes_translator):
    numbers = {"num_beams": np.int64(2), "max_length": np.int32(7), "batch_size": np.int16(3)}
    assert bytes_translator(SENTENCES, **numbers) == bytes_translator(SENTENCES, num_beams=2, max_length=7)


@pytest.mark.parametrize("texts", [7, [7], [None], ["a", ["b"]]])
def test_what_is_no_text_is_refused(bytes_translator, texts):
    with pytest.raises(ValueError, match="`texts` must"):
        bytes_translator(texts)


def test_a_vocabulary_that_does_not_fit_is_refused():
    model = keras_attn.models.Seq2SeqTransformer.from_sizes(
        100, 1, 1, hidden_dim=4, num_heads=2, intermediate_dim=3
    )
    with pytest.raises(ValueError, match="259 ids, model with 100"):
        keras_attn.Translator(model, ByteTokenizer(), ByteTokenizer())


LOAD = """
import json, sys
import keras_attn
from keras_attn.generation import DecodingOptions
translator = keras_attn.Translator.load(sys.argv[1])
texts = json.loads(sys.argv[2])
print(json.dumps([*translator(texts, return_scores=True), translator.score(texts, texts[::-1])]))
"""


@pytest.mark.slow
def test_a_folder_answers_alike_in_a_new_process(translator, tmp_path):
    translator.save(tmp_path / "translator")
    texts, scores, rescored = in_new_process(LOAD, tmp_path / "translator", json.dumps(SENTENCES))
    expected_texts, expected_scores = translator(SENTENCES, return_scores=True)
    assert texts == expected_texts
    assert scores == expected_scores
    assert rescored == translator.score(SENTENCES, SENTENCES[::-1])


def test_a_shared_tokenizer_is_saved_once_and_shared_again(bytes_translator, tmp_path):
    bytes_translator.save(tmp_path / "one")
    assert files_below(tmp_path / "one") == [
        "model.safetensors",
        "source_tokenizer/tokenizer.json",
        "translator.json",
    ]
    loaded = keras_attn.Translator.load(tmp_path / "one")
    assert loaded.source_tokenizer is loaded.target_tokenizer
    assert (loaded.num_beams, loaded.length_penalty, loaded.max_length) == (3, 1.0, 11)


def test_saving_replaces_a_translator_and_nothing_else(bytes_translator, tmp_path):
    first, second = bytes_translator, byte_translator(max_length=7)
    first.save(tmp_path / "translator")
    second.save(tmp_path / "translator")
    assert keras_attn.Translator.load(tmp_path / "translator").max_length == 7
    assert [path.name for path in tmp_path.iterdir()] == ["translator"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for occupied in (tmp_path / "mine", tmp_path / "mine" / "thesis.txt"):
        with pytest.raises(ValueError, match="holds no translator"):
            first.save(occupied)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_save_that_fails_leaves_the_older_translator(bytes_translator, tmp_path, monkeypatch):
    bytes_translator.save(tmp_path / "translator")

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("keras_attn.tasks.saved_tasks.save_weights", full_disk)
    with pytest.raises(OSError, match="No space left"):
        bytes_translator.save(tmp_path / "translator")
    assert_same_weights(keras_attn.Translator.load(tmp_path / "translator"), bytes_translator)
    assert [path.name for path in tmp_path.iterdir()] == ["translator"]


def test_a_quantised_model_is_refused_before_anything_is_written(tmp_path):
    translator = byte_translator()
    gc.freeze()  # Keras collects garbage once a kernel, for half a second of old objects each time
    translator.model.quantize("int4", filters=lambda layer: isinstance(layer, keras.layers.Dense))
    gc.unfreeze()
    with pytest.raises(ValueError, match=r"in int4 cannot be saved.*after `Translator.load`"):
        translator.save(tmp_path / "saved")
    assert not list(tmp_path.iterdir())


def test_lora_is_merged_into_what_is_saved(tmp_path):
    # Its weights were written beside the kernels, and the folder could not be loaded any more.
    translator = byte_translator()
    translator.model.enable_lora(rank=3)
    for layer in translator.model._flatten_layers():
        if getattr(layer, "lora_enabled", False):  # what training would do: at first the product is 0
            layer.lora_kernel_b.assign(np.random.default_rng(7).normal(size=layer.lora_kernel_b.shape))
    translator.save(tmp_path / "adapted")
    loaded = keras_attn.Translator.load(tmp_path / "adapted")
    assert not has_lora(loaded.model)
    inputs = {name: np.array([[5, 9, 11, 2]]) for name in ("encoder_token_ids", "decoder_token_ids")}
    expected, before = translator.model(inputs), byte_translator().model(inputs)
    np.testing.assert_allclose(loaded.model(inputs), expected, rtol=0, atol=1e-5)
    assert np.abs(expected - before).max() > 1e-2


def test_other_engines_get_neither_lora_nor_int8(tmp_path):
    adapted, quantised = byte_translator(), byte_translator()
    adapted.model.enable_lora(rank=3)
    quantize(quantised.model, "int8")  # the translator's own `quantize` asks for a processor that can run it
    for translator, message in ((adapted, "LoRA that is not merged"), (quantised, "int8 weights")):
        for format in ("ctranslate2", "huggingface", "litert", "onnx"):
            with pytest.raises(ValueError, match=rf"Received: {message}\."):
                translator.export_model(tmp_path / "model", format)
    assert not files_below(tmp_path)


@pytest.fixture(scope="module")
def saved(bytes_translator, tmp_path_factory):
    """A folder with a translator, to copy."""
    folder = tmp_path_factory.mktemp("saved") / "translator"
    bytes_translator.save(folder)
    return folder


@pytest.fixture
def broken(saved, tmp_path):
    """Copies a saved translator, and breaks the copy as a function does that takes the folder."""

    def copy(change):
        folder = shutil.copytree(saved, tmp_path / "translator")
        change(folder)
        return folder

    return copy


def test_a_missing_folder_or_file_is_named(broken, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no translator in .*nowhere"):
        keras_attn.Translator.load(tmp_path / "nowhere")
    folder = broken(lambda folder: (folder / "model.safetensors").unlink())
    with pytest.raises(FileNotFoundError, match=r"There is no weight file .*model\.safetensors"):
        keras_attn.Translator.load(folder)


@pytest.mark.parametrize(
    "config",
    [
        "not json",
        "[" * 100_000,
        "[]",
        '{"format": 2}',
        '{"format": 1, "model": {"activation": {"class_name": "os.system"}}, "options": {}, "shared_tokenizer": true}',
    ],
)
def test_a_config_that_is_damaged_or_holds_objects_is_refused(broken, config):
    folder = broken(lambda folder: (folder / "translator.json").write_text(config))
    with pytest.raises(ValueError, match=r"translator\.json cannot be read"):
        keras_attn.Translator.load(folder)


def _replaced(config, name, value):
    """Sets every such entry of a nested configuration that has a value."""
    for key, part in config.items() if isinstance(config, dict) else enumerate(config):
        if key == name and part is not None:
            config[key] = value
        elif isinstance(part, (dict, list)):
            _replaced(part, name, value)


def test_a_config_of_no_model_is_refused(broken):
    def change(folder):
        config = json.loads((folder / "translator.json").read_text())
        config["model"]["config"]["num_wheels"] = 4
        (folder / "translator.json").write_text(json.dumps(config))

    with pytest.raises(ValueError, match=r"translator\.json describes no model: .*num_wheels"):
        keras_attn.Translator.load(broken(change))


@pytest.mark.parametrize(
    ("name", "value"), [("vocabulary_size", 10**9), ("num_heads", 10**9), ("intermediate_dim", 19)]
)
def test_a_config_of_another_size_is_refused_before_it_takes_memory(broken, name, value):
    def change(folder):
        config = json.loads((folder / "translator.json").read_text())
        _replaced(config["model"], name, value)
        (folder / "translator.json").write_text(json.dumps(config))

    folder = broken(change)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    message = r"model\.safetensors (does not hold the weights of this model|holds .* with shape)"
    with pytest.raises(ValueError, match=message):
        keras_attn.Translator.load(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KB


def test_a_tokenizer_that_is_nested_too_deeply_is_refused(broken):
    def change(folder):
        (folder / "source_tokenizer" / "tokenizer.json").write_text('{"x":' * 100_000)

    with pytest.raises(ValueError, match=r"tokenizer\.json must be JSON"):
        keras_attn.Translator.load(broken(change))


def test_a_translator_that_a_killed_process_left_aside_is_found(broken, bytes_translator):
    folder = broken(lambda folder: folder.rename(folder.with_name(f".older-{folder.name}")))
    assert not folder.exists()
    assert_same_weights(keras_attn.Translator.load(folder), bytes_translator)


def test_weights_that_are_cut_are_refused(broken):
    def cut(folder):
        data = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(data[: len(data) // 2])

    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        keras_attn.Translator.load(broken(cut))


# --- options ---


@pytest.mark.extended
def test_coverage_penalty_is_a_value_for_each_text(bytes_translator):
    texts, penalties = SENTENCES[:3], [0.0, 2.0, 0.5]
    options = DecodingOptions(coverage_penalty=penalties)
    found, scores = bytes_translator(texts, max_length=5, options=options, return_scores=True)
    tokenizer = bytes_translator.target_tokenizer
    for text, penalty, translation, score in zip(texts, penalties, found, scores):
        # Eager, one text at a time and without a translator; the penalty itself is tested by hand.
        expected = bytes_translator.model.generate(
            np.array([[*tokenizer.encode([text])[0], tokenizer.end_token_id]]),
            tokenizer.start_token_id,
            tokenizer.end_token_id,
            num_beams=3,
            num_return_sequences=1,
            max_length=5,
            options=DecodingOptions(coverage_penalty=penalty),
            unwritable_token_ids=(0, 1),
        )
        assert tokenizer.decode(expected.token_ids[:, 0]) == [translation]
        assert float(expected.scores[0, 0]) == pytest.approx(score, rel=1e-5)


def translator_that_likes_start(num_beams=8):
    """Over bytes; START is the likeliest token of all, then come END and the letters a to h."""
    translator, rng = byte_translator(), np.random.default_rng(8)
    embeddings = rng.normal(size=(259, 20)).astype("float32") * 0.1
    letters = np.arange(3 + ord("a"), 3 + ord("i"))
    embeddings[[1, 2, *letters]] += 0.4
    embeddings[[1, 2]] += [[0.05], [0.02]]
    translator.model.target_embedding.token.embeddings.assign(embeddings)
    translator.model.decoder_norm.beta.assign(np.ones(20, "float32"))
    tokenizer = translator.target_tokenizer
    return keras_attn.Translator(translator.model, tokenizer, tokenizer, num_beams=num_beams, max_length=11)


@pytest.mark.extended
def test_what_cannot_be_written_is_never_chosen_and_scores_are_those_of_score():
    translator = translator_that_likes_start()
    tokenizer, texts = translator.target_tokenizer, SENTENCES[:3]
    source = np.array([[*tokenizer.encode(texts[:1])[0], 2]])
    free = translator.model.generate(source, 1, 2, num_beams=8, num_return_sequences=8, max_length=3)
    assert (np.asarray(free.token_ids) == 1).any(), "START is not likely enough to show anything"
    found, scores = translator(texts, num_return_sequences=8, return_scores=True)
    num_finished = 0
    for text, translations, row_scores in zip(texts, found, scores):
        assert len(set(translations)) == len(translations)
        for translation, score in zip(translations, row_scores):
            if len(translation) < 11 and translation.isascii():
                assert translator.score(text, translation) == pytest.approx(score, rel=1e-4)
                num_finished += 1
    assert num_finished >= 6


@pytest.mark.extended
def test_what_cannot_be_written_is_never_served_and_may_stand_in_a_prefix():
    translator, texts = translator_that_likes_start(), SENTENCES[:3]
    source = np.array([[*translator.target_tokenizer.encode(texts[:1])[0], 2]])
    served = TranslatorFunctions(translator).translate_n_best(tf.constant(texts))
    found = translator(texts, num_return_sequences=8)
    assert [[text.decode() for text in row] for row in served["outputs"].numpy()] == found
    # A language tag for one.
    begun = translator.model.generate(
        source,
        1,
        2,
        num_beams=8,
        num_return_sequences=8,
        max_length=3,
        options=DecodingOptions(prefix_token_ids=[1]),
        unwritable_token_ids=(0, 1),
    )
    assert (np.asarray(begun.token_ids)[0, :, 0] == 1).all()
    assert not (np.asarray(begun.token_ids)[0, :, 1:] == 1).any()


@pytest.mark.extended
@pytest.mark.parametrize(
    ("batch_size", "jit_compile"), [(2, False), pytest.param(64, True, marks=pytest.mark.slow)]
)
def test_each_text_may_have_options_of_its_own(batch_size, jit_compile):
    values = {
        "num_beams": [3, 1, 2, 3, 1],
        "max_length": [11, 4, 7, 9, 11],
        "no_repeat_ngram_size": [0, 1, 2, 3, 4],
        "suppressed_token_ids": [[-1], [104], [109], [100], [-1]],
    }
    translator = byte_translator(jit_compile=jit_compile)
    together = translator(
        SENTENCES, options=DecodingOptions(**values), return_scores=True, batch_size=batch_size
    )
    for row, text in enumerate(SENTENCES):
        own = {name: value[row] for name, value in values.items()}
        alone = translator(text, options=DecodingOptions(**own), return_scores=True)
        assert (together[0][row], together[1][row]) == (alone[0], pytest.approx(alone[1], rel=1e-5))


@pytest.mark.extended
def test_a_target_prefix_begins_the_translation(translator):
    prefix = "zwei"
    texts = translator(SENTENCES, target_prefix=prefix)
    assert all(text.startswith(prefix) for text in texts)
    assert texts != translator(SENTENCES)
    mixed = translator(SENTENCES[:2], target_prefix=["", prefix])
    assert mixed == [translator(SENTENCES[0]), texts[1]]
    with pytest.raises(ValueError, match="`target_prefix` is the text of"):
        translator(SENTENCES[0], target_prefix=prefix, options=DecodingOptions(prefix_token_ids=[5]))


@pytest.mark.extended
def test_samples_follow_their_seeds(bytes_translator):
    def draw(texts, seed, **arguments):
        return bytes_translator(texts, options=DecodingOptions(temperature=1.0, seed=seed), **arguments)

    drawn = draw(SENTENCES, [1, 2, 3, 4, 5], num_return_sequences=2)
    assert draw(SENTENCES[2], 3, num_return_sequences=2) == drawn[2]
    assert draw(SENTENCES, 6, num_return_sequences=2) != drawn
    assert len({text for texts in drawn for text in texts}) > 5


def test_values_for_another_number_of_texts_are_refused(translator):
    with pytest.raises(
        ValueError, match=r"`seed` must have a value for each of the 2 rows\. Received: 3 of them\."
    ):
        translator(SENTENCES[:2], options=DecodingOptions(seed=[1, 2, 3]))
    with pytest.raises(ValueError, match="`prefix_token_ids` must have a value for each of the 2 rows"):
        translator(SENTENCES[:2], target_prefix=["a", "b", "c"])


def test_options_of_no_texts_are_no_trouble(translator):
    assert translator([], options=DecodingOptions(seed=[])) == []
    assert translator([], target_prefix="a") == []
