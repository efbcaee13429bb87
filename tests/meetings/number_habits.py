"""Habits of dtypes: every policy is close to float32, and a policy set for all is a policy given to each."""

import contextlib

import keras
import pytest
from habits import everything, habit
from path_habits import has_batch, inputs_of
from things import as_array, assert_close

from keras_attn.models import QUANTIZATIONS, float32_copy, quantized_copy

TOLERANCES = {"mixed_bfloat16": 0.06, "mixed_float16": 0.008}


@contextlib.contextmanager
def global_policy(name):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def says_its_dtypes(thing):
    return not thing.is_users


def close_to_float32(policy):
    def check(thing, folder):
        batch = thing.batch()
        expected = thing.real(thing.answer(thing.made(), batch), batch)
        made = thing.made(dtype=policy)
        assert made.compute_dtype != "float32"
        assert {str(keras.backend.standardize_dtype(w.dtype)) for w in made.weights} <= {"float32"}
        assert_close(thing.real(thing.answer(made, batch), batch), expected, TOLERANCES[policy])

    return check


def for_all_as_for_each(policy):
    """A model made under a global policy is that of the policy given: the same numbers to the bit, and dtypes."""

    def check(thing, folder):
        batch = thing.batch()
        given = thing.made(dtype=policy)
        expected = thing.answer(given, batch)
        with global_policy(policy):
            made = thing.made()
            assert_close(thing.answer(made, batch), expected, 0.0)
            output = thing.call(made, **tensors(batch))
        assert made.dtype_policy.name == given.dtype_policy.name
        dtypes = [layer.dtype_policy.name for layer in given._flatten_layers()]
        assert [layer.dtype_policy.name for layer in made._flatten_layers()] == dtypes
        output = output[0] if isinstance(output, tuple) else output
        dtype = "float32" if thing.float32_output else made.compute_dtype
        assert keras.backend.standardize_dtype(output.dtype) == dtype

    return check


def tensors(batch):
    return {name: keras.ops.convert_to_tensor(array) for name, array in inputs_of(batch).items()}


def made_in_float32_stays(policy):
    """A model of explicit float32 answers as ever under another global policy: cloned, saved and loaded too."""

    def check(thing, folder):
        batch = inputs_of(thing.batch())
        expected = thing.answer(thing.made(), batch)
        with global_policy(policy):
            made = thing.made(dtype="float32")
            assert_close(thing.answer(made, batch), expected)
            if has_batch(thing):
                again = type(made).from_config(made.get_config())
                thing.answer(again, batch)
                again.set_weights(made.get_weights())
                assert_close(thing.answer(again, batch), expected)

    return check


for _policy in TOLERANCES:
    habit(everything, name=f"{_policy}_is_close")(close_to_float32(_policy))
    habit(says_its_dtypes, name=f"{_policy}_for_all")(for_all_as_for_each(_policy))
    habit(says_its_dtypes, name=f"float32_under_{_policy}")(made_in_float32_stays(_policy))


def is_copied(thing):
    return thing.is_model


@habit(is_copied, seconds=1.0)
def a_float32_copy_under_a_global_policy(thing, folder):
    """A copy of a model is the same wherever it is made, and float32 is what the model is without its policy."""
    batch = inputs_of(thing.batch())
    expected = thing.answer(thing.made(), batch)
    mixed = thing.made(dtype="mixed_bfloat16")
    assert_close(thing.answer(float32_copy(mixed), batch), expected)
    with global_policy("mixed_bfloat16"):
        assert_close(thing.answer(float32_copy(mixed), batch), expected)
        assert_close(thing.answer(float32_copy(thing.made()), batch), expected)


@habit(is_copied, seconds=1.0)
def loaded_under_a_global_policy(thing, folder):
    """A file says of every layer in which dtype it computes."""
    made, batch = thing.made(), inputs_of(thing.batch())
    made.save(folder / "model.keras")
    with global_policy("mixed_bfloat16"):
        loaded = keras.models.load_model(folder / "model.keras")
        assert_close(thing.answer(loaded, batch), thing.answer(made, batch), 1e-6)


def quantized_copies(mode):
    def check(thing, folder):
        made, batch = thing.made(), inputs_of(thing.batch())
        expected = thing.answer(quantized_copy(made, mode), batch)
        assert_close(expected, thing.answer(made, batch), 0.25)
        with global_policy("mixed_bfloat16"):
            assert_close(thing.answer(quantized_copy(made, mode), batch), expected)
            assert_close(thing.answer(quantized_copy(thing.made(), mode), batch), expected)

    return check


def quantized_and_saved(mode):
    def check(thing, folder):
        """What a file was written of without an error, it gives back; int8 layers that a user's class makes are refused."""
        copied = quantized_copy(thing.made(), mode)
        batch = inputs_of(thing.batch())
        expected = thing.answer(copied, batch)
        if thing.is_users and mode == "int8":
            with pytest.raises(ValueError, match="in int8 cannot be saved"):
                copied.save(folder / "model.keras")
            return
        copied.save(folder / "model.keras")
        loaded = keras.models.load_model(folder / "model.keras")
        assert_close(as_array(thing.call(loaded, **tensors(batch))), expected, 1e-6)

    return check


for _mode in QUANTIZATIONS:
    habit(is_copied, name=f"{_mode}_copies_under_a_global_policy", seconds=1.5)(quantized_copies(_mode))
    habit(is_copied, name=f"{_mode}_copies_saved", seconds=1.5)(quantized_and_saved(_mode))
