"""Every exported signature and option through TensorFlow's C library with XLA off, against Python."""

import base64
import functools

import helpers_translators
import numpy as np
import pytest
from helpers_marks import CUTS_ARE_EXPECTED
from helpers_translators import INVALID_UTF8, ODD_TEXTS, SENTENCES

from keras_attn import Translator
from keras_attn.generation import DecodingOptions

# The graphs of every signature take half a minute to make.
pytestmark = [pytest.mark.extended, CUTS_ARE_EXPECTED]

request_of = functools.partial(helpers_translators.request_of, Translator)


def padded_ids(*rows):
    return [[*row, *[-1] * (8 - len(row))] for row in rows]


def test_neutral_values_are_the_default(exported, server):
    translator, _ = exported
    (neutral, plain) = server(
        request_of("translate", SENTENCES, length_penalty=translator.length_penalty),
        request_of("translate_n_best", SENTENCES),
    )
    assert neutral["outputs"] == plain["outputs"]
    np.testing.assert_allclose(neutral["scores"], plain["scores"], rtol=1e-5)
    assert [row[0] for row in neutral["outputs"]] == translator(SENTENCES)


OPTIONS = {
    "num_beams": [3, 1, 2, 3, 1],
    "max_length": [9, 4, 7, 11, 5],
    "min_length": [1, 2, 6, 11, 3],
    "no_repeat_ngram_size": [0, 1, 2, 3, 4],
    "repetition_penalty": [1.0, 1.5, 1.0, 0.5, 3.0],
    "stop_token_ids": padded_ids([], [40], [100, 101], [], [9]),
    "suppressed_token_ids": padded_ids([50], [], [60, 61], [2], []),
}


@pytest.mark.slow
def test_options_of_each_text_are_those_of_python(exported, server):
    translator, _ = exported
    prefixes, penalties = ["", "ein", "", "zwei", "x"], [1.0, 0.0, 0.6, 2.0, -1.0]
    most = translator.num_beams
    options = {**OPTIONS, "num_beams": [min(value, most) for value in OPTIONS["num_beams"]]}
    (answer,) = server(
        request_of("translate", SENTENCES, **options, target_prefix=prefixes, length_penalty=penalties)
    )
    for row, text in enumerate(SENTENCES):
        texts, scores = translator(
            text,
            length_penalty=penalties[row],
            num_return_sequences=most,
            return_scores=True,
            options=DecodingOptions(**{name: value[row] for name, value in options.items()}),
            target_prefix=prefixes[row],
        )
        assert answer["outputs"][row][: len(texts)] == texts
        np.testing.assert_allclose(answer["scores"][row][: len(texts)], scores, rtol=1e-4)
        assert answer["outputs"][row][len(texts) :] == [""] * (most - len(texts))
        assert answer["scores"][row][len(texts) :] == [pytest.approx(-1e30)] * (most - len(texts))


def test_samples_are_those_of_python(exported, server):
    translator, _ = exported
    options = {
        "temperature": [1.0, 0.5, 2.0, 0.0, 1.0],
        "top_k": [0, 5, 0, 3, 0],
        "top_p": [1.0, 1.0, 0.7, 1.0, 0.9],
        "min_p": [0.0, 0.0, 0.0, 0.0, 0.1],
        "seed": [1, 2, 3, 4, 5],
    }
    (answer,) = server(request_of("sample", SENTENCES, **options))
    texts, scores = translator(SENTENCES, options=DecodingOptions(**options), return_scores=True)
    assert answer["outputs"] == texts
    np.testing.assert_allclose(answer["scores"], scores, rtol=1e-4)


def test_scores_are_those_of_python(exported, server):
    translator, _ = exported
    targets = [*SENTENCES[1:], ""]
    (answer,) = server(request_of("score", SENTENCES, targets=targets))
    np.testing.assert_allclose(answer["scores"], translator.score(SENTENCES, targets), rtol=1e-4)
    assert answer["status"] == ["ok"] * 5
    for row, pairs in enumerate(translator.score(SENTENCES, targets, return_token_scores=True)[1]):
        names, token_scores = zip(*pairs)
        assert answer["tokens"][row][: len(names)] == list(names)
        np.testing.assert_allclose(answer["token_scores"][row][: len(names)], token_scores, atol=1e-4)
    tokenizer = translator.target_tokenizer
    for text, tokens, token_scores, score in zip(
        targets, answer["tokens"], answer["token_scores"], answer["scores"]
    ):
        expected = tokenizer.token_strings([*tokenizer.encode([text])[0], tokenizer.end_token_id])
        assert tokens[: len(expected)] == expected
        assert set(tokens[len(expected) :]) <= {""}
        length = len(expected) ** translator.length_penalty
        np.testing.assert_allclose(sum(token_scores) / length, score, rtol=1e-4)


