"""EncoderTransformer against the blocks called one by one, and the vectors of sentences against their mean."""

import re

import keras
import numpy as np
import pytest
from helpers_models import PAD, assert_close
from keras import ops

from keras_attn.layers import DecoderBlock, EncoderBlock, SequenceEmbedding, TokenEmbedding
from keras_attn.models import DecoderTransformer, EncoderTransformer, RNNSeq2Seq, Seq2SeqTransformer

V = 13
IDS = np.array([[5, 6, 7, 8, 9], [4, 11, 12, PAD, PAD], [PAD] * 5])


def make_model(**options):
    keras.utils.set_random_seed(3)
    return EncoderTransformer.from_sizes(
        V,
        2,
        **{"hidden_dim": 20, "num_heads": 2, "intermediate_dim": 17, "max_sequence_length": 19, **options},
    )


def run(function, *arguments):
    return ops.convert_to_numpy(function(*(ops.convert_to_tensor(x, "int32") for x in arguments)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("normalize_first", [False, True])
def test_pads_change_nothing_and_places_matter(position_encoding, normalize_first):
    model = make_model(position_encoding=position_encoding, normalize_first=normalize_first)
    sequence = run(model, IDS)
    assert sequence.shape == (3, 5, 20)
    assert_close(run(model, IDS[1:2, :3])[0], sequence[1, :3])
    assert np.abs(run(model, IDS[:1, ::-1])[0, ::-1] - sequence[0]).max() > 1e-2


def test_it_is_its_blocks():
    model = make_model(normalize_first=True)
    ids = ops.convert_to_tensor(IDS, "int32")
    x = model.embedding.token(ids)
    x = x + model.embedding.position(x, padding_mask=ids != PAD)
    for block in model.blocks:
        x = block(x, padding_mask=ids != PAD)
    is_token = IDS != PAD
    assert_close(run(model, IDS)[is_token], ops.convert_to_numpy(model.norm(x))[is_token])


@pytest.mark.parametrize("make_token", [TokenEmbedding, keras.layers.Embedding])
def test_a_bare_token_embedding_is_taken(make_token, tmp_path):
    """As the `SequenceEmbedding` of it, in its dtype, and as one where it is of both sides."""
    token = make_token(V, 20, dtype="mixed_bfloat16")
    model = EncoderTransformer(token, [EncoderBlock(7, 2)])
    assert model.embedding.token is token
    assert model.embedding.compute_dtype == "bfloat16"
    assert model.vocabulary_size == V
    wrapped = EncoderTransformer(model.embedding, model.blocks)
    np.testing.assert_array_equal(run(model, IDS), run(wrapped, IDS))
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        run(keras.saving.load_model(tmp_path / "model.keras"), IDS), run(model, IDS)
    )


def test_a_bare_token_embedding_gives_logits_too():
    token = TokenEmbedding(V, 20)
    model = DecoderTransformer(token, [DecoderBlock(7, 2)])
    assert run(model, IDS).shape == (3, 5, V)
    seq2seq = Seq2SeqTransformer(token, token, [EncoderBlock(7, 2)], [DecoderBlock(7, 2)])
    assert seq2seq.source_embedding is seq2seq.target_embedding
    answers = seq2seq.generate(IDS, start_token_id=2, end_token_id=3, max_length=4)
    assert answers.shape[0] == 3


@pytest.mark.parametrize("token_ids", [IDS[0], IDS[None]], ids=["one_row", "three_axes"])
def test_token_ids_have_two_axes(token_ids):
    message = re.escape(f"of shape (B, T). Received: inputs of shape {token_ids.shape}")
    for model in (make_model(), make_model().sentence_vectors):
        with pytest.raises(ValueError, match=message):
            model(token_ids)
    decoder = DecoderTransformer.from_sizes(V, 1, hidden_dim=20, num_heads=2, intermediate_dim=7)
    message = re.escape(
        f"`prompt_token_ids` must have the shape (B, T). Received: prompt_token_ids of shape {token_ids.shape}"
    )
    with pytest.raises(ValueError, match=message):
        decoder.generate(token_ids, end_token_id=3, max_length=7)
    rnn = RNNSeq2Seq(V, hidden_dim=20)
    with pytest.raises(ValueError, match=re.escape("`encoder_token_ids` must have the shape (B, S)")):
        rnn.generate(token_ids, start_token_id=2, end_token_id=3, max_length=4)


def test_the_vector_of_a_sentence_is_the_mean_of_its_tokens():
    model = make_model()
    sequence, vectors = run(model, IDS), run(model.sentence_vectors, IDS)
    assert_close(vectors[0], sequence[0].mean(0))
    assert_close(vectors[1], sequence[1, :3].mean(0))
    np.testing.assert_array_equal(vectors[2], 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3, "position_encoding": "rotary"}, "`hidden_dim` must be divisible by `num_heads`"),
        ({"position_encoding": "none"}, "`position_encoding` must be one of"),
        ({"hidden_dim": 0}, "`hidden_dim` must be a positive integer"),
    ],
    ids=str,
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        make_model(**options)


@pytest.mark.parametrize("blocks", [["fourier"], [None], [], 3], ids=str)
def test_blocks_are_a_list_of_layers(blocks):
    embedding = SequenceEmbedding(TokenEmbedding(V, 20))
    with pytest.raises(ValueError, match=r"`blocks` must be a list of layers\. Received: blocks="):
        EncoderTransformer(embedding, blocks)
