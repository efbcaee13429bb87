import collections

import keras
from keras import ops

from keras_attn.checks import check_positive, choose
from keras_attn.layers import (
    DecoderBlock,
    EncoderBlock,
    TokenEmbedding,
)
from keras_attn.models.generation import Seq2SeqGeneration
from keras_attn.models.transformer import Transformer
from keras_attn.ops import padding_mask, segment_positions, successive_positions

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
Seq2SeqCache.__doc__ = """All that decoding needs of the encoder and of the tokens before, as a value.

self_attention: a tuple with a pair of (B, N, C, H) tensors a layer, C slots of which the written ones are filled.
cross_attention: a tuple with a pair of (B, N, S, H) tensors a layer, which no step changes.
encoder_padding_mask: boolean (B, S).
"""


_SIDES = ("encoder", "decoder")
_PACKING_NAMES = [f"{side}_{what}" for side in _SIDES for what in ("positions", "segment_ids")]


@keras.saving.register_keras_serializable(package="keras_attn")
class Seq2SeqTransformer(Seq2SeqGeneration, Transformer):
    """The full encoder-decoder Transformer: token ids of two sequences in, logits of the next tokens out.

    Padding masks are derived from `pad_token_id` here, at the boundary, and passed explicitly to every block. The
    weights exist as soon as the model does. It is a `keras.Model`: compile, fit, evaluate, predict, save and load.

    Args:
        vocabulary_size: Integer V, of the source, and of the target too unless `target_vocabulary_size` is given.
        num_encoder_layers, num_decoder_layers: Integers.
        hidden_dim: Integer D, the model width.
        num_heads: Integer; must divide `hidden_dim`.
        intermediate_dim: Integer, the width of the feed-forward networks.
        dropout: Float, of the residual branches and of the embeddings.
        target_vocabulary_size: Integer. None means one vocabulary, and one embedding, for both sides.
        tie_output: Boolean, whether the output projection is the target embedding, transposed.
        attention_dropout: Float, of the attention scores.
        activation: Activation of the feed-forward networks.
        gated: Boolean, whether the feed-forward networks are gated.
        normalize_first: Boolean, pre-norm with a final norm on both stacks, rather than the paper's post-norm.
        normalization: `"layer_norm"` or `"rms_norm"`.
        layer_norm_epsilon: Float.
        position_encoding: `"sinusoidal"` or `"learned"`, added to the embeddings, or `"rotary"`, by which self-attention
            turns queries and keys.
        max_sequence_length: Integer, the longest sequence, of learned positions and of generation.
        pad_token_id: Integer.

    Call arguments:
        inputs: Dict of integers `encoder_token_ids` (B, S) and `decoder_token_ids` (B, T), the latter beginning
            with START. Rows may hold several sequences, packed: `encoder_segment_ids` (B, S) and
            `decoder_segment_ids` (B, T) then number them, equal on both sides for what belongs together, 0 at
            padding. `encoder_positions` (B, S) and `decoder_positions` (B, T) replace 0, 1, 2, ..., which start
            again with every segment; with padding on the left, a row's first token is 0.
        training: Boolean.

    Returns:
        Logits, float32 (B, T, V).

    Raises:
        ValueError: for a preset or option that does not exist, for arguments out of range, and for token ids outside
            the vocabulary (eagerly; in a compiled graph they are clamped).

    Example:

    ```python
    model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    encoder_token_ids = np.array([[5, 6, 7, 3, 0], [8, 9, 3, 0, 0]])
    logits = model({"encoder_token_ids": encoder_token_ids, "decoder_token_ids": np.array([[2, 5], [2, 6]])})
    token_ids = model.generate(encoder_token_ids, start_token_id=2, end_token_id=3, max_length=5)
    ```

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), figure 1.
    """

    def __init__(
        self,
        vocabulary_size,
        num_encoder_layers,
        num_decoder_layers,
        hidden_dim,
        num_heads,
        intermediate_dim,
        dropout=0.1,
        target_vocabulary_size=None,
        tie_output=True,
        attention_dropout=0.0,
        activation="relu",
        gated=False,
        normalize_first=False,
        normalization="layer_norm",
        layer_norm_epsilon=1e-5,
        position_encoding="sinusoidal",
        max_sequence_length=512,
        pad_token_id=0,
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
        check_positive("target_vocabulary_size", target_vocabulary_size, optional=True)
        check_positive("num_encoder_layers", num_encoder_layers)
        check_positive("num_decoder_layers", num_decoder_layers)
        self.vocabulary_size = vocabulary_size
        self.num_encoder_layers = num_encoder_layers
        self.num_decoder_layers = num_decoder_layers
        self.target_vocabulary_size = target_vocabulary_size
        self.tie_output = tie_output
        self._make_embeddings()
        self.encoder_position_encoding = self._make_position_encoding("encoder_position_encoding")
        self.decoder_position_encoding = self._make_position_encoding("decoder_position_encoding")
        self.encoder_blocks = self._make_blocks(
            EncoderBlock, "attention", "encoder_block", num_encoder_layers
        )
        self.decoder_blocks = self._make_blocks(
            DecoderBlock, "self_attention", "decoder_block", num_decoder_layers
        )
        self.encoder_norm = self._make_norm("encoder_norm")
        self.decoder_norm = self._make_norm("decoder_norm")
        self.build()

    @classmethod
    def from_preset(cls, preset, vocabulary_size, **kwargs):
        """A model of a named size with fresh weights: `"tiny"`, `"base"` or `"big"`.

        Args:
            preset: Name in `PRESETS`, which cites where the sizes come from.
            vocabulary_size: Integer.
            **kwargs: Any other constructor argument; they replace the preset's.
        """
        return cls(vocabulary_size, **{**choose("preset", preset, PRESETS), **kwargs})

    @property
    def cross_attention_shape(self):
        """The layers and heads of cross-attention, (L, N)."""
        return self.num_decoder_layers, self.num_heads

    @property
    def alignment_layer(self):
        """The decoder layer whose cross-attention aligns words best, the last but one (Garg et al., 2019)."""
        return max(self.num_decoder_layers - 2, 0)

    def _make_embeddings(self):
        shared = self.target_vocabulary_size is None
        target_name = "token_embedding" if shared else "target_embedding"
        self.target_embedding = TokenEmbedding(
            self.vocabulary_size if shared else self.target_vocabulary_size,
            self.hidden_dim,
            tie_weights=self.tie_output,
            dtype=self._policy_of(target_name),
            name=target_name,
        )
        self.source_embedding = (
            self.target_embedding
            if shared
            else TokenEmbedding(
                self.vocabulary_size,
                self.hidden_dim,
                dtype=self._policy_of("source_embedding"),
                name="source_embedding",
            )
        )

    def build(self, input_shape=None):
        if self.built:
            return
        super().build()
        sequence_shape = (None, None, self.hidden_dim)
        for block in self.decoder_blocks:
            block.build(sequence_shape, sequence_shape)

    def _sequence_layers(self):
        return [
            self.source_embedding,
            self.target_embedding,
            self.encoder_position_encoding,
            self.decoder_position_encoding,
            *self.encoder_blocks,
            self.encoder_norm,
            self.decoder_norm,
        ]

    def call(self, inputs, training=None):
        encoder_token_ids, decoder_token_ids = self._token_ids(inputs)
        encoder_padding_mask = padding_mask(encoder_token_ids, self.pad_token_id)
        packing = {name: _packing(inputs, name) for name in _PACKING_NAMES}
        encoder_sequence = self.encode(
            encoder_token_ids, training, packing["encoder_positions"], packing["encoder_segment_ids"]
        )
        return self.decode(
            decoder_token_ids, encoder_sequence, encoder_padding_mask, training=training, **packing
        )

    def encode(
        self,
        encoder_token_ids,
        training=None,
        positions=None,
        segment_ids=None,
        encoder_padding_mask=None,
    ):
        """Token ids (B, S), with positions and segments of that shape if given -> encoder output, float (B, S, D).

        By default every `pad_token_id` is a pad.
        """
        if encoder_padding_mask is None:
            encoder_padding_mask = padding_mask(encoder_token_ids, self.pad_token_id)
        x = self._embed(
            self.source_embedding, self.encoder_position_encoding, encoder_token_ids, positions, training
        )
        for block in self.encoder_blocks:
            x = block(
                x,
                padding_mask=encoder_padding_mask,
                training=training,
                positions=positions,
                segment_ids=segment_ids,
            )
        return x if self.encoder_norm is None else self.encoder_norm(x)

    def decode(
        self,
        decoder_token_ids,
        encoder_sequence,
        encoder_padding_mask,
        training=None,
        return_attention_scores=False,
        decoder_positions=None,
        decoder_segment_ids=None,
        encoder_positions=None,
        encoder_segment_ids=None,
    ):
        """Logits, float32 (B, T, V), of the token after each of `decoder_token_ids` (B, T).

        Positions and segment ids are those of the call. With `return_attention_scores`, also the cross-attention
        scores of each layer, a list of (B, N, T, S).
        """
        decoder_padding_mask = padding_mask(decoder_token_ids, self.pad_token_id)
        x = self._embed_target(decoder_token_ids, positions=decoder_positions, training=training)
        scores = []
        for block in self.decoder_blocks:
            x = block(
                x,
                encoder_sequence,
                decoder_padding_mask=decoder_padding_mask,
                encoder_padding_mask=encoder_padding_mask,
                training=training,
                return_attention_scores=return_attention_scores,
                decoder_positions=decoder_positions,
                decoder_segment_ids=decoder_segment_ids,
                encoder_positions=encoder_positions,
                encoder_segment_ids=encoder_segment_ids,
            )
            if return_attention_scores:
                x, _, cross_attention_scores = x
                scores.append(cross_attention_scores)
        logits = self._logits(x)
        return (logits, scores) if return_attention_scores else logits

    def init_cache(self, encoder_token_ids, length, encoder_padding_mask=None):
        """Runs the encoder on ids (B, S) and returns a `Seq2SeqCache` with `length` empty slots.

        By default every `pad_token_id` is a pad.
        """
        if encoder_padding_mask is None:
            encoder_padding_mask = padding_mask(encoder_token_ids, self.pad_token_id)
        encoder_sequence = self.encode(encoder_token_ids, encoder_padding_mask=encoder_padding_mask)
        batch_size = ops.shape(encoder_token_ids)[0]
        return Seq2SeqCache(
            tuple(block.empty_cache(batch_size, length) for block in self.decoder_blocks),
            tuple(
                block.project_to_cache(encoder_sequence, encoder_padding_mask)
                for block in self.decoder_blocks
            ),
            encoder_padding_mask,
        )

    def call_with_cache(
        self,
        decoder_token_ids,
        cache,
        cache_update_index,
        positions=None,
        decoder_attention_mask=None,
        return_attention_scores=False,
        cache_positions=None,
        projections=None,
    ):
        """Logits of the tokens after `decoder_token_ids`, given those before, whose keys and values are in `cache`.

        Args:
            decoder_token_ids: Integers (B, T), one token or more; none is taken for a pad.
            cache: A `Seq2SeqCache`.
            cache_update_index: Integer scalar, the slot of the first token.
            positions: Integers (T,) or (B, T). By default slots are positions.
            decoder_attention_mask: Boolean (B, T, slots), True at slots that a token may attend to. By default
                every token sees its own slot and those before.
            return_attention_scores: Boolean.
            cache_positions: Integers (slots,) or (B, slots), the positions of what stands in the slots. By default
                they follow each other.
            projections: What `step_projections` of each decoder block gave, a tuple: made once for a loop of steps.

        Returns:
            Logits, float32 (B, T, V), and the new cache; then, if `return_attention_scores`, the cross-attention
            scores of each layer, a list of (B, N, T, S).
        """
        if positions is None:
            positions = successive_positions(ops.shape(decoder_token_ids)[1], cache_update_index)
        x = self._embed_target(decoder_token_ids, positions=positions)
        self_attention, scores = [], []
        projections = projections or [None] * self.num_decoder_layers
        for block, own, cross, of_block in zip(
            self.decoder_blocks, cache.self_attention, cache.cross_attention, projections
        ):
            x, *of_layer, own = block(
                x,
                decoder_attention_mask=decoder_attention_mask,
                encoder_padding_mask=cache.encoder_padding_mask,
                self_attention_cache=own,
                self_attention_cache_update_index=cache_update_index,
                cross_attention_cache=cross,
                **self._positions_of_attention(positions, cache_positions),
                use_causal_mask=decoder_attention_mask is None,
                return_attention_scores=return_attention_scores,
                projections=of_block,
            )
            self_attention.append(own)
            scores += of_layer[1:]
        results = self._logits(x), cache._replace(self_attention=tuple(self_attention))
        return (*results, scores) if return_attention_scores else results

    def step_projections(self):
        """Each decoder block's projections as a loop of cached calls wants them, for `call_with_cache`."""
        return tuple(block.step_projections() for block in self.decoder_blocks)

    def _embed_target(self, token_ids, positions=None, training=None):
        return self._embed(
            self.target_embedding, self.decoder_position_encoding, token_ids, positions, training
        )

    def _logits(self, x):
        x = x if self.decoder_norm is None else self.decoder_norm(x)
        return ops.cast(self.target_embedding(x, reverse=True), "float32")

    def _parts(self):
        shared = self.source_embedding is self.target_embedding
        embeddings = [self.target_embedding] if shared else [self.source_embedding, self.target_embedding]
        return [*embeddings, *self.encoder_blocks, *self.decoder_blocks]

    def _token_ids(self, inputs):
        names = {f"{side}_token_ids" for side in _SIDES}
        if not isinstance(inputs, dict) or not names <= set(inputs) <= names | set(_PACKING_NAMES):
            received = sorted(inputs) if isinstance(inputs, dict) else type(inputs).__name__
            raise ValueError(
                f"`inputs` must be a dict of {sorted(names)}, and may have {_PACKING_NAMES}. Received: {received}."
            )
        if len({"encoder_segment_ids", "decoder_segment_ids"} & set(inputs)) == 1:
            raise ValueError(
                "`encoder_segment_ids` and `decoder_segment_ids` must be given together: they tell what of the two "
                f"sides belongs together. Received: {sorted(inputs)}."
            )
        return inputs["encoder_token_ids"], inputs["decoder_token_ids"]

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "num_encoder_layers": self.num_encoder_layers,
            "num_decoder_layers": self.num_decoder_layers,
            "target_vocabulary_size": self.target_vocabulary_size,
            "tie_output": self.tie_output,
        }


def _packing(inputs, name):
    """The positions or segment ids in `inputs`, or None; positions start again with every segment."""
    segment_ids = inputs.get(name.replace("positions", "segment_ids"))
    if name in inputs or segment_ids is None:
        return inputs.get(name)
    return segment_positions(ops.cast(segment_ids, "int32"))
