"""BART, mBART, Pegasus, M2M-100 (NLLB) and Marian: the full Transformer, with positions and norms of each kind."""

import collections

from keras_attn.huggingface.architecture import (
    LONGEST_COMPUTED,
    Architecture,
    head_dim,
    written_activation,
    written_pad,
    written_tie,
)
from keras_attn.huggingface.heads import reading_heads
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
from keras_attn.models.checkpoint_names import At

_Form = collections.namedtuple(
    "_Form", "normalize_first last_norm embedding_norm positions output_bias activation", defaults=["gelu"]
)
_FORMS = {
    "bart": _Form(
        normalize_first=False, last_norm=False, embedding_norm=True, positions="learned", output_bias=True
    ),
    "mbart": _Form(
        normalize_first=True, last_norm=True, embedding_norm=True, positions="learned", output_bias=True
    ),
    "pegasus": _Form(
        normalize_first=True, last_norm=True, embedding_norm=False, positions="sinusoidal", output_bias=True
    ),
    "m2m_100": _Form(
        normalize_first=True,
        last_norm=True,
        embedding_norm=False,
        positions="fairseq",
        output_bias=False,
        activation="relu",
    ),
    "marian": _Form(
        normalize_first=False, last_norm=False, embedding_norm=False, positions="sinusoidal", output_bias=True
    ),
}
_WITH_HEADS = ("bart", "mbart")
_EPSILON = 1e-5
_FIRST_POSITION = 2  # of learned positions; fairseq kept two rows for other uses
_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "attention_output": "out_proj"}
_SUBLAYERS = {
    "encoder": {"self_attention": "self_attn"},
    "decoder": {"self_attention": "self_attn", "cross_attention": "encoder_attn"},
}
_SOURCE_TABLE = "encoder.embed_tokens.weight"
_TARGET_TABLE = "decoder.embed_tokens.weight"
_UNUSED = {
    r"(encoder|decoder)\.embed_positions\.weights?": "sines, which are computed",
    r"(classification_head|qa_outputs)\..*": "head: classification or question answering",
}


def bart(fields, checkpoint):
    """`Architecture` of a bart, mbart, pegasus, m2m_100 or marian config."""
    model_type = fields.get("model_type")
    transformer = _Transformer(fields, checkpoint)
    heads = {}
    if model_type in _WITH_HEADS:
        heads = reading_heads(fields, 2, 2, wraps=model_type == "mbart")
    unused = dict(_UNUSED)
    if transformer.has_source_table and not transformer.is_shared:
        unused[r"shared\.weight"] = "each side has a table of its own"
    return Architecture(
        transformer.model,
        transformer.names(),
        "model.",
        same=transformer.same_tensors(),
        unused=unused,
        heads=heads,
    )