def test_a_text_is_encoded_as_the_mean_of_its_tokens(exported, server):
    translator, _ = exported
    (answer,) = server(request_of("encode", [*SENTENCES, ""]))
    tokenizer = translator.source_tokenizer
    for text, vector in zip(SENTENCES, answer["outputs"]):
        ids = [*tokenizer.encode([text])[0], tokenizer.end_token_id]
        sequence = translator.model.encode(np.array([ids])).numpy()[0]
        np.testing.assert_allclose(vector, sequence[:-1].mean(0), atol=1e-5)
    assert not np.any(answer["outputs"][-1])


def test_alignment_is_where_the_last_layer_but_one_looked_most(exported, server):
    translator, _ = exported
    (answer,) = server(request_of("translate", [*SENTENCES, ""]))
    _, maps = translator(SENTENCES, return_attention_scores=True)
    layer = max(len(translator.model.decoder_blocks) - 2, 0)
    for row, attention_map in enumerate(maps):
        length = len(attention_map.target_tokens)
        assert answer["target_tokens"][row][:length] == attention_map.target_tokens
        assert answer["source_tokens"][row][: len(attention_map.source_tokens)] == attention_map.source_tokens
        looked = attention_map.attention_scores[layer].mean(0).argmax(-1)
        assert answer["alignment"][row][:length] == looked.tolist()
        assert set(answer["alignment"][row][length:]) <= {-1}
    assert set(answer["alignment"][-1]) == {-1}


def test_what_is_not_as_asked_is_in_the_status_of_its_row(server):
    texts = [SENTENCES[0], {"b64": base64.b64encode(INVALID_UTF8).decode()}, "word " * 300, *SENTENCES[:2]]
    (answer,) = server(
        request_of(
            "translate",
            texts,
            num_beams=[0, 0, 0, 99, -1],
            no_repeat_ngram_size=[0, 0, 0, -7, 0],
            repetition_penalty=[1.0, 1.0, 1.0, 1.0, -2.0],
            stop_token_ids=padded_ids([], [], [], [10**6], []),
        )
    )
    # Untrained, these run to the end.
    found = [set(status.split(",")) - {"unfinished"} for status in answer["status"]]
    assert found == [
        found[0] & {"ok"},
        {"source_repaired"},
        {"source_truncated"},
        {"num_beams_clamped", "no_repeat_ngram_size_clamped", "stop_token_ids_clamped"},
        {"num_beams_clamped", "repetition_penalty_clamped"},
    ]
    (alone,) = server(request_of("translate", texts[:1]))
    assert answer["outputs"][0] == alone["outputs"][0]


def test_a_sharp_value_out_of_range_is_clamped(server):
    (answer,) = server(
        request_of("sample", SENTENCES[:2], temperature=[-1.0, 1.0], top_p=[1.0, 7.5], top_k=[-3, 0])
    )
    first, second = (set(status.split(",")) - {"unfinished"} for status in answer["status"])
    assert first == {"temperature_clamped", "top_k_clamped"}
    assert second == {"top_p_clamped"}


def test_odd_texts_and_an_empty_batch_are_answered_by_every_signature(exported, server):
    translator, _ = exported
    texts = [*ODD_TEXTS, {"b64": base64.b64encode(INVALID_UTF8).decode()}]
    requests = [
        request
        for some in (texts, [])
        for request in (
            request_of("translate", some),
            request_of("sample", some),
            request_of("score", some, targets=some[::-1]),
            request_of("encode", some),
        )
    ]
    answers = server(*requests)
    for answer, request in zip(answers, requests):
        assert {len(value) for value in answer.values()} == {len(request["inputs"]["inputs"])}
    assert answers[0]["outputs"][0] == [""] * translator.num_beams
    assert answers[0]["status"][0] == "ok"
