"""ViT, DeiT and DINOv2, with registers or without: one encoder of images, with the tokens and blocks of each kind."""

from keras_attn.huggingface.architecture import Architecture, head_dim, written_activation
from keras_attn.huggingface.heads import image_classification
from keras_attn.layers import EncoderBlock, MultiHeadAttention, PatchEmbedding
from keras_attn.layers.normalization import LayerNormalization
from keras_attn.models import VisionTransformer
from keras_attn.models.checkpoint_names import At

_EMBEDDING = {
    "embedding/class_token": At("embeddings.cls_token", leading_axis=True),
    "embedding/position_embeddings": At("embeddings.position_embeddings", leading_axis=True),
}
_ATTENTION = {
    "block_{i}/self_attention/attention_output": "encoder.layer.{i}.attention.output.dense",
    "block_{i}/self_attention/{part}": "encoder.layer.{i}.attention.attention.{part}",
    "norm": "layernorm",
}
NAMES = {
    **_EMBEDDING,
    "embedding/distillation_token": At("embeddings.distillation_token", leading_axis=True),
    **_ATTENTION,
    "block_{i}/self_attention_residual/norm": "encoder.layer.{i}.layernorm_before",
    "block_{i}/feed_forward/intermediate": "encoder.layer.{i}.intermediate.dense",
    "block_{i}/feed_forward/output": "encoder.layer.{i}.output.dense",
    "block_{i}/feed_forward_residual/norm": "encoder.layer.{i}.layernorm_after",
}
_IN = "encoder.layer.{i}.mlp.weights_in"
_GATED_JOINED = {
    # The activation is applied to the first half.
    "block_{i}/feed_forward/gate": At(_IN, part=(0, 2)),
    "block_{i}/feed_forward/intermediate": At(_IN, part=(1, 2)),
    "block_{i}/feed_forward/output": "encoder.layer.{i}.mlp.weights_out",
}
# transformers 5 has them so in memory, and in files on demand.
_GATED_APART = {
    "block_{i}/feed_forward/gate": "encoder.layer.{i}.mlp.gate_proj",
    "block_{i}/feed_forward/intermediate": "encoder.layer.{i}.mlp.up_proj",
    "block_{i}/feed_forward/output": "encoder.layer.{i}.mlp.down_proj",
}
DINOV2_NAMES = {
    **_EMBEDDING,
    "embedding/register_tokens": At("embeddings.register_tokens", leading_axis=True),
    **_ATTENTION,
    "block_{i}/self_attention_residual/norm": "encoder.layer.{i}.norm1",
    "block_{i}/self_attention_residual/layer_scale": At("encoder.layer.{i}.layer_scale1.lambda1"),
    "block_{i}/feed_forward/intermediate": "encoder.layer.{i}.mlp.fc1",
    "block_{i}/feed_forward/output": "encoder.layer.{i}.mlp.fc2",
    "block_{i}/feed_forward_residual/norm": "encoder.layer.{i}.norm2",
    "block_{i}/feed_forward_residual/layer_scale": At("encoder.layer.{i}.layer_scale2.lambda1"),
}
# Names in files that were written as transformers 5 has them in memory.
_RENAMED = {
    r"^layers\.": "encoder.layer.",
    r"\.attention\.([qkv])_proj\.": lambda found: f".attention.attention.{_PARTS[found[1]]}.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
}
_PARTS = {"q": "query", "k": "key", "v": "value"}
_VIT_RENAMED = {**_RENAMED, r"\.mlp\.fc1\.": ".intermediate.dense.", r"\.mlp\.fc2\.": ".output.dense."}
UNUSED_HEADS = {
    r"pooler\..*": "head: the pooler",
    r"classifier\..*": "head: classification",
    r"(cls|distillation)_classifier\..*": "head: classification with a teacher",
    r"decoder\..*": "head: masked images",
    r"embeddings\.mask_token": "what stood for masked patches in training",
}


