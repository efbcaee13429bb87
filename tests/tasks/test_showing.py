"""`show` of every task: the page holds the model's own attention, probabilities and answers for the text."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_encoder_tasks import answerer, classifier, embedder, fill_mask, tagger
from helpers_explorer import ExplorerParser
from helpers_images import patch_classifier
from helpers_text_generators import byte_generator
from helpers_translators import byte_translator, subword_translator

import keras_attn
from keras_attn.models import EncoderWithHead, Seq2SeqReader
from keras_attn.tasks import ImagePreprocessing, Languages
from keras_attn.text import ByteTokenizer

TEXT = "4 July"
# A byte for the square root, and float16 before it.
ERROR = 5e-3


def parsed(explorer):
    return ExplorerParser(explorer.html)


def layers(page, kind):
    """The scores (L, N, T, S) of a kind of attention."""
    [(number, group)] = [
        (number, group) for number, group in enumerate(page.data["groups"]) if group["kind"] == kind
    ]
    shape = len(group["queries"]), len(group["keys"])
    scores = [
        [page.codes(f"0.{number}.{layer}", head).reshape(shape) for head in range(len(seen["heads"]))]
        for layer, seen in enumerate(group["seen"][0])
    ]
    return (np.array(scores) / 255.0) ** 2


def groups(page):
    return {group["kind"]: group for group in page.data["groups"]}


@pytest.fixture(scope="module")
def translator():
    return subword_translator()


def probabilities_after(translator, source_ids, target_ids):
    """The next token's probabilities by one whole forward pass, without a cache."""
    inputs = {
        "encoder_token_ids": np.array([source_ids]),
        "decoder_token_ids": np.array([[translator.start_token_id, *target_ids[:-1]]]),
    }
    return tf.nn.softmax(translator.model(inputs)[0]).numpy()


@pytest.mark.extended  # the graphs of a search take seconds
def test_a_translation_is_shown_with_its_attention_steps_and_beams(translator):
    text = "the dog"
    explorer = translator.show(text, num_beams=3, max_length=7)
    page = parsed(explorer)
    [texts, scores, attention_map] = translator(
        text,
        num_beams=3,
        max_length=7,
        num_return_sequences=3,
        return_scores=True,
        return_attention_scores=True,
    )
    assert set(groups(page)) == {"encoder", "decoder", "cross"}
    cross = groups(page)["cross"]
    assert cross["queries"] == attention_map.target_tokens
    assert cross["keys"] == groups(page)["encoder"]["queries"] == attention_map.source_tokens
    assert layers(page, "cross") == pytest.approx(attention_map.attention_scores, abs=ERROR)
    decoder = groups(page)["decoder"]
    assert decoder["queries"] == ["<s>", *attention_map.target_tokens[:-1]]
    assert not np.triu(layers(page, "decoder"), 1).any()
    assert layers(page, "encoder").sum(axis=-1) == pytest.approx(1, abs=0.05)

    source_ids = [*translator.source_tokenizer.encode([text])[0], translator.source_tokenizer.end_token_id]
    tokenizer = translator.target_tokenizer
    names = tokenizer.token_strings(range(tokenizer.vocabulary_size))
    target_ids = [names.index(token) for token in attention_map.target_tokens]
    expected = probabilities_after(translator, source_ids, target_ids)
    for step, row, target_id in zip(page.data["steps"], expected, target_ids, strict=True):
        best = sorted(row, reverse=True)[:5]
        assert [share for _, share in step[:5]] == pytest.approx(best, rel=1e-4)
        assert dict(map(tuple, step))[names[target_id]] == pytest.approx(row[target_id], rel=1e-4)

    beams = page.data["beams"]
    assert [beam["score"] for beam in beams] == pytest.approx(scores)
    for beam, beam_text, score in zip(beams, texts, scores, strict=True):
        length = len(beam["tokens"]) ** translator.length_penalty
        assert sum(beam["logProbs"]) / length == pytest.approx(score, abs=1e-4)
        ids = [names.index(token) for token in beam["tokens"]]
        assert tokenizer.decode([ids]) == [beam_text]
    assert page.data["title"] == text


