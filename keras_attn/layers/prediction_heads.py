"""Heads of encoders: what makes an answer from the sequence of vectors."""

import keras
from keras import ops

from keras_attn.checks import check_count, check_positive, check_rank, check_rate, choose
from keras_attn.layers.activations import get_activation, serialize_activation
from keras_attn.layers.base_layer import BaseLayer
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.layer_slots import Slotted, build_layer, check_layer, check_norm
from keras_attn.layers.masks import combined_padding_mask
from keras_attn.layers.normalization import LayerNormalization
from keras_attn.layers.projection import Dense
from keras_attn.ops import POOLINGS, as_boolean_mask, at_least_float32, keep, mask_poison, poisoned, pooled


def checked_padding_mask(sequence, padding_mask):
    """The padding mask (B, T) of a head's call, joined with the one that Keras carries: booleans, all True without a mask.

    Raises:
        ValueError: unless the sequence has the shape (B, T, D).
    """
    check_rank("inputs", sequence.shape, "(B, T, D)")
    mask = combined_padding_mask(padding_mask, sequence, "padding_mask")
    if mask is None:
        return ops.ones(ops.shape(sequence)[:2], dtype="bool")
    return as_boolean_mask(mask, "padding_mask")


@keras.saving.register_keras_serializable(package="keras_attn")
class Pooling(BaseLayer, keras.layers.Layer):
    """One vector for each sequence, made of the vectors of its real tokens.

    Unlike Keras' `GlobalAveragePooling1D`, it takes the mask as an argument, a row without real tokens gives 0 and
    not NaN, and what stands at pads is never read, be it NaN.

    Args:
        mode: String: "first" or "last", the vector of that real token; "mean" or "max" over the real tokens.

    Call arguments:
        inputs: Floats (B, T, D).
        padding_mask: Boolean (B, T), True at real tokens.
        mask: The padding mask as Keras hands it on, within `TimeDistributed` for instance; both hold.

    Returns:
        Floats (B, D).

    Raises:
        ValueError: for an unknown mode, or a mask of another shape.

    Example:

    ```python
    vectors = keras_attn.layers.Pooling("mean")(keras.random.normal((2, 5, 16)))  # (2, 16)
    ```

    Reference: [Reimers and Gurevych, 2019](https://arxiv.org/abs/1908.10084), section 3.
    """

    _MASK_ARGUMENTS = (("inputs", "padding_mask"),)

    def __init__(self, mode, **kwargs):
        super().__init__(**kwargs)
        choose("mode", mode, POOLINGS)
        self.mode = mode

    def call(self, inputs, padding_mask=None):
        vectors = pooled(inputs, checked_padding_mask(inputs, padding_mask), self.mode)
        return poisoned(vectors, mask_poison(padding_mask))

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, input_shape):
        check_rank("inputs", input_shape, "(B, T, D)")
        return (input_shape[0], input_shape[-1])

    def get_config(self):
        return {**super().get_config(), "mode": self.mode}


class _Head(Slotted, keras.layers.Layer):
    """The base of heads: vectors may be projected, activated and normalised before the logits."""

    _LORA_TARGETS = ("intermediate",)
    _SLOTS = ("norm",)
    _MASK_ARGUMENTS = (("inputs", "padding_mask"),)
    _IS_TRACED = True  # logits are at least float32 whatever the dtype policy

    def __init__(
        self,
        intermediate_dim=None,
        activation="tanh",
        norm=None,
        dropout=0.0,
        use_bias=True,
        use_intermediate_bias=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.intermediate_dim = check_positive("intermediate_dim", intermediate_dim, optional=True)
        self.activation = get_activation(activation)
        self.norm = check_norm("norm", norm)
        self.dropout = check_rate("dropout", dropout)
        self.use_bias = use_bias
        self.use_intermediate_bias = use_intermediate_bias
        self.supports_masking = True
        self._dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        self.intermediate_dense = None
        features = (None, input_shape[-1])
        if self.intermediate_dim is not None:
            self.intermediate_dense = self._dense(
                "intermediate", self.intermediate_dim, features, self.use_intermediate_bias, self.activation
            )
            features = (None, self.intermediate_dim)
        if self.norm is not None:
            build_layer(self.norm, features, dtype=self.compute_dtype)
        self._build_output(features)

    def _dense(self, name, units, input_shape, use_bias, activation=None):
        layer = Dense(units, activation=activation, use_bias=use_bias, dtype=self._policy_of(name), name=name)
        layer.build(input_shape)
        return layer

    def _transformed(self, x, training):
        if self.intermediate_dense is not None:
            x = self.intermediate_dense(x)
        if self.norm is not None:
            x = self.norm(x)
        return self._dropout_layer(x, training=training)

    def _parts(self):
        return [] if self.intermediate_dense is None else [self.intermediate_dense]

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "activation": serialize_activation(self.activation),
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "use_intermediate_bias": self.use_intermediate_bias,
        }


