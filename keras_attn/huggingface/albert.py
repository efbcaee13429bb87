"""ALBERT: BERT with factorised embeddings, whose layers share their weights."""

import keras

from keras_attn.huggingface.architecture import Architecture
from keras_attn.huggingface.bert import PostNormEncoder
from keras_attn.huggingface.heads import classifiers

_LAYER = "encoder.albert_layer_groups.{group}.albert_layers.{i}"
NAMES = {
    "embedding/token": "embeddings.word_embeddings",
    "embedding/position": "embeddings.position_embeddings",
    "embedding/token_type": "embeddings.token_type_embeddings",
    "embedding/norm": "embeddings.LayerNorm",
    "embedding/projection": "encoder.embedding_hidden_mapping_in",
    "group_{group}_block_{i}/self_attention/attention_output": f"{_LAYER}.attention.dense",
    "group_{group}_block_{i}/self_attention/{part}": f"{_LAYER}.attention.{{part}}",
    "group_{group}_block_{i}/self_attention_residual/norm": f"{_LAYER}.attention.LayerNorm",
    "group_{group}_block_{i}/feed_forward/intermediate": f"{_LAYER}.ffn",
    "group_{group}_block_{i}/feed_forward/output": f"{_LAYER}.ffn_output",
    "group_{group}_block_{i}/feed_forward_residual/norm": f"{_LAYER}.full_layer_layer_norm",
}
_UNUSED_HEADS = {
    r"pooler\..*": "head: the pooler",
    r"predictions\..*": "head: masked language model",
    r"sop_classifier\..*": "head: order of sentences",
    r"classifier\..*": "head: classification",
    r"qa_outputs\..*": "head: question answering",
}
_PREDICTIONS = (
    "predictions.dense",
    "predictions.LayerNorm",
    "predictions.decoder",
    "predictions.bias",
)


def albert(fields, checkpoint):
    """`Architecture` of an albert config."""
    # Layers share weights, so there may be more of them than tensors.
    encoder = PostNormEncoder.read(fields, activation="gelu_new", dropout=0.0, most_layers=1000)
    num_groups = fields.layer_count("num_hidden_groups", 1)
    blocks_per_group = fields.layer_count("inner_group_num", 1)
    width = fields.size("embedding_size", 128)
    num_types = fields.size("type_vocab_size", 2)
    fields.expect(position_embedding_type="absolute", pruned_heads={})
    # The group of each layer; with fewer layers than groups, some groups have none.
    layers_per_group = encoder.num_layers / num_groups
    layer_groups = [int(i / layers_per_group) for i in range(encoder.num_layers)]

    def make():
        projection = keras.layers.Dense(encoder.hidden_dim, name="projection")
        embedding = encoder.embedding(num_types=num_types, width=width, projection=projection)
        groups = [
            [encoder.block(f"group_{group}_block_{i}") for i in range(blocks_per_group)]
            for group in range(num_groups)
        ]
        blocks = [block for group in layer_groups for block in groups[group]]
        return encoder.model(embedding, blocks)

    unused = dict(_UNUSED_HEADS)
    groups_without_layers = sorted(set(range(num_groups)) - set(layer_groups))
    if groups_without_layers:
        numbers = "|".join(map(str, groups_without_layers))
        unused[rf"encoder\.albert_layer_groups\.({numbers})\..*"] = "a group without a layer"
    dropout = fields.rate("classifier_dropout_prob")
    heads = encoder.heads(
        _PREDICTIONS,
        encoder.activation,
        classifiers(fields.num_labels, "classifier", dropout, dense="pooler", activation="tanh"),
    )
    return Architecture(make, NAMES, "albert.", unused=unused, heads=heads)
