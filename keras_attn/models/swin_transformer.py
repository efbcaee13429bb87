import keras
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.layers import EncoderBlock, PatchEmbedding, PatchMerging, WindowAttention
from keras_attn.layers.layer_slots import build_layer, call_layer
from keras_attn.layers.normalization import LayerNormalization
from keras_attn.models.vision_transformer import ImageEncoder


@keras.saving.register_keras_serializable(package="keras_attn")
class SwinTransformer(ImageEncoder):
    """A Swin Transformer: images in, a vector for each patch of the last, coarsest stage out.

    Blocks attend within windows, which every other block shifts, so that the cost grows with the number of patches and not
    with its square; between stages 2 x 2 patches become one. It is made of parts, which are configured layers;
    `from_sizes` makes the parts of a plain one. Images may have any size: sizes that patches, windows or mergers do not
    divide are padded inside, and cropped again. The weights exist as soon as the model does. An `EncoderWithHead` of it
    and an `ImageClassificationHead` with the pooling "mean" and no special tokens classifies images.

    Args:
        embedding: Layer from images to vectors: a `PatchEmbedding` without special tokens.
        blocks: List of layers from (B, rows, columns, D) to such a tensor: `EncoderBlock`s of `WindowAttention`, and a
            `PatchMerging` between two stages.
        norm: Norm layer after the last block, or None.

    Call arguments:
        inputs: Numbers (B, height, width, C), scaled as in training: floats, or integers.
        training: Boolean.

    Returns:
        Floats (B, T, D), the patches of the last stage row by row.

    Raises:
        ValueError: for parts that are not layers, special tokens, and images of other channels.

    Example:

    ```python
    model = keras_attn.models.SwinTransformer.from_sizes(
        patch_size=2, hidden_dim=8, num_layers=(2, 2), num_heads=(2, 4), window_size=3
    )
    sequence = model(keras.random.uniform((2, 17, 14, 3)))  # (2, 20, 16): 9 x 7 patches, then 5 x 4

    head = keras_attn.layers.ImageClassificationHead(num_labels=5, pooling="mean", num_special_tokens=0)
    classifier = keras_attn.models.EncoderWithHead(model, head)
    logits = classifier(keras.random.uniform((2, 17, 14, 3)))  # (2, 5)
    ```

    Reference: [Liu et al., 2021](https://arxiv.org/abs/2103.14030), section 3.1 and figure 3.
    """

    def __init__(self, embedding, blocks, norm=None, **kwargs):
        if getattr(embedding, "num_special_tokens", 0):
            raise ValueError(
                "`embedding` must have no special tokens, because windows hold patches alone. "
                f"Received: {embedding.num_special_tokens} special tokens."
            )
        super().__init__(embedding, blocks, norm, **kwargs)

    @classmethod
    def from_sizes(
        cls,
        patch_size,
        hidden_dim,
        num_layers,
        num_heads,
        window_size,
        num_channels=3,
        intermediate_ratio=4,
        dropout=0.0,
        attention_dropout=0.0,
        stochastic_depth=0.0,
        activation="gelu",
        layer_norm_epsilon=1e-5,
        attend_to_padding=False,
        dtype=None,
        name=None,
    ):
        """A model with fresh weights of the given sizes. Swin-T is `(4, 96, (2, 2, 6, 2), (3, 6, 12, 24), 7)`.

        Args:
            patch_size: Integer or pair of integers.
            hidden_dim: Integer, the width of the first stage; each stage is twice as wide as the one before.
            num_layers: Integers, the number of blocks of each stage.
            num_heads: Integers, the number of heads of each stage.
            window_size: Integer, the height and width of a window in patches. Every other block is shifted by half of it.
            num_channels: Integer, of the images.
            intermediate_ratio: Float, the width of the feed-forward networks as a multiple of the stage's.
            dropout: Float, of the residual branches and of the embeddings.
            attention_dropout: Float, of the attention scores.
            stochastic_depth: Float, that of the last block; it grows in equal steps from 0, that of the first.
            activation: Activation of the feed-forward networks.
            layer_norm_epsilon: Float, of the norms of the blocks and of the last one.
            attend_to_padding: As in `WindowAttention`.
            dtype, name: Of the model.
        """
        check_positive("hidden_dim", hidden_dim)
        if len(num_layers) != len(num_heads) or not num_layers:
            raise ValueError(
                "`num_layers` and `num_heads` must have a number for each stage. "
                f"Received: num_layers={num_layers}, num_heads={num_heads}."
            )
        blocks = swin_blocks(
            hidden_dim,
            num_layers,
            num_heads,
            window_size,
            intermediate_ratio,
            layer_norm_epsilon,
            attention_options={"dropout": attention_dropout, "attend_to_padding": attend_to_padding},
            stochastic_depth=stochastic_depth,
            dtype=dtype,
            dropout=dropout,
            activation=activation,
        )
        embedding = PatchEmbedding(
            patch_size,
            hidden_dim,
            num_channels=num_channels,
            position=None,
            use_class_token=False,
            norm=LayerNormalization(epsilon=1e-5, dtype=dtype, name="norm"),
            dropout=dropout,
            pad=True,
            dtype=dtype,
            name="embedding",
        )
        norm = LayerNormalization(epsilon=layer_norm_epsilon, dtype=dtype, name="norm")
        return cls(embedding, blocks, norm, dtype=dtype, name=name)

    def build(self, input_shape=None):
        if self.built:
            return
        if not self.embedding.built:
            self.embedding.build(None)
        shape = (None, None, None, self.embedding.hidden_dim)
        for block in self.blocks:
            build_layer(block, shape, dtype=self.compute_dtype)
            shape = tuple(block.compute_output_shape(shape))
        if self.norm is not None:
            build_layer(self.norm, (None, None, shape[-1]), dtype=self.compute_dtype)
        self._hidden_dim = shape[-1]
        self.built = True

    def _sequence(self, images, training):
        x = self.embedding(images, training=training)
        rows, columns = self.embedding.grid_size(ops.shape(images)[1:3])
        x = ops.reshape(x, (ops.shape(x)[0], rows, columns, x.shape[-1]))
        for block in self.blocks:
            x = call_layer(block, [x], training)
        batch_size, rows, columns, num_features = ops.shape(x)
        x = ops.reshape(x, (batch_size, rows * columns, num_features))
        return x if self.norm is None else self.norm(x)


