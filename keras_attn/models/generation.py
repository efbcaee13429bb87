"""`generate` for models that are called with a cache: those of this library, and any that a user composes.

A model inherits one of the two mixins and has the few members that the mixin names. All decoding (searches,
streams, speculative decoding, served graphs) then calls the model through one step function:

- `generate` gives a search what it needs, `SearchInputs`, and asks generation/choose_search.py for the answers;
- the loop in generation/decoding_loop.py runs the steps of a search, for example those of generation/beam_search.py;
- each step calls `_CausalStep` or `_Seq2SeqStep` below, which call the model with the cache.
"""

import collections
import contextlib
import dataclasses
import inspect

import keras
import numpy as np
from keras import ops

from keras_attn.checks import check_max_length, check_rank
from keras_attn.generation import (
    Prompt,
    SearchInputs,
    checked_options,
    extend_caches,
    find_answers,
)
from keras_attn.layers.projection import step_matrices, step_matrices_scope
from keras_attn.ops import (
    KeyValueCache,
    axis_size,
    compiled_scope,
    concrete_values,
    indices_within,
    padding_mask,
    successive_positions,
)


class CausalGeneration:
    """Mixin that gives a decoder-only model `generate`.

    The model, of any class, has

    - `max_sequence_length` and `pad_token_id`, integers;
    - `empty_cache(batch_size, length)`: a tuple with one key/value cache pair per layer, of `length` slots;
    - `call_with_cache(token_ids, cache, cache_update_index, positions=None, attention_mask=None)`, like
      `DecoderTransformer.call_with_cache`: logits (B, T, V) and the new cache. It passes each layer's cache,
      a `keras_attn.ops.KeyValueCache` with the positions of the slots, to the block unchanged.

    Example:

    A functional model of this library's blocks, and the adapter with which it generates:

    ```python
    from keras_attn.models import CausalGeneration

    tokens = keras.Input((None,), dtype="int32")
    embedding = keras_attn.layers.TokenEmbedding(29, 12)
    attention = keras_attn.layers.MultiHeadAttention(
        2, 6, num_key_value_heads=1, rotary_embedding=keras_attn.layers.RotaryEmbedding()
    )
    block = keras_attn.layers.DecoderBlock(intermediate_dim=20, num_heads=2, self_attention=attention)
    model = keras.Model(tokens, embedding(block(embedding(tokens)), reverse=True))


    class Generator(CausalGeneration):
        max_sequence_length, pad_token_id = 64, 0

        def empty_cache(self, batch_size, length):
            return (block.empty_cache(batch_size, length),)

        def call_with_cache(
            self, token_ids, cache, cache_update_index, positions=None, attention_mask=None
        ):
            x, block_cache = block(
                embedding(token_ids),
                decoder_positions=positions,
                decoder_attention_mask=attention_mask,
                self_attention_cache=cache[0],
                self_attention_cache_update_index=cache_update_index,
                use_causal_mask=attention_mask is None,
            )
            return embedding(x, reverse=True), (block_cache,)


    token_ids = Generator().generate(np.array([[2, 5, 6], [2, 8, 0]]), end_token_id=3, max_length=5)  # (2, 5)
    ```
    """

    def generate(
        self,
        prompt_token_ids,
        end_token_id,
        num_beams=1,
        length_penalty=1.0,
        max_length=None,
        num_return_sequences=None,
        options=None,
        padding_mask=None,
        unwritable_token_ids=(),
        max_total_length=None,
        compiler=None,
        pad_token_id=None,
        limit=None,
    ):
        """Continues prompts greedily, with beam search, or by sampling; see `keras_attn.generation`.

        Args:
            prompt_token_ids: Integers (B, P), START included if the model was trained with one; pads on either side.
            end_token_id: Integer.
            num_beams: Integer, at most 1024; 1 is greedy search. Ignored by sampling.
            length_penalty: Float, a scalar tensor, or floats (B,).
            max_length: Integer, the most new tokens, END included. Defaults to what `max_sequence_length` leaves.
            num_return_sequences: Integer n, at most `num_beams` unless answers are sampled. None returns only
                the token ids of the best, or first, answer.
            options: `keras_attn.generation.DecodingOptions`. Any option of sampling (`temperature`, `top_k`,
                `top_p`, `min_p`, `seed`) selects sampling; the seed is 0 by default. `repetition_penalty` and
                `no_repeat_ngram_size` apply to the prompt too.
            padding_mask: Boolean (B, P), True at the tokens of prompts. By default every `pad_token_id` is a pad.
            unwritable_token_ids: Integers, tokens that are never chosen because they stand for no text.
            max_total_length: Integer, the most tokens of a row's prompt and answer together, at most
                `max_sequence_length`. Each row then has its own limit, whatever the other prompts are, and a graph
                may take prompts of any length. Every prompt must have fewer tokens. `max_length` defaults to one less.
            compiler: As in `Seq2SeqGeneration.generate`.
            pad_token_id: Integer, what fills the columns after an answer; by default the model's pad. -1, which is no
                token, tells where an answer ends even if the pad is END. The model's pad may then be chosen.
            limit: int32 scalar, from 1 to `max_length`: where all answers end, as data of a graph that is the same for all
                limits.

        Returns:
            Integers (B, max_length) without the prompt, END included, then pads; with `num_return_sequences`,
            `Hypotheses` with token ids (B, n, max_length) and scores (B, n), of the new tokens alone.

        Raises:
            ValueError: if an argument is out of range, or a prompt has no token.
        """
        options = checked_options(options, num_beams, num_return_sequences)
        if options.coverage_penalty is not None:
            raise ValueError(
                "`coverage_penalty` needs source tokens, which a decoder-only model does not have."
            )
        inputs = self.search_inputs(
            prompt_token_ids,
            end_token_id,
            max_length,
            padding_mask,
            unwritable_token_ids,
            max_total_length,
            compiler,
            pad_token_id,
            limit,
        )
        if max_total_length is not None:
            options = _limit_each_row(options, max_total_length, inputs)
        return find_answers(inputs, num_beams, num_return_sequences, length_penalty, options)

    def search_inputs(
        self,
        prompt_token_ids,
        end_token_id,
        max_length=None,
        padding_mask=None,
        unwritable_token_ids=(),
        max_total_length=None,
        compiler=None,
        pad_token_id=None,
        limit=None,
    ):
        """`SearchInputs` for the continuations of prompts; arguments as in `generate`.

        With `max_total_length`, it is the caller's part to end each row: see `DecodingOptions.max_length`.
        """
        has_any_length = max_total_length is not None
        prompt = _make_prompt(prompt_token_ids, padding_mask, self.pad_token_id, has_any_length)
        _check_start(prompt.token_ids[:, -1], getattr(self, "vocabulary_size", None))
        length = ops.shape(prompt.token_ids)[1]
        if max_total_length is None:
            max_length = _max_new_tokens(length, max_length, self.max_sequence_length)
        else:
            total = check_max_length(max_total_length, self.max_sequence_length)
            max_length = check_max_length(max_length, total - 1)

        def read_prompt(prompt):
            return _CausalStep(self).read_prompt(prompt)

        if compiler is not None:
            read_prompt = compiler(read_prompt)
        cache, row_context = read_prompt(prompt)
        with _step_scope(compiler):
            step = self.decoding_step()
        num_filled = length - 1
        return SearchInputs(
            step=step,
            read=step.read,
            make_cache=lambda slots: extend_caches(cache, num_filled + slots),
            batch_size=ops.shape(prompt.token_ids)[0],
            max_length=max_length,
            start_token_id=None,
            end_token_id=end_token_id,
            pad_token_id=self.pad_token_id if pad_token_id is None else pad_token_id,
            unwritable_token_ids=tuple(unwritable_token_ids),
            prompt=prompt,
            row_context=row_context,
            compiler=compiler,
            limit=limit,
        )

    def decoding_step(self):
        """The `step` of `SearchInputs`, whose row context says what the cache holds of the prompt.

        It also has a method `read`. It holds the current weights: make one for each search, in the graph of
        its steps.
        """
        return _CausalStep(self)

    def teacher_forced(self, token_ids):
        """Logits of the token after each of `token_ids`, none of which is treated as a pad.

        Args:
            token_ids: Integers (B, T).

        Returns:
            Logits, float32 (B, T, V).
        """
        token_ids = ops.convert_to_tensor(token_ids, dtype="int32")
        rows, length = ops.shape(token_ids)
        cache = extend_caches(self.empty_cache(rows, 0), length)
        no_prompt = _ReadPrompt(ops.zeros((rows, 0), dtype="bool"), ops.zeros((rows, 1), dtype="int32"))
        return self.decoding_step().read(token_ids, 0, cache, no_prompt)[0]


