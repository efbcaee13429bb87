import keras
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.layers.clean_padding import clean_padding_scope
from keras_attn.models.base_model import OneStackTransformer, as_dict, checked_inputs
from keras_attn.models.generation import CausalGeneration
from keras_attn.models.plain_transformer import Sizes
from keras_attn.ops import successive_positions

_OPTIONAL_INPUTS = ("padding_mask", "positions", "segment_ids")
# GPT-2's (Radford et al., 2019), where they differ from those of `Sizes`.
_DEFAULT_SIZES = {
    "attention_dropout": 0.1,
    "activation": "gelu",
    "normalize_first": True,
    "position_encoding": "learned",
    "max_sequence_length": 1024,
}


@keras.saving.register_keras_serializable(package="keras_attn")
class DecoderTransformer(CausalGeneration, OneStackTransformer):
    """A decoder-only Transformer, or language model: token ids in, logits of the next tokens out.

    It is made of parts, which are configured layers; `from_sizes` makes the parts of a plain one, GPT-2's by default. The
    weights exist as soon as the model does.

    Args:
        embedding: Layer from token ids to vectors, and with `reverse=True` to logits: a `SequenceEmbedding`, or a bare
            `TokenEmbedding`.
        blocks: List of `DecoderBlock`s, which are built without cross-attention.
        norm: Norm layer after the last block, or None.
        max_sequence_length: Integer, the longest sequence of generation. Defaults to the number of positions of the
            embedding, or 512.
        pad_token_id: Integer, the id of pads if no `padding_mask` is given, and of the pads after answers.

    Call arguments:
        inputs: Integers (B, T), or a dict of them: `token_ids`; `padding_mask`, boolean (B, T), True at real tokens,
            without which the pads are the tokens with the id `pad_token_id`; for rows of several packed sequences
            `segment_ids`, which number them, 0 at padding. `positions` (T,) or (B, T) replace those of
            `keras_attn.ops.token_positions`, which count the real tokens of a row, or segment.
        training: Boolean.

    Returns:
        Logits, float32 (B, T, V), of the token after each token; vectors (B, T, D) if the token embedding has
        `gives_logits=False`.

    Raises:
        ValueError: for parts that are not layers, for arguments out of range, and for token ids outside the
            vocabulary (a TensorFlow graph raises when it runs; see `TokenEmbedding`).

    Example:

    ```python
    model = keras_attn.models.DecoderTransformer.from_sizes(100, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    logits = model(np.array([[2, 5, 6, 7], [2, 8, 9, 0]]))  # (2, 4, 100)
    token_ids = model.generate(np.array([[2, 5, 6], [2, 8, 0]]), end_token_id=3, max_length=5)  # (2, 5)

    def llama_block():  # grouped heads, rotary positions, no biases
        attention = keras_attn.layers.MultiHeadAttention(
            4, 4, use_bias=False, num_key_value_heads=2, rotary_embedding=keras_attn.layers.RotaryEmbedding()
        )
        feed_forward = keras_attn.layers.FeedForward(32, activation="silu", gated=True, use_bias=False)
        norm = keras.layers.RMSNormalization(epsilon=1e-5)
        return keras_attn.layers.DecoderBlock(
            normalize_first=True, self_attention=attention, feed_forward=feed_forward, norm=norm
        )

    token = keras_attn.layers.TokenEmbedding(100, 16, scale=False, tie_weights=False)
    llama = keras_attn.models.DecoderTransformer(
        keras_attn.layers.SequenceEmbedding(token), [llama_block() for _ in range(2)], keras.layers.RMSNormalization()
    )
    ```

    Reference: [Radford et al., 2019](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf),
    section 2.3.
    """

    @classmethod
    def from_sizes(
        cls,
        vocabulary_size,
        num_layers,
        pad_token_id=0,
        tie_output=True,
        scale_embedding=False,
        dtype=None,
        name=None,
        **sizes,
    ):
        """A model with fresh weights of the given sizes.

        Args:
            vocabulary_size: Integer V.
            num_layers: Integer.
            pad_token_id: Integer.
            tie_output: Boolean, whether the output projection is the embedding, transposed.
            scale_embedding: Boolean, whether embeddings are multiplied by sqrt(D), as in Vaswani et al., not
                in GPT-2.
            dtype, name: Of the model.
            **sizes: As in `Sizes`; the defaults are GPT-2's.
        """
        sizes = Sizes(dtype=dtype, **(_DEFAULT_SIZES | sizes))
        token = sizes.token_embedding(vocabulary_size, scale=scale_embedding, tie_weights=tie_output)
        return cls(
            sizes.embedding(token),
            sizes.decoder_blocks(check_positive("num_layers", num_layers), cross_attention=False),
            sizes.norm("norm"),
            **sizes.model_arguments(pad_token_id, name),
        )

    def call(self, inputs, training=None):
        sequence, _ = self.sequence_and_mask(inputs, training)
        return self._logits_or_vectors(sequence, self.embedding, None)

    def sequence_and_mask(self, inputs, training=None):
        """What a head reads: the vectors, floats (B, T, D), and which tokens are real, boolean (B, T).

        Args:
            inputs, training: As in a call.
        """
        inputs = checked_inputs(as_dict(inputs), ("token_ids",), _OPTIONAL_INPUTS)
        tokens = self._side_tokens(inputs)
        vectors = self._embed(self.embedding, tokens, training)
        with clean_padding_scope((vectors, tokens.real_tokens)) as (x,):
            for block in self.blocks:
                x = block(
                    x,
                    decoder_padding_mask=tokens.padding_mask,
                    decoder_positions=tokens.positions,
                    decoder_segment_ids=tokens.segment_ids,
                    training=training,
                )
        if self.norm is not None:
            x = self.norm(x)
        return x, tokens.padding_mask

    def empty_cache(self, batch_size, length):
        """A tuple with one pair of (B, N, length, H) tensors per layer: empty keys and values."""
        return tuple(block.empty_cache(batch_size, length) for block in self.blocks)

    def call_with_cache(self, token_ids, cache, cache_update_index, positions=None, attention_mask=None):
        """Logits of the token after each of `token_ids`, with keys and values of earlier tokens in `cache`.

        Args:
            token_ids: Integers (B, T), one token or more; none is treated as a pad.
            cache: A cache, see `empty_cache`; that of each layer may be a `keras_attn.ops.KeyValueCache`.
            cache_update_index: Integer scalar, the slot of the first token.
            positions: Integers (T,) or (B, T). By default slots are positions.
            attention_mask: Boolean (B, T, slots), True at slots that a token may attend to. By default every token
                sees its own slot and those before.

        Returns:
            Logits, float32 (B, T, V), and the new cache.
        """
        embedded_positions = positions
        if positions is None:
            embedded_positions = successive_positions(ops.shape(token_ids)[1], cache_update_index)
        # Tokens before position 0 are padding, for which there is no position embedding.
        x = self.embedding(token_ids, positions=ops.maximum(embedded_positions, 0))
        new_cache = []
        for block, block_cache in zip(self.blocks, cache):
            x, block_cache = block(
                x,
                decoder_attention_mask=attention_mask,
                self_attention_cache=block_cache,
                self_attention_cache_update_index=cache_update_index,
                use_causal_mask=attention_mask is None,
                decoder_positions=positions,
            )
            new_cache.append(block_cache)
        return self._logits(x, self.embedding, self.norm), tuple(new_cache)
