"""Checks of the values of a recipe, field by field."""

import math
import numbers

import keras

from keras_attn.checks import check_positive, check_rate


def check_values(recipe):
    """Raises ValueError, which names the field, for a value that no run could use."""
    for check, names in _CHECKS.items():
        for name in names:
            value = getattr(recipe, name)
            if value is not None or name not in _OPTIONAL:
                check(name, value)


def _check_number(name, value, is_allowed=math.isfinite, what="a number"):
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not is_allowed(value):
        raise ValueError(f"`{name}` must be {what}. Received: {name}={value!r}.")


def _check_positive_number(name, value):
    _check_number(name, value, lambda x: 0 < x < math.inf, "a positive number")


def _check_not_negative(name, value):
    _check_number(name, value, lambda x: 0 <= x < math.inf, "a number, 0 or more")


def _check_seed(name, value):
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not 0 <= value < 2**32:
        raise ValueError(f"`{name}` must be an integer from 0 to 2**32 - 1. Received: {name}={value!r}.")


def _check_boundaries(name, value):
    if not value or not all(isinstance(x, int) and x > 0 for x in value) or list(value) != sorted(set(value)):
        raise ValueError(f"`{name}` must be ascending positive integers. Received: {name}={value!r}.")


def _check_distill(name, value):
    known = {"teachers", "references", "num_beams", "length_penalty"}
    if not isinstance(value, dict) or not set(value) <= known:
        raise ValueError(f"`{name}` may have {', '.join(sorted(known))}. Received: {name}={value!r}.")
    teachers = value.get("teachers", [])
    if not isinstance(teachers, list) or not all(isinstance(teacher, str) for teacher in teachers):
        raise ValueError(f"`teachers` must be a list of folders. Received: teachers={teachers!r}.")
    if not isinstance(value.get("references", True), bool):
        raise ValueError(f"`references` must be true or false. Received: references={value['references']!r}.")
    if value.get("num_beams") is not None:
        check_positive("num_beams", value["num_beams"])
    if value.get("length_penalty") is not None:
        _check_number("length_penalty", value["length_penalty"])


def _check_dtype(name, value):
    if value == "auto":
        return
    try:
        policy = keras.dtype_policies.get(value)
        is_float = "float" in policy.compute_dtype
    except (ValueError, TypeError):
        is_float = False
    if not is_float:
        raise ValueError(
            f'`{name}` must be "auto" or a Keras dtype policy of floats, such as "float32" or "mixed_bfloat16". '
            f"Received: {name}={value!r}."
        )


# Fields by the check of their values.
_CHECKS = {
    check_positive: (
        "vocabulary_size",
        "max_tokens",
        "gradient_accumulation_steps",
        "epochs",
        "steps_per_epoch",
        "warmup_steps",
        "patience",
        "num_averaged",
        "save_updates",
        "num_beams",
        "max_length",
    ),
    check_rate: ("label_smoothing", "subword_sampling", "beta_1", "beta_2", "ema_momentum"),
    _check_positive_number: ("learning_rate", "epsilon", "global_clipnorm", "save_minutes", "minutes"),
    _check_not_negative: ("weight_decay",),
    _check_number: ("length_penalty", "stop_at"),
    _check_seed: ("seed",),
    _check_boundaries: ("bucket_boundaries",),
    _check_dtype: ("dtype",),
    _check_distill: ("distill",),
}
# Fields that may be None.
_OPTIONAL = {
    "steps_per_epoch",
    "patience",
    "distill",
    "minutes",
    "save_updates",
    "max_length",
    "ema_momentum",
    "save_minutes",
    "stop_at",
}
