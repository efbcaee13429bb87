"""The base classes of the Transformer models, which are made of parts: configured layers."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import keras
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.layers.clean_padding import clean_padding_scope
from keras_attn.layers.embeddings import SequenceEmbedding
from keras_attn.layers.layer_slots import (
    check_layer,
    check_norm,
    config_policy,
    describe_shared_layers,
    description,
    global_policy,
    is_described,
    position_arguments,
    with_layers,
)
from keras_attn.layers.lora_and_quantization import Adaptable
from keras_attn.layers.masks import TokenInfo, combined_padding_mask
from keras_attn.models.quantization import config_that_comes_back
from keras_attn.ops import padding_mask, token_positions

DEFAULT_MAX_SEQUENCE_LENGTH = 512


@dataclasses.dataclass(frozen=True)
class Tokens(TokenInfo):
    """The tokens of one side of a call, and what is known about them.

    Args:
        padding_mask, segment_ids: As in `TokenInfo`.
        positions: Integers (T,) or (B, T), or None for those that follow from the padding mask, see
            `keras_attn.ops.token_positions`. Blocks then get no positions: their attention depends on distances, or counts
            tokens itself.
        token_ids: Integers (B, T), or None where only the mask is needed.
    """

    token_ids: Any = None


class Transformer(Adaptable, keras.Model):
    """The base of the models: it keeps their parts, builds them, and writes them into configs.

    A model is built as soon as it is made. A subclass takes its parts with `_take_parts`, and lists them in `_SLOTS`; its
    arguments that are numbers are in `_OPTIONS`.
    """

    _OPTIONS = ("max_sequence_length", "pad_token_id")
    # JSON of the files that stood beside the weights that the model was loaded from, see huggingface/origin.py.
    origin = None

    def _take_parts(self, **parts):
        """Sets each part, a layer, a list of layers or None, as the attribute of its name."""
        for name, part in parts.items():
            if isinstance(part, (list, tuple)):
                _check_layers(name, part)
            elif name.endswith("norm"):
                check_norm(name, part)
            else:
                check_layer(name, part)
            setattr(self, name, part)

    def _build_stack(self, embedding, blocks, norm, *encoder_shapes):
        """Builds the parts of one side, and returns the shape (None, None, D) of its sequences."""
        if not embedding.built:
            embedding.build((None, None))
        shape = tuple(embedding.compute_output_shape((None, None)))
        for block in blocks:
            if not block.built:
                block.build(shape, *encoder_shapes)
        if norm is not None and not norm.built:
            norm.build(shape)
        self._hidden_dim = shape[-1]
        return shape

    @property
    def hidden_dim(self):
        """Integer D, the width of the model."""
        return self._hidden_dim

    def _tokens(self, token_ids, padding_mask=None, positions=None, segment_ids=None):
        """`Tokens`: without a mask the pads are found by their id; positions start again with every segment."""
        padding_mask = padding_mask_of_ids(token_ids, padding_mask, self.pad_token_id)
        if positions is None and segment_ids is not None:
            positions = token_positions(padding_mask, ops.cast(segment_ids, "int32"))
        return Tokens(padding_mask, positions, segment_ids, token_ids)

    def _side_tokens(self, inputs, side=""):
        """`Tokens` of one side of a dict of inputs, whose names begin with `side`."""
        return self._tokens(
            inputs[f"{side}token_ids"],
            padding_mask=inputs.get(f"{side}padding_mask"),
            positions=inputs.get(f"{side}positions"),
            segment_ids=inputs.get(f"{side}segment_ids"),
        )

    def _embed(self, embedding, tokens, training, **arguments):
        """The vectors (B, T, D) that the first block reads."""
        arguments |= position_arguments(embedding, tokens.positions, tokens.padding_mask)
        return embedding(tokens.token_ids, training=training, **arguments)

    def _output_mask(self, inputs, side=""):
        """The mask, boolean (B, T), that Keras carries on outputs for tokens: the padding mask that the model itself uses."""
        inputs = as_dict(inputs)
        tokens = self._tokens(inputs[f"{side}token_ids"], inputs.get(f"{side}padding_mask"))
        return ops.cast(tokens.padding_mask, "bool")

    def _run_encoder_blocks(self, vectors, blocks, norm, tokens, training):
        """The vectors (B, T, D) of an embedding after encoder blocks and their norm."""
        with clean_padding_scope((vectors, tokens.real_tokens)) as (x,):
            for block in blocks:
                x = block(
                    x,
                    padding_mask=tokens.padding_mask,
                    training=training,
                    positions=tokens.positions,
                    segment_ids=tokens.segment_ids,
                )
        return x if norm is None else norm(x)

    def _logits_or_vectors(self, x, embedding, norm):
        """Logits of all tokens, or the normed vectors if the embedding has no output projection."""
        if gives_logits(embedding):
            return self._logits(x, embedding, norm)
        return x if norm is None else norm(x)

    def _logits(self, x, embedding, norm, projection=None):
        """Logits of all tokens, or of those of an `output_projection` of the token embedding."""
        if norm is not None:
            x = norm(x)
        if projection is None:
            logits = embedding(x, reverse=True)
        else:
            logits = embedding.token.logits_by(projection, x)
        return ops.cast(logits, "float32")

    def _parts(self):
        parts = {}
        for slot in self._SLOTS:
            value = getattr(self, slot)
            layers = value if isinstance(value, (list, tuple)) else [value]
            # A norm may be None, and blocks may share layers.
            parts |= {id(layer): layer for layer in layers if hasattr(layer, "quantize")}
        return list(parts.values())

    @classmethod
    def from_config(cls, config):
        """The model that a config describes, with new parts. Layers that parts share are shared again."""
        config = dict(config)
        origin = config.pop("origin", None)
        with global_policy(config_policy(config)):
            model = cls(**with_layers(config, cls._SLOTS))
        model.origin = origin
        return model

    def get_config(self):
        config = super().get_config()
        with describe_shared_layers():
            config |= {slot: _describe(getattr(self, slot)) for slot in self._SLOTS}
        config |= {name: getattr(self, name) for name in self._OPTIONS}
        if self.origin is not None:
            config["origin"] = self.origin
        return config if is_described() else config_that_comes_back(self, config)


class OneStackTransformer(Transformer):
    """The base of the models of one embedding and one stack of blocks."""

    _SLOTS = ("embedding", "blocks", "norm")

    def __init__(self, embedding, blocks, norm=None, max_sequence_length=None, pad_token_id=0, **kwargs):
        super().__init__(**kwargs)
        embedding = sequence_embedding(embedding)
        self._take_parts(embedding=embedding, blocks=layer_list("blocks", blocks), norm=norm)
        self.max_sequence_length = checked_max_sequence_length(max_sequence_length, embedding)
        self.pad_token_id = pad_token_id
        self.build()

    @property
    def vocabulary_size(self):
        """Integer V."""
        return self.embedding.vocabulary_size

    def build(self, input_shape=None):
        if not self.built:
            self._build_stack(self.embedding, self.blocks, self.norm)
            self.built = True

    def compute_mask(self, inputs, previous_mask=None):
        return self._output_mask(inputs)


class TransformerWrapper(Transformer):
    """The base of a model that wraps another one, its first slot, whose sizes and pads are its own."""

    @property
    def _wrapped(self):
        return getattr(self, self._SLOTS[0])

    @property
    def hidden_dim(self):
        """Integer D, the width of the wrapped model."""
        return self._wrapped.hidden_dim

    @property
    def vocabulary_size(self):
        """Integer V."""
        return self._wrapped.vocabulary_size

    @property
    def max_sequence_length(self):
        """Integer, the longest sequence."""
        return self._wrapped.max_sequence_length

    @property
    def pad_token_id(self):
        """Integer, the id of pads."""
        return self._wrapped.pad_token_id


def gives_logits(model):
    """Whether a model, or an embedding, gives logits of tokens: a body has no output projection, and gives vectors.

    Example:

    ```python
    model = keras_attn.models.DecoderTransformer.from_sizes(100, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    keras_attn.models.gives_logits(model)  # True
    ```
    """
    embedding = getattr(model, "target_embedding", getattr(model, "embedding", model))
    return getattr(getattr(embedding, "token", embedding), "gives_logits", True)


def sequence_embedding(layer):
    """The embedding that a model calls: a `SequenceEmbedding` of a bare token embedding, or the given layer itself."""
    if isinstance(layer, keras.layers.Embedding):
        return SequenceEmbedding(layer, dtype=layer.dtype_policy)
    return layer


def layer_list(name, value):
    """The layers of a stack as a list.

    Raises:
        ValueError: if `value` is not iterable.
    """
    if not isinstance(value, Iterable):
        raise ValueError(f"`{name}` must be a list of layers. Received: {name}={value!r}.")
    return list(value)


def checked_max_sequence_length(max_sequence_length, *embeddings):
    """The longest sequence of a model: the argument, or what the positions of its embeddings allow, or 512.

    Raises:
        ValueError: if the argument is not a positive integer, or is greater than the number of positions.
    """
    limits = [getattr(embedding, "max_sequence_length", None) for embedding in embeddings]
    limit = min((limit for limit in limits if limit is not None), default=None)
    if max_sequence_length is None:
        return limit or DEFAULT_MAX_SEQUENCE_LENGTH
    max_sequence_length = check_positive("max_sequence_length", max_sequence_length)
    if limit is not None and max_sequence_length > limit:
        raise ValueError(
            "`max_sequence_length` must be at most the number of positions of the embeddings. "
            f"Received: max_sequence_length={max_sequence_length}, {limit} positions."
        )
    return max_sequence_length


def as_dict(inputs):
    """The inputs of a model of one sequence: token ids alone stand for `{"token_ids": ...}`."""
    return inputs if isinstance(inputs, dict) else {"token_ids": inputs}


def padding_mask_of_ids(token_ids, given_padding_mask, pad_token_id):
    """The padding mask (B, T) of token ids: what is given, or the pads by their id, and the mask that Keras carries on the ids.

    Args:
        token_ids: Integers (B, T), or None if there is a mask.
        given_padding_mask: Boolean (B, T), or None.
        pad_token_id: Integer.
    """
    if given_padding_mask is None:
        given_padding_mask = padding_mask(token_ids, pad_token_id)
    return combined_padding_mask(given_padding_mask, token_ids)


def checked_inputs(inputs, required, optional):
    """The dict of inputs of a model.

    Raises:
        ValueError: unless `inputs` is a dict with all required names and no other names than these.
    """
    is_dict = isinstance(inputs, dict)
    if not is_dict or not set(required) <= set(inputs) <= {*required, *optional}:
        received = sorted(inputs) if is_dict else type(inputs).__name__
        raise ValueError(
            f"`inputs` must be a dict of {sorted(required)}, and may have {sorted(optional)}. Received: {received}."
        )
    return inputs


def _check_layers(name, layers):
    if not layers or not all(isinstance(layer, keras.layers.Layer) for layer in layers):
        raise ValueError(f"`{name}` must be a list of layers. Received: {name}={layers!r}.")


def _describe(part):
    if isinstance(part, (list, tuple)):
        return [description(layer) for layer in part]
    return description(part)
