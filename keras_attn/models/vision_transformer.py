import keras
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.layers import AxialRotaryEmbedding, PatchEmbedding
from keras_attn.models.base_model import Transformer, layer_list
from keras_attn.models.plain_transformer import Sizes

# What differs from the defaults of `Sizes`: Dosovitskiy et al., 2021, section 3.1 and appendix B.1.
_DEFAULTS = {
    "dropout": 0.0,
    "activation": "gelu",
    "normalize_first": True,
    "layer_norm_epsilon": 1e-6,
    "position_encoding": "learned",
}


class ImageEncoder(Transformer):
    """The base of vision models: an embedding of patches, a list of layers, and a norm."""

    _SLOTS = ("embedding", "blocks", "norm")
    _OPTIONS = ()

    def __init__(self, embedding, blocks, norm=None, **kwargs):
        super().__init__(**kwargs)
        for name in ("grid_size", "positions", "num_special_tokens"):
            if not hasattr(embedding, name):
                raise ValueError(
                    f"`embedding` must be a `PatchEmbedding`, or a layer with its methods. Received: embedding="
                    f"{type(embedding).__name__}, without `{name}`."
                )
        self._take_parts(embedding=embedding, blocks=layer_list("blocks", blocks), norm=norm)
        self.build()

    @property
    def image_size(self):
        """Pair of integers, the height and width of the images that learned positions are made for, or None."""
        return self.embedding.image_size

    @property
    def num_special_tokens(self):
        """Integer, the number of tokens before the patches."""
        return self.embedding.num_special_tokens

    def compute_mask(self, inputs, previous_mask=None):
        return None  # all tokens are real

    def call(self, inputs, training=None):
        return self.sequence_and_mask(inputs, training)[0]

    def sequence_and_mask(self, inputs, training=None):
        """What a head reads: the vectors, floats (B, T, D), and which tokens are real, boolean (B, T), which is all.

        Args:
            inputs, training: As in a call.
        """
        sequence = self._sequence(ops.convert_to_tensor(inputs), training)
        return sequence, ops.ones(ops.shape(sequence)[:2], dtype="bool")


@keras.saving.register_keras_serializable(package="keras_attn")
class VisionTransformer(ImageEncoder):
    """A Vision Transformer: images in, a vector for each special token and for each patch out.

    It is made of parts, which are configured layers, as `EncoderTransformer` is; `from_sizes` makes the parts of a plain one.
    Images may have any size, see `PatchEmbedding`. The weights exist as soon as the model does. An `EncoderWithHead` of
    it and an `ImageClassificationHead` classifies images.

    Args:
        embedding: Layer from images to vectors: a `PatchEmbedding`.
        blocks: List of `EncoderBlock`s. It may hold one block several times, and blocks may share layers.
        norm: Norm layer after the last block, or None.

    Call arguments:
        inputs: Numbers (B, height, width, C), scaled as in training: floats, or integers.
        training: Boolean.

    Returns:
        Floats (B, T, D): `num_special_tokens` of them, then the patches row by row.

    Raises:
        ValueError: for parts that are not layers, and for images of other channels or smaller than a patch.

    Example:

    ```python
    model = keras_attn.models.VisionTransformer.from_sizes(
        image_size=12, patch_size=4, num_layers=2, hidden_dim=16, num_heads=2, intermediate_dim=32
    )
    sequence = model(keras.random.uniform((2, 12, 12, 3)))  # (2, 10, 16)

    head = keras_attn.layers.ImageClassificationHead(num_labels=5)
    classifier = keras_attn.models.EncoderWithHead(model, head)
    logits = classifier(keras.random.uniform((2, 12, 12, 3)))  # (2, 5)
    ```

    Reference: [Dosovitskiy et al., 2021](https://arxiv.org/abs/2010.11929), section 3.1 and figure 1.
    """

    @classmethod
    def from_sizes(
        cls,
        image_size,
        patch_size,
        num_layers,
        num_channels=3,
        use_class_token=True,
        num_register_tokens=0,
        layer_scale=None,
        stochastic_depth=0.0,
        dtype=None,
        name=None,
        **sizes,
    ):
        """A model with fresh weights of the given sizes.

        Args:
            image_size: Integer or pair of integers, that learned positions are made for.
            patch_size: Integer or pair of integers.
            num_layers: Integer.
            num_channels: Integer, of the images.
            use_class_token, num_register_tokens: As in `PatchEmbedding`.
            layer_scale: As in `EncoderBlock`.
            stochastic_depth: Float, that of the last block; it grows in equal steps from 0, that of the first.
            dtype, name: Of the model.
            **sizes: As in `Sizes`, but pre-norm, "gelu", learned positions, an epsilon of 1e-6 and no dropout by default.
                Sinusoidal and rotary positions are those of rows and columns.
        """
        sizes = Sizes(dtype=dtype, **(_DEFAULTS | sizes))
        embedding = PatchEmbedding(
            patch_size,
            sizes.hidden_dim,
            image_size=image_size,
            num_channels=num_channels,
            position=sizes.position_encoding,
            use_class_token=use_class_token,
            num_register_tokens=num_register_tokens,
            dropout=sizes.dropout,
            dtype=dtype,
            name="embedding",
        )
        blocks = sizes.encoder_blocks(
            check_positive("num_layers", num_layers),
            AxialRotaryEmbedding,
            stochastic_depth,
            layer_scale=layer_scale,
        )
        return cls(embedding, blocks, sizes.norm("norm"), dtype=dtype, name=name)

    def build(self, input_shape=None):
        if not self.built:
            self._build_stack(self.embedding, self.blocks, self.norm)
            self.built = True

    def _sequence(self, images, training):
        positions = self.embedding.positions(ops.shape(images)[1:3])
        arguments = {} if positions is None else {"positions": positions}
        x = self.embedding(images, training=training)
        for block in self.blocks:
            x = block(x, training=training, **arguments)
        return x if self.norm is None else self.norm(x)
