"""The cache against NumPy slices."""

import itertools

import numpy as np
import pytest
from helpers_layers import BACKEND, compiled
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_attn.ops import (
    KeyValueCache,
    empty_cache,
    extend_cache,
    overwriting_scope,
    unshared,
    write_cache,
    write_ring,
)

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


def in_open_graph(function, *inputs):
    """The function in a TensorFlow graph that takes batches of any size, traced for arrays like these."""
    import tensorflow as tf

    specs = tf.nest.map_structure(
        lambda x: tf.TensorSpec([None, *x.shape[1:]] if x.ndim else [], x.dtype), inputs
    )
    graph = tf.function(function, autograph=False).get_concrete_function(*specs)
    assert "TensorScatterUpdate" in {node.op for node in graph.graph.as_graph_def().node}
    return lambda *inputs: [np.asarray(x) for x in graph(*map(tf.constant, tf.nest.flatten(inputs)))]


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow has graphs of any batch size")
@pytest.mark.parametrize("length", [1, 2, 5, 7])
def test_written_in_place_in_an_open_graph(rng, length):
    import tensorflow as tf

    whole, new = filled(rng, S), filled(rng, length)
    write = in_open_graph(lambda cache, new, index: write_cache(cache, *new, index), whole, new, np.int32(0))
    for batch_size, index in itertools.product((0, 1, B), range(S + 1)):
        given = [x[:batch_size] for x in whole], [x[:batch_size] for x in new]
        if index + length > S and batch_size:
            with pytest.raises(tf.errors.InvalidArgumentError):
                write(*given, np.int32(index))
        else:
            for actual, expected in zip(write(*given, np.int32(index)), written_by_hand(*given, index)):
                np.testing.assert_array_equal(actual, expected)


def layer_cache(rng):
    return KeyValueCache(*filled(rng, S), positions=np.arange(S, dtype="int32")[None] - 2)


def test_a_cache_of_a_layer_keeps_its_other_fields(rng):
    cache, new = layer_cache(rng), filled(rng, 2)
    written = write_cache(cache, *new, 3)
    assert isinstance(written, KeyValueCache)
    for x, expected in zip(written[:2], written_by_hand(cache[:2], new, 3)):
        np.testing.assert_array_equal(x, expected)
    ring = write_ring(cache, *(ops.convert_to_tensor(x) for x in new), ops.convert_to_tensor([8, 9]))
    for x, expected in zip(ring[:2], write_ring(cache[:2], *new, ops.convert_to_tensor([8, 9]))):
        np.testing.assert_array_equal(x, expected)
    for changed in (written, ring):
        assert changed.positions is cache.positions


def test_new_slots_of_a_cache_of_a_layer_hold_no_position(rng):
    cache = layer_cache(rng)
    longer = extend_cache(cache, 11)
    assert [x.shape[2] for x in longer[:2]] == [11, 11]
    np.testing.assert_array_equal(longer.positions, [[-2, -1, 0, 1, 2, 3, 4, -1, -1, -1, -1]])
    assert extend_cache(KeyValueCache(*cache[:2]), 11).positions is None


def test_a_pair_stays_a_pair(rng):
    cache, new = filled(rng, S), filled(rng, 2)
    new_ring = (ops.convert_to_tensor(x) for x in new)
    ring = write_ring(cache, *new_ring, ops.convert_to_tensor([8, 9]))
    assert {type(x) for x in (write_cache(cache, *new, 3), extend_cache(cache, 11), ring)} == {tuple}


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow has graphs of any batch size")
def test_a_loop_overwrites_caches_that_are_its_own(rng):
    import tensorflow as tf

    keys, values = (tf.constant(rng.normal(size=(5, B, N, 1, H)), "float32") for _ in range(2))

    def loop(batch_size):
        rows = tf.shape(tf.zeros([batch_size]))[0]
        # Equal zeros, which TensorFlow makes once.
        cache = tuple(tf.ensure_shape(tf.zeros([rows, N, S, H]), [None, N, None, H]) for _ in range(2))

        def step(index, cache):
            of_step = (tf.gather(x, index)[:rows] for x in (keys, values))
            return index + 1, write_cache(cache, *of_step, index)

        with overwriting_scope():
            cache = ops.while_loop(lambda index, _: index < 5, step, (tf.constant(0), unshared(cache)))[1]
        return cache

    graph = tf.function(loop, [tf.TensorSpec([], tf.int32)], autograph=False).get_concrete_function()
    found = {
        node.op for function in graph.graph.as_graph_def().library.function for node in function.node_def
    }
    assert "InplaceUpdate" in found
    assert "TensorScatterUpdate" not in found
    for x, steps in zip(graph(tf.constant(B)), (keys, values)):
        np.testing.assert_array_equal(x[:, :, :5], np.moveaxis(steps[:, :, :, 0], 0, 2))
        assert not x[:, :, 5:].numpy().any()


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow has graphs of any batch size")
def test_a_cache_that_is_written_twice_is_not_overwritten_the_second_time(rng):
    whole = filled(rng, S)
    first, second = filled(rng, 1), filled(rng, 1)

    def both(cache, first, second, index):
        with overwriting_scope():
            cache = unshared(cache)
            return *write_cache(cache, *first, index), *write_cache(cache, *second, index)

    written = in_open_graph(both, whole, first, second, np.int32(0))(whole, first, second, np.int32(4))
    expected = [*written_by_hand(whole, first, 4), *written_by_hand(whole, second, 4)]
    for x, of_hand in zip(written, expected):
        np.testing.assert_array_equal(x, of_hand)