_ReadPrompt = collections.namedtuple("_ReadPrompt", ["is_token", "positions"])
_ReadPrompt.__doc__ = """The row context of steps after prompts.

is_token: boolean (B, P - 1), True at real tokens of the prompt, without its last one, which a search reads first.
positions: integers (B, P), of all its tokens; pads have negative ones.
"""


class _CausalStep:
    """Steps of a search after prompts, whose keys and values all hypotheses of a row share."""

    def __init__(self, model):
        self.model = model
        self.matrices = step_matrices(model)

    def __call__(self, token_ids, index, cache, attention_mask, row_context):
        num_hypotheses = token_ids.shape[1]
        last = row_context.positions[:, -1, None]
        return self._call_model(
            token_ids,
            cache,
            first_slot=index * num_hypotheses,
            positions=ops.repeat(last + index, num_hypotheses, axis=1),
            own_mask=attention_mask,
            own_positions=successive_positions(ops.shape(attention_mask)[-1]) // num_hypotheses,
            prompt=row_context,
        )

    def read(self, token_ids, index, cache, row_context):
        rows, length = ops.shape(token_ids)
        slots = successive_positions(ops.shape(cache[0][0])[-2] - ops.shape(row_context.is_token)[1])
        new = successive_positions(length, index)
        mask = ops.expand_dims(new, -1) >= slots
        return self._call_model(
            token_ids,
            cache,
            first_slot=index,
            positions=row_context.positions[:, -1:] + new,
            own_mask=ops.broadcast_to(mask, (rows, length, ops.shape(slots)[0])),
            own_positions=slots,
            prompt=row_context,
        )

    def read_prompt(self, prompt):
        """The cache of all tokens of a prompt but the last, and the row context.

        Without the pads between them, the tokens have the positions of `token_positions`; pads have negative ones.
        """
        num_read = ops.shape(prompt.token_ids)[1] - 1
        positions = successive_positions(num_read + 1) - ops.expand_dims(prompt.start, -1)
        is_token = positions[:, :-1] >= 0
        # Under a sliding window the model's own cache may be a ring of fewer slots than the prompt has tokens.
        cache = self.model.empty_cache(ops.shape(prompt.token_ids)[0], 0)
        cache = extend_caches(cache, num_read)
        if not isinstance(num_read, int) or num_read:
            slots = successive_positions(num_read)
            mask = ops.logical_and(slots[:, None] >= slots, ops.expand_dims(is_token, 1))
            read_positions = positions[:, :-1]
            with step_matrices_scope(self.matrices):
                _, cache = self.model.call_with_cache(
                    prompt.token_ids[:, :-1],
                    _with_positions(cache, read_positions, prompt.token_ids),
                    0,
                    read_positions,
                    mask,
                )
            cache = _without_positions(cache)
        return cache, _ReadPrompt(is_token, positions)

    def _call_model(self, token_ids, cache, first_slot, positions, own_mask, own_positions, prompt):
        """`own_mask` (B, T, slots) and `own_positions` (slots,) are for slots after the prompt's."""
        is_token = ops.expand_dims(prompt.is_token, 1)
        prompt_length = ops.shape(prompt.is_token)[1]
        prompt_mask = ops.broadcast_to(is_token, (*ops.shape(own_mask)[:2], prompt_length))
        before, last = prompt.positions[:, :-1], prompt.positions[:, -1:]
        slot_positions = ops.concatenate([before, last + own_positions], axis=-1)
        with step_matrices_scope(self.matrices):
            logits, cache = self.model.call_with_cache(
                token_ids,
                _with_positions(cache, slot_positions, token_ids),
                prompt_length + first_slot,
                positions,
                ops.concatenate([prompt_mask, own_mask], axis=-1),
            )
        return logits, _without_positions(cache)


