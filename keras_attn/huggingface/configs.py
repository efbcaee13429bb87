"""Configs of models: what an architecture's file reads, written from the parts of a model."""

from keras_attn.huggingface.vit import intermediate_dim
from keras_attn.layers.arguments import serialize_activation

_ACTIVATIONS = {"gelu_tanh": "gelu_new"}


def _activation(feed_forward):
    name = serialize_activation(feed_forward.activation)
    return _ACTIVATIONS.get(name, name)


def _pad(model):
    return None if model.pad_token_id < 0 else model.pad_token_id


def bert_config(model):
    """The fields of a bert config."""
    block, embedding = model.blocks[0], model.embedding
    return {
        "vocab_size": embedding.vocabulary_size,
        "hidden_size": model.hidden_dim,
        "num_hidden_layers": len(model.blocks),
        "num_attention_heads": block.self_attention_layer.num_heads,
        "intermediate_size": block.feed_forward_layer.intermediate_dim,
        "hidden_act": _activation(block.feed_forward_layer),
        "hidden_dropout_prob": embedding.dropout,
        "attention_probs_dropout_prob": block.self_attention_layer.dropout,
        "max_position_embeddings": embedding.position.max_sequence_length,
        "type_vocab_size": embedding.token_type.input_dim,
        "layer_norm_eps": block.residual_norms[0].epsilon,
        "pad_token_id": _pad(model),
    }


def gpt2_config(model):
    """The fields of a gpt2 config."""
    block, embedding = model.blocks[0], model.embedding
    return {
        "vocab_size": embedding.vocabulary_size,
        "n_embd": model.hidden_dim,
        "n_layer": len(model.blocks),
        "n_head": block.self_attention_layer.num_heads,
        "n_inner": block.feed_forward_layer.intermediate_dim,
        "activation_function": _activation(block.feed_forward_layer),
        "n_positions": embedding.position.max_sequence_length,
        "resid_pdrop": block.dropout,
        "embd_pdrop": embedding.dropout,
        "attn_pdrop": block.self_attention_layer.dropout,
        "layer_norm_epsilon": block.residual_norms[0].epsilon,
        "tie_word_embeddings": embedding.token.tie_weights,
        "pad_token_id": _pad(model),
    }


def llama_config(model):
    """The fields of a llama config."""
    block, token = model.blocks[0], model.embedding.token
    attention, feed_forward = block.self_attention_layer, block.feed_forward_layer
    return {
        "vocab_size": token.vocabulary_size,
        "hidden_size": model.hidden_dim,
        "num_hidden_layers": len(model.blocks),
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_key_value_heads,
        "head_dim": attention.key_dim,
        "intermediate_size": feed_forward.intermediate_dim,
        "hidden_act": _activation(feed_forward),
        "attention_bias": attention.use_bias,
        "mlp_bias": feed_forward.use_bias,
        "attention_dropout": attention.dropout,
        "rms_norm_eps": block.residual_norms[0].epsilon,
        "max_position_embeddings": model.max_sequence_length,
        "rope_parameters": _rope_parameters(attention.rotary_embedding),
        "tie_word_embeddings": token.tie_weights,
        "pad_token_id": _pad(model),
    }


def _rope_parameters(rotary):
    options = dict(rotary.scaling or {"type": "default"})
    if "original_max_sequence_length" in options:
        options["original_max_position_embeddings"] = options.pop("original_max_sequence_length")
    return {"rope_type": options.pop("type"), "rope_theta": rotary.max_wavelength, **options}


def t5_config(model):
    """The fields of a t5 config."""
    block, token = model.encoder_blocks[0], model.source_embedding.token
    attention, feed_forward = block.self_attention_layer, block.feed_forward_layer
    bias = model.decoder_blocks[0].self_attention_layer.position_bias
    activation = _activation(feed_forward)
    if feed_forward.gated:
        activation = f"gated-{'gelu' if activation == 'gelu_new' else activation}"
    return {
        "vocab_size": token.vocabulary_size,
        "d_model": model.hidden_dim,
        "d_kv": attention.key_dim,
        "d_ff": feed_forward.intermediate_dim,
        "num_layers": len(model.encoder_blocks),
        "num_decoder_layers": len(model.decoder_blocks),
        "num_heads": attention.num_heads,
        "relative_attention_num_buckets": bias.num_buckets,
        "relative_attention_max_distance": bias.max_distance,
        "feed_forward_proj": activation,
        "dropout_rate": block.dropout,
        "layer_norm_epsilon": block.residual_norms[0].epsilon,
        "is_encoder_decoder": True,
        "scale_decoder_outputs": token.output_scale is not None,
        "tie_word_embeddings": token.tie_weights,
        "pad_token_id": _pad(model),
        "decoder_start_token_id": model.pad_token_id,
    }


def marian_config(model):
    """The fields of a marian config."""
    first = {"encoder": model.encoder_blocks[0], "decoder": model.decoder_blocks[0]}
    block, token = first["encoder"], model.target_embedding.token
    config = {
        "vocab_size": model.vocabulary_size,
        "d_model": model.hidden_dim,
        "encoder_layers": len(model.encoder_blocks),
        "decoder_layers": len(model.decoder_blocks),
        "activation_function": _activation(block.feed_forward_layer),
        "dropout": model.source_embedding.dropout,
        "attention_dropout": block.self_attention_layer.dropout,
        "scale_embedding": token.scale,
        "max_position_embeddings": model.max_sequence_length,
        "is_encoder_decoder": True,
        "tie_word_embeddings": token.tie_weights,
        "pad_token_id": _pad(model),
        "decoder_start_token_id": model.pad_token_id,
        "forced_eos_token_id": None,
    }
    for side, layer in first.items():
        config[f"{side}_attention_heads"] = layer.self_attention_layer.num_heads
        config[f"{side}_ffn_dim"] = layer.feed_forward_layer.intermediate_dim
    if model.source_embedding.token is not token:
        config |= {"decoder_vocab_size": token.vocabulary_size, "share_encoder_decoder_embeddings": False}
    return config