class _Pooled:
    """Mixin of heads that read one vector of each sequence."""

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def __init__(self, pooling, **kwargs):
        super().__init__(**kwargs)
        choose("pooling", pooling, POOLINGS)
        self.pooling = pooling

    def _pooled(self, inputs, padding_mask):
        return pooled(inputs, checked_padding_mask(inputs, padding_mask), self.pooling)

    def get_config(self):
        return {**super().get_config(), "pooling": self.pooling}


class _LabelHead(_Head):
    """The base of heads with a logit for each label."""

    _LORA_TARGETS = ("output",)

    def __init__(self, num_labels, **kwargs):
        super().__init__(**kwargs)
        self.num_labels = check_positive("num_labels", num_labels)

    def _build_output(self, features):
        self.output_dense = self._dense("output", self.num_labels, features, self.use_bias)

    def _logits(self, x, padding_mask, training):
        logits = at_least_float32(self.output_dense(self._transformed(x, training)))
        return poisoned(logits, mask_poison(padding_mask))

    def _parts(self):
        parts = super()._parts()
        parts.append(self.output_dense)
        return parts

    def get_config(self):
        return {**super().get_config(), "num_labels": self.num_labels}


@keras.saving.register_keras_serializable(package="keras_attn")
class ClassificationHead(_Pooled, _LabelHead):
    """A logit of each label for each sequence.

    `output(dropout(norm(activation(intermediate(pooling(sequence))))))`. BERT's pooler and classifier are
    `intermediate_dim=D, activation="tanh"`, as are RoBERTa's head and MPNet's; DistilBERT's has "relu", ELECTRA's "gelu".
    Without `intermediate_dim` there is no activation.

    Args:
        num_labels: Integer L; 1 for a regression.
        pooling: String, as in `Pooling`.
        intermediate_dim: Integer, the width of the projection before the logits, or None for no projection.
        activation: Activation name or function of that projection; besides Keras' names, `"gelu_tanh"`.
        norm: Norm layer after it (ModernBERT), or None.
        dropout: Float, the rate before the logits.
        use_bias: Boolean, whether logits have a bias.
        use_intermediate_bias: Boolean, whether the projection has one.

    Call arguments:
        inputs: Floats (B, T, D), the sequence of an encoder.
        padding_mask: Boolean (B, T), True at real tokens.
        mask: The padding mask as Keras hands it on, within `TimeDistributed` for instance; both hold.
        training: Boolean.

    Returns:
        Logits, float32 (B, L).

    Raises:
        ValueError: for arguments out of range, or a mask of another shape.

    Example:

    ```python
    head = keras_attn.layers.ClassificationHead(num_labels=3, intermediate_dim=16)
    logits = head(keras.random.normal((2, 5, 16)))  # (2, 3)
    ```

    Reference: [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 4.1.
    """

    def __init__(self, num_labels, pooling="first", **kwargs):
        super().__init__(num_labels=num_labels, pooling=pooling, **kwargs)

    def call(self, inputs, padding_mask=None, training=None):
        return self._logits(self._pooled(inputs, padding_mask), padding_mask, training)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.num_labels)