class Seq2SeqGeneration:
    """Mixin that gives an encoder-decoder model `generate`, and with it `Translator` and export.

    The model has

    - `max_sequence_length` and `pad_token_id`, integers;
    - `init_cache(encoder_token_ids, length, encoder_padding_mask=None)`: a namedtuple such as `Seq2SeqCache`.
      Its first field is a tuple with one key/value cache pair per layer, of `length` empty slots; steps do
      not change the others;
    - `call_with_cache(decoder_token_ids, cache, cache_update_index, positions=None,
      decoder_attention_mask=None)`, like `Seq2SeqTransformer.call_with_cache`: logits (B, T, V) and the new
      cache; with `return_attention_scores=True`, which coverage penalties, alignments and attention maps
      need, also the cross-attention scores of each layer.

    `Translator` also needs `vocabulary_size` and `target_vocabulary_size` (None if both sides share one
    vocabulary); saving and exporting need a `keras.Model`, whose class is registered with
    `keras.saving.register_keras_serializable`. `encode(encoder_token_ids)` gives the export its signature `encode`.

    Example:

    ```python
    from keras_attn.models import Seq2SeqCache, Seq2SeqGeneration

    embedding = keras_attn.layers.TokenEmbedding(29, 12)
    encoder_block = keras_attn.layers.EncoderBlock(20, num_heads=2)
    decoder_block = keras_attn.layers.DecoderBlock(20, num_heads=2)
    decoder_block.build((None, None, 12), (None, None, 12))


    class Generator(Seq2SeqGeneration):
        max_sequence_length, pad_token_id = 64, 0

        def init_cache(self, encoder_token_ids, length, encoder_padding_mask=None):
            sequence = encoder_block(embedding(encoder_token_ids), padding_mask=encoder_padding_mask)
            own = decoder_block.empty_cache(keras.ops.shape(encoder_token_ids)[0], length)
            cross = decoder_block.project_to_cache(sequence, encoder_padding_mask)
            return Seq2SeqCache((own,), (cross,), encoder_padding_mask)

        def call_with_cache(
            self, token_ids, cache, cache_update_index, positions=None, decoder_attention_mask=None
        ):
            x, own = decoder_block(
                embedding(token_ids),
                decoder_attention_mask=decoder_attention_mask,
                encoder_padding_mask=cache.encoder_padding_mask,
                self_attention_cache=cache.self_attention[0],
                self_attention_cache_update_index=cache_update_index,
                cross_attention_cache=cache.cross_attention[0],
                use_causal_mask=decoder_attention_mask is None,
            )
            return embedding(x, reverse=True), cache._replace(self_attention=(own,))


    source = np.array([[5, 6, 7, 3], [8, 9, 3, 0]])
    token_ids = Generator().generate(source, start_token_id=2, end_token_id=3, num_beams=4, max_length=5)  # (2, 5)
    ```
    """

    def generate(
        self,
        encoder_token_ids,
        start_token_id,
        end_token_id,
        num_beams=1,
        length_penalty=1.0,
        max_length=None,
        num_return_sequences=None,
        options=None,
        compiler=None,
        encoder_padding_mask=None,
        unwritable_token_ids=(),
        cache=None,
        pad_token_id=None,
        listed_tokens=None,
        limit=None,
    ):
        """Decodes token ids (B, S) greedily, with beam search, or by sampling; see `keras_attn.generation`.

        Args:
            encoder_token_ids: Integers (B, S), padded. A model that reads images or speech has a tensor of three or
                more axes here, which its `init_cache` takes as it is given.
            start_token_id, end_token_id: Integers. START may be the pad, and one for each row, int32 (B,).
            num_beams: Integer, at most 1024; 1 is greedy search. Ignored by sampling.
            length_penalty: Float, a scalar tensor, or floats (B,).
            max_length: Integer, the most tokens of an answer, END included. Defaults to `max_sequence_length`.
            num_return_sequences: Integer n, at most `num_beams` unless answers are sampled. None returns only
                the token ids of the best, or first, answer.
            options: `keras_attn.generation.DecodingOptions`. Any option of sampling (`temperature`, `top_k`,
                `top_p`, `min_p`, `seed`) selects sampling; the seed is 0 by default. The coverage penalty
                uses the mean over heads of the last layer's cross-attention.
            compiler: Function that compiles a function of tensors, for TensorFlow graphs that take batches of
                any size: the encoder and the steps are compiled, for each size that the batch has as rows
                finish.
            encoder_padding_mask: Boolean (B, S), True at source tokens. By default every `pad_token_id` is a pad, and
                nothing in a tensor of more than two axes, for which `init_cache` gets None.
            unwritable_token_ids: Integers, tokens that are never chosen because they stand for no text.
            cache: What `init_cache(encoder_token_ids, 0, encoder_padding_mask)` returned, if the sources were
                encoded before.
            pad_token_id: As in `CausalGeneration.generate`.
            listed_tokens: `keras_attn.generation.ListedTokens`, the tokens that the answers of these rows may have; or None for
                all. Scores are then of probabilities among them. The model needs a method `output_projection`, as
                `Seq2SeqTransformer` has.
            limit: As in `CausalGeneration.generate`.

        Returns:
            Integers (B, max_length), END included, then pads; with `num_return_sequences`, `Hypotheses` with token
            ids (B, n, max_length) and scores (B, n).

        Raises:
            ValueError: if an argument is out of range.
        """
        options = checked_options(options, num_beams, num_return_sequences)
        inputs = self.search_inputs(
            encoder_token_ids,
            start_token_id,
            end_token_id,
            max_length,
            encoder_padding_mask,
            unwritable_token_ids,
            options.coverage_penalty is not None,
            compiler,
            cache,
            pad_token_id,
            listed_tokens,
            limit,
        )
        return find_answers(inputs, num_beams, num_return_sequences, length_penalty, options)

    def search_inputs(
        self,
        encoder_token_ids,
        start_token_id,
        end_token_id,
        max_length=None,
        encoder_padding_mask=None,
        unwritable_token_ids=(),
        penalizes_coverage=False,
        compiler=None,
        cache=None,
        pad_token_id=None,
        listed_tokens=None,
        limit=None,
    ):
        """`SearchInputs` for the answers to sources; arguments as in `generate`.

        Options with a coverage penalty need `penalizes_coverage`.
        """
        max_length = check_max_length(max_length, self.max_sequence_length)
        shared_size = getattr(self, "vocabulary_size", None)
        _check_start(start_token_id, getattr(self, "target_vocabulary_size", None) or shared_size)
        encoder_token_ids, encoder_padding_mask = _read_source(
            encoder_token_ids, encoder_padding_mask, self.pad_token_id
        )
        if penalizes_coverage and not self.returns_attention_scores:
            raise ValueError(
                "`coverage_penalty` needs the scores of cross-attention. Received: a model whose `call_with_cache` has no "
                "argument `return_attention_scores`."
            )
        if penalizes_coverage and encoder_padding_mask is None:
            raise ValueError(
                "`coverage_penalty` needs `encoder_padding_mask`, boolean (B, S), for a source of more than two axes. "
                f"Received: encoder_token_ids of shape {tuple(encoder_token_ids.shape)}."
            )

        def init_cache(encoder_token_ids, encoder_padding_mask):
            return self.init_cache(encoder_token_ids, 0, encoder_padding_mask)

        if compiler is not None:
            init_cache = compiler(init_cache)
        if cache is None:
            cache = init_cache(encoder_token_ids, encoder_padding_mask)
        with _step_scope(compiler):
            output_token_ids = None if listed_tokens is None else listed_tokens.token_ids
            step = self.decoding_step(penalizes_coverage, output_token_ids)
        coverage = None
        if penalizes_coverage:
            coverage = ops.cast(ops.logical_not(encoder_padding_mask), "float32")
        return SearchInputs(
            step=step,
            read=step.read,
            make_cache=lambda slots: extend_caches(cache[0], slots),
            batch_size=ops.shape(encoder_token_ids)[0],
            max_length=max_length,
            start_token_id=start_token_id,
            end_token_id=end_token_id,
            pad_token_id=self.pad_token_id if pad_token_id is None else pad_token_id,
            unwritable_token_ids=tuple(unwritable_token_ids),
            row_context=_with_first(cache, ()),
            coverage=coverage,
            compiler=compiler,
            listed_tokens=listed_tokens,
            limit=limit,
        )

    def decoding_step(self, return_attention_scores=False, output_token_ids=None):
        """The `step` of `SearchInputs`, whose row context is the model's cache without its first field.

        It also has a method `read`. It holds the current weights: make one for each search, in the graph of
        its steps. With `output_token_ids` (U,) its logits are of these tokens alone.
        """
        return _Seq2SeqStep(self, return_attention_scores, output_token_ids)

    @property
    def returns_attention_scores(self):
        """Whether `call_with_cache` can return the scores of cross-attention."""
        return "return_attention_scores" in inspect.signature(self.call_with_cache).parameters

    def teacher_forced(
        self,
        encoder_token_ids,
        decoder_token_ids,
        encoder_padding_mask=None,
        return_attention_scores=False,
        cache=None,
    ):
        """Logits of the token after each of `decoder_token_ids`, none of which is treated as a pad.

        Args:
            encoder_token_ids, encoder_padding_mask: As in `generate`.
            decoder_token_ids: Integers (B, T), beginning with START.
            return_attention_scores: Boolean.
            cache: As in `generate`.

        Returns:
            Logits, float32 (B, T, V); with `return_attention_scores`, a tuple of them and the cross-attention scores of
            each layer, a list of (B, N, T, S).
        """
        encoder_token_ids, encoder_padding_mask = _read_source(
            encoder_token_ids, encoder_padding_mask, self.pad_token_id
        )
        decoder_token_ids = ops.convert_to_tensor(decoder_token_ids, dtype="int32")
        if cache is None:
            cache = self.init_cache(encoder_token_ids, 0, encoder_padding_mask)
        cache = _with_first(cache, extend_caches(cache[0], ops.shape(decoder_token_ids)[1]))
        if not return_attention_scores:
            return self.call_with_cache(decoder_token_ids, cache, 0)[0]
        logits, _, scores = self.call_with_cache(decoder_token_ids, cache, 0, return_attention_scores=True)
        return logits, scores


