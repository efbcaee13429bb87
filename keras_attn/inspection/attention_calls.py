"""One call of an attention layer: its scores and its mask, without a change to its output.

Each class wraps one method of a kind of layers. The call runs as it would have run. Only then, and only if they are
asked for, the scores are computed by the same code on the same tensors.
"""

import functools
import inspect
import math

import keras
from keras import ops

from keras_attn.compat.keras import (
    ATTENTION_METHOD,
    WITH_ATTENTION_SCORES,
    attention_axes,
    causal_mask_of_layer,
    combine_equation,
    implicit_mask,
    set_implicit_mask,
)
from keras_attn.ops.attention import weighted_sum
from keras_attn.ops.masks import as_mask_rule


class AttentionCall:
    """The base: `method` is the name of the layer's method that is wrapped.

    Attributes:
        layer: The attention layer.
        arguments: Dict of the method's arguments.
        output: What the method gives to the layer that called it. A watcher may replace it.
    """

    method = None

    def __init__(self, layer, original, args, kwargs):
        self.layer = layer
        self._original = original
        self.arguments = self._bound(args, kwargs)
        self._results = self._run()
        self.output, *self._more = self._results if isinstance(self._results, tuple) else (self._results,)

    def _bound(self, args, kwargs):
        bound = inspect.signature(self._original).bind(*args, **kwargs)
        return bound.arguments

    def _run(self):
        return _call(self._original, self.arguments)

    @property
    def result(self):
        """What the wrapped method returns."""
        return (self.output, *self._more) if isinstance(self._results, tuple) else self.output

    @functools.cached_property
    def scores(self):
        """The attention scores (B, ..., N, T, S), before dropout."""
        raise NotImplementedError

    @functools.cached_property
    def mask(self):
        """The mask that was used, booleans that broadcast to the scores' shape, or None if nothing was masked."""
        raise NotImplementedError

    def output_change(self, score_change):
        """What is added to `output` if `score_change`, of the scores' shape, is added to the scores."""
        raise ValueError(
            "The gradient with respect to the attention scores is known for `MultiHeadAttention` of keras_attn and of "
            f"Keras, `GroupQueryAttention` and their subclasses. Received: layer {self.layer.name!r} of class "
            f"{type(self.layer).__name__}. Leave it out with `layers=`."
        )


class CallOfOurs(AttentionCall):
    """A call of `keras_attn.layers.MultiHeadAttention` or of a variant."""

    method = "_attend"

    def _bound(self, args, kwargs):
        names = ("query", "key", "value", "return_attention_scores")
        return {**dict(zip(names, args)), **kwargs}

    def _run(self):
        return self._original(**self.arguments)

    @functools.cached_property
    def scores(self):
        if self._more[0] is not None:
            return self._more[0]
        layer = _copy(self.layer, without=self.method, memory_efficient=None, flash_attention=None)
        return layer._attend(**{**self.arguments, "return_attention_scores": True})[1]

    @functools.cached_property
    def mask(self):
        query, key = self.arguments["query"], self.arguments["key"]
        return as_mask_rule(self.arguments.get("mask"), query, key).block()

    def output_change(self, score_change):
        if hasattr(self.layer, "lambda_vectors"):
            return super().output_change(score_change)
        return weighted_sum(score_change, self.arguments["value"])


class CallOfKeras(AttentionCall):
    """A call of `keras.layers.MultiHeadAttention` or `GroupQueryAttention`, or of a subclass."""

    method = ATTENTION_METHOD

    @functools.cached_property
    def scores(self):
        scores = self._more[0] if self._more else None
        if scores is None:
            scores = self._with_scores()
        return self._flat(scores)

    def _with_scores(self):
        layer = _copy(self.layer, without=self.method, **WITH_ATTENTION_SCORES)
        function = getattr(layer, self.method)
        arguments = dict(self.arguments)
        if "return_attention_scores" in inspect.signature(function).parameters:
            arguments["return_attention_scores"] = True
        return _call(function, arguments)[1]

    @functools.cached_property
    def mask(self):
        mask = self.arguments.get("attention_mask")
        mask = None if mask is None else ops.cast(mask, "bool")
        rank = len(self._raw_shape())
        if mask is not None:
            while len(mask.shape) < rank:  # as in the layer: (B, T, S) becomes (B, 1, T, S)
                mask = ops.expand_dims(mask, -2 * self._num_axes - 1)
        if self.arguments.get("use_causal_mask"):
            causal = causal_mask_of_layer(self.layer, self.arguments["query"], self.arguments["value"])
            causal = ops.expand_dims(causal, 1)
            mask = causal if mask is None else ops.logical_and(mask, causal)
        return None if mask is None else self._flat(mask)

    @property
    def _num_axes(self):
        axes = attention_axes(self.layer)
        return 1 if axes is None else len(axes)

    def _raw_shape(self):
        # Queries (B, <axes>, N, H) have scores (B, <other axes>, N, <attended axes of queries, then of keys>).
        return (None,) * (len(self.arguments["query"].shape) - 1 + self._num_axes)

    def _flat(self, x):
        """The attended axes joined: (..., N, T, S)."""
        count = self._num_axes
        if count == 1:
            return x
        shape = ops.shape(x)
        before, sizes = shape[: -2 * count], shape[-2 * count :]
        return ops.reshape(x, (*before, math.prod(sizes[:count]), math.prod(sizes[count:])))

    def output_change(self, score_change):
        if self._num_axes > 1:
            return super().output_change(score_change)
        change = ops.cast(score_change, self.arguments["value"].dtype)
        return ops.einsum(combine_equation(self.layer), change, self.arguments["value"])


class CallOfAny(AttentionCall):
    """A call of any other layer with the call argument `return_attention_scores`, which is called once more."""

    method = "call"

    def _run(self):
        tensors = [x for x in keras.tree.flatten(dict(self.arguments)) if ops.is_tensor(x)]
        masks = [(x, implicit_mask(x)) for x in tensors]
        self._before = (_state(self.layer), masks)
        return super()._run()

    @functools.cached_property
    def scores(self):
        if self.arguments.get("return_attention_scores"):
            scores = self._more[0]
        else:
            state, masks = self._before
            state_after = _state(self.layer)
            masks_after = [(x, implicit_mask(x)) for x, _ in masks]
            try:
                _restore(state, masks)
                scores = _call(self._original, {**self.arguments, "return_attention_scores": True})[1]
            finally:
                _restore(state_after, masks_after)
        # Layers without heads have one.
        return ops.expand_dims(scores, -3) if len(scores.shape) == 3 else scores

    @functools.cached_property
    def mask(self):
        return ops.not_equal(self.scores, 0)


def _copy(layer, without, **attributes):
    """A layer with the same weights and other attributes. Other threads may be in the layer itself, so it must not change."""
    copy = object.__new__(type(layer))
    copy.__dict__.update(layer.__dict__)
    copy.__dict__.pop(without, None)
    copy.__dict__.update(attributes)
    return copy


def _call(function, arguments):
    """`function` with arguments by name, as `inspect.Signature.bind` found them."""
    bound = inspect.BoundArguments(inspect.signature(function), dict(arguments))
    return function(*bound.args, **bound.kwargs)


def _state(layer):
    """What a call may change in a layer: the state of its random numbers, and moving means."""
    return [(variable, ops.copy(variable.value)) for variable in layer.non_trainable_variables]


def _restore(state, masks):
    for variable, value in state:
        variable.assign(value)
    for tensor, mask in masks:
        if mask is not None or implicit_mask(tensor) is not None:
            set_implicit_mask(tensor, mask)
