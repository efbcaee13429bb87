"""ModernBERT: a pre-norm encoder with rotary positions, gated feed-forward networks, and windows in most layers."""

import keras

from keras_attn.checks import choose
from keras_attn.huggingface.architecture import Architecture, head_dim
from keras_attn.huggingface.config_fields import FULL, LOCAL
from keras_attn.huggingface.heads import classification, masked_language_model, token_classification
from keras_attn.huggingface.rotary import rotary_embedding
from keras_attn.layers import EncoderBlock, FeedForward, MultiHeadAttention, SequenceEmbedding, TokenEmbedding
from keras_attn.models import EncoderTransformer
from keras_attn.models.checkpoint_names import At

_JOINED = "layers.{i}.attn.Wqkv"
NAMES = {
    "embedding/token": "embeddings.tok_embeddings",
    "embedding/norm": "embeddings.norm",
    "block_{i}/self_attention/query": At(_JOINED, part=(0, 3)),
    "block_{i}/self_attention/key": At(_JOINED, part=(1, 3)),
    "block_{i}/self_attention/value": At(_JOINED, part=(2, 3)),
    "block_{i}/self_attention/attention_output": "layers.{i}.attn.Wo",
    "block_{i}/self_attention_residual/norm": "layers.{i}.attn_norm",
    # The activation is applied to the first half.
    "block_{i}/feed_forward/gate": At("layers.{i}.mlp.Wi", part=(0, 2)),
    "block_{i}/feed_forward/intermediate": At("layers.{i}.mlp.Wi", part=(1, 2)),
    "block_{i}/feed_forward/output": "layers.{i}.mlp.Wo",
    "block_{i}/feed_forward_residual/norm": "layers.{i}.mlp_norm",
    "norm": "final_norm",
}
_UNUSED_HEADS = {
    r"head\..*": "head: the projection before logits",
    r"decoder\..*": "head: masked language model",
    r"classifier\..*": "head: classification",
}
# Fields that matter in training, or to heads, which read them when they are made.
_UNREAD = (
    "classifier_reduction decoder_bias deterministic_flash_attn mlp_dropout reference_compile "
    "repad_logits_with_grad sparse_pred_ignore_index sparse_prediction"
).split()


def modernbert(fields, checkpoint):
    """`Architecture` of a modernbert config."""
    hidden_dim = fields.size("hidden_size")
    vocabulary_size = fields.size("vocab_size")
    max_sequence_length = fields.get("max_position_embeddings", 8192)
    epsilon = fields.number("norm_eps", 1e-5)
    norm_bias = fields.flag("norm_bias", False)
    dropout = fields.number("embedding_dropout", 0.0)
    pad_token_id = fields.pad_token_id()
    fields.expect(position_embedding_type="absolute")
    fields.get("layer_norm_eps", None)  # older files have it beside `norm_eps`
    for name in _UNREAD:
        fields.get(name, None)

    def norm(name="norm"):
        return keras.layers.LayerNormalization(epsilon=epsilon, center=norm_bias, name=name)

    make_blocks = _blocks(fields, norm)

    def make():
        token = TokenEmbedding(vocabulary_size, hidden_dim, scale=False, name="token")
        return EncoderTransformer(
            SequenceEmbedding(token, norm=norm(), dropout=dropout, name="embedding"),
            make_blocks(),
            norm(),
            max_sequence_length=max_sequence_length,
            pad_token_id=pad_token_id,
        )

    return Architecture(make, NAMES, "model.", unused=_UNUSED_HEADS, heads=_heads(fields, norm))


def _blocks(fields, norm):
    """A function that makes the blocks."""
    num_layers = fields.layer_count("num_hidden_layers")
    num_heads = fields.size("num_attention_heads")
    key_dim = head_dim(fields.size("hidden_size"), num_heads)
    intermediate_dim = fields.size("intermediate_size")
    activation = fields.activation("hidden_activation", "gelu")
    attention_bias = fields.flag("attention_bias", False)
    mlp_bias = fields.flag("mlp_bias", False)
    dropout = fields.number("attention_dropout", 0.0)
    windows = {FULL: None, LOCAL: fields.size("local_attention", 128, most=2**31) // 2 + 1}
    period = fields.size("global_attn_every_n_layers", 3)
    types = fields.layer_types(num_layers, lambda i: LOCAL if i % period else FULL)
    max_sequence_length = fields.get("max_position_embeddings", 8192)
    make_rotary = {
        kind: rotary_embedding(parameters, max_sequence_length)
        for kind, parameters in _rope_parameters(fields).items()
    }

    def block(i):
        kind = types[i]
        attention = MultiHeadAttention(
            num_heads,
            key_dim,
            dropout=dropout,
            use_bias=attention_bias,
            sliding_window=windows[kind],
            rotary_embedding=make_rotary[kind](),
            name="self_attention",
        )
        feed_forward = FeedForward(
            intermediate_dim, activation=activation, gated=True, use_bias=mlp_bias, name="feed_forward"
        )
        # The embeddings have just been normalised.
        first_norm = keras.layers.Identity() if i == 0 else None
        return EncoderBlock(
            normalize_first=True,
            self_attention=attention,
            feed_forward=feed_forward,
            norm=norm(),
            self_attention_norm=first_norm,
            name=f"block_{i}",
        )

    return lambda: [block(i) for i in range(num_layers)]


def _heads(fields, norm):
    def dense():
        return {
            "dense": "head.dense",
            "norm": "head.norm",
            "make_norm": norm,
            "use_intermediate_bias": fields.flag("classifier_bias", False),
            "activation": fields.activation("classifier_activation", "gelu"),
        }

    def masked_head():
        bias = "decoder.bias" if fields.flag("decoder_bias", True) else None
        return masked_language_model(
            "embeddings.tok_embeddings.weight", decoder="decoder", bias=bias, dropout=0.0, **dense()
        )

    def text_head():
        dropout = fields.rate("classifier_dropout")
        pooling = fields.get("classifier_pooling", "cls")
        pooling = choose("classifier_pooling", pooling, {"cls": "first", "mean": "mean"})
        return classification(fields.num_labels(), "classifier", pooling=pooling, dropout=dropout, **dense())

    def token_head():
        dropout = fields.rate("classifier_dropout")
        return token_classification(fields.num_labels(), "classifier", dropout=dropout, **dense())

    return {
        "MaskedLM": masked_head,
        "SequenceClassification": text_head,
        "TokenClassification": token_head,
        "QuestionAnswering": token_head,
    }


def _rope_parameters(fields):
    """{kind of layer: rotary parameters}."""
    given = fields.get("rope_parameters", None) or {}
    full_base = fields.get("global_rope_theta", 160_000.0)
    local_base = fields.get("local_rope_theta", 10_000.0)
    if local_base is None:
        local_base = full_base
    return {
        FULL: {"rope_theta": full_base, **(given.get(FULL) or {})},
        LOCAL: {"rope_theta": local_base, **(given.get(LOCAL) or {})},
    }
