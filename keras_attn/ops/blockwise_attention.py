"""Attention in blocks of queries, which needs no tensor of all pairs of a query and a key, forward or backward."""

import dataclasses
import functools
import itertools
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn.ops.attention import (
    biased,
    mask_as_bias,
    masked,
    products,
    products_in_dtype,
    row_products,
    scaled,
    soft_capped,
    softmax,
    transposed_sum,
    weighted_sum,
)
from keras_attn.ops.biases import DenseBias, PairBias
from keras_attn.ops.graph_purpose import custom_gradient, is_compiled_graph, is_tensorflow_on_cpu
from keras_attn.ops.masks import MaskRule, as_mask_rule, combine_masks
from keras_attn.ops.nan_guards import guarded_parameters, keep, seen_keys
from keras_attn.ops.precision import at_least_float32, is_at_least_float32
from keras_attn.ops.softmax import is_softmax_rounded_once
from keras_attn.ops.tensorflow_attention import computed_after, head_by_head, with_later_keys_masked

# The number of scores in a block: 128 MB in float32.
_BLOCK_SCORES = 2**25
# The same for a key head, where TensorFlow runs one operation after another on a CPU: 16 MB in float32. With 64 MB and more,
# a softmax, or a product that writes scores, was seen to take 1.6 to 1.9 times as long for each score; with 8 MB, a whole
# step up to 1.1 times as long.
_BLOCK_SCORES_OF_HEAD = 2**22
# Fewer would leave out little under a causal mask.
_FEWEST_BLOCKS = 8


def memory_efficient_attention(
    query,
    key,
    value,
    mask=None,
    bias=None,
    scale=None,
    soft_cap=None,
    sink_logits=None,
    dropout=None,
    num_blocks=None,
):
    """The output of `dot_product_attention` without a tensor of all pairs, forward or backward.

    Blocks of queries are computed one after the other. The gradient computes the scores of each block again,
    with the formula of the forward pass. If the `mask` is a `MaskRule` with an `offset`, a block skips the
    keys that none of its queries can see: half of all keys under a causal mask, all but a band under a
    sliding window.

    Args:
        query, key, value, mask, bias, scale, soft_cap, sink_logits, dropout: As in `dot_product_attention`.
        num_blocks: Integer, the number of blocks of queries. By default at least 8, and enough that a block holds about
            2^25 scores; on a CPU TensorFlow then takes one key head after the other, in blocks of 2^22 scores in float32, if there
            is no bias, sink logit, dropout, window, segment or mask of pairs.

    Returns:
        The output (..., N, T, Hv), in the dtype of `query`.

    Example:

    ```python
    query = key = value = keras.random.normal((1, 2, 4096, 8))
    positions = keras.ops.arange(4096)
    rule = MaskRule(query_positions=positions, key_positions=positions, causal=True, offset=0)
    output = memory_efficient_attention(query, key, value, mask=rule)
    ```

    References: [Rabe and Staats, 2021](https://arxiv.org/abs/2112.05682); the gradient is that of
    [Dao et al., 2022](https://arxiv.org/abs/2205.14135), appendix B.2.
    """
    mask = as_mask_rule(mask, query, key)
    if bias is not None and not isinstance(bias, PairBias):
        bias = DenseBias(ops.convert_to_tensor(bias))
    if not mask.keys_are_finite:
        is_seen = _keys_seen_by_rule(mask, query, key)
        key = keep(key, is_seen)
        value = keep(value, is_seen)
    if not all(_are_known(size) or size is None for size in (query.shape[-2], key.shape[-2])):
        # When JAX infers shapes, sizes are symbols that cannot be compared.
        mask = dataclasses.replace(mask, offset=None)
        num_blocks = 1
    is_head_by_head = False
    if num_blocks is None:
        is_head_by_head = _runs_head_by_head(query, key, value, mask, bias, sink_logits, dropout)
        num_blocks = _num_blocks(query, key, mask, is_head_by_head)
    map_heads = _all_heads_at_once
    if is_head_by_head:
        map_heads = functools.partial(head_by_head, key.shape[-3])
    learned = []
    if bias is not None:
        learned.append(bias.parameters)
    if sink_logits is not None:
        learned.append(sink_logits)
    # Integers and booleans have no gradient, but on JAX every tensor must be an argument of the function.
    others, with_others = _take_tensors_out(mask, bias, dropout)

    @custom_gradient
    def attend(query, key, value, *rest):
        mask, bias, dropout = with_others(rest[len(learned) :])
        parameters = None if bias is None else rest[0]
        sinks = None if sink_logits is None else rest[len(learned) - 1]

        def blocks(query, key, value):
            tensors = (query, key, value, parameters, sinks)
            return _Blocks(*tensors, mask, bias, soft_cap, dropout, num_blocks, is_head_by_head)

        def outputs_of_blocks(query, key, value):
            return [blocks(query, key, value).output()]

        def gradients_of_blocks(query, key, value, output, upstream):
            return blocks(query, key, value).gradient(output, upstream)

        (output,) = map_heads(outputs_of_blocks, 1, query, key, value)

        def gradient(upstream):
            gradients = map_heads(gradients_of_blocks, 3, query, key, value, output, upstream)
            return tuple(gradients) + (None,) * len(others)

        return output, gradient

    # Weights are copied because TensorFlow allows tensors here, but no variables.
    return attend(scaled(query, scale), key, value, *map(ops.copy, learned), *others)


