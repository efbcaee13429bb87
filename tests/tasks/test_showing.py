"""`show` of every task: the page holds the model's own attention, probabilities and answers for the text."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_encoder_tasks import answerer, classifier, embedder, fill_mask, tagger
from helpers_explorer import ExplorerParser
from helpers_images import encoded, patch_classifier
from helpers_marks import slow_but
from helpers_seed import set_seed
from helpers_text_generators import byte_generator, piece_generator
from helpers_translators import byte_translator, subword_translator

import keras_attn
from keras_attn.models import EncoderWithHead, Seq2SeqReader
from keras_attn.plots import explore_answer
from keras_attn.tasks import ImagePreprocessing, Languages, SourceForm
from keras_attn.tasks.image_classifier import ImageClassifierFunctions
from keras_attn.text import ByteTokenizer

TEXT = "4 July"
# A byte for the square root, and float16 before it.
ERROR = 5e-3


def parsed(explorer):
    return ExplorerParser(explorer.html)


def layers(page, kind, model=0):
    """The scores (L, N, T, S) of a kind of attention of the page's model of this number."""
    [(number, group)] = [
        (number, group) for number, group in enumerate(page.data["groups"]) if group["kind"] == kind
    ]
    shape = len(group["queries"]), len(group["keys"])
    scores = [
        [page.codes(f"{model}.{number}.{layer}", head).reshape(shape) for head in range(len(seen["heads"]))]
        for layer, seen in enumerate(group["seen"][model])
        if seen
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


@pytest.mark.sampled(2)
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
    tokens = groups(parsed(classifier().show("the dog", pair="the cat")))["encoder"]["queries"]
    assert tokens.count("[SEP]") == 2
    tokens = groups(parsed(answerer().show("the dog", pair="the cat")))["encoder"]["queries"]
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


@pytest.mark.extended
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


def deeper_translator(**options):
    """2 + 3 layers of five heads over bytes, of other weights and with other names of layers."""
    set_seed(7)
    model = keras_attn.models.Seq2SeqTransformer.from_sizes(
        259, 2, 3, hidden_dim=20, num_heads=5, intermediate_dim=11, max_sequence_length=29, name="deeper"
    )
    return keras_attn.Translator(model, ByteTokenizer(), ByteTokenizer(), num_beams=1, **options)


def expected_maps(translator, source_ids, target_ids):
    """The scores (L, N, T, S) by kind, of one plain call of the model."""
    inputs = {
        "encoder_token_ids": np.array([source_ids]),
        "decoder_token_ids": np.array([[translator.start_token_id, *target_ids[:-1]]]),
    }
    with keras_attn.capture_attention(translator.model, dtype="float32") as maps:
        translator.model(inputs)
    names = {"encoder": ("encoder", "self"), "decoder": ("decoder", "self"), "cross": ("decoder", "cross")}
    return {
        kind: np.concatenate([scores for path, scores in maps.items() if all(part in path for part in parts)])
        for kind, parts in names.items()
    }


@pytest.mark.extended
@pytest.mark.parametrize("target", ["2016", None])
def test_two_translators_are_shown_on_the_same_source_and_target(target):
    one, two = byte_translator(), deeper_translator()
    explorer = one.show(TEXT, target=target, max_length=5, compare=two)
    page = parsed(explorer)
    assert page.data["models"] == ["the other", "this"]
    alone = parsed(one.show(TEXT, target=target, max_length=5))
    for name in ("title", "steps", "beams", "image"):
        assert page.data[name] == alone.data[name]
    assert alone.data["models"] == ["model"]
    names = one.target_tokenizer.token_strings(range(259))
    target_ids = [names.index(token) for token in groups(page)["cross"]["queries"]]
    source_ids = [*one.source_tokenizer.encode([TEXT])[0], one.source_tokenizer.end_token_id]
    for number, translator in enumerate((two, one)):
        for kind, scores in expected_maps(translator, source_ids, target_ids).items():
            assert layers(page, kind, number) == pytest.approx(scores, abs=ERROR)
    if target is not None:
        assert target_ids == [*one.target_tokenizer.encode([target])[0], one.target_tokenizer.end_token_id]
        named = parsed(one.show(TEXT, target=target, compare={"deep": two}, name="flat"))
        assert named.data["models"] == ["deep", "flat"]


def test_translators_of_other_tokens_are_not_compared(translator):
    one = byte_translator()
    end, other_start = one.source_tokenizer.end_token_id, 5
    for compare, message in (
        (translator, "must have the same tokens.* The source_tokenizer of 'the other' is another one"),
        ({"x": byte_generator()}, "must be a translator too. Received: text generator for 'x'"),
        (translator.model, "must be a translator too"),
        ({"this": one}, "names of `compare` must differ from `name`. Received: name='this'"),
        (
            {"prefixed": one.replaced(source_form=SourceForm(before=(7,), after=(end,)))},
            "must read the same tokens of the text. 'prefixed' reads",
        ),
        (one.replaced(start_token_id=other_start), "must read the same tokens of the text"),
    ):
        with pytest.raises(ValueError, match=message):
            one.show(TEXT, target="2016", compare=compare)
    with pytest.raises(ValueError, match=r"A target has 31 tokens, END included; .* of the model is 29"):
        one.show(TEXT, target="x" * 30, compare=deeper_translator())


def captured(model, inputs):
    """The scores (L, N, T, S) of a model's layers."""
    with keras_attn.capture_attention(model) as maps:
        model(inputs)
    return np.concatenate(list(maps.values()))


@pytest.mark.extended
def test_two_generators_are_shown_on_the_same_continuation():
    set_seed(11)
    model = keras_attn.models.DecoderTransformer.from_sizes(
        259, 1, hidden_dim=12, num_heads=3, intermediate_dim=7, max_sequence_length=31
    )
    one = byte_generator()
    two = keras_attn.TextGenerator(model, ByteTokenizer(), start_token_id=one.start_token_id, num_beams=1)
    page = parsed(one.show("To be", num_beams=1, max_length=4, compare={"small": two}))
    assert page.data["models"] == ["small", "this"]
    names = one.tokenizer.token_strings(range(259))
    ids = np.array([[names.index(token) for token in groups(page)["decoder"]["queries"]]])
    for number, generator in enumerate((two, one)):
        assert layers(page, "decoder", number) == pytest.approx(captured(generator.model, ids), abs=ERROR)
    with pytest.raises(ValueError, match=r"must have the same tokens.* The tokenizer of 'the other'"):
        one.show("To be", compare=piece_generator())
    other_start = keras_attn.TextGenerator(model, ByteTokenizer(), start_token_id=4)
    with pytest.raises(ValueError, match="must read the same tokens of the text"):
        one.show("To be", compare=other_start)


def test_two_encoders_are_shown_on_the_same_text():
    one, two = embedder(), keras_attn.TextEmbedder(classifier().encoder, classifier().tokenizer)
    page = parsed(one.show("the dog", compare=two))
    inputs = one.model_inputs(one.framed(tf.constant(["the dog"])))
    for number, task in enumerate((two, one)):
        assert layers(page, "encoder", number) == pytest.approx(captured(task.model, inputs), abs=ERROR)
    with pytest.raises(ValueError, match=r"must be a text embedder too. Received: text classifier"):
        one.show("the dog", compare=classifier())
    short = keras_attn.TextEmbedder(one.model, one.tokenizer, max_length=5)
    with pytest.raises(ValueError, match="must read the same tokens of the text"):
        one.show("the dog runs in london", compare=short)


def vision_classifier(image_size, patch_size, num_layers=1, **options):
    encoder = keras_attn.models.VisionTransformer.from_sizes(
        image_size, patch_size, num_layers, hidden_dim=8, num_heads=2, intermediate_dim=9
    )
    model = keras_attn.models.EncoderWithHead(encoder, keras_attn.layers.ImageClassificationHead(2))
    return keras_attn.ImageClassifier(model, ImagePreprocessing(image_size, **options), ["cat", "dog"])


@pytest.mark.extended
def test_two_image_classifiers_are_shown_on_the_same_patches():
    one, two = vision_classifier((8, 12), 4), vision_classifier((8, 12), 4, num_layers=3, mean=0.3, std=0.7)
    image = np.random.default_rng(0).integers(0, 256, (8, 12, 3)).astype("uint8")
    page = parsed(one.show(image, compare={"deep": two}, name="flat"))
    assert page.data["models"] == ["deep", "flat"]
    np.testing.assert_array_equal(page.pixels(), image)
    for number, task in enumerate((two, one)):
        with keras_attn.capture_attention(task.model) as maps:
            task.model(task.preprocessing(image)[np.newaxis])
        expected = np.concatenate(list(maps.values()))
        assert layers(page, "", number) == pytest.approx(expected, abs=ERROR)
    for other, message in (
        (vision_classifier((8, 12), 2), r"2 x 3 patches of .* 'the other' has 4 x 6 patches"),
        (patch_classifier(), r"7 tokens. 'the other' has 2 x 3 patches of \(8, 12, 3\) pixels, 8 tokens"),
        (vision_classifier((8, 12), 4, resize_to=(11, 15)), "must read the same pixels"),
    ):
        with pytest.raises(ValueError, match=message):
            one.show(image, compare=other)


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


@pytest.mark.extended
@pytest.mark.parametrize("attend_to_padding", slow_but([True], [False, True]))
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
    with pytest.raises(ValueError, match=r"`grid` must be the rows and columns.* Received: grid='2x2'"):
        classifier.show(image, grid="2x2")


@pytest.mark.extended
def test_a_grid_that_is_not_the_models_is_refused():
    image = np.zeros((16, 16, 3), "uint8")
    classifier = vision_classifier((16, 16), 4)
    assert parsed(classifier.show(image, grid=(4, 4))).data["image"]["rows"] == 4
    for grid in ((2, 2), (2, 8), [4, 3]):
        message = rf"`grid` must be that of the model, \(4, 4\).* Received: grid=\({grid[0]}, {grid[1]}\)"
        with pytest.raises(ValueError, match=message):
            classifier.show(image, grid=grid)
    for grid in ("2x2", 4, (4, 4, 1), (4.0, 4.0), (0, 4)):
        with pytest.raises(ValueError, match="`grid` must be the rows and columns of the image's patches"):
            classifier.show(image, grid=grid)


@pytest.mark.extended
@pytest.mark.parametrize("num_before", slow_but([2], [0, 1, 2]))
def test_a_grid_of_a_model_that_does_not_say_it_has_few_tokens_before_it(num_before):
    """3 x 5 patches of 2 x 2 pixels after other tokens, in a model of Keras' layers."""
    inputs = keras.Input((6, 10, 3))
    x = keras.layers.Permute((1, 3, 2, 4, 5))(keras.layers.Reshape((3, 2, 5, 2, 3))(inputs))
    x = keras.layers.Dense(8)(keras.layers.Reshape((15, 12))(x))
    x = keras.layers.ZeroPadding1D((num_before, 0))(x)
    x = keras.layers.MultiHeadAttention(2, 4)(x, x)
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(x)))
    classifier = keras_attn.ImageClassifier(model, ImagePreprocessing((6, 10)), ["a", "b"])
    image = np.zeros((6, 10, 3), "uint8")
    page = parsed(classifier.show(image, grid=(3, 5)))
    assert len(page.data["groups"][0]["queries"]) == 15 + num_before
    for grid in ((2, 5), (3, 4), (2, 2), (1, 5), (3, 3)):
        message = rf"`grid` must be the rows and columns of all patches.* grid=\({grid[0]}, {grid[1]}\) for a model of"
        with pytest.raises(ValueError, match=message):
            classifier.show(image, grid=grid)
    with pytest.raises(ValueError, match="looks from each of the 20 patches"):
        classifier.show(image, grid=(4, 5))


