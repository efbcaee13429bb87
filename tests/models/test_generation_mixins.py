"""Models composed by hand, functional and subclassed: padding, training, and through the mixins generation and exports,
as a forward pass says they must be."""

import functools

import keras
import numpy as np
import pytest
from helpers_generation import answer, beam_search_by_hand, compilers, quickest
from helpers_models import END, START, assert_close, call, make_batch, make_model, randomize, shared_model
from keras import ops

from keras_attn.generation import DecodingOptions
from keras_attn.layers import (
    DecoderBlock,
    EncoderBlock,
    MultiHeadAttention,
    RotaryEmbedding,
    SinusoidalPositionEncoding,
    TokenEmbedding,
)
from keras_attn.models import CausalGeneration, Seq2SeqCache, Seq2SeqGeneration
from keras_attn.ops import padding_mask
from keras_attn.training import LabelSmoothedCrossentropy

PAD, V, WINDOW = 0, 13, 5


class WindowedLanguageModel(CausalGeneration):
    """A functional model with grouped heads, rotation, a sliding window and sink tokens, and its adapter."""

    max_sequence_length, pad_token_id = 64, PAD

    def __init__(self, num_layers=2):
        token_ids = keras.Input((None,), dtype="int32")
        self.embedding = TokenEmbedding(V, 12)
        self.blocks = [
            DecoderBlock(
                17,
                2,
                self_attention=MultiHeadAttention(
                    2,
                    6,
                    num_key_value_heads=1,
                    rotary_embedding=RotaryEmbedding(),
                    sliding_window=WINDOW,
                    num_sink_tokens=1,
                ),
            )
            for _ in range(num_layers)
        ]
        x = self.embedding(token_ids)
        for block in self.blocks:
            x = block(x, decoder_padding_mask=padding_mask(token_ids, PAD))
        self.model = keras.Model(token_ids, self.embedding(x, reverse=True))
        randomize(self.model, seed=4, spread=0.5)

    def empty_cache(self, batch_size, length):
        return tuple(block.empty_cache(batch_size, length) for block in self.blocks)

    def call_with_cache(self, token_ids, cache, cache_update_index, positions=None, attention_mask=None):
        x, new = self.embedding(token_ids), []
        for block, of_block in zip(self.blocks, cache):
            x, of_block = block(
                x,
                decoder_positions=positions,
                decoder_attention_mask=attention_mask,
                self_attention_cache=of_block,
                self_attention_cache_update_index=cache_update_index,
                use_causal_mask=attention_mask is None,
            )
            new.append(of_block)
        return self.embedding(x, reverse=True), tuple(new)


@pytest.fixture(scope="module")
def windowed():
    return WindowedLanguageModel()


@functools.cache
def forward(model):
    """The forward pass, compiled: for inputs of one size it is traced once."""
    return compilers()[quickest()](model)


def log_probabilities(logits):
    """Of logits (V,); the pad stays in the normaliser."""
    logits = keras.ops.convert_to_numpy(logits).astype("float64")
    log_probs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    log_probs[PAD] = -np.inf
    return log_probs


def log_probabilities_after(model, prefix, **inputs):
    """What follows a prefix of a row by a forward pass over the row's inputs, each (1, ...)."""
    inputs = {name: keras.ops.convert_to_tensor(of_row) for name, of_row in inputs.items()}
    return log_probabilities(forward(model)(inputs)[0, len(prefix)])


def padded(prefix, size=7):
    return np.array([[START, *prefix, *[START] * (size - len(prefix))]], "int32")


def assert_found(found, row, expected):
    """The `Hypotheses` of a row are the pairs of scores and tokens that the search by hand found."""
    for (score, tokens), ids, found_score in zip(expected, found.token_ids[row], found.scores[row]):
        assert answer(ids)[: len(tokens)] == tokens
        assert float(found_score) == pytest.approx(score, rel=1e-4)


def forward_of(model, prompt, size=20):
    """What follows a prompt and a prefix by a forward pass over both, and pads up to `size` behind them."""

    def log_probs(prefix):
        tokens = [*prompt, *prefix]
        token_ids = np.array([tokens + [PAD] * (size - len(tokens))], "int32")
        return log_probabilities(forward(model)(keras.ops.convert_to_tensor(token_ids))[0, len(tokens) - 1])

    return log_probs