def prefers_memory_efficient(query, key, mask=None):
    """Whether blocks save more than they cost: there are many pairs, or a sliding window skips most of them.

    Args:
        query, key: As in `dot_product_attention`.
        mask: `MaskRule`.
    """
    num_queries = query.shape[-2]
    num_keys = key.shape[-2]
    if not _are_known(num_queries, num_keys):
        return False
    if mask is not None and mask.offset is not None and mask.sliding_window:
        return num_queries >= 1024 and num_keys >= 8 * mask.sliding_window
    return num_queries * num_keys >= 2048 * 2048


def _keys_seen_by_rule(rule, query, key):
    """Keys that no single rule hides from every query: booleans (..., 1 or K, S, 1), or None if that is all keys.

    The conjunction of all rules would need a tensor of all pairs.
    """
    is_seen = combine_masks(rule.key_mask, rule.slot_mask)
    if rule.key_segment_ids is not None:
        is_seen = combine_masks(is_seen, ops.not_equal(rule.key_segment_ids, 0))
    if rule.causal and rule.prefix_mask is None:
        last = ops.max(rule.query_positions, axis=-1, keepdims=True, initial=-(2**31))
        is_seen = combine_masks(is_seen, rule.key_positions <= last)
    if is_seen is not None:
        is_seen = ops.expand_dims(is_seen, (-3, -1))
    if rule.pairs is not None:
        is_seen = combine_masks(is_seen, seen_keys(rule.pairs, query, key))
    return is_seen


def _runs_head_by_head(query, key, value, mask, bias, sink_logits, dropout):
    """Whether one key head after the other can be computed, in less time."""
    num_heads, num_queries = query.shape[-3:-1]
    num_key_heads, num_keys = key.shape[-3:-1]
    if not (is_tensorflow_on_cpu() and _are_known(num_heads, num_queries, num_key_heads, num_keys)):
        return False
    if bias is not None or sink_logits is not None or dropout is not None:
        return False
    # A mask of all pairs would be computed again for each head.
    pair_rules = (mask.pairs, mask.query_segment_ids, mask.prefix_mask, mask.sliding_window)
    if any(rule is not None for rule in pair_rules) or (mask.causal and mask.offset is None):
        return False
    if num_key_heads == 1 or not query.dtype == key.dtype == value.dtype:
        return False
    # It is faster with blocks half as large, too.
    return _num_planes(query) * num_queries * num_keys > _FEWEST_BLOCKS * _BLOCK_SCORES_OF_HEAD // 2


def _all_heads_at_once(function, num_results, *tensors):
    return function(*tensors)


