"""Rotary positions of a config: the base, and the scaling for longer sequences, of every kind that is implemented."""

import math
import numbers

from keras_attn.layers import RotaryEmbedding

_OPTIONS = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        "original_max_position_embeddings": "original_max_sequence_length",
    },
    "yarn": {
        "factor": "factor",
        "original_max_position_embeddings": "original_max_sequence_length",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "attention_factor": "attention_factor",
        "truncate": "truncate",
    },
}
_BASE = 10000.0


def rope_parameters(fields, default_base=_BASE):
    """The dict of rotary parameters, from the field `rope_parameters` or its older forms."""
    parameters = fields.get("rope_parameters", None) or {}
    scaling = fields.get("rope_scaling", None) or {}
    base = fields.get("rope_theta", None)
    parameters = {**scaling, **parameters}
    if "type" in parameters:
        parameters.setdefault("rope_type", parameters.pop("type"))
    parameters.setdefault("rope_theta", default_base if base is None else base)
    parameters.setdefault("partial_rotary_factor", fields.get("partial_rotary_factor", None))
    original = fields.get("original_max_position_embeddings", None)
    if original is not None:
        parameters["original_max_position_embeddings"] = original
    return parameters


def rotary_embedding(parameters, max_sequence_length):
    """A function that makes the `RotaryEmbedding` of rotary parameters.

    Args:
        parameters: Dict, see `rope_parameters`.
        max_sequence_length: Integer, what a yarn or llama3 scaling takes for the original length if it names none.

    Raises:
        ValueError: for a type or an option that is not implemented.

    Example:

    ```python
    make = rotary_embedding({"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}, 2048)
    make().scaling  # {"type": "linear", "factor": 2.0}
    ```
    """
    options = {name: value for name, value in parameters.items() if value is not None}
    kind = options.pop("rope_type", "default")
    base = options.pop("rope_theta", _BASE)
    if kind not in _OPTIONS:
        raise ValueError(
            f"`rope_type` must be one of {sorted(_OPTIONS)}. Received: rope_type={kind!r} in {parameters}."
        )
    if options.get("partial_rotary_factor", 1) != 1:
        raise ValueError(
            "Rotary positions must be of all channels of a head: `partial_rotary_factor` must be 1. "
            f"Received: {parameters}."
        )
    if kind == "yarn":
        _read_scales(options)
    scaling = None
    if kind != "default":
        # Options of other kinds, and of other programs, change nothing in transformers either.
        names = _OPTIONS[kind]
        scaling = {"type": kind} | {names[name]: value for name, value in options.items() if name in names}
        if "original_max_position_embeddings" in names:
            scaling.setdefault("original_max_sequence_length", max_sequence_length)
    return lambda: RotaryEmbedding(base, scaling=scaling, name="rotary_embedding")


def _read_scales(options):
    """Replaces `mscale` and `mscale_all_dim`, DeepSeek's form, by the `attention_factor` that they mean. One without
    the other means nothing, and an `attention_factor` overrides both."""
    scales = [options.pop(name, 0) for name in ("mscale", "mscale_all_dim")]
    factor = options.get("factor", 1)
    if not all(isinstance(number, numbers.Real) for number in (*scales, factor)) or factor <= 0:
        raise ValueError(
            f"`mscale`, `mscale_all_dim` and `factor` must be numbers. Received: {scales}, factor={factor!r}."
        )
    if all(scales) and "attention_factor" not in options:
        over, under = (0.1 * scale * math.log(factor) + 1 for scale in scales)
        options["attention_factor"] = over / under
