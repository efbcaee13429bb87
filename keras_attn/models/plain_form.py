"""The options of the blocks of a plain Transformer: the inverse of `from_sizes`, for other engines."""

import collections

import keras

from keras_attn.layers import (
    FeedForward,
    MultiHeadAttention,
    PositionEmbedding,
    RotaryEmbedding,
    SequenceEmbedding,
    SinusoidalPositionEncoding,
)
from keras_attn.layers.activations import serialize_activation

PlainForm = collections.namedtuple(
    "PlainForm",
    [
        "num_heads",
        "activation",
        "gated",
        "normalize_first",
        "normalization",
        "layer_norm_epsilon",
        "position_encoding",
    ],
)
PlainForm.__doc__ = """The options shared by all blocks of a plain Transformer, named as in `Sizes`."""

_OF_EVERY_LAYER = {"name", "trainable", "dtype"}
# Arguments that the form describes, or that do not change the outputs.
_OF_BLOCKS = _OF_EVERY_LAYER | {
    *("intermediate_dim", "num_heads", "dropout", "activation", "kernel_initializer", "bias_initializer"),
    *("normalize_first", "attention_dropout", "gated", "stochastic_depth", "remat"),
    *("self_attention", "cross_attention", "feed_forward", "norm"),
}
_OF_ATTENTION = _OF_EVERY_LAYER | {
    *("num_heads", "key_dim", "dropout", "flash_attention", "memory_efficient", "seed", "rotary_embedding"),
    *(
        f"{part}_{what}"
        for part in ("kernel", "bias")
        for what in ("initializer", "regularizer", "constraint")
    ),
    "activity_regularizer",
}
_OF_EMBEDDINGS = _OF_EVERY_LAYER | {"token", "position", "dropout"}
_POSITIONS = {SinusoidalPositionEncoding: "sinusoidal", PositionEmbedding: "learned", type(None): "rotary"}


def plain_form(model):
    """The `PlainForm` of a `Seq2SeqTransformer`.

    Raises:
        ValueError: if its parts are not those of a plain Transformer. The message names what is not plain.

    Example:

    ```python
    model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    assert plain_form(model).num_heads == 4
    ```
    """
    blocks = [*model.encoder_blocks, *model.decoder_blocks]
    if len({id(block) for block in blocks}) < len(blocks):
        raise ValueError(
            "Each block must have weights of its own. Received: a block that is in the list twice."
        )
    forms = {_form_of_block(block) for block in blocks}
    embeddings = {
        _form_of_embedding(embedding) for embedding in (model.source_embedding, model.target_embedding)
    }
    rotary = {form.position_encoding == "rotary" for form in forms}
    if len(forms) > 1 or len(embeddings) > 1 or rotary != {embeddings == {"rotary"}}:
        raise ValueError(f"All blocks must be alike. Received: {[*forms, *embeddings]}.")
    form = forms.pop()._replace(position_encoding=embeddings.pop())
    for norm in (model.encoder_norm, model.decoder_norm):
        if (norm is not None) != form.normalize_first:
            raise ValueError(
                "There must be a norm after each stack of pre-norm blocks, and none after post-norm blocks. "
                f"Received: normalize_first={form.normalize_first}, a last norm {norm}."
            )
    return form


def _form_of_block(block):
    _check_plain(block, type(block)(1, 1), _OF_BLOCKS)
    attention = [block.self_attention_layer]
    attention += [block.cross_attention_layer] if hasattr(block, "cross_attention_layer") else []
    for layer in attention:
        _check_class(layer, MultiHeadAttention)
        _check_plain(layer, MultiHeadAttention(layer.num_heads, layer.key_dim), _OF_ATTENTION)
    if len({layer.num_heads for layer in attention}) > 1:
        raise ValueError(f"All attention layers must have as many heads. Received: {attention}.")
    rotary = block.self_attention_layer.rotary_embedding
    if rotary is not None:
        _check_plain(rotary, RotaryEmbedding(), _OF_EVERY_LAYER)
    feed_forward = block.feed_forward_layer
    _check_class(feed_forward, FeedForward)
    if not feed_forward.use_bias:
        raise ValueError("The feed-forward networks must have biases. Received: use_bias=False.")
    norm = block.residual_norms[0]
    return PlainForm(
        attention[0].num_heads,
        serialize_activation(feed_forward.activation),
        feed_forward.gated,
        block.normalize_first,
        _normalization(norm),
        norm.epsilon,
        None if rotary is None else "rotary",
    )


def _form_of_embedding(embedding):
    _check_class(embedding, SequenceEmbedding)
    _check_plain(embedding, SequenceEmbedding(embedding.token), _OF_EMBEDDINGS)
    for name in ("output_scale", "logit_soft_cap"):
        if getattr(embedding.token, name, None) is not None:
            raise ValueError(
                f"`{name}` of the token embedding must be None. Received: {name}={getattr(embedding.token, name)}."
            )
    if type(embedding.position) not in _POSITIONS:
        raise ValueError(
            "`position` must be a `SinusoidalPositionEncoding`, a `PositionEmbedding` or None. "
            f"Received: position={embedding.position!r}."
        )
    return _POSITIONS[type(embedding.position)]


def _normalization(norm):
    if isinstance(norm, keras.layers.RMSNormalization):
        return "rms_norm"
    if isinstance(norm, keras.layers.LayerNormalization) and norm.center and norm.scale:
        return "layer_norm"
    raise ValueError(f"The norm must be layer norm or RMS norm. Received: norm={norm!r}.")


def _check_class(layer, expected):
    if type(layer) is not expected:
        raise ValueError(f"{layer.name!r} must be a {expected.__name__}. Received: {type(layer).__name__}.")


def _check_plain(layer, plain, of_no_interest):
    """Raises ValueError if arguments, except those `of_no_interest`, differ from those of `plain`."""
    config, expected = layer.get_config(), plain.get_config()
    other = [
        f"{name}={value!r}"
        for name, value in config.items()
        if name not in of_no_interest and value != expected.get(name)
    ]
    if other:
        raise ValueError(
            f"{layer.name!r} must be a plain {type(layer).__name__}. Received: {', '.join(other)}."
        )
