"""MPNet: BERT with relative positions besides the absolute ones, and without token types."""

from keras_attn.huggingface.architecture import Architecture
from keras_attn.huggingface.bert import head_dim, normed_embedding, post_norm_block
from keras_attn.huggingface.heads import classifiers, masked_language_model
from keras_attn.huggingface.name_tables import At
from keras_attn.layers import RelativePositionBias
from keras_attn.layers.normalization import LayerNormalization
from keras_attn.models import EncoderTransformer

_FIRST_POSITION = 2  # the id of the pad, which is 1 here in every model, + 1
_NUM_BUCKETS = 32  # transformers counts with these, and leaves more rows of a table unused
_LAYER = "encoder.layer.{i}"
NAMES = {
    "embedding/token": "embeddings.word_embeddings",
    "embedding/position": At("embeddings.position_embeddings", first_row=_FIRST_POSITION),
    "embedding/norm": "embeddings.LayerNorm",
    "block_{i}/self_attention/query": f"{_LAYER}.attention.attn.q",
    "block_{i}/self_attention/key": f"{_LAYER}.attention.attn.k",
    "block_{i}/self_attention/value": f"{_LAYER}.attention.attn.v",
    "block_{i}/self_attention/attention_output": f"{_LAYER}.attention.attn.o",
    "block_{i}/self_attention_residual/norm": f"{_LAYER}.attention.LayerNorm",
    "block_{i}/feed_forward/intermediate": f"{_LAYER}.intermediate.dense",
    "block_{i}/feed_forward/output": f"{_LAYER}.output.dense",
    "block_{i}/feed_forward_residual/norm": f"{_LAYER}.output.LayerNorm",
}
_HEADS = {
    r"pooler\..*": "head: the pooler",
    r"lm_head\..*": "head: masked language model",
    r"classifier\..*": "head: classification",
    r"qa_outputs\..*": "head: question answering",
}


def mpnet(fields, checkpoint):
    """`Architecture` of an mpnet config."""
    num_layers, num_heads = fields.count("num_hidden_layers"), fields.size("num_attention_heads")
    hidden_dim, intermediate_dim = fields.size("hidden_size"), fields.size("intermediate_size")
    vocabulary_size, num_positions = fields.size("vocab_size"), fields.size("max_position_embeddings")
    epsilon = fields.number("layer_norm_eps", 1e-12)
    activation, dropout = fields.activation("hidden_act", "gelu"), fields.number("hidden_dropout_prob", 0.1)
    attention_dropout, pad_token_id = (
        fields.number("attention_probs_dropout_prob", 0.1),
        fields.pad_token_id(),
    )
    fields.expect(pruned_heads={})
    num_rows = fields.size("relative_attention_num_buckets", _NUM_BUCKETS)
    if num_rows < _NUM_BUCKETS:
        raise ValueError(
            f"`relative_attention_num_buckets` of an mpnet config must be at least {_NUM_BUCKETS}. "
            f"Received: relative_attention_num_buckets={num_rows}."
        )

    def block(i, bias):
        sizes = num_heads, head_dim(hidden_dim, num_heads), intermediate_dim
        return post_norm_block(f"block_{i}", *sizes, activation, dropout, attention_dropout, epsilon, bias)

    def make():
        sizes = vocabulary_size, hidden_dim, num_positions - _FIRST_POSITION
        embedding = normed_embedding(*sizes, dropout, epsilon)
        bias = RelativePositionBias(_NUM_BUCKETS, max_distance=128, name="position_bias")
        return EncoderTransformer(
            embedding, [block(i, bias) for i in range(num_layers)], pad_token_id=pad_token_id
        )

    table = At("encoder.relative_attention_bias", last_rows=num_rows - _NUM_BUCKETS)
    names = NAMES | {"block_{i}/self_attention/position_bias": table}
    heads = _heads(fields.num_labels, fields.rate("hidden_dropout_prob"), epsilon)
    return Architecture(make, names, "mpnet.", unused=_HEADS, heads=heads)


def _heads(num_labels, dropout, epsilon):
    def masked():
        return masked_language_model(
            "embeddings.word_embeddings.weight",
            *("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
            make_norm=lambda: LayerNormalization(epsilon=epsilon, name="norm"),
        )

    names = ("classifier.out_proj", dropout)
    of_labels = classifiers(num_labels, *names, dense="classifier.dense", activation="tanh")
    return {"MaskedLM": masked, **of_labels}
