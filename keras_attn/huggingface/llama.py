"""LLaMA, Mistral, Qwen 2 and Qwen 3: pre-norm decoders with rotary positions and grouped heads."""

import collections

import keras

from keras_attn.huggingface.architecture import (
    Architecture,
    head_dim,
    written_activation,
    written_pad,
    written_tie,
)
from keras_attn.huggingface.config_fields import FULL, LOCAL
from keras_attn.huggingface.heads import last_token_head
from keras_attn.huggingface.rotary import rope_parameters, rotary_embedding
from keras_attn.layers import DecoderBlock, FeedForward, MultiHeadAttention, SequenceEmbedding, TokenEmbedding
from keras_attn.models import DecoderTransformer

_LAYER = "layers.{i}"
ATTENTION_NAMES = {
    "embedding/token/embeddings": "embed_tokens.weight",
    "embedding/token/reverse_embeddings": "lm_head.weight",
    "block_{i}/self_attention/query": f"{_LAYER}.self_attn.q_proj",
    "block_{i}/self_attention/key": f"{_LAYER}.self_attn.k_proj",
    "block_{i}/self_attention/value": f"{_LAYER}.self_attn.v_proj",
    "block_{i}/self_attention/attention_output": f"{_LAYER}.self_attn.o_proj",
    "block_{i}/self_attention/query_norm": f"{_LAYER}.self_attn.q_norm",
    "block_{i}/self_attention/key_norm": f"{_LAYER}.self_attn.k_norm",
    "block_{i}/feed_forward/gate": f"{_LAYER}.mlp.gate_proj",
    "block_{i}/feed_forward/intermediate": f"{_LAYER}.mlp.up_proj",
    "block_{i}/feed_forward/output": f"{_LAYER}.mlp.down_proj",
}
NAMES = ATTENTION_NAMES | {
    "block_{i}/self_attention_residual/norm": f"{_LAYER}.input_layernorm",
    "block_{i}/feed_forward_residual/norm": f"{_LAYER}.post_attention_layernorm",
    "norm": "norm",
}
_Defaults = collections.namedtuple(
    "_Defaults", "num_key_value_heads head_dim max_position_embeddings sliding_window"
)
# What transformers takes for fields that a config lacks; a null in the config stays a null.
_DEFAULTS = {
    "llama": _Defaults(None, None, 2048, None),
    "mistral": _Defaults(8, None, 131072, 4096),
    "qwen2": _Defaults(32, None, 32768, 4096),
    "qwen3": _Defaults(32, 128, 32768, 4096),
}
# The output projection and the token embedding.
SAME = ("lm_head.weight", "embed_tokens.weight")
UNUSED_HEADS = {
    r"score\..*": "head: classification",
    r"(classifier|qa_outputs)\..*": "head: classification of tokens or question answering",
}


def llama(fields, checkpoint):
    """`Architecture` of a llama, mistral, qwen2 or qwen3 config."""
    model_type = fields.get("model_type")
    defaults = _DEFAULTS[model_type]
    num_layers = fields.layer_count("num_hidden_layers")
    num_heads = fields.size("num_attention_heads")
    hidden_dim = fields.size("hidden_size")
    num_key_value_heads = fields.size_or_null("num_key_value_heads", defaults.num_key_value_heads)
    key_dim = fields.size_or_null("head_dim", defaults.head_dim)
    epsilon = fields.number("rms_norm_eps", 1e-6)
    use_bias, use_output_bias = _biases(fields, model_type)
    block_options = {
        "num_heads": num_heads,
        "num_key_value_heads": num_key_value_heads or num_heads,
        "key_dim": key_dim or head_dim(hidden_dim, num_heads),
        "intermediate_dim": fields.size("intermediate_size"),
        "activation": fields.activation("hidden_act", "silu"),
        "epsilon": epsilon,
        "mlp_bias": fields.flag("mlp_bias", False),
        "query_key_norm": model_type == "qwen3",
        "dropout": fields.number("attention_dropout", 0.0),
        "use_bias": use_bias,
        "use_output_bias": use_output_bias,
    }
    vocabulary_size = fields.size("vocab_size")
    max_sequence_length = fields.size("max_position_embeddings", defaults.max_position_embeddings, most=2**31)
    make_rotary = rotary_embedding(rope_parameters(fields), max_sequence_length)
    windows = _windows(fields, model_type, num_layers)
    pad_token_id = fields.pad_token_id()
    if model_type == "qwen2":
        fields.expect(use_mrope=False)
    output = checkpoint.output(fields, *SAME)

    def make():
        token = TokenEmbedding(vocabulary_size, hidden_dim, scale=False, name="token", **output.options)
        blocks = [
            pre_norm_block(i, sliding_window=windows[i], rotary_embedding=make_rotary(), **block_options)
            for i in range(num_layers)
        ]
        return rms_norm_decoder(token, blocks, epsilon, max_sequence_length, pad_token_id)

    # Checkpoints of transformers' question answering classes have another prefix.
    prefix = "transformer." if checkpoint.tensors_named("transformer.embed_tokens.weight") else "model."
    return Architecture(
        make, NAMES, prefix, same=output.same(*SAME), unused=UNUSED_HEADS, heads=last_token_head(fields)
    )


