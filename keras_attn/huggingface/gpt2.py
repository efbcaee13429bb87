"""GPT-2, whose matrices are stored as (inputs, outputs), those of queries, keys and values as one."""

import itertools

from keras_attn.huggingface.architecture import (
    Architecture,
    head_dim,
    written_activation,
    written_pad,
    written_tie,
)
from keras_attn.huggingface.heads import last_token_head
from keras_attn.layers import (
    DecoderBlock,
    MultiHeadAttention,
    PositionEmbedding,
    SequenceEmbedding,
    TokenEmbedding,
)
from keras_attn.layers.normalization import LayerNormalization
from keras_attn.models import DecoderTransformer
from keras_attn.models.checkpoint_names import At

_JOINED = "h.{i}.attn.c_attn"
NAMES = {
    "embedding/token/embeddings": "wte.weight",
    "embedding/token/reverse_embeddings": "lm_head.weight",
    "embedding/position": "wpe",
    "block_{i}/self_attention/query": At(_JOINED, transposed=False, part=(0, 3)),
    "block_{i}/self_attention/key": At(_JOINED, transposed=False, part=(1, 3)),
    "block_{i}/self_attention/value": At(_JOINED, transposed=False, part=(2, 3)),
    "block_{i}/self_attention/attention_output": At("h.{i}.attn.c_proj", transposed=False),
    "block_{i}/self_attention_residual/norm": "h.{i}.ln_1",
    "block_{i}/feed_forward/intermediate": At("h.{i}.mlp.c_fc", transposed=False),
    "block_{i}/feed_forward/output": At("h.{i}.mlp.c_proj", transposed=False),
    "block_{i}/feed_forward_residual/norm": "h.{i}.ln_2",
    "norm": "ln_f",
}
_SAME = ("lm_head.weight", "wte.weight")
_UNUSED = {
    r"h\.\d+\.attn\.(masked_)?bias": "constant",
    r"score\..*": "head: classification",
    r"(classifier|qa_outputs)\..*": "head: classification of tokens or question answering",
    r"multiple_choice_head\..*": "head: multiple choice",
}


def gpt2(fields, checkpoint):
    """`Architecture` of a gpt2 config."""
    num_layers = fields.layer_count("n_layer")
    num_heads = fields.size("n_head")
    width = fields.size("n_embd")
    key_dim = head_dim(width, num_heads)
    intermediate_dim = fields.size("n_inner", None) or 4 * width
    num_positions = fields.size("n_positions")
    vocabulary_size = fields.size("vocab_size")
    activation = fields.activation("activation_function", "gelu_new")
    epsilon = fields.number("layer_norm_epsilon", 1e-5)
    dropout = fields.number("resid_pdrop", 0.1)
    embedding_dropout = fields.number("embd_pdrop", 0.1)
    attention_dropout = fields.number("attn_pdrop", 0.1)
    is_scaled = fields.flag("scale_attn_weights", True)
    by_layer = fields.flag("scale_attn_by_inverse_layer_idx", False)
    pad_token_id = fields.pad_token_id()
    output = checkpoint.output(fields, *_SAME)
    fields.expect(add_cross_attention=False, pruned_heads={})

    def block(i):
        attention = MultiHeadAttention(
            num_heads,
            key_dim,
            dropout=attention_dropout,
            scale=_scale(i, key_dim, is_scaled, by_layer),
            name="self_attention",
        )
        return DecoderBlock(
            intermediate_dim,
            dropout=dropout,
            activation=activation,
            normalize_first=True,
            self_attention=attention,
            norm=LayerNormalization(epsilon=epsilon),
            name=f"block_{i}",
        )

    def make():
        embedding = SequenceEmbedding(
            TokenEmbedding(vocabulary_size, width, scale=False, name="token", **output.options),
            position=PositionEmbedding(num_positions, name="position"),
            dropout=embedding_dropout,
            name="embedding",
        )
        blocks = [block(i) for i in range(num_layers)]
        norm = LayerNormalization(epsilon=epsilon, name="norm")
        return DecoderTransformer(embedding, blocks, norm, pad_token_id=pad_token_id)

    return Architecture(
        make, NAMES, "transformer.", same=output.same(*_SAME), unused=_UNUSED, heads=last_token_head(fields)
    )


def _scale(i, key_dim, is_scaled, by_layer):
    """The scale of the attention of layer number i; None for the usual one."""
    if not by_layer:
        return None if is_scaled else 1.0
    scale = key_dim**-0.5 if is_scaled else 1.0
    return scale / (i + 1)


def _scale_flags(model):
    """The fields with which layers have a model's scales; those of the usual scale if none has them."""
    attentions = [block.self_attention_layer for block in model.blocks]
    scales = [attention.scale for attention in attentions]
    for is_scaled, by_layer in itertools.product((True, False), (False, True)):
        if scales == [_scale(i, a.key_dim, is_scaled, by_layer) for i, a in enumerate(attentions)]:
            return {"scale_attn_weights": is_scaled, "scale_attn_by_inverse_layer_idx": by_layer}
    return {}


def gpt2_config(model):
    """The fields of a gpt2 config."""
    block = model.blocks[0]
    embedding = model.embedding
    return {
        **_scale_flags(model),
        "vocab_size": embedding.vocabulary_size,
        "n_embd": model.hidden_dim,
        "n_layer": len(model.blocks),
        "n_head": block.self_attention_layer.num_heads,
        "n_inner": block.feed_forward_layer.intermediate_dim,
        "activation_function": written_activation(block.feed_forward_layer),
        "n_positions": embedding.position.max_sequence_length,
        "resid_pdrop": block.dropout,
        "embd_pdrop": embedding.dropout,
        "attn_pdrop": block.self_attention_layer.dropout,
        "layer_norm_epsilon": block.residual_norms[0].epsilon,
        "tie_word_embeddings": written_tie(embedding.token),
        "pad_token_id": written_pad(model),
    }


# What `save_model` writes, by model_type.
CONFIGS = {"gpt2": gpt2_config}
