"""Checks of what a `PositionBias.pair_bias` returns, before attention adds it to logits.

TensorFlow would add a bias of each row of the batch, (B, T, S), to the heads if the batch has as many rows as there are heads.
"""

import keras
from keras import ops

from keras_attn.ops import DenseBias, PairBias, SlopeBias, TableBias

_SIZES = ("B", "N", "T", "S")


def checked_pair_bias(bias, name, shape, positions):
    """The bias as a `PairBias`, if it fits the logits.

    Args:
        bias: What `pair_bias` returned.
        name: String, the name of the class that defines it.
        shape: Shape of the logits, (B, N, T, S) or (B, ..., N, T, S). Sizes that are unknown before the run are not compared.
        positions: The positions of the queries and of the keys.

    Raises:
        ValueError: if the bias is no bias, or does not fit.
    """
    name = f"`{name}.pair_bias`"
    if not isinstance(bias, PairBias):
        bias = DenseBias(_as_floats(bias, name))
    if isinstance(bias, TableBias):
        _check_lengths(bias, name, shape)
        _check_table(bias, name, shape)
    elif isinstance(bias, SlopeBias):
        _check_lengths(bias, name, shape)
        _check_slopes(bias, name, shape)
    elif isinstance(bias, DenseBias):
        _check_dense(bias, name, shape, positions)
    return bias


def _as_floats(bias, name):
    try:
        bias = ops.convert_to_tensor(bias)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} must return a TableBias, another PairBias, or a tensor. Received: {bias!r}."
        ) from None
    if "float" in keras.backend.standardize_dtype(bias.dtype):
        return bias
    return ops.cast(bias, "float32")


def _check_dense(bias, name, shape, positions):
    received = tuple(bias.parameters.shape)
    is_broadcast = len(received) < len(shape)
    if is_broadcast and received and received[0] != 1 and any(map(_differ_by_row, positions)):
        raise ValueError(
            f"{name}: for positions of each row, (B, T) or (B, S), the bias must have the axes {_sizes(shape)}, with size 1 where "
            f"it does not vary. Received: {received}. `bias[:, None]` adds the axis of the heads, `bias[None]` that of the batch."
        )
    fits = len(received) <= len(shape) and all(map(_is_one_of, received[::-1], _ones_or(shape[::-1])))
    if is_broadcast and len(received) > 2 and shape[-3] is not None:
        # An unknown size is that of the batch: the number of heads is always known.
        fits = fits and received[-3] is not None
    if not fits:
        raise ValueError(f"{name}: the bias must broadcast to {_sizes(shape)}. Received: {received}.")


def _check_table(bias, name, shape):
    received = tuple(bias.parameters.shape)
    num_rows = 1
    rows = "1"
    if bias.has_query_axis:
        num_rows = shape[-2]
        rows = "T"
    wanted = (*_ones_or(shape[:-2]), (num_rows,))
    fits = len(received) in (3, len(shape)) and all(map(_is_one_of, received[-2::-1], wanted[::-1]))
    if len(received) == 3 and shape[-3] is not None:
        fits = fits and received[0] is not None
    if not fits:
        raise ValueError(
            f"{name}: the table must be (N or 1, {rows}, R) with {_named(shape, rows)}. Received: {received}."
        )


def _check_slopes(bias, name, shape):
    received = tuple(bias.parameters.shape)
    if len(received) != 1 or not _is_one_of(received[0], (1, shape[-3])):
        raise ValueError(f"{name}: the slopes must be (N,) with N = {shape[-3]}. Received: {received}.")


def _check_lengths(bias, name, shape):
    for argument, axis, size in (("query_positions", "T", shape[-2]), ("key_positions", "S", shape[-1])):
        received = tuple(getattr(bias, argument).shape)
        if len(received) not in (1, 2) or not _is_one_of(received[-1], (size,)):
            raise ValueError(
                f"{name}: `{argument}` of the bias must be ({axis},) or (B, {axis}) with {axis} = {size}. Received: {received}."
            )


def _is_one_of(size, wanted):
    """Whether a size is one of those wanted, as far as they are known."""
    return not isinstance(size, int) or size in wanted or not all(isinstance(other, int) for other in wanted)


def _ones_or(sizes):
    return tuple((1, size) for size in sizes)


def _differ_by_row(positions):
    return len(positions.shape) > 1 and positions.shape[0] != 1


def _sizes(shape):
    """For messages: "(B, N, T, S) = (2, 4, 5, 7)"."""
    names = [*_SIZES[:1], *["..."] * (len(shape) > 4), *_SIZES[1:]]
    return f"({', '.join(names)}) = {tuple(shape)}"


def _named(shape, rows):
    sizes = f"N = {shape[-3]}"
    if rows == "T":
        sizes += f", T = {shape[-2]}"
    return sizes
