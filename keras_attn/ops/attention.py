"""Scaled dot-product attention: the formula, once, for every layer, whole or in blocks that fit the memory."""

import dataclasses
import functools
import itertools
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn.ops.biases import DenseBias, PairBias
from keras_attn.ops.compilers import runs_op_by_op
from keras_attn.ops.dtypes import at_least_float32
from keras_attn.ops.masks import MaskRule, combine_masks

# Added to masked logits. In float32 the softmax weight of such a key is exactly 0 as soon as one key may be
# attended; finite, so that no Inf - Inf arises where none may.
_MASKED = -1e30

# The scores that a block of memory-efficient attention holds at a time: 128 MB in float32.
_BLOCK_SCORES = 2**25


def dot_product_attention(
    query,
    key,
    value,
    mask=None,
    bias=None,
    scale=None,
    soft_cap=None,
    sink_logits=None,
    dropout=None,
    masked_keys_are_finite=False,
    masked_queries_are_finite=False,
    return_scores=True,
):
    """softmax(cap(Q K^T scale) + bias) V over the keys that `mask` allows (Vaswani et al. 2017, equation 1).

    Differs from `keras.ops.dot_product_attention`: a query with no key to attend to answers exactly 0, with gradient
    exactly 0; a NaN or Inf in a key or value that no query may attend to, or in a query that may attend to no key,
    reaches nobody else, forward or backward; the softmax is computed in at least float32; there may be fewer heads of
    keys and values than of queries; the attention scores are always returned.

    Heads come before time, the layout in which both products are plain matrix products. Leading axes are free.

    Args:
        query: Float tensor (..., N, T, H).
        key: Float tensor (..., K, S, H), where K divides N: N / K successive query heads share one key head
            (Ainslie et al. 2023).
        value: Float tensor (..., K, S, Hv).
        mask: `MaskRule`, or boolean tensor that broadcasts to (..., N, T, S), True where attention is allowed.
        bias: What is added to the logits: a bias of `keras_attn.ops` or a float tensor that broadcasts to
            (..., N, T, S).
        scale: Float that multiplies the products of queries and keys, by default H ** -0.5.
        soft_cap: Float c that bounds the products: c tanh(x / c) (Gemma Team 2024, section 2).
        sink_logits: Floats (N,), a further logit of each head that takes its share of the softmax and has no value
            (Xiao et al. 2024, section 3.2; Agarwal et al. 2025, section 2.2).
        dropout: `ScoreDropout` of the attention scores.
        masked_keys_are_finite: True where no NaN or Inf can stand at masked keys (a cache that this library
            wrote), which saves a pass over `key` and `value`.
        masked_queries_are_finite: True where none can stand at queries that may attend to no key.
        return_scores: False where the scores are of no use, which lets TensorFlow take a shorter gradient.

    Returns:
        The output (..., N, T, Hv) and the attention scores (..., N, T, S) before dropout, or None, in the dtype of
        `query`.

    Example:

    ```python
    query = key = value = keras.random.normal((2, 3, 5, 7))
    output, attention_scores = dot_product_attention(query, key, value)
    ```

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2.1.
    """
    dtype = query.dtype
    query, key, value, mask, answered = _guarded(
        query, key, value, mask, scale, masked_keys_are_finite, masked_queries_are_finite
    )
    # A query without keys has equal scores here; its output, and the gradient of it, are made 0.
    bias = _dense(bias, answered)
    if not return_scores and sink_logits is None and keras.backend.backend() == "tensorflow":

        def attend():
            logits = _biased(soft_capped(products(query, key), soft_cap), mask, bias)
            return _softmax_weighted_sum(logits, value, dropout)

        def attend_by_hand():
            products_of_one = ops.expand_dims(ops.sum(at_least_float32(query * key), axis=-1), -2)
            scores = softmax(soft_capped(products_of_one, soft_cap), mask, bias)
            scores = ops.cast(dropped(scores, dropout), dtype)
            return ops.sum(ops.swapaxes(scores, -1, -2) * value, axis=-2, keepdims=True)

        return keep(_quicker(attend_by_hand, attend, query, key), answered), None
    scores = softmax(soft_capped(products(query, key), soft_cap), mask, bias, sink_logits)
    output = keep(weighted_sum(ops.cast(dropped(scores, dropout), dtype), value), answered)
    return output, keep(ops.cast(scores, dtype), answered) if return_scores else None


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
    masked_keys_are_finite=False,
    masked_queries_are_finite=False,
    num_blocks=None,
):
    """The output of `dot_product_attention` without a tensor of all pairs, forward or backward.

    Queries are taken in blocks, one after the other. What the gradient needs of a block is computed again when its
    turn comes, from the formula of the forward pass. Keys that no query of a block can see are left out where the
    `mask` is a `MaskRule` with an `offset`: half of them under a causal mask, all but a band under a sliding window.

    Args:
        query, key, value, mask, bias, scale, soft_cap, sink_logits, dropout, masked_keys_are_finite,
            masked_queries_are_finite: As in `dot_product_attention`.
        num_blocks: Integer, how many blocks the queries are taken in. By default as many as keep the scores of a
            block at about 2^25, but 8 at least.

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
    if not isinstance(mask, MaskRule):
        mask = MaskRule(pairs=mask)
    if bias is not None and not isinstance(bias, PairBias):
        bias = DenseBias(ops.convert_to_tensor(bias))
    if not masked_keys_are_finite:
        attended = _attended_by_rule(mask, query, key)
        key, value = keep(key, attended), keep(value, attended)
    if not all(_are_known(size) or size is None for size in (query.shape[-2], key.shape[-2])):
        # JAX has symbols for sizes where it is asked for shapes alone, and cannot compare them.
        mask, num_blocks = dataclasses.replace(mask, offset=None), 1
    num_blocks = num_blocks or _num_blocks(query, key, mask)
    learned = [] if bias is None else [bias.parameters]
    learned += [] if sink_logits is None else [sink_logits]
    # Integers and booleans have no gradient, but JAX takes no tensor that comes in by the side.
    given, put_together = _taken_apart(mask, bias, dropout)

    @ops.custom_gradient
    def attend(query, key, value, *rest):
        mask, bias, dropout = put_together(rest[len(learned) :])
        parameters = None if bias is None else rest[0]
        sinks = None if sink_logits is None else rest[len(learned) - 1]
        slots = (query, key, value, parameters, sinks, mask, bias, soft_cap, dropout)
        blocks = _Blocks(*slots, masked_queries_are_finite, num_blocks)
        output = blocks.output()

        # PyTorch hands over the arguments as well, and what comes in by keyword.
        def gradient(*args, upstream=None):
            gradients = blocks.gradient(output, args[-1] if upstream is None else upstream)
            return *gradients, *[None] * len(given)

        return output, gradient

    # Copies of what is learned: TensorFlow takes tensors here, and no variables.
    return attend(_scaled(query, scale), key, value, *map(ops.copy, learned), *given)


def talking_heads_attention(
    query,
    key,
    value,
    logits_kernel,
    scores_kernel,
    mask=None,
    bias=None,
    scale=None,
    soft_cap=None,
    sink_logits=None,
    dropout=None,
    masked_keys_are_finite=False,
    masked_queries_are_finite=False,
):
    """`dot_product_attention` whose heads are mixed before and after the softmax.

    Args:
        query, key, value, mask, bias, scale, soft_cap, sink_logits, dropout, masked_keys_are_finite,
            masked_queries_are_finite: As in `dot_product_attention`; `bias` and `sink_logits` join the mixed logits.
        logits_kernel, scores_kernel: Floats (N, N), from heads to heads.

    Returns:
        The output (..., N, T, Hv) and the mixed attention scores (..., N, T, S), in the dtype of `query`.

    Example:

    ```python
    query = key = value = keras.random.normal((2, 3, 5, 7))
    mix = keras.ops.eye(3)  # leaves the heads as they are
    output, attention_scores = talking_heads_attention(query, key, value, mix, mix)
    ```

    Reference: [Shazeer et al., 2020](https://arxiv.org/abs/2003.02436), section 4.
    """
    dtype = query.dtype
    query, key, value, mask, answered = _guarded(
        query, key, value, mask, scale, masked_keys_are_finite, masked_queries_are_finite
    )
    logits = _mixed(soft_capped(products(query, key), soft_cap), logits_kernel)
    scores = _mixed(softmax(logits, mask, _dense(bias, answered), sink_logits), scores_kernel)
    scores = keep(ops.cast(scores, dtype), answered)
    return keep(weighted_sum(dropped(scores, dropout), value), answered), scores


def fused_attention(query, key, value, is_causal=False, scale=None):
    """The output of `dot_product_attention` from the fused kernel that the backend has (flash attention on a GPU).

    For calls that `fused_attention_obstacle` finds nothing against.

    Args:
        query: Float tensor (B, N, T, H).
        key, value: Float tensors (B, K, S, H).
        is_causal: Boolean; needs T = S.
        scale: As in `dot_product_attention`.

    Returns:
        The output (B, N, T, H), in the dtype of `query`.

    Example:

    ```python
    query = key = value = keras.random.normal((2, 3, 5, 8))
    output = fused_attention(query, key, value, is_causal=True)
    ```

    Reference: [Dao et al., 2022](https://arxiv.org/abs/2205.14135).
    """
    group = query.shape[-3] // key.shape[-3]
    if group > 1:
        key, value = ops.repeat(key, group, axis=-3), ops.repeat(value, group, axis=-3)
    heads_last = (ops.swapaxes(x, -2, -3) for x in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output = ops.dot_product_attention(*heads_last, scale=scale, is_causal=is_causal)
    return ops.swapaxes(output, -2, -3)


def fused_attention_obstacle(
    query, key, value, mask=None, bias=None, soft_cap=None, sink_logits=None, dropout=None
):
    """What keeps the fused kernel from the answer that `dot_product_attention` gives, in words, or None.

    A kernel answers a query without keys as it likes, and lets NaN in masked keys through, so the only mask it is
    trusted with is the causal one of a whole sequence.
    """
    rest = MaskRule() if mask is None else mask
    whole = rest.offset == 0 and None is not query.shape[-2] == key.shape[-2]
    if rest.causal and whole and rest.prefix_mask is None:
        rest = dataclasses.replace(rest, causal=False)
    obstacles = {
        "the TensorFlow backend": keras.backend.backend() == "tensorflow",
        "a mask other than the causal one of a whole sequence": rest.block() is not None,
        "a position bias": bias is not None,
        "`logit_soft_cap`": soft_cap is not None,
        "`use_sink_logits`": sink_logits is not None,
        "dropout of the scores": dropout is not None,
        "values of another size than the keys": key.shape[-1] != value.shape[-1],
        "inputs with more axes than (B, T, D)": len(query.shape) != 4,
    }
    return next((obstacle for obstacle, stands in obstacles.items() if stands), None)


@functools.cache
def has_fused_kernel():
    """Whether the backend has a fused kernel on this machine that is worth its while."""
    if keras.backend.backend() == "torch":
        return True
    devices = [] if keras.backend.backend() == "tensorflow" else keras.distribution.list_devices()
    return any(not device.startswith("cpu") for device in devices)


def prefers_memory_efficient(query, key, mask=None):
    """Whether blocks are worth their price: many pairs for the memory, or a window that leaves most of them out.

    Args:
        query, key: As in `dot_product_attention`.
        mask: `MaskRule`.
    """
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    if not _are_known(num_queries, num_keys):
        return False
    if mask is not None and mask.offset is not None and mask.sliding_window:
        return num_queries >= 1024 and num_keys >= 8 * mask.sliding_window
    return num_queries * num_keys >= 2048 * 2048


# --- the formula, in the pieces that the dense form, the blocks and their gradient share ---


def products(query, key):
    """Q K^T, in at least float32: (..., N, T, H) and (..., K, S, H) in, (..., N, T, S) out."""
    product = ops.matmul(_fold(query, key), ops.swapaxes(key, -1, -2))
    return at_least_float32(_unfold(product, query))


def soft_capped(logits, soft_cap):
    """Logits within (-soft_cap, soft_cap)."""
    return logits if soft_cap is None else soft_cap * ops.tanh(logits / soft_cap)


def softmax(logits, mask=None, bias=None, sink_logits=None):
    """The attention scores of logits (..., N, T, S). Where nothing is allowed they are equal or 0, not NaN."""
    logits = _biased(logits, mask, bias)
    if sink_logits is None:
        return _plain_softmax(logits)
    sink = ops.cast(sink_logits, logits.dtype)[:, None, None]
    sink = ops.broadcast_to(sink, (*ops.shape(logits)[:-1], 1))
    return _plain_softmax(ops.concatenate([logits, sink], axis=-1))[..., :-1]


def _biased(logits, mask, bias):
    if bias is not None:
        logits = logits + ops.cast(bias, logits.dtype)
    if mask is not None:
        # Of the rank of the logits: TensorFlow then adds it in the product that they come from.
        missing = len(logits.shape) - len(mask.shape)
        mask = mask[(None,) * missing] if missing > 0 else mask
        kept, masked = ops.zeros((), logits.dtype), ops.convert_to_tensor(_MASKED, logits.dtype)
        logits = logits + ops.where(mask, kept, masked)
    return logits


def weighted_sum(scores, value):
    """(..., N, T, S) and (..., K, S, Hv) in, (..., N, T, Hv) out."""
    return _unfold(ops.matmul(_fold(scores, value), value), scores)


# A product of so many numbers takes TensorFlow's kernel for processors (oneDNN) longer to begin than to compute.
_FEW_NUMBERS = 2**15


def _quicker(by_hand, by_matrices, query, key):
    """What one of two functions gives: the quicker, in a step of decoding whose batch size a graph learns when it runs.

    At batch size 1 the products of matrices are half of the time of a step of a small model. In lower precision it is
    always products of matrices: TensorFlow's kernel rounds its sums on the way, so that a row's answer would depend on
    the size of its batch, by which the two are chosen.
    """
    one_query = query.shape[-2] == 1 and query.shape[:-2] == key.shape[:-2]
    is_float32 = keras.backend.standardize_dtype(key.dtype) == "float32"
    if not one_query or not is_float32 or not runs_op_by_op(key):
        return by_matrices()
    return ops.cond(ops.size(key) <= _FEW_NUMBERS, by_hand, by_matrices)


def _softmax_weighted_sum(logits, value, dropout):
    """`weighted_sum(dropped(softmax(logits), dropout), value)`, in the dtype of `value`, with a gradient by hand.

    TensorFlow's own gradient of the softmax multiplies and sums all pairs, to get a number for each query that the
    output and its gradient give at once (Dao et al. 2022, appendix B.2).
    """

    @ops.custom_gradient
    def attend(logits, value):
        scores = _plain_softmax(logits)
        multiplier = None if dropout is None else _multiplier_of_all(dropout, scores)
        weights = ops.cast(scores if multiplier is None else scores * multiplier, value.dtype)
        output = weighted_sum(weights, value)

        def gradient(upstream):
            change = _row_products(output, upstream)
            by_scores = products(upstream, value)
            by_scores = by_scores if multiplier is None else by_scores * multiplier
            return scores * (by_scores - change), transposed_product(weights, upstream, value)

        return output, gradient

    return attend(logits, value)


def _row_products(one, other):
    """The product of each row of (..., X) with the same of another: (..., 1), in at least float32."""
    return ops.sum(at_least_float32(one) * at_least_float32(other), axis=-1, keepdims=True)


def keep(x, condition):
    """`x` where `condition`, else 0, in value and in gradient, whatever stands there. None keeps all."""
    return x if condition is None else ops.where(condition, x, ops.zeros((), dtype=x.dtype))


def dropped(scores, dropout):
    """Scores (..., T, S) after dropout, in their dtype. None drops nothing."""
    if dropout is None:
        return scores
    return scores * _multiplier_of_all(dropout, scores)


def _guarded(query, key, value, mask, scale, masked_keys_are_finite, masked_queries_are_finite):
    """Scaled queries, keys and values with 0 where the mask, now boolean, leaves them out; and who is answered."""
    sizes = query.shape[-2], key.shape[-2]
    all_answered = isinstance(mask, MaskRule) and mask.every_query_sees_itself(*sizes)
    mask = mask.block() if isinstance(mask, MaskRule) else mask
    answered = None if mask is None or all_answered else ops.any(mask, axis=-1, keepdims=True)
    query = keep(_scaled(query, scale), None if masked_queries_are_finite else answered)
    all_attended = all_answered and sizes[0] == sizes[1]
    if mask is not None and not (masked_keys_are_finite or all_attended):
        attended = _attended(mask, query, key)
        key, value = keep(key, attended), keep(value, attended)
    return query, key, value, mask, answered


def _mixed(x, kernel):
    """(..., N, T, S) with every head replaced by a sum of all, weighted by the columns of a kernel (N, N)."""
    shape = ops.shape(x)
    flat = ops.reshape(x, (*shape[:-2], -1))
    mixed = ops.matmul(ops.cast(ops.transpose(kernel), x.dtype), flat)
    return ops.reshape(mixed, shape)


def _plain_softmax(logits):
    if logits.shape[-1] == 1:
        # Keras warns of a softmax over one key, which a sequence of one token has every right to.
        return ops.exp(logits - logits)
    if logits.shape[-2] == 1:
        # In a step of decoding. TensorFlow's kernel of the softmax takes longer to begin than all of these.
        return ops.exp(ops.log_softmax(logits, axis=-1))
    if len(logits.shape) <= 5:
        return ops.softmax(logits, axis=-1)
    # TensorFlow's kernel for processors takes no more axes.
    shape = ops.shape(logits)
    return ops.reshape(ops.softmax(ops.reshape(logits, (-1, shape[-1])), axis=-1), shape)


def _scaled(query, scale):
    if scale == 1:
        return query
    return query * ops.convert_to_tensor(query.shape[-1] ** -0.5 if scale is None else scale, query.dtype)


def _fold(x, of_keys):
    """Puts the query heads that share a key head one below the other: (..., N, T, X) -> (..., K, N/K T, X)."""
    num_heads, num_key_heads = x.shape[-3], of_keys.shape[-3]
    if num_heads == num_key_heads:
        return x
    shape = ops.shape(x)
    rows = (num_heads // num_key_heads) * shape[-2]
    return ops.reshape(x, (*shape[:-3], num_key_heads, rows, shape[-1]))


def _unfold(x, like):
    """(..., K, N/K T, X) -> (..., N, T, X), with the sizes of `like` (..., N, T, Y)."""
    if x.shape[-3] == like.shape[-3]:
        return x
    return ops.reshape(x, (*ops.shape(like)[:-1], ops.shape(x)[-1]))


def _attended(mask, query, key):
    """Keys that some query may attend to: (..., 1 or K, S, 1)."""
    attended = ops.any(mask, axis=-2)
    num_heads, num_key_heads = query.shape[-3], key.shape[-3]
    if num_heads != num_key_heads and len(attended.shape) > 1 and attended.shape[-2] != 1:
        shape = ops.shape(attended)
        groups = (*shape[:-2], num_key_heads, num_heads // num_key_heads, shape[-1])
        attended = ops.any(ops.reshape(attended, groups), axis=-2)
    return ops.expand_dims(attended, -1)


def _attended_by_rule(rule, query, key):
    """Keys that no single vector of the rule, nor its `pairs`, hides from every query: (..., 1 or K, S, 1), or None."""
    attended = []
    if rule.key_mask is not None:
        attended.append(ops.expand_dims(rule.key_mask, (-3, -1)))
    if rule.causal and rule.prefix_mask is None:
        last = ops.max(rule.query_positions, axis=-1, keepdims=True, initial=-(2**31))
        attended.append(ops.expand_dims(rule.key_positions <= last, (-3, -1)))
    if rule.pairs is not None:
        attended.append(_attended(rule.pairs, query, key))
    return combine_masks(*attended)


def _dense(bias, answered):
    if bias is None or ops.is_tensor(bias):
        return bias
    return bias.block(_rows_answered(bias, bias.parameters, answered), slice(None), slice(None))


def _rows_answered(bias, parameters, answered):
    """A bias made from a query that takes no part may be NaN, like the query."""
    return keep(parameters, answered) if bias.has_query_axis else parameters


def _multiplier_of_all(dropout, scores):
    rows, columns = (ops.arange(size, dtype="int32") for size in ops.shape(scores)[-2:])
    return _multiplier(dropout, scores, rows, columns)


def _multiplier(dropout, scores, rows, columns):
    return dropout.multiplier(ops.shape(scores)[:-2], rows, columns, scores.dtype)


# --- blocks of queries ---


def _num_blocks(query, key, mask):
    *lead, num_queries, _ = query.shape
    num_keys = key.shape[-2]
    if not _are_known(num_queries, num_keys):
        return 32
    # A batch of unknown size counts as one.
    planes = math.prod(size for size in lead if _are_known(size))
    rows = max(_BLOCK_SCORES // max(planes * num_keys, 1), 64)
    if mask.causal and mask.offset is not None:
        # On average a block sees half of the keys.
        rows *= 2
    if mask.offset is not None and mask.sliding_window:
        # Half of what such a block looks at can be seen, and the blocks are not too many.
        rows = mask.sliding_window
    return min(max(-(-num_queries // rows), 8), 256)


def _taken_apart(*values):
    """The tensors in the fields of the values, learned ones aside, and a function that puts new ones in their place."""
    places = [
        (index, field.name)
        for index, value in enumerate(values)
        if value is not None
        for field in dataclasses.fields(value)
        if field.name != "parameters" and ops.is_tensor(getattr(value, field.name))
    ]

    def put_together(tensors):
        changed = [{} for _ in values]
        for (index, name), tensor in zip(places, tensors, strict=True):
            changed[index][name] = tensor
        return [value and dataclasses.replace(value, **new) for value, new in zip(values, changed)]

    return [getattr(values[index], name) for index, name in places], put_together


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """A call of memory-efficient attention: what goes in, and the loops over blocks of queries."""

    query: Any
    key: Any
    value: Any
    parameters: Any
    sink_logits: Any
    mask: MaskRule
    bias: Any
    soft_cap: float | None
    dropout: Any
    masked_queries_are_finite: bool
    num_blocks: int

    def output(self):
        outputs = []
        for queries in self._slices():
            outputs.append(_Block(self, queries, after=outputs[-1:]).output())
        return ops.concatenate(outputs, axis=-2)

    def gradient(self, output, upstream):
        """The gradients of query, key, value, and of bias parameters and sink logits where there are some."""
        by_key, by_value = _KeyGradient(self.key), _KeyGradient(self.value)
        by_query, by_bias, by_sink, after = [], [], [], [output]
        for queries in reversed(self._slices()):
            block = _Block(self, queries, after)
            rows = keep(_after(upstream[..., queries, :], after), block.answered)
            change = _row_products(output[..., queries, :], rows)
            by_logits, by_products = block.logits_gradient(rows, change)
            by_query.append(block.query_gradient(by_products))
            by_key.add(block.keys, transposed_product(by_products, block.query, self.key))
            by_value.add(block.keys, transposed_product(block.dropped(), rows, self.value))
            if self.bias is not None:
                by_bias.append(block.bias_gradient(by_logits))
            if self.sink_logits is not None:
                by_sink.append(block.sink_gradient(change))
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
        # No empty blocks, where that can be known.
        count = max(min(self.num_blocks, length), 1) if isinstance(length, int) else self.num_blocks
        ends = [i * length // count for i in range(count + 1)]
        return [slice(start, stop) for start, stop in itertools.pairwise(ends)]


class _Block:
    """The attention scores of the queries of a slice to the keys that they can see."""

    def __init__(self, blocks, queries, after):
        self.blocks, self.queries = blocks, queries
        self.keys = blocks.mask.visible_keys(queries, ops.shape(blocks.key)[-2])
        self._later = functools.partial(_after, done=after)
        self.bias = self._placed_later(blocks.bias)
        mask = self._pairs(self._placed_later(blocks.mask).block)
        if blocks.mask.query_positions is None:
            mask = self._later(mask)
        all_answered = blocks.mask.every_query_sees_itself(blocks.query.shape[-2], blocks.key.shape[-2])
        self.answered = None if mask is None or all_answered else ops.any(mask, axis=-1, keepdims=True)
        kept = None if blocks.masked_queries_are_finite else self.answered
        self.query = keep(self._later(blocks.query[..., queries, :]), kept)
        self.key, self.value = self._visible(blocks.key), self._visible(blocks.value)
        self.capped = soft_capped(products(self.query, self.key), blocks.soft_cap)
        self.scores = softmax(self.capped, mask, self._bias(), blocks.sink_logits)
        self.multiplier = self._multiplier()

    def output(self):
        return keep(weighted_sum(self.dropped(), self.value), self.answered)

    def dropped(self):
        """The scores after dropout, in the dtype of the values."""
        scores = self.scores if self.multiplier is None else self.scores * self.multiplier
        return ops.cast(scores, self.value.dtype)

    def logits_gradient(self, upstream, change):
        """The gradients of the logits and, past the cap, of the products of queries and keys.

        `change` (..., N, t, 1) is the product of each output and its gradient.
        """
        by_scores = products(upstream, self.value)
        by_scores = by_scores if self.multiplier is None else by_scores * self.multiplier
        by_logits = by_products = self.scores * (by_scores - change)
        if self.blocks.soft_cap is not None:
            by_products = by_logits * (1 - ops.square(self.capped / self.blocks.soft_cap))
        return by_logits, ops.cast(by_products, self.query.dtype)

    def query_gradient(self, by_products):
        return keep(weighted_sum(by_products, self.key), self.answered)

    def bias_gradient(self, by_logits):
        gradient = functools.partial(self.bias.gradient, self._bias_parameters())
        return sum(
            gradient(part, self.queries, keys) for part, keys in zip(self._split(by_logits), self.keys)
        )

    def sink_gradient(self, change):
        share = 1 - ops.sum(self.scores, axis=-1, keepdims=True)
        by_sink = ops.sum(-share * change, axis=(-2, -1))  # (..., N)
        return ops.sum(by_sink, axis=tuple(range(len(by_sink.shape) - 1)))

    def _bias_parameters(self):
        parameters = self.blocks.parameters
        return self._later(parameters[..., self.queries, :] if self.bias.has_query_axis else parameters)

    def _bias(self):
        if self.bias is None:
            return None
        parameters = _rows_answered(self.bias, self._bias_parameters(), self.answered)
        return self._pairs(functools.partial(self.bias.block, parameters))

    def _multiplier(self):
        if self.blocks.dropout is None:
            return None
        rows = self._later(ops.arange(self.queries.start, self.queries.stop, dtype="int32"))
        columns = [ops.arange(keys.start, keys.stop, dtype="int32") for keys in self.keys]
        return _multiplier(self.blocks.dropout, self.scores, rows, ops.concatenate(columns))

    def _placed_later(self, value):
        """A mask or bias whose work on pairs waits, as it needs the positions of the queries."""
        if getattr(value, "query_positions", None) is None:
            return value
        return dataclasses.replace(value, query_positions=self._later(value.query_positions))

    def _visible(self, x):
        parts = [self._slice_later(x, keys) for keys in self.keys]
        return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=-2)

    def _slice_later(self, x, keys):
        """x[..., keys, :]: each block's is a copy, none of which may be made before its turn."""
        *lead, length, size = ops.shape(x)
        if _same(keys.start, 0) and _same(keys.stop, length):
            return x
        zero = ops.zeros((), dtype="int32")  # JAX wants all starts in one dtype.
        start = self._later(ops.convert_to_tensor(keys.start, dtype="int32"))
        return ops.slice(x, (*[zero] * len(lead), start, zero), (*lead, keys.stop - keys.start, size))

    def _pairs(self, block):
        """What `block` says of each slice of keys, side by side, or None."""
        parts = [block(self.queries, keys) for keys in self.keys]
        return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=-1)

    def _split(self, x):
        if len(self.keys) == 1:
            return [x]
        first = self.keys[0].stop - self.keys[0].start
        return [x[..., :first], x[..., first:]]


class _KeyGradient:
    """The sum of the gradients of slices of keys, the ends of which come in falling order.

    What lies behind the end of the latest slice is finished and set aside, so that summing a band costs no more than
    the band.
    """

    def __init__(self, keys):
        self._keys = keys
        self._finished = []  # from the last key to the first
        self._start = self._stop = None
        self._sinks = None
        self.pending = None

    def add(self, slices, gradient):
        """Adds the gradient of one slice, or of the sinks' and one more, side by side."""
        gradient = at_least_float32(gradient)
        if len(slices) == 2:
            num_sinks = slices[0].stop - slices[0].start
            self._add_sinks(gradient[..., :num_sinks, :], num_sinks)
            gradient = gradient[..., num_sinks:, :]
        start, stop = slices[-1].start, slices[-1].stop
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
        self._start, self._stop = start, stop

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
            # Earlier queries see fewer of the sinks outside their window.
            rest = ops.zeros_like(self._sinks[..., num_sinks:, :])
            gradient = self._sinks + ops.concatenate([gradient, rest], axis=-2)
        self._sinks = gradient


def transposed_product(scores, x, of_keys):
    """(..., N, T, S) and (..., N, T, X) in, (..., K, S, X) out, with the K heads of `of_keys`."""
    return ops.matmul(ops.swapaxes(_fold(scores, of_keys), -1, -2), _fold(x, of_keys))


def _are_known(*sizes):
    """Whether the sizes are numbers: before the run they may be None, or symbols on JAX."""
    return all(isinstance(size, int) for size in sizes)


def _same(one, other):
    return one is other or (isinstance(one, int) and isinstance(other, int) and one == other)


def _after(x, done):
    """`x`, or None, but not before the tensors `done` are there.

    TensorFlow's executor starts what it can: all blocks at once, which is what the blocks are there to avoid. No
    optimiser sees through the comparison, which is never true.
    """
    for tensor in [] if x is None else done:
        never = ops.any(ops.ravel(tensor)[:1] > np.inf)
        is_mask = keras.backend.standardize_dtype(x.dtype) == "bool"
        x = ops.logical_or(x, never) if is_mask else x + ops.cast(never, x.dtype)
    return x
