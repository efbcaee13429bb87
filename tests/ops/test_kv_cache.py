"""The cache against NumPy slices."""

import numpy as np
import pytest
from helpers_layers import BACKEND, compiled
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_attn.ops import empty_cache, extend_cache, write_cache

B, N, S, H, HV = 2, 3, 7, 5, 11


def filled(rng, length):
    shapes = (B, N, length, H), (B, N, length, HV)
    return tuple(rng.normal(size=shape).astype("float32") for shape in shapes)


def written_by_hand(cache, new, index):
    """Slots past the capacity are dropped, as the docstring says."""
    cache = [x.copy() for x in cache]
    for stored, x in zip(cache, new):
        for offset in range(x.shape[2]):
            if 0 <= index + offset < stored.shape[2]:
                stored[:, :, index + offset] = x[:, :, offset]
    return cache


def test_an_empty_cache_is_zeros():
    key, value = empty_cache(B, N, S, H, HV, dtype="float16")
    assert (tuple(key.shape), tuple(value.shape)) == ((B, N, S, H), (B, N, S, HV))
    assert "float16" in str(key.dtype)
    assert "float16" in str(value.dtype)
    assert not np.asarray(key).any()
    assert not np.asarray(value).any()
    assert tuple(empty_cache(B, N, S, H)[1].shape) == (B, N, S, H)


@pytest.mark.parametrize("length", [1, 2, 5, 7])
@pytest.mark.parametrize("index", range(S + 1))
def test_write_at_any_index_and_overflow(rng, length, index):
    cache, new = filled(rng, S), filled(rng, length)
    actual = write_cache(cache, *new, index)
    for x, expected in zip(actual, written_by_hand(cache, new, index)):
        np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("kind", ["int", "int32", "numpy", *(["int64"] if BACKEND == "tensorflow" else [])])
def test_the_index_may_be_any_integer_scalar(rng, kind):
    cache, new = filled(rng, S), filled(rng, 2)
    index = {"int": lambda: 3, "numpy": lambda: np.int64(3)}.get(
        kind, lambda: ops.convert_to_tensor(3, dtype=kind)
    )()
    for x, expected in zip(write_cache(cache, *new, index), written_by_hand(cache, new, 3)):
        np.testing.assert_array_equal(x, expected)


def test_nan_that_was_overwritten_is_gone(rng):
    cache, new = filled(rng, S), filled(rng, 2)
    for x in cache:
        x[:, :, 3:5] = np.nan
    for x in write_cache(cache, *new, 3):
        assert np.isfinite(np.asarray(x)).all()


def test_new_slots_take_the_dtype_of_the_cache(rng):
    key, value = write_cache(empty_cache(B, N, S, H, HV, dtype="bfloat16"), *filled(rng, 2), 1)
    assert "bfloat16" in str(key.dtype)
    assert "bfloat16" in str(value.dtype)


@settings(max_examples=20 if BACKEND == "tensorflow" else 3, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_chunks_in_a_row_are_the_whole(lengths, seed):
    whole = filled(np.random.default_rng(seed), sum(lengths))
    cache, index = empty_cache(B, N, sum(lengths), H, HV), 0
    for length in lengths:
        cache = write_cache(cache, *(x[:, :, index : index + length] for x in whole), index)
        index += length
    for x, expected in zip(cache, whole):
        np.testing.assert_array_equal(x, expected)


def test_extend_keeps_what_is_there_and_adds_zeros(rng):
    cache = filled(rng, S)
    for x, old in zip(extend_cache(cache, 11), cache):
        assert x.shape[2] == 11
        np.testing.assert_array_equal(x[:, :, :S], old)
        assert not np.asarray(x)[:, :, S:].any()


@pytest.mark.parametrize("jit", [True, False])
def test_compiled_with_a_traced_index(rng, jit):
    cache, new = filled(rng, S), filled(rng, 3)
    write = compiled(lambda given: write_cache(given["cache"], *given["new"], given["index"]), jit)
    for index in (0, 2, 4, 6):
        given = {"cache": cache, "new": new, "index": ops.convert_to_tensor(index, dtype="int32")}
        for x, expected in zip(write(given), written_by_hand(cache, new, index)):
            np.testing.assert_array_equal(x, expected)


def in_open_graph(function):
    """The function in a TensorFlow graph that takes batches of any size; each is called with a cache, a pair, an index."""
    import tensorflow as tf

    def specs(*inputs):
        return tf.nest.map_structure(
            lambda x: tf.TensorSpec([None, *x.shape[1:]] if x.ndim else [], x.dtype), inputs
        )

    def call(*inputs):
        graph = tf.function(function, autograph=False).get_concrete_function(*specs(*inputs))
        assert "TensorScatterUpdate" in {node.op for node in graph.graph.as_graph_def().node}
        return tuple(np.asarray(x) for x in graph(*map(tf.constant, tf.nest.flatten(inputs))))

    return call


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow has graphs of any batch size")
@pytest.mark.parametrize("length", [1, 2, 5, 7])
@pytest.mark.parametrize("index", range(S + 1))
@pytest.mark.parametrize("batch_size", [0, 1, B])
def test_written_in_place_in_an_open_graph(rng, length, index, batch_size):
    import tensorflow as tf

    cache, new = ([x[:batch_size] for x in filled(rng, size)] for size in (S, length))
    write = in_open_graph(lambda cache, new, index: write_cache(cache, *new, index))
    if index + length > S and batch_size:
        with pytest.raises(tf.errors.InvalidArgumentError):
            write(cache, new, np.int32(index))
        return
    for actual, expected in zip(write(cache, new, np.int32(index)), written_by_hand(cache, new, index)):
        np.testing.assert_array_equal(actual, expected)
