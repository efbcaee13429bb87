"""Swin Transformers: images in windows, stage by stage."""

from keras_attn.huggingface.architecture import Architecture, written_activation
from keras_attn.huggingface.heads import image_classification
from keras_attn.huggingface.vit import BACKBONE_FIELDS, written_size
from keras_attn.layers import PatchEmbedding
from keras_attn.layers.normalization import LayerNormalization
from keras_attn.models import SwinTransformer
from keras_attn.models.checkpoint_names import At
from keras_attn.models.swin_transformer import swin_blocks

_BLOCK = "stage_{s}_block_{i}"
_THEIRS = "encoder.layers.{s}.blocks.{i}"
_BIASES = "relative_position_bias"
NAMES = {
    "embedding/position_embeddings": At("embeddings.position_embeddings", leading_axis=True),
    "embedding/norm": "embeddings.norm",
    f"{_BLOCK}/self_attention/{_BIASES}": At(f"{_THEIRS}.attention.self.{_BIASES}_table"),
    f"{_BLOCK}/self_attention/attention_output": f"{_THEIRS}.attention.output.dense",
    f"{_BLOCK}/self_attention/{{part}}": f"{_THEIRS}.attention.self.{{part}}",
    f"{_BLOCK}/self_attention_residual/norm": f"{_THEIRS}.layernorm_before",
    f"{_BLOCK}/feed_forward/intermediate": f"{_THEIRS}.intermediate.dense",
    f"{_BLOCK}/feed_forward/output": f"{_THEIRS}.output.dense",
    f"{_BLOCK}/feed_forward_residual/norm": f"{_THEIRS}.layernorm_after",
    "stage_{s}_merging/{part}": "encoder.layers.{s}.downsample.{part}",
    "norm": "layernorm",
}
_PARTS = {"q": "query", "k": "key", "v": "value"}
# Names in files that were written as transformers 5 has them in memory.
_RENAMED = {
    r"\.attention\.([qkv])_proj\.": lambda found: f".attention.self.{_PARTS[found[1]]}.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
    rf"\.attention\.{_BIASES}\.": ".attention.self.",
    r"\.mlp\.fc1\.": ".intermediate.dense.",
    r"\.mlp\.fc2\.": ".output.dense.",
}
UNUSED_HEADS = {
    r"classifier\..*": "head: classification",
    r"decoder\..*": "head: masked images",
    r"embeddings\.mask_token": "what stood for masked patches in training",
    r"hidden_states_norms\..*": "head: norms of the stages, for detectors",
    r".*\.relative_position_index": "constant",
}


def swin(fields, checkpoint):
    """`Architecture` of a swin config."""
    patch_size = fields.pair("patch_size", 4)
    make_embedding = _embedding(fields, patch_size)
    make_blocks = _blocks(fields)
    epsilon = fields.number("layer_norm_eps", 1e-5)
    for name in BACKBONE_FIELDS + ("encoder_stride", "path_norm"):
        fields.get(name, None)

    def make():
        norm = LayerNormalization(epsilon=epsilon, name="norm")
        return SwinTransformer(make_embedding(), make_blocks(), norm)

    def head():
        return image_classification(
            fields.num_labels(), {"output": "classifier"}, pooling="mean", num_special_tokens=0
        )

    projection = At("embeddings.patch_embeddings.projection", patch=patch_size)
    return Architecture(
        make,
        NAMES | {"embedding/projection": projection},
        "swin.",
        unused=UNUSED_HEADS,
        heads={"ImageClassification": head},
        renamed=_RENAMED,
    )


def _embedding(fields, patch_size):
    """A function that makes the embedding."""
    position = image_size = None
    given_size = fields.pair("image_size", 224)
    if fields.flag("use_absolute_embeddings", False):
        position = "learned"
        image_size = given_size
    hidden_dim = fields.size("embed_dim", 96)
    num_channels = fields.size("num_channels", 3)
    dropout = fields.number("hidden_dropout_prob", 0.0)
    return lambda: PatchEmbedding(
        patch_size,
        hidden_dim,
        image_size=image_size,
        num_channels=num_channels,
        position=position,
        use_class_token=False,
        norm=LayerNormalization(epsilon=1e-5, name="norm"),
        dropout=dropout,
        pad=True,
        name="embedding",
    )


