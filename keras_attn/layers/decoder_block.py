import dataclasses
from typing import Any

import keras
from keras import ops

from keras_attn.layers.block import Block, output_and_rest
from keras_attn.layers.layer_slots import call_layer, check_layer, has_argument
from keras_attn.layers.masks import TokenInfo, check_attention_mask_rank, combined_padding_mask
from keras_attn.layers.multi_head_attention import MultiHeadAttention
from keras_attn.ops import successive_positions


@dataclasses.dataclass(frozen=True)
class DecoderCall:
    """What a call is given besides its sequences, see `DecoderBlock`."""

    decoder: TokenInfo
    encoder: TokenInfo
    decoder_attention_mask: Any
    encoder_attention_mask: Any
    use_causal_mask: bool
    self_attention_cache: Any
    cache_update_index: Any
    cross_attention_cache: Any
    training: bool | None
    return_attention_scores: bool

    @property
    def queries(self):
        """The `TokenInfo` of the decoder sequence. With a cache, the padding mask is one of the cache's slots."""
        if self.self_attention_cache is None:
            return self.decoder
        return TokenInfo(None, self.decoder.positions)

    def with_carried_masks(self, decoder_sequence, encoder_sequence):
        """The same, with the masks that Keras carries on the sequences in the padding masks."""
        decoder = self.decoder
        if self.self_attention_cache is None:
            mask = combined_padding_mask(decoder.padding_mask, decoder_sequence, "decoder_padding_mask")
            decoder = dataclasses.replace(decoder, padding_mask=mask)
        mask = combined_padding_mask(self.encoder.padding_mask, encoder_sequence, "encoder_padding_mask")
        encoder = dataclasses.replace(self.encoder, padding_mask=mask)
        return dataclasses.replace(self, decoder=decoder, encoder=encoder)


