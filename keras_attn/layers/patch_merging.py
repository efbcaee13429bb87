import keras
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.layers.normalization import LayerNormalization
from keras_attn.layers.projection import Dense
from keras_attn.layers.slots import Slotted, build_layer, check_layer
from keras_attn.ops import complete_windows


@keras.saving.register_keras_serializable(package="keras_attn")
class PatchMerging(Slotted, keras.layers.Layer):
    """An image of half the height and width: the vectors of 2 x 2 neighbours, joined, normalised and projected.

    Args:
        hidden_dim: Integer, the size of the new vectors. Defaults to twice that of the old ones.
        norm: Norm layer of the joined vectors. Defaults to layer norm with an epsilon of 1e-5.

    Call arguments:
        inputs: Floats (B, height, width, D). Where a size is odd, a row or a column of zeros is added.

    Returns:
        Floats (B, height / 2, width / 2, `hidden_dim`), the sizes rounded up.

    Raises:
        ValueError: for an argument out of range, or inputs of another rank.

    Example:

    ```python
    images = keras_attn.layers.PatchMerging()(keras.random.normal((2, 7, 6, 16)))  # (2, 4, 3, 32)
    ```

    Reference: [Liu et al., 2021](https://arxiv.org/abs/2103.14030), section 3.1.
    """

    _LORA_TARGETS = ("reduction",)
    _SLOTS = ("norm",)

    def __init__(self, hidden_dim=None, norm=None, **kwargs):
        super().__init__(**kwargs)
        self.hidden_dim = check_positive("hidden_dim", hidden_dim, optional=True)
        norm = check_layer("norm", norm)
        self.norm = (
            LayerNormalization(epsilon=1e-5, dtype=self.dtype_policy, name="norm") if norm is None else norm
        )

    def build(self, input_shape):
        if len(input_shape) != 4:
            raise ValueError(
                f"`inputs` must have the shape (B, height, width, D). Received: shape {tuple(input_shape)}."
            )
        joined = (*input_shape[:-1], 4 * input_shape[-1])
        build_layer(self.norm, joined, dtype=self.compute_dtype)
        units = 2 * input_shape[-1] if self.hidden_dim is None else self.hidden_dim
        self.reduction_dense = Dense(
            units, use_bias=False, dtype=self._policy_of("reduction"), name="reduction"
        )
        self.reduction_dense.build(joined)

    def call(self, inputs):
        images = complete_windows(inputs, (2, 2))
        batch_size, height, width, num_features = ops.shape(images)
        images = ops.reshape(images, (batch_size, height // 2, 2, width // 2, 2, num_features))
        # The neighbour below comes before the one to the right, as in the published code.
        images = ops.transpose(images, (0, 1, 3, 4, 2, 5))
        images = ops.reshape(images, (batch_size, height // 2, width // 2, 4 * num_features))
        return ops.cast(self.reduction_dense(self.norm(images)), self.compute_dtype)

    def compute_output_shape(self, input_shape):
        batch_size, *sizes, num_features = input_shape
        sizes = [None if size is None else -(-size // 2) for size in sizes]
        return (batch_size, *sizes, 2 * num_features if self.hidden_dim is None else self.hidden_dim)

    def _parts(self):
        return [self.reduction_dense]

    def get_config(self):
        return {**super().get_config(), "hidden_dim": self.hidden_dim}
