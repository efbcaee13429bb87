"""The base of encoder and decoder blocks: their arguments, the sub-layers that are built or given, and their common steps."""

import functools
import inspect

import keras
from keras import ops

from keras_attn.checks import check_positive, check_rank, check_rate
from keras_attn.layers.activations import get_activation, serialize_activation
from keras_attn.layers.clean_padding import on_clean_sequences
from keras_attn.layers.feed_forward import FeedForward
from keras_attn.layers.layer_slots import (
    Slotted,
    build_layer,
    check_layer,
    copied,
    has_argument,
    is_attention,
)
from keras_attn.layers.multi_head_attention import MultiHeadAttention
from keras_attn.layers.residual import RESIDUAL_ARGUMENTS, Residual, check_residual, default_norm


class Block(Slotted, keras.layers.Layer):
    """The base of `EncoderBlock`, which describes the arguments, and of `DecoderBlock`."""

    # The constructor arguments that take a layer.
    _SLOTS = ("self_attention", "feed_forward", "norm", "self_attention_norm")
    _ADVICE_FOR_LISTS = ""
    _IS_TRACED = True  # `compute_output_shape` does not describe scores and caches

    def __init__(
        self,
        intermediate_dim=None,
        num_heads=None,
        dropout=0.0,
        activation="relu",
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        normalize_first=False,
        attention_dropout=0.0,
        gated=False,
        sandwich_norm=False,
        layer_scale=None,
        stochastic_depth=0.0,
        parallel=False,
        remat=False,
        self_attention=None,
        feed_forward=None,
        norm=None,
        self_attention_norm=None,
        **kwargs,
    ):
        for name in kwargs:
            if self._advice(name) or has_argument(self, name):
                raise ValueError(self._unknown(name, "the constructor"))
        super().__init__(**kwargs)
        self.intermediate_dim = check_positive("intermediate_dim", intermediate_dim, optional=True)
        self.num_heads = check_positive("num_heads", num_heads, optional=True)
        self.dropout = dropout
        self.activation = get_activation(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.normalize_first = normalize_first
        self.attention_dropout = check_rate("attention_dropout", attention_dropout)
        self.gated = gated
        self.sandwich_norm = sandwich_norm
        self.layer_scale = layer_scale
        self.stochastic_depth = stochastic_depth
        self.parallel = parallel
        self.remat = remat
        self.self_attention = check_layer("self_attention", self_attention)
        self.feed_forward = check_layer("feed_forward", feed_forward)
        check_layer("norm", norm)
        # Not an attribute: Keras would track it as a sub-layer, but each residual has a copy.
        self._norm = lambda: norm
        check_layer("self_attention_norm", self_attention_norm)
        self._self_attention_norm = lambda: self_attention_norm
        self.supports_masking = True
        self._check_arguments()

    def __call__(self, *args, **kwargs):
        for name in kwargs:
            if self._advice(name) and not has_argument(self, name):
                raise TypeError(self._unknown(name, "a call"))
        names = inspect.signature(self.call).parameters
        self._check_given(dict(zip(names, args)) | kwargs)
        return super().__call__(*args, **kwargs)

    def _check_given(self, arguments):
        """Refuses a call before the block is built for it: the next call may be right.

        Args:
            arguments: Dict from names to what was given.
        """
        name = self._MASK_ARGUMENTS[0][0]
        sequence = arguments.get(name)
        if isinstance(sequence, (list, tuple)) and any(hasattr(item, "shape") for item in sequence):
            raise ValueError(
                f"`{name}` must be one tensor (B, T, D). Received: {len(sequence)} in a {type(sequence).__name__}."
                f"{self._ADVICE_FOR_LISTS}"
            )

    def _advice(self, name):
        """What to do in place of passing an argument of this name, which other layers have, or None."""
        return None

    def _unknown(self, name, where):
        advice = f"Pass it to a call: `block(x, {name}=...)`."
        if not has_argument(self, name):
            advice = self._advice(name)
        return f"`{name}` is not an argument of {where} of `{type(self).__name__}`. {advice}"

    @property
    def norm(self):
        """The layer that describes the norms, or None."""
        return self._norm()

    @property
    def self_attention_norm(self):
        """The layer that describes the norm of self-attention if it differs from the others, or None."""
        return self._self_attention_norm()

    def _check_arguments(self):
        check_residual(self)
        if self.parallel and not self.normalize_first:
            raise ValueError(
                "`parallel` needs `normalize_first=True`: the sub-layers share the norm before them. "
                f"Received: parallel={self.parallel}, normalize_first={self.normalize_first}."
            )
        if self.feed_forward is None and self.intermediate_dim is None:
            raise ValueError("`intermediate_dim` or `feed_forward` must be given. Received: neither.")
        if self.self_attention is None:
            self._check_num_heads("self_attention")
        elif self.attention_dropout:
            raise ValueError(
                "`attention_dropout` is for attention layers that the block builds; give it to the layer. "
                f"Received: attention_dropout={self.attention_dropout}, self_attention={self.self_attention.name!r}."
            )

    def _check_num_heads(self, slot):
        if self.num_heads is None:
            raise ValueError(f"`num_heads` or `{slot}` must be given. Received: num_heads=None.")

    def _check_axes(self, slot, name, shape):
        """Refuses a sequence of other axes than (B, T, D), except for a given layer that says what it does with them."""
        attention = getattr(self, slot)
        is_ours = isinstance(attention, MultiHeadAttention)
        if attention is not None and not (is_ours and attention.attention_axes is None):
            return
        hint = ""
        if len(shape) > 3:
            hint = (
                " Attention would be over all axes between at once. For one of them, pass a layer such as "
                f"`MultiHeadAttention(num_heads, key_dim, attention_axes=2)` as `{slot}`; for a block on each "
                "(T, D) alone, take `keras.layers.TimeDistributed(block)`."
            )
        check_rank(name, shape, "(B, T, D)", hint)

    def _attention_layer(self, slot, query_shape, value_shape):
        """The attention layer of a slot: the one that was given, or one that is built here."""
        given = getattr(self, slot)
        if given is not None:
            shapes = (query_shape, value_shape) if is_attention(given) else (query_shape,)
            build_layer(given, *shapes, dtype=self.compute_dtype)
            return given
        self._check_num_heads(slot)
        hidden_dim = query_shape[-1]
        if hidden_dim % self.num_heads:
            raise ValueError(
                "The last axis of the inputs must be divisible by `num_heads`. "
                f"Received: {hidden_dim} features, num_heads={self.num_heads}."
            )
        layer = MultiHeadAttention(
            num_heads=self.num_heads,
            key_dim=hidden_dim // self.num_heads,
            dropout=self.attention_dropout,
            **self._sublayer_options(slot, self.dtype_policy),
        )
        layer.build(query_shape, value_shape)
        return layer

    def _build_feed_forward(self, input_shape):
        self.feed_forward_layer = self.feed_forward
        if self.feed_forward is None:
            self.feed_forward_layer = FeedForward(
                self.intermediate_dim,
                activation=self.activation,
                gated=self.gated,
                **self._sublayer_options("feed_forward", self.dtype_policy),
            )
        build_layer(self.feed_forward_layer, input_shape, dtype=self.compute_dtype)
        if not self.parallel:
            self._feed_forward_residual = self._residual("feed_forward", input_shape)

    def _residual(self, sublayer, input_shape):
        norm = self.norm
        if sublayer == "self_attention" and self.self_attention_norm is not None:
            norm = self.self_attention_norm
        norm = default_norm("norm", self.dtype_policy) if norm is None else copied(norm, "norm")
        options = {name: getattr(self, name) for name in RESIDUAL_ARGUMENTS}
        layer = Residual(norm=norm, dtype=self.dtype_policy, name=f"{sublayer}_residual", **options)
        layer.build(input_shape)
        return layer

    def _run(self, call, sequences, tokens, *, recomputes):
        """What `_forward` of a subclass returns for sequences with zeros at their padding.

        Args:
            call: What the call was given besides sequences; it has the attribute `training`.
            sequences: List of floats (B, T, D).
            tokens: List of the `TokenInfo` of each sequence.
            recomputes: Boolean, whether activations are computed again in the gradient.
        """
        forward = functools.partial(self._forward, call)
        forward = on_clean_sequences(forward, [info.real_tokens for info in tokens])
        if recomputes:
            return recompute_in_gradient(self, forward, call.training, *sequences)
        return forward(*sequences)

    def _forward_self_attention(self, call, x):
        """`x` after self-attention, and the list of its other results."""
        update, results = self._self_attend(call, self._self_attention_residual.before(x))
        return self._self_attention_residual.after(x, update, call.training), results

    def _forward_feed_forward(self, call, x):
        return self._feed_forward_residual(x, sublayer=self.feed_forward_layer, training=call.training)

    def _forward_parallel(self, call, x):
        """As `_forward_self_attention`, with the feed-forward network beside self-attention in one branch."""
        normed = self._self_attention_residual.before(x)
        update, results = self._self_attend(call, normed)
        update = update + self.feed_forward_layer(normed)
        return self._self_attention_residual.after(x, update, call.training), results

    @property
    def residual_norms(self):
        """The norms of the residual connections, in the order of the sub-layers."""
        names = ("_self_attention_residual", "_cross_attention_residual", "_feed_forward_residual")
        return [getattr(self, name).norm for name in names if hasattr(self, name)]

    def _parts(self):
        return [self.self_attention_layer, self.feed_forward_layer]

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "num_heads": self.num_heads,
            "activation": serialize_activation(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "attention_dropout": self.attention_dropout,
            "gated": self.gated,
            **{name: getattr(self, name) for name in RESIDUAL_ARGUMENTS},
            "parallel": self.parallel,
            "remat": self.remat,
        }


def output_and_rest(result):
    """The output of a layer, and the list of its other results."""
    if isinstance(result, tuple):
        return result[0], list(result[1:])
    return result, []


def recompute_in_gradient(layer, function, training, *tensors):
    """`function(*tensors)`, whose intermediate results are not kept for the gradient but computed again.

    `keras.remat` alone draws different dropout in the second pass on TensorFlow and torch, and cannot change
    a variable on JAX. Here every seed of `layer` has the same value at the start of both passes; variables
    that `function` assigns (seeds, moving statistics) change once; losses added inside it count once.

    Args:
        layer: The layer whose `call` this is; it holds all layers that `function` calls.
        function: Function of `tensors` that returns a tensor, or a structure of tensors that starts with a float.
            Any other float with a gradient that it uses must be a weight.
        training: Boolean or None, of the call. Layers in `function` that do not get it as an argument take it
            from Keras, in both passes.
        tensors: Float tensors.

    Returns:
        The result of `function(*tensors)`.
    """
    weights = {id(weight) for weight in layer.weights}
    # Not the weights: they do not change between the two passes, and under autocast their values are rounded.
    seeds = [variable for variable in layer.variables if id(variable) not in weights]
    start = [(seed, ops.copy(seed.value)) for seed in seeds]
    first_pass = {}
    in_call = _InCall(function, dtype=layer.dtype_policy, autocast=False, name="in_call")

    def run_from_start(*tensors):
        with _Overlay(start, collect_losses=True, initialize_variables=False) as scope:
            outputs = in_call(*tensors, training=training)
        if not first_pass:
            first_pass["structure"] = keras.tree.map_structure(lambda _: 0, outputs)
            first_pass["changed"] = [v for v in layer.variables if id(v) in scope.state_mapping]
        values = [scope.state_mapping[id(variable)] for variable in first_pass["changed"]]
        return tuple(keras.tree.flatten(outputs) + list(scope.losses) + values)

    results = list(keras.remat(run_from_start)(*tensors))
    structure = first_pass["structure"]
    changed = first_pass["changed"]
    outputs = [results.pop(0) for _ in keras.tree.flatten(structure)]
    for variable in reversed(changed):
        variable.assign(results.pop())
    layer.add_loss(results)
    return keras.tree.pack_sequence_as(structure, outputs)


class _InCall(keras.layers.Layer):
    """A function as a layer, because the second pass runs when the call of the outer layer has ended."""

    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self._function = function

    def call(self, *tensors, training=None):
        return self._function(*tensors)


class _Overlay(keras.StatelessScope):
    """A stateless scope that reads values it does not have from an outer stateless scope, if there is one."""

    def get_current_value(self, variable):
        value = super().get_current_value(variable)
        if value is None and self.original_scope is not None:
            value = self.original_scope.get_current_value(variable)
        return value
