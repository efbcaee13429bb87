"""Batches of sequences for threads: who comes with whom, in which order the results are, what an error does; and few shapes for XLA."""

import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attn.tasks.batches import Buckets, compiled_with_xla, padded, run_in_batches

LENGTHS = np.random.default_rng(1).integers(1, 40, 101).tolist()
SEQUENCES = [[number] * length for number, length in enumerate(LENGTHS)]


@pytest.mark.parametrize("num_workers", [1, 2, 7, None])
@pytest.mark.parametrize("batch_size", [1, 10, 101, 500])
def test_results_are_in_the_order_of_the_sequences(batch_size, num_workers):
    batches = []

    def number_of_each(places):
        batches.append(places)
        time.sleep(0.002 * (len(batches) % 3))  # batches end in another order than they begin
        return [SEQUENCES[place][0] for place in places]

    assert run_in_batches(number_of_each, SEQUENCES, batch_size, num_workers) == list(range(101))
    assert sorted(map(len, batches)) == sorted(
        [batch_size] * (101 // batch_size) + [101 % batch_size] * (101 % batch_size > 0)
    )
    for batch in batches:  # no sequence of a length between two of a batch is in another one
        shortest, longest = (extreme(LENGTHS[place] for place in batch) for extreme in (min, max))
        between = [place for place, length in enumerate(LENGTHS) if shortest < length < longest]
        assert set(between) <= set(batch)


def test_as_many_threads_as_there_are_workers():
    meeting = threading.Barrier(5, timeout=30)

    def meet(places):
        meeting.wait()  # passes when five batches are in work at the same time
        return places

    assert run_in_batches(meet, SEQUENCES[:50], 10, num_workers=5) == list(range(50))


def test_no_sequences():
    assert run_in_batches(lambda places: places, [], 10) == []


def test_an_error_ends_it_before_the_batches_that_nobody_works_on():
    begun = []

    def fails(places):
        begun.append(places)
        raise KeyError("a batch of its own")

    with pytest.raises(KeyError, match="a batch of its own"):
        run_in_batches(fails, SEQUENCES, 1, num_workers=2)
    assert len(begun) < 101


@pytest.mark.parametrize("name", ["batch_size", "num_workers"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "4"])
def test_a_bad_number_is_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be a positive integer. Received: {name}={value!r}"):
        run_in_batches(lambda places: places, SEQUENCES, **{"batch_size": 3, name: value})


@pytest.mark.extended
@pytest.mark.parametrize("to_buckets", [False, True])
def test_padded(to_buckets):
    ids = padded([[5, 6, 7], [8], [9, 10, 11, 12, 13]], to_buckets).numpy()
    assert ids.shape == ((4, 8) if to_buckets else (3, 5))
    np.testing.assert_array_equal(ids[:3, :5], [[5, 6, 7, -1, -1], [8, -1, -1, -1, -1], [9, 10, 11, 12, 13]])
    np.testing.assert_array_equal(ids[:, 5:], -1)
    np.testing.assert_array_equal(ids[3:], ids[2:3] if to_buckets else np.zeros((0, 5)))


@pytest.mark.parametrize(
    ("length", "bucket"), [(1, 1), (3, 4), (6, 8), (9, 12), (13, 16), (17, 24), (25, 32), (33, 48), (49, 64)]
)
def test_lengths_of_buckets(length, bucket):
    assert padded([[7] * length], to_buckets=True).shape == (1, bucket)
    assert padded([[7] * bucket], to_buckets=True).shape == (1, bucket)


@pytest.fixture(params=["float32", "bfloat16"])
def model(request):
    """A matrix of 3 x 7001 numbers, too many for a constant, a bias, and dropout with the state of a seed."""
    dense = keras.layers.Dense(7001, bias_initializer="ones", dtype=request.param)
    model = keras.Sequential([keras.Input((3,)), dense, keras.layers.Dropout(0.1)])
    model.dense = dense
    return model


def test_small_weights_of_a_frozen_model_are_constants(model):
    x = np.random.default_rng(3).normal(size=(5, 3)).astype("float32")
    free, frozen = compiled_with_xla(model), compiled_with_xla(model, frozen=model)
    expected = model(x)
    for compiled in (free, frozen):
        np.testing.assert_allclose(
            tf.cast(compiled(x), tf.float32), tf.cast(expected, tf.float32), rtol=1e-2, atol=1e-2
        )
    captured = frozen.get_concrete_function(tf.TensorSpec(x.shape)).captured_inputs
    assert [tensor is model.dense.kernel.value.handle for tensor in captured] == [True]
    model.dense.bias.assign(model.dense.bias * 9)
    np.testing.assert_allclose(tf.cast(free(x) - frozen(x), tf.float32), 8.0, atol=0.1)


def test_buckets_of_a_frozen_model_answer_as_it_does(model):
    x = np.random.default_rng(5).normal(size=(11, 3)).astype("float32")
    buckets = Buckets([2, 4], [3], 3, "longest", frozen=model)
    found = buckets(lambda inputs: model(inputs["x"]), {"x": tf.constant(x)}, (7001,))
    np.testing.assert_allclose(found, tf.cast(model(x), tf.float32), rtol=1e-2, atol=1e-2)