class _Seq2SeqStep:
    """Steps of a search for the answers to sources; the row context is the keys, values and mask of the source, as `init_cache` made them."""

    def __init__(self, model, return_attention_scores, output_token_ids=None):
        self.model = model
        self.matrices = step_matrices(model)
        self.search_arguments = {}
        if return_attention_scores:
            self.search_arguments["return_attention_scores"] = True
        if output_token_ids is not None:
            self.search_arguments["output_projection"] = model.output_projection(output_token_ids)

    def __call__(self, token_ids, index, cache, attention_mask, row_context):
        num_hypotheses = token_ids.shape[1]
        logits, cache, *scores = self._call_model(
            token_ids,
            cache,
            first_slot=index * num_hypotheses,
            positions=ops.zeros((num_hypotheses,), dtype="int32") + index,
            mask=attention_mask,
            slot_positions=successive_positions(ops.shape(attention_mask)[-1]) // num_hypotheses,
            row_context=row_context,
            **self.search_arguments,
        )
        if not scores:
            return logits, cache
        last_layer = scores[0][-1]
        return logits, cache, ops.mean(last_layer, axis=1)

    def read(self, token_ids, index, cache, row_context):
        rows, length = ops.shape(token_ids)
        slots = successive_positions(ops.shape(cache[0][0])[-2])
        new = successive_positions(length, index)
        mask = ops.expand_dims(new, -1) >= slots
        mask = ops.broadcast_to(mask, (rows, length, ops.shape(slots)[0]))
        return self._call_model(token_ids, cache, index, new, mask, slots, row_context)

    def _call_model(
        self, token_ids, cache, first_slot, positions, mask, slot_positions, row_context, **arguments
    ):
        cache = _with_first(row_context, _with_positions(cache, slot_positions, token_ids))
        with step_matrices_scope(self.matrices):
            logits, cache, *scores = self.model.call_with_cache(
                token_ids, cache, first_slot, positions, mask, **arguments
            )
        return logits, _without_positions(cache[0]), *scores