def vit(fields, checkpoint):
    """`Architecture` of a vit or deit config."""
    model_type = fields.get("model_type")
    epsilon = fields.number("layer_norm_eps", 1e-12)
    dropout = fields.number("hidden_dropout_prob", 0.0)
    embedding = _embedding(fields, patch_size=16, use_distillation_token=model_type == "deit")
    block = _blocks(
        fields,
        epsilon,
        intermediate_dim=fields.size("intermediate_size", 3072),
        activation=fields.activation("hidden_act", "gelu"),
        dropout=dropout,
    )
    for name in ("encoder_stride", "pooler_act", "pooler_output_size"):
        fields.get(name, None)  # of other heads
    names = NAMES | {"embedding/projection": _projection(embedding().patch_size)}
    return Architecture(
        _maker(fields, embedding, block, epsilon),
        names,
        f"{model_type}.",
        unused=UNUSED_HEADS,
        heads=_heads(fields, embedding),
        renamed=_VIT_RENAMED,
    )


def dinov2(fields, checkpoint):
    """`Architecture` of a dinov2 or dinov2_with_registers config."""
    model_type = fields.get("model_type")
    has_registers = model_type == "dinov2_with_registers"
    epsilon = fields.number("layer_norm_eps", 1e-6)
    if has_registers:
        fields.expect(interpolate_antialias=True, interpolate_offset=0.0)
        num_registers = fields.natural("num_register_tokens", 4)
        embedding = _embedding(fields, patch_size=16, num_register_tokens=num_registers, antialias=True)
    else:
        embedding = _embedding(fields, patch_size=14)
    is_gated = fields.flag("use_swiglu_ffn", False)
    ratio = fields.number("mlp_ratio", 4)
    activation = fields.activation("hidden_act", "gelu")
    block = _blocks(
        fields,
        epsilon,
        intermediate_dim=intermediate_dim(embedding().hidden_dim, ratio, is_gated),
        activation="silu" if is_gated else activation,
        gated=is_gated,
        layer_scale=fields.number("layerscale_value", 1.0),
        stochastic_depth=fields.number("drop_path_rate", 0.0),
    )
    for name in BACKBONE_FIELDS:
        fields.get(name, None)
    written_as_zeros = {}
    if fields.flag("use_mask_token", True) or has_registers:
        written_as_zeros["embeddings.mask_token"] = (1, embedding().hidden_dim)
    names = DINOV2_NAMES | {"embedding/projection": _projection(embedding().patch_size)}
    if is_gated:
        is_joined = checkpoint.tensors_named("encoder.layer.0.mlp.weights_in.weight")
        names |= _GATED_JOINED if is_joined else _GATED_APART
    return Architecture(
        _maker(fields, embedding, block, epsilon),
        names,
        f"{model_type}.",
        unused=UNUSED_HEADS,
        heads=_heads(fields, embedding, pooling="first_and_mean"),
        renamed=_RENAMED,
        written_as_zeros=written_as_zeros,
    )


def intermediate_dim(hidden_dim, ratio, is_gated):
    """The width of DINOv2's feed-forward networks; a gated one has 2/3 of it, rounded up to a multiple of 8."""
    width = int(hidden_dim * ratio)
    if not is_gated:
        return width
    return (int(width * 2 / 3) + 7) // 8 * 8


# Fields about outputs for detectors.
BACKBONE_FIELDS = ("apply_layernorm", "reshape_hidden_states", "out_features", "out_indices", "stage_names")


def _embedding(fields, patch_size, **options):
    """A function that makes the embedding; `patch_size` is for configs that lack it."""
    hidden_dim = fields.size("hidden_size", 768)
    patch_size = fields.pair("patch_size", patch_size)
    image_size = fields.pair("image_size", 224)
    num_channels = fields.size("num_channels", 3)
    dropout = fields.number("hidden_dropout_prob", 0.0)
    return lambda: PatchEmbedding(
        patch_size,
        hidden_dim,
        image_size=image_size,
        num_channels=num_channels,
        dropout=dropout,
        name="embedding",
        **options,
    )


def _blocks(fields, epsilon, **options):
    """A function that makes block number i."""
    num_heads = fields.size("num_attention_heads", 12)
    key_dim = head_dim(fields.size("hidden_size", 768), num_heads)
    attention_dropout = fields.number("attention_probs_dropout_prob", 0.0)
    use_bias = fields.flag("qkv_bias", True)

    def make(i):
        attention = MultiHeadAttention(
            num_heads,
            key_dim,
            dropout=attention_dropout,
            use_bias=use_bias,
            use_output_bias=None if use_bias else True,
            name="self_attention",
        )
        return EncoderBlock(
            normalize_first=True,
            self_attention=attention,
            norm=LayerNormalization(epsilon=epsilon),
            name=f"block_{i}",
            **options,
        )

    return make


