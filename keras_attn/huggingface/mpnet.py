"""MPNet: BERT with relative positions besides the absolute ones, and without token types."""

from keras_attn.huggingface.architecture import Architecture
from keras_attn.huggingface.bert import PostNormEncoder
from keras_attn.huggingface.heads import classifiers
from keras_attn.layers import RelativePositionBias
from keras_attn.models.checkpoint_names import At

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
_UNUSED_HEADS = {
    r"pooler\..*": "head: the pooler",
    r"lm_head\..*": "head: masked language model",
    r"classifier\..*": "head: classification",
    r"qa_outputs\..*": "head: question answering",
}
_PREDICTIONS = ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias")


def mpnet(fields, checkpoint):
    """`Architecture` of an mpnet config."""
    encoder = PostNormEncoder.read(fields)
    fields.expect(pruned_heads={})
    num_rows = fields.size("relative_attention_num_buckets", _NUM_BUCKETS)
    if num_rows < _NUM_BUCKETS:
        raise ValueError(
            f"`relative_attention_num_buckets` of an mpnet config must be at least {_NUM_BUCKETS}. "
            f"Received: relative_attention_num_buckets={num_rows}."
        )

    def make():
        embedding = encoder.embedding(_FIRST_POSITION)
        bias = RelativePositionBias(_NUM_BUCKETS, max_distance=128, name="position_bias")
        blocks = [encoder.block(f"block_{i}", bias) for i in range(encoder.num_layers)]
        return encoder.model(embedding, blocks)

    table = At("encoder.relative_attention_bias", last_rows=num_rows - _NUM_BUCKETS)
    names = NAMES | {"block_{i}/self_attention/position_bias": table}
    dropout = fields.rate("hidden_dropout_prob")
    text_head = {"text": "classifier.out_proj", "dense": "classifier.dense", "activation": "tanh"}
    heads = encoder.heads(_PREDICTIONS, "gelu", classifiers(fields.num_labels, dropout=dropout, **text_head))
    return Architecture(make, names, "mpnet.", unused=_UNUSED_HEADS, heads=heads)
