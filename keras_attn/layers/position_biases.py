import functools

import keras
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.ops import (
    SlopeBias,
    TableBias,
    alibi_slopes,
    check_mask_shape,
    relative_position_bucket,
    successive_positions,
)


class _PositionBias(keras.layers.Layer):
    """What every position bias of an attention layer is: built by each layer that shares it, dense when called.

    A subclass says in `pair_bias` what the bias is, and which size of the heads its weights depend on.
    """

    _size_name, _size_axis = "num_heads", -3

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, query_shape):
        if self.built:
            return self._check_size(query_shape)
        self._size = query_shape[self._size_axis]
        self._add_weights(self._size)

    def call(self, query, query_positions=None, key_positions=None):
        self._check_size(query.shape)
        if query_positions is None:
            query_positions = successive_positions(ops.shape(query)[-2])
        if key_positions is None:
            key_positions = query_positions
        _check_positions("query_positions", query_positions, (query.shape[0], query.shape[-2]))
        _check_positions("key_positions", key_positions, (query.shape[0], key_positions.shape[-1]))
        bias = self.pair_bias(query, query_positions, key_positions)
        return ops.cast(bias.dense(), self.compute_dtype)

    def compute_mask(self, query, mask=None):
        return None

    def pair_bias(self, query, query_positions, key_positions):
        """The bias as a value that attention asks for one block of pairs at a time.

        Args:
            query: Floats (B, N, T, H), projected and multiplied by H ** -0.5.
            query_positions, key_positions: Integers (T,) or (B, T), and (S,) or (B, S).

        Returns:
            A `keras_attn.ops.PairBias`.
        """
        raise NotImplementedError

    def _add_weights(self, size):
        """Creates the weights, for heads of which `_size_name` is `size`."""

    def _check_size(self, query_shape):
        size = query_shape[self._size_axis]
        if size != self._size:
            raise ValueError(
                f"`{type(self).__name__}` must be used with one `{self._size_name}`. "
                f"Received: {self._size_name}={size} after {self._size_name}={self._size}."
            )


@keras.saving.register_keras_serializable(package="keras_attn")
class AlibiBias(_PositionBias):
    """Attention with linear biases: each head's logits fall with the distance, by a slope of its own.

    The distance counts in both directions, so that the layer serves encoders too; with a causal mask it is the
    paper's. There is nothing to learn. KerasHub's `AlibiBias` adds the slope times the key's index to scores that it
    is given, which is the same for one causal sequence only; this one knows positions, so left padding, packing and
    caches need no special case.

    Call arguments:
        query: Floats (B, N, T, H), heads before time.
        query_positions: Integers (T,) or (B, T). Defaults to 0, 1, 2, ...
        key_positions: Integers (S,) or (B, S). Defaults to `query_positions`.

    Returns:
        Floats (N, T, S), or (B, N, T, S) for positions (B, T), in the compute dtype.

    Raises:
        ValueError: if positions are no integers or do not fit `query`, or the layer is used with another number of
            heads than at first.

    Example:

    ```python
    query = keras.random.normal((2, 4, 5, 16))
    bias = keras_attn.layers.AlibiBias()(query)  # (4, 5, 5)
    ```

    Reference: [Press et al., 2022](https://arxiv.org/abs/2108.12409), section 3.
    """

    def pair_bias(self, query, query_positions, key_positions):
        dtype = "float64" if keras.backend.standardize_dtype(query.dtype) == "float64" else "float32"
        return SlopeBias(alibi_slopes(query.shape[-3], dtype), query_positions, key_positions)


