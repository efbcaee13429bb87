"""T5 (1.0, 1.1, FLAN) and mT5: relative positions, no biases, logits of the first version scaled."""

import keras

from keras_attn.huggingface.architecture import (
    LONGEST_COMPUTED,
    Architecture,
    Output,
    written_activation,
    written_pad,
    written_tie,
)
from keras_attn.huggingface.heads import reading_heads
from keras_attn.layers import (
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    RelativePositionBias,
    SequenceEmbedding,
    TokenEmbedding,
)
from keras_attn.models import Seq2SeqTransformer
from keras_attn.models.checkpoint_names import At

_SUBLAYERS = {
    "encoder": {"self_attention": (0, "SelfAttention"), "feed_forward": (1, "DenseReluDense")},
    "decoder": {
        "self_attention": (0, "SelfAttention"),
        "cross_attention": (1, "EncDecAttention"),
        "feed_forward": (2, "DenseReluDense"),
    },
}
_ATTENTION = {"query": "q", "key": "k", "value": "v", "attention_output": "o"}
_TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_OUTPUT = "lm_head.weight"
_GATED = {"gate": "wi_0", "intermediate": "wi_1", "output": "wo"}
_PLAIN = {"intermediate": "wi", "output": "wo"}
_UNUSED = {
    # Older files of the decoder have a table that the model never had.
    r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight": "never used",
    r"(classification_head|qa_outputs)\..*": "head: classification or question answering",
}


def t5(fields, checkpoint):
    """`Architecture` of a t5 or mt5 config."""
    transformer = _Transformer(fields, checkpoint)
    same = transformer.output.same(*_TABLES, _OUTPUT)
    prefix = ""
    if checkpoint.task == "SequenceClassification" or checkpoint.tensors_named("transformer.shared.weight"):
        prefix = "transformer."
    return Architecture(
        transformer.model,
        transformer.names(),
        prefix,
        same=same or (_TABLES,),
        unused=_UNUSED,
        heads=reading_heads(fields, 1, max(transformer.pad_token_id, 0)),
    )


class _Transformer:
    """What a config says of the model, and the parts of the model."""

    def __init__(self, fields, checkpoint):
        self.num_encoder_layers = fields.layer_count("num_layers")
        self.num_decoder_layers = fields.layer_count("num_decoder_layers", None) or self.num_encoder_layers
        self.width = fields.size("d_model")
        self.key_dim = fields.size("d_kv")
        self.num_heads = fields.size("num_heads")
        self.intermediate_dim = fields.size("d_ff")
        self.activation, self.is_gated = _feed_forward(fields)
        self.num_buckets = fields.size("relative_attention_num_buckets", 32)
        self.max_distance = fields.size("relative_attention_max_distance", 128, most=2**20)
        self.dropout = fields.number("dropout_rate", 0.1)
        self.epsilon = fields.number("layer_norm_epsilon", 1e-6)
        self.vocabulary_size = fields.size("vocab_size")
        self.pad_token_id = fields.pad_token_id()
        # Positions are relative, so the length of the training sequences is no limit.
        num_positions = fields.size_or_null("n_positions", None, most=2**31) or 0
        self.max_sequence_length = max(num_positions, LONGEST_COMPUTED)
        is_tied = fields.get("tie_word_embeddings", True) is not False
        scales_logits = fields.flag("scale_decoder_outputs", is_tied)
        self.output_scale = None
        if scales_logits and fields.get("model_type") == "t5":
            self.output_scale = self.width**-0.5
        self.output = checkpoint.output(fields, _OUTPUT, "shared.weight")
        if self.output.gives_logits and not checkpoint.tensors_named(_OUTPUT):
            # Files of the first version may say that it is not tied, and hold no other matrix.
            self.output = Output(is_tied=True)
        fields.expect(is_decoder=False)

    def model(self):
        token = TokenEmbedding(
            self.vocabulary_size,
            self.width,
            scale=False,
            output_scale=self.output_scale,
            name="token",
            **self.output.options,
        )
        embedding = SequenceEmbedding(token, dropout=self.dropout, name="embedding")
        return Seq2SeqTransformer(
            embedding,
            embedding,
            self._encoder_blocks(),
            self._decoder_blocks(),
            self._norm("encoder_norm"),
            self._norm("decoder_norm"),
            max_sequence_length=self.max_sequence_length,
            pad_token_id=self.pad_token_id,
        )

    def _encoder_blocks(self):
        # Each direction has half of the buckets: nothing reads the last of an odd number.
        num_buckets = self.num_buckets // 2 * 2
        bias = RelativePositionBias(num_buckets, self.max_distance, bidirectional=True, name="position_bias")
        return [
            EncoderBlock(name=f"encoder_block_{i}", **self._block_parts(bias))
            for i in range(self.num_encoder_layers)
        ]

    def _decoder_blocks(self):
        bias = RelativePositionBias(
            self.num_buckets, self.max_distance, bidirectional=False, name="position_bias"
        )
        return [
            DecoderBlock(
                name=f"decoder_block_{i}",
                cross_attention=self._attention("cross_attention"),
                **self._block_parts(bias),
            )
            for i in range(self.num_decoder_layers)
        ]

    def _block_parts(self, position_bias):
        """The arguments that blocks of both sides have."""
        feed_forward = FeedForward(
            self.intermediate_dim,
            activation=self.activation,
            gated=self.is_gated,
            use_bias=False,
            name="feed_forward",
        )
        return {
            "normalize_first": True,
            "dropout": self.dropout,
            "self_attention": self._attention("self_attention", position_bias),
            "feed_forward": feed_forward,
            "norm": self._norm("norm"),
        }

    def _attention(self, slot, position_bias=None):
        return MultiHeadAttention(
            self.num_heads,
            self.key_dim,
            dropout=self.dropout,
            use_bias=False,
            scale=1.0,
            position_bias=position_bias,
            name=slot,
        )

    def _norm(self, name):
        return keras.layers.RMSNormalization(epsilon=self.epsilon, name=name)

    def names(self):
        names = {"embedding/token/embeddings": "shared.weight", "embedding/token/reverse_embeddings": _OUTPUT}
        unread_buckets = {"encoder": self.num_buckets % 2, "decoder": 0}
        for side, sublayers in _SUBLAYERS.items():
            table = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"
            names[f"{side}_block_{{i}}/self_attention/position_bias"] = At(
                table, last_rows=unread_buckets[side]
            )
            names[f"{side}_norm"] = f"{side}.final_layer_norm"
            for sublayer, (number, theirs) in sublayers.items():
                block = f"{side}_block_{{i}}/{sublayer}"
                layer = f"{side}.block.{{i}}.layer.{number}"
                if sublayer == "feed_forward":
                    parts = _GATED if self.is_gated else _PLAIN
                else:
                    parts = _ATTENTION
                for part, their_part in parts.items():
                    names[f"{block}/{part}"] = f"{layer}.{theirs}.{their_part}"
                names[f"{block}_residual/norm"] = f"{layer}.layer_norm"
        return names