def _step_scope(compiler):
    """The scope in which step matrices are made: a compiled loop needs another form of them than one that runs op by op."""
    return contextlib.nullcontext() if compiler is None else compiled_scope()


def _with_positions(caches, positions, token_ids):
    """The caches of all layers for one call with tokens (B, T), with the positions of the slots."""
    sizes = (axis_size(token_ids, 0), axis_size(positions, -1))
    if all(isinstance(size, int) for size in sizes):
        sizes = None
    else:
        sizes = tuple(ops.convert_to_tensor(size, "int32") for size in sizes)
    return tuple(KeyValueCache(*cache[:2], positions, sizes) for cache in caches)


def _without_positions(caches):
    """The part of the caches of all layers that a loop carries: pairs of keys and values."""
    return tuple((cache[0], cache[1]) for cache in caches)


def _with_first(cache, first):
    """`cache`, a namedtuple, with its first field replaced."""
    return cache._replace(**{cache._fields[0]: first})


def _check_start(token_ids, vocabulary_size):
    """Checks the token before the first of an answer, since steps do not check what they read."""
    if vocabulary_size is not None:
        indices_within(token_ids, vocabulary_size, "Token ids")


def _read_source(token_ids, mask, pad_token_id):
    """What an encoder reads, and its mask: token ids, or features of more than two axes, which have no pad."""
    token_ids = ops.convert_to_tensor(token_ids)
    if len(token_ids.shape) > 2 and mask is None:
        return token_ids, None
    if len(token_ids.shape) <= 2:
        token_ids = ops.cast(token_ids, "int32")
    return token_ids, _checked_mask(token_ids, mask, pad_token_id)


