import dataclasses
from typing import Any

import numpy as np
from keras import ops

from keras_attn.generation.processors import (
    divide_by_temperature,
    forbid_repeated_ngrams,
    force_prefix,
    force_token,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize_repetition,
    renormalize,
    require_min_length,
    suppress_tokens,
    without_tokens,
)
from keras_attn.ops import concrete_values

# The most beams, or samples, of a row. Every step makes a row of logits for each hypothesis, which for this many over
# 32,000 tokens is 125 MiB per sentence. Studies of how scores behave in wide beams go up to 1,000 (Koehn and
# Knowles, 2017, https://arxiv.org/abs/1706.03872, section 3.6).
MAX_HYPOTHESES = 1024


@dataclasses.dataclass(frozen=True)
class DecodingOptions:
    """The options of a search. Each has one value for all rows, or one per row.

    An option that is None is not in the graph. A value is data of the graph: no compiled graph depends on it.

    Args:
        min_length: Integers, the fewest tokens of an answer, END included.
        max_length: Integers, the most tokens of a row's answer, if fewer than those of the search.
        suppressed_token_ids: Integers (P,) or (B, P), tokens that are never chosen; -1 means no token.
        suppressed_first_token_ids: Integers (P,) or (B, P), tokens that are not chosen first, `first_token_id` not
            counted; -1 means no token. They are `begin_suppress_tokens` of transformers.
        stop_token_ids: Integers (Q,) or (B, Q), further tokens that end an answer like END; -1 means no
            token.
        prefix_token_ids: Integers (P,) or (B, P), the first tokens of an answer, whose probability counts; -1
            after the end of a shorter prefix. It comes after `first_token_id`.
        first_token_id: Integers, the first token of an answer, at no cost: the token of the language to write in, for
            instance; -1 for none. It is `forced_bos_token_id` of transformers.
        last_token_id: Integers, the token at which an answer of the most tokens ends, at no cost; -1 for none. It is
            `forced_eos_token_id` of transformers.
        no_repeat_ngram_size: Integers, n-grams of this size appear once in an answer; 0 for no such limit.
        repetition_penalty: Floats that multiply the log-probability of tokens that the answer already has; 1
            for no penalty. The scores of a beam search include it.
        renormalize: Booleans, whether the probabilities of the tokens that may be chosen are divided by their sum, after
            all options above. The scores of a beam search include it. It is `renormalize_logits` of transformers.
        num_beams: Integers up to `MAX_HYPOTHESES`, for rows with fewer beams than the search.
        wu_length_penalty: Floats w: scores are divided by ((5 + length) / 6) ** w too (Wu et al. 2016, equation 14).
        coverage_penalty: Floats that multiply the coverage penalty of Wu et al. 2016, equation 14, added to scores.
        exact_stopping: Booleans, whether a row continues while a live hypothesis could still become better
            than the worst finished one at any length. Otherwise live hypotheses are compared at their current
            length.
        early_stopping: Booleans, whether a row ends as soon as it has as many finished hypotheses as beams, whatever
            its live ones may become.
        temperature, top_k, top_p, min_p, seed: Options of sampling: floats, integers, floats, floats,
            integers.

    Raises:
        ValueError: if a value is out of range, or has the wrong number of rows.
    """

    min_length: Any = None
    max_length: Any = None
    suppressed_token_ids: Any = None
    suppressed_first_token_ids: Any = None
    stop_token_ids: Any = None
    prefix_token_ids: Any = None
    first_token_id: Any = None
    last_token_id: Any = None
    no_repeat_ngram_size: Any = None
    repetition_penalty: Any = None
    renormalize: Any = None
    num_beams: Any = None
    wu_length_penalty: Any = None
    coverage_penalty: Any = None
    exact_stopping: Any = None
    early_stopping: Any = None
    temperature: Any = None
    top_k: Any = None
    top_p: Any = None
    min_p: Any = None
    seed: Any = None

    def for_rows(self, batch_size):
        """The same options as tensors with one value per row."""
        given = self.given().items()
        return dataclasses.replace(
            self, **{name: _for_rows(name, value, batch_size) for name, value in given}
        )

    def given(self):
        """The options that were given, as a dict."""
        return {name: getattr(self, name) for name in _KINDS if getattr(self, name) is not None}

    def of_rows(self, rows, num_rows):
        """The options of some rows of a batch, as a dict of NumPy arrays with one value per row.

        Args:
            rows: Integers, which rows.
            num_rows: Integer, how many rows the options were made for.
        """
        options = dataclasses.replace(
            self, **{k: _converted(np.asarray, k, v) for k, v in self.given().items()}
        )
        of_all = options.for_rows(num_rows).given()
        return {name: ops.convert_to_numpy(value)[rows] for name, value in of_all.items()}

    @property
    def is_sampling(self):
        """Whether answers are drawn at random, instead of searched for."""
        return any(getattr(self, name) is not None for name in _OF_SAMPLING)

    @property
    def changes_log_probs(self):
        """Whether any processor is used."""
        return any(getattr(self, name) is not None for name in _OF_PROCESSORS)

    def process(self, log_probs, history, index, end_token_ids, unwritable_token_ids, max_length):
        """Log-probabilities (B, K, V) of the tokens at step `index`, after every processor that was asked for.

        A prefix may hold tokens that are otherwise suppressed or unwritable. `max_length` is the search's.
        """
        processed = log_probs
        if self.repetition_penalty is not None:
            processed = penalize_repetition(processed, history, self.repetition_penalty)
        if self.no_repeat_ngram_size is not None:
            processed = forbid_repeated_ngrams(processed, history, self.no_repeat_ngram_size)
        processed = without_tokens(processed, unwritable_token_ids)
        if self.suppressed_token_ids is not None:
            processed = suppress_tokens(processed, self.suppressed_token_ids)
        if self.suppressed_first_token_ids is not None:
            is_first = ops.reshape(index == self._num_first_tokens(), (-1, 1))
            processed = suppress_tokens(processed, ops.where(is_first, self.suppressed_first_token_ids, -1))
        if self.min_length is not None:
            processed = require_min_length(processed, index + 1, self.min_length, end_token_ids)
        if self.prefix_token_ids is not None:
            processed = force_prefix(
                processed, log_probs, index - self._num_first_tokens(), self.prefix_token_ids
            )
        if self.first_token_id is not None:
            processed = force_token(processed, index == 0, self.first_token_id)
        if self.last_token_id is not None:
            most = max_length if self.max_length is None else ops.minimum(self.max_length, max_length)
            processed = force_token(processed, index + 1 >= most, self.last_token_id)
        if self.renormalize is not None:
            processed = renormalize(processed, self.renormalize)
        return processed

    def _num_first_tokens(self):
        """How many tokens of an answer come before its prefix: 0, or integers (B,)."""
        return 0 if self.first_token_id is None else ops.cast(self.first_token_id >= 0, "int32")

    def sharpen(self, log_probs):
        """Log-probabilities to sample from: unlikely tokens are impossible, the others are not normalised."""
        if self.temperature is not None:
            log_probs = divide_by_temperature(log_probs, self.temperature)
        if self.top_k is not None:
            log_probs = keep_top_k(log_probs, self.top_k)
        if self.top_p is not None:
            log_probs = keep_top_p(log_probs, self.top_p)
        if self.min_p is not None:
            log_probs = keep_min_p(log_probs, self.min_p)
        return log_probs

    def are_ends(self, token_ids, end_token_ids):
        """Which of `token_ids` (B, K) end an answer."""
        if self.stop_token_ids is None:
            return token_ids == end_token_ids
        return ops.any(ops.expand_dims(token_ids, -1) == end_token_ids[:, None, :], axis=-1)

    def end_token_ids(self, end_token_id):
        """(1, 1) or (B, 1 + Q) integers: END and the other tokens that end an answer."""
        end = ops.full((1, 1), end_token_id, dtype="int32")
        if self.stop_token_ids is None:
            return end
        rows = ops.shape(self.stop_token_ids)[0]
        return ops.concatenate([ops.broadcast_to(end, (rows, 1)), self.stop_token_ids], axis=1)


