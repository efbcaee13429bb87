import math

import keras
from keras import ops

from keras_attn.checks import check_pair, check_positive, check_rate
from keras_attn.layers.dropout import score_dropout
from keras_attn.layers.lora_and_quantization import Adaptable
from keras_attn.ops import (
    MaskRule,
    as_boolean_mask,
    attend,
    check_mask_shape,
    combine_masks,
    complete_windows,
    implicit_mask,
    keep,
    mask_poison,
    partition_windows,
    poisoned,
    reverse_windows,
    shift_of_several_windows,
    window_mask,
    window_position_bias,
    with_exact_sizes,
)


@keras.saving.register_keras_serializable(package="keras_attn")
class WindowAttention(Adaptable, keras.layers.Layer):
    """Self-attention of an image's pixels within windows: Swin's W-MSA, or SW-MSA if `shift_size` is not 0.

    The cost grows with the number of pixels, not with its square. Shifting the windows in every other layer
    connects pixels that were in different windows before. A learned bias is added to the logits for each
    offset between pixels.

    Neither Keras nor KerasHub has such a layer. It differs from the published code (and transformers' `SwinLayer`)
    if the image is not a whole number of windows: here the padding of the last windows is masked, so that
    pixels attend only to pixels; there, and here with `attend_to_padding`, pixels also attend to the padding. An
    axis of the image that one window covers is not shifted. A window larger than the image is padded too: the bias
    keeps its size, and the output is that of a window as large as the image.

    Args:
        num_heads: Integer N, the number of attention heads.
        key_dim: Integer H, the size of each head; D / N in the paper.
        window_size: Integer or pair of integers, the height and width of a window in pixels.
        shift_size: Integer or pair of integers, how far the grid of windows is moved down and to the right, less than
            a window; half a window in every other layer of the paper.
        use_bias: Boolean, whether the projections have biases.
        dropout: Float, the share of attention scores dropped in training.
        kernel_initializer, bias_initializer: Initializers of the projections.
        seed: Integer seed of the dropout.
        attend_to_padding: Boolean, whether the edges of an image are those of the published code, as weights that were
            trained with it need: pixels also attend to the zeros that complete the last windows, and neither axis is
            shifted if one window covers either.
        use_output_bias: Boolean, whether the output projection has a bias. Defaults to `use_bias`.

    Call arguments:
        inputs: Float tensor (B, height, width, D). The sizes of the image may differ from call to call.
        return_attention_scores: Boolean.
        training: Boolean, whether dropout is applied.
        padding_mask: Boolean, or 0 and 1 of any dtype, (B, height, width), True at real pixels; the others attend to
            nothing, and no pixel attends to them. An implicit Keras mask is joined with "and".
        mask: The padding mask as Keras hands it on, within `TimeDistributed` for instance; both hold.

    Returns:
        The output, float (B, height, width, D); then, if `return_attention_scores`, the attention scores
        (B, W, N, T, T) in W windows of T pixels, both counted row by row, of the shifted and padded image.

    Raises:
        ValueError: if an argument is out of range, the mask has another shape or holds values other than 0 and 1.

    Example:

    ```python
    images = keras.random.normal((2, 14, 14, 32))
    images = images + keras_attn.layers.WindowAttention(num_heads=4, key_dim=8, window_size=7)(images)
    shifted = keras_attn.layers.WindowAttention(num_heads=4, key_dim=8, window_size=7, shift_size=3)
    images = images + shifted(images)
    ```

    Reference: [Liu et al., 2021](https://arxiv.org/abs/2103.14030), section 3.2.
    """

    _MASK_ARGUMENTS = (("inputs", "padding_mask"),)

    def __init__(
        self,
        num_heads,
        key_dim,
        window_size,
        shift_size=0,
        use_bias=True,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        seed=None,
        attend_to_padding=False,
        use_output_bias=None,
        **kwargs,
    ):
        check_positive("num_heads", num_heads)
        check_positive("key_dim", key_dim)
        check_rate("dropout", dropout)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.window_size = check_pair("window_size", window_size)
        self.shift_size = check_pair("shift_size", shift_size, lowest=0)
        if any(shift >= window for shift, window in zip(self.shift_size, self.window_size)):
            raise ValueError(
                "`shift_size` must be less than `window_size`. "
                f"Received: shift_size={shift_size}, window_size={window_size}."
            )
        self.use_bias = use_bias
        self.dropout = dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.seed = seed
        self.attend_to_padding = attend_to_padding
        self.use_output_bias = use_output_bias
        if dropout:
            self._seed_generator = keras.random.SeedGenerator(seed)

    def build(self, input_shape):
        if len(input_shape) != 4:
            raise ValueError(
                f"`inputs` must have the shape (B, height, width, D). Received: shape {tuple(input_shape)}."
            )
        num_features = input_shape[-1]
        windows_shape = (input_shape[0], None, math.prod(self.window_size), num_features)
        heads_shape = (*windows_shape[:-1], self.num_heads, self.key_dim)
        for name in ("query", "key", "value"):
            dense = self._projection(name, "bwtd,dnh->bwtnh", windows_shape, heads_shape, "nh", self.use_bias)
            setattr(self, f"{name}_dense", dense)
        has_output_bias = self.use_bias if self.use_output_bias is None else self.use_output_bias
        self.output_dense = self._projection(
            "attention_output", "bwtnh,nhd->bwtd", heads_shape, windows_shape, "d", has_output_bias
        )
        self.relative_position_bias = self.add_weight(
            name="relative_position_bias",
            shape=(math.prod(2 * size - 1 for size in self.window_size), self.num_heads),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),  # as in the published code
            autocast=False,  # the logits that it is added to are float32
        )

    def call(self, inputs, return_attention_scores=False, training=None, padding_mask=None):
        _, height, width, _ = ops.shape(inputs)
        poison = mask_poison(padding_mask)
        padding_mask = self._real_pixels(inputs, padding_mask)
        if padding_mask is not None:
            # Zeros before the projections, so that a NaN in padding does not reach the weights' gradients.
            inputs = keep(inputs, ops.expand_dims(padding_mask, -1))
        shift_size = self.shift_size
        if self.attend_to_padding:
            shift_size = shift_of_several_windows((height, width), self.window_size, shift_size)
            if padding_mask is not None:
                padding_mask = self._with_complete_windows(padding_mask)
            inputs = complete_windows(inputs, self.window_size)
        _, full_height, full_width, _ = ops.shape(inputs)
        mask = window_mask(full_height, full_width, self.window_size, shift_size, padding_mask)
        if mask is not None:
            mask = ops.expand_dims(mask, -3)
        windows = partition_windows(inputs, self.window_size, shift_size)
        output, scores = attend(
            _swap_heads(self.query_dense(windows)),
            _swap_heads(self.key_dense(windows)),
            _swap_heads(self.value_dense(windows)),
            mask=MaskRule(pairs=mask, keys_are_finite=True),
            bias=window_position_bias(ops.convert_to_tensor(self.relative_position_bias), self.window_size),
            dropout=score_dropout(self, training),
            return_attention_scores=return_attention_scores,
            memory_efficient=False,
            flash_attention=False,
        )
        windows = self.output_dense(_swap_heads(output))
        images = reverse_windows(windows, full_height, full_width, self.window_size, shift_size)
        output = poisoned(images[:, :height, :width], poison)
        if not return_attention_scores:
            return output
        return output, poisoned(scores, poison)

    def _real_pixels(self, inputs, padding_mask):
        padding_mask = combine_masks(as_boolean_mask(padding_mask, "padding_mask"), implicit_mask(inputs))
        if padding_mask is not None:
            check_mask_shape(padding_mask, inputs.shape[:-1], "padding_mask", exact_axes=2)
            padding_mask = with_exact_sizes(
                padding_mask, inputs, range(1, len(inputs.shape) - 1), "padding_mask"
            )
        return padding_mask

    def _with_complete_windows(self, padding_mask):
        """A padding mask that does not count the pixels that complete the windows as padding."""
        is_padding = ops.expand_dims(ops.cast(ops.logical_not(padding_mask), "int32"), -1)
        return complete_windows(is_padding, self.window_size)[..., 0] == 0

    def _projection(self, name, equation, input_shape, output_shape, bias_axes, has_bias):
        if not has_bias:
            bias_axes = None
        layer = keras.layers.EinsumDense(
            equation,
            output_shape=output_shape[1:],
            bias_axes=bias_axes,
            **self._sublayer_options(name),
        )
        layer.build(input_shape)
        return layer

    def _parts(self):
        return [self.query_dense, self.key_dense, self.value_dense, self.output_dense]

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def compute_output_spec(
        self, inputs, return_attention_scores=False, training=None, padding_mask=None, mask=None
    ):
        output = keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        sizes = inputs.shape[1:3]
        num_pixels = math.prod(self.window_size)
        num_windows = None
        if None not in sizes:
            num_windows = math.prod(-(-size // window) for size, window in zip(sizes, self.window_size))
        scores_shape = (inputs.shape[0], num_windows, self.num_heads, num_pixels, num_pixels)
        return output, keras.KerasTensor(scores_shape, dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "window_size": self.window_size,
            "shift_size": self.shift_size,
            "use_bias": self.use_bias,
            "dropout": self.dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "seed": self.seed,
            "attend_to_padding": self.attend_to_padding,
            "use_output_bias": self.use_output_bias,
        }


def _swap_heads(x):
    """(B, W, T, N, H) <-> (B, W, N, T, H)."""
    return ops.swapaxes(x, 2, 3)