def padded_classifier(**options):
    """A Swin Transformer of 12 x 8 and of 6 x 4 patches in images of 23 x 15 pixels."""
    encoder = keras_attn.models.SwinTransformer.from_sizes(
        patch_size=2, hidden_dim=8, num_layers=(1, 1), num_heads=(2, 4), window_size=4
    )
    model = keras_attn.models.EncoderWithHead(encoder, keras_attn.layers.ImageClassificationHead(2))
    return keras_attn.ImageClassifier(model, ImagePreprocessing((23, 15), **options), ["cat", "dog"])


@pytest.mark.extended
@pytest.mark.parametrize(
    ("make", "size", "grid"),
    [
        (lambda: vision_classifier((31, 31), 16), (16, 16), (1, 1)),
        (lambda: vision_classifier((37, 31), 7), (35, 28), (5, 4)),
        (padded_classifier, (24, 16), (12, 8)),
    ],
)
def test_each_patch_is_drawn_over_the_pixels_that_it_reads(make, size, grid):
    task = make()
    height, width = task.preprocessing.image_size
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype("uint8")
    page = parsed(task.show(image))
    shown = page.data["image"]
    assert (shown["height"], shown["width"], shown["rows"], shown["columns"]) == (*size, *grid)
    both = min(height, size[0]), min(width, size[1])
    np.testing.assert_array_equal(page.pixels()[: both[0], : both[1]], image[: both[0], : both[1]])
    # The embedding's vector of a patch depends on the pixels under it, and on no others.
    embedding = task.model.encoder.embedding
    inputs = tf.Variable(task.preprocessing(image)[np.newaxis])
    for row, column in ((0, 0), (grid[0] - 1, grid[1] - 1)):
        with tf.GradientTape() as tape:
            vectors = embedding(inputs)[0, -grid[0] * grid[1] :]
            value = tf.reduce_sum(vectors[row * grid[1] + column] * np.arange(8.0))
        is_read = np.any(tape.gradient(value, inputs)[0] != 0, axis=-1)
        down, across = size[0] // grid[0], size[1] // grid[1]
        under = np.zeros((max(height, size[0]), max(width, size[1])), bool)
        under[row * down : (row + 1) * down, column * across : (column + 1) * across] = True
        np.testing.assert_array_equal(is_read, under[:height, :width])


