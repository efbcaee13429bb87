"""Zeros for queries and keys that a mask rules out entirely, so that a NaN in padding does not spread.

A masked key has the weight 0, but 0 * NaN is NaN, in values and in gradients. So a key that no query sees, and a query that
sees no key, become 0 before anything is multiplied.
"""

import dataclasses

from keras import ops

from keras_attn.ops.graph_purpose import computed_once, is_compiled_scope, is_inference_scope
from keras_attn.ops.masks import as_mask_rule


def keep(x, condition):
    """`x` where `condition` is True or None, and 0 elsewhere, in value and in gradient."""
    if condition is None:
        return x
    return ops.where(condition, x, ops.zeros((), dtype=x.dtype))


def zero_fully_masked(query, key, value, mask):
    """Sets queries that see no key, and keys and values that no query sees, to 0. Here a `MaskRule` becomes a tensor.

    Args:
        query, key, value: As in `dot_product_attention`.
        mask: `MaskRule`, or boolean tensor that broadcasts to (..., N, T, S), or None.

    Returns:
        The query, key and value with zeros; the mask as booleans that broadcast to (..., N, T, S), or None if nothing is
        masked; and `sees_keys`, booleans (..., T, 1), True at queries that see a key, or None if all are known to see one.
    """
    rule = as_mask_rule(mask, query, key)
    mask = rule.all_pairs()
    if mask is None:
        return query, key, value, None, None
    num_queries = query.shape[-2]
    num_keys = key.shape[-2]
    all_see_keys = rule.every_query_sees_itself(num_queries, num_keys)
    sees_keys = None if all_see_keys else computed_once(_any_key, mask)
    # A NaN in a query without keys reaches other tokens through the gradient alone: the caller sets the query's output to 0.
    if not (rule.queries_are_finite or is_inference_scope()):
        query = keep(query, sees_keys)
    all_are_seen = all_see_keys and num_queries == num_keys
    if not (rule.keys_are_finite or all_are_seen):
        is_seen = seen_keys(mask, query, key)
        key = keep(key, is_seen)
        value = keep(value, is_seen)
    if rule.query_mask is not None and is_compiled_scope():
        # XLA does not vectorise exponentials of logits under a mask of queries and one of keys. The mask of queries can go:
        # the caller sets their outputs to 0.
        mask = dataclasses.replace(rule, query_mask=None).block()
    return query, key, value, mask, sees_keys


def _any_key(mask):
    return ops.any(mask, axis=-1, keepdims=True)


def seen_keys(mask, query, key):
    """Booleans (..., 1 or K, S, 1), True at keys that some query sees."""
    is_seen = ops.any(mask, axis=-2)
    num_heads = query.shape[-3]
    num_key_heads = key.shape[-3]
    if num_heads != num_key_heads and len(is_seen.shape) > 1 and is_seen.shape[-2] != 1:
        shape = ops.shape(is_seen)
        groups = (*shape[:-2], num_key_heads, num_heads // num_key_heads, shape[-1])
        is_seen = ops.any(ops.reshape(is_seen, groups), axis=-2)
    return ops.expand_dims(is_seen, -1)


def dense_bias(bias, sees_keys):
    """A `PairBias` as a tensor that broadcasts to (..., N, T, S), with no NaN of queries that see no key.

    A tensor or None is not changed.
    """
    if bias is None or ops.is_tensor(bias):
        return bias
    return bias.block(guarded_parameters(bias, bias.parameters, sees_keys), slice(None), slice(None))


def guarded_parameters(bias, parameters, sees_keys):
    """The parameters of a bias, with zeros in the rows of queries that see no key.

    Rows are computed from queries, so the row of a NaN query is NaN.
    """
    if not bias.has_query_axis:
        return parameters
    return keep(parameters, sees_keys)