@keras.saving.register_keras_serializable(package="keras_attn")
class RelativePositionBias(_PositionBias):
    """T5's learned bias: a number for each head and each bucket of distances.

    Near distances have a bucket each, far ones share logarithmically wider buckets. One layer may be given to all
    attention layers of a stack, as T5 does. Kept in float32 under mixed precision, since it is added to logits.

    Args:
        num_buckets: Integer, the number of buckets, of both directions together.
        max_distance: Integer, the distance from which on all positions share the last bucket.
        bidirectional: Boolean, whether keys after the query have buckets of their own (encoders), or share that of
            distance 0 (decoders, which do not see them).
        embeddings_initializer: Initializer of the biases (num_buckets, N).

    Call arguments: as of `AlibiBias`, `query` (B, N, T, H) and positions (T,) or (B, T).

    Returns:
        Floats (N, T, S), or (B, N, T, S) for positions (B, T), in the compute dtype.

    Raises:
        ValueError: if an argument is out of range, positions are no integers or do not fit `query`, or the layer is
            used with another number of heads than at first.

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
        if num_buckets % directions or num_buckets < 2 * directions:
            raise ValueError(
                "`num_buckets` must be at least 2, and even and at least 4 if `bidirectional`. "
                f"Received: num_buckets={num_buckets}, bidirectional={bidirectional}."
            )
        if max_distance <= num_buckets // directions // 2:
            raise ValueError(
                "`max_distance` must be larger than the number of distances that have a bucket each, "
                f"{num_buckets // directions // 2}. Received: max_distance={max_distance}."
            )
        super().__init__(**kwargs)
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def pair_bias(self, query, query_positions, key_positions):
        # Buckets of the few distances there are, not of every pair: the bias is then one gather.
        distances = ops.arange(-self.max_distance, self.max_distance + 1)
        buckets = relative_position_bucket(distances, self.num_buckets, self.max_distance, self.bidirectional)
        table = ops.take(ops.convert_to_tensor(self.embeddings), buckets, axis=0)  # (distances, N)
        table = ops.expand_dims(ops.transpose(table), 1)  # (N, 1, distances)
        return TableBias(table, query_positions, key_positions, _clipped_at(self.max_distance))

    def get_config(self):
        return {
            **super().get_config(),
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "bidirectional": self.bidirectional,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }

    def _add_weights(self, size):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_buckets, size),
            initializer=self.embeddings_initializer,
            autocast=False,
        )


@keras.saving.register_keras_serializable(package="keras_attn")
class RelativePositionKeys(_PositionBias):
    """Shaw et al.'s learned key for each distance, which queries attend to besides the key itself.

    Adds query . a[key position - query position] / sqrt(H) to the logits, distances clipped to `max_distance`; all
    heads share the vectors a. This is the key half of the paper: the authors' ablation (table 3) finds no use in the
    value half.

    Args:
        max_distance: Integer, the distance from which on all positions share a vector.
        embeddings_initializer: Initializer of the vectors (2 * max_distance + 1, H).

    Call arguments:
        query: Floats (B, N, T, H), heads before time, projected and multiplied by H ** -0.5.
        query_positions: Integers (T,) or (B, T). Defaults to 0, 1, 2, ...
        key_positions: Integers (S,) or (B, S). Defaults to `query_positions`.

    Returns:
        Floats (B, N, T, S), in the compute dtype.

    Raises:
        ValueError: if `max_distance` is no positive integer, positions are no integers or do not fit `query`, or
            the layer is used with another size of heads than at first.

    Example:

    ```python
    query = keras.random.normal((2, 4, 5, 16)) * 16**-0.5
    bias = keras_attn.layers.RelativePositionKeys(max_distance=3)(query)  # (2, 4, 5, 5)
    ```

    Reference: [Shaw et al., 2018](https://arxiv.org/abs/1803.02155), section 3.1, equation 4, and section 3.2.
    """

    _size_name, _size_axis = "key_dim", -1

    def __init__(self, max_distance, embeddings_initializer="glorot_uniform", **kwargs):
        check_positive("max_distance", max_distance)
        super().__init__(**kwargs)
        self.max_distance = max_distance
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def pair_bias(self, query, query_positions, key_positions):
        vectors = ops.cast(ops.convert_to_tensor(self.embeddings), query.dtype)
        table = ops.matmul(query, ops.transpose(vectors))  # (B, N, T, distances)
        index = _clipped_at(self.max_distance)
        return TableBias(table, query_positions, key_positions, index, has_query_axis=True)

    def get_config(self):
        return {
            **super().get_config(),
            "max_distance": self.max_distance,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }

    def _add_weights(self, size):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(2 * self.max_distance + 1, size),
            initializer=self.embeddings_initializer,
        )


def _check_positions(name, positions, shape):
    # A position in half precision is another position from 257 or 2049 on.
    dtype = keras.backend.standardize_dtype(positions.dtype)
    if "int" not in dtype:
        raise ValueError(f"`{name}` must be integers. Received: {name} of dtype {dtype}.")
    check_mask_shape(positions, shape[-len(positions.shape) :], name, exact_axes=1)


def _clipped_at(max_distance):
    """A function of relative positions to 0, 1, ..., 2 max_distance, all beyond the ends taken for the ends."""
    return functools.partial(_clipped, max_distance=max_distance)


def _clipped(relative_positions, max_distance):
    return ops.clip(relative_positions, -max_distance, max_distance) + max_distance
