import copy

import keras
from keras import ops

from keras_attn.layers.base_layer import BaseLayer
from keras_attn.ops import apply_rotary, rotary_frequencies, rows_and_columns, successive_positions


@keras.saving.register_keras_serializable(package="keras_attn")
class RotaryEmbedding(BaseLayer, keras.layers.Layer):
    """Turns the features of queries and keys by their positions, so that attention depends on distances.

    Differs from `keras_hub.layers.RotaryEmbedding`: the head axis comes before the time axis, (B, N, T, H)
    where KerasHub's default is (B, T, N, H); it has both pairings of features, partial rotation and llama3
    scaling; `"dynamic_ntk"` follows the length; and under half precision the products are in float32 too,
    which halves the error.

    The layer has no weights and no state. One layer can be used for the queries and keys of many attention
    layers.

    Args:
        max_wavelength: Float, the longest wavelength in units of 2 pi positions, greater than 1.
        rotary_dim: Even integer d: the first d features of each head are rotated. Defaults to all.
        interleaved: Boolean, whether features (0, 1), (2, 3), ... are the pairs (Su et al. 2021, GPT-J), instead of
            (0, d / 2), (1, d / 2 + 1), ... (GPT-NeoX, LLaMA). It must be as in training.
        scaling: None, or a dict with a `"type"` (`"linear"`, `"dynamic_ntk"`, `"yarn"` or `"llama3"`) and its
            options, for sequences longer than in training: see `keras_attn.ops.rotary_frequencies`.

    Call arguments:
        inputs: Floats (B, N, T, H).
        start_index: Integer, the position of the first time step.
        positions: Integers (T,) or (B, T) that replace 0, 1, 2, ...; with left padding, the first real token
            has position 0.
        length: Integers (B, T) or (B, 1), the length of the sequence that each token is in, which `"dynamic_ntk"` alone
            depends on. Defaults to the largest position + 1. `MultiHeadAttention` passes the number of a row's, or
            segment's, real tokens.

    Returns:
        Floats (B, N, T, H) in the compute dtype.

    Raises:
        ValueError: if an argument is out of range, `rotary_dim` does not fit H, or `positions` do not fit `inputs`.

    Example:

    ```python
    rotary_embedding = keras_attn.layers.RotaryEmbedding()
    query = keras.random.normal((2, 3, 5, 16))
    key = keras.random.normal((2, 3, 5, 16))
    query, key = rotary_embedding(query), rotary_embedding(key)

    # Four times as far as a model was trained, and a single step of decoding.
    scaling = {"type": "yarn", "factor": 4.0, "original_max_sequence_length": 2048}
    rotary_embedding = keras_attn.layers.RotaryEmbedding(scaling=scaling)
    step = rotary_embedding(keras.random.normal((2, 3, 1, 16)), start_index=8000)
    ```

    Reference: [Su et al., 2021](https://arxiv.org/abs/2104.09864), section 3.2.2.
    """

    def __init__(self, max_wavelength=10000, rotary_dim=None, interleaved=False, scaling=None, **kwargs):
        super().__init__(**kwargs)
        # Wrong arguments raise here, not in the first call.
        any_dim = 2 if rotary_dim is None else rotary_dim
        rotary_frequencies(any_dim, max_wavelength, scaling)
        self.max_wavelength = max_wavelength
        self.rotary_dim = rotary_dim
        self.interleaved = interleaved
        self.scaling = scaling if scaling is None else dict(scaling)
        self.supports_masking = True

    def build(self, input_shape):
        size = input_shape[-1]
        rotary_dim = self.rotary_dim or size
        if size is None or rotary_dim % 2 or rotary_dim > size:
            raise ValueError(
                "`rotary_dim` (by default the last axis of the inputs) must be even and at most the last axis. "
                f"Received: rotary_dim={self.rotary_dim}, inputs of shape {tuple(input_shape)}."
            )

    @property
    def depends_on_length(self):
        """True if the frequencies depend on the length of each sequence (`"dynamic_ntk"`).

        Queries and keys must then be rotated together, over the same positions. Keys in a cache were rotated
        with other frequencies, when the sequence was shorter.
        """
        return self.scaling is not None and self.scaling["type"] == "dynamic_ntk"

    def call(self, inputs, start_index=0, positions=None, length=None):
        if positions is None:
            positions = successive_positions(ops.shape(inputs)[-2], start_index)
        if not self.depends_on_length:
            length = None
        elif length is None:
            # For each row: the length of other rows in the batch must not matter.
            length = ops.max(positions, axis=-1, keepdims=True, initial=0) + 1
        else:
            positions = positions + ops.zeros_like(length)  # an angle of its own for each row
        frequencies, attention_factor = rotary_frequencies(
            self.rotary_dim or inputs.shape[-1], self.max_wavelength, self.scaling, length
        )
        return apply_rotary(inputs, positions, frequencies, attention_factor, self.interleaved)

    def get_config(self):
        return {
            **super().get_config(),
            "max_wavelength": self.max_wavelength,
            "rotary_dim": self.rotary_dim,
            "interleaved": self.interleaved,
            "scaling": copy.copy(self.scaling),
        }