class _Transformer:
    """What a config says of the model, and the parts of the model."""

    def __init__(self, fields, checkpoint):
        form = self.form = _FORMS[fields.get("model_type")]
        is_m2m = form.positions == "fairseq"
        self.width = fields.size("d_model")
        if is_m2m and (self.width < 4 or self.width % 2):
            raise ValueError(
                f"`d_model` of an m2m_100 config must be even and at least 4. Received: d_model={self.width}."
            )
        self.num_layers = {side: fields.layer_count(f"{side}_layers") for side in _SUBLAYERS}
        self.num_heads = {side: fields.size(f"{side}_attention_heads") for side in _SUBLAYERS}
        self.intermediate_dims = {side: fields.size(f"{side}_ffn_dim") for side in _SUBLAYERS}
        self.activation = fields.activation("activation_function", form.activation)
        self.dropout = fields.number("dropout", 0.1)
        self.attention_dropout = fields.number("attention_dropout", 0.0)
        self.scale = fields.flag("scale_embedding", is_m2m)
        self.pad_token_id = fields.pad_token_id()
        most_positions = None if form.positions == "learned" else 2**31
        self.num_positions = fields.size("max_position_embeddings", most=most_positions)
        self.max_sequence_length = self.num_positions
        if is_m2m:  # the others cannot exceed their table of positions, even of sines
            self.max_sequence_length = max(self.num_positions, LONGEST_COMPUTED)
        fields.expect(
            normalize_before=form.normalize_first,
            add_final_layer_norm=form.last_norm,
            normalize_embedding=form.embedding_norm,
            static_position_embeddings=form.positions == "sinusoidal",
            is_decoder=False,
        )
        fields.get("tie_encoder_decoder", None)
        self._read_tables(fields, checkpoint)

    def _read_tables(self, fields, checkpoint):
        """The tables of tokens and the output projection: which are there, and which are one."""
        self.is_shared = True
        if fields.get("model_type") == "marian":
            self.is_shared = fields.flag("share_encoder_decoder_embeddings", True)
        if not fields.flag("tie_word_embeddings", True):
            # Then newer files of transformers hold a table for each side.
            self.is_shared = self.is_shared and not checkpoint.differ(_SOURCE_TABLE, _TARGET_TABLE)
        self.vocabulary_size = fields.size("vocab_size")
        if self.is_shared:
            self.target_vocabulary_size = self.vocabulary_size
            fields.expect(decoder_vocab_size=self.vocabulary_size)
        else:
            self.target_vocabulary_size = fields.size("decoder_vocab_size", self.vocabulary_size)
        self.has_source_table = bool(checkpoint.tensors_named(_SOURCE_TABLE))
        table = "shared.weight" if self.is_shared else _TARGET_TABLE
        self.output = checkpoint.output(fields, "lm_head.weight", table)
        has_bias = self.form.output_bias and self.output.gives_logits
        self.has_output_bias = has_bias and bool(checkpoint.tensors_named("final_logits_bias"))

    def model(self):
        output = {"use_output_bias": self.has_output_bias, **self.output.options}
        if self.is_shared:
            source_token = target_token = self._token(self.vocabulary_size, **output)
        else:
            source_token = self._token(self.vocabulary_size)
            target_token = self._token(self.target_vocabulary_size, **output)
        return Seq2SeqTransformer(
            self._embedding("source", source_token),
            self._embedding("target", target_token),
            self._blocks("encoder"),
            self._blocks("decoder"),
            self._last_norm("encoder"),
            self._last_norm("decoder"),
            max_sequence_length=self.max_sequence_length,
            pad_token_id=self.pad_token_id,
        )

    def _token(self, vocabulary_size, **output):
        return TokenEmbedding(vocabulary_size, self.width, scale=self.scale, name="token", **output)

    def _embedding(self, side, token):
        norm = None
        if self.form.embedding_norm:
            norm = LayerNormalization(epsilon=_EPSILON, name="norm")
        return SequenceEmbedding(
            token, self._position(), norm=norm, dropout=self.dropout, name=f"{side}_embedding"
        )

    def _position(self):
        if self.form.positions == "learned":
            return PositionEmbedding(self.num_positions, name="position")
        if self.form.positions == "sinusoidal":
            return SinusoidalPositionEncoding(interleaved=False, name="position")
        half = self.width // 2  # fairseq divides by one pair less
        return SinusoidalPositionEncoding(
            10000 ** (half / (half - 1)),
            interleaved=False,
            first_position=self.pad_token_id + 1,
            name="position",
        )

    def _blocks(self, side):
        return [self._block(side, i) for i in range(self.num_layers[side])]

    def _block(self, side, i):
        block_class = EncoderBlock if side == "encoder" else DecoderBlock
        num_heads = self.num_heads[side]
        attention = {
            slot: MultiHeadAttention(
                num_heads, head_dim(self.width, num_heads), dropout=self.attention_dropout, name=slot
            )
            for slot in _SUBLAYERS[side]
        }
        return block_class(
            self.intermediate_dims[side],
            dropout=self.dropout,
            activation=self.activation,
            normalize_first=self.form.normalize_first,
            norm=LayerNormalization(epsilon=_EPSILON),
            name=f"{side}_block_{i}",
            **attention,
        )

    def _last_norm(self, side):
        if not self.form.last_norm:
            return None
        return LayerNormalization(epsilon=_EPSILON, name=f"{side}_norm")

    def same_tensors(self):
        """The groups of names of one tensor, as in `Architecture`."""
        output = ("lm_head.weight",) if self.output.is_tied else ()
        if self.is_shared:
            return (("shared.weight", _SOURCE_TABLE, _TARGET_TABLE, *output),)
        source = (_SOURCE_TABLE,) if self.has_source_table else (_SOURCE_TABLE, "shared.weight")
        return (source, (_TARGET_TABLE, *output))

    def names(self):
        first_row = _FIRST_POSITION if self.form.positions == "learned" else 0
        source_table = "shared.weight" if self.is_shared else _SOURCE_TABLE
        names = {
            "source_embedding/token/embeddings": source_table,
            "target_embedding/token/embeddings": _TARGET_TABLE,
            "{embedding}/token/output_bias": At("final_logits_bias", leading_axis=True),
            "{embedding}/token/reverse_embeddings": "lm_head.weight",
        }
        for side, embedding in (("encoder", "source_embedding"), ("decoder", "target_embedding")):
            block = f"{side}_block_{{i}}"
            layer = f"{side}.layers.{{i}}"
            names[f"{embedding}/position"] = At(f"{side}.embed_positions", first_row=first_row)
            names[f"{embedding}/norm"] = f"{side}.layernorm_embedding"
            names[f"{side}_norm"] = f"{side}.layer_norm"
            for slot, theirs in _SUBLAYERS[side].items():
                for part, their_part in _ATTENTION.items():
                    names[f"{block}/{slot}/{part}"] = f"{layer}.{theirs}.{their_part}"
                names[f"{block}/{slot}_residual/norm"] = f"{layer}.{theirs}_layer_norm"
            names[f"{block}/feed_forward/intermediate"] = f"{layer}.fc1"
            names[f"{block}/feed_forward/output"] = f"{layer}.fc2"
            names[f"{block}/feed_forward_residual/norm"] = f"{layer}.final_layer_norm"
        return names


def marian_config(model):
    """The fields of a marian config."""
    encoder_block = model.encoder_blocks[0]
    decoder_block = model.decoder_blocks[0]
    token = model.target_embedding.token
    config = {
        "vocab_size": model.vocabulary_size,
        "d_model": model.hidden_dim,
        "encoder_layers": len(model.encoder_blocks),
        "decoder_layers": len(model.decoder_blocks),
        "activation_function": written_activation(encoder_block.feed_forward_layer),
        "dropout": model.source_embedding.dropout,
        "attention_dropout": encoder_block.self_attention_layer.dropout,
        "scale_embedding": token.scale,
        "max_position_embeddings": model.max_sequence_length,
        "is_encoder_decoder": True,
        "tie_word_embeddings": written_tie(token),
        "pad_token_id": written_pad(model),
        "decoder_start_token_id": model.pad_token_id,
        "forced_eos_token_id": None,
        "encoder_attention_heads": encoder_block.self_attention_layer.num_heads,
        "decoder_attention_heads": decoder_block.self_attention_layer.num_heads,
        "encoder_ffn_dim": encoder_block.feed_forward_layer.intermediate_dim,
        "decoder_ffn_dim": decoder_block.feed_forward_layer.intermediate_dim,
    }
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
