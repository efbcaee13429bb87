import collections

import keras
from keras import ops

from keras_attn.checks import check_positive, choose
from keras_attn.layers.clean_padding import clean_padding_scope
from keras_attn.models.base_model import (
    Transformer,
    checked_inputs,
    checked_max_sequence_length,
    layer_list,
    sequence_embedding,
)
from keras_attn.models.generation import Seq2SeqGeneration
from keras_attn.models.plain_transformer import Sizes
from keras_attn.ops import successive_positions

# base and big: Vaswani et al. 2017, Table 3. tiny: Wu et al. 2021 (arXiv:2105.14462), Transformer-Tiny.
PRESETS = {
    name: {
        "num_encoder_layers": num_layers,
        "num_decoder_layers": num_layers,
        "hidden_dim": hidden_dim,
        "num_heads": num_heads,
        "intermediate_dim": intermediate_dim,
        "dropout": dropout,
    }
    for name, num_layers, hidden_dim, num_heads, intermediate_dim, dropout in (
        ("tiny", 4, 128, 4, 256, 0.3),
        ("base", 6, 512, 8, 2048, 0.1),
        ("big", 6, 1024, 16, 4096, 0.3),
    )
}

Seq2SeqCache = collections.namedtuple(
    "Seq2SeqCache", ["self_attention", "cross_attention", "encoder_padding_mask"]
)
Seq2SeqCache.__doc__ = """All that decoding needs from the encoder and the earlier tokens, as a value.

Attributes:
    self_attention: A tuple with one pair of (B, N, C, H) tensors per layer; C is the number of slots, written or
        empty.
    cross_attention: A tuple with one pair of (B, N, S, H) tensors per layer, which no step changes.
    encoder_padding_mask: Boolean (B, S).
"""


_REQUIRED_INPUTS = ("encoder_token_ids", "decoder_token_ids")
_OPTIONAL_INPUTS = (
    "encoder_padding_mask",
    "encoder_positions",
    "encoder_segment_ids",
    "decoder_padding_mask",
    "decoder_positions",
    "decoder_segment_ids",
)