def test_a_given_translation_is_shown(translator):
    page = parsed(translator.show("the dog", target="der Hund", title="A title"))
    tokens = translator.target_tokenizer.token_strings(translator.target_tokenizer.encode(["der Hund"])[0])
    assert groups(page)["cross"]["queries"] == [*tokens, "</s>"]
    assert page.data["beams"] is None
    assert page.data["title"] == "A title"
    assert len(page.data["steps"]) == len(tokens) + 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda translator: translator.show(""), "`text` must hold a token"),
        (lambda translator: translator.show(["a", "b"]), r"`text` must be one string\. Received: list"),
        (lambda translator: translator.show("a", target="b" * 500), "A target has .* tokens"),
        (lambda translator: translator.show("a", num_beams=0), "num_beams"),
        (lambda translator: translator.show("a", source_language="en"), "multilingual"),
    ],
)
def test_what_cannot_be_shown_is_refused(translator, call, message):
    with pytest.raises(ValueError, match=message):
        call(translator)


@pytest.mark.extended
def test_a_translation_into_another_language_begins_with_it():
    names = {"en": 100, "de": 101}
    languages = Languages(names, source="en", target="de", target_is_start=True)
    translator = byte_translator().replaced(languages=languages, start_token_id=names["de"])
    token_strings = translator.target_tokenizer.token_strings
    for given, expected in ((None, "de"), ("de", "de"), ("en", "en")):
        page = parsed(translator.show(TEXT, num_beams=2, max_length=3, target_language=given))
        decoder = groups(page)["decoder"]["queries"]
        assert decoder[0] == token_strings([names[expected]])[0]
        _, [score] = translator(
            [TEXT],
            num_beams=2,
            max_length=3,
            target_language=given,
            num_return_sequences=1,
            return_scores=True,
        )
        best = page.data["beams"][0]
        assert best["score"] == pytest.approx(score[0])
        assert sum(best["logProbs"]) / len(best["tokens"]) == pytest.approx(score[0], abs=1e-4)


@pytest.mark.extended
def test_greedy_search_has_no_tree():
    page = parsed(byte_translator().show(TEXT, num_beams=1, max_length=3))
    assert page.data["beams"] is None
    assert len(page.data["steps"]) == 3
    # Bytes of a text are no special tokens, the end is one.
    assert groups(page)["encoder"]["specialKeys"] == [len(TEXT)]


@pytest.mark.extended
def test_a_recurrent_translator_is_shown_by_its_one_attention():
    tokenizer = ByteTokenizer()
    model = keras_attn.models.RNNSeq2Seq(tokenizer.vocabulary_size, hidden_dim=8, max_sequence_length=13)
    translator = keras_attn.Translator(model, tokenizer, tokenizer, num_beams=2, max_length=4)
    page = parsed(translator.show(TEXT))
    [_, attention_map] = [None, translator(TEXT, return_attention_scores=True)[1]]
    assert [group["kind"] for group in page.data["groups"]] == ["cross"]
    assert layers(page, "cross") == pytest.approx(attention_map.attention_scores, abs=ERROR)