@pytest.mark.extended
def test_a_prompt_longer_than_the_window_is_read_and_continued_as_a_forward_pass_says(windowed):
    prompts = np.random.default_rng(2).integers(4, V, (2, 11)).astype("int32")
    prompts[1, 8:] = PAD
    found = windowed.generate(prompts, END, num_beams=3, num_return_sequences=3, max_length=9)
    for row, prompt in enumerate((prompts[0], prompts[1, :8])):
        assert_found(found, row, beam_search_by_hand(forward_of(windowed.model, prompt), 9, 3))


def test_a_ring_reads_a_prompt_longer_than_its_window_at_once(windowed):
    token_ids = np.random.default_rng(3).integers(4, V, (2, 17)).astype("int32")
    expected = keras.ops.convert_to_numpy(windowed.model(token_ids))
    cache = windowed.empty_cache(2, 17)
    assert cache[0][0].shape[-2] == WINDOW + 1
    logits, cache = windowed.call_with_cache(token_ids[:, :13], cache, 0)
    np.testing.assert_allclose(logits, expected[:, :13], rtol=1e-5, atol=1e-5)
    for index in range(13, 17):
        logits, cache = windowed.call_with_cache(token_ids[:, index : index + 1], cache, index)
        np.testing.assert_allclose(logits[:, 0], expected[:, index], rtol=1e-5, atol=1e-5)


@pytest.mark.extended
def test_a_padding_mask_says_what_a_prompt_is(windowed):
    prompts = np.array([[4, 5, 6, 7, 8], [9, 10, 0, 0, 0]])
    expected = windowed.generate(prompts, END, max_length=4)
    other_pads = np.array([[4, 5, 6, 7, 8], [9, 10, 11, 11, 11]])
    found = windowed.generate(other_pads, END, max_length=4, padding_mask=prompts != 0)
    np.testing.assert_array_equal(found, expected)
    for mask in (prompts, (prompts != 0)[:, :4]):
        with pytest.raises(ValueError, match="A padding mask must be boolean with the shape of its tokens"):
            windowed.generate(prompts, END, padding_mask=mask)


def test_coverage_of_features_needs_a_mask():
    features = np.zeros((1, 5, 7), "float32")
    with pytest.raises(ValueError, match=r"needs `encoder_padding_mask`.* of shape \(1, 5, 7\)"):
        make_model().generate(features, START, END, options=DecodingOptions(coverage_penalty=0.5))


@pytest.mark.extended
def test_start_may_be_the_pad_when_a_mask_says_what_the_source_is():
    """Of two models one has the vocabulary of the other with 0, its pad, and START exchanged."""
    twin, model = (make_model("pre_norm", num_encoder_layers=1, num_decoder_layers=1) for _ in range(2))
    embeddings = keras.ops.convert_to_numpy(twin.target_embedding.token.embeddings)
    model.target_embedding.token.embeddings.assign(embeddings[[START, 1, PAD, *range(3, len(embeddings))]])
    source = make_batch()["encoder_token_ids"]
    arguments = {"num_beams": 3, "num_return_sequences": 3, "max_length": 5}
    expected = twin.generate(source, START, END, unwritable_token_ids=(START,), **arguments)
    mask = source != PAD
    pads_elsewhere = np.where(mask, source, 7)
    found = model.generate(
        pads_elsewhere, PAD, END, encoder_padding_mask=mask, unwritable_token_ids=(START,), **arguments
    )
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
    forced = model.teacher_forced(pads_elsewhere, np.array([[PAD, 5, 6]] * 3), mask)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(forced)[..., 3:],
        keras.ops.convert_to_numpy(twin.teacher_forced(source, np.array([[START, 5, 6]] * 3)))[..., 3:],
        rtol=1e-5,
        atol=1e-5,
    )


def test_teacher_forcing_is_the_forward_pass():
    model, batch = shared_model("two_vocabularies"), make_batch(pads=False)
    logits, scores = model.teacher_forced(**batch, return_attention_scores=True)
    np.testing.assert_allclose(logits, model(batch), rtol=1e-4, atol=1e-5)
    assert [tuple(of_layer.shape) for of_layer in scores] == [(3, 2, 5, 7)] * 2