@keras.saving.register_keras_serializable(package="keras_attn")
class DecoderBlock(Block):
    """Causal self-attention, cross-attention over an encoder's output, and a feed-forward network.

    Arguments have the names of KerasHub's `TransformerDecoder`. Every cross-attention of a stack gets the
    encoder's padding mask: it is an argument. An implicit mask on either sequence is joined with it and stays
    on the sequence. Built without an encoder sequence, it is the block of a decoder-only model.

    Args:
        intermediate_dim, num_heads: As in `EncoderBlock`. `num_heads` is not needed if all attention layers
            are given.
        cross_attention: Like `self_attention`, for attention over the encoder sequence.
        **kwargs: The other arguments of `EncoderBlock`. A `self_attention` must be an attention layer here:
            a `MultiHeadAttention`, or another layer whose `call` begins with the arguments `query` and
            `value` and has the other arguments that are given. `parallel` is for a block without
            cross-attention. `remat` has no effect on calls with a cache, which keep nothing for a gradient.

    Call arguments:
        decoder_sequence: Floats (B, T, D).
        encoder_sequence: Floats (B, S, D). May be None on calls with a `cross_attention_cache`.
        decoder_padding_mask: Boolean (B, T), True at real tokens; with a `self_attention_cache` of C slots, (B, C). What
            stands at the others, be it NaN, reaches no real token and no weight, as in `EncoderBlock`.
        decoder_attention_mask: Boolean (B, T, T), or (B, T, C) with a cache.
        encoder_padding_mask: Boolean (B, S).
        encoder_attention_mask: Boolean (B, T, S).
        self_attention_cache: Pair of (B, N, C, H) tensors, see `empty_cache`, or a `keras_attn.ops.KeyValueCache` of them.
        self_attention_cache_update_index: Integer scalar, the slot of this call's first token.
        cross_attention_cache: Pair of (B, N, S, H) tensors, see `project_to_cache`, or a `KeyValueCache` of them.
        use_causal_mask: Boolean, whether a token sees only itself and the tokens before it.
        training: Boolean.
        return_attention_scores: Boolean.
        decoder_positions: Integers (B, T) or (T,). By default 0, 1, 2, ..., or the slots of the cache.
        decoder_segment_ids: Integers (B, T), which of several sequences packed into a row a token belongs to.
            It attends only to that sequence. 0 is padding. With an encoder, `encoder_segment_ids` give the
            sequences of its tokens.
        encoder_positions: Integers (B, S) or (S,).
        encoder_segment_ids: Integers (B, S).
        mask: The padding mask of `decoder_sequence` as Keras hands it on; both hold.

    Returns:
        Floats (B, T, D); then, if `return_attention_scores`, the scores of self-attention (B, N, T, T) and, with an
        encoder, of cross-attention (B, N, T, S); then, if `self_attention_cache` was given, the new one.

    Raises:
        ValueError: for an argument out of range, for arguments that contradict each other, for a mask of the wrong
            shape, for sequences of other axes, for a call argument that a given layer does not have, for a call with an encoder
            sequence of a block built without one, or the reverse, and for arguments of an encoder or a cache without it.

    Example:

    ```python
    block = keras_attn.layers.DecoderBlock(intermediate_dim=64, num_heads=4, dropout=0.1)
    encoder_padding_mask = keras.ops.convert_to_tensor([[True, True, True, False, False, False, False]])
    y = block(
        keras.random.normal((1, 5, 16)), keras.random.normal((1, 7, 16)), encoder_padding_mask=encoder_padding_mask
    )
    ```

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1 and figure 1; the
    references of `EncoderBlock`.
    """

    _SLOTS = (*Block._SLOTS, "cross_attention")
    _ADVICE_FOR_LISTS = (
        " To attend to an encoder's output, pass two arguments: `block(decoder_sequence, encoder_sequence)`."
    )
    _MASK_ARGUMENTS = (
        ("decoder_sequence", "decoder_padding_mask", "decoder_attention_mask", "decoder_segment_ids"),
        ("encoder_sequence", "encoder_padding_mask", "encoder_attention_mask", "encoder_segment_ids"),
    )

    def __init__(self, intermediate_dim=None, num_heads=None, *, cross_attention=None, **kwargs):
        super().__init__(intermediate_dim, num_heads, **kwargs)
        self.cross_attention = check_layer("cross_attention", cross_attention)
        if cross_attention is not None and self.attention_dropout and self.self_attention is None:
            raise ValueError(
                "`attention_dropout` is for attention layers that the block builds; give it to both layers. "
                f"Received: attention_dropout={self.attention_dropout}, cross_attention={cross_attention.name!r}."
            )

    def build(self, decoder_sequence_shape, encoder_sequence_shape=None):
        self._check_axes("self_attention", "decoder_sequence", decoder_sequence_shape)
        self._check_cross_attention(encoder_sequence_shape)
        self.self_attention_layer = self._attention_layer(
            "self_attention", decoder_sequence_shape, decoder_sequence_shape
        )
        self._self_attention_residual = self._residual("self_attention", decoder_sequence_shape)
        self.cross_attention_layer = None
        if encoder_sequence_shape is not None:
            self._check_axes("cross_attention", "encoder_sequence", encoder_sequence_shape)
            self.cross_attention_layer = self._attention_layer(
                "cross_attention", decoder_sequence_shape, encoder_sequence_shape
            )
            self._cross_attention_residual = self._residual("cross_attention", decoder_sequence_shape)
        self._build_feed_forward(decoder_sequence_shape)

    def call(
        self,
        decoder_sequence,
        encoder_sequence=None,
        decoder_padding_mask=None,
        decoder_attention_mask=None,
        encoder_padding_mask=None,
        encoder_attention_mask=None,
        self_attention_cache=None,
        self_attention_cache_update_index=None,
        cross_attention_cache=None,
        use_causal_mask=True,
        training=None,
        return_attention_scores=False,
        decoder_positions=None,
        decoder_segment_ids=None,
        encoder_positions=None,
        encoder_segment_ids=None,
    ):
        call = DecoderCall(
            decoder=TokenInfo(decoder_padding_mask, decoder_positions, decoder_segment_ids),
            encoder=TokenInfo(encoder_padding_mask, encoder_positions, encoder_segment_ids),
            decoder_attention_mask=decoder_attention_mask,
            encoder_attention_mask=encoder_attention_mask,
            use_causal_mask=use_causal_mask,
            self_attention_cache=self_attention_cache,
            cache_update_index=self_attention_cache_update_index,
            cross_attention_cache=cross_attention_cache,
            training=training,
            return_attention_scores=return_attention_scores,
        )
        self._check_call(decoder_sequence, encoder_sequence, call)
        call = call.with_carried_masks(decoder_sequence, encoder_sequence)
        sequences = [decoder_sequence]
        tokens = [call.queries]
        if encoder_sequence is not None:
            sequences.append(encoder_sequence)
            tokens.append(call.encoder)
        is_cached = self_attention_cache is not None or cross_attention_cache is not None
        x, results = self._run(call, sequences, tokens, recomputes=self.remat and not is_cached)
        return (x, *results) if results else x

    def _forward(self, call, x, encoder_sequence=None):
        if self.parallel:
            return self._forward_parallel(call, x)
        x, results = self._forward_self_attention(call, x)
        if self.cross_attention_layer is not None:
            x, scores = self._forward_cross_attention(call, x, encoder_sequence)
            cache_index = len(results) - (call.self_attention_cache is not None)
            results[cache_index:cache_index] = scores  # the cache of self-attention stays last
        return self._forward_feed_forward(call, x), results

    def _forward_cross_attention(self, call, x, encoder_sequence):
        """`x` after cross-attention, and the list of its scores, if asked for."""
        residual = self._cross_attention_residual
        update, scores = self._cross_attend(call, residual.before(x), encoder_sequence)
        return residual.after(x, update, call.training), scores

    def _self_attend(self, call, x):
        result = call_layer(
            self.self_attention_layer,
            [x, x],
            call.training,
            query_mask=call.queries.padding_mask,
            value_mask=call.decoder.padding_mask,
            attention_mask=call.decoder_attention_mask,
            positions=call.decoder.positions,
            segment_ids=call.decoder.segment_ids,
            use_causal_mask=call.use_causal_mask,
            cache=call.self_attention_cache,
            cache_update_index=call.cache_update_index,
            return_attention_scores=call.return_attention_scores,
        )
        return output_and_rest(result)

    def _cross_attend(self, call, x, encoder_sequence):
        query_positions, key_positions = self._cross_attention_positions(call, x, encoder_sequence)
        result = call_layer(
            self.cross_attention_layer,
            [x, encoder_sequence],
            call.training,
            query_mask=call.queries.padding_mask,
            value_mask=call.encoder.padding_mask,
            attention_mask=call.encoder_attention_mask,
            positions=query_positions,
            key_positions=key_positions,
            segment_ids=call.decoder.segment_ids,
            key_segment_ids=call.encoder.segment_ids,
            cache=call.cross_attention_cache,
            return_attention_scores=call.return_attention_scores,
        )
        update, rest = output_and_rest(result)
        if call.cross_attention_cache is not None:
            rest.pop()  # the cache of the encoder's keys and values is not changed
        return update, rest

    def _parts(self):
        parts = super()._parts()
        if self.cross_attention_layer is not None:
            parts.append(self.cross_attention_layer)
        return parts

    def _advice(self, name):
        if name not in ("padding_mask", "attention_mask", "positions", "segment_ids"):
            return None
        return f"Pass `decoder_{name}` for the block's own sequence, `encoder_{name}` for that of the encoder, to a call."

    def compute_output_shape(self, decoder_sequence_shape, encoder_sequence_shape=None):
        return decoder_sequence_shape

    def empty_cache(self, batch_size, length):
        """A self-attention cache of `length` empty slots: zeros (B, N, length, H), twice."""
        return self.self_attention_layer.empty_cache(batch_size, length)

    def project_to_cache(self, encoder_sequence, encoder_padding_mask=None, encoder_positions=None):
        """The cross-attention cache of `encoder_sequence` (B, S, D), computed once for all decoding steps."""
        options = {"value_mask": encoder_padding_mask}
        if encoder_positions is not None:
            options["key_positions"] = encoder_positions
        return self.cross_attention_layer.project_to_cache(encoder_sequence, **options)

    def step_attention_layers(self):
        """The attention layers whose projections can be made once for a loop of steps.

        Returns:
            List of pairs: a layer, and whether it projects keys and values in each step; see
            `MultiHeadAttention.step_projections`.
        """
        layers = []
        if hasattr(self.self_attention_layer, "step_projections"):
            layers.append((self.self_attention_layer, True))
        if hasattr(self.cross_attention_layer, "step_projections"):
            layers.append((self.cross_attention_layer, False))
        return layers

    def _cross_attention_positions(self, call, x, encoder_sequence):
        """The positions of queries and keys for a given cross-attention layer (one that is built here ignores positions).

        Without these, a layer would count the queries of a cached step from 0, and would use the queries'
        positions for the keys.
        """
        if self.cross_attention is None:
            return None, None
        if type(self.cross_attention) is MultiHeadAttention and not self.cross_attention.uses_positions:
            return None, None  # a subclass may use them
        query_positions = call.decoder.positions
        key_positions = call.encoder.positions
        first = call.cache_update_index
        if not has_argument(self.cross_attention, "positions"):
            return None, key_positions
        if query_positions is None and key_positions is None and first is None:
            return None, None
        if query_positions is None:
            start = 0 if first is None else first
            query_positions = successive_positions(ops.shape(x)[1], start)
        if key_positions is None:
            if call.cross_attention_cache is None:
                key_length = ops.shape(encoder_sequence)[1]
            else:
                key_length = ops.shape(call.cross_attention_cache[0])[2]
            key_positions = successive_positions(key_length)
        return query_positions, key_positions

    def _check_given(self, arguments):
        super()._check_given(arguments)
        given = {name for name, value in arguments.items() if value is not None}
        if not given & {"encoder_sequence", "cross_attention_cache"}:
            for name in ("padding_mask", "attention_mask", "positions", "segment_ids"):
                if f"encoder_{name}" in given:
                    raise ValueError(
                        f"`encoder_{name}` needs `encoder_sequence`. For the block's own sequence pass `decoder_{name}`. "
                        "Received: encoder_sequence=None."
                    )
        if "self_attention_cache_update_index" in given and "self_attention_cache" not in given:
            raise ValueError(
                "`self_attention_cache_update_index` needs `self_attention_cache`. Make one with `block.empty_cache`. "
                "Received: self_attention_cache=None."
            )

    def _check_call(self, decoder_sequence, encoder_sequence, call):
        self._check_axes("self_attention", "decoder_sequence", decoder_sequence.shape)
        if encoder_sequence is not None:
            self._check_axes("cross_attention", "encoder_sequence", encoder_sequence.shape)
        self._check_encoder(encoder_sequence, call.cross_attention_cache)
        self._check_segments(call.decoder.segment_ids, call.encoder.segment_ids)
        check_attention_mask_rank(
            call.decoder_attention_mask, decoder_sequence, "decoder_attention_mask", "decoder_padding_mask"
        )
        check_attention_mask_rank(
            call.encoder_attention_mask,
            decoder_sequence,
            "encoder_attention_mask",
            "encoder_padding_mask",
            axes="(B, T, S)",
        )

    def _check_cross_attention(self, encoder_sequence_shape):
        if encoder_sequence_shape is None and self.cross_attention is not None:
            raise ValueError(
                "`cross_attention` needs an encoder sequence to attend to. Received: encoder_sequence=None."
            )
        if encoder_sequence_shape is not None and self.parallel:
            raise ValueError(
                "`parallel` is for a block without cross-attention, which needs the output of self-attention. "
                f"Received: an encoder sequence of shape {tuple(encoder_sequence_shape)}."
            )

    def _check_encoder(self, encoder_sequence, cross_attention_cache):
        given = encoder_sequence is not None or cross_attention_cache is not None
        if given and self.cross_attention_layer is None:
            raise ValueError("This block was built without an encoder sequence, so it cannot attend to one.")
        if not given and self.cross_attention_layer is not None:
            raise ValueError(
                "`encoder_sequence` (or `cross_attention_cache`) must be given: the block was built with one."
            )

    def _check_segments(self, decoder_segment_ids, encoder_segment_ids):
        if self.cross_attention_layer is None:
            return
        if (decoder_segment_ids is None) != (encoder_segment_ids is None):
            raise ValueError(
                "`decoder_segment_ids` and `encoder_segment_ids` must be given together: cross-attention compares "
                "them. Received one of them."
            )