@pytest.mark.extended
def test_a_continuation_is_shown_with_its_prompt():
    generator = byte_generator()
    text = "To be"
    page = parsed(generator.show(text, num_beams=3, max_length=4))
    [texts, scores] = generator(text, num_beams=3, max_length=4, num_return_sequences=3, return_scores=True)
    [decoder] = page.data["groups"]
    assert decoder["kind"] == "decoder"
    tokens = decoder["queries"]
    tokenizer = generator.tokenizer
    assert tokens[:6] == tokenizer.token_strings([generator.start_token_id, *tokenizer.encode([text])[0]])
    names = tokenizer.token_strings(range(tokenizer.vocabulary_size))
    ids = [names.index(token) for token in tokens]
    expected = tf.nn.softmax(generator.model(np.array([ids]))[0]).numpy()
    for step, row in zip(page.data["steps"], expected, strict=True):
        assert [share for _, share in step[:5]] == pytest.approx(sorted(row, reverse=True)[:5], rel=1e-4)
    assert [beam["score"] for beam in page.data["beams"]] == pytest.approx(scores)
    for beam, score in zip(page.data["beams"], scores):
        assert np.mean(beam["logProbs"]) == pytest.approx(score, abs=1e-4)
    assert page.data["beams"][0]["tokens"][:-1] == tokens[6:]
    assert len(texts) == 3
    assert groups(parsed(generator.show("", max_length=2)))["decoder"]["queries"][0] == tokens[0]
    with pytest.raises(ValueError, match="`text` must be one string"):
        generator.show(["a"])


@pytest.mark.parametrize("make", [embedder, classifier, tagger, fill_mask])
def test_an_encoder_is_shown_with_its_special_tokens(make):
    task = make()
    page = parsed(task.show("the dog"))
    [encoder] = page.data["groups"]
    assert encoder["kind"] == "encoder"
    framed = task.framed(tf.constant(["the dog"]))
    assert encoder["queries"] == task.tokenizer.token_strings(framed.token_ids.to_list()[0])
    assert encoder["specialKeys"] == [0, len(encoder["keys"]) - 1]
    with keras_attn.capture_attention(task.model) as maps:
        task.model(task.model_inputs(framed))
    assert layers(page, "encoder") == pytest.approx(np.concatenate(list(maps.values())), abs=ERROR)
    with pytest.raises(ValueError, match=r"`text` must be one string, and `pair` too\. Received: \['list'\]"):
        task.show(["a", "b"])


def test_pairs_and_questions_are_shown_with_both_texts():
    tokens = groups(parsed(classifier().show("the dog", "the cat")))["encoder"]["queries"]
    assert tokens.count("[SEP]") == 2
    tokens = groups(parsed(answerer().show("the dog", "the cat")))["encoder"]["queries"]
    assert tokens.count("[SEP]") == 2
    with pytest.raises(ValueError, match="A question answerer reads a question and its context"):
        answerer().show("the dog")


def test_a_text_that_an_encoder_and_a_decoder_read_is_shown_in_both():
    tokenizer = embedder().tokenizer
    seq2seq = keras_attn.models.Seq2SeqTransformer.from_sizes(
        tokenizer.vocabulary_size, 1, 1, hidden_dim=8, num_heads=2, intermediate_dim=9, max_sequence_length=17
    )
    reader = Seq2SeqReader(seq2seq, start_token_id=2)
    model = EncoderWithHead(reader, keras_attn.layers.ClassificationHead(2, intermediate_dim=8))
    page = parsed(keras_attn.TextClassifier(model, tokenizer, ["a", "b"]).show("the dog"))
    read = groups(page)["encoder"]["queries"]
    assert groups(page)["decoder"]["queries"] == [*tokenizer.token_strings([2]), *read[:-1]]
    assert set(groups(page)) == {"encoder", "decoder", "cross"}


def test_an_image_is_shown_with_the_attention_of_its_patches():
    classifier = patch_classifier()
    image = np.random.default_rng(0).integers(0, 256, (8, 12, 3)).astype("uint8")
    page = parsed(classifier.show(image))
    label, score = classifier(image, return_scores=True)
    assert page.data["title"] == f"{label} ({score:.0%})"
    picture = page.data["image"]
    assert (picture["rows"], picture["columns"]) == (2, 3)
    # What the model reads is undone to the pixels that were given: no resizing here.
    pixels = ExplorerParser(f'<script data-heads="0">{picture["pixels"]}</script>').codes("0", 0)
    np.testing.assert_array_equal(pixels.reshape(8, 12, 3), image)
    [group] = page.data["groups"]
    assert group["queries"][:3] == ["[CLASS]", "[REGISTER_1]", "row 1, column 1"]
    assert len(group["queries"]) == 2 + 6
    with keras_attn.capture_attention(classifier.model) as maps:
        classifier.model(classifier.preprocessing(image)[np.newaxis])
    assert layers(page, "") == pytest.approx(np.concatenate(list(maps.values())), abs=ERROR)