@pytest.mark.extended
def test_what_fills_the_last_patches_is_shown_as_the_zeros_that_are_read():
    classifier = padded_classifier(mean=(0.2, 0.4, 0.6), std=0.5)
    image = np.full((23, 15, 3), 255, "uint8")
    for grid in ((12, 8), (6, 4)):
        pixels = parsed(classifier.show(image, grid=grid)).pixels()
        assert pixels.shape == (24, 16, 3)
        assert (pixels[:23, :15] == 255).all()
        assert set(map(tuple, [*pixels[23], *pixels[:, 15]])) == {(51, 102, 153)}
    # Three patches of 4 pixels for 10: the last row of the coarser stage is half of zeros.
    pixels = parsed(swin_classifier(False).show(np.full((10, 12, 3), 255, "uint8"), grid=(3, 3))).pixels()
    assert pixels.shape == (12, 12, 3)
    assert (pixels[:10] == 255).all()


@pytest.mark.extended
def test_an_export_shows_the_pixels_that_its_patches_read():
    classifier = vision_classifier((37, 31), 7)
    image = np.random.default_rng(0).integers(0, 256, (37, 31, 3)).astype("uint8")
    contents = [encoded(image), b"no image"]
    answers = ImageClassifierFunctions(classifier, attention=True).attention(tf.constant(contents))
    np.testing.assert_array_equal(answers["image"][0], image[:35, :28])
    answer = {name: value[0].numpy() for name, value in answers.items()}
    np.testing.assert_array_equal(parsed(explore_answer(answer)).pixels(), image[:35, :28])
    _, [expected], _ = classifier.attention_answers(contents[:1])
    np.testing.assert_array_equal(expected["image"], image[:35, :28])