@keras.saving.register_keras_serializable(package="keras_attn")
class AxialRotaryEmbedding(BaseLayer, keras.layers.Layer):
    """Rotary positions in two dimensions: half of a head's features turn by the row of a patch, half by its column.

    It goes into the slot `rotary_embedding` of attention layers, like `RotaryEmbedding`. Neither Keras nor KerasHub has it.

    Args:
        max_wavelength: Float, the longest wavelength in units of 2 pi patches, greater than 1; 100 in the paper.

    Call arguments:
        inputs: Floats (B, N, T, H), H divisible by 4.
        positions: Integers (T,) or (B, T) from `keras_attn.ops.grid_positions`, which hold a row and a column. Attention
            that is called without `positions` passes 0, 1, 2, ...: the columns of a single row.

    Returns:
        Floats (B, N, T, H).

    Raises:
        ValueError: if H is not divisible by 4, or `positions` do not fit `inputs`.

    Example:

    ```python
    rotary_embedding = keras_attn.layers.AxialRotaryEmbedding()
    positions = keras_attn.ops.grid_positions(3, 5, num_special_tokens=1)
    query = rotary_embedding(keras.random.normal((2, 3, 16, 8)), positions=positions)
    attention = keras_attn.layers.MultiHeadAttention(3, 8, rotary_embedding=rotary_embedding)
    ```

    Reference: [Heo et al., 2024](https://arxiv.org/abs/2403.13298), section 3.2.
    """

    # No length changes the frequencies, as "dynamic_ntk" does in `RotaryEmbedding`.
    depends_on_length = False

    def __init__(self, max_wavelength=100, **kwargs):
        super().__init__(**kwargs)
        rotary_frequencies(2, max_wavelength)  # A wrong wavelength raises here, not in the first call.
        self.max_wavelength = max_wavelength
        self.supports_masking = True

    def build(self, input_shape):
        if input_shape[-1] is None or input_shape[-1] % 4:
            raise ValueError(
                "The last axis of the inputs must be divisible by 4: a pair of features has a sine and a cosine of the row, "
                f"or of the column. Received: inputs of shape {tuple(input_shape)}."
            )

    def call(self, inputs, positions):
        frequencies, _ = rotary_frequencies(inputs.shape[-1] // 2, self.max_wavelength)
        halves = ops.split(inputs, 2, axis=-1)
        lines = rows_and_columns(positions)
        turned = [apply_rotary(half, line, frequencies) for half, line in zip(halves, lines)]
        return ops.concatenate(turned, axis=-1)

    def get_config(self):
        return {**super().get_config(), "max_wavelength": self.max_wavelength}