def pegasus_config(model):
    """The fields of a pegasus config."""
    if model.source_embedding.token is not model.target_embedding.token:
        raise ValueError(
            "A pegasus has one token embedding for both sides. Received: a model with two, which of the architectures of "
            "transformers only marian has, and that is post-norm (normalize_first=False)."
        )
    return marian_config(model)


def _vision_config(model):
    embedding, block = model.embedding, model.blocks[0]
    return {
        "hidden_size": model.hidden_dim,
        "image_size": _size(embedding.image_size),
        "patch_size": _size(embedding.patch_size),
        "num_channels": embedding.num_channels,
        "num_hidden_layers": len(model.blocks),
        "num_attention_heads": block.self_attention_layer.num_heads,
        "qkv_bias": block.self_attention_layer.use_bias,
        "hidden_act": _activation(block.feed_forward_layer),
        "hidden_dropout_prob": embedding.dropout,
        "attention_probs_dropout_prob": block.self_attention_layer.dropout,
        "layer_norm_eps": block.residual_norms[0].epsilon,
    }


def _size(pair):
    return pair[0] if pair[0] == pair[1] else list(pair)


def vit_config(model):
    """The fields of a vit or deit config."""
    return {**_vision_config(model), "intermediate_size": model.blocks[0].feed_forward_layer.intermediate_dim}


def dinov2_config(model):
    """The fields of a dinov2 config."""
    feed_forward, grid = model.blocks[0].feed_forward_layer, model.embedding.grid_size(model.image_size)
    if grid[0] != grid[1]:
        raise ValueError(
            "The positions of a DINOv2 are those of as many rows as columns of patches. "
            f"Received: {grid[0]} rows, {grid[1]} columns."
        )
    fields = {
        **_vision_config(model),
        "mlp_ratio": _ratio(feed_forward, model.hidden_dim),
        "layerscale_value": model.blocks[0].layer_scale,
        "use_swiglu_ffn": feed_forward.gated,
        "drop_path_rate": model.blocks[-1].stochastic_depth,
        "use_mask_token": False,
    }
    return fields | {"hidden_act": "gelu"} if feed_forward.gated else fields


def _ratio(feed_forward, hidden_dim):
    """The whole ratio of widths from which DINOv2 computes the feed-forward network's."""
    wanted, gated = feed_forward.intermediate_dim, feed_forward.gated
    for ratio in range(1, wanted * 2 // hidden_dim + 2):
        if intermediate_dim(hidden_dim, ratio, gated) == wanted:
            return ratio
    raise ValueError(
        "The feed-forward networks of a DINOv2 are a whole number of times as wide as the model, or, gated, 2/3 of that, "
        f"rounded up to a multiple of 8. Received: {wanted}, a model of width {hidden_dim}, gated={gated}."
    )


def dinov2_with_registers_config(model):
    """The fields of a dinov2_with_registers config."""
    fields = {**dinov2_config(model), "num_register_tokens": model.embedding.num_register_tokens}
    return {name: value for name, value in fields.items() if name != "use_mask_token"}


def swin_config(model):
    """The fields of a swin config."""
    embedding, stages = model.embedding, [[]]
    for layer in model.blocks:
        if hasattr(layer, "self_attention_layer"):
            stages[-1].append(layer)
        else:
            stages.append([])
    block = stages[0][0]
    attention, feed_forward = block.self_attention_layer, block.feed_forward_layer
    rows, columns = attention.window_size
    if rows != columns or not attention.attend_to_padding:
        raise ValueError(
            "The windows of a swin are squares, in which pixels attend to padding too. "
            f"Received: windows of {rows} x {columns}, attend_to_padding={attention.attend_to_padding}."
        )
    has_positions = embedding.position is not None
    return {
        "embed_dim": embedding.hidden_dim,
        "image_size": _size(embedding.image_size) if has_positions else 224,
        "patch_size": _size(embedding.patch_size),
        "num_channels": embedding.num_channels,
        "depths": list(map(len, stages)),
        "num_heads": [stage[0].self_attention_layer.num_heads for stage in stages],
        "window_size": rows,
        "mlp_ratio": feed_forward.intermediate_dim / embedding.hidden_dim,
        "qkv_bias": attention.use_bias,
        "hidden_act": _activation(feed_forward),
        "hidden_dropout_prob": embedding.dropout,
        "attention_probs_dropout_prob": attention.dropout,
        "drop_path_rate": stages[-1][-1].stochastic_depth,
        "use_absolute_embeddings": has_positions,
        "layer_norm_eps": block.residual_norms[0].epsilon,
    }


# model_type: (transformers' class, the prefix of the names of its body, the fields of a model)
CONFIGS = {
    "bert": ("BertModel", "", bert_config),
    "gpt2": ("GPT2LMHeadModel", "transformer.", gpt2_config),
    "llama": ("LlamaForCausalLM", "model.", llama_config),
    "t5": ("T5ForConditionalGeneration", "", t5_config),
    "marian": ("MarianMTModel", "model.", marian_config),
    "vit": ("ViTModel", "", vit_config),
    "deit": ("DeiTModel", "", vit_config),
    "dinov2": ("Dinov2Model", "", dinov2_config),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", "", dinov2_with_registers_config),
    "swin": ("SwinModel", "", swin_config),
    "pegasus": ("PegasusForConditionalGeneration", "model.", pegasus_config),
}
