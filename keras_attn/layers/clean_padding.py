"""What stands at padding, be it NaN, reaches no weight: a sequence enters a layer with zeros there.

The gradient of a weight is a sum over all positions of an input times a gradient, and NaN * 0 is NaN, so that it is not
enough to hide padding from real tokens. A model does this for all of its blocks, and a block for all of its
layers: inside `clean_padding` it is not done again.
"""

import contextlib
import contextvars

from keras import ops

from keras_attn.ops import combine_masks, keep

# The sequences that are known to hold zeros at padding, inside `clean_padding`; None outside.
_CLEAN = contextvars.ContextVar("clean_padding", default=None)


@contextlib.contextmanager
def clean_padding(*sequences):
    """Layers that are called inside get sequences without padding.

    Args:
        *sequences: Pairs of a sequence and its mask, as in `without_padding`.

    Yields:
        List of the sequences without padding.
    """
    kept = [without_padding(x, is_token) for x, is_token in sequences]
    known = []
    if not is_padding_clean():
        known = [x for x, (_, is_token) in zip(kept, sequences) if is_token is not None]
    token = _CLEAN.set(known)
    try:
        yield kept
    finally:
        _CLEAN.reset(token)


def with_clean_padding(function, *masks):
    """A function of sequences that runs inside `clean_padding`.

    Whether there is anything to do is settled here, not when it runs: recomputation runs it a second time, elsewhere.

    Args:
        function: Function of sequences.
        *masks: The mask of each sequence, as in `without_padding`.
    """
    masks = [None if is_padding_clean() else is_token for is_token in masks]

    def run(*sequences):
        with clean_padding(*zip(sequences, masks)) as kept:
            return function(*kept)

    return run


def is_padding_clean():
    """Whether the code runs inside `clean_padding`."""
    return _CLEAN.get() is not None


def is_known_clean(x):
    """Whether `x` is one of the sequences that the `clean_padding` around this code has set to 0 at padding."""
    return any(x is other for other in _CLEAN.get() or ())


def real_token_mask(padding_mask, segment_ids=None):
    """True at tokens that are padding by neither, booleans (B, <axes>), or None. Values are not checked here."""
    is_token = None if padding_mask is None else ops.cast(padding_mask, "bool")
    in_segment = None if segment_ids is None else ops.not_equal(segment_ids, 0)
    return combine_masks(is_token, in_segment)


def without_padding(x, is_token):
    """A sequence with zeros at its padding, in value and in gradient.

    Args:
        x: Floats (B, <axes>, D).
        is_token: Booleans (B, <axes>), True at real tokens, or None for no padding.
    """
    if is_token is None or is_padding_clean():
        return x
    return keep(x, ops.expand_dims(is_token, -1))
