import keras
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.layers.base_layer import BaseLayer
from keras_attn.layers.pair_bias_checks import checked_pair_bias
from keras_attn.ops import (
    SlopeBias,
    TableBias,
    alibi_slopes,
    check_mask_shape,
    relative_position_bucket,
    successive_positions,
)
from keras_attn.ops.biases import clipped_index


@keras.saving.register_keras_serializable(package="keras_attn")
class PositionBias(BaseLayer, keras.layers.Layer):
    """The base of position biases: numbers, added to the logits, that depend on the positions of the query and the key.

    It is what attention takes as `position_bias`. A subclass says in `pair_bias` what the bias is, and makes its weights, if
    it has any, in `create_weights`. Attention calls `pair_bias`, and computes the bias of one block of pairs at a time; a call
    of the layer itself returns the bias of all pairs. Several attention layers may share one instance, and then its weights.

    Attributes:
        size_name: String, what the weights depend on: `"num_heads"` N or `"key_dim"` H. All attention layers that share an
            instance must have the same.

    Call arguments:
        query: Floats (B, N, T, H), the head axis before the time axis, projected and multiplied by H ** -0.5.
        query_positions: Integers (T,) or (B, T). Defaults to 0, 1, 2, ...
        key_positions: Integers (S,) or (B, S). Defaults to `query_positions`.

    Returns:
        Floats that broadcast to (B, N, T, S), in the compute dtype.

    Raises:
        ValueError: if positions are not integers or do not fit `query`, or if the size that the weights depend on is not that
            of the first use, or if `pair_bias` returns a bias that does not fit `query` and the positions.
        NotImplementedError: if a subclass does not define `pair_bias`.

    Example:

    ```python
    import functools


    class NextTokenBias(keras_attn.layers.PositionBias):
        "A learned number for each head, added where the key follows the query."

        def create_weights(self, size):
            self.strength = self.add_weight(shape=(size, 1, 1), initializer="zeros", autocast=False)

        def pair_bias(self, query, query_positions, key_positions):
            table = self.strength * keras.ops.convert_to_tensor([0.0, 1.0, 0.0])  # (N, 1, 3): not after, next, later
            clip = functools.partial(keras.ops.clip, x_min=0, x_max=2)  # distance -> column of the table
            return keras_attn.ops.TableBias(table, query_positions, key_positions, index=clip)


    attention = keras_attn.layers.MultiHeadAttention(num_heads=2, key_dim=8, position_bias=NextTokenBias())
    x = keras.random.normal((2, 5, 16))
    y = attention(x, x)
    ```
    """

    size_name = "num_heads"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, query_shape):
        if self.built:
            return self._check_size(query_shape)
        self._size = self._size_of(query_shape)
        self.create_weights(self._size)

    def create_weights(self, size):
        """Makes the weights, once. By default there are none.

        Args:
            size: Integer: N, or H if `size_name` is `"key_dim"`.
        """

    def pair_bias(self, query, query_positions, key_positions):
        """The bias as a value, from which attention computes one block of pairs at a time.

        Args:
            query: Floats (B, N, T, H), projected and multiplied by H ** -0.5.
            query_positions, key_positions: Integers (T,) or (B, T), and (S,) or (B, S).

        Returns:
            A `keras_attn.ops.PairBias`: a `TableBias` for a function of the distance, a `DenseBias` for anything else. A plain
            tensor counts as a `DenseBias`. It has the shape (N, T, S), or for positions of each row (B, N, T, S), with size 1
            where it does not vary.
        """
        raise NotImplementedError(
            f"`{type(self).__name__}` must define `pair_bias(query, query_positions, key_positions)`."
        )

    def checked_pair_bias(self, query, query_positions, key_positions):
        """What `pair_bias` returns, as a `keras_attn.ops.PairBias` that fits the logits: attention calls this.

        Args:
            query, query_positions, key_positions: As in `pair_bias`.

        Raises:
            ValueError: if the shape of the bias does not fit, or could be taken for another.
        """
        bias = self.pair_bias(query, query_positions, key_positions)
        shape = (*query.shape[:-1], key_positions.shape[-1])
        return checked_pair_bias(bias, type(self).__name__, shape, (query_positions, key_positions))

    def call(self, query, query_positions=None, key_positions=None):
        self._check_size(query.shape)
        if query_positions is None:
            query_positions = successive_positions(ops.shape(query)[-2])
        if key_positions is None:
            key_positions = query_positions
        _check_positions("query_positions", query_positions, (query.shape[0], query.shape[-2]))
        _check_positions("key_positions", key_positions, (query.shape[0], key_positions.shape[-1]))
        bias = self.checked_pair_bias(query, query_positions, key_positions)
        return ops.cast(bias.dense(), self.compute_dtype)

    def compute_mask(self, query, mask=None):
        return None

    def _size_of(self, query_shape):
        return query_shape[-3] if self.size_name == "num_heads" else query_shape[-1]

    def _check_size(self, query_shape):
        size = self._size_of(query_shape)
        if size != self._size:
            raise ValueError(
                f"`{type(self).__name__}` must be used with one `{self.size_name}`. "
                f"Received: {self.size_name}={size} after {self.size_name}={self._size}."
            )