@keras.saving.register_keras_serializable(package="tests")
class ComposedTranslator(Seq2SeqGeneration, keras.Model):
    """An encoder and a decoder of one block each, with other positions than our model has, and ten lines of adapter."""

    max_sequence_length, pad_token_id, target_vocabulary_size = 37, PAD, None

    def __init__(self, vocabulary_size, **kwargs):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.embedding = TokenEmbedding(vocabulary_size, 12, name="embedding")
        self.positions = SinusoidalPositionEncoding(name="positions")
        self.encoder_block = EncoderBlock(17, 2, name="encoder_block")
        self.decoder_block = DecoderBlock(19, 2, name="decoder_block")
        self.build()

    def build(self, input_shape=None):
        if self.built:
            return
        self.embedding.build((None, None))
        self.encoder_block.build((None, None, 12))
        self.decoder_block.build((None, None, 12), (None, None, 12))
        self.built = True

    def encode(self, token_ids, mask=None):
        mask = padding_mask(token_ids, PAD) if mask is None else mask
        x = self.embedding(token_ids)
        return self.encoder_block(x + self.positions(x), padding_mask=mask)

    def init_cache(self, encoder_token_ids, length, encoder_padding_mask=None):
        sequence = self.encode(encoder_token_ids, encoder_padding_mask)
        cross = self.decoder_block.project_to_cache(sequence, encoder_padding_mask)
        own = self.decoder_block.empty_cache(keras.ops.shape(encoder_token_ids)[0], length)
        return Seq2SeqCache((own,), (cross,), encoder_padding_mask)

    def call_with_cache(
        self, token_ids, cache, cache_update_index, positions=None, decoder_attention_mask=None
    ):
        x = self.embedding(token_ids)
        x, own = self.decoder_block(
            x + self.positions(x, positions=positions),
            decoder_positions=positions,
            decoder_attention_mask=decoder_attention_mask,
            encoder_padding_mask=cache.encoder_padding_mask,
            self_attention_cache=cache.self_attention[0],
            self_attention_cache_update_index=cache_update_index,
            cross_attention_cache=cache.cross_attention[0],
            use_causal_mask=decoder_attention_mask is None,
        )
        return self.embedding(x, reverse=True), cache._replace(self_attention=(own,))

    def call(self, inputs):
        source = inputs["encoder_token_ids"]
        x = self.embedding(inputs["decoder_token_ids"])
        x = self.decoder_block(
            x + self.positions(x), self.encode(source), encoder_padding_mask=padding_mask(source, PAD)
        )
        return self.embedding(x, reverse=True)

    def get_config(self):
        return {**super().get_config(), "vocabulary_size": self.vocabulary_size}


def composed(vocabulary_size=259):
    return randomize(ComposedTranslator(vocabulary_size), seed=4, spread=0.5)


def functional_model(num_layers=2):
    encoder_token_ids = keras.Input((None,), dtype="int32", name="encoder_token_ids")
    decoder_token_ids = keras.Input((None,), dtype="int32", name="decoder_token_ids")
    embedding = TokenEmbedding(V, 14)
    encoder_padding_mask = ops.not_equal(encoder_token_ids, PAD)

    x = embedding(encoder_token_ids)
    x = x + SinusoidalPositionEncoding()(x)
    for _ in range(num_layers):
        x = EncoderBlock(17, num_heads=2, dropout=0.1)(x, padding_mask=encoder_padding_mask)
    y = embedding(decoder_token_ids)
    y = y + SinusoidalPositionEncoding()(y)
    for _ in range(num_layers):
        y = DecoderBlock(17, num_heads=2, dropout=0.1)(y, x, encoder_padding_mask=encoder_padding_mask)
    return keras.Model([encoder_token_ids, decoder_token_ids], embedding(y, reverse=True))


def functional_model_of_implicit_masks(num_layers=3):
    """`mask_zero` and no mask argument anywhere: Keras' own MultiHeadAttention loses the mask here."""
    encoder_token_ids = keras.Input((None,), dtype="int32", name="encoder_token_ids")
    decoder_token_ids = keras.Input((None,), dtype="int32", name="decoder_token_ids")
    embedding = TokenEmbedding(V, 14, mask_zero=True)
    x = embedding(encoder_token_ids)
    for _ in range(num_layers):
        x = EncoderBlock(17, num_heads=2)(x)
    y = embedding(decoder_token_ids)
    for _ in range(num_layers):
        y = DecoderBlock(17, num_heads=2)(y, x)
    return keras.Model([encoder_token_ids, decoder_token_ids], embedding(y, reverse=True))