def _blocks(fields):
    """A function that makes the blocks of all stages."""
    hidden_dim = fields.size("embed_dim", 96)
    depths = fields.layer_counts("depths", (2, 2, 6, 2))
    num_heads = fields.sizes("num_heads", (3, 6, 12, 24))
    if len(depths) != len(num_heads):
        raise ValueError(
            "`depths` and `num_heads` of a swin config must have as many numbers. "
            f"Received: depths={depths}, num_heads={num_heads}."
        )
    fields.expect(hidden_size=hidden_dim * 2 ** (len(depths) - 1), num_layers=len(depths))
    use_bias = fields.flag("qkv_bias", True)
    attention = {
        "dropout": fields.number("attention_probs_dropout_prob", 0.0),
        "use_bias": use_bias,
        "use_output_bias": None if use_bias else True,
        "attend_to_padding": True,
    }
    sizes = [
        hidden_dim,
        depths,
        num_heads,
        fields.size("window_size", 7),
        fields.number("mlp_ratio", 4.0),
        fields.number("layer_norm_eps", 1e-5),
    ]
    options = {
        "stochastic_depth": fields.number("drop_path_rate", 0.1),
        "activation": fields.activation("hidden_act", "gelu"),
        "dropout": fields.number("hidden_dropout_prob", 0.0),
    }
    return lambda: swin_blocks(*sizes, attention, **options)


def swin_config(model):
    """The fields of a swin config."""
    embedding = model.embedding
    stages = _stages(model)
    block = stages[0][0]
    attention = block.self_attention_layer
    rows, columns = attention.window_size
    if rows != columns or not attention.attend_to_padding:
        raise ValueError(
            "The windows of a swin are squares, in which pixels attend to padding too. "
            f"Received: windows of {rows} x {columns}, attend_to_padding={attention.attend_to_padding}."
        )
    has_positions = embedding.position is not None
    return {
        "embed_dim": embedding.hidden_dim,
        "image_size": written_size(embedding.image_size) if has_positions else 224,
        "patch_size": written_size(embedding.patch_size),
        "num_channels": embedding.num_channels,
        "depths": list(map(len, stages)),
        "num_heads": [stage[0].self_attention_layer.num_heads for stage in stages],
        "window_size": rows,
        "mlp_ratio": _ratio(embedding.hidden_dim, stages),
        "qkv_bias": attention.use_bias,
        "hidden_act": written_activation(block.feed_forward_layer),
        "hidden_dropout_prob": embedding.dropout,
        "attention_probs_dropout_prob": attention.dropout,
        "drop_path_rate": stages[-1][-1].stochastic_depth,
        "use_absolute_embeddings": has_positions,
        "layer_norm_eps": block.residual_norms[0].epsilon,
    }


def _stages(model):
    """The blocks of each stage, between which other layers merge patches."""
    stages = [[]]
    for layer in model.blocks:
        if hasattr(layer, "self_attention_layer"):
            stages[-1].append(layer)
        else:
            stages.append([])
    return stages


def _ratio(hidden_dim, stages):
    """A ratio that gives each stage's feed-forward networks their width, which is rounded down."""
    widths = [stage[0].feed_forward_layer.intermediate_dim for stage in stages]
    hidden_dims = [hidden_dim * 2**i for i in range(len(stages))]
    least = max(width / size for width, size in zip(widths, hidden_dims))
    most = min((width + 1) / size for width, size in zip(widths, hidden_dims))
    for ratio in (least, (least + most) / 2):
        if [int(size * ratio) for size in hidden_dims] == widths:
            return ratio
    raise ValueError(
        "The feed-forward networks of a Swin are wider than their stage's vectors by one ratio, rounded down. "
        f"Received: widths {widths}, vectors of {hidden_dims}."
    )


# What `save_model` writes, by model_type.
CONFIGS = {"swin": swin_config}
