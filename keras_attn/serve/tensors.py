"""Values of JSON as tensors, and tensors as values of JSON, with TF Serving's rules and messages.

Reference: tensorflow_serving/util/json_tensor.cc.
"""

import base64
import binascii
import dataclasses
import re

import numpy as np

from keras_attn.serve.errors import UNIMPLEMENTED, RequestError
from keras_attn.serve.json_text import pretty

# DataType: its name (DataTypeString in tensorflow/core/framework/types.cc)
STRING = 7
_DTYPE_NAMES = {1: "float", 3: "int32", STRING: "string", 9: "int64", 10: "bool"}
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_LARGEST_INTEGER = 2**24 - 1  # of those that become a float32


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of a request: nested lists, in which strings are str or `{"b64": str}`, and its shape."""

    values: list
    shape: tuple


def to_tensor(value, dtype):
    """The `Tensor` of a value of JSON.

    Args:
        value: A value, or lists of values.
        dtype: `DataType`.

    Raises:
        RequestError: if a value is not of this dtype, or lists differ in length.
    """
    lengths = []
    first = value
    while isinstance(first, list):
        lengths.append(len(first))
        first = first[0] if first else None
    shape = tuple(lengths)
    convert = _CONVERTERS.get(dtype, _refuse)
    return Tensor(_converted(value, 0, shape, convert, dtype), shape)


def _converted(value, level, shape, convert, dtype):
    if not isinstance(value, list):
        if level != len(shape):
            raise RequestError(
                f"JSON Value: {pretty(value)} found at incorrect level: {level + 1} in the JSON DOM. "
                f"Expected at level: {len(shape)}"
            )
        return convert(value, dtype)
    if level >= len(shape):
        raise RequestError(f"Encountered list at unexpected level: {level} expected < {len(shape)}")
    if len(value) != shape[level]:
        raise RequestError(
            f"Encountered list at unexpected size: {len(value)} at level: {level} expected size: {shape[level]}"
        )
    return [_converted(item, level + 1, shape, convert, dtype) for item in value]


def is_base64(value):
    """Whether a value of JSON stands for bytes."""
    return isinstance(value, dict) and list(value) == ["b64"] and isinstance(value["b64"], str)


def _string(value, dtype):
    if isinstance(value, str):
        return value if value.isascii() else _text(value)
    if not isinstance(value, dict):
        raise _wrong_type(value, dtype)
    if not is_base64(value):
        raise RequestError(f"JSON Value: {pretty(value)} not formatted correctly for base64 data")
    # Like absl::Base64Unescape: white space is skipped, and the padding may be missing.
    text = re.sub(r"\s", "", value["b64"]).rstrip("=")
    try:
        content = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise RequestError("Unable to base64 decode") from None
    return _text(content.decode("utf-8", "surrogateescape"))


def _text(value):
    """A string; in base64 if it is not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return _in_base64(value)
    return value


def _float(value, dtype):
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong_type(value, dtype)
    if isinstance(value, float) and not np.isfinite(value):
        return value
    is_integer = isinstance(value, int) and -(2**63) <= value < 2**64  # RapidJSON reads others as decimals
    largest = _LARGEST_INTEGER if is_integer else _LARGEST_FLOAT
    if abs(value) > largest:
        raise RequestError(f"Cannot convert JSON value: {pretty(value)} to float without loss of precision.")
    return float(value)


def _integer(value, dtype):
    bits = 31 if dtype == 3 else 63
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**bits) <= value < 2**bits:
        raise _wrong_type(value, dtype)
    return value


def _bool(value, dtype):
    if not isinstance(value, bool):
        raise _wrong_type(value, dtype)
    return value


def _refuse(value, dtype):
    raise RequestError(f"Conversion of JSON Value: {pretty(value)} to type: {dtype}", UNIMPLEMENTED)


_CONVERTERS = {1: _float, 3: _integer, STRING: _string, 9: _integer, 10: _bool}


def _wrong_type(value, dtype):
    return RequestError(
        f"JSON Value: {pretty(value)} Type: {_json_type(value)} is not of expected type: {_DTYPE_NAMES[dtype]}"
    )


def _json_type(value):
    if value is None:
        return "Null"
    if isinstance(value, bool):
        return str(value)
    return {dict: "Object", list: "Array", str: "String"}.get(type(value), "Number")


def to_json(name, values, dtype):
    """The values of an output as JSON shows them: float32 with the digits it has, bytes as base64.

    Args:
        name: Name of the output; bytes are in base64 if it ends in `_bytes`, as text otherwise.
        values: A value, or lists of values; strings with surrogate escapes.
        dtype: `DataType`.
    """
    if dtype == STRING and name.endswith("_bytes"):
        return _each(_in_base64, values)
    if dtype == 1:
        return _each(_decimal, values)
    return values


def _each(function, values):
    if isinstance(values, list):
        return [_each(function, value) for value in values]
    return function(values)


def _in_base64(value):
    return {"b64": base64.b64encode(value.encode("utf-8", "surrogateescape")).decode("ascii")}


def _decimal(value):
    """The number with six digits if they give the same float32, and with nine otherwise."""
    short = float(f"{value:.6g}")
    if np.float32(short) == np.float32(value):
        return short
    return float(f"{value:.9g}")
