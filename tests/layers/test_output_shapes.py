"""What layers say of their shapes before they are called: to Keras, to `TimeDistributed` and to `summary`."""

import keras
import pytest

from keras_attn import layers
from keras_attn.models import DecoderTransformer, EncoderTransformer, Seq2SeqTransformer

D = 12


@pytest.mark.parametrize(
    ("layer", "shapes", "expected"),
    [
        (layers.EncoderBlock(7, 3), [(2, 5, D)], (2, 5, D)),
        (layers.DecoderBlock(7, 3), [(2, 5, D), (2, 11, 13)], (2, 5, D)),
        (layers.FeedForward(7), [(2, 5, D)], (2, 5, D)),
        (layers.MultiHeadAttention(2, 3), [(2, 5, D), (2, 11, 13)], (2, 5, D)),
        (layers.MultiHeadAttention(2, 3, output_shape=(3, 7)), [(2, 5, D), (2, 11, 13)], (2, 5, 3, 7)),
        (layers.ClassificationHead(3), [(2, 5, D)], (2, 3)),
        (layers.ImageClassificationHead(3), [(2, 5, D)], (2, 3)),
        (layers.TokenClassificationHead(3), [(2, 5, D)], (2, 5, 3)),
        (layers.MaskedLanguageModelHead(layers.TokenEmbedding(17, D)), [(2, 5, D)], (2, 5, 17)),
        (layers.TokenEmbedding(17, D), [(2, 5)], (2, 5, D)),
        (layers.SequenceEmbedding(layers.TokenEmbedding(17, D)), [(2, 5)], (2, 5, D)),
        (
            layers.SequenceEmbedding(layers.TokenEmbedding(17, D), projection=keras.layers.Dense(23)),
            [(2, 5)],
            (2, 5, 23),
        ),
    ],
)
def test_the_shape_of_the_output(layer, shapes, expected):
    layer.build(*shapes)
    assert tuple(layer.compute_output_shape(*shapes)) == expected


@pytest.mark.parametrize(
    ("value_shape", "key_shape"), [((2, 2, 8), (2, 1, 7)), ((2, 2, 7), (2,)), ((2, 3), (2, 3))]
)
def test_shapes_that_do_not_fit_are_refused_before_a_call(value_shape, key_shape):
    with pytest.raises(ValueError, match=r"must be equal|must both have the shape"):
        layers.MultiHeadAttention(4, 2).compute_output_shape((2, 4, 8), value_shape, key_shape)


SIZES = {"hidden_dim": D, "num_heads": 2, "intermediate_dim": 7}


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: EncoderTransformer.from_sizes(17, 2, **SIZES), id="encoder"),
        pytest.param(lambda: DecoderTransformer.from_sizes(17, 2, **SIZES), id="decoder"),
        pytest.param(lambda: Seq2SeqTransformer.from_sizes(17, 2, 2, **SIZES), id="seq2seq"),
    ],
)
def test_a_summary_knows_every_shape(model):
    lines = []
    model().summary(print_fn=lines.append)
    text = "\n".join(lines)
    assert "?" not in text
    assert f"(None, None, {D})" in text
