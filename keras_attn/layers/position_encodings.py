import keras
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.layers.base_layer import BaseLayer
from keras_attn.layers.masks import combined_padding_mask
from keras_attn.ops import indices_within, sinusoidal_encoding, successive_positions, token_positions


class _AddedEncoding(BaseLayer, keras.layers.Layer):
    """The base of encodings that are added to a sequence."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs, start_index=0, positions=None, padding_mask=None):
        return _repeat_for_batch(self.encoding(inputs, start_index, positions, padding_mask), inputs)

    def encoding(self, inputs, start_index=0, positions=None, padding_mask=None):
        """What a call returns, without the batch axis if it is the same for all rows: floats (T, D) or (B, T, D).

        Args:
            inputs, start_index, positions, padding_mask: As in a call.
        """
        if positions is not None:
            return ops.cast(self._encode(inputs, positions), self.compute_dtype)
        token_rows = _counted_positions(inputs, padding_mask)
        encoding = ops.cast(self._encode_successive(inputs, start_index), self.compute_dtype)
        # Sines of all tokens' own positions would take many times as long as the rows of one encoding.
        return encoding if token_rows is None else ops.take(encoding, token_rows, axis=0)

    def compute_output_shape(self, input_shape):
        # Declared, so that Keras does not trace the call. For an unknown length, Keras on PyTorch would trace with one that
        # may be past the last position.
        return tuple(input_shape)


@keras.saving.register_keras_serializable(package="keras_attn")
class SinusoidalPositionEncoding(_AddedEncoding):
    """The Transformer's fixed sines and cosines, which are added to a sequence.

    Angles are computed in float32 under every dtype policy. The mask that Keras carries on the inputs is carried on, so
    that `keras.layers.Add` keeps it; `x + encoding(x)` computes the same sum, but Keras drops the mask at `+`.

    Args:
        max_wavelength: Float, the longest wavelength in units of 2 pi positions.
        interleaved: Boolean, whether sines are in the even channels and cosines in the odd ones, as in the paper;
            otherwise all sines come first, as in Marian and fairseq.
        first_position: Integer, the number that stands for position 0; 2 in M2M-100, whose positions follow those
            of special tokens.

    Call arguments:
        inputs: Floats (B, T, D).
        start_index: Integer, the position of the first time step.
        positions: Integers (T,) or (B, T). By default they are those of `keras_attn.ops.token_positions`, after
            `start_index`: 0, 1, 2, ... from a row's first real token on.
        padding_mask: Boolean (B, T), True at real tokens. A mask that Keras carries on `inputs` is honoured too.

    Returns:
        Floats (B, T, D), the same for all rows that have no mask and no positions of their own, in the compute dtype; add them
        to `inputs`.

    Example:

    ```python
    x = keras.random.normal((2, 5, 16))
    x = keras.layers.Add()([x, keras_attn.layers.SinusoidalPositionEncoding()(x)])
    ```

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.5.
    """

    def __init__(self, max_wavelength=10000, interleaved=True, first_position=0, **kwargs):
        super().__init__(**kwargs)
        if not max_wavelength > 0:
            raise ValueError(f"`max_wavelength` must be positive. Received: max_wavelength={max_wavelength}.")
        self.max_wavelength = max_wavelength
        self.interleaved = interleaved
        self.first_position = first_position

    def build(self, input_shape):
        pass

    def _encode(self, inputs, positions):
        positions = positions + self.first_position
        return sinusoidal_encoding(positions, inputs.shape[-1], self.max_wavelength, self.interleaved)

    def _encode_successive(self, inputs, start_index):
        return self._encode(inputs, successive_positions(ops.shape(inputs)[-2], start_index))

    def get_config(self):
        return {
            **super().get_config(),
            "max_wavelength": self.max_wavelength,
            "interleaved": self.interleaved,
            "first_position": self.first_position,
        }


@keras.saving.register_keras_serializable(package="keras_attn")
class PositionEmbedding(_AddedEncoding):
    """A learned vector for each position, which is added to a sequence.

    The mask that Keras carries on the inputs is carried on, so that `keras.layers.Add` keeps it; `x + embedding(x)`
    computes the same sum, but Keras drops the mask at `+`.

    Args:
        max_sequence_length: Integer, the number of positions.
        initializer: Initializer of the vectors.

    Call arguments:
        inputs: Floats (B, T, D).
        start_index: Integer, the position of the first time step.
        positions: Integers (T,) or (B, T). By default they are those of `keras_attn.ops.token_positions`, after
            `start_index`: 0, 1, 2, ... from a row's first real token on.
        padding_mask: Boolean (B, T), True at real tokens. A mask that Keras carries on `inputs` is honoured too.

    Returns:
        Floats (B, T, D), the same for all rows that have no mask and no positions of their own; add them to `inputs`.

    Raises:
        ValueError: if the sequence is longer than `max_sequence_length`, or a position is out of range. A
            TensorFlow graph raises an `InvalidArgumentError` when it runs; where a compiler cannot raise (XLA, JAX), and in
            graphs that are served, the nearest position is taken.

    Example:

    ```python
    x = keras.random.normal((2, 5, 16))
    x = keras.layers.Add()([x, keras_attn.layers.PositionEmbedding(max_sequence_length=64)(x)])
    ```

    Reference: [Gehring et al., 2017](https://arxiv.org/abs/1705.03122), section 3.1.
    """

    def __init__(self, max_sequence_length, initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        check_positive("max_sequence_length", max_sequence_length)
        self.max_sequence_length = max_sequence_length
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape):
        self.position_embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_sequence_length, input_shape[-1]),
            initializer=self.initializer,
            autocast=False,  # `encoding` casts the vectors that it takes, not the table
        )

    def _encode(self, inputs, positions):
        return self._take(indices_within(positions, self.max_sequence_length, "Positions"))

    def _encode_successive(self, inputs, start_index):
        return self._take(self._checked_positions(inputs, start_index))

    def _take(self, positions):
        return ops.take(ops.convert_to_tensor(self.position_embeddings), positions, axis=0)

    def _checked_positions(self, inputs, start_index):
        length = inputs.shape[-2]
        size = self.max_sequence_length
        if isinstance(length, int) and length > size:
            raise ValueError(
                f"The sequence is longer than `max_sequence_length`. Received: length {length}, "
                f"max_sequence_length={size}. Truncate it or build the layer for more positions."
            )
        positions = successive_positions(ops.shape(inputs)[-2], start_index)
        if isinstance(length, int) and isinstance(start_index, int) and 0 <= start_index <= size - length:
            return positions
        return indices_within(
            positions, size, "A sequence must be no longer than `max_sequence_length`: its positions"
        )

    def get_config(self):
        return {
            **super().get_config(),
            "max_sequence_length": self.max_sequence_length,
            "initializer": keras.initializers.serialize(self.initializer),
        }


def _repeat_for_batch(encoding, inputs):
    """The encoding (T, D) or (B, T, D) of `inputs` (B, T, D) with their shape."""
    return ops.broadcast_to(encoding, ops.shape(inputs))


def _counted_positions(inputs, padding_mask):
    """The positions of the tokens of rows with a padding mask, see `token_positions`; None without a mask."""
    padding_mask = combined_padding_mask(padding_mask, inputs, "padding_mask")
    return None if padding_mask is None else token_positions(padding_mask)
