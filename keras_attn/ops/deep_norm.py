"""The two constants of DeepNorm, which keep post-norm Transformers of any depth stable."""

import collections

DeepNormScales = collections.namedtuple("DeepNormScales", ["alpha", "beta"])
DeepNormScales.__doc__ = """`alpha` multiplies the skip connections of a stack, `beta` the initial values of its
value, output and feed-forward projections."""


def deep_norm_scales(num_encoder_layers=None, num_decoder_layers=None):
    """The constants for the encoder and for the decoder of a post-norm Transformer of so many layers.

    A block takes them as `residual_scale=alpha` and `initializer_gain=beta`; the paper initialises with
    `kernel_initializer="glorot_normal"`. The stacks of an encoder-decoder need other constants than either alone.

    Args:
        num_encoder_layers: Integer N, or None for a model without an encoder.
        num_decoder_layers: Integer M, or None for a model without a decoder.

    Returns:
        A pair, for encoder and decoder: `DeepNormScales(alpha, beta)`, or None for the stack that is not there.

    Raises:
        ValueError: if no number is given, or one that is not a positive integer.

    Example:

    ```python
    encoder, _ = deep_norm_scales(num_encoder_layers=8)  # alpha = (2 * 8) ** 0.25 = 2
    block = keras_attn.layers.EncoderBlock(
        64, 4, residual_scale=encoder.alpha, initializer_gain=encoder.beta, kernel_initializer="glorot_normal"
    )
    ```

    Reference: [Wang et al., 2022](https://arxiv.org/abs/2203.00555), figure 2.
    """
    for name, value in (
        ("num_encoder_layers", num_encoder_layers),
        ("num_decoder_layers", num_decoder_layers),
    ):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value <= 0):
            raise ValueError(f"`{name}` must be a positive integer or None. Received: {name}={value}.")
    if num_encoder_layers is None and num_decoder_layers is None:
        raise ValueError("`num_encoder_layers` or `num_decoder_layers` must be given. Received: None.")
    if num_decoder_layers is None:
        return _of_one_stack(num_encoder_layers), None
    if num_encoder_layers is None:
        return None, _of_one_stack(num_decoder_layers)
    product = (num_encoder_layers**4 * num_decoder_layers) ** (1 / 16)
    return (
        DeepNormScales(alpha=0.81 * product, beta=0.87 / product),
        DeepNormScales(alpha=(3 * num_decoder_layers) ** 0.25, beta=(12 * num_decoder_layers) ** -0.25),
    )


def _of_one_stack(num_layers):
    return DeepNormScales(alpha=(2 * num_layers) ** 0.25, beta=(8 * num_layers) ** -0.25)
