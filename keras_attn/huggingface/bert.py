"""BERT, RoBERTa, XLM-RoBERTa and ELECTRA: one encoder, with positions, embeddings and heads of each kind."""

import keras

from keras_attn.huggingface.architecture import Architecture, written_activation, written_pad
from keras_attn.huggingface.heads import classifiers, masked_language_model
from keras_attn.huggingface.name_tables import At
from keras_attn.layers import (
    EncoderBlock,
    MultiHeadAttention,
    PositionEmbedding,
    SequenceEmbedding,
    TokenEmbedding,
)
from keras_attn.layers.normalization import LayerNormalization
from keras_attn.models import EncoderTransformer

NAMES = {
    "embedding/token": "embeddings.word_embeddings",
    "embedding/position": "embeddings.position_embeddings",
    "embedding/token_type": "embeddings.token_type_embeddings",
    "embedding/norm": "embeddings.LayerNorm",
    "embedding/projection": "embeddings_project",
    "block_{i}/self_attention/attention_output": "encoder.layer.{i}.attention.output.dense",
    "block_{i}/self_attention/{part}": "encoder.layer.{i}.attention.self.{part}",
    "block_{i}/self_attention_residual/norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "block_{i}/feed_forward/intermediate": "encoder.layer.{i}.intermediate.dense",
    "block_{i}/feed_forward/output": "encoder.layer.{i}.output.dense",
    "block_{i}/feed_forward_residual/norm": "encoder.layer.{i}.output.LayerNorm",
}
# The heads of masked language models: dense layer, norm, decoder, bias.
_PREDICTIONS = {
    "bert": (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.decoder",
        "cls.predictions.bias",
    ),
    "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
    "electra": (
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head",
        "generator_lm_head.bias",
    ),
}
_PREDICTIONS["xlm-roberta"] = _PREDICTIONS["roberta"]
_PREFIXES = {"bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta.", "electra": "electra."}
HEADS = {
    r"pooler\..*": "head: the pooler",
    r"cls\.seq_relationship\..*": "head: whether a sentence follows",
    r"cls\.predictions\..*|lm_head\..*|generator_.*": "head: masked language model",
    r"discriminator_.*": "head: ELECTRA's pre-training",
    r"classifier\..*": "head: classification",
    r"qa_outputs\..*": "head: question answering",
    r"sequence_summary\..*": "head: ELECTRA's multiple choice",
}


