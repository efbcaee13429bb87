"""Masks as boolean tensors: True where a query may attend to a key.

Every mask here is computed from integer positions or token ids, has the two trailing axes (T, S), and is joined
to the others with `&`. B is the batch, T the query length, S the key length, N the number of heads.
"""

import keras
import numpy as np
from keras import ops

from keras_attn.ops.eager import concrete_values


def padding_mask(token_ids, pad_token_id=0):
    """True at real tokens: (B, S) integers in, (B, S) booleans out.

    Example:

    ```python
    padding_mask(keras.ops.convert_to_tensor([[5, 7, 0]]))  # [[True, True, False]]
    ```
    """
    return ops.not_equal(token_ids, pad_token_id)


def causal_mask(query_positions, key_positions):
    """True where a key is not later than the query: (..., T) and (..., S) integers in, (..., T, S) out.

    Example:

    ```python
    positions = keras.ops.arange(3)
    causal_mask(positions, positions)  # [[True, False, False], [True, True, False], [True, True, True]]
    ```
    """
    return ops.greater_equal(ops.expand_dims(query_positions, -1), ops.expand_dims(key_positions, -2))


def sliding_window_mask(query_positions, key_positions, sliding_window):
    """True within `sliding_window - 1` positions on either side, as Keras' `sliding_window` means it.

    (..., T) and (..., S) integers in, (..., T, S) out.

    Example:

    ```python
    positions = keras.ops.arange(3)
    sliding_window_mask(positions, positions, 2)  # [[True, True, False], [True, True, True], [False, True, True]]
    ```
    """
    distance = ops.expand_dims(query_positions, -1) - ops.expand_dims(key_positions, -2)
    return ops.less(ops.abs(distance), sliding_window)


def combine_masks(*masks):
    """The conjunction of the masks that are not None, or None.

    Example:

    ```python
    token_ids, positions = keras.ops.convert_to_tensor([[5, 7, 0]]), keras.ops.arange(3)
    combine_masks(padding_mask(token_ids)[:, None, :], None, causal_mask(positions, positions))  # (1, 3, 3)
    ```
    """
    combined = None
    for mask in masks:
        if mask is not None:
            combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def implicit_mask(tensor):
    """The mask that Keras carries on `tensor` (`mask_zero=True`, `Masking`), or None. The tensor is left as it is.

    Keras hands an implicit mask to a call argument only in some signatures, so layers that promise to honour it read
    it here.
    """
    return getattr(tensor, "_keras_mask", None)


def as_boolean_mask(mask, name):
    """`mask` as booleans: bool stays, 0 and 1 of any dtype are cast, other values raise when they can be seen.

    Args:
        mask: A tensor or array, or None.
        name: The argument's name, for the message.

    Raises:
        ValueError: if a concrete (eager) `mask` holds values other than 0 and 1, an additive mask for instance.
    """
    if mask is None:
        return None
    mask = ops.convert_to_tensor(mask)
    if keras.backend.standardize_dtype(mask.dtype) == "bool":
        return mask
    values = concrete_values(mask)
    if values is not None and not np.isin(values, (0, 1)).all():
        found = np.unique(values[~np.isin(values, (0, 1))])[:3].tolist()
        raise ValueError(
            f"`{name}` must be boolean, or hold only 0 and 1 (1 = may be attended). Received values {found}. "
            "What is added to the logits is a bias, not a mask."
        )
    return ops.cast(mask, "bool")


def check_mask_shape(mask, shape, name, exact_axes=0, received=None):
    """Raises ValueError, naming both shapes, when `mask` cannot broadcast to `shape`.

    Sizes unknown before the run (None) pass. The last `exact_axes` axes must match and may not be broadcast.
    `received` is the shape that the user gave, where `mask` was given axes since.
    """
    mask_shape = tuple(mask.shape)
    padded = (1,) * (len(shape) - len(mask_shape)) + mask_shape
    sizes = list(zip(padded, shape))
    fits = len(padded) == len(shape) and all(
        size is None or wanted is None or size == wanted or (size == 1 and axis < len(shape) - exact_axes)
        for axis, (size, wanted) in enumerate(sizes)
    )
    if not fits:
        raise ValueError(
            f"`{name}` must {'have' if exact_axes else 'broadcast to'} shape {tuple(shape)}. "
            f"Received: {name} of shape {mask_shape if received is None else tuple(received)}."
        )
