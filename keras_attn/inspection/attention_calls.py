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
        output: What the method returns to the layer that called it. A watcher may replace it.
    """

    method = None

    def __init__(self, layer, original, args, kwargs):
        self.layer = layer
        self._original = original
        self.arguments = self._bound(args, kwargs)
        results = self._run()
        self._returns_tuple = isinstance(results, tuple)
        if self._returns_tuple:
            self.output, *self._more_results = results
        else:
            self.output = results
            self._more_results = []

    def _bound(self, args, kwargs):
        return inspect.signature(self._original).bind(*args, **kwargs).arguments

    def _run(self):
        return _call(self._original, self.arguments)

    @property
    def result(self):
        """What the wrapped method returns."""
        return (self.output, *self._more_results) if self._returns_tuple else self.output

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


class OwnAttentionCall(AttentionCall):
    """A call of `keras_attn.layers.MultiHeadAttention` or of a variant."""

    method = "_attend"

    def _bound(self, args, kwargs):
        names = ("query", "key", "value", "return_attention_scores")
        return {**dict(zip(names, args)), **kwargs}

    def _run(self):
        return self._original(**self.arguments)

    @functools.cached_property
    def scores(self):
        scores = self._more_results[0]
        if scores is not None:
            return scores
        layer = _copy(self.layer, without=self.method, memory_efficient=None, flash_attention=None)
        _, scores = layer._attend(**{**self.arguments, "return_attention_scores": True})
        return scores

    @functools.cached_property
    def mask(self):
        mask = self.arguments.get("mask")
        return as_mask_rule(mask, self.arguments["query"], self.arguments["key"]).block()

    def output_change(self, score_change):
        if hasattr(self.layer, "lambda_vectors"):
            return super().output_change(score_change)
        return weighted_sum(score_change, self.arguments["value"])


class KerasAttentionCall(AttentionCall):
    """A call of `keras.layers.MultiHeadAttention` or `GroupQueryAttention`, or of a subclass."""

    method = ATTENTION_METHOD

    @functools.cached_property
    def scores(self):
        scores = self._more_results[0] if self._more_results else None
        if scores is None:
            scores = self._computed_scores()
        return self._with_joined_axes(scores)

    def _computed_scores(self):
        layer = _copy(self.layer, without=self.method, **WITH_ATTENTION_SCORES)
        attend = getattr(layer, self.method)
        arguments = dict(self.arguments)
        if "return_attention_scores" in inspect.signature(attend).parameters:
            arguments["return_attention_scores"] = True
        _, scores = _call(attend, arguments)
        return scores

    @functools.cached_property
    def mask(self):
        mask = self.arguments.get("attention_mask")
        if mask is not None:
            mask = ops.cast(mask, "bool")
            while len(mask.shape) < self._scores_rank:  # as in the layer: (B, T, S) becomes (B, 1, T, S)
                mask = ops.expand_dims(mask, -2 * self._num_axes - 1)
        if self.arguments.get("use_causal_mask"):
            causal = causal_mask_of_layer(self.layer, self.arguments["query"], self.arguments["value"])
            causal = ops.expand_dims(causal, 1)
            mask = causal if mask is None else ops.logical_and(mask, causal)
        return None if mask is None else self._with_joined_axes(mask)

    @property
    def _num_axes(self):
        axes = attention_axes(self.layer)
        return 1 if axes is None else len(axes)

    @property
    def _scores_rank(self):
        # Queries (B, <axes>, N, H) have scores (B, <other axes>, N, <attended axes of queries, then of keys>).
        return len(self.arguments["query"].shape) - 1 + self._num_axes

    def _with_joined_axes(self, x):
        """Scores or a mask with the attended axes joined: (..., N, T, S)."""
        if self._num_axes == 1:
            return x
        count = self._num_axes
        shape = ops.shape(x)
        num_queries = math.prod(shape[-2 * count : -count])
        num_keys = math.prod(shape[-count:])
        return ops.reshape(x, (*shape[: -2 * count], num_queries, num_keys))

    def output_change(self, score_change):
        if self._num_axes > 1:
            return super().output_change(score_change)
        change = ops.cast(score_change, self.arguments["value"].dtype)
        return ops.einsum(combine_equation(self.layer), change, self.arguments["value"])


class OtherAttentionCall(AttentionCall):
    """A call of any other layer with the call argument `return_attention_scores`, which is called once more."""

    method = "call"

    def _run(self):
        self._tensors = [x for x in keras.tree.flatten(dict(self.arguments)) if ops.is_tensor(x)]
        self._state_before = self._state()
        return super()._run()

    @functools.cached_property
    def scores(self):
        if self.arguments.get("return_attention_scores"):
            scores = self._more_results[0]
        else:
            scores = self._computed_scores()
        if len(scores.shape) == 3:  # a layer without heads has one
            scores = ops.expand_dims(scores, -3)
        return scores

    def _computed_scores(self):
        """The scores of a second call, which changes nothing that the first did not change."""
        state_after = self._state()
        try:
            _restore(*self._state_before)
            _, scores = _call(self._original, {**self.arguments, "return_attention_scores": True})
        finally:
            _restore(*state_after)
        return scores

    def _state(self):
        """What a call may change: random states and moving means of the layer, and the masks of its inputs."""
        variables = [(variable, ops.copy(variable.value)) for variable in self.layer.non_trainable_variables]
        masks = [(tensor, implicit_mask(tensor)) for tensor in self._tensors]
        return variables, masks

    @functools.cached_property
    def mask(self):
        return ops.not_equal(self.scores, 0)


def _copy(layer, without, **attributes):
    """A layer with the same weights and other attributes; the layer itself must not change, since other threads may use it."""
    copy = object.__new__(type(layer))
    copy.__dict__.update(layer.__dict__)
    copy.__dict__.pop(without, None)
    copy.__dict__.update(attributes)
    return copy


def _call(function, arguments):
    """`function` with arguments by name, as `inspect.Signature.bind` found them."""
    bound = inspect.BoundArguments(inspect.signature(function), dict(arguments))
    return function(*bound.args, **bound.kwargs)


def _restore(variables, masks):
    for variable, value in variables:
        variable.assign(value)
    for tensor, mask in masks:
        if mask is not None or implicit_mask(tensor) is not None:
            set_implicit_mask(tensor, mask)