_OF_PROCESSORS = (
    "min_length",
    "suppressed_token_ids",
    "suppressed_first_token_ids",
    "prefix_token_ids",
    "first_token_id",
    "last_token_id",
    "no_repeat_ngram_size",
    "repetition_penalty",
    "renormalize",
)

_OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")

# The dtype of each option, its number of axes besides that of the rows, and the least and greatest value.
_KINDS = {
    "min_length": ("int32", 0, 0, None),
    "max_length": ("int32", 0, 1, None),
    "suppressed_token_ids": ("int32", 1, -1, None),
    "suppressed_first_token_ids": ("int32", 1, -1, None),
    "stop_token_ids": ("int32", 1, -1, None),
    "prefix_token_ids": ("int32", 1, -1, None),
    "first_token_id": ("int32", 0, -1, None),
    "last_token_id": ("int32", 0, -1, None),
    "no_repeat_ngram_size": ("int32", 0, 0, None),
    "repetition_penalty": ("float32", 0, 1e-6, None),
    "renormalize": ("bool", 0, None, None),
    "num_beams": ("int32", 0, 1, MAX_HYPOTHESES),
    "wu_length_penalty": ("float32", 0, None, None),
    "coverage_penalty": ("float32", 0, 0, None),
    "exact_stopping": ("bool", 0, None, None),
    "early_stopping": ("bool", 0, None, None),
    "temperature": ("float32", 0, 0, None),
    "top_k": ("int32", 0, 0, None),
    "top_p": ("float32", 0, 0, 1),
    "min_p": ("float32", 0, 0, 1),
    "seed": ("int32", 0, None, None),
}


def _converted(convert, name, value):
    """An option as `convert` makes it of a value and the option's dtype."""
    dtype = _KINDS[name][0]
    values = concrete_values(value) if dtype == "int32" else None
    if values is not None and values.size and not -(2**31) <= values.min() <= values.max() < 2**31:
        raise ValueError(f"`{name}` must fit into int32. Received: {name}={value}.")
    return convert(value, dtype=dtype)


def _for_rows(name, value, batch_size):
    _, num_axes, least, greatest = _KINDS[name]
    value = _converted(ops.convert_to_tensor, name, value)
    rank = len(value.shape)
    if rank not in (num_axes, num_axes + 1):
        shape = "one value a row, or one for all" if num_axes == 0 else "shape (P,), or (batch, P)"
        raise ValueError(f"`{name}` must have {shape}. Received: {name} of shape {tuple(value.shape)}.")
    _check_range(name, value, least, greatest)
    if rank == num_axes:
        return ops.broadcast_to(value, (batch_size, *value.shape))
    if isinstance(batch_size, int) and value.shape[0] not in (None, batch_size):
        raise ValueError(
            f"`{name}` must have a value for each of the {batch_size} rows. Received: {value.shape[0]} of them."
        )
    return value


def _check_range(name, value, least, greatest):
    values = concrete_values(value)
    if values is None or not values.size:
        return
    low, high = np.min(values), np.max(values)
    if low != low:
        raise ValueError(f"`{name}` must be a number. Received: {low}.")
    if (least is not None and not low >= least) or (greatest is not None and not high <= greatest):
        limits = f"at least {least}" if greatest is None else f"in [{least}, {greatest}]"
        raise ValueError(f"`{name}` must be {limits}. Received: {low} to {high}.")
