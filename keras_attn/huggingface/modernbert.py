"""ModernBERT: a pre-norm encoder with rotary positions, gated feed-forward networks, and windows in most layers."""

import keras

from keras_attn.checks import choose
from keras_attn.huggingface.architecture import Architecture
from keras_attn.huggingface.bert import head_dim
from keras_attn.huggingface.heads import classification, masked_language_model, token_classification
from keras_attn.huggingface.name_tables import At
from keras_attn.huggingface.rotary import rotary_embedding
from keras_attn.layers import EncoderBlock, FeedForward, MultiHeadAttention, SequenceEmbedding, TokenEmbedding
from keras_attn.models import EncoderTransformer

_FULL, _LOCAL = "full_attention", "sliding_attention"
_JOINED = "layers.{i}.attn.Wqkv"
NAMES = {
    "embedding/token": "embeddings.tok_embeddings",
    "embedding/norm": "embeddings.norm",
    "block_{i}/self_attention/query": At(_JOINED, part=(0, 3)),
    "block_{i}/self_attention/key": At(_JOINED, part=(1, 3)),
    "block_{i}/self_attention/value": At(_JOINED, part=(2, 3)),
    "block_{i}/self_attention/attention_output": "layers.{i}.attn.Wo",
    "block_{i}/self_attention_residual/norm": "layers.{i}.attn_norm",
    # The first half is what the activation is applied to.
    "block_{i}/feed_forward/gate": At("layers.{i}.mlp.Wi", part=(0, 2)),
    "block_{i}/feed_forward/intermediate": At("layers.{i}.mlp.Wi", part=(1, 2)),
    "block_{i}/feed_forward/output": "layers.{i}.mlp.Wo",
    "block_{i}/feed_forward_residual/norm": "layers.{i}.mlp_norm",
    "norm": "final_norm",
}
_HEADS = {
    r"head\..*": "head: the projection before logits",
    r"decoder\..*": "head: masked language model",
    r"classifier\..*": "head: classification",
}


def modernbert(fields, checkpoint):
    """`Architecture` of a modernbert config."""
    num_layers, num_heads = fields.count("num_hidden_layers"), fields.size("num_attention_heads")
    hidden_dim, intermediate_dim = fields.size("hidden_size"), fields.size("intermediate_size")
    vocabulary_size, epsilon = fields.size("vocab_size"), fields.number("norm_eps", 1e-5)
    fields.get("layer_norm_eps", None)  # older files have both
    activation = fields.activation("hidden_activation", "gelu")
    norm_bias, attention_bias = fields.flag("norm_bias", False), fields.flag("attention_bias", False)
    mlp_bias, attention_dropout = fields.flag("mlp_bias", False), fields.number("attention_dropout", 0.0)
    dropout, max_sequence_length = (
        fields.number("embedding_dropout", 0.0),
        fields.get("max_position_embeddings", 8192),
    )
    key_dim, pad_token_id = head_dim(hidden_dim, num_heads), fields.pad_token_id()
    window = fields.size("local_attention", 128, most=2**31) // 2 + 1
    period = fields.size("global_attn_every_n_layers", 3)
    types = fields.layer_types(num_layers, (_FULL, _LOCAL), lambda i: _LOCAL if i % period else _FULL)
    parameters = _rope_parameters(fields)
    rotary = {kind: rotary_embedding(parameters[kind], max_sequence_length) for kind in (_FULL, _LOCAL)}
    fields.expect(position_embedding_type="absolute")
    for name in _OF_TRAINING_AND_HEADS:
        fields.get(name, None)

    def norm(name="norm"):
        return keras.layers.LayerNormalization(epsilon=epsilon, center=norm_bias, name=name)

    def block(i):
        attention = MultiHeadAttention(
            num_heads,
            key_dim,
            dropout=attention_dropout,
            use_bias=attention_bias,
            sliding_window=window if types[i] == _LOCAL else None,
            rotary_embedding=rotary[types[i]](),
            name="self_attention",
        )
        feed_forward = FeedForward(
            intermediate_dim, activation=activation, gated=True, use_bias=mlp_bias, name="feed_forward"
        )
        return EncoderBlock(
            normalize_first=True,
            self_attention=attention,
            feed_forward=feed_forward,
            norm=norm(),
            # The embeddings have just been normalised.
            self_attention_norm=keras.layers.Identity() if i == 0 else None,
            name=f"block_{i}",
        )

    def make():
        token = TokenEmbedding(vocabulary_size, hidden_dim, scale=False, name="token")
        return EncoderTransformer(
            SequenceEmbedding(token, norm=norm(), dropout=dropout, name="embedding"),
            list(map(block, range(num_layers))),
            norm(),
            max_sequence_length=max_sequence_length,
            pad_token_id=pad_token_id,
        )

    return Architecture(make, NAMES, "model.", unused=_HEADS, heads=_heads(fields, norm))


def _heads(fields, norm):
    # The fields that matter to heads alone are read when a head is made.
    def names():
        return {
            "dense": "head.dense",
            "norm": "head.norm",
            "make_norm": norm,
            "use_intermediate_bias": fields.flag("classifier_bias", False),
            "activation": fields.activation("classifier_activation", "gelu"),
            "dropout": fields.rate("classifier_dropout"),
        }

    def masked():
        bias = "decoder.bias" if fields.flag("decoder_bias", True) else None
        token = "embeddings.tok_embeddings.weight"
        return masked_language_model(token, decoder="decoder", bias=bias, **{**names(), "dropout": 0.0})

    def of_texts():
        pooling = fields.get("classifier_pooling", "cls")
        pooling = choose("classifier_pooling", pooling, {"cls": "first", "mean": "mean"})
        return classification(fields.num_labels(), "classifier", pooling=pooling, **names())

    def of_tokens():
        return token_classification(fields.num_labels(), "classifier", **names())

    return {
        "MaskedLM": masked,
        "SequenceClassification": of_texts,
        "TokenClassification": of_tokens,
        "QuestionAnswering": of_tokens,
    }


_OF_TRAINING_AND_HEADS = (
    *(
        "mlp_dropout",
        "decoder_bias",
        "deterministic_flash_attn",
        "reference_compile",
        "repad_logits_with_grad",
    ),
    *("sparse_prediction", "sparse_pred_ignore_index", "classifier_reduction"),
)


def _rope_parameters(fields):
    """{kind of layer: rotary parameters}."""
    given = fields.get("rope_parameters", None) or {}
    everywhere, local = (
        fields.get("global_rope_theta", 160_000.0),
        fields.get("local_rope_theta", 10_000.0),
    )
    bases = {_FULL: everywhere, _LOCAL: everywhere if local is None else local}
    return {kind: {"rope_theta": base, **(given.get(kind) or {})} for kind, base in bases.items()}
