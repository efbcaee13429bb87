"""The page of an answer of `attention`: as REST gives it, as a SavedModel gives it, and what is no such answer."""

import base64
import math

import numpy as np
import pytest
from helpers_explorer import ExplorerParser, softmax_scores

from keras_attn.plots import explore_answer

SOURCE, TARGET = ["▁the", "▁dog", "é", "</s>"], ["▁der", "▁Hund", "</s>"]
INPUTS = ["<s>", *TARGET[:-1]]


def padded(array, *shape):
    array = np.asarray(array)
    return np.pad(array, [(0, size - has) for size, has in zip(shape, array.shape)])


@pytest.fixture
def answer(rng):
    """Of a text in a batch whose longest has 7 and 5 tokens."""
    encoder, decoder = softmax_scores(rng, 2, 3, 4, 4), np.tril(softmax_scores(rng, 1, 3, 3, 3))
    return {
        "outputs": "der Hund",
        "encoder_tokens": [*SOURCE, "", "", ""],
        "encoder_attention": padded(encoder, 2, 3, 7, 7),
        "encoder_layers": ["a", "b"],
        "decoder_tokens": [*INPUTS, "", ""],
        "decoder_attention": padded(decoder, 1, 3, 5, 5),
        "decoder_layers": ["c"],
        "cross_attention": padded(softmax_scores(rng, 1, 3, 3, 4), 1, 3, 5, 7),
        "cross_layers": ["d"],
        "target_tokens": [*TARGET, "", ""],
        "token_scores": [math.log(0.5), math.log(0.05), math.log(0.6), 0.0, 0.0],
        "next_tokens": [["▁der", "▁ein"], ["▁Kater", "▁Tier"], ["</s>", "▁."], ["", ""], ["", ""]],
        "next_probabilities": [[0.5, 0.3], [0.4, 0.3], [0.6, 0.1], [0.0, 0.0], [0.0, 0.0]],
        "status": "ok",
    }


def as_rest(value):
    """Nested lists of JSON."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def as_arrays(value):
    """Arrays of bytes, as `predict` of gRPC and a loaded SavedModel give them."""
    array = np.asarray(value)
    return np.vectorize(str.encode, [object])(array) if array.dtype.kind == "U" else array


@pytest.mark.parametrize("given", [as_rest, as_arrays])
def test_the_page_has_the_attention_and_steps_of_the_answer_without_padding(answer, given, tmp_path):
    path = tmp_path / "page.html"
    page = ExplorerParser(
        explore_answer({name: given(value) for name, value in answer.items()}, title="A dog", path=path).html
    )
    assert page.data == ExplorerParser(path.read_text("utf-8")).data
    assert page.data["title"] == "A dog"
    groups = [
        (group["kind"], group["queries"], group["keys"], group["paths"]) for group in page.data["groups"]
    ]
    assert groups == [
        ("encoder", SOURCE, SOURCE, ["a", "b"]),
        ("decoder", INPUTS, INPUTS, ["c"]),
        ("cross", TARGET, SOURCE, ["d"]),
    ]
    for place, kind, layer, (length, width) in (
        ("0.0.1", "encoder", 1, (4, 4)),
        ("0.1.0", "decoder", 0, (3, 3)),
        ("0.2.0", "cross", 0, (3, 4)),
    ):
        for head in range(3):
            codes = page.codes(place, head).reshape(length, width) / 255
            expected = np.sqrt(answer[f"{kind}_attention"][layer, head, :length, :width])
            assert codes == pytest.approx(expected, abs=1 / 500)
    # What came and is not among the likeliest stands beside them.
    assert page.data["steps"] == [
        [["▁der", 0.5], ["▁ein", 0.3]],
        [["▁Kater", 0.4], ["▁Tier", 0.3], ["▁Hund", pytest.approx(0.05)]],
        [["</s>", 0.6], ["▁.", 0.1]],
    ]


def test_bytes_in_base64_are_read(answer):
    answer["encoder_tokens"][2] = {"b64": base64.b64encode("é".encode()).decode()}
    answer["encoder_layers"][0] = {"b64": base64.b64encode(b"a\xff").decode()}
    [group, *_] = ExplorerParser(explore_answer(answer).html).data["groups"]
    assert group["queries"] == SOURCE
    assert group["paths"] == ["a�", "b"]


def test_a_continuation_ends_with_a_token_that_has_no_next(answer):
    answer = {name: value for name, value in answer.items() if not name.startswith(("encoder", "cross"))}
    answer["target_tokens"] = [*TARGET[:2], "", "", ""]
    page = ExplorerParser(explore_answer(answer).html)
    [group] = page.data["groups"]
    assert group["queries"] == INPUTS
    assert page.data["steps"][2] == [["</s>", 0.6], ["▁.", 0.1]]


def test_an_empty_translation_has_the_attention_of_the_encoder(answer):
    answer |= {"decoder_tokens": [""] * 5, "target_tokens": [""] * 5}
    page = ExplorerParser(explore_answer(answer).html)
    assert [group["kind"] for group in page.data["groups"]] == ["encoder"]
    assert page.data["steps"] is None


def of_image(rng):
    return {
        "grid": [2, 3],
        "image": np.full((8, 12, 1), 200).tolist(),
        "encoder_attention": softmax_scores(rng, 2, 3, 7, 7),
        "encoder_layers": ["a", "b"],
        "status": "ok",
    }


def test_the_patches_of_an_image_are_over_it(rng):
    answer = of_image(rng)
    page = ExplorerParser(explore_answer(answer).html)
    [group] = page.data["groups"]
    assert group["queries"][:3] == ["[CLASS]", "row 1, column 1", "row 1, column 2"]
    assert (page.data["image"]["rows"], page.data["image"]["columns"]) == (2, 3)
    expected = np.sqrt(answer["encoder_attention"][1, 2]).ravel()
    assert page.codes("0.0.1", 2) / 255 == pytest.approx(expected, abs=1 / 500)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda answer: ["a"], r"`answer` must hold the outputs of a signature `attention`.* Received: list"),
        (lambda answer: {"outputs": "a"}, r"Received: \['outputs'\]"),
        (
            lambda answer: {name: [value] for name, value in answer.items()},
            r"`encoder_tokens` must be a list of strings, the tokens of one text; of a batch, give the answer of one row",
        ),
        (
            lambda answer: answer | {"encoder_attention": answer["encoder_attention"][:, :, :3]},
            r"`encoder_attention` must have shape \(L, N, T, S\) for 2 layers, 4 queries and 4 keys\. Received: "
            r"shape=\(2, 3, 3, 7\)",
        ),
        (lambda answer: answer | {"encoder_layers": ["a"]}, "for 1 layers"),
        (
            lambda answer: (
                answer | {"encoder_tokens": [""] * 7, "decoder_tokens": [""] * 5, "target_tokens": [""] * 5}
            ),
            "The answer has no token",
        ),
    ],
)
def test_what_is_no_answer_of_attention_is_refused(answer, change, message):
    with pytest.raises(ValueError, match=message):
        explore_answer(change(answer))


def test_images_without_an_answer_are_named(rng):
    unread = of_image(rng) | {"encoder_attention": np.zeros((2, 3, 7, 7))}
    with pytest.raises(ValueError, match="the image could not be read"):
        explore_answer(unread)
    with pytest.raises(ValueError, match="Of a batch, give the answer of one row"):
        explore_answer(of_image(rng) | {"encoder_attention": np.ones((1, 2, 3, 7, 7))})
