"""The residual connection around a sub-layer: norms, scaling and dropout are implemented only here."""

import keras
from keras import ops

from keras_attn.checks import check_rate
from keras_attn.layers.base_layer import BaseLayer, dense_spec
from keras_attn.layers.clean_padding import clean_padding
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.layer_slots import check_norm, copied, description, with_layers
from keras_attn.layers.normalization import LayerNormalization
from keras_attn.ops import implicit_mask

# The constructor arguments of `Residual` that the blocks also have, and pass on. Each residual connection of
# a block has its own `norm`.
RESIDUAL_ARGUMENTS = ("dropout", "normalize_first", "sandwich_norm", "layer_scale", "stochastic_depth")


@keras.saving.register_keras_serializable(package="keras_attn")
class Residual(BaseLayer, keras.layers.Layer):
    """The residual connection around a sub-layer of a Transformer, with norms, scaling and dropout.

    Post-norm (the paper's): `Norm(x + Dropout(sublayer(x)))`. Pre-norm (`normalize_first=True`):
    `x + Dropout(sublayer(Norm(x)))`. The other arguments act on the branch in this order: sub-layer, second norm,
    layer scale, dropout, stochastic depth.

    Args:
        dropout: Float, the share of the sub-layer's output that is dropped in training.
        normalize_first: Boolean, pre-norm rather than post-norm.
        norm: A norm layer from (B, T, D) to (B, T, D). Defaults to layer norm with an epsilon of 1e-5.
        sandwich_norm: Boolean, whether a second norm, configured like the first, follows the sub-layer:
            `x + Norm(sublayer(Norm(x)))`. Needs `normalize_first`.
        layer_scale: Float, the initial value of a learned factor for each channel of the branch. None for no such
            factor.
        stochastic_depth: Float, the share of samples whose whole branch is dropped in training; the others
            are scaled by `1 / (1 - stochastic_depth)`.

    Call arguments:
        inputs: Floats (B, T, D), the input of the residual branch.
        sublayer: Function from floats (B, T, D) to floats (B, T, D), or to a tuple that starts with them.
        training: Boolean.

    Returns:
        Floats (B, T, D); if `sublayer` returned a tuple, a tuple of them and the rest of it.

    Raises:
        ValueError: for an argument out of range, for arguments that contradict each other, and for a sub-layer that
            changes the shape.

    Example:

    ```python
    residual = keras_attn.layers.Residual(dropout=0.1, normalize_first=True, stochastic_depth=0.2)
    y = residual(keras.random.normal((2, 5, 16)), sublayer=keras.layers.Dense(16))
    ```

    References: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 5.4;
    [Xiong et al., 2020](https://arxiv.org/abs/2002.04745), pre-norm;
    [Ding et al., 2021](https://arxiv.org/abs/2105.13290), the second norm (used by Gemma 2 and 3);
    [Touvron et al., 2021](https://arxiv.org/abs/2103.17239), section 2, layer scale (used by DINOv2);
    [Huang et al., 2016](https://arxiv.org/abs/1603.09382), stochastic depth (used by Swin).
    """

    def __init__(
        self,
        dropout=0.0,
        normalize_first=False,
        norm=None,
        sandwich_norm=False,
        layer_scale=None,
        stochastic_depth=0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.dropout = dropout
        self.normalize_first = normalize_first
        self.sandwich_norm = sandwich_norm
        self.layer_scale = layer_scale
        self.stochastic_depth = stochastic_depth
        check_residual(self)
        self.norm = check_norm("norm", norm) or default_norm("norm", self.dtype_policy)
        self.output_norm = None
        if sandwich_norm:
            self.output_norm = copied(self.norm, "output_norm")
        self._dropout_layer = Dropout(dropout, dtype=self.dtype_policy)
        self.supports_masking = True

    def build(self, input_shape):
        for norm in (self.norm, self.output_norm):
            if norm is not None and not norm.built:
                norm.build(input_shape)
        self._channel_scale = None
        if self.layer_scale is not None:
            self._channel_scale = self.add_weight(
                shape=input_shape[-1:],
                initializer=keras.initializers.Constant(self.layer_scale),
                name="layer_scale",
            )
        self._stochastic_depth_layer = keras.layers.Dropout(
            self.stochastic_depth,
            noise_shape=(None,) + (1,) * (len(input_shape) - 1),
            dtype=self.dtype_policy,
        )

    def call(self, inputs, sublayer, training=None):
        inputs = clean_padding(inputs, implicit_mask(inputs))
        result = sublayer(self.before(inputs))
        if not isinstance(result, tuple):
            return self.after(inputs, result, training)
        output = self.after(inputs, result[0], training)
        return (output, *result[1:]) if len(result) > 1 else output

    def compute_output_spec(self, inputs, *args, **kwargs):
        # Traced as a function of the inputs alone: JAX would take the sub-layer for a tensor.
        call = _OneInput(lambda x: self.call(x, *args, **kwargs))
        return call.compute_output_spec(dense_spec(inputs))

    def before(self, inputs):
        """The inputs of the sub-layer, (B, T, D)."""
        return self.norm(inputs) if self.normalize_first else inputs

    def after(self, inputs, update, training=None):
        """The sum of `inputs` (B, T, D) and the output of the sub-layer, `update`."""
        _check_same_shape(inputs, update)
        output = inputs + self._branch(update, training)
        return output if self.normalize_first else self.norm(output)

    def _branch(self, update, training):
        if self.output_norm is not None:
            update = self.output_norm(update)
        if self._channel_scale is not None:
            update = ops.multiply(update, self._channel_scale)
        update = self._dropout_layer(update, training=training)
        if self.stochastic_depth:
            update = self._stochastic_depth_layer(update, training=training)
        return update

    @classmethod
    def from_config(cls, config):
        """The layer that a config describes, with a new norm."""
        return cls(**with_layers(config, ["norm"]))

    def get_config(self):
        config = {name: getattr(self, name) for name in RESIDUAL_ARGUMENTS}
        return {**super().get_config(), **config, "norm": description(self.norm)}


class _OneInput(keras.Operation):
    """A function of a tensor as an operation of Keras, which describes its outputs."""

    def __init__(self, function):
        super().__init__()
        self.call = function


def default_norm(name, dtype):
    """The default norm of a residual connection."""
    return LayerNormalization(epsilon=1e-5, dtype=dtype, name=name)


def check_residual(layer):
    """Raises ValueError unless the attributes of `layer` named in `RESIDUAL_ARGUMENTS` make a residual connection."""
    check_rate("dropout", layer.dropout)
    check_rate("stochastic_depth", layer.stochastic_depth)
    if layer.layer_scale is not None and (not _is_number(layer.layer_scale) or layer.layer_scale < 0):
        raise ValueError(
            f"`layer_scale` must be None or a number of at least 0. Received: layer_scale={layer.layer_scale}."
        )
    if layer.sandwich_norm and not layer.normalize_first:
        raise ValueError(
            "`sandwich_norm` needs `normalize_first=True`: post-norm has its norm after the sub-layer already. "
            f"Received: sandwich_norm={layer.sandwich_norm}, normalize_first={layer.normalize_first}."
        )
    if layer.layer_scale is not None and layer.sandwich_norm:
        raise ValueError(
            "`layer_scale` cannot be combined with `sandwich_norm`, whose second norm has such a factor. "
            f"Received: layer_scale={layer.layer_scale}, sandwich_norm={layer.sandwich_norm}."
        )


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_same_shape(inputs, update):
    """Without this check an axis of size 1 would broadcast without an error."""
    has_same_rank = len(inputs.shape) == len(update.shape)
    sizes = zip(inputs.shape, update.shape)
    if not has_same_rank or any(None not in pair and pair[0] != pair[1] for pair in sizes):
        raise ValueError(
            "A sub-layer must return the shape of its inputs. "
            f"Received: inputs of shape {tuple(inputs.shape)}, output of shape {tuple(update.shape)}."
        )
