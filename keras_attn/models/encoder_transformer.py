import keras
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.models.base_model import OneStackTransformer, as_dict, checked_inputs
from keras_attn.models.plain_transformer import Sizes
from keras_attn.ops import pooled

_OPTIONAL_INPUTS = ("padding_mask", "token_type_ids", "positions", "segment_ids")


@keras.saving.register_keras_serializable(package="keras_attn")
class EncoderTransformer(OneStackTransformer):
    """An encoder-only Transformer: token ids in, a vector for each token, or for each sentence, out.

    It is made of parts, which are configured layers; `from_sizes` makes the parts of a plain one. The weights exist as
    soon as the model does.

    Args:
        embedding: Layer from token ids to vectors: a `SequenceEmbedding`, or a bare
            `TokenEmbedding`.
        blocks: List of `EncoderBlock`s. It may hold one block several times (ALBERT), and blocks may share
            layers.
        norm: Norm layer after the last block, or None.
        max_sequence_length: Integer, the longest sequence. Defaults to the number of positions of the embedding, or 512.
        pad_token_id: Integer, the id of pads if no `padding_mask` is given.

    Call arguments:
        inputs: Integers (B, T), or a dict of them: `token_ids`; `padding_mask`, boolean (B, T), True at real tokens,
            without which the pads are the tokens with the id `pad_token_id`; `token_type_ids`; for rows of several packed
            sequences `segment_ids`, which number them, 0 at padding. `positions` (T,) or (B, T) replace those of
            `keras_attn.ops.token_positions`, which count the real tokens of a row, or segment.
        training: Boolean.

    Returns:
        Floats (B, T, D), a vector for each token.

    Raises:
        ValueError: for parts that are not layers, for arguments out of range, and for token ids outside the
            vocabulary (a TensorFlow graph raises when it runs; see `TokenEmbedding`).

    Example:

    ```python
    model = keras_attn.models.EncoderTransformer.from_sizes(100, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    token_ids = np.array([[5, 6, 7, 3], [8, 3, 0, 0]])
    sequence = model(token_ids)  # (2, 4, 16)
    vectors = model.sentence_vectors(token_ids)  # (2, 16)

    block = keras_attn.layers.EncoderBlock(intermediate_dim=32, num_heads=2)
    token = keras_attn.layers.TokenEmbedding(vocabulary_size=100, hidden_dim=16)
    albert = keras_attn.models.EncoderTransformer(keras_attn.layers.SequenceEmbedding(token), [block] * 3)
    ```

    References: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1;
    [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 3.
    """

    @classmethod
    def from_sizes(
        cls, vocabulary_size, num_layers, pad_token_id=0, scale_embedding=True, dtype=None, name=None, **sizes
    ):
        """A model with fresh weights of the given sizes.

        Args:
            vocabulary_size: Integer V.
            num_layers: Integer.
            pad_token_id: Integer.
            scale_embedding: Boolean, whether embeddings are multiplied by sqrt(D), as in Vaswani et al., not
                in BERT.
            dtype, name: Of the model.
            **sizes: As in `Sizes`.
        """
        sizes = Sizes(dtype=dtype, **sizes)
        return cls(
            sizes.embedding(sizes.token_embedding(vocabulary_size, scale=scale_embedding)),
            sizes.encoder_blocks(check_positive("num_layers", num_layers)),
            sizes.norm("norm"),
            **sizes.model_arguments(pad_token_id, name),
        )

    def call(self, inputs, training=None):
        return self.sequence_and_mask(inputs, training)[0]

    def sequence_and_mask(self, inputs, training=None):
        """What a head reads: the vectors, floats (B, T, D), and which tokens are real, boolean (B, T).

        Args:
            inputs, training: As in a call.
        """
        inputs = checked_inputs(as_dict(inputs), ("token_ids",), _OPTIONAL_INPUTS)
        tokens = self._side_tokens(inputs)
        token_types = {}
        if inputs.get("token_type_ids") is not None:
            token_types["token_type_ids"] = inputs["token_type_ids"]
        x = self._embed(self.embedding, tokens, training, **token_types)
        x = self._run_encoder_blocks(x, self.blocks, self.norm, tokens, training)
        return x, tokens.padding_mask

    def sentence_vectors(self, inputs):
        """The mean over each sentence's real tokens, float32 (B, D); 0 for a sentence without any.

        Args:
            inputs: As in a call.

        Reference: [Reimers and Gurevych, 2019](https://arxiv.org/abs/1908.10084), section 3.
        """
        sequence, padding_mask = self.sequence_and_mask(inputs)
        return pooled(ops.cast(sequence, "float32"), ops.cast(padding_mask, "bool"), "mean")