def _checked_mask(token_ids, mask, pad_token_id):
    """`mask` as a boolean tensor, or if it is None, True at every token except the pad."""
    if mask is None:
        return padding_mask(token_ids, pad_token_id)
    mask = ops.convert_to_tensor(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    shape = tuple(mask.shape)
    expected = tuple(token_ids.shape[:2])
    fits = len(shape) == len(expected) and all(
        one == other or None in (one, other) for one, other in zip(shape, expected)
    )
    if dtype != "bool" or not fits:
        raise ValueError(
            f"A padding mask must be boolean with the shape of its tokens, {expected}. Received: "
            f"dtype={dtype}, shape={shape}."
        )
    return mask


def _make_prompt(token_ids, mask, pad_token_id, may_have_any_length):
    """The `Prompt`, with the tokens of each row moved to the right end, in order."""
    token_ids = ops.convert_to_tensor(token_ids, dtype="int32")
    check_rank("prompt_token_ids", token_ids.shape, "(B, T)")
    if token_ids.shape[1] is None and not may_have_any_length:
        raise ValueError(
            "The length of the prompt must be known when a graph is traced: how many tokens may follow depends on it. "
            "Give `max_total_length` for prompts of any length. "
            f"Received: prompt_token_ids of shape {tuple(token_ids.shape)}."
        )
    length = ops.shape(token_ids)[1]
    if isinstance(length, int) and not length:
        raise ValueError(
            "A prompt must have a token: START, if there is nothing else to begin with. "
            f"Received: prompt_token_ids of shape {tuple(token_ids.shape)}."
        )
    is_token = _checked_mask(token_ids, mask, pad_token_id)
    if not isinstance(length, int):  # a column of pads, if there is only one: what is read then has a size
        missing = [(0, 0), (ops.maximum(2 - length, 0), 0)]
        token_ids = ops.pad(token_ids, missing)
        is_token = ops.pad(is_token, missing)
        length = ops.maximum(length, 2)
    values = concrete_values(is_token)
    if values is not None and not np.all(values.any(axis=1)):
        raise ValueError(
            "A prompt must have a token: START, if there is nothing else to begin with. "
            f"Received: only pads in row {int(np.argmin(values.any(axis=1)))}."
        )
    order = ops.argsort(successive_positions(length) + length * ops.cast(is_token, "int32"), axis=1)
    start = length - ops.sum(ops.cast(is_token, "int32"), axis=1)
    return Prompt(ops.take_along_axis(token_ids, order, axis=1), ops.minimum(start, length - 1))


def _limit_each_row(options, max_total_length, inputs):
    """The options, with limits at which each row's prompt and answer together have `max_total_length` tokens."""
    prompt = inputs.prompt
    num_tokens = ops.shape(prompt.token_ids)[1] - prompt.start
    values = concrete_values(num_tokens)
    if values is not None and values.size and values.max() >= max_total_length:
        raise ValueError(
            "A prompt must have fewer tokens than `max_total_length`. "
            f"Received: {int(values.max())} tokens, max_total_length={max_total_length}."
        )
    most = inputs.max_length if options.max_length is None else options.max_length
    most = ops.minimum(ops.convert_to_tensor(most, dtype="int32"), max_total_length - num_tokens)
    return dataclasses.replace(options, max_length=most)


def _max_new_tokens(prompt_length, max_length, max_sequence_length):
    most = max_sequence_length - prompt_length
    max_length = most if max_length is None else max_length
    if max_length > most:
        raise ValueError(
            "The prompt and `max_length` more tokens must be at most `max_sequence_length`. Received: "
            f"{prompt_length} tokens, max_length={max_length}, max_sequence_length={max_sequence_length}."
        )
    return max_length
