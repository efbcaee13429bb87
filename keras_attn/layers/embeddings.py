import keras
from keras import ops

from keras_attn.checks import check_positive, check_rate
from keras_attn.compat.keras import stored_matrix
from keras_attn.layers.clean_padding import clean_padding
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.layer_slots import Slotted, build_layer, check_layer, check_norm, position_arguments
from keras_attn.layers.lora_and_quantization import QuantizableSubclass
from keras_attn.layers.masks import combine_with_carried_mask, combined_padding_mask
from keras_attn.layers.projection import int8_matrix, product, step_matrix
from keras_attn.ops import (
    Int8Matrix,
    bfloat16_product,
    custom_gradient,
    if_true,
    implicit_mask,
    indices_within,
    int8_product,
    is_compiled_scope,
    is_inference_scope,
    is_step_scope,
    padding_mask,
    product_by_transposed,
    product_in_halves,
    product_in_parts,
    runs_bfloat16_products,
    runs_op_by_op,
    shape_to_keep,
    soft_capped,
    step_form,
)

# From this many numbers on, TensorFlow is slow to multiply few rows by a transposed table.
_LARGE_TABLE = 2**23


@keras.saving.register_keras_serializable(package="keras_attn")
class TokenEmbedding(QuantizableSubclass, keras.layers.ReversibleEmbedding):
    """Token ids to vectors scaled by sqrt(D), and back to logits with the same weights.

    `keras.layers.ReversibleEmbedding` with the Transformer's scaling and initialization: weights are drawn
    with a standard deviation of D ** -0.5, so that the scaled vectors have unit variance and the tied output
    starts with small logits. Ids outside the vocabulary raise, in TensorFlow graphs too; where a compiler cannot raise (XLA,
    JAX), and in graphs that are served, they are clamped to the nearest id.

    Args:
        vocabulary_size: Integer V.
        hidden_dim: Integer D.
        scale: Boolean, whether vectors are multiplied by sqrt(D).
        tie_weights: Boolean, whether `reverse=True` uses the transposed embeddings or weights of its own.
        embeddings_initializer: Initializer. Defaults to a normal distribution of standard deviation D ** -0.5.
        mask_zero: Boolean, whether Keras' implicit mask is attached where ids are 0.
        use_output_bias: Boolean, whether logits have a bias, which starts at 0 (BERT, Marian, BART).
        output_scale: Float that multiplies the inputs of `reverse=True`. Defaults to 1; D ** -0.5 in T5
            ([Raffel et al., 2020](https://arxiv.org/abs/1910.10683)).
        gives_logits: Boolean, False for a model without an output projection: then there is no `reverse=True`, and a
            `DecoderTransformer` or `Seq2SeqTransformer` with this embedding returns its vectors.

    Call arguments:
        inputs: Integers (B, T); with `reverse=True`, floats (B, T, D).
        reverse: Boolean, whether to project back onto the vocabulary.

    Returns:
        Floats (B, T, D); with `reverse=True`, logits (B, T, V).

    Raises:
        ValueError: for ids outside [0, V); an `InvalidArgumentError` when a TensorFlow graph runs. For `reverse=True` with
            `gives_logits=False`.

    Example:

    ```python
    embedding = keras_attn.layers.TokenEmbedding(vocabulary_size=100, hidden_dim=16)
    x = embedding(np.array([[5, 7, 0]]))
    logits = embedding(x, reverse=True)  # (1, 3, 100)
    ```

    References: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.4;
    [Press and Wolf, 2016](https://arxiv.org/abs/1608.05859).
    """

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        scale=True,
        tie_weights=True,
        embeddings_initializer=None,
        mask_zero=False,
        use_output_bias=False,
        output_scale=None,
        gives_logits=True,
        **kwargs,
    ):
        vocabulary_size = check_positive("vocabulary_size", vocabulary_size)
        hidden_dim = check_positive("hidden_dim", hidden_dim)
        if not gives_logits and (use_output_bias or not tie_weights):
            raise ValueError(
                "`gives_logits=False` leaves no use for weights of the logits: `tie_weights` must be True, and "
                f"`use_output_bias` False. Received: tie_weights={tie_weights}, use_output_bias={use_output_bias}."
            )
        if embeddings_initializer is None:
            embeddings_initializer = keras.initializers.RandomNormal(stddev=hidden_dim**-0.5)
        super().__init__(
            vocabulary_size,
            hidden_dim,
            tie_weights=tie_weights,
            embeddings_initializer=embeddings_initializer,
            mask_zero=mask_zero,
            **kwargs,
        )
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.scale = scale
        self.use_output_bias = use_output_bias
        self.output_scale = output_scale
        self.gives_logits = gives_logits
        # With `reverse=True`, and for ids that carry a mask, without `mask_zero` too.
        self.supports_masking = True

    def build(self, input_shape=None):
        super().build(input_shape)
        if self.use_output_bias:
            self.output_bias = self.add_weight(
                name="output_bias", shape=(self.vocabulary_size,), initializer="zeros"
            )

    @property
    def variable_serialization_spec(self):
        """The names of the variables that Keras saves for each quantisation mode, in order."""
        spec = super().variable_serialization_spec
        if not self.use_output_bias:
            return spec
        return {mode: [*names, "output_bias"] for mode, names in spec.items()}

    @property
    def reverse_dtype(self):
        """The dtype of the projection back onto the vocabulary: the compute dtype, unless another was given.

        Keras' layer multiplies by the stored weights without a cast, in float32 under a mixed policy.
        """
        return self._reverse_dtype or self.compute_dtype

    @reverse_dtype.setter
    def reverse_dtype(self, dtype):
        self._reverse_dtype = dtype

    def call(self, inputs, reverse=False):
        if not reverse:
            return self._vectors(super().call, inputs)
        self._check_gives_logits()
        # One product of two matrices: for more axes, TensorFlow uses ten ops.
        rows = ops.reshape(self._scaled(inputs), (-1, inputs.shape[-1]))
        logits = self._products(rows, inputs) if self.tie_weights else self._untied_products(rows)
        logits = self._biased(logits)
        return ops.reshape(logits, (*shape_to_keep(inputs)[:-1], logits.shape[-1]))

    def _products(self, rows, inputs):
        """Logits (R, V) of rows (R, D). XLA would copy Keras' transposed weights for every single row."""
        rows = ops.cast(rows, self.reverse_dtype)
        weights = step_matrix(self)
        if runs_bfloat16_products(rows, weights):
            logits = bfloat16_product(rows, weights, is_transposed=True)
        elif inputs.shape[1] == 1 and runs_op_by_op(inputs) and self._is_large():
            # For GPT-2's table and 8 rows, TensorFlow's product with the transposed table takes 14 times as long.
            logits = ops.transpose(ops.matmul(weights, ops.transpose(rows)))
        elif is_step_scope() and runs_op_by_op(inputs):
            logits = product_by_transposed(rows, weights)
        else:
            logits = if_true(
                _are_few(rows, 2),
                lambda: product_in_parts(rows, weights),
                lambda: ops.matmul(rows, ops.transpose(weights)),  # The loss knows this product.
            )
        return soft_capped(logits, self.logit_soft_cap)

    def _untied_products(self, rows):
        """The same with weights (D, V) that are not those of the embedding."""
        rows = ops.cast(rows, self.reverse_dtype)
        weights = ops.cast(self.reverse_embeddings, self.reverse_dtype)
        if runs_bfloat16_products(rows, weights):
            logits = bfloat16_product(rows, weights)
        elif self._is_large():
            logits = if_true(
                _are_few(rows, 3),
                lambda: product_in_halves(rows, weights),
                lambda: ops.matmul(rows, weights),
            )
        else:
            return super().call(rows, reverse=True)
        return soft_capped(logits, self.logit_soft_cap)

    def _is_large(self):
        return self.vocabulary_size * self.hidden_dim >= _LARGE_TABLE

    def output_projection(self, token_ids):
        """The part of the projection back onto the vocabulary that gives the logits of some tokens.

        Args:
            token_ids: int32 (U,).

        Returns:
            A kernel (D, U), floats or an `Int8Matrix`, and a bias (U,), or None for no bias: what `logits_by` takes.

        Raises:
            ValueError: if the weights are quantised, except in int8 in a graph that is only run, LoRA is not merged, or there
                are no logits.
        """
        self._check_gives_logits()
        bias = ops.take(self.output_bias, token_ids) if self.use_output_bias else None
        if self.has_int8_product():
            return self._int8_columns(token_ids), bias
        if self.quantization_mode is not None or self.lora_enabled:
            raise ValueError(
                "The logits of some tokens are computed from float weights, or in int8 in the graphs of a `Translator`, and "
                "without LoRA: merge it, or use the model before it was quantised. Received: "
                f"quantization_mode={self.quantization_mode}, lora_enabled={self.lora_enabled}."
            )
        if self.tie_weights:
            kernel = ops.transpose(ops.take(self.embeddings, token_ids, axis=0))
        else:
            kernel = ops.take(self.reverse_embeddings, token_ids, axis=1)
        return ops.cast(kernel, self.reverse_dtype), bias

    def _int8_columns(self, token_ids):
        """The part of `step_matrix` that gives the logits of some tokens."""
        matrix = self.step_matrix()
        if not isinstance(matrix, Int8Matrix):
            return ops.take(matrix, token_ids, axis=1)
        axis = 0 if self.tie_weights else 1
        values = ops.take(matrix.values, token_ids, axis=axis)
        return Int8Matrix(values, ops.take(matrix.scale, token_ids, axis=axis))

    def logits_by(self, projection, inputs):
        """Logits (B, T, U) of vectors (B, T, D), computed with what `output_projection` returned."""
        kernel, bias = projection
        is_int8 = isinstance(kernel, Int8Matrix)
        dtype = "float32" if is_int8 else self.reverse_dtype
        rows = ops.reshape(ops.cast(self._scaled(inputs), dtype), (-1, inputs.shape[-1]))
        if is_int8:
            logits = int8_product(rows, kernel, is_constant=False)
        elif is_compiled_scope() and runs_bfloat16_products(rows, kernel):
            logits = bfloat16_product(rows, kernel)
        else:
            logits = ops.matmul(rows, kernel)
        logits = soft_capped(logits, self.logit_soft_cap)
        if bias is not None:
            logits = logits + ops.cast(bias, logits.dtype)
        return ops.reshape(logits, (*ops.shape(inputs)[:-1], -1))

    def makes_step_matrix(self):
        is_cast = self.quantization_mode is None and self.tie_weights
        is_cast = is_cast and self.reverse_dtype != keras.backend.standardize_dtype(self.embeddings.dtype)
        return self.has_int8_product() or (is_cast and is_inference_scope())

    def step_matrix(self):
        """The weights of the logits: in the dtype of their product, floats (V, D); if quantised, see `step_form`."""
        if self.quantization_mode is None:
            return ops.cast(self.embeddings, self.reverse_dtype)
        if self.tie_weights:
            table = ops.convert_to_tensor(stored_matrix(self))
            return step_form(int8_matrix(table, self.embeddings_scale, is_transposed=True))
        table = ops.convert_to_tensor(self.reverse_embeddings)
        return step_form(int8_matrix(table, self.reverse_embeddings_scale))

    def quantized_call(self, inputs, reverse=False):
        if not reverse:
            return self._vectors(super().quantized_call, inputs)
        self._check_gives_logits()
        inputs = self._scaled(inputs)
        if self.has_int8_product():
            logits = soft_capped(product(inputs, step_matrix(self)), self.logit_soft_cap)
        elif self.quantization_mode == "int8":
            logits = self._straight_through(super().quantized_call, inputs)
        else:
            logits = super().quantized_call(inputs, reverse=True)
        if self.tie_weights and self.lora_enabled:  # Keras adds the LoRA part only to the vectors
            logits = logits + ops.cast(self._lora_logits(inputs), logits.dtype)
        return self._biased(logits)

    def _check_gives_logits(self):
        if not self.gives_logits:
            raise ValueError(
                "This model has no output projection: it gives vectors, and no logits of tokens. "
                "Received: a call for logits of a TokenEmbedding with gives_logits=False."
            )

    def _scaled(self, inputs):
        """The vectors (B, T, D) that are projected back onto the vocabulary."""
        inputs = clean_padding(inputs, implicit_mask(inputs))
        if self.output_scale is None:
            return inputs
        return inputs * ops.convert_to_tensor(self.output_scale, inputs.dtype)

    def _biased(self, logits):
        if not self.use_output_bias:
            return logits
        return logits + ops.cast(self.output_bias, logits.dtype)

    def _vectors(self, embed, token_ids):
        vectors = embed(indices_within(token_ids, self.vocabulary_size, "Token ids"))
        if not self.scale:
            return vectors
        return vectors * ops.convert_to_tensor(self.hidden_dim**0.5, vectors.dtype)

    def _straight_through(self, project, inputs):
        """The logits of int8 weights, with the gradient of the logits without the rounding of `inputs`.

        In Keras the rounding stops the gradient, except the part through its scale, which is no descent
        direction.
        """

        @custom_gradient
        def rounded(inputs):
            logits = project(inputs, reverse=True)

            def gradient(*args, upstream=None):
                upstream = args[0] if upstream is None else upstream
                if self.logit_soft_cap is not None:
                    upstream = upstream * (1 - ops.square(logits / self.logit_soft_cap))
                return ops.cast(ops.matmul(upstream, self._dequantized(upstream.dtype)), inputs.dtype)

            return logits, gradient

        return rounded(inputs)

    def _dequantized(self, dtype):
        """The int8 weights that give the logits, as floats (V, D)."""
        if self.tie_weights:
            rows = stored_matrix(self)
            scale = self.embeddings_scale
        else:
            rows = ops.transpose(self.reverse_embeddings)
            scale = self.reverse_embeddings_scale
        return ops.cast(rows, dtype) / ops.cast(ops.expand_dims(scale, -1), dtype)

    def _lora_logits(self, inputs):
        inner = ops.matmul(inputs, ops.transpose(self.lora_embeddings_b))
        return ops.matmul(inner, ops.transpose(self.lora_embeddings_a)) * (self.lora_alpha / self.lora_rank)

    def quantized_build(self, embeddings_shape, mode, config=None):
        super().quantized_build(embeddings_shape, mode, config)
        if mode == "int4" and config is None:
            # As in `quantize("int4")`: a loaded layer must give the same logits as the saved one.
            self.inputs_quantizer = None

    def compute_output_spec(self, inputs, reverse=False):
        spec = super().compute_output_spec(inputs, reverse=reverse)
        return keras.KerasTensor(spec.shape, dtype=self.reverse_dtype) if reverse else spec

    def compute_mask(self, inputs, mask=None):
        if not self.mask_zero or _are_vectors(inputs, self.hidden_dim):
            return mask
        return combine_with_carried_mask(mask, padding_mask(inputs))

    def get_config(self):
        config = super().get_config()
        for name in ("input_dim", "output_dim"):
            del config[name]
        return {
            **config,
            "reverse_dtype": self._reverse_dtype,
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "scale": self.scale,
            "use_output_bias": self.use_output_bias,
            "output_scale": self.output_scale,
            "gives_logits": self.gives_logits,
        }


