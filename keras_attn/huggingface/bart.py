"""BART, mBART, Pegasus, M2M-100 (NLLB) and Marian: the full Transformer, with positions and norms of each kind."""

import collections

from keras_attn.huggingface.architecture import (
    LONGEST_COMPUTED,
    Architecture,
    written_activation,
    written_pad,
    written_tie,
)
from keras_attn.huggingface.bert import head_dim
from keras_attn.huggingface.heads import reading_heads
from keras_attn.huggingface.name_tables import At
from keras_attn.layers import (
    DecoderBlock,
    EncoderBlock,
    MultiHeadAttention,
    PositionEmbedding,
    SequenceEmbedding,
    SinusoidalPositionEncoding,
    TokenEmbedding,
)
from keras_attn.layers.normalization import LayerNormalization
from keras_attn.models import Seq2SeqTransformer

_Form = collections.namedtuple(
    "_Form", ["normalize_first", "last_norm", "embedding_norm", "positions", "output_bias"]
)
_FORMS = {
    "bart": _Form(False, False, True, "learned", True),
    "mbart": _Form(True, True, True, "learned", True),
    "pegasus": _Form(True, True, False, "sinusoidal", True),
    "m2m_100": _Form(True, True, False, "fairseq", False),
    "marian": _Form(False, False, False, "sinusoidal", True),
}
_WITH_HEADS = ("bart", "mbart")
_FIRST_POSITION = 2  # of learned positions; fairseq kept two rows for other uses
_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "attention_output": "out_proj"}
_SUBLAYERS = {
    "encoder": {"self_attention": "self_attn"},
    "decoder": {"self_attention": "self_attn", "cross_attention": "encoder_attn"},
}
_TABLES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_UNUSED = {
    r"(encoder|decoder)\.embed_positions\.weights?": "sines, which are computed",
    r"(classification_head|qa_outputs)\..*": "head: classification or question answering",
}


def bart(fields, checkpoint):
    """`Architecture` of a bart, mbart, pegasus, m2m_100 or marian config."""
    form = _FORMS[fields.get("model_type")]
    width, vocabulary_size = fields.size("d_model"), fields.size("vocab_size")
    num_positions = fields.size("max_position_embeddings", most=2**31)
    if form.positions == "learned":
        num_positions = fields.size("max_position_embeddings")
    num_layers, num_heads, intermediate_dims = (
        {side: read(f"{side}_{name}") for side in _SUBLAYERS}
        for read, name in (
            (fields.count, "layers"),
            (fields.size, "attention_heads"),
            (fields.size, "ffn_dim"),
        )
    )
    is_m2m = form.positions == "fairseq"
    # The others have a table of positions there, of sines too, beyond which there is none.
    length = max(num_positions, LONGEST_COMPUTED) if is_m2m else num_positions
    activation = fields.activation("activation_function", "relu" if is_m2m else "gelu")
    dropout, attention_dropout = fields.number("dropout", 0.1), fields.number("attention_dropout", 0.0)
    scale = fields.flag("scale_embedding", is_m2m)
    if is_m2m and (width < 4 or width % 2):
        raise ValueError(
            f"`d_model` of an m2m_100 config must be even and at least 4. Received: d_model={width}."
        )
    is_marian = fields.get("model_type") == "marian"
    shared = fields.flag("share_encoder_decoder_embeddings", True) if is_marian else True
    if not fields.flag(
        "tie_word_embeddings", True
    ):  # then newer files of transformers hold a table for each side
        shared = shared and not checkpoint.differ(*_TABLES)
    target_vocabulary_size = vocabulary_size if shared else fields.size("decoder_vocab_size", vocabulary_size)
    fields.expect(**({"decoder_vocab_size": vocabulary_size} if shared else {}))
    pad_token_id = fields.pad_token_id()
    fields.expect(
        normalize_before=form.normalize_first,
        add_final_layer_norm=form.last_norm,
        normalize_embedding=form.embedding_norm,
        static_position_embeddings=form.positions == "sinusoidal",
        is_decoder=False,
    )
    table = "shared.weight" if shared else "decoder.embed_tokens.weight"
    output = checkpoint.output(fields, "lm_head.weight", table)
    heads = {}
    if fields.get("model_type") in _WITH_HEADS:
        heads = reading_heads(fields, 2, 2, wraps=fields.get("model_type") == "mbart")
    fields.get("tie_encoder_decoder", None)
    has_bias = form.output_bias and output.gives_logits and bool(checkpoint.called("final_logits_bias"))

    def position():
        if form.positions == "learned":
            return PositionEmbedding(num_positions, name="position")
        if form.positions == "fairseq":
            half = width // 2  # fairseq divides by one pair less
            return SinusoidalPositionEncoding(
                10000 ** (half / (half - 1)),
                interleaved=False,
                first_position=pad_token_id + 1,
                name="position",
            )
        return SinusoidalPositionEncoding(interleaved=False, name="position")

    def embedding(side, token):
        norm = LayerNormalization(epsilon=1e-5, name="norm") if form.embedding_norm else None
        return SequenceEmbedding(token, position(), norm=norm, dropout=dropout, name=f"{side}_embedding")

    def block(side, i):
        block_class = EncoderBlock if side == "encoder" else DecoderBlock
        heads = num_heads[side]
        attention = {
            slot: MultiHeadAttention(heads, head_dim(width, heads), dropout=attention_dropout, name=slot)
            for slot in _SUBLAYERS[side]
        }
        return block_class(
            intermediate_dims[side],
            dropout=dropout,
            activation=activation,
            normalize_first=form.normalize_first,
            norm=LayerNormalization(epsilon=1e-5),
            name=f"{side}_block_{i}",
            **attention,
        )

    def token(size, **options):
        return TokenEmbedding(size, width, scale=scale, name="token", **options)

    def make():
        options = {"use_output_bias": has_bias, **output.options}
        source = token(vocabulary_size, **options) if shared else token(vocabulary_size)
        target = source if shared else token(target_vocabulary_size, **options)
        norms = [
            LayerNormalization(epsilon=1e-5, name=f"{side}_norm") if form.last_norm else None
            for side in _SUBLAYERS
        ]
        return Seq2SeqTransformer(
            embedding("source", source),
            embedding("target", target),
            *([block(side, i) for i in range(num_layers[side])] for side in _SUBLAYERS),
            *norms,
            max_sequence_length=length,
            pad_token_id=pad_token_id,
        )

    has_source = bool(checkpoint.called(_TABLES[0]))
    unused = {r"shared\.weight": "each side has a table of its own"} if has_source and not shared else {}
    same = _same(shared, output.is_tied, has_source)
    return Architecture(make, _names(form, shared), "model.", same=same, unused=_UNUSED | unused, heads=heads)