@keras.saving.register_keras_serializable(package="keras_attn")
class AlibiBias(PositionBias):
    """Attention with linear biases: each head's logits fall with the distance, at its own slope.

    The distance counts in both directions, so that the layer works in encoders too; with a causal mask it is
    the paper's. There are no weights. KerasHub's `AlibiBias` adds the slope times the key's index to given
    scores, which is the same only for one causal sequence. This layer uses positions, so left padding,
    packing and caches need no special case.

    Call arguments:
        query: Floats (B, N, T, H), the head axis before the time axis.
        query_positions: Integers (T,) or (B, T). Defaults to 0, 1, 2, ...
        key_positions: Integers (S,) or (B, S). Defaults to `query_positions`.

    Returns:
        Floats (N, T, S), or (B, N, T, S) for positions (B, T), in the compute dtype.

    Raises:
        ValueError: if positions are not integers or do not fit `query`, or if the number of heads is not that
            of the first use.

    Example:

    ```python
    query = keras.random.normal((2, 4, 5, 16))
    bias = keras_attn.layers.AlibiBias()(query)  # (4, 5, 5)
    ```

    Reference: [Press et al., 2022](https://arxiv.org/abs/2108.12409), section 3.
    """

    def pair_bias(self, query, query_positions, key_positions):
        dtype = keras.backend.standardize_dtype(query.dtype)
        if dtype != "float64":
            dtype = "float32"
        slopes = alibi_slopes(query.shape[-3], dtype)
        return SlopeBias(slopes, query_positions, key_positions)


@keras.saving.register_keras_serializable(package="keras_attn")
class RelativePositionBias(PositionBias):
    """T5's learned bias: a number for each head and each bucket of distances.

    Small distances have a bucket each, larger ones share logarithmically wider buckets. All attention layers
    of a stack may share one layer, as in T5. It is kept in float32 under mixed precision, since it is added
    to logits.

    Args:
        num_buckets: Integer, the number of buckets for both directions together.
        max_distance: Integer. All positions at this distance and beyond share the last bucket.
        bidirectional: Boolean, whether keys after the query have separate buckets (encoders), or share the
            bucket of distance 0 (decoders, which do not see them).
        embeddings_initializer: Initializer of the biases (num_buckets, N).

    Call arguments: as in `AlibiBias`, `query` (B, N, T, H) and positions (T,) or (B, T).

    Returns:
        Floats (N, T, S), or (B, N, T, S) for positions (B, T), in the compute dtype.

    Raises:
        ValueError: if an argument is out of range, positions are not integers or do not fit `query`, or the
            number of heads is not that of the first use.

    Example:

    ```python
    query = keras.random.normal((2, 4, 5, 16))
    bias = keras_attn.layers.RelativePositionBias(num_buckets=8, max_distance=20)(query)  # (4, 5, 5)
    ```

    Reference: [Raffel et al., 2020](https://arxiv.org/abs/1910.10683), section 2.1.
    """

    def __init__(
        self,
        num_buckets=32,
        max_distance=128,
        bidirectional=True,
        embeddings_initializer="uniform",
        **kwargs,
    ):
        check_positive("num_buckets", num_buckets)
        check_positive("max_distance", max_distance)
        directions = 2 if bidirectional else 1
        num_exact = num_buckets // directions // 2
        if num_buckets % directions or num_buckets < 2 * directions:
            raise ValueError(
                "`num_buckets` must be at least 2, and even and at least 4 if `bidirectional`. "
                f"Received: num_buckets={num_buckets}, bidirectional={bidirectional}."
            )
        if max_distance <= num_exact:
            raise ValueError(
                "`max_distance` must be larger than the number of distances that have a bucket each, "
                f"{num_exact}. Received: max_distance={max_distance}."
            )
        super().__init__(**kwargs)
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def pair_bias(self, query, query_positions, key_positions):
        # Buckets are computed for each distance, not for each pair. The bias is then one gather.
        distances = ops.arange(-self.max_distance, self.max_distance + 1)
        buckets = relative_position_bucket(distances, self.num_buckets, self.max_distance, self.bidirectional)
        table = ops.take(ops.convert_to_tensor(self.embeddings), buckets, axis=0)  # (distances, N)
        table = ops.expand_dims(ops.transpose(table), 1)  # (N, 1, distances)
        return TableBias(table, query_positions, key_positions, clipped_index(self.max_distance))

    def get_config(self):
        return {
            **super().get_config(),
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "bidirectional": self.bidirectional,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }

    def create_weights(self, size):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_buckets, size),
            initializer=self.embeddings_initializer,
            autocast=False,
        )


