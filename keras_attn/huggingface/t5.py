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
from keras_attn.huggingface.name_tables import At
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

_SUBLAYERS = {
    "encoder": {"self_attention": (0, "SelfAttention"), "feed_forward": (1, "DenseReluDense")},
    "decoder": {
        "self_attention": (0, "SelfAttention"),
        "cross_attention": (1, "EncDecAttention"),
        "feed_forward": (2, "DenseReluDense"),
    },
}
_OF_ATTENTION = {"query": "q", "key": "k", "value": "v", "attention_output": "o"}
_GATED = {"gate": "wi_0", "intermediate": "wi_1", "output": "wo"}
_PLAIN = {"intermediate": "wi", "output": "wo"}


def t5(fields, checkpoint):
    """`Architecture` of a t5 or mt5 config."""
    num_encoder_layers = fields.count("num_layers")
    num_decoder_layers = fields.count("num_decoder_layers", None) or num_encoder_layers
    width, key_dim, intermediate_dim = fields.size("d_model"), fields.size("d_kv"), fields.size("d_ff")
    num_heads, vocabulary_size = fields.size("num_heads"), fields.size("vocab_size")
    num_buckets = fields.size("relative_attention_num_buckets", 32)
    max_distance = fields.size("relative_attention_max_distance", 128, most=2**20)
    dropout, epsilon = fields.number("dropout_rate", 0.1), fields.number("layer_norm_epsilon", 1e-6)
    activation, gated = _feed_forward(fields)
    scaled = fields.flag("scale_decoder_outputs", fields.get("tie_word_embeddings", True) is not False)
    scaled = scaled and fields.get("model_type") == "t5"
    output = checkpoint.output(fields, "lm_head.weight", "shared.weight")
    if output.gives_logits and not checkpoint.called("lm_head.weight"):
        # In files of the first version the field may say that it is not tied, and there is no other matrix.
        output = Output(is_tied=True)
    pad_token_id = fields.pad_token_id()
    # Positions are relative: the length of the sequences of training, which limits nothing.
    length = max(fields.size_or_null("n_positions", None, most=2**31) or 0, LONGEST_COMPUTED)
    fields.expect(is_decoder=False)

    def bias(side):
        # Half of an odd number of buckets, rounded down, is for each direction.
        odd = num_buckets % 2 if side == "encoder" else 0
        return RelativePositionBias(
            num_buckets - odd, max_distance, bidirectional=side == "encoder", name="position_bias"
        )

    def attention(slot, position_bias=None):
        return MultiHeadAttention(
            num_heads,
            key_dim,
            dropout=dropout,
            use_bias=False,
            scale=1.0,
            position_bias=position_bias,
            name=slot,
        )

    def norm(name="norm"):
        return keras.layers.RMSNormalization(epsilon=epsilon, name=name)

    def block(side, i, position_bias):
        block_class = EncoderBlock if side == "encoder" else DecoderBlock
        cross = {} if side == "encoder" else {"cross_attention": attention("cross_attention")}
        return block_class(
            normalize_first=True,
            dropout=dropout,
            self_attention=attention("self_attention", position_bias),
            feed_forward=FeedForward(
                intermediate_dim, activation=activation, gated=gated, use_bias=False, name="feed_forward"
            ),
            norm=norm(),
            name=f"{side}_block_{i}",
            **cross,
        )

    def make():
        token = TokenEmbedding(
            vocabulary_size,
            width,
            scale=False,
            output_scale=width**-0.5 if scaled else None,
            name="token",
            **output.options,
        )
        embedding = SequenceEmbedding(token, dropout=dropout, name="embedding")
        biases = {side: bias(side) for side in _SUBLAYERS}
        return Seq2SeqTransformer(
            embedding,
            embedding,
            [block("encoder", i, biases["encoder"]) for i in range(num_encoder_layers)],
            [block("decoder", i, biases["decoder"]) for i in range(num_decoder_layers)],
            norm("encoder_norm"),
            norm("decoder_norm"),
            max_sequence_length=length,
            pad_token_id=pad_token_id,
        )

    same = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    # Older files of the decoder have a table that the model never had.
    unused = {r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight": "never used"}
    unused |= {r"(classification_head|qa_outputs)\..*": "head: classification or question answering"}
    is_within = checkpoint.task == "SequenceClassification" or checkpoint.called("transformer.shared.weight")
    return Architecture(
        make,
        _names(gated, num_buckets % 2),
        "transformer." if is_within else "",
        same=output.same(*same, "lm_head.weight") or (same,),
        unused=unused,
        heads=reading_heads(fields, 1, max(pad_token_id, 0)),
    )


def _feed_forward(fields):
    """The activation, and whether the feed-forward networks are gated."""
    kind = fields.get("feed_forward_proj", "gated-gelu" if fields.get("model_type") == "mt5" else "relu")
    gated = isinstance(kind, str) and kind.startswith("gated-")
    # These two are made from `feed_forward_proj`, and written too.
    fields.expect(is_gated_act=gated)
    fields.get("dense_act_fn", None)
    if kind == "gated-gelu":  # which means the approximation
        return "gelu_tanh", True
    return fields.activation_named(kind.removeprefix("gated-") if gated else kind, "feed_forward_proj"), gated


def _names(gated, last_rows):
    names = {
        "embedding/token/embeddings": "shared.weight",
        "embedding/token/reverse_embeddings": "lm_head.weight",
    }
    for side, sublayers in _SUBLAYERS.items():
        first = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"
        names[f"{side}_block_{{i}}/self_attention/position_bias"] = At(
            first, last_rows=last_rows if side == "encoder" else 0
        )
        names[f"{side}_norm"] = f"{side}.final_layer_norm"
        for sublayer, (number, theirs) in sublayers.items():
            layer = f"{side}.block.{{i}}.layer.{number}"
            parts = _OF_ATTENTION if "attention" in sublayer else (_GATED if gated else _PLAIN)
            for part, their_part in parts.items():
                names[f"{side}_block_{{i}}/{sublayer}/{part}"] = f"{layer}.{theirs}.{their_part}"
            names[f"{side}_block_{{i}}/{sublayer}_residual/norm"] = f"{layer}.layer_norm"
    return names


def t5_config(model):
    """The fields of a t5 config."""
    block, token = model.encoder_blocks[0], model.source_embedding.token
    attention, feed_forward = block.self_attention_layer, block.feed_forward_layer
    bias = model.decoder_blocks[0].self_attention_layer.position_bias
    activation = written_activation(feed_forward)
    if feed_forward.gated:
        activation = f"gated-{'gelu' if activation == 'gelu_new' else activation}"
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
    """The fields of a mt5 config, whose logits are not scaled."""
    return {name: value for name, value in t5_config(model).items() if name != "scale_decoder_outputs"}


# What `save_model` writes, by model_type.
CONFIGS = {"t5": t5_config, "mt5": mt5_config}