MODELS = {
    "functional": functional_model,
    "implicit": functional_model_of_implicit_masks,
    "subclassed": lambda num_layers: composed(V),
}


@pytest.mark.parametrize("name", ["implicit", "subclassed"])
def test_padding_changes_nothing_in_a_composed_model(name):
    model = MODELS[name](num_layers=2)
    batch = make_batch()
    real = batch["decoder_token_ids"] != PAD
    logits = call(model, batch)
    longer = {key: np.pad(ids, ((0, 0), (0, 4))) for key, ids in batch.items()}
    assert_close(call(model, longer)[:, : real.shape[1]][real], logits[real])
    ids = batch["encoder_token_ids"][-1]
    last = {
        "encoder_token_ids": ids[None, ids != PAD],
        "decoder_token_ids": batch["decoder_token_ids"][-1][None, real[-1]],
    }
    assert_close(call(model, last)[0], logits[-1][real[-1]])


@pytest.mark.extended
@pytest.mark.parametrize("name", MODELS)
def test_it_trains_and_the_source_still_matters(name):
    keras.utils.set_random_seed(13)
    batch = make_batch()
    labels = np.roll(batch["decoder_token_ids"], -1, axis=1)
    labels[:, -1] = PAD
    model = MODELS[name](num_layers=1)
    model.compile(keras.optimizers.SGD(0.1), loss=LabelSmoothedCrossentropy(0.1), run_eagerly=True)
    losses = [model.train_on_batch(batch, labels) for _ in range(3)]
    assert losses[-1] < losses[0]
    other = batch | {"encoder_token_ids": make_batch(seed=8)["encoder_token_ids"]}
    assert np.abs(call(model, other) - call(model, batch)).max() > 1e-3


@pytest.fixture(scope="module")
def of_tokens():
    return composed(V)


@pytest.mark.extended
def test_a_composed_translator_generates_what_its_forward_pass_says(of_tokens):
    source = np.array([[5, 6, 7, 3, 0], [8, 9, 10, 11, 3]], "int32")
    found = of_tokens.generate(source, START, END, 3, num_return_sequences=3, max_length=7)

    def log_probs(row, prefix):
        of_row = source[row : row + 1]
        return log_probabilities_after(
            of_tokens, prefix, encoder_token_ids=of_row, decoder_token_ids=padded(prefix)
        )

    for row in range(2):
        assert_found(found, row, beam_search_by_hand(functools.partial(log_probs, row), 7, 3))


class ComposedCaptioner(ComposedTranslator):
    """Reads images: the source is a tensor of floats, whose patches attend to each other."""

    def build(self, input_shape=None):
        self.patches = keras.layers.Conv2D(12, (5, 3), strides=(5, 3))
        self.patches.build((None, None, None, 2))
        super().build(input_shape)

    def encode(self, images, mask=None):
        patches = keras.ops.reshape(self.patches(images), (images.shape[0], -1, 12))
        return self.encoder_block(patches, padding_mask=mask)

    def call(self, inputs):
        x = self.embedding(inputs["captions"])
        return self.embedding(
            self.decoder_block(x + self.positions(x), self.encode(inputs["images"])), reverse=True
        )


@pytest.mark.extended
def test_a_composed_model_reads_images_and_writes_captions():
    model = randomize(ComposedCaptioner(V), seed=4, spread=0.5)
    images = np.random.default_rng(5).normal(size=(2, 10, 9, 2)).astype("float32")
    found = model.generate(images, START, END, num_beams=3, num_return_sequences=3, max_length=7)

    def log_probs(row, prefix):
        return log_probabilities_after(model, prefix, images=images[row : row + 1], captions=padded(prefix))

    for row in range(2):
        assert_found(found, row, beam_search_by_hand(functools.partial(log_probs, row), 7, 3))
    captions = np.array([[START, 5, 6]] * 2)
    forced, passed = (
        keras.ops.convert_to_numpy(logits)
        for logits in (
            model.teacher_forced(images, captions),
            model({"images": images, "captions": captions}),
        )
    )
    np.testing.assert_allclose(forced, passed, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="`coverage_penalty` needs the scores of cross-attention"):
        model.generate(images, START, END, options=DecodingOptions(coverage_penalty=0.5))


