import keras
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.layers import DecoderBlock, TokenEmbedding
from keras_attn.models.generation import CausalGeneration
from keras_attn.models.transformer import Transformer
from keras_attn.ops import padding_mask, segment_positions, successive_positions

_INPUTS = ("token_ids", "positions", "segment_ids")


@keras.saving.register_keras_serializable(package="keras_attn")
class DecoderTransformer(CausalGeneration, Transformer):
    """A decoder-only Transformer, or language model: token ids in, logits of the next tokens out.

    The blocks are those of `Seq2SeqTransformer`'s decoder without cross-attention. The defaults are GPT-2's.

    Args:
        vocabulary_size: Integer V.
        num_layers: Integer.
        hidden_dim, num_heads, intermediate_dim, dropout, attention_dropout, activation, gated, normalize_first,
        normalization, layer_norm_epsilon, position_encoding, max_sequence_length, pad_token_id: As in
            `Seq2SeqTransformer`.
        tie_output: Boolean, whether the output projection is the embedding, transposed.
        scale_embedding: Boolean, whether embeddings are multiplied by sqrt(D), as Vaswani et al. do and GPT-2 not.

    Call arguments:
        inputs: Integers (B, T), or a dict of them: `token_ids`, and for rows of several packed sequences
            `segment_ids`, which number them, 0 at padding. `positions` replace 0, 1, 2, ..., which start again with
            every segment.
        training: Boolean.

    Returns:
        Logits, float32 (B, T, V), of the token after each.

    Raises:
        ValueError: for arguments out of range, and for token ids outside the vocabulary (eagerly; in a compiled graph
            they are clamped).

    Example:

    ```python
    model = keras_attn.models.DecoderTransformer(100, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    logits = model(np.array([[2, 5, 6, 7], [2, 8, 9, 0]]))  # (2, 4, 100)
    token_ids = model.generate(np.array([[2, 5, 6], [2, 8, 0]]), end_token_id=3, max_length=5)  # (2, 5)
    ```

    Reference: [Radford et al., 2019](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf),
    section 2.3.
    """

    def __init__(
        self,
        vocabulary_size,
        num_layers,
        hidden_dim,
        num_heads,
        intermediate_dim,
        dropout=0.1,
        tie_output=True,
        attention_dropout=0.1,
        activation="gelu",
        gated=False,
        normalize_first=True,
        normalization="layer_norm",
        layer_norm_epsilon=1e-5,
        position_encoding="learned",
        max_sequence_length=1024,
        pad_token_id=0,
        scale_embedding=False,
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
        self.tie_output = tie_output
        self.token_embedding = TokenEmbedding(
            vocabulary_size,
            hidden_dim,
            scale=scale_embedding,
            tie_weights=tie_output,
            dtype=self._policy_of("token_embedding"),
            name="token_embedding",
        )
        self.positions = self._make_position_encoding("position_encoding")
        self.blocks = self._make_blocks(DecoderBlock, "self_attention", "decoder_block", num_layers)
        self.norm = self._make_norm("norm")
        self.build()

    def call(self, inputs, training=None):
        token_ids, positions, segment_ids = _unpacked(inputs)
        x = self._embed(self.token_embedding, self.positions, token_ids, positions, training)
        mask = padding_mask(token_ids, self.pad_token_id)
        for block in self.blocks:
            x = block(
                x,
                decoder_padding_mask=mask,
                training=training,
                decoder_positions=positions,
                decoder_segment_ids=segment_ids,
            )
        return self._logits(x)

    def empty_cache(self, batch_size, length):
        """A tuple with a pair of (B, N, length, H) tensors a layer: room for the keys and values of so many tokens."""
        return tuple(block.empty_cache(batch_size, length) for block in self.blocks)

    def call_with_cache(
        self,
        token_ids,
        cache,
        cache_update_index,
        positions=None,
        attention_mask=None,
        cache_positions=None,
        projections=None,
    ):
        """Logits of the tokens after `token_ids`, given those before, whose keys and values are in `cache`.

        Args:
            token_ids: Integers (B, T), one token or more; none is taken for a pad.
            cache: A cache, see `empty_cache`.
            cache_update_index: Integer scalar, the slot of the first token.
            positions: Integers (T,) or (B, T). By default slots are positions.
            attention_mask: Boolean (B, T, slots), True at slots that a token may attend to. By default every token
                sees its own slot and those before.
            cache_positions: Integers (slots,) or (B, slots), the positions of what stands in the slots. By default
                they follow each other.
            projections: What `step_projections` of each block gave, a tuple: made once for a loop of steps.

        Returns:
            Logits, float32 (B, T, V), and the new cache.
        """
        if positions is None:
            positions = successive_positions(ops.shape(token_ids)[1], cache_update_index)
        # What stands before position 0 is padding, which no embedding has.
        x = self._embed(self.token_embedding, self.positions, token_ids, ops.maximum(positions, 0), None)
        new_cache = []
        for block, of_layer, of_block in zip(self.blocks, cache, projections or [None] * len(self.blocks)):
            x, of_layer = block(
                x,
                decoder_attention_mask=attention_mask,
                self_attention_cache=of_layer,
                self_attention_cache_update_index=cache_update_index,
                use_causal_mask=attention_mask is None,
                projections=of_block,
                **self._positions_of_attention(positions, cache_positions),
            )
            new_cache.append(of_layer)
        return self._logits(x), tuple(new_cache)

    def step_projections(self):
        """Each block's projections as a loop of cached calls wants them, for `call_with_cache`."""
        return tuple(block.step_projections() for block in self.blocks)

    def _logits(self, x):
        x = x if self.norm is None else self.norm(x)
        return ops.cast(self.token_embedding(x, reverse=True), "float32")

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
            "tie_output": self.tie_output,
        }


def _unpacked(inputs):
    """Token ids, positions and segment ids; positions start again with every segment."""
    if not isinstance(inputs, dict):
        return inputs, None, None
    if "token_ids" not in inputs or not set(inputs) <= set(_INPUTS):
        raise ValueError(
            f"`inputs` must be token ids, or a dict of them and of {_INPUTS[1:]}. Received: {sorted(inputs)}."
        )
    token_ids, positions, segment_ids = (inputs.get(name) for name in _INPUTS)
    if positions is None and segment_ids is not None:
        positions = segment_positions(ops.cast(segment_ids, "int32"))
    return token_ids, positions, segment_ids
