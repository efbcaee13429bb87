"""A language model from text to text, beside the model's own `generate` on ids and NumPy's sums."""

import json

import keras
import numpy as np
import pytest
from helpers_marks import CUTS_ARE_EXPECTED
from helpers_text_generators import (
    PROMPTS,
    byte_generator,
    continued,
    piece_generator,
    prompt_ids,
    text_after,
)
from helpers_translators import INVALID_UTF8, ODD_TEXTS, byte_translator

import keras_attn
from keras_attn.generation import DecodingOptions
from keras_attn.tasks import load_task
from keras_attn.text import ByteTokenizer

pytestmark = CUTS_ARE_EXPECTED


@pytest.fixture(
    scope="module", params=[byte_generator, pytest.param(piece_generator, marks=pytest.mark.slow)]
)
def generator(request):
    return request.param()


@pytest.mark.extended
def test_continuations_in_one_batch_are_those_of_the_model_for_each_prompt_alone(generator):
    expected = [
        text_after(
            generator, text, continued(generator, text, num_beams=3, num_return_sequences=1).token_ids[0, 0]
        )
        for text in PROMPTS
    ]
    assert generator(PROMPTS, num_beams=3) == expected
    assert generator(PROMPTS[1], num_beams=3) == expected[1]
    assert len(set(expected)) > 3


@pytest.mark.extended
def test_scores_of_the_n_best_are_the_models(generator):
    texts, scores = generator(PROMPTS, num_beams=3, num_return_sequences=2, return_scores=True)
    for text, found, of_found in zip(PROMPTS, texts, scores):
        alone = continued(generator, text, num_beams=3, num_return_sequences=2)
        assert found == [text_after(generator, text, ids) for ids in alone.token_ids[0]]
        np.testing.assert_allclose(of_found, alone.scores[0], rtol=1e-4)


@pytest.mark.extended
def test_a_stream_is_the_greedy_continuation(generator):
    cut = PROMPTS[4]
    for text in ["", cut, "é😀", ODD_TEXTS[3], INVALID_UTF8, "lone \ud800 surrogate"]:
        pieces = list(generator.stream(text))
        assert "".join(pieces) == generator(text, num_beams=1)
        assert all(pieces)
        assert not any(piece.endswith("\N{REPLACEMENT CHARACTER}") for piece in pieces[:-1])


@pytest.mark.extended
def test_a_prompt_and_its_continuation_fit_the_model(generator):
    total = generator.model.max_sequence_length
    assert prompt_ids(generator, "y" * (total - 3)).shape == (1, total - 2)
    found = generator.generate(
        keras.ops.convert_to_tensor(prompt_ids(generator, "y" * (total - 3)), "int32"),
        generator.search_options(num_beams=1),
    )
    assert np.count_nonzero(np.asarray(found.token_ids) >= 0) <= 2
    # What is cut leaves room for as much as is asked for.
    long = "".join(chr(97 + number % 26) for number in range(300))
    assert generator(long, num_beams=1) == text_after(generator, long, continued(generator, long)[0])
    short = continued(generator, long, max_length=2)[0]
    assert generator(long, num_beams=1, options=DecodingOptions(max_length=2)).startswith(
        text_after(generator, long, short)[:1]
    )


@pytest.mark.extended
def test_samples_depend_on_the_seed_alone(generator):
    options = DecodingOptions(temperature=0.9, top_k=50, seed=np.arange(len(PROMPTS)))
    together = generator(PROMPTS, options=options)
    for number, text in enumerate(PROMPTS):
        alone = generator(text, options=DecodingOptions(temperature=0.9, top_k=50, seed=number))
        assert alone == together[number]


def test_scores_of_texts_are_sums_of_log_softmax(generator):
    texts = ["To be", "", "é?"]
    scores, of_tokens = generator.score(texts, return_token_scores=True)
    for text, score, tokens in zip(texts, scores, of_tokens):
        ids = generator.tokenizer.encode([text])[0]
        read = np.array([[generator.start_token_id, *ids]])
        mask = np.ones(read.shape, bool)
        logits = np.asarray(generator.model({"token_ids": read, "padding_mask": mask}), "float64")[0]
        log_probs = [row[token] - np.logaddexp.reduce(row) for row, token in zip(logits, ids)]
        assert score == pytest.approx(sum(log_probs), rel=1e-4)
        assert [name for name, _ in tokens] == generator.tokenizer.token_strings(ids)
        np.testing.assert_allclose([value for _, value in tokens], log_probs, rtol=1e-4, atol=1e-5)
    assert generator.score("To be") == pytest.approx(scores[0], rel=1e-5)


@pytest.mark.extended
def test_the_score_of_a_continuation_is_that_of_the_search():
    generator = byte_generator(num_beams=1)
    texts, scores = generator("To be", num_return_sequences=1, return_scores=True)
    assert "\N{REPLACEMENT CHARACTER}" in texts[0] or generator.score(f"To be{texts[0]}") - generator.score(
        "To be"
    ) == pytest.approx(scores[0] * len(texts[0].encode()), rel=1e-3)


def test_no_texts(generator):
    assert generator([]) == generator.score([]) == []


def test_other_folders_are_refused(tmp_path):
    byte_translator().save(tmp_path / "translator")
    assert isinstance(load_task(tmp_path / "translator"), keras_attn.Translator)
    with pytest.raises(
        FileNotFoundError, match=r"There is no text generator in .*has no text_generator.json"
    ):
        keras_attn.TextGenerator.load(tmp_path / "translator")
    with pytest.raises(ValueError, match="text generator"):
        byte_generator().save(tmp_path / "translator")
    byte_generator().save(tmp_path / "good")
    config = json.loads((tmp_path / "good" / "text_generator.json").read_text())
    for damage, message in (
        ({"format": 7}, "format 7"),
        ({"options": {"num_beams": 2}}, "something else than a text generator's options"),
        ({"model": {"module": "os", "class_name": "system", "config": {}}}, "describes no model"),
    ):
        (tmp_path / "good" / "text_generator.json").write_text(json.dumps({**config, **damage}))
        with pytest.raises(ValueError, match=message):
            keras_attn.TextGenerator.load(tmp_path / "good")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 37}, "`max_length` must be less than `max_sequence_length`.*max_length=37"),
        ({"num_beams": 0}, "num_beams=0"),
        ({"start_token_id": 259}, r"`start_token_id` must be in \[-1, 259\)"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        byte_generator(**options)


def test_wrong_models_and_arguments_are_refused():
    generator = byte_generator()
    with pytest.raises(ValueError, match=r"must be a keras_attn\.models\.CausalGeneration.*Your own model"):
        keras_attn.TextGenerator(byte_translator().model, ByteTokenizer())
    with pytest.raises(ValueError, match="The tokenizer must have the model's vocabulary"):
        keras_attn.TextGenerator(piece_generator().model, ByteTokenizer())
    with pytest.raises(ValueError, match=r"`max_length` must be in \[1, 36\]"):
        next(generator.stream("a", max_length=37))
    with pytest.raises(ValueError, match="`text` must be a string"):
        next(generator.stream(["a"]))
    with pytest.raises(ValueError, match="A text has 38 tokens"):
        generator.score("a" * 38)


@pytest.mark.slow
def test_compiled_continuations_are_the_same():
    generator, compiled = byte_generator(), byte_generator(jit_compile=True)
    assert compiled(PROMPTS) == generator(PROMPTS)
    assert "".join(compiled.stream(PROMPTS[1])) == generator(PROMPTS[1], num_beams=1)