def test_features_of_sequences_have_the_mask_that_is_given(of_tokens):
    """Speech is a tensor (B, S, features); embeddings of tokens stand for it, which must be read as the tokens are."""
    source = np.array([[5, 6, 7, 3, 0], [8, 9, 10, 11, 3]], "int32")

    class OfFeatures(Seq2SeqGeneration):
        max_sequence_length, pad_token_id = of_tokens.max_sequence_length, PAD
        call_with_cache = of_tokens.call_with_cache

        def init_cache(self, features, length, encoder_padding_mask=None):
            sequence = of_tokens.encoder_block(
                features + of_tokens.positions(features), padding_mask=encoder_padding_mask
            )
            cross = of_tokens.decoder_block.project_to_cache(sequence, encoder_padding_mask)
            own = of_tokens.decoder_block.empty_cache(features.shape[0], length)
            return Seq2SeqCache((own,), (cross,), encoder_padding_mask)

    model, features = OfFeatures(), keras.ops.convert_to_numpy(of_tokens.embedding(source))
    arguments = {"num_beams": 2, "num_return_sequences": 2, "max_length": 7}
    found = model.generate(features, START, END, encoder_padding_mask=source != PAD, **arguments)
    expected = of_tokens.generate(source, START, END, **arguments)
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
    with pytest.raises(ValueError, match=r"with the shape of its tokens, \(2, 5\)"):
        model.generate(features, START, END, encoder_padding_mask=(source != PAD)[:, 1:])


@pytest.mark.extended
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="strings are TensorFlow's")
def test_a_composed_translator_takes_strings_is_saved_and_served(tmp_path):
    import tensorflow as tf

    import keras_attn
    from keras_attn.tasks.search_functions import TranslatorFunctions
    from keras_attn.text import ByteTokenizer

    tokenizer = ByteTokenizer()
    translator = keras_attn.Translator(composed(), tokenizer, tokenizer, num_beams=1, max_length=5)
    texts = ["ab", "a longer text", ""]
    expected, scores = translator(texts, return_scores=True)
    assert "".join(translator.stream(texts[1])) == expected[1]
    assert np.isfinite(translator.score(texts, ["x", "yy", "z"])).all()
    translator.save(tmp_path / "it")
    loaded = keras_attn.Translator.load(tmp_path / "it")
    assert type(loaded.model) is ComposedTranslator
    assert loaded(texts, return_scores=True) == (expected, scores)
    signatures = TranslatorFunctions(loaded)
    served = tf.function(signatures.serving_default, autograph=False)(tf.constant(texts))
    assert [row.decode() for row in served["outputs"].numpy()] == expected
    assert set(signatures.all()) == set(keras_attn.Translator.signatures)
    function, specs = signatures.all()["translate"]
    traced = tf.function(function, autograph=False).get_concrete_function(*specs)
    assert "alignment" not in traced.structured_outputs  # the adapter returns no attention scores
    with pytest.raises(ValueError, match=r"`model` must be a keras_attn\.models\.Seq2SeqGeneration"):
        keras_attn.Translator(keras.Model(), tokenizer, tokenizer)


@pytest.mark.parametrize("number", [0, 1025, 10**6, 2.0, True])
def test_a_number_of_beams_out_of_range_is_refused(windowed, number):
    with pytest.raises(ValueError, match=r"`num_beams` must be .* Received: num_beams="):
        windowed.generate(np.array([[4]]), END, num_beams=number)
    with pytest.raises(
        ValueError, match=r"`num_return_sequences` must be .* Received: num_return_sequences="
    ):
        windowed.generate(np.array([[4]]), END, num_return_sequences=number, options=DecodingOptions(seed=1))


def test_numpy_integers_are_integers(windowed):
    prompt = np.array([[4, 5]])
    found = windowed.generate(
        prompt, END, num_beams=np.int64(2), num_return_sequences=np.int32(2), max_length=np.int64(2)
    )
    expected = windowed.generate(prompt, END, num_beams=2, num_return_sequences=2, max_length=2)
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
