import keras
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.layers import EncoderBlock, TokenEmbedding
from keras_attn.models.transformer import Transformer
from keras_attn.ops import keep, padding_mask


@keras.saving.register_keras_serializable(package="keras_attn")
class EncoderTransformer(Transformer):
    """An encoder-only Transformer: token ids in, a vector for each token, or for each sentence, out.

    Args:
        vocabulary_size: Integer V.
        num_layers: Integer.
        hidden_dim, num_heads, intermediate_dim, dropout, attention_dropout, activation, gated, normalize_first,
        normalization, layer_norm_epsilon, position_encoding, max_sequence_length, pad_token_id: As in
            `Seq2SeqTransformer`.
        scale_embedding: Boolean, whether embeddings are multiplied by sqrt(D), as Vaswani et al. do and BERT not.

    Call arguments:
        inputs: Integers (B, T).
        training: Boolean.
        positions: Integers (T,) or (B, T). By default 0, 1, 2, ...
        segment_ids: Integers (B, T), which of several sequences packed into a row a token belongs to; 0 is padding.

    Returns:
        Floats (B, T, D), a vector for each token.

    Raises:
        ValueError: for arguments out of range, and for token ids outside the vocabulary (eagerly; in a compiled graph
            they are clamped).

    Example:

    ```python
    model = keras_attn.models.EncoderTransformer(100, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    token_ids = np.array([[5, 6, 7, 3], [8, 3, 0, 0]])
    sequence = model(token_ids)  # (2, 4, 16)
    vectors = model.sentence_vectors(token_ids)  # (2, 16)
    ```

    References: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1;
    [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 3.
    """

    def __init__(
        self,
        vocabulary_size,
        num_layers,
        hidden_dim,
        num_heads,
        intermediate_dim,
        dropout=0.1,
        attention_dropout=0.0,
        activation="relu",
        gated=False,
        normalize_first=False,
        normalization="layer_norm",
        layer_norm_epsilon=1e-5,
        position_encoding="sinusoidal",
        max_sequence_length=512,
        pad_token_id=0,
        scale_embedding=True,
        **kwargs,
    ):
        super().__init__(
            hidden_dim=hidden_dim,
            num_heads=num_heads,
            intermediate_dim=intermediate_dim,
            dropout=dropout,
            attention_dropout=attention_dropout,
            activation=activation,
            gated=gated,
            normalize_first=normalize_first,
            normalization=normalization,
            layer_norm_epsilon=layer_norm_epsilon,
            position_encoding=position_encoding,
            max_sequence_length=max_sequence_length,
            pad_token_id=pad_token_id,
            **kwargs,
        )
        check_positive("vocabulary_size", vocabulary_size)
        check_positive("num_layers", num_layers)
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.scale_embedding = scale_embedding
        self.token_embedding = TokenEmbedding(
            vocabulary_size,
            hidden_dim,
            scale=scale_embedding,
            dtype=self._policy_of("token_embedding"),
            name="token_embedding",
        )
        self.positions = self._make_position_encoding("position_encoding")
        self.blocks = self._make_blocks(EncoderBlock, "attention", "encoder_block", num_layers)
        self.norm = self._make_norm("norm")
        self.build()

    def call(self, inputs, training=None, positions=None, segment_ids=None):
        mask = padding_mask(inputs, self.pad_token_id)
        x = self._embed(self.token_embedding, self.positions, inputs, positions, training)
        for block in self.blocks:
            x = block(x, padding_mask=mask, training=training, positions=positions, segment_ids=segment_ids)
        return x if self.norm is None else self.norm(x)

    def sentence_vectors(self, token_ids):
        """The mean over each sentence's real tokens, float32 (B, D); 0 for a sentence without any.

        Reference: [Reimers and Gurevych, 2019](https://arxiv.org/abs/1908.10084), section 3.
        """
        is_token = ops.expand_dims(padding_mask(token_ids, self.pad_token_id), -1)
        vectors = keep(ops.cast(self(token_ids), "float32"), is_token)
        count = ops.sum(ops.cast(is_token, "float32"), axis=1)
        return ops.sum(vectors, axis=1) / ops.maximum(count, 1.0)

    def _sequence_layers(self):
        return [self.token_embedding, self.positions, *self.blocks, self.norm]

    def _parts(self):
        return [self.token_embedding, *self.blocks]

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "num_layers": self.num_layers,
            "scale_embedding": self.scale_embedding,
        }