@keras.saving.register_keras_serializable(package="keras_attn")
class ImageClassificationHead(_LabelHead):
    """A logit of each label for each image, read from the tokens of a vision model.

    It differs from `ClassificationHead` where tokens are not all patches: a mean is over the patches alone.

    Args:
        num_labels: Integer L; 1 for a regression.
        pooling: String: "first", the vector of the first token, which is the class token (ViT); "mean", that of the
            patches (Swin); "first_and_mean", both, one after the other (DINOv2).
        num_special_tokens: Integer, the number of tokens before the patches: `num_special_tokens` of the embedding.
        use_distillation_token: Boolean, whether the second token has logits of its own, and the result is the mean of
            both (DeiT). Needs "first".
        intermediate_dim, activation, norm, dropout, use_bias, use_intermediate_bias: As in `ClassificationHead`.

    Call arguments:
        inputs: Floats (B, T, D), the sequence of a vision model.
        padding_mask: Boolean (B, T), True at real tokens.
        mask: The padding mask as Keras hands it on, within `TimeDistributed` for instance; both hold.
        training: Boolean.

    Returns:
        Logits, float32 (B, L).

    Raises:
        ValueError: for arguments out of range or that contradict each other, and for a mask of another shape.

    Example:

    ```python
    head = keras_attn.layers.ImageClassificationHead(num_labels=3, pooling="first_and_mean", num_special_tokens=1)
    logits = head(keras.random.normal((2, 10, 16)))  # (2, 3)
    ```

    References: [Dosovitskiy et al., 2021](https://arxiv.org/abs/2010.11929), section 3.1 and appendix D.3;
    [Touvron et al., 2021](https://arxiv.org/abs/2012.12877), section 4; [Oquab et al., 2024](https://arxiv.org/abs/2304.07193),
    section 7.1.
    """

    def __init__(
        self, num_labels, pooling="first", num_special_tokens=1, use_distillation_token=False, **kwargs
    ):
        super().__init__(num_labels=num_labels, **kwargs)
        choose("pooling", pooling, _IMAGE_POOLINGS)
        self.pooling = pooling
        self.num_special_tokens = check_count("num_special_tokens", num_special_tokens)
        self.use_distillation_token = use_distillation_token
        if use_distillation_token and (pooling != "first" or num_special_tokens < 2):
            raise ValueError(
                '`use_distillation_token` needs pooling="first" and at least 2 special tokens. '
                f"Received: pooling={pooling!r}, num_special_tokens={num_special_tokens}."
            )

    def build(self, input_shape):
        num_vectors = len(_IMAGE_POOLINGS[self.pooling])
        super().build((*input_shape[:-1], input_shape[-1] * num_vectors))

    def _build_output(self, features):
        super()._build_output(features)
        if self.use_distillation_token:
            self.distillation_dense = self._dense(
                "distillation_output", self.num_labels, features, self.use_bias
            )

    def call(self, inputs, padding_mask=None, training=None):
        mask = checked_padding_mask(inputs, padding_mask)
        first_tokens = {"first": 0, "mean": self.num_special_tokens}
        vectors = []
        for mode in _IMAGE_POOLINGS[self.pooling]:
            start = first_tokens[mode]
            vectors.append(pooled(inputs[:, start:], mask[:, start:], mode))
        logits = self._logits(ops.concatenate(vectors, axis=-1), padding_mask, training)
        if not self.use_distillation_token:
            return logits
        distilled = self._transformed(pooled(inputs[:, 1:], mask[:, 1:], "first"), training)
        return (logits + at_least_float32(self.distillation_dense(distilled))) / 2

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.num_labels)

    def _parts(self):
        parts = super()._parts()
        if self.use_distillation_token:
            parts.append(self.distillation_dense)
        return parts

    def get_config(self):
        return {
            **super().get_config(),
            "pooling": self.pooling,
            "num_special_tokens": self.num_special_tokens,
            "use_distillation_token": self.use_distillation_token,
        }


# The vectors that each pooling of an image's tokens joins.
_IMAGE_POOLINGS = {"first": ("first",), "mean": ("mean",), "first_and_mean": ("first", "mean")}


@keras.saving.register_keras_serializable(package="keras_attn")
class VectorHead(_Pooled, _Head):
    """A vector for each sequence: `norm(activation(dense(pooling(sequence))))`, as sentence-transformers' Dense makes it.

    Args:
        intermediate_dim: Integer, the size of the vectors.
        pooling: String, as in `Pooling`.
        activation: Activation name or function; besides Keras' names, `"gelu_tanh"`.
        norm: Norm layer after it, or None.
        dropout: Float, the rate after all.
        use_intermediate_bias: Boolean, whether the projection has a bias.

    Call arguments:
        inputs: Floats (B, T, D), the sequence of an encoder.
        padding_mask: Boolean (B, T), True at real tokens.
        mask: The padding mask as Keras hands it on, within `TimeDistributed` for instance; both hold.
        training: Boolean.

    Returns:
        Vectors, float32 (B, `intermediate_dim`).

    Raises:
        ValueError: for arguments out of range, or a mask of another shape.

    Example:

    ```python
    vectors = keras_attn.layers.prediction_heads.VectorHead(8, pooling="mean")(keras.random.normal((2, 5, 16)))  # (2, 8)
    ```

    Reference: [Reimers and Gurevych, 2019](https://arxiv.org/abs/1908.10084), section 3.
    """

    def __init__(self, intermediate_dim, pooling="mean", **kwargs):
        intermediate_dim = check_positive("intermediate_dim", intermediate_dim)
        super().__init__(intermediate_dim=intermediate_dim, pooling=pooling, **kwargs)

    def _build_output(self, features):
        """There is no projection after the vectors."""

    def call(self, inputs, padding_mask=None, training=None):
        vectors = self._transformed(self._pooled(inputs, padding_mask), training)
        return poisoned(at_least_float32(vectors), mask_poison(padding_mask))

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.intermediate_dim)