@keras.saving.register_keras_serializable(package="keras_attn")
class RelativePositionKeys(PositionBias):
    """Shaw et al.'s learned vector for each distance, which is added to the keys.

    Adds query . a[key position - query position] / sqrt(H) to the logits. Distances are clipped to
    `max_distance`; all heads share the vectors a. This is the half of the paper about keys: in the authors'
    ablation (table 3) the half about values brings no improvement.

    Args:
        max_distance: Integer. All positions at this distance and beyond share a vector.
        embeddings_initializer: Initializer of the vectors (2 * max_distance + 1, H).

    Call arguments:
        query: Floats (B, N, T, H), the head axis before the time axis, projected and multiplied by H ** -0.5.
        query_positions: Integers (T,) or (B, T). Defaults to 0, 1, 2, ...
        key_positions: Integers (S,) or (B, S). Defaults to `query_positions`.

    Returns:
        Floats (B, N, T, S), in the compute dtype.

    Raises:
        ValueError: if `max_distance` is not a positive integer, positions are not integers or do not fit
            `query`, or the size of the heads is not that of the first use.

    Example:

    ```python
    query = keras.random.normal((2, 4, 5, 16)) * 16**-0.5
    bias = keras_attn.layers.RelativePositionKeys(max_distance=3)(query)  # (2, 4, 5, 5)
    ```

    Reference: [Shaw et al., 2018](https://arxiv.org/abs/1803.02155), section 3.1, equation 4, and section 3.2.
    """

    size_name = "key_dim"

    def __init__(self, max_distance, embeddings_initializer="glorot_uniform", **kwargs):
        check_positive("max_distance", max_distance)
        super().__init__(**kwargs)
        self.max_distance = max_distance
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def pair_bias(self, query, query_positions, key_positions):
        vectors = ops.cast(ops.convert_to_tensor(self.embeddings), query.dtype)
        table = ops.matmul(query, ops.transpose(vectors))  # (B, N, T, distances)
        index = clipped_index(self.max_distance)
        return TableBias(table, query_positions, key_positions, index, has_query_axis=True)

    def get_config(self):
        return {
            **super().get_config(),
            "max_distance": self.max_distance,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }

    def create_weights(self, size):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(2 * self.max_distance + 1, size),
            initializer=self.embeddings_initializer,
        )


def _check_positions(name, positions, shape):
    # Half precision cannot represent all positions from 257 (bfloat16) or 2049 (float16) on.
    dtype = keras.backend.standardize_dtype(positions.dtype)
    if "int" not in dtype:
        raise ValueError(f"`{name}` must be integers. Received: {name} of dtype {dtype}.")
    check_mask_shape(positions, shape[-len(positions.shape) :], name, exact_axes=1)