def bert(fields, checkpoint):
    """`Architecture` of a bert, roberta, xlm-roberta or electra config."""
    model_type = fields.get("model_type")
    num_layers, num_heads = fields.count("num_hidden_layers"), fields.size("num_attention_heads")
    hidden_dim, intermediate_dim = fields.size("hidden_size"), fields.size("intermediate_size")
    embedding_dim = fields.size("embedding_size", 128) if model_type == "electra" else hidden_dim
    vocabulary_size, num_types = fields.size("vocab_size"), fields.size("type_vocab_size", 2)
    activation, epsilon = (
        fields.activation("hidden_act", "gelu"),
        fields.number("layer_norm_eps", default=1e-12),
    )
    dropout = fields.number("hidden_dropout_prob", 0.1)
    attention_dropout = fields.number("attention_probs_dropout_prob", 0.1)
    pad_token_id = fields.pad_token_id()
    num_positions, first_position = fields.size("max_position_embeddings"), 0
    if "roberta" in model_type:  # the first token's position is the pad's id + 1
        first_position = pad_token_id + 1
    fields.expect(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    fields.expect(pruned_heads={}, tie_encoder_decoder=False)

    def block(i):
        sizes = num_heads, head_dim(hidden_dim, num_heads), intermediate_dim
        return post_norm_block(f"block_{i}", *sizes, activation, dropout, attention_dropout, epsilon=epsilon)

    def make():
        projection = None
        if embedding_dim != hidden_dim:
            projection = keras.layers.Dense(hidden_dim, name="projection")
        sizes = vocabulary_size, embedding_dim, num_positions - first_position
        embedding = normed_embedding(*sizes, dropout, epsilon, num_types, projection)
        return EncoderTransformer(embedding, list(map(block, range(num_layers))), pad_token_id=pad_token_id)

    position = At("embeddings.position_embeddings", first_row=first_position)
    head_dropout = fields.rate("classifier_dropout", "hidden_dropout_prob")
    heads = _heads(model_type, fields.num_labels, head_dropout, activation, epsilon)
    names = NAMES | {"embedding/position": position}
    return Architecture(make, names, _PREFIXES[model_type], unused=HEADS, heads=heads)


def _heads(model_type, num_labels, dropout, activation, epsilon):
    def masked():
        return masked_language_model(
            "embeddings.word_embeddings.weight",
            *_PREDICTIONS[model_type],
            make_norm=lambda: LayerNormalization(epsilon=epsilon, name="norm"),
            activation=activation if model_type == "bert" else "gelu",
        )

    text, dense, function = "classifier.out_proj", "classifier.dense", "tanh"
    if model_type == "bert":
        text, dense = "classifier", "pooler.dense"
    elif model_type == "electra":
        function = "gelu"
    of_labels = classifiers(num_labels, text, dropout, dense=dense, activation=function)
    return {"MaskedLM": masked, **of_labels}


def normed_embedding(
    vocabulary_size, width, num_positions, dropout, epsilon, num_types=None, projection=None
):
    """The embedding of BERT and of the models after it; without `num_types`, it has no token types."""
    return SequenceEmbedding(
        TokenEmbedding(vocabulary_size, width, scale=False, name="token"),
        position=PositionEmbedding(num_positions, name="position"),
        token_type=None if num_types is None else keras.layers.Embedding(num_types, width, name="token_type"),
        norm=LayerNormalization(epsilon=epsilon, name="norm"),
        dropout=dropout,
        projection=projection,
        name="embedding",
    )


def post_norm_block(
    name,
    num_heads,
    key_dim,
    intermediate_dim,
    activation,
    dropout,
    attention_dropout,
    epsilon,
    position_bias=None,
):
    """A block of BERT and of the models after it."""
    attention = MultiHeadAttention(
        num_heads, key_dim, dropout=attention_dropout, position_bias=position_bias, name="self_attention"
    )
    return EncoderBlock(
        intermediate_dim,
        dropout=dropout,
        activation=activation,
        self_attention=attention,
        norm=LayerNormalization(epsilon=epsilon),
        name=name,
    )


def head_dim(hidden_dim, num_heads):
    """The size of a head if all heads together are as wide as the model.

    Raises:
        ValueError: if they cannot be.
    """
    if hidden_dim % num_heads:
        raise ValueError(
            f"The width of a model must be divisible by its heads. Received: {hidden_dim}, {num_heads} heads."
        )
    return hidden_dim // num_heads


def bert_config(model):
    """The fields of a bert config."""
    block, embedding = model.blocks[0], model.embedding
    return {
        "vocab_size": embedding.vocabulary_size,
        "hidden_size": model.hidden_dim,
        "num_hidden_layers": len(model.blocks),
        "num_attention_heads": block.self_attention_layer.num_heads,
        "intermediate_size": block.feed_forward_layer.intermediate_dim,
        "hidden_act": written_activation(block.feed_forward_layer),
        "hidden_dropout_prob": embedding.dropout,
        "attention_probs_dropout_prob": block.self_attention_layer.dropout,
        "max_position_embeddings": embedding.position.max_sequence_length,
        "type_vocab_size": embedding.token_type.input_dim,
        "layer_norm_eps": block.residual_norms[0].epsilon,
        "pad_token_id": written_pad(model),
    }


# What `save_model` writes, by model_type.
CONFIGS = {"bert": bert_config}