def test_images_whose_patches_are_unknown_are_refused():
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(2)])
    classifier = keras_attn.ImageClassifier(model, ImagePreprocessing((8, 8), num_channels=1), ["a", "b"])
    image = np.zeros((8, 8), "uint8")
    with pytest.raises(ValueError, match="The model does not say its patches: give `grid`"):
        classifier.show(image)
    with pytest.raises(ValueError, match=r"`image` must be one image\. Received: 2 of them"):
        classifier.show([image, image])


def swin_classifier(attend_to_padding):
    """Two stages of 5 x 6 and of 3 x 3 patches, in windows of 2 x 2, every other of them shifted."""
    encoder = keras_attn.models.SwinTransformer.from_sizes(
        patch_size=2,
        hidden_dim=8,
        num_layers=(2, 1),
        num_heads=(2, 4),
        window_size=2,
        attend_to_padding=attend_to_padding,
    )
    model = keras_attn.models.EncoderWithHead(encoder, keras_attn.layers.ImageClassificationHead(2))
    return keras_attn.ImageClassifier(model, ImagePreprocessing((10, 12)), ["cat", "dog"])


def in_place(scores, rows, columns, shift):
    """Windows (W, N, 4, 4) of 2 x 2 patches as (N, P, P): each patch is looked for where it stands in the shifted image."""
    height, width = rows + rows % 2, columns + columns % 2

    def of_patch(row, column):
        row, column = (row - shift) % height, (column - shift) % width
        return (row // 2) * (width // 2) + column // 2, 2 * (row % 2) + column % 2

    patches = [of_patch(row, column) for row in range(rows) for column in range(columns)]
    whole = np.zeros((scores.shape[1], len(patches), len(patches)))
    for query, (window, place) in enumerate(patches):
        for key, (other, other_place) in enumerate(patches):
            if window == other:
                whole[:, query, key] = scores[window, :, place, other_place]
    return whole


@pytest.mark.parametrize("attend_to_padding", [False, True])
def test_the_windows_of_a_swin_are_shown_in_their_places_stage_by_stage(attend_to_padding):
    classifier = swin_classifier(attend_to_padding)
    image = np.random.default_rng(0).integers(0, 256, (10, 12, 3)).astype("uint8")
    with keras_attn.capture_attention(classifier.model) as maps:
        classifier.model(classifier.preprocessing(image)[np.newaxis])
    of_blocks = [scores[0] for scores in maps.values()]
    pages = [parsed(classifier.show(image)), parsed(classifier.show(image, grid=(3, 3)))]
    for page, (rows, columns), shifts, scores in zip(
        pages, [(5, 6), (3, 3)], [(0, 1), (0,)], [of_blocks[:2], of_blocks[2:]]
    ):
        assert (page.data["image"]["rows"], page.data["image"]["columns"]) == (rows, columns)
        assert len(page.data["groups"][0]["queries"]) == rows * columns
        expected = [
            in_place(of_block, rows, columns, shift) for of_block, shift in zip(scores, shifts, strict=True)
        ]
        assert layers(page, "") == pytest.approx(np.array(expected), abs=ERROR)
    with pytest.raises(ValueError, match=r"The stages have \[\(5, 6\), \(3, 3\)\]\. Received: grid=\(2, 2\)"):
        classifier.show(image, grid=(2, 2))