def _num_blocks(query, key, mask, is_head_by_head):
    num_queries = query.shape[-2]
    num_keys = key.shape[-2]
    if not _are_known(num_queries, num_keys):
        return 32
    planes = _num_planes(query)
    scores = _BLOCK_SCORES
    if is_head_by_head:
        planes //= key.shape[-3]
        scores = _BLOCK_SCORES_OF_HEAD
        if not is_at_least_float32(query):
            scores *= 2  # the same number of bytes
    rows = max(scores // max(planes * num_keys, 1), 64)
    if mask.causal and mask.offset is not None:
        # On average a block sees half of the keys.
        rows *= 2
    if mask.offset is not None and mask.sliding_window:
        # About half of the computed pairs are then visible, and there are not too many blocks.
        rows = mask.sliding_window
    return min(max(-(-num_queries // rows), _FEWEST_BLOCKS), 256)


def _num_planes(query):
    """How many matrices of scores there are. A batch of unknown size counts as 1."""
    return math.prod(size for size in query.shape[:-2] if _are_known(size))


def _take_tensors_out(*values):
    """The tensors in the fields of the values, except learned ones, and a function that puts other tensors back in."""
    fields = [
        (index, field.name)
        for index, value in enumerate(values)
        if value is not None
        for field in dataclasses.fields(value)
        if field.name != "parameters" and ops.is_tensor(getattr(value, field.name))
    ]

    def put_back(tensors):
        changed = [{} for _ in values]
        for (index, name), tensor in zip(fields, tensors, strict=True):
            changed[index][name] = tensor
        return [value and dataclasses.replace(value, **new) for value, new in zip(values, changed)]

    return [getattr(values[index], name) for index, name in fields], put_back


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """The arguments of one call of memory-efficient attention, and the loops over its blocks of queries."""

    query: Any
    key: Any
    value: Any
    parameters: Any
    sink_logits: Any
    mask: MaskRule
    bias: Any
    soft_cap: float | None
    dropout: Any
    num_blocks: int
    is_head_by_head: bool

    @property
    def has_low_precision_form(self):
        """Whether low precision has a form of its own. It was measured on CPUs alone, and takes neither bias nor dropout."""
        return self.is_head_by_head and self.soft_cap is None

    @functools.cached_property
    def products(self):
        """The function for the products of queries and keys: in at least float32, unless the softmax is so by itself."""
        if self.has_low_precision_form and is_softmax_rounded_once(self.query.dtype):
            return products_in_dtype
        return products

    def output(self):
        outputs = []
        for queries in self._slices():
            outputs.append(_Block(self, queries, after=outputs[-1:]).output())
        return ops.concatenate(outputs, axis=-2)

    def gradient(self, output, upstream):
        """The gradients of query, key and value, then of the bias parameters and the sink logits, if there are any."""
        by_key = _KeyGradient(self.key)
        by_value = _KeyGradient(self.value)
        by_query, by_bias, by_sink = [], [], []
        after = [output]
        for queries in reversed(self._slices()):
            block = _Block(self, queries, after)
            rows = keep(_after(upstream[..., queries, :], after), block.sees_keys)
            row_terms = row_products(output[..., queries, :], rows)
            by_logits, by_products = block.logits_gradient(rows, row_terms)
            by_query.append(block.query_gradient(by_products))
            by_key.add(block.keys, transposed_sum(by_products, block.query, self.key))
            by_value.add(block.keys, transposed_sum(block.dropped_scores(), rows, self.value))
            if self.bias is not None:
                by_bias.append(block.bias_gradient(by_logits))
            if self.sink_logits is not None:
                by_sink.append(block.sink_gradient(row_terms))
            after = [by_query[-1], by_key.pending, by_value.pending, *by_bias[-1:]]
        gradients = [ops.concatenate(by_query[::-1], axis=-2), by_key.total(), by_value.total()]
        if self.bias is not None and self.bias.has_query_axis:
            gradients.append(ops.concatenate(by_bias[::-1], axis=-2))
        elif self.bias is not None:
            gradients.append(sum(by_bias))
        if self.sink_logits is not None:
            gradients.append(ops.cast(sum(by_sink), self.sink_logits.dtype))
        return tuple(gradients)

    def _slices(self):
        length = ops.shape(self.query)[-2]
        # No block is empty if the length is known.
        count = max(min(self.num_blocks, length), 1) if isinstance(length, int) else self.num_blocks
        ends = [i * length // count for i in range(count + 1)]
        return [slice(start, stop) for start, stop in itertools.pairwise(ends)]


class _Block:
    """The attention scores of a slice of the queries, over the keys that these queries can see.

    Args:
        blocks: `_Blocks`.
        queries: Slice of the queries.
        after: Tensors that must be computed before this block, see `_after`.
    """

    def __init__(self, blocks, queries, after):
        self.blocks = blocks
        self.queries = queries
        self.keys = blocks.mask.visible_keys(queries, ops.shape(blocks.key)[-2])
        self._done = after
        self._after = functools.partial(_after, done=after)
        self.bias = self._with_late_positions(blocks.bias)
        masked_parts = self._masked_parts()
        self.sees_keys = self._queries_that_see_keys([mask for _, mask in masked_parts])
        self.query = self._after(blocks.query[..., queries, :])
        if not blocks.mask.queries_are_finite:
            self.query = keep(self.query, self.sees_keys)
        self.key = self._visible(blocks.key)
        self.value = self._visible(blocks.value)
        logits, self.capped = self._logits(masked_parts)
        self.scores = softmax(logits, blocks.sink_logits)
        self.multiplier = self._multiplier()

    def output(self):
        return keep(weighted_sum(self.dropped_scores(), self.value), self.sees_keys)

    def dropped_scores(self):
        """The scores after dropout, in the dtype of the values."""
        scores = self.scores
        if self.multiplier is not None:
            scores = scores * self.multiplier
        return ops.cast(scores, self.value.dtype)

    def logits_gradient(self, upstream, row_terms):
        """The gradients of the logits, and of the products of queries and keys before the soft cap.

        `row_terms` (..., N, t, 1) is the dot product of each output and its gradient.
        """
        if self.blocks.has_low_precision_form and not is_at_least_float32(upstream):
            return None, self.dropped_scores() * self._scores_gradient_less(row_terms, upstream)
        by_scores = products(upstream, self.value)
        if self.multiplier is not None:
            by_scores = by_scores * self.multiplier
        by_logits = by_products = self.scores * (by_scores - row_terms)
        if self.blocks.soft_cap is not None:
            by_products = by_logits * (1 - ops.square(self.capped / self.blocks.soft_cap))
        return by_logits, ops.cast(by_products, self.query.dtype)

    def _scores_gradient_less(self, row_terms, upstream):
        """The gradient of the scores less the row terms, in low precision, in which it is rounded once.

        The terms are columns of the product: what they round to, and what that leaves of them.
        """
        rounded = ops.cast(row_terms, upstream.dtype)
        rest = ops.cast(row_terms - at_least_float32(rounded), upstream.dtype)
        ones = ops.ones_like(self.value[..., :2])
        rows = ops.concatenate([upstream, -rounded, -rest], axis=-1)
        value = ops.concatenate([self.value, ones], axis=-1)
        return products_in_dtype(rows, value)

    def query_gradient(self, by_products):
        return keep(weighted_sum(by_products, self.key), self.sees_keys)

    def bias_gradient(self, by_logits):
        gradient = functools.partial(self.bias.gradient, self._bias_parameters())
        return sum(
            gradient(part, self.queries, keys) for part, keys in zip(self._split(by_logits), self.keys)
        )

    def sink_gradient(self, row_terms):
        share = 1 - ops.sum(self.scores, axis=-1, keepdims=True)
        by_sink = ops.sum(-share * row_terms, axis=(-2, -1))  # (..., N)
        return ops.sum(by_sink, axis=tuple(range(len(by_sink.shape) - 1)))

    def _masked_parts(self):
        """The slices of the keys with the mask of each, or None for a mask of all of them; the mask can be None.

        Queries that see no key are not masked: their outputs are 0 in any case. Nor are the first keys, which no query
        of the block is too early for, masked by their position.
        """
        rule = dataclasses.replace(self._with_late_positions(self.blocks.mask), query_mask=None)
        num_open = rule.num_open_keys(self.queries, self.blocks.key.shape[-2])
        if len(self.keys) > 1 or not num_open or self.bias is not None or self.blocks.soft_cap is not None:
            mask = self._join_key_slices(rule.block)
            if rule.query_positions is None:
                mask = self._after(mask)
            return [(None, mask)]
        open_keys = slice(0, num_open)
        other_keys = slice(num_open, self.keys[0].stop)
        open_mask = dataclasses.replace(rule, causal=False).block(self.queries, open_keys)
        parts = [(open_keys, self._after(open_mask))]
        if other_keys.start != other_keys.stop:
            parts.append((other_keys, rule.block(self.queries, other_keys)))
        return parts

    def _queries_that_see_keys(self, masks):
        """Booleans (..., t, 1), or None if every query sees a key."""
        rule = self.blocks.mask
        if rule.every_query_sees_itself(self.blocks.query.shape[-2], self.blocks.key.shape[-2]):
            return None
        sees_keys = None
        if all(mask is not None for mask in masks):
            seen_parts = [ops.any(mask, axis=-1, keepdims=True) for mask in masks]
            sees_keys = functools.reduce(ops.logical_or, seen_parts)
        if rule.query_mask is None:
            return sees_keys
        return combine_masks(sees_keys, self._after(rule.query_mask[..., None, self.queries, None]))

    def _logits(self, masked_parts):
        """(..., N, t, s), and the products of queries and keys in them where a soft cap or a bias needs them."""
        if self.blocks.has_low_precision_form and not is_compiled_graph():
            return self._logits_in_one_pass(masked_parts), None
        first_keys, first_mask = masked_parts[0]
        if first_keys is None:
            capped = soft_capped(self.blocks.products(self.query, self.key), self.blocks.soft_cap)
            return masked(biased(capped, self._bias()), first_mask), capped
        parts = []
        for keys, mask in masked_parts:
            key = self._slice_after(self.blocks.key, keys)
            parts.append(masked(self.blocks.products(self.query, key), mask))
        return _join(parts, axis=-1), None

    def _logits_in_one_pass(self, masked_parts):
        """The logits where each operation goes through all of them: a product masks keys, and later keys are overwritten."""
        open_keys, mask = masked_parts[0]
        hides_later_keys = len(masked_parts) > 1
        if hides_later_keys:
            rule = dataclasses.replace(self.blocks.mask, causal=False, query_mask=None)
            mask = self._after(rule.block(self.queries, self.keys[0]))
        if mask is not None and mask.shape[-2] == 1 and _can_mask_by_product(self.key):
            logits = self.blocks.products(*_with_mask_channel(self.query, self.key, mask))
        else:
            logits = masked(self.blocks.products(self.query, self.key), mask)
        if hides_later_keys:
            logits = with_later_keys_masked(logits, open_keys.stop)
        return logits

    def _bias_parameters(self):
        parameters = self.blocks.parameters
        if self.bias.has_query_axis:
            parameters = parameters[..., self.queries, :]
        return self._after(parameters)

    def _bias(self):
        if self.bias is None:
            return None
        parameters = guarded_parameters(self.bias, self._bias_parameters(), self.sees_keys)
        return self._join_key_slices(functools.partial(self.bias.block, parameters))

    def _multiplier(self):
        if self.blocks.dropout is None:
            return None
        rows = self._after(ops.arange(self.queries.start, self.queries.stop, dtype="int32"))
        columns = [ops.arange(keys.start, keys.stop, dtype="int32") for keys in self.keys]
        lead_shape = ops.shape(self.scores)[:-2]
        return self.blocks.dropout.multiplier(lead_shape, rows, ops.concatenate(columns), self.scores.dtype)

    def _with_late_positions(self, value):
        """A mask or bias computed after the earlier blocks, because its query positions depend on them."""
        if getattr(value, "query_positions", None) is None:
            return value
        return dataclasses.replace(value, query_positions=self._after(value.query_positions))

    def _visible(self, x):
        return _join([self._slice_after(x, keys) for keys in self.keys], axis=-2)

    def _slice_after(self, x, keys):
        """x[..., keys, :], copied only after the blocks before this one."""
        length = ops.shape(x)[-2]
        if _same(keys.start, 0) and _same(keys.stop, length):
            return x
        # Compilers take long for slices with a computed start, so it is not made to depend on other tensors.
        with computed_after(self._done):
            return x[..., keys, :]

    def _join_key_slices(self, block):
        """`block(queries, keys)` for each slice of keys, concatenated, or None."""
        return _join([block(self.queries, keys) for keys in self.keys], axis=-1)

    def _split(self, x):
        if len(self.keys) == 1:
            return [x]
        first = self.keys[0].stop - self.keys[0].start
        return [x[..., :first], x[..., first:]]


class _KeyGradient:
    """The sum of the gradients of slices of keys, added from the last slice to the first.

    Keys after the end of the newest slice get no more gradients and are set aside, so that adding a slice
    costs as much as its length, not as all keys.
    """

    def __init__(self, keys):
        self._keys = keys
        self._finished = []  # from the last key to the first
        self._start = self._stop = None
        self._sinks = None
        self.pending = None

    def add(self, slices, gradient):
        """Adds the gradient of one slice, or of the slice of sink tokens and another one, concatenated."""
        gradient = at_least_float32(gradient)
        if len(slices) == 2:
            num_sinks = slices[0].stop - slices[0].start
            self._add_sinks(gradient[..., :num_sinks, :], num_sinks)
            gradient = gradient[..., num_sinks:, :]
        start = slices[-1].start
        stop = slices[-1].stop
        if self.pending is None:
            self._finished.append(ops.zeros_like(at_least_float32(self._keys[..., stop:, :])))
            self.pending = gradient
        elif _same(start, self._start) and _same(stop, self._stop):
            self.pending = self.pending + gradient
        else:
            shared = stop - self._start
            self._finished.append(self.pending[..., shared:, :])
            pending = self.pending[..., :shared, :]
            if not _same(start, self._start):
                new = ops.zeros_like(gradient[..., : self._start - start, :])
                pending = ops.concatenate([new, pending], axis=-2)
            self.pending = gradient + pending
        self._start = start
        self._stop = stop

    def total(self):
        before = ops.zeros_like(at_least_float32(self._keys[..., : self._start, :]))
        total = ops.concatenate([before, self.pending, *reversed(self._finished)], axis=-2)
        if self._sinks is not None:
            num_sinks = ops.shape(self._sinks)[-2]
            first = total[..., :num_sinks, :] + self._sinks
            total = ops.concatenate([first, total[..., num_sinks:, :]], axis=-2)
        return ops.cast(total, self._keys.dtype)

    def _add_sinks(self, gradient, num_sinks):
        if self._sinks is not None:
            # Earlier queries see fewer sink tokens outside their window.
            rest = ops.zeros_like(self._sinks[..., num_sinks:, :])
            gradient = self._sinks + ops.concatenate([gradient, rest], axis=-2)
        self._sinks = gradient


def _can_mask_by_product(key):
    """Whether `_with_mask_channel` works in the dtype of the keys: `MASKED` is infinite in float16, and 0 * Inf is NaN."""
    return keras.backend.standardize_dtype(key.dtype) != "float16"


def _with_mask_channel(query, key, mask):
    """Queries and keys with one more channel, so that their product is the masked logits: no pass over all pairs masks them.

    Args:
        query, key: Floats (..., N, T, H) and (..., K, S, H).
        mask: Booleans (..., 1, 1, S), the same for all queries.

    Returns:
        Floats (..., N, T, H + 1), with ones, and (..., K, S, H + 1), with 0 or `MASKED`.
    """
    column = ops.swapaxes(mask_as_bias(mask, key.dtype), -1, -2)
    column = ops.broadcast_to(column, (*ops.shape(key)[:-1], 1))
    query = ops.concatenate([query, ops.ones_like(query[..., :1])], axis=-1)
    return query, ops.concatenate([key, column], axis=-1)


def _are_known(*sizes):
    """Whether the sizes are numbers. While a graph is traced they may be None, or symbols on JAX."""
    return all(isinstance(size, int) for size in sizes)


def _join(parts, axis):
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=axis)


def _same(one, other):
    return one is other or (isinstance(one, int) and isinstance(other, int) and one == other)


def _after(x, done):
    """`x`, computed after the tensors `done`. None stays None.

    TensorFlow starts every operation as soon as it can, and would hold all blocks at once. So `x` is made to depend on
    `done`, through a comparison that is never true, which no optimiser can know.
    """
    if x is None:
        return None
    is_mask = keras.backend.standardize_dtype(x.dtype) == "bool"
    for tensor in done:
        never = ops.any(ops.ravel(tensor)[:1] > np.inf)
        x = ops.logical_or(x, never) if is_mask else x + ops.cast(never, x.dtype)
    return x
