"""BERT, RoBERTa, XLM-RoBERTa and ELECTRA: one encoder; the four differ in the first position, the embedding and the heads."""

import collections
import dataclasses

import keras

from keras_attn.huggingface.architecture import Architecture, head_dim, written_activation, written_pad
from keras_attn.huggingface.heads import classifiers, masked_language_model
from keras_attn.layers import (
    EncoderBlock,
    MultiHeadAttention,
    PositionEmbedding,
    SequenceEmbedding,
    TokenEmbedding,
)
from keras_attn.layers.normalization import LayerNormalization
from keras_attn.models import EncoderTransformer
from keras_attn.models.checkpoint_names import At

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
_Form = collections.namedtuple(
    "_Form", "prefix predictions predictions_activation text_output text_dense text_activation"
)
_Form.__doc__ = """The names, and the activations, that differ between the types.

prefix: before the names of the body's tensors.
predictions: the masked language model's dense layer, norm, decoder and bias.
predictions_activation: after that dense layer; None for the one of the blocks.
text_dense, text_activation, text_output: a classifier of texts: projection, activation, projection to labels.
"""
_ROBERTA = _Form(
    prefix="roberta.",
    predictions=("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
    predictions_activation="gelu",
    text_output="classifier.out_proj",
    text_dense="classifier.dense",
    text_activation="tanh",
)
_FORMS = {
    "bert": _Form(
        prefix="bert.",
        predictions=(
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.decoder",
            "cls.predictions.bias",
        ),
        predictions_activation=None,
        text_output="classifier",
        text_dense="pooler.dense",
        text_activation="tanh",
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "electra": _Form(
        prefix="electra.",
        predictions=(
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            "generator_lm_head",
            "generator_lm_head.bias",
        ),
        predictions_activation="gelu",
        text_output="classifier.out_proj",
        text_dense="classifier.dense",
        text_activation="gelu",
    ),
}
# Heads that a model may lack: their tensors are not needed then.
UNUSED_HEADS = {
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
    form = _FORMS[model_type]
    encoder = PostNormEncoder.read(fields)
    num_types = fields.size("type_vocab_size", 2)
    width = encoder.hidden_dim
    if model_type == "electra":
        width = fields.size("embedding_size", 128)
    first_position = 0
    if "roberta" in model_type:
        first_position = encoder.pad_token_id + 1
    dropout = fields.rate("classifier_dropout", "hidden_dropout_prob")
    fields.expect(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    fields.expect(pruned_heads={}, tie_encoder_decoder=False)

    def make():
        projection = None
        if width != encoder.hidden_dim:
            projection = keras.layers.Dense(encoder.hidden_dim, name="projection")
        embedding = encoder.embedding(first_position, num_types, width, projection)
        return encoder.model(embedding)

    text_head = {"text": form.text_output, "dense": form.text_dense, "activation": form.text_activation}
    heads = encoder.heads(
        form.predictions,
        form.predictions_activation or encoder.activation,
        classifiers(fields.num_labels, dropout=dropout, **text_head),
    )
    position = At("embeddings.position_embeddings", first_row=first_position)
    return Architecture(
        make, NAMES | {"embedding/position": position}, form.prefix, unused=UNUSED_HEADS, heads=heads
    )


@dataclasses.dataclass(frozen=True)
class PostNormEncoder:
    """What configs of BERT, and of the models after it, say of their layers; and these layers."""

    num_layers: int
    num_heads: int
    hidden_dim: int
    intermediate_dim: int
    vocabulary_size: int
    num_positions: int
    activation: str
    dropout: float
    attention_dropout: float
    epsilon: float
    pad_token_id: int

    @classmethod
    def read(cls, fields, activation="gelu", dropout=0.1, most_layers=None):
        """The encoder of a config with BERT's names of fields.

        Args:
            fields: `Fields`.
            activation, dropout: For configs that lack these fields.
            most_layers: Integer, the most layers. Defaults to the number of tensors.
        """
        if most_layers is None:
            num_layers = fields.layer_count("num_hidden_layers")
        else:
            num_layers = fields.size("num_hidden_layers", most=most_layers)
        return cls(
            num_layers=num_layers,
            num_heads=fields.size("num_attention_heads"),
            hidden_dim=fields.size("hidden_size"),
            intermediate_dim=fields.size("intermediate_size"),
            vocabulary_size=fields.size("vocab_size"),
            num_positions=fields.size("max_position_embeddings"),
            activation=fields.activation("hidden_act", activation),
            dropout=fields.number("hidden_dropout_prob", dropout),
            attention_dropout=fields.number("attention_probs_dropout_prob", dropout),
            epsilon=fields.number("layer_norm_eps", 1e-12),
            pad_token_id=fields.pad_token_id(),
        )

    def embedding(self, first_position=0, num_types=None, width=None, projection=None):
        """The embedding.

        Args:
            first_position: Integer, the row of the first token in the checkpoint's table of positions.
            num_types: Integer, the number of token types, or None for an embedding without them.
            width: Integer. Defaults to that of the blocks.
            projection: Layer to the width of the blocks, or None.
        """
        width = self.hidden_dim if width is None else width
        token_type = None
        if num_types is not None:
            token_type = keras.layers.Embedding(num_types, width, name="token_type")
        return SequenceEmbedding(
            TokenEmbedding(self.vocabulary_size, width, scale=False, name="token"),
            position=PositionEmbedding(self.num_positions - first_position, name="position"),
            token_type=token_type,
            norm=self.norm(),
            dropout=self.dropout,
            projection=projection,
            name="embedding",
        )

    def block(self, name, position_bias=None):
        """A block, in which norms follow the residual sums."""
        attention = MultiHeadAttention(
            self.num_heads,
            head_dim(self.hidden_dim, self.num_heads),
            dropout=self.attention_dropout,
            position_bias=position_bias,
            name="self_attention",
        )
        return EncoderBlock(
            self.intermediate_dim,
            dropout=self.dropout,
            activation=self.activation,
            self_attention=attention,
            norm=LayerNormalization(epsilon=self.epsilon),
            name=name,
        )

    def norm(self):
        return LayerNormalization(epsilon=self.epsilon, name="norm")

    def model(self, embedding, blocks=None):
        """The `EncoderTransformer`, with a block for each layer unless others are given."""
        if blocks is None:
            blocks = [self.block(f"block_{i}") for i in range(self.num_layers)]
        return EncoderTransformer(embedding, blocks, pad_token_id=self.pad_token_id)

    def heads(self, predictions, activation, classifiers):
        """{task: function that returns the head}.

        Args:
            predictions: Names of the masked language model's dense layer, norm, decoder and bias.
            activation: That after its dense layer.
            classifiers: The heads of the other tasks, as `heads.classifiers` returns them.
        """

        def masked_head():
            return masked_language_model(
                "embeddings.word_embeddings.weight",
                *predictions,
                make_norm=self.norm,
                activation=activation,
            )

        return {"MaskedLM": masked_head, **classifiers}


def bert_config(model):
    """The fields of a bert config."""
    block = model.blocks[0]
    embedding = model.embedding
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
