"""Gemma 2 and the text model of Gemma 3: a norm on both sides of each sub-layer, windows in some layers, soft caps."""

from keras_attn.huggingface.architecture import Architecture
from keras_attn.huggingface.heads import last_token_head
from keras_attn.huggingface.llama import (
    ATTENTION_NAMES,
    HEADS,
    SAME,
    pre_norm_block,
    rms_norm_decoder,
)
from keras_attn.huggingface.name_tables import At
from keras_attn.huggingface.rotary import rope_parameters, rotary_embedding
from keras_attn.layers import TokenEmbedding

_NORMS = {
    "block_{i}/self_attention_residual/norm": "layers.{i}.input_layernorm",
    "block_{i}/self_attention_residual/output_norm": "layers.{i}.post_attention_layernorm",
    "block_{i}/feed_forward_residual/norm": "layers.{i}.pre_feedforward_layernorm",
    "block_{i}/feed_forward_residual/output_norm": "layers.{i}.post_feedforward_layernorm",
    "block_{i}/self_attention/query_norm": "layers.{i}.self_attn.q_norm",
    "block_{i}/self_attention/key_norm": "layers.{i}.self_attn.k_norm",
    "norm": "norm",
}
# These norms multiply by 1 + weight.
NAMES = ATTENTION_NAMES | {ours: At(theirs, added=1.0) for ours, theirs in _NORMS.items()}
_FULL, _LOCAL = "full_attention", "sliding_attention"


def gemma(fields, checkpoint):
    """`Architecture` of a gemma2 or gemma3_text config."""
    is_third = fields.get("model_type") == "gemma3_text"
    num_layers, num_heads = fields.count("num_hidden_layers"), fields.size("num_attention_heads")
    hidden_dim, intermediate_dim = fields.size("hidden_size"), fields.size("intermediate_size")
    num_key_value_heads, key_dim = fields.size("num_key_value_heads", 4), fields.size("head_dim", 256)
    vocabulary_size, epsilon = fields.size("vocab_size"), fields.number("rms_norm_eps", 1e-6)
    activation = fields.activation("hidden_activation", "gelu_pytorch_tanh")
    fields.get("hidden_act", None)  # of the first Gemma; `hidden_activation` counts
    attention_bias = fields.flag("attention_bias", False)
    attention_dropout = fields.number("attention_dropout", 0.0)
    scale = fields.number("query_pre_attn_scalar", 256) ** -0.5
    # A null is kept: it means none.
    attention_cap = None if is_third else fields.get("attn_logit_softcapping", 50.0)
    logit_cap = fields.get("final_logit_softcapping", None if is_third else 30.0)
    # transformers reads a cap of Gemma 3's attention, and does not apply it.
    fields.expect(use_bidirectional_attention=False, **({"attn_logit_softcapping": None} if is_third else {}))
    max_sequence_length = fields.get("max_position_embeddings", 8192)
    pad_token_id = fields.pad_token_id()
    output = checkpoint.output(fields, *SAME)
    window = fields.size("sliding_window", 4096, most=2**31)
    period = fields.get("sliding_window_pattern", fields.get("_sliding_window_pattern", 6 if is_third else 2))
    fields.get("_sliding_window_pattern", None)
    types = fields.layer_types(num_layers, (_FULL, _LOCAL), lambda i: _LOCAL if (i + 1) % period else _FULL)
    rotary = {
        kind: rotary_embedding(parameters, max_sequence_length)
        for kind, parameters in _rope_parameters(fields, is_third).items()
    }

    def block(i):
        sizes = num_heads, num_key_value_heads, key_dim, intermediate_dim
        return pre_norm_block(
            i,
            *sizes,
            activation,
            epsilon,
            query_key_norm=is_third,
            sandwich_norm=True,
            dropout=attention_dropout,
            use_bias=attention_bias,
            sliding_window=window if types[i] == _LOCAL else None,
            rotary_embedding=rotary[types[i]](),
            scale=scale,
            logit_soft_cap=attention_cap,
        )

    def make():
        token = TokenEmbedding(
            vocabulary_size, hidden_dim, logit_soft_cap=logit_cap, name="token", **output.options
        )
        blocks = list(map(block, range(num_layers)))
        return rms_norm_decoder(token, blocks, epsilon, max_sequence_length, pad_token_id)

    return Architecture(
        make, NAMES, "model.", same=output.same(*SAME), unused=HEADS, heads=last_token_head(fields)
    )


def _rope_parameters(fields, is_third):
    """{kind of layer: rotary parameters}. Local layers of Gemma 3 have a base of their own and no scaling."""
    given = fields.get("rope_parameters", None) or {}
    if is_third and set(given) & {_FULL, _LOCAL}:
        return {kind: given.get(kind) or {} for kind in (_FULL, _LOCAL)}
    everywhere = rope_parameters(fields, default_base=1_000_000.0 if is_third else 10000.0)
    if not is_third:
        return {_FULL: everywhere, _LOCAL: everywhere}
    local = {"rope_theta": fields.get("rope_local_base_freq", 10000.0)}
    return {_FULL: everywhere, _LOCAL: local}
