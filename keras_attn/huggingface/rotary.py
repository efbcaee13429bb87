"""Rotary positions of a config: the base, and the scaling for longer sequences, of every kind that is implemented."""

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
    },
}
# What `truncate` and the scales of DeepSeek's form may be without an effect.
_WITHOUT_EFFECT = {"truncate": (None, True), "mscale": (None, 0), "mscale_all_dim": (None, 0)}
_BASE = 10000.0


def rope_parameters(fields, default_base=_BASE):
    """The dict of rotary parameters, from the field `rope_parameters` or its older forms."""
    parameters = fields.get("rope_parameters", None) or {}
    scaling = fields.get("rope_scaling", None) or {}
    base = fields.get("rope_theta", None)
    parameters = {**scaling, **parameters}
    if "type" in parameters:
        parameters.setdefault("rope_type", parameters["type"])
        del parameters["type"]
    parameters.setdefault("rope_theta", default_base if base is None else base)
    parameters.setdefault("partial_rotary_factor", fields.get("partial_rotary_factor", None))
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
    kind, base = options.pop("rope_type", "default"), options.pop("rope_theta", _BASE)
    if kind not in _OPTIONS:
        raise ValueError(
            f"`rope_type` must be one of {sorted(_OPTIONS)}. Received: rope_type={kind!r} in {parameters}."
        )
    if options.get("partial_rotary_factor") == 1:
        del options["partial_rotary_factor"]
    names = _OPTIONS[kind]
    for name, harmless in _WITHOUT_EFFECT.items():
        if kind != "yarn" or options.get(name) in harmless:
            options.pop(name, None)
    if kind == "default":
        options.pop("factor", None)
        options.pop("original_max_position_embeddings", None)
    unknown = sorted(set(options) - set(names))
    if unknown:
        raise ValueError(
            f"Rotary positions of type {kind!r} have options that are not implemented: {unknown}. "
            f"Received: {parameters}."
        )
    scaling = None
    if kind != "default":
        scaling = {"type": kind, **{names[name]: value for name, value in options.items()}}
        if "original_max_position_embeddings" in names:
            scaling.setdefault("original_max_sequence_length", max_sequence_length)
    return lambda: RotaryEmbedding(base, scaling=scaling, name="rotary_embedding")