@keras.saving.register_keras_serializable(package="keras_attn")
class Seq2SeqTransformer(Seq2SeqGeneration, Transformer):
    """The full encoder-decoder Transformer: token ids of two sequences in, logits of the next tokens out.

    It is made of parts, which are configured layers; `from_preset` and `from_sizes` make the parts of a plain one. Padding
    masks are passed explicitly to every block. The weights exist as soon as the model does. It is a `keras.Model`:
    compile, fit, evaluate, predict, save and load.

    Args:
        source_embedding: Layer from token ids to vectors: a `SequenceEmbedding`, or a bare `TokenEmbedding`.
        target_embedding: The same for the target, and with `reverse=True` from vectors to logits. It may be the source
            embedding, or share its `token`.
        encoder_blocks: List of `EncoderBlock`s.
        decoder_blocks: List of `DecoderBlock`s.
        encoder_norm, decoder_norm: Norm layers after the last blocks, or None.
        max_sequence_length: Integer, the longest sequence of generation. Defaults to the number of positions of the
            embeddings, or 512.
        pad_token_id: Integer, the id of pads if no padding mask is given, and of the pads after answers.

    Call arguments:
        inputs: Dict of integers `encoder_token_ids` (B, S) and `decoder_token_ids` (B, T), the latter beginning
            with START. `encoder_padding_mask` (B, S) and `decoder_padding_mask` (B, T), boolean, are True at real tokens;
            without them the pads are the tokens with the id `pad_token_id`, and START must not have this id.
            Rows may hold several packed sequences: `encoder_segment_ids` (B, S) and
            `decoder_segment_ids` (B, T) then number them, with the same number on both sides for sequences
            that belong together, 0 at padding. `encoder_positions` (B, S) and `decoder_positions` (B, T)
            replace those of `keras_attn.ops.token_positions`, which count the real tokens of a row, or
            segment.
        training: Boolean.

    Returns:
        Logits, float32 (B, T, V).

    Raises:
        ValueError: for parts that are not layers, for a preset or option that does not exist, for arguments
            out of range, and for token ids outside the vocabulary (a TensorFlow graph raises when it
            runs; see `TokenEmbedding`).

    Example:

    ```python
    model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    encoder_token_ids = np.array([[5, 6, 7, 3, 0], [8, 9, 3, 0, 0]])
    logits = model({"encoder_token_ids": encoder_token_ids, "decoder_token_ids": np.array([[2, 5], [2, 6]])})
    token_ids = model.generate(encoder_token_ids, start_token_id=2, end_token_id=3, max_length=5)

    layers = keras_attn.layers
    embedding = layers.SequenceEmbedding(layers.TokenEmbedding(100, 16))
    bias = layers.RelativePositionBias(num_buckets=8)  # one table for all blocks, as in T5
    attention = [layers.MultiHeadAttention(2, 8, position_bias=bias) for _ in range(2)]
    model = keras_attn.models.Seq2SeqTransformer(
        source_embedding=embedding,
        target_embedding=embedding,
        encoder_blocks=[layers.EncoderBlock(32, self_attention=layer) for layer in attention],
        decoder_blocks=[layers.DecoderBlock(32, num_heads=2) for _ in range(2)],
    )
    ```

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), figure 1.
    """

    _SLOTS = (
        "source_embedding",
        "target_embedding",
        "encoder_blocks",
        "decoder_blocks",
        "encoder_norm",
        "decoder_norm",
    )

    def __init__(
        self,
        source_embedding,
        target_embedding,
        encoder_blocks,
        decoder_blocks,
        encoder_norm=None,
        decoder_norm=None,
        max_sequence_length=None,
        pad_token_id=0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        is_shared = source_embedding is target_embedding
        source_embedding = sequence_embedding(source_embedding)
        target_embedding = source_embedding if is_shared else sequence_embedding(target_embedding)
        self._take_parts(
            source_embedding=source_embedding,
            target_embedding=target_embedding,
            encoder_blocks=layer_list("encoder_blocks", encoder_blocks),
            decoder_blocks=layer_list("decoder_blocks", decoder_blocks),
            encoder_norm=encoder_norm,
            decoder_norm=decoder_norm,
        )
        self.max_sequence_length = checked_max_sequence_length(
            max_sequence_length, source_embedding, target_embedding
        )
        self.pad_token_id = pad_token_id
        self.build()

    @classmethod
    def from_preset(cls, preset, vocabulary_size, **kwargs):
        """A model of a named size with fresh weights: `"tiny"`, `"base"` or `"big"`.

        Args:
            preset: Name in `PRESETS`, which cites the sources of the sizes.
            vocabulary_size: Integer.
            **kwargs: Other arguments of `from_sizes`; they replace the preset's.
        """
        return cls.from_sizes(vocabulary_size, **(choose("preset", preset, PRESETS) | kwargs))

    @classmethod
    def from_sizes(
        cls,
        vocabulary_size,
        num_encoder_layers,
        num_decoder_layers,
        target_vocabulary_size=None,
        tie_output=True,
        pad_token_id=0,
        dtype=None,
        name=None,
        **sizes,
    ):
        """A model with fresh weights of the given sizes.

        Args:
            vocabulary_size: Integer V, of the source, and of the target too unless `target_vocabulary_size` is given.
            num_encoder_layers, num_decoder_layers: Integers.
            target_vocabulary_size: Integer. None means one vocabulary, and one token embedding, for both sides.
            tie_output: Boolean, whether the output projection is the target embedding, transposed.
            pad_token_id: Integer.
            dtype, name: Of the model.
            **sizes: As in `Sizes`.
        """
        sizes = Sizes(dtype=dtype, **sizes)
        if target_vocabulary_size is None:
            source = sizes.token_embedding(vocabulary_size, tie_weights=tie_output)
            target = source
        else:
            source = sizes.token_embedding(vocabulary_size)
            target_size = check_positive("target_vocabulary_size", target_vocabulary_size)
            target = sizes.token_embedding(target_size, tie_weights=tie_output)
        return cls(
            sizes.embedding(source, "source_embedding"),
            sizes.embedding(target, "target_embedding"),
            sizes.encoder_blocks(check_positive("num_encoder_layers", num_encoder_layers)),
            sizes.decoder_blocks(check_positive("num_decoder_layers", num_decoder_layers)),
            sizes.norm("encoder_norm"),
            sizes.norm("decoder_norm"),
            **sizes.model_arguments(pad_token_id, name),
        )

    @property
    def vocabulary_size(self):
        """Integer, of the source."""
        return self.source_embedding.vocabulary_size

    @property
    def target_vocabulary_size(self):
        """Integer V, of the target."""
        return self.target_embedding.vocabulary_size

    @property
    def cross_attention_shape(self):
        """The layers and heads of cross-attention, (L, N)."""
        return len(self.decoder_blocks), self.decoder_blocks[-1].cross_attention_layer.num_heads

    @property
    def alignment_layer(self):
        """The decoder layer whose cross-attention aligns words best, the last but one (Garg et al., 2019)."""
        return max(len(self.decoder_blocks) - 2, 0)

    def build(self, input_shape=None):
        if self.built:
            return
        shape = self._build_stack(self.source_embedding, self.encoder_blocks, self.encoder_norm)
        self._build_stack(self.target_embedding, self.decoder_blocks, self.decoder_norm, shape)
        self.built = True

    def call(self, inputs, training=None):
        inputs = checked_inputs(inputs, _REQUIRED_INPUTS, _OPTIONAL_INPUTS)
        source = self._side_tokens(inputs, "encoder_")
        target = self._side_tokens(inputs, "decoder_")
        if (source.segment_ids is None) != (target.segment_ids is None):
            raise ValueError(
                "`encoder_segment_ids` and `decoder_segment_ids` must be given together: they tell what of the two "
                f"sides belongs together. Received: {sorted(inputs)}."
            )
        encoder_sequence = self._encode(source, training)
        logits, _ = self._decode(target, encoder_sequence, source, training)
        return logits

    def compute_mask(self, inputs, previous_mask=None):
        return self._output_mask(inputs, "decoder_")

    def encode(self, encoder_token_ids, encoder_padding_mask=None, training=None):
        """Token ids (B, S) -> the encoder's output, float (B, S, D).

        Args:
            encoder_token_ids: Integers (B, S).
            encoder_padding_mask: Boolean (B, S). By default pads are found by their id.
            training: Boolean.
        """
        return self._encode(self._tokens(encoder_token_ids, encoder_padding_mask), training)

    def decode(
        self,
        decoder_token_ids,
        encoder_sequence,
        encoder_padding_mask,
        decoder_padding_mask=None,
        training=None,
        return_attention_scores=False,
    ):
        """Logits, float32 (B, T, V), of the token after each of `decoder_token_ids` (B, T).

        Args:
            decoder_token_ids: Integers (B, T), beginning with START.
            encoder_sequence: Floats (B, S, D), see `encode`.
            encoder_padding_mask: Boolean (B, S).
            decoder_padding_mask: Boolean (B, T). By default pads are found by their id.
            training: Boolean.
            return_attention_scores: Boolean, whether the cross-attention scores of each layer, a list of (B, N, T, S),
                are returned too.
        """
        source = self._tokens(None, encoder_padding_mask)
        target = self._tokens(decoder_token_ids, decoder_padding_mask)
        logits, scores = self._decode(target, encoder_sequence, source, training, return_attention_scores)
        return (logits, scores) if return_attention_scores else logits

    def decoder_sequence(
        self,
        decoder_token_ids,
        encoder_sequence,
        encoder_padding_mask,
        decoder_padding_mask=None,
        training=None,
    ):
        """The decoder's vectors, floats (B, T, D), of which `decode` makes logits.

        Args:
            decoder_token_ids, encoder_sequence, encoder_padding_mask, decoder_padding_mask, training: As in `decode`.
        """
        source = self._tokens(None, encoder_padding_mask)
        target = self._tokens(decoder_token_ids, decoder_padding_mask)
        x, _ = self._run_decoder_blocks(target, encoder_sequence, source, training)
        return x if self.decoder_norm is None else self.decoder_norm(x)

    def _encode(self, source, training):
        x = self._embed(self.source_embedding, source, training)
        return self._run_encoder_blocks(x, self.encoder_blocks, self.encoder_norm, source, training)

    def _decode(self, target, encoder_sequence, source, training, return_attention_scores=False):
        """Logits, and each layer's cross-attention scores if asked for. Ids of `source` are not used."""
        x, scores = self._run_decoder_blocks(
            target, encoder_sequence, source, training, return_attention_scores
        )
        return self._logits_or_vectors(x, self.target_embedding, self.decoder_norm), scores

    def _run_decoder_blocks(self, target, encoder_sequence, source, training, return_attention_scores=False):
        """The vectors after the last block, and the scores."""
        vectors = self._embed(self.target_embedding, target, training)
        scores = []
        sequences = [(vectors, target.real_tokens), (encoder_sequence, source.real_tokens)]
        with clean_padding_scope(*sequences) as (x, encoder_sequence):
            for block in self.decoder_blocks:
                x = block(
                    x,
                    encoder_sequence,
                    decoder_padding_mask=target.padding_mask,
                    encoder_padding_mask=source.padding_mask,
                    decoder_positions=target.positions,
                    encoder_positions=source.positions,
                    decoder_segment_ids=target.segment_ids,
                    encoder_segment_ids=source.segment_ids,
                    return_attention_scores=return_attention_scores,
                    training=training,
                )
                if return_attention_scores:
                    x, _, cross_attention_scores = x
                    scores.append(cross_attention_scores)
        return x, scores

    def init_cache(self, encoder_token_ids, length, encoder_padding_mask=None):
        """Runs the encoder on ids (B, S) and returns a `Seq2SeqCache` with `length` empty slots."""
        source = self._tokens(encoder_token_ids, encoder_padding_mask)
        encoder_sequence = self._encode(source, training=None)
        batch_size = ops.shape(encoder_token_ids)[0]
        self_attention = [block.empty_cache(batch_size, length) for block in self.decoder_blocks]
        cross_attention = [
            block.project_to_cache(encoder_sequence, source.padding_mask) for block in self.decoder_blocks
        ]
        return Seq2SeqCache(tuple(self_attention), tuple(cross_attention), source.padding_mask)

    def call_with_cache(
        self,
        decoder_token_ids,
        cache,
        cache_update_index,
        positions=None,
        decoder_attention_mask=None,
        return_attention_scores=False,
        output_projection=None,
    ):
        """Logits of the token after each of `decoder_token_ids`; `cache` holds the keys and values before.

        Args:
            decoder_token_ids: Integers (B, T), one token or more; none is treated as a pad.
            cache: A `Seq2SeqCache`; each layer's part of it may be a `keras_attn.ops.KeyValueCache`.
            cache_update_index: Integer scalar, the slot of the first token.
            positions: Integers (T,) or (B, T). By default slots are positions.
            decoder_attention_mask: Boolean (B, T, slots), True at slots that a token may attend to. By default
                every token sees its own slot and those before.
            return_attention_scores: Boolean.
            output_projection: What the method of this name returned for U tokens: logits are of these alone. By default
                they are of all V.

        Returns:
            Logits, float32 (B, T, V), and the new cache; then, if `return_attention_scores`, the cross-attention
            scores of each layer, a list of (B, N, T, S).
        """
        embedded_positions = positions
        if positions is None:
            embedded_positions = successive_positions(ops.shape(decoder_token_ids)[1], cache_update_index)
        x = self.target_embedding(decoder_token_ids, positions=embedded_positions)
        self_attention = []
        scores = []
        for block, own, cross in zip(self.decoder_blocks, cache.self_attention, cache.cross_attention):
            x, *block_scores, own = block(
                x,
                decoder_attention_mask=decoder_attention_mask,
                encoder_padding_mask=cache.encoder_padding_mask,
                self_attention_cache=own,
                self_attention_cache_update_index=cache_update_index,
                cross_attention_cache=cross,
                decoder_positions=positions,
                use_causal_mask=decoder_attention_mask is None,
                return_attention_scores=return_attention_scores,
            )
            self_attention.append(own)
            scores += block_scores[1:]  # those of cross-attention
        logits = self._logits(x, self.target_embedding, self.decoder_norm, output_projection)
        cache = cache._replace(self_attention=tuple(self_attention))
        return (logits, cache, scores) if return_attention_scores else (logits, cache)

    def output_projection(self, token_ids):
        """What `call_with_cache` takes to compute the logits of the tokens `token_ids`, int32 (U,), alone."""
        return self.target_embedding.token.output_projection(token_ids)
