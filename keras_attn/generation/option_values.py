"""The values of decoding options, checked, as tensors and arrays with one value per row."""

import numbers

import numpy as np
from keras import ops

from keras_attn.checks import concrete_values
from keras_attn.generation.options import OPTIONS

_ONE_VALUE = {"int32": "an integer", "float32": "a number", "bool": "True or False"}


def values_per_row(name, value, batch_size):
    """The value of an option as a tensor (B,), or (B, P) for a list of ids.

    Raises:
        ValueError: if a value is of another type or out of range, or there are values for another number of rows.
    """
    option = OPTIONS[name]
    _check_type(name, value)
    value = ops.convert_to_tensor(value, dtype=option.dtype)
    num_axes = int(option.is_list)
    rank = len(value.shape)
    if rank not in (num_axes, num_axes + 1):
        shape = "shape (P,), or (batch, P)" if option.is_list else "one value a row, or one for all"
        raise ValueError(f"`{name}` must have {shape}. Received: {name} of shape {tuple(value.shape)}.")
    _check_range(name, value)
    if rank == num_axes:
        return ops.broadcast_to(value, (batch_size, *value.shape))
    if isinstance(batch_size, int) and value.shape[0] not in (None, batch_size):
        raise ValueError(
            f"`{name}` must have a value for each of the {batch_size} rows. Received: {value.shape[0]} of them."
        )
    return value


def array_per_row(name, value, num_rows):
    """The same as a NumPy array."""
    _check_type(name, value)
    values = values_per_row(name, np.asarray(value, OPTIONS[name].dtype), num_rows)
    return ops.convert_to_numpy(values)


def _check_type(name, value):
    """Refuses what a conversion to the option's dtype would change without a word, or with an error of NumPy."""
    option = OPTIONS[name]
    values = concrete_values(value)
    if values is None or not values.size:
        return
    if not _is_of_type(values, option.dtype):
        needed = "integers" if option.is_list else _ONE_VALUE[option.dtype]
        raise ValueError(f"`{name}` must be {needed}. Received: {name}={value!r}.")
    if option.dtype != "int32":
        return
    if not -(2**31) <= values.min() <= values.max() < 2**31:
        raise ValueError(f"`{name}` must fit into int32. Received: {name}={value}.")


def _is_of_type(values, dtype):
    kind = values.dtype.kind
    if dtype == "bool":
        return kind == "b" or (kind in "iuf" and np.isin(values, (0, 1)).all())
    if kind == "O":  # integers beyond int64 among others
        return all(isinstance(value, numbers.Integral) for value in values.flat)
    if dtype == "float32":
        return kind in "iufV"  # V: bfloat16
    return kind in "iu" or (kind == "f" and (values == np.floor(values)).all())


def _check_range(name, value):
    values = concrete_values(value)
    if values is None or not values.size:
        return
    least, greatest = OPTIONS[name].least, OPTIONS[name].greatest
    low = np.min(values)
    high = np.max(values)
    if low != low:
        raise ValueError(f"`{name}` must be a number. Received: {low}.")
    is_below = least is not None and not low >= least
    is_above = greatest is not None and not high <= greatest
    if is_below or is_above:
        limits = f"at least {least}" if greatest is None else f"in [{least}, {greatest}]"
        received = low if low == high else f"{low} to {high}"
        raise ValueError(f"`{name}` must be {limits}. Received: {received}.")
