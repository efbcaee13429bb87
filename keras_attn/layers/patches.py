"""Images as sequences of patches."""

import keras
from keras import ops

from keras_attn.checks import check_count, check_pair, check_positive, check_rate
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.layer_slots import Slotted, build_layer, check_layer
from keras_attn.layers.normalization import LayerNormalization
from keras_attn.layers.projection import Dense
from keras_attn.ops import (
    complete_windows,
    grid_positions,
    grid_size,
    image_patches,
    resized_grid,
    rows_and_columns,
    sinusoidal_encoding,
)

POSITIONS = ("learned", "sinusoidal", "rotary", None)


@keras.saving.register_keras_serializable(package="keras_attn")
class PatchEmbedding(Slotted, keras.layers.Layer):
    """Images to the vectors that the first block of a vision model reads: one for each patch, after special tokens.

    `dropout([class, distillation, registers, norm(projection(patch))] + position)`. The projection is a product of
    matrices over the pixels of a patch, which is the convolution of the paper. Registers get no position. KerasHub has such
    a layer inside each of its vision models, for images of one size; here an image may have any size.

    Args:
        patch_size: Integer or pair of integers, the height and width of a patch in pixels.
        hidden_dim: Integer D.
        image_size: Integer or pair of integers, the height and width that learned positions are made for. For images of
            other sizes they are resized, see `keras_attn.ops.resized_grid`. Other positions do not need it.
        num_channels: Integer C of the images.
        position: `"learned"`; `"sinusoidal"`, sines of the row in the first half of the channels and of the column in the
            second; `"rotary"`, for attention with an `AxialRotaryEmbedding`, which needs `positions`; or None.
        use_class_token: Boolean, whether a learned vector precedes the patches (ViT).
        use_distillation_token: Boolean, whether another one follows it (DeiT).
        num_register_tokens: Integer, the number of learned vectors after those (DINOv2 with registers).
        norm: Norm layer of the projected patches (Swin), or None.
        dropout: Float, the dropout of the result.
        pad: Boolean, whether images that are not a whole number of patches get zeros below and to the right (Swin), in
            place of losing the last rows and columns (ViT).
        antialias: Boolean, whether learned positions are resized with antialiasing (DINOv2 with registers).
        use_bias: Boolean, whether the projection has a bias.

    Call arguments:
        inputs: Numbers (B, height, width, C): floats, or integers, which are not scaled.
        training: Boolean.

    Returns:
        Floats (B, T, D): `num_special_tokens` of them, then the patches row by row.

    Raises:
        ValueError: for arguments out of range, and for images of other channels or smaller than a patch.

    Example:

    ```python
    embedding = keras_attn.layers.PatchEmbedding(patch_size=4, hidden_dim=16, image_size=12)
    x = embedding(keras.random.uniform((2, 12, 12, 3)))  # (2, 10, 16)
    x = embedding(keras.random.uniform((2, 16, 20, 3)))  # (2, 21, 16)
    ```

    References: [Dosovitskiy et al., 2021](https://arxiv.org/abs/2010.11929), section 3.1;
    [Touvron et al., 2021](https://arxiv.org/abs/2012.12877), section 4, the distillation token;
    [Darcet et al., 2024](https://arxiv.org/abs/2309.16588), section 2.2, registers;
    [He et al., 2022](https://arxiv.org/abs/2111.06377), appendix A.1, sines of rows and columns.
    """

    _LORA_TARGETS = ("projection",)
    _SLOTS = ("norm",)

    def __init__(
        self,
        patch_size,
        hidden_dim,
        image_size=None,
        num_channels=3,
        position="learned",
        use_class_token=True,
        use_distillation_token=False,
        num_register_tokens=0,
        norm=None,
        dropout=0.0,
        pad=False,
        antialias=False,
        use_bias=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.patch_size = check_pair("patch_size", patch_size)
        self.hidden_dim = check_positive("hidden_dim", hidden_dim)
        self.image_size = None if image_size is None else check_pair("image_size", image_size)
        self.num_channels = check_positive("num_channels", num_channels)
        self.position = position
        self.use_class_token = use_class_token
        self.use_distillation_token = use_distillation_token
        self.num_register_tokens = check_count("num_register_tokens", num_register_tokens)
        self.norm = check_layer("norm", norm)
        self.dropout = check_rate("dropout", dropout)
        self.pad = pad
        self.antialias = antialias
        self.use_bias = use_bias
        self._check_arguments()
        self._dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def _check_arguments(self):
        if self.position not in POSITIONS:
            raise ValueError(f"`position` must be one of {POSITIONS}. Received: position={self.position!r}.")
        if self.position == "learned":
            if self.image_size is None:
                raise ValueError("Learned positions need an `image_size`. Received: image_size=None.")
            self._check_image_size(self.image_size)
        if self.position == "sinusoidal" and self.hidden_dim % 2:
            raise ValueError(
                "`hidden_dim` must be even for sines of rows and of columns. "
                f"Received: hidden_dim={self.hidden_dim}."
            )

    @property
    def num_special_tokens(self):
        """Integer, the number of tokens before the patches."""
        return self._num_class_tokens + self.num_register_tokens

    @property
    def _num_class_tokens(self):
        return int(self.use_class_token) + int(self.use_distillation_token)

    def grid_size(self, image_size):
        """The number of rows and of columns of patches.

        Args:
            image_size: Pair: height and width, integers or integer scalars.

        Example:

        ```python
        keras_attn.layers.PatchEmbedding(4, 16, image_size=12).grid_size((16, 20))  # (4, 5)
        ```
        """
        return grid_size(image_size, self.patch_size, self.pad)

    def positions(self, image_size):
        """The positions of all tokens, int32 (T,), for attention with an `AxialRotaryEmbedding`; None for other positions.

        Args:
            image_size: Pair: height and width, integers or integer scalars.

        Example:

        ```python
        embedding = keras_attn.layers.PatchEmbedding(4, 16, position="rotary")
        positions = embedding.positions((16, 20))  # (21,)
        ```
        """
        if self.position != "rotary":
            return None
        rows, columns = self.grid_size(image_size)
        return grid_positions(rows, columns, self.num_special_tokens)

    def build(self, input_shape=None):
        num_inputs = self.patch_size[0] * self.patch_size[1] * self.num_channels
        self.projection_dense = Dense(
            self.hidden_dim, use_bias=self.use_bias, dtype=self._policy_of("projection"), name="projection"
        )
        self.projection_dense.build((None, None, num_inputs))
        if self.norm is not None:
            build_layer(self.norm, (None, None, self.hidden_dim), dtype=self.compute_dtype)
        if self.use_class_token:
            self.class_token = self._vectors("class_token", 1)
        if self.use_distillation_token:
            self.distillation_token = self._vectors("distillation_token", 1)
        if self.num_register_tokens:
            self.register_tokens = self._vectors("register_tokens", self.num_register_tokens)
        if self.position == "learned":
            rows, columns = self.grid_size(self.image_size)
            number = self._num_class_tokens + rows * columns
            self.position_embeddings = self._vectors("position_embeddings", number)

    def _vectors(self, name, number):
        initializer = keras.initializers.TruncatedNormal(stddev=0.02)  # as in the published code of ViT
        return self.add_weight(name=name, shape=(number, self.hidden_dim), initializer=initializer)

    def call(self, inputs, training=None):
        self._check_images(inputs.shape)
        images = ops.cast(inputs, self.compute_dtype)
        x = self.projection_dense(image_patches(images, self.patch_size, self.pad))
        x = ops.cast(x, self.compute_dtype)
        if self.norm is not None:
            x = self.norm(x)
        class_positions, patch_positions = self._position_vectors(ops.shape(inputs)[1:3])
        if patch_positions is not None:
            x = x + patch_positions
        special_tokens = self._special_tokens(class_positions)
        if special_tokens is not None:
            shape = (ops.shape(x)[0], self.num_special_tokens, self.hidden_dim)
            special_tokens = ops.broadcast_to(ops.expand_dims(special_tokens, 0), shape)
            x = ops.concatenate([special_tokens, x], axis=1)
        return self._dropout_layer(x, training=training)

    def _special_tokens(self, positions):
        """The vectors before the patches (K, D), or None."""
        tokens = []
        if self.use_class_token:
            tokens.append(self.class_token)
        if self.use_distillation_token:
            tokens.append(self.distillation_token)
        if tokens and positions is not None:
            tokens = [ops.concatenate(tokens, axis=0) + positions]
        if self.num_register_tokens:
            tokens.append(self.register_tokens)
        return ops.concatenate(tokens, axis=0) if tokens else None

    def _position_vectors(self, image_size):
        """What is added to class tokens and to patches, or None for nothing."""
        size = self.grid_size(image_size)
        if self.position == "sinusoidal":
            rows, columns = rows_and_columns(grid_positions(size[0], size[1]))
            row_half = sinusoidal_encoding(rows - 1, self.hidden_dim // 2)
            column_half = sinusoidal_encoding(columns - 1, self.hidden_dim // 2)
            vectors = ops.concatenate([row_half, column_half], axis=-1)
            return None, ops.cast(vectors, self.compute_dtype)
        if self.position != "learned":
            return None, None
        rows, columns = self.grid_size(self.image_size)
        vectors = ops.convert_to_tensor(self.position_embeddings)
        class_positions = vectors[: self._num_class_tokens]
        patch_positions = vectors[self._num_class_tokens :]
        if not all(isinstance(new, int) and new == old for new, old in zip(size, (rows, columns))):
            grid = ops.reshape(patch_positions, (rows, columns, self.hidden_dim))
            grid = resized_grid(grid, size, self.antialias)
            patch_positions = ops.reshape(grid, (-1, self.hidden_dim))
        return class_positions, ops.cast(patch_positions, self.compute_dtype)

    def _check_images(self, shape):
        if len(shape) != 4 or shape[-1] != self.num_channels:
            raise ValueError(
                f"`inputs` must be images of shape (B, height, width, {self.num_channels}). "
                f"Received: shape {tuple(shape)}."
            )
        self._check_image_size(shape[1:3])

    def _check_image_size(self, size):
        smallest = (1, 1) if self.pad else self.patch_size
        if any(isinstance(length, int) and length < least for length, least in zip(size, smallest)):
            raise ValueError(
                f"An image must hold at least one patch of {self.patch_size} pixels. Received: {tuple(size)} pixels."
            )

    def compute_output_shape(self, input_shape):
        if None in input_shape[1:3]:
            return (input_shape[0], None, self.hidden_dim)
        rows, columns = self.grid_size(input_shape[1:3])
        return (input_shape[0], self.num_special_tokens + rows * columns, self.hidden_dim)

    def _parts(self):
        return [self.projection_dense]

    def get_config(self):
        return {
            **super().get_config(),
            "patch_size": self.patch_size,
            "hidden_dim": self.hidden_dim,
            "image_size": self.image_size,
            "num_channels": self.num_channels,
            "position": self.position,
            "use_class_token": self.use_class_token,
            "use_distillation_token": self.use_distillation_token,
            "num_register_tokens": self.num_register_tokens,
            "dropout": self.dropout,
            "pad": self.pad,
            "antialias": self.antialias,
            "use_bias": self.use_bias,
        }


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
        if norm is None:
            norm = LayerNormalization(epsilon=1e-5, dtype=self.dtype_policy, name="norm")
        self.norm = check_layer("norm", norm)

    def build(self, input_shape):
        if len(input_shape) != 4:
            raise ValueError(
                f"`inputs` must have the shape (B, height, width, D). Received: shape {tuple(input_shape)}."
            )
        joined_shape = (*input_shape[:-1], 4 * input_shape[-1])
        build_layer(self.norm, joined_shape, dtype=self.compute_dtype)
        units = self.hidden_dim or 2 * input_shape[-1]
        self.reduction_dense = Dense(
            units, use_bias=False, dtype=self._policy_of("reduction"), name="reduction"
        )
        self.reduction_dense.build(joined_shape)

    def call(self, inputs):
        images = complete_windows(inputs, (2, 2))
        batch_size, height, width, num_features = ops.shape(images)
        images = ops.reshape(images, (batch_size, height // 2, 2, width // 2, 2, num_features))
        # The neighbour below comes before the one to the right, as in the published code.
        images = ops.transpose(images, (0, 1, 3, 4, 2, 5))
        images = ops.reshape(images, (batch_size, height // 2, width // 2, 4 * num_features))
        return ops.cast(self.reduction_dense(self.norm(images)), self.compute_dtype)

    def compute_output_shape(self, input_shape):
        batch_size, height, width, num_features = input_shape
        return (batch_size, _half(height), _half(width), self.hidden_dim or 2 * num_features)

    def _parts(self):
        return [self.reduction_dense]

    def get_config(self):
        return {**super().get_config(), "hidden_dim": self.hidden_dim}


def _half(size):
    """Half of a size, rounded up, or None."""
    return None if size is None else (size + 1) // 2