@keras.saving.register_keras_serializable(package="keras_attn")
class SequenceEmbedding(Slotted, keras.layers.Layer):
    """Token ids to the vectors that the first block of a model reads, and hidden vectors back to logits.

    `projection(dropout(norm(token + position + token type)))`. Every part except `token` is optional.

    Args:
        token: Layer from token ids (B, T) to floats (B, T, D): a `TokenEmbedding`.
        position: Layer called as `position(x, positions=positions)`, whose output is added: a
            `SinusoidalPositionEncoding` or `PositionEmbedding`. If its `call` has an argument `padding_mask`, it gets that
            in place of the positions that follow from it. None if the attention layers use positions, as with rotary
            embeddings and relative biases.
        token_type: Layer from token type ids (B, T) to floats (B, T, D), which are added (BERT's segments): a
            `keras.layers.Embedding`.
        norm: Norm layer from (B, T, D) to (B, T, D) (BERT).
        dropout: Float, the dropout of the result.
        projection: Layer from (B, T, D) to (B, T, the model's width): a `keras.layers.Dense` (ALBERT, ELECTRA).

    Call arguments:
        inputs: Integers (B, T), token ids; with `reverse=True`, floats (B, T, D).
        positions: Integers (T,) or (B, T). By default they are those of `keras_attn.ops.token_positions`: 0, 1, 2, ...
            from a row's first real token on.
        token_type_ids: Integers (B, T). By default 0.
        reverse: Boolean, whether to project back onto the vocabulary with the weights of `token`.
        training: Boolean.
        padding_mask: Boolean (B, T), True at real tokens. By default, and besides, that of `mask_zero` of `token`.

    Returns:
        Floats (B, T, D); with `reverse=True`, logits (B, T, V).

    Raises:
        ValueError: for an argument that is not a layer, for token types without a layer for them, and for
            `reverse=True` with a `projection`.

    Example:

    ```python
    embedding = keras_attn.layers.SequenceEmbedding(
        keras_attn.layers.TokenEmbedding(vocabulary_size=100, hidden_dim=16),
        position=keras_attn.layers.PositionEmbedding(max_sequence_length=64),
        token_type=keras.layers.Embedding(2, 16),
        norm=keras.layers.LayerNormalization(epsilon=1e-12),
        dropout=0.1,
    )
    x = embedding(np.array([[5, 7, 8]]), token_type_ids=np.array([[0, 0, 1]]))  # (1, 3, 16)
    logits = embedding(x, reverse=True)  # (1, 3, 100)
    ```

    References: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), sections 3.4 and 3.5;
    [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 3;
    [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 3.1 (the projection).
    """

    _SLOTS = ("token", "position", "token_type", "norm", "projection")
    _IS_TRACED = True  # the output is different with `reverse=True`

    def __init__(
        self, token, position=None, token_type=None, norm=None, dropout=0.0, projection=None, **kwargs
    ):
        super().__init__(**kwargs)
        if token is None:
            raise ValueError("`token` must be a layer. Received: token=None.")
        self.token = check_layer("token", token)
        self.position = check_layer("position", position)
        self.token_type = check_layer("token_type", token_type)
        self.norm = check_norm("norm", norm)
        self.dropout = check_rate("dropout", dropout)
        self.projection = check_layer("projection", projection)
        self.supports_masking = True
        self._dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    @property
    def vocabulary_size(self):
        """Integer V, of the token embedding."""
        if hasattr(self.token, "vocabulary_size"):
            return self.token.vocabulary_size
        return self.token.input_dim

    @property
    def max_sequence_length(self):
        """The number of positions that have a vector, or None."""
        return getattr(self.position, "max_sequence_length", None)

    def build(self, input_shape=None):
        ids_shape = (None, None)
        if not self.token.built:
            self.token.build(ids_shape)
        sequence_shape = self.token.compute_output_shape(ids_shape)
        shapes = {"position": sequence_shape, "token_type": ids_shape, "norm": sequence_shape}
        for slot, shape in shapes.items():
            layer = getattr(self, slot)
            if layer is not None and not layer.built:
                layer.build(shape)
        if self.projection is not None:
            build_layer(self.projection, tuple(sequence_shape), dtype=self.compute_dtype)

    def call(
        self, inputs, positions=None, token_type_ids=None, reverse=False, training=None, padding_mask=None
    ):
        if reverse:
            return self._logits(inputs)
        vectors = self.token(_checked_ids(self.token, inputs, "Token ids"))
        x = ops.cast(vectors, self.compute_dtype)
        if len(x.shape) != 3:
            raise ValueError(
                f"`inputs` must be token ids of shape (B, T). Received: inputs of shape {tuple(inputs.shape)}."
            )
        if self.position is not None:
            padding_mask = combined_padding_mask(padding_mask, vectors, "padding_mask")
            arguments = position_arguments(self.position, positions, padding_mask)
            # Layers of this library add one encoding to all rows, without a copy of it for each row.
            encoding = getattr(self.position, "encoding", self.position)
            x = x + ops.cast(encoding(x, **arguments), x.dtype)
        if self.token_type is not None:
            if token_type_ids is None:
                ids = ops.zeros_like(inputs)
            else:
                ids = _checked_ids(self.token_type, token_type_ids, "Token type ids")
            x = x + ops.cast(self.token_type(ids), x.dtype)
        elif token_type_ids is not None:
            raise ValueError("`token_type_ids` need a `token_type` layer. Received: token_type=None.")
        if self.norm is not None:
            x = self.norm(x)
        x = self._dropout_layer(x, training=training)
        if self.projection is not None:
            x = self.projection(x)
        return x

    def _logits(self, x):
        if self.projection is not None:
            raise ValueError(
                "`reverse=True` needs vectors as wide as those of `token`, and `projection` has changed the width."
            )
        return self.token(x, reverse=True)

    def compute_mask(self, inputs, mask=None):
        width = self.token.compute_output_shape((None, None))[-1]
        if _are_vectors(inputs, width):
            return mask
        return combine_with_carried_mask(mask, self.token.compute_mask(inputs, None))

    def compute_output_shape(self, input_shape):
        shape = tuple(self.token.compute_output_shape(input_shape))
        if self.projection is not None:
            shape = self.projection.compute_output_shape(shape)
        return shape

    def _parts(self):
        layers = (self.token, self.token_type, self.projection)
        return [layer for layer in layers if layer is not None]

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout}


def _checked_ids(layer, ids, name):
    """The ids that a layer embeds, checked. A `TokenEmbedding` checks them itself."""
    if isinstance(layer, TokenEmbedding) or getattr(layer, "input_dim", None) is None:
        return ids
    return indices_within(ids, layer.input_dim, name)


def _are_vectors(inputs, width):
    """Whether these are vectors, the inputs of a call with `reverse=True`, which Keras does not tell `compute_mask`.

    Token ids may be floats, because `keras.Input` makes floats where no dtype is given.
    """
    is_integer = "int" in keras.backend.standardize_dtype(inputs.dtype)
    return not is_integer and inputs.shape[-1] == width


def _are_few(rows, fewest):
    """Whether floats (R, D) have from `fewest` to 32 rows, where XLA will know that: a boolean, or a boolean tensor."""
    if keras.backend.backend() != "tensorflow":
        return False
    if rows.shape[0] is not None:
        return fewest <= rows.shape[0] <= 32
    if not (is_compiled_scope() and is_inference_scope()):  # graphs for converters too are without branches
        return False
    num_rows = ops.shape(rows)[0]
    return ops.logical_and(num_rows >= fewest, num_rows <= 32)
