import keras
import numpy as np
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.generation import Prompt, answers, checked_options
from keras_attn.models.sizes import Sizes
from keras_attn.models.transformer import (
    Transformer,
    after_step,
    checked_max_sequence_length,
    for_step,
    unpacked_inputs,
)
from keras_attn.ops import (
    concrete_values,
    extend_cache,
    padding_mask,
    successive_positions,
)

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
class DecoderTransformer(Transformer):
    """A decoder-only Transformer, or language model: token ids in, logits of the next tokens out.

    It is made of parts, which are configured layers; `from_sizes` makes the parts of a plain one, GPT-2's by default. The
    weights exist as soon as the model does.

    Args:
        embedding: Layer from token ids to vectors, and with `reverse=True` to logits: a `SequenceEmbedding`.
        blocks: List of `DecoderBlock`s, which are built without cross-attention.
        norm: Norm layer after the last block, or None.
        max_sequence_length: Integer, the longest sequence of generation. Defaults to the number of positions of the
            embedding, or 512.
        pad_token_id: Integer, the id of pads where no `padding_mask` is given, and of what fills answers up.

    Call arguments:
        inputs: Integers (B, T), or a dict of them: `token_ids`; `padding_mask`, boolean (B, T), True at real tokens,
            without which the pads are the tokens with the id `pad_token_id`; for rows of several packed sequences
            `segment_ids`, which number them, 0 at padding. `positions` (T,) or (B, T) replace 0, 1, 2, ..., which start
            again with every segment.
        training: Boolean.

    Returns:
        Logits, float32 (B, T, V), of the token after each.

    Raises:
        ValueError: for parts that are no layers, for arguments out of range, and for token ids outside the vocabulary
            (eagerly; in a compiled graph they are clamped).

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

    _SLOTS = ("embedding", "blocks", "norm")

    def __init__(self, embedding, blocks, norm=None, max_sequence_length=None, pad_token_id=0, **kwargs):
        super().__init__(**kwargs)
        self._take_parts(embedding=embedding, blocks=list(blocks), norm=norm)
        self.max_sequence_length = checked_max_sequence_length(max_sequence_length, embedding)
        self.pad_token_id = pad_token_id
        self.build()

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
            scale_embedding: Boolean, whether embeddings are multiplied by sqrt(D), as Vaswani et al. do and GPT-2 not.
            dtype, name: Of the model.
            **sizes: As of `Sizes`; the defaults are GPT-2's.
        """
        sizes = Sizes(dtype=dtype, **{**_DEFAULT_SIZES, **sizes})
        token = sizes.token_embedding(vocabulary_size, scale=scale_embedding, tie_weights=tie_output)
        return cls(
            sizes.embedding(token),
            sizes.decoder_blocks(check_positive("num_layers", num_layers), cross_attention=False),
            sizes.norm("norm"),
            max_sequence_length=sizes.max_sequence_length,
            pad_token_id=pad_token_id,
            dtype=dtype,
            name=name,
        )

    @property
    def vocabulary_size(self):
        """Integer V."""
        return self.embedding.vocabulary_size

    def build(self, input_shape=None):
        if not self.built:
            self._build_stack(self.embedding, self.blocks, self.norm)
            self.built = True

    def call(self, inputs, training=None):
        inputs = inputs if isinstance(inputs, dict) else {"token_ids": inputs}
        tokens = self._tokens(*unpacked_inputs(inputs, ("token_ids",), _OPTIONAL_INPUTS))
        x = self.embedding(tokens.token_ids, positions=tokens.positions, training=training)
        for block in self.blocks:
            x = block(
                x,
                decoder_padding_mask=tokens.padding_mask,
                training=training,
                decoder_positions=tokens.positions,
                decoder_segment_ids=tokens.segment_ids,
            )
        return self._logits(x, self.embedding, self.norm)

    def empty_cache(self, batch_size, length):
        """A tuple with a pair of (B, N, length, H) tensors a layer: room for the keys and values of so many tokens."""
        return tuple(block.empty_cache(batch_size, length) for block in self.blocks)

    def call_with_cache(self, token_ids, cache, cache_update_index, positions=None, attention_mask=None):
        """Logits of the tokens after `token_ids`, given those before, whose keys and values are in `cache`.

        Args:
            token_ids: Integers (B, T), one token or more; none is taken for a pad.
            cache: A cache, see `empty_cache`; each layer's may be a `keras_attn.ops.KeyValueCache`.
            cache_update_index: Integer scalar, the slot of the first token.
            positions: Integers (T,) or (B, T). By default slots are positions.
            attention_mask: Boolean (B, T, slots), True at slots that a token may attend to. By default every token
                sees its own slot and those before.

        Returns:
            Logits, float32 (B, T, V), and the new cache.
        """
        embedded = positions
        if embedded is None:
            embedded = successive_positions(ops.shape(token_ids)[1], cache_update_index)
        # Tokens before position 0 are padding, for which there is no position embedding.
        x = self.embedding(token_ids, positions=ops.maximum(embedded, 0))
        new_cache = []
        for block, of_layer in zip(self.blocks, cache):
            x, of_layer = block(
                x,
                decoder_attention_mask=attention_mask,
                self_attention_cache=of_layer,
                self_attention_cache_update_index=cache_update_index,
                use_causal_mask=attention_mask is None,
                decoder_positions=positions,
            )
            new_cache.append(of_layer)
        return self._logits(x, self.embedding, self.norm), tuple(new_cache)

    def generate(
        self,
        prompt_token_ids,
        end_token_id,
        num_beams=1,
        length_penalty=1.0,
        max_length=None,
        num_return_sequences=None,
        options=None,
    ):
        """Continues prompts greedily, with beam search, or by sampling; see `keras_attn.generation`.

        Args:
            prompt_token_ids: Integers (B, P), START included if the model was trained with one; pads on either side.
            end_token_id: Integer.
            num_beams: Integer; 1 is greedy search. Of no meaning to sampling.
            length_penalty: Float, or floats (B,).
            max_length: Integer, the most new tokens, END included. Defaults to what `max_sequence_length` leaves.
            num_return_sequences: Integer n, at most `num_beams` unless answers are sampled. None returns the best, or
                first, token ids alone.
            options: `keras_attn.generation.DecodingOptions`. Those of sampling (`temperature`, `top_k`, `top_p`,
                `min_p`, `seed`) make it sampling, the seed being 0 by default. `repetition_penalty` and
                `no_repeat_ngram_size` look at the prompt too.

        Returns:
            Integers (B, max_length) without the prompt, END included, then pads; with `num_return_sequences`,
            `Hypotheses` with token ids (B, n, max_length) and scores (B, n), of the new tokens alone.

        Raises:
            ValueError: if an argument is out of range, or a prompt has no token.
        """
        options = checked_options(options, num_beams, num_return_sequences)
        if options.coverage_penalty is not None:
            raise ValueError("`coverage_penalty` is of source tokens, which a decoder-only model has not.")
        prompt = self._prompt(prompt_token_ids)
        max_length = self._max_new_tokens(prompt.token_ids.shape[1], max_length)
        cache, is_token, positions = self._read_prompt(prompt)
        return answers(
            num_beams,
            num_return_sequences,
            step=_Step(self),
            make_cache=lambda slots: tuple(
                extend_cache(of_layer, ops.shape(of_layer[0])[-2] + slots) for of_layer in cache
            ),
            batch_size=ops.shape(prompt.token_ids)[0],
            max_length=max_length,
            start_token_id=None,
            end_token_id=end_token_id,
            length_penalty=length_penalty,
            pad_token_id=self.pad_token_id,
            options=options,
            prompt=prompt,
            row_context=(is_token, positions),
        )

    def _prompt(self, token_ids):
        """`Prompt`: the tokens moved to the right end, in their order."""
        token_ids = ops.convert_to_tensor(token_ids, dtype="int32")
        length = token_ids.shape[1]
        if not length:
            raise ValueError(
                "A prompt must have a token: START, where there is nothing else to begin with. "
                f"Received: prompt_token_ids of shape {tuple(token_ids.shape)}."
            )
        is_token = padding_mask(token_ids, self.pad_token_id)
        values = concrete_values(is_token)
        if values is not None and not np.all(values.any(axis=1)):
            raise ValueError(
                "A prompt must have a token: START, where there is nothing else to begin with. "
                f"Received: only pads in row {int(np.argmin(values.any(axis=1)))}."
            )
        order = ops.argsort(successive_positions(length) + length * ops.cast(is_token, "int32"), axis=1)
        start = length - ops.sum(ops.cast(is_token, "int32"), axis=1)
        return Prompt(ops.take_along_axis(token_ids, order, axis=1), ops.minimum(start, length - 1))

    def _max_new_tokens(self, prompt_length, max_length):
        most = self.max_sequence_length - prompt_length
        max_length = most if max_length is None else max_length
        if max_length > most:
            raise ValueError(
                "The prompt and `max_length` more tokens must be at most `max_sequence_length`. Received: "
                f"{prompt_length} tokens, max_length={max_length}, max_sequence_length={self.max_sequence_length}."
            )
        return max_length

    def _read_prompt(self, prompt):
        """The cache of all tokens but the last; which of them are tokens, (B, P - 1); and positions (B, P) of all."""
        length = prompt.token_ids.shape[1]
        positions = successive_positions(length) - ops.expand_dims(prompt.start, -1)
        batch_size = ops.shape(prompt.token_ids)[0]
        cache, is_token = self.empty_cache(batch_size, length - 1), positions[:, :-1] >= 0
        if length > 1:
            order = successive_positions(length - 1)
            mask = ops.logical_and(order[:, None] >= order, ops.expand_dims(is_token, 1))
            _, cache = self.call_with_cache(
                prompt.token_ids[:, :-1],
                for_step(cache, [None] * len(cache), positions[:, :-1]),
                0,
                positions[:, :-1],
                mask,
            )
            cache = after_step(cache)
        return cache, is_token, positions


class _Step:
    """One step of a search behind a prompt, the keys and values of which all hypotheses of a row share.

    Args:
        model: `DecoderTransformer`.
    """

    def __init__(self, model):
        self.model = model
        self.projections = [block.step_projections().self_attention for block in model.blocks]

    def __call__(self, token_ids, index, cache, attention_mask, of_prompts):
        """`of_prompts`: which are tokens, boolean (B, P - 1), the last aside, and positions, integers (B, P)."""
        is_token, positions = of_prompts
        width, first_slot = token_ids.shape[1], is_token.shape[1]
        of_prompt = ops.repeat(ops.expand_dims(is_token, 1), width, axis=1)
        last = positions[:, -1:]
        slots = successive_positions(ops.shape(attention_mask)[-1]) // width
        slot_positions = ops.concatenate([positions[:, :-1], last + slots], axis=-1)
        logits, cache = self.model.call_with_cache(
            token_ids,
            for_step(cache, self.projections, slot_positions),
            cache_update_index=first_slot + index * width,
            positions=ops.repeat(last + index, width, axis=1),
            attention_mask=ops.concatenate([of_prompt, attention_mask], axis=-1),
        )
        return logits, after_step(cache)