def _same(shared, tied, has_source):
    output = ("lm_head.weight",) if tied else ()
    if shared:
        return (("shared.weight", *_TABLES, *output),)
    source, target = _TABLES
    return (source,) if has_source else (source, "shared.weight"), (target, *output)


def _names(form, shared):
    first_row = _FIRST_POSITION if form.positions == "learned" else 0
    names = {
        "source_embedding/token/embeddings": "shared.weight" if shared else "encoder.embed_tokens.weight",
        "target_embedding/token/embeddings": "decoder.embed_tokens.weight",
        "{embedding}/token/output_bias": At("final_logits_bias", leading_axis=True),
        "{embedding}/token/reverse_embeddings": "lm_head.weight",
    }
    for side, sublayers in _SUBLAYERS.items():
        embedding = "source_embedding" if side == "encoder" else "target_embedding"
        layer = f"{side}.layers.{{i}}"
        names[f"{embedding}/position"] = At(f"{side}.embed_positions", first_row=first_row)
        names[f"{embedding}/norm"] = f"{side}.layernorm_embedding"
        names[f"{side}_norm"] = f"{side}.layer_norm"
        for slot, theirs in sublayers.items():
            for part, their_part in _ATTENTION.items():
                names[f"{side}_block_{{i}}/{slot}/{part}"] = f"{layer}.{theirs}.{their_part}"
            names[f"{side}_block_{{i}}/{slot}_residual/norm"] = f"{layer}.{theirs}_layer_norm"
        names[f"{side}_block_{{i}}/feed_forward/intermediate"] = f"{layer}.fc1"
        names[f"{side}_block_{{i}}/feed_forward/output"] = f"{layer}.fc2"
        names[f"{side}_block_{{i}}/feed_forward_residual/norm"] = f"{layer}.final_layer_norm"
    return names


def marian_config(model):
    """The fields of a marian config."""
    first = {"encoder": model.encoder_blocks[0], "decoder": model.decoder_blocks[0]}
    block, token = first["encoder"], model.target_embedding.token
    config = {
        "vocab_size": model.vocabulary_size,
        "d_model": model.hidden_dim,
        "encoder_layers": len(model.encoder_blocks),
        "decoder_layers": len(model.decoder_blocks),
        "activation_function": written_activation(block.feed_forward_layer),
        "dropout": model.source_embedding.dropout,
        "attention_dropout": block.self_attention_layer.dropout,
        "scale_embedding": token.scale,
        "max_position_embeddings": model.max_sequence_length,
        "is_encoder_decoder": True,
        "tie_word_embeddings": written_tie(token),
        "pad_token_id": written_pad(model),
        "decoder_start_token_id": model.pad_token_id,
        "forced_eos_token_id": None,
    }
    for side, layer in first.items():
        config[f"{side}_attention_heads"] = layer.self_attention_layer.num_heads
        config[f"{side}_ffn_dim"] = layer.feed_forward_layer.intermediate_dim
    if model.source_embedding.token is not token:
        config |= {"decoder_vocab_size": token.vocabulary_size, "share_encoder_decoder_embeddings": False}
    return config


def pegasus_config(model):
    """The fields of a pegasus config."""
    if model.source_embedding.token is not model.target_embedding.token:
        raise ValueError(
            "A pegasus has one token embedding for both sides. Received: a model with two, which of the architectures of "
            "transformers only marian has, and that is post-norm (normalize_first=False)."
        )
    return marian_config(model)


# What `save_model` writes, by model_type.
CONFIGS = {"marian": marian_config, "pegasus": pegasus_config}
