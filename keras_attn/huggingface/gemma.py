"""Gemma 2 and the text model of Gemma 3: a norm on both sides of each sub-layer, windows in some layers, soft caps."""

import collections

from keras_attn.huggingface.architecture import Architecture
from keras_attn.huggingface.config_fields import FULL, LOCAL
from keras_attn.huggingface.heads import last_token_head
from keras_attn.huggingface.llama import (
    ATTENTION_NAMES,
    SAME,
    UNUSED_HEADS,
    pre_norm_block,
    rms_norm_decoder,
)
from keras_attn.huggingface.rotary import rope_parameters, rotary_embedding
from keras_attn.layers import TokenEmbedding
from keras_attn.models.checkpoint_names import At

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
_Defaults = collections.namedtuple("_Defaults", "logit_cap period base")
_SECOND = _Defaults(logit_cap=30.0, period=2, base=10_000.0)
_THIRD = _Defaults(logit_cap=None, period=6, base=1_000_000.0)


def gemma(fields, checkpoint):
    """`Architecture` of a gemma2 or gemma3_text config."""
    is_third = fields.get("model_type") == "gemma3_text"
    defaults = _THIRD if is_third else _SECOND
    num_layers = fields.layer_count("num_hidden_layers")
    hidden_dim = fields.size("hidden_size")
    epsilon = fields.number("rms_norm_eps", 1e-6)
    attention_cap = None
    if is_third:
        # transformers reads a cap of Gemma 3's attention, and does not apply it.
        fields.expect(attn_logit_softcapping=None)
    else:
        attention_cap = fields.get("attn_logit_softcapping", 50.0)  # a null means none
    block_options = {
        "num_heads": fields.size("num_attention_heads"),
        "num_key_value_heads": fields.size("num_key_value_heads", 4),
        "key_dim": fields.size("head_dim", 256),
        "intermediate_dim": fields.size("intermediate_size"),
        "activation": fields.activation("hidden_activation", "gelu_pytorch_tanh"),
        "epsilon": epsilon,
        "query_key_norm": is_third,
        "sandwich_norm": True,
        "dropout": fields.number("attention_dropout", 0.0),
        "use_bias": fields.flag("attention_bias", False),
        "scale": fields.number("query_pre_attn_scalar", 256) ** -0.5,
        "logit_soft_cap": attention_cap,
    }
    fields.get("hidden_act", None)  # of the first Gemma; `hidden_activation` counts
    fields.expect(use_bidirectional_attention=False)
    vocabulary_size = fields.size("vocab_size")
    logit_cap = fields.get("final_logit_softcapping", defaults.logit_cap)
    max_sequence_length = fields.get("max_position_embeddings", 8192)
    pad_token_id = fields.pad_token_id()
    output = checkpoint.output(fields, *SAME)
    types = _layer_types(fields, num_layers, defaults.period)
    windows = {FULL: None, LOCAL: fields.size("sliding_window", 4096, most=2**31)}
    make_rotary = {
        kind: rotary_embedding(parameters, max_sequence_length)
        for kind, parameters in _rope_parameters(fields, defaults.base, is_third=is_third).items()
    }

    def block(i):
        kind = types[i]
        return pre_norm_block(
            i, sliding_window=windows[kind], rotary_embedding=make_rotary[kind](), **block_options
        )

    def make():
        token = TokenEmbedding(
            vocabulary_size, hidden_dim, logit_soft_cap=logit_cap, name="token", **output.options
        )
        blocks = [block(i) for i in range(num_layers)]
        return rms_norm_decoder(token, blocks, epsilon, max_sequence_length, pad_token_id)

    return Architecture(
        make, NAMES, "model.", same=output.same(*SAME), unused=UNUSED_HEADS, heads=last_token_head(fields)
    )


def _layer_types(fields, num_layers, period):
    """The kind of each layer; of so many layers the last is full, unless a field says another period."""
    period = fields.get("_sliding_window_pattern", period)
    period = fields.get("sliding_window_pattern", period)
    return fields.layer_types(num_layers, lambda i: LOCAL if (i + 1) % period else FULL)


def _rope_parameters(fields, default_base, *, is_third):
    """{kind of layer: rotary parameters}. Local layers of Gemma 3 have a base of their own and no scaling."""
    given = fields.get("rope_parameters", None) or {}
    if is_third and set(given) & {FULL, LOCAL}:
        return {kind: given.get(kind) or {} for kind in (FULL, LOCAL)}
    everywhere = rope_parameters(fields, default_base)
    if not is_third:
        return {FULL: everywhere, LOCAL: everywhere}
    local = {"rope_theta": fields.get("rope_local_base_freq", 10000.0)}
    return {FULL: everywhere, LOCAL: local}