def _feed_forward(fields):
    """The activation, and whether the feed-forward networks are gated."""
    default = "gated-gelu" if fields.get("model_type") == "mt5" else "relu"
    kind = fields.get("feed_forward_proj", default)
    is_gated = isinstance(kind, str) and kind.startswith("gated-")
    # These two are made from `feed_forward_proj`, and written too.
    fields.expect(is_gated_act=is_gated)
    fields.get("dense_act_fn", None)
    if kind == "gated-gelu":  # means the tanh approximation
        return "gelu_tanh", True
    name = kind.removeprefix("gated-") if is_gated else kind
    return fields.activation_named(name, "feed_forward_proj"), is_gated


def t5_config(model):
    """The fields of a t5 config."""
    block = model.encoder_blocks[0]
    token = model.source_embedding.token
    attention = block.self_attention_layer
    feed_forward = block.feed_forward_layer
    bias = model.decoder_blocks[0].self_attention_layer.position_bias
    activation = written_activation(feed_forward)
    if feed_forward.gated and activation == "gelu_new":
        activation = "gated-gelu"
    elif feed_forward.gated:
        activation = f"gated-{activation}"
    return {
        "vocab_size": token.vocabulary_size,
        "d_model": model.hidden_dim,
        "d_kv": attention.key_dim,
        "d_ff": feed_forward.intermediate_dim,
        "num_layers": len(model.encoder_blocks),
        "num_decoder_layers": len(model.decoder_blocks),
        "num_heads": attention.num_heads,
        "relative_attention_num_buckets": bias.num_buckets,
        "relative_attention_max_distance": bias.max_distance,
        "feed_forward_proj": activation,
        "dropout_rate": block.dropout,
        "layer_norm_epsilon": block.residual_norms[0].epsilon,
        "is_encoder_decoder": True,
        "scale_decoder_outputs": token.output_scale is not None,
        "tie_word_embeddings": written_tie(token),
        "pad_token_id": written_pad(model),
        "decoder_start_token_id": model.pad_token_id,
    }


def mt5_config(model):
    """The fields of an mt5 config, whose logits are not scaled."""
    config = t5_config(model)
    del config["scale_decoder_outputs"]
    return config


# What `save_model` writes, by model_type.
CONFIGS = {"t5": t5_config, "mt5": mt5_config}