def rms_norm_decoder(token, blocks, epsilon, max_sequence_length, pad_token_id):
    """`DecoderTransformer` of a token embedding and blocks, with an RMS norm after the last one."""
    return DecoderTransformer(
        SequenceEmbedding(token, name="embedding"),
        blocks,
        _rms_norm(epsilon),
        max_sequence_length=max_sequence_length,
        pad_token_id=pad_token_id,
    )


def pre_norm_block(
    i,
    *,
    num_heads,
    num_key_value_heads,
    key_dim,
    intermediate_dim,
    activation,
    epsilon,
    mlp_bias=False,
    query_key_norm=False,
    sandwich_norm=False,
    **attention_options,
):
    """Block number i of LLaMA and of the models after it."""
    attention = MultiHeadAttention(
        num_heads,
        key_dim,
        num_key_value_heads=num_key_value_heads,
        query_key_norm="rms_norm" if query_key_norm else None,
        query_key_norm_epsilon=epsilon if query_key_norm else None,
        name="self_attention",
        **attention_options,
    )
    feed_forward = FeedForward(
        intermediate_dim, activation=activation, gated=True, use_bias=mlp_bias, name="feed_forward"
    )
    return DecoderBlock(
        normalize_first=True,
        sandwich_norm=sandwich_norm,
        self_attention=attention,
        feed_forward=feed_forward,
        norm=_rms_norm(epsilon),
        name=f"block_{i}",
    )


def _rms_norm(epsilon):
    return keras.layers.RMSNormalization(epsilon=epsilon, name="norm")


def _biases(fields, model_type):
    """Whether queries, keys and values have biases, and whether the output has one."""
    if model_type == "qwen2":
        return True, False
    bias = fields.flag("attention_bias", False)
    return bias, bias


def _windows(fields, model_type, num_layers):
    """The window of each layer, or None."""
    if model_type == "llama":
        return [None] * num_layers
    window = fields.size_or_null("sliding_window", _DEFAULTS[model_type].sliding_window, most=2**31)
    if model_type == "mistral":
        return [window] * num_layers
    first = fields.get("max_window_layers", 28)
    is_used = fields.flag("use_sliding_window", False)
    types = fields.layer_types(
        num_layers,
        lambda i: LOCAL if is_used and window is not None and i >= first else FULL,
    )
    return [window if is_used and kind == LOCAL else None for kind in types]


def llama_config(model):
    """The fields of a llama config."""
    token = model.embedding.token
    block = model.blocks[0]
    attention = block.self_attention_layer
    feed_forward = block.feed_forward_layer
    return {
        "vocab_size": token.vocabulary_size,
        "hidden_size": model.hidden_dim,
        "num_hidden_layers": len(model.blocks),
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_key_value_heads,
        "head_dim": attention.key_dim,
        "intermediate_size": feed_forward.intermediate_dim,
        "hidden_act": written_activation(feed_forward),
        "attention_bias": attention.use_bias,
        "mlp_bias": feed_forward.use_bias,
        "attention_dropout": attention.dropout,
        "rms_norm_eps": block.residual_norms[0].epsilon,
        "max_position_embeddings": model.max_sequence_length,
        "rope_parameters": _rope_parameters(attention.rotary_embedding),
        "tie_word_embeddings": written_tie(token),
        "pad_token_id": written_pad(model),
    }


def _rope_parameters(rotary):
    options = dict(rotary.scaling or {"type": "default"})
    if "original_max_sequence_length" in options:
        options["original_max_position_embeddings"] = options.pop("original_max_sequence_length")
    return {"rope_type": options.pop("type"), "rope_theta": rotary.max_wavelength, **options}


# What `save_model` writes, by model_type.
CONFIGS = {"llama": llama_config}