@keras.saving.register_keras_serializable(package="keras_attn")
class TokenClassificationHead(_LabelHead):
    """A logit of each label for each token.

    With two labels it is the head for question answering: logits of the first token of an answer, and of the last.

    Args:
        num_labels: Integer L.
        intermediate_dim, activation, norm, dropout, use_bias, use_intermediate_bias: As in `ClassificationHead`.

    Call arguments:
        inputs: Floats (B, T, D), the sequence of an encoder.
        padding_mask: Boolean (B, T), True at real tokens.
        mask: The padding mask as Keras hands it on, within `TimeDistributed` for instance; both hold.
        training: Boolean.

    Returns:
        Logits, float32 (B, T, L); those at pads mean nothing, but are finite.

    Raises:
        ValueError: for arguments out of range, or a mask of another shape.

    Example:

    ```python
    logits = keras_attn.layers.TokenClassificationHead(num_labels=9)(keras.random.normal((2, 5, 16)))  # (2, 5, 9)
    ```

    Reference: [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), sections 4.2 and 5.3.
    """

    def call(self, inputs, padding_mask=None, training=None):
        x = keep(inputs, ops.expand_dims(checked_padding_mask(inputs, padding_mask), -1))
        return self._logits(x, padding_mask, training)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.num_labels)


@keras.saving.register_keras_serializable(package="keras_attn")
class MaskedLanguageModelHead(_Head):
    """A logit of each token of the vocabulary for each token.

    `token_embedding(norm(activation(intermediate(x))), reverse=True) + bias`. The token embedding is usually that of
    the encoder, so that its weights are shared; they stay shared in a saved and in a cloned model.

    Args:
        token_embedding: Layer that takes `reverse=True`: a `TokenEmbedding`.
        intermediate_dim: Integer E, the width of the token embedding. Defaults to its `hidden_dim`.
        activation: Activation name or function; besides Keras' names, `"gelu_tanh"`.
        norm: Norm layer. Defaults to a layer norm with the epsilon 1e-12, BERT's.
        dropout: Float, the rate before the logits.
        use_bias: Boolean, whether logits have a bias of this head's own.
        use_intermediate_bias: Boolean, whether the projection has one.

    Call arguments:
        inputs: Floats (B, T, D), the sequence of an encoder.
        padding_mask: Boolean (B, T), True at real tokens.
        mask: The padding mask as Keras hands it on, within `TimeDistributed` for instance; both hold.
        training: Boolean.

    Returns:
        Logits, float32 (B, T, V); those at pads mean nothing, but are finite.

    Raises:
        ValueError: for arguments out of range, no token embedding, or a mask of another shape.

    Example:

    ```python
    encoder = keras_attn.models.EncoderTransformer.from_sizes(
        100, 2, hidden_dim=16, num_heads=2, intermediate_dim=32
    )
    head = keras_attn.layers.MaskedLanguageModelHead(encoder.embedding.token)
    model = keras_attn.models.EncoderWithHead(encoder, head)
    logits = model(np.array([[2, 5, 4, 3]]))  # (1, 4, 100)
    ```

    Reference: [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 3.1.
    """

    _SLOTS = ("token_embedding", "norm")

    def __init__(self, token_embedding, intermediate_dim=None, activation="gelu", norm=None, **kwargs):
        if check_layer("token_embedding", token_embedding) is None:
            raise ValueError("`token_embedding` must be a layer. Received: token_embedding=None.")
        if norm is None:
            norm = LayerNormalization(epsilon=1e-12, dtype=kwargs.get("dtype"), name="norm")
        if intermediate_dim is None:
            intermediate_dim = token_embedding.hidden_dim
        super().__init__(
            intermediate_dim=intermediate_dim,
            activation=activation,
            norm=norm,
            **kwargs,
        )
        self.token_embedding = token_embedding

    def _build_output(self, features):
        if not self.token_embedding.built:
            self.token_embedding.build((None, None))
        if self.use_bias:
            shape = (self.token_embedding.vocabulary_size,)
            self.output_bias = self.add_weight(name="output_bias", shape=shape, initializer="zeros")

    def call(self, inputs, padding_mask=None, training=None):
        x = keep(inputs, ops.expand_dims(checked_padding_mask(inputs, padding_mask), -1))
        logits = at_least_float32(self.token_embedding(self._transformed(x, training), reverse=True))
        if self.use_bias:
            logits = logits + ops.cast(self.output_bias, logits.dtype)
        return poisoned(logits, mask_poison(padding_mask))

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.token_embedding.vocabulary_size)

    def _parts(self):
        parts = super()._parts()
        parts.append(self.token_embedding)
        return parts