def _maker(fields, embedding, block, epsilon):
    num_layers = fields.layer_count("num_hidden_layers", 12)

    def make():
        norm = LayerNormalization(epsilon=epsilon, name="norm")
        blocks = [block(i) for i in range(num_layers)]
        return VisionTransformer(embedding(), blocks, norm)

    return make


def _projection(patch_size):
    return At("embeddings.patch_embeddings.projection", patch=patch_size)


def _heads(fields, embedding, pooling="first"):
    num_special_tokens = embedding().num_special_tokens

    def head():
        return image_classification(
            fields.num_labels(),
            {"output": "classifier"},
            pooling=pooling,
            num_special_tokens=num_special_tokens,
        )

    def head_with_teacher():
        return image_classification(
            fields.num_labels(),
            {"output": "cls_classifier", "distillation_output": "distillation_classifier"},
            num_special_tokens=num_special_tokens,
            use_distillation_token=True,
        )

    heads = {"ImageClassification": head}
    if embedding().use_distillation_token:
        heads["ImageClassificationWithTeacher"] = head_with_teacher
    return heads


def _vision_config(model):
    embedding = model.embedding
    block = model.blocks[0]
    return {
        "hidden_size": model.hidden_dim,
        "image_size": written_size(embedding.image_size),
        "patch_size": written_size(embedding.patch_size),
        "num_channels": embedding.num_channels,
        "num_hidden_layers": len(model.blocks),
        "num_attention_heads": block.self_attention_layer.num_heads,
        "qkv_bias": block.self_attention_layer.use_bias,
        "hidden_act": written_activation(block.feed_forward_layer),
        "hidden_dropout_prob": embedding.dropout,
        "attention_probs_dropout_prob": block.self_attention_layer.dropout,
        "layer_norm_eps": block.residual_norms[0].epsilon,
    }


def written_size(pair):
    """The field of a pair of sizes: one number if both are the same."""
    if pair[0] == pair[1]:
        return pair[0]
    return list(pair)


def vit_config(model):
    """The fields of a vit or deit config."""
    return {**_vision_config(model), "intermediate_size": model.blocks[0].feed_forward_layer.intermediate_dim}


def dinov2_config(model):
    """The fields of a dinov2 config."""
    feed_forward = model.blocks[0].feed_forward_layer
    grid = model.embedding.grid_size(model.image_size)
    if grid[0] != grid[1]:
        raise ValueError(
            "The positions of a DINOv2 are those of as many rows as columns of patches. "
            f"Received: {grid[0]} rows, {grid[1]} columns."
        )
    config = {
        **_vision_config(model),
        "mlp_ratio": _ratio(feed_forward, model.hidden_dim),
        "layerscale_value": model.blocks[0].layer_scale,
        "use_swiglu_ffn": feed_forward.gated,
        "drop_path_rate": model.blocks[-1].stochastic_depth,
        "use_mask_token": False,
    }
    if feed_forward.gated:
        config["hidden_act"] = "gelu"
    return config


def _ratio(feed_forward, hidden_dim):
    """The whole ratio of widths from which DINOv2 computes the feed-forward network's."""
    wanted = feed_forward.intermediate_dim
    for ratio in range(1, wanted * 2 // hidden_dim + 2):
        if intermediate_dim(hidden_dim, ratio, feed_forward.gated) == wanted:
            return ratio
    raise ValueError(
        "The feed-forward networks of a DINOv2 are a whole number of times as wide as the model, or, gated, 2/3 of that, "
        f"rounded up to a multiple of 8. Received: {wanted}, a model of width {hidden_dim}, gated={feed_forward.gated}."
    )


def dinov2_with_registers_config(model):
    """The fields of a dinov2_with_registers config."""
    config = dinov2_config(model)
    del config["use_mask_token"]
    return {**config, "num_register_tokens": model.embedding.num_register_tokens}


# What `save_model` writes, by model_type.
CONFIGS = {
    "vit": vit_config,
    "deit": vit_config,
    "dinov2": dinov2_config,
    "dinov2_with_registers": dinov2_with_registers_config,
}
