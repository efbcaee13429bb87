"""ALBERT: BERT with factorised embeddings, whose layers share their weights."""

import keras

from keras_attn.huggingface.architecture import Architecture
from keras_attn.huggingface.bert import head_dim, normed_embedding, post_norm_block
from keras_attn.huggingface.heads import classifiers, masked_language_model
from keras_attn.layers.normalization import LayerNormalization
from keras_attn.models import EncoderTransformer

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
_HEADS = {
    r"pooler\..*": "head: the pooler",
    r"predictions\..*": "head: masked language model",
    r"sop_classifier\..*": "head: order of sentences",
    r"classifier\..*": "head: classification",
    r"qa_outputs\..*": "head: question answering",
}


def albert(fields, checkpoint):
    """`Architecture` of an albert config."""
    # Layers share weights, so there may be more of them than tensors.
    num_layers = fields.size("num_hidden_layers", most=1000)
    num_groups, num_inner = fields.count("num_hidden_groups", 1), fields.count("inner_group_num", 1)
    num_heads, hidden_dim = fields.size("num_attention_heads"), fields.size("hidden_size")
    embedding_dim, intermediate_dim = fields.size("embedding_size", 128), fields.size("intermediate_size")
    vocabulary_size, num_types = fields.size("vocab_size"), fields.size("type_vocab_size", 2)
    num_positions, epsilon = fields.size("max_position_embeddings"), fields.number("layer_norm_eps", 1e-12)
    activation, dropout = (
        fields.activation("hidden_act", "gelu_new"),
        fields.number("hidden_dropout_prob", 0.0),
    )
    attention_dropout, pad_token_id = (
        fields.number("attention_probs_dropout_prob", 0.0),
        fields.pad_token_id(),
    )
    fields.expect(position_embedding_type="absolute", pruned_heads={})

    def block(group, i):
        sizes = num_heads, head_dim(hidden_dim, num_heads), intermediate_dim
        name = f"group_{group}_block_{i}"
        return post_norm_block(name, *sizes, activation, dropout, attention_dropout, epsilon)

    # Layer i is of this group; with fewer layers than groups, some groups have none.
    group_of = [int(i / (num_layers / num_groups)) for i in range(num_layers)]

    def make():
        projection = keras.layers.Dense(hidden_dim, name="projection")
        sizes = vocabulary_size, embedding_dim, num_positions
        embedding = normed_embedding(*sizes, dropout, epsilon, num_types, projection)
        groups = [[block(group, i) for i in range(num_inner)] for group in range(num_groups)]
        blocks = [block for number in group_of for block in groups[number]]
        return EncoderTransformer(embedding, blocks, pad_token_id=pad_token_id)

    empty = "|".join(str(group) for group in sorted(set(range(num_groups)) - set(group_of)))
    unused = {rf"encoder\.albert_layer_groups\.({empty})\..*": "a group without a layer"} if empty else {}
    heads = _heads(fields.num_labels, fields.rate("classifier_dropout_prob"), activation, epsilon)
    return Architecture(make, NAMES, "albert.", unused=_HEADS | unused, heads=heads)


def _heads(num_labels, dropout, activation, epsilon):
    def masked():
        return masked_language_model(
            "embeddings.word_embeddings.weight",
            *("predictions.dense", "predictions.LayerNorm", "predictions.decoder", "predictions.bias"),
            make_norm=lambda: LayerNormalization(epsilon=epsilon, name="norm"),
            activation=activation,
        )

    of_labels = classifiers(num_labels, "classifier", dropout, dense="pooler", activation="tanh")
    return {"MaskedLM": masked, **of_labels}
