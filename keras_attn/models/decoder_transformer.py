import keras
import numpy as np
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.generation import Prompt, answers, checked_options
from keras_attn.layers import DecoderBlock, TokenEmbedding
from keras_attn.models.transformer import Transformer
from keras_attn.ops import (
    concrete_values,
    extend_cache,
    padding_mask,
    segment_positions,
    successive_positions,
)

_INPUTS = ("token_ids", "positions", "segment_ids")


@keras.saving.register_keras_serializable(package="keras_attn")
class DecoderTransformer(Transformer):
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
                prompt.token_ids[:, :-1], cache, 0, positions[:, :-1], mask, positions[:, :-1]
            )
        return cache, is_token, positions

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


class _Step:
    """One step of a search behind a prompt, the keys and values of which all hypotheses of a row share.

    Args:
        model: `DecoderTransformer`.
    """

    def __init__(self, model):
        self.model = model
        self.projections = tuple(block.step_projections() for block in model.blocks)

    def __call__(self, token_ids, index, cache, attention_mask, of_prompts):
        """`of_prompts`: which are tokens, boolean (B, P - 1), the last aside, and positions, integers (B, P)."""
        is_token, positions = of_prompts
        width, first_slot = token_ids.shape[1], is_token.shape[1]
        of_prompt = ops.repeat(ops.expand_dims(is_token, 1), width, axis=1)
        last = positions[:, -1:]
        slots = successive_positions(ops.shape(attention_mask)[-1]) // width
        return self.model.call_with_cache(
            token_ids,
            cache,
            cache_update_index=first_slot + index * width,
            positions=ops.repeat(last + index, width, axis=1),
            attention_mask=ops.concatenate([of_prompt, attention_mask], axis=-1),
            cache_positions=ops.concatenate([positions[:, :-1], last + slots], axis=-1),
            projections=self.projections,
        )


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