def swin_blocks(
    hidden_dim,
    num_layers,
    num_heads,
    window_size,
    intermediate_ratio,
    epsilon,
    attention_options,
    stochastic_depth=0.0,
    dtype=None,
    **block_options,
):
    """The blocks of all stages of a Swin Transformer, and the layers that merge patches between them, in one list.

    Args:
        hidden_dim, num_layers, num_heads, window_size, intermediate_ratio, stochastic_depth, dtype: As in
            `SwinTransformer.from_sizes`.
        epsilon: Float, of the norms.
        attention_options: Dict, other arguments of `WindowAttention`.
        **block_options: Other arguments of `EncoderBlock`.
    """
    num_blocks = sum(num_layers)
    depths = (stochastic_depth * i / max(num_blocks - 1, 1) for i in range(num_blocks))
    blocks = []
    for stage, (stage_layers, heads) in enumerate(zip(num_layers, num_heads)):
        if stage:
            blocks.append(PatchMerging(dtype=dtype, name=f"stage_{stage - 1}_merging"))
        width = hidden_dim * 2**stage
        for i in range(check_positive("num_layers", stage_layers)):
            is_shifted = i % 2 == 1
            attention = _window_attention(width, heads, window_size, is_shifted, dtype, attention_options)
            block = EncoderBlock(
                int(intermediate_ratio * width),
                normalize_first=True,
                self_attention=attention,
                norm=LayerNormalization(epsilon=epsilon, dtype=dtype, name="norm"),
                stochastic_depth=next(depths),
                dtype=dtype,
                name=f"stage_{stage}_block_{i}",
                **block_options,
            )
            blocks.append(block)
    return blocks


def _window_attention(width, num_heads, window_size, is_shifted, dtype, options):
    check_positive("num_heads", num_heads)
    check_positive("window_size", window_size)
    if width % num_heads:
        raise ValueError(
            "The width of a stage must be divisible by its heads. "
            f"Received: width {width}, num_heads={num_heads}."
        )
    shift_size = window_size // 2 if is_shifted else 0
    return WindowAttention(
        num_heads,
        width // num_heads,
        window_size,
        shift_size=shift_size,
        dtype=dtype,
        name="self_attention",
        **options,
    )
