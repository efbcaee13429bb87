"""Habits with tasks: whatever happened since its last answer, a task answers as a new one would."""

import copy
import functools
import gc
import os
import shutil
import threading
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from habits import everything, habit
from number_habits import global_policy
from task_things import flattened

import keras_attn
from keras_attn.models import merge_lora, quantization_of, quantize
from keras_attn.ops import int8_problem

TASK = {"of": "tasks", "backends": ("tensorflow",)}


def assert_same_answer(actual, expected, tolerance=1e-5):
    strings, numbers = flattened(actual)
    expected_strings, expected_numbers = flattened(expected)
    assert strings == expected_strings
    assert numbers.shape == expected_numbers.shape
    np.testing.assert_allclose(numbers, expected_numbers, rtol=tolerance, atol=tolerance)


def differ(one, other):
    (strings, numbers), (other_strings, other_numbers) = flattened(one), flattened(other)
    if strings != other_strings or numbers.shape != other_numbers.shape:
        return True
    return np.abs(numbers - other_numbers).max() > 1e-4


def with_other_weights(task, thing):
    rng = np.random.default_rng(4)
    for weight in task.model.trainable_weights:
        weight.assign(weight + rng.normal(size=weight.shape) * 0.3)


def with_lora(task, thing):
    task.model.enable_lora(2)
    rng = np.random.default_rng(4)
    for weight in task.model.trainable_weights:
        if "lora" in weight.name:
            weight.assign(rng.normal(size=weight.shape) * 0.4)


def with_merged_lora(task, thing):
    with_lora(task, thing)
    flattened(next(iter(thing.asks.values()))(task))
    task.model = merge_lora(task.model)


def skip_without_int8():
    if problem := int8_problem():
        pytest.skip(problem)


def in_bfloat16(task, thing):
    quantize(task.model, "bfloat16")


def in_int8(task, thing):
    skip_without_int8()
    quantize(task.model, "int8")


def quantized_by_the_task(task, thing):
    task.quantize("bfloat16")


def with_another_model(task, thing):
    task.model = thing.model(seed=9)


def has_layers_of_ours(thing):
    return thing.name not in ("ImageClassifier", "Translator-recurrent")


def can_be_quantized(thing):
    return thing.name != "ImageClassifier"


CHANGES = {
    "its_weights": (with_other_weights, everything),
    "lora": (with_lora, has_layers_of_ours),
    "merged_lora": (with_merged_lora, has_layers_of_ours),
    "bfloat16": (in_bfloat16, can_be_quantized),
    "bfloat16_by_the_task": (quantized_by_the_task, can_be_quantized),
    "int8": (in_int8, can_be_quantized),
    "another_model": (with_another_model, everything),
}


def answers_after(change, every):
    def check(thing, folder):
        """Asked, changed, asked again: what a new task of the same model answers."""
        asks = thing.asks if every else dict([next(iter(thing.asks.items()))])
        task = thing.around(thing.model(seed=3))
        before = {name: ask(task) for name, ask in asks.items()}
        change(task, thing)
        fresh = thing.around(task.model)
        expected = {name: ask(fresh) for name, ask in asks.items()}
        assert any(differ(before[name], expected[name]) for name in asks)
        for name, ask in asks.items():
            assert_same_answer(ask(task), expected[name])

    return check


for _name, (_change, _applies) in CHANGES.items():
    habit(_applies, name=f"after_{_name}", seconds=1.5, **TASK)(answers_after(_change, every=False))
    _several = functools.partial(lambda applies, thing: applies(thing) and len(thing.asks) > 1, _applies)
    habit(_several, name=f"every_answer_after_{_name}", seconds=9.0, **TASK)(
        answers_after(_change, every=True)
    )


@habit(everything, seconds=2.0, **TASK)
def a_copy_with_another_model(thing, folder):
    """A shallow copy and the task that it is a copy of answer each for its own model, in any order."""
    ask = next(iter(thing.asks.values()))
    task = thing.around(thing.model(seed=3))
    other = copy.copy(task)
    other.model = thing.model(seed=9)
    expected = ask(thing.around(thing.model(seed=3))), ask(thing.around(other.model))
    for _ in range(2):
        assert_same_answer(ask(task), expected[0])
        assert_same_answer(ask(other), expected[1])


@habit(lambda thing: bool(thing.options), seconds=4.0, **TASK)
def other_options(thing, folder):
    """An attribute set after an answer counts as one set before the first."""
    name = "call"
    task = thing.around(thing.model(seed=3))
    thing.asks[name](task)
    for option, value in thing.options.items():
        fresh = thing.around(task.model)
        for one in (task, fresh):
            setattr(one, option, value)
        assert_same_answer(thing.asks[name](task), thing.asks[name](fresh))
        setattr(task, option, getattr(thing.around(task.model), option))


@habit(everything, seconds=1.5, **TASK)
def fitted_between(thing, folder):
    """Weights that Keras' own `fit` changed, and BackupAndRestore's kind of assignment, reach the next answer."""
    import keras

    ask = next(iter(thing.asks.values()))
    model = thing.model(seed=3)
    task = thing.around(model)
    before = ask(task)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    optimizer = keras.optimizers.SGD(0.05)
    optimizer.build(model.trainable_variables)
    rng = np.random.default_rng(6)
    gradients = [tf.constant(rng.normal(size=v.shape), v.dtype) for v in model.trainable_variables]
    optimizer.apply(gradients, model.trainable_variables)
    expected = ask(thing.around(model))
    assert differ(before, expected)
    assert_same_answer(ask(task), expected)


@habit(everything, seconds=3.0, **TASK)
def saved_and_loaded(thing, folder):
    """Also under another global policy, and after it was saved with LoRA."""
    ask = next(iter(thing.asks.values()))
    task = thing.around(thing.model(seed=3))
    if has_layers_of_ours(thing):
        with_lora(task, thing)
    expected = ask(task)
    task.save(folder / "it")
    assert_same_answer(ask(keras_attn.load(folder / "it")), expected)
    with global_policy("mixed_bfloat16"):
        assert_same_answer(ask(type(task).load(folder / "it")), expected)


def quantized_saved_and_loaded(mode):
    def check(thing, folder):
        """Saved without an error is loaded to the same answers; or it is refused at once."""
        if mode == "int8":
            skip_without_int8()
        ask = next(iter(thing.asks.values()))
        task = thing.around(thing.model(seed=3)).quantized(mode, xla=True)
        assert quantization_of(task.model) == mode
        try:
            task.save(folder / "it")
        except ValueError:
            assert not (folder / "it").exists()
            return
        assert_same_answer(ask(keras_attn.load(folder / "it")), ask(task), 1e-6)

    return check


for _mode in ("bfloat16", "int8"):
    habit(can_be_quantized, name=f"{_mode}_saved_and_loaded", seconds=4.0, **TASK)(
        quantized_saved_and_loaded(_mode)
    )


@habit(everything, seconds=3.0, **TASK)
def asked_by_threads(thing, folder):
    ask = next(iter(thing.asks.values()))
    expected = ask(thing.around(thing.model(seed=3)))
    task, found, errors = thing.around(thing.model(seed=3)), [], []

    def work():
        try:
            found.extend(ask(task) for _ in range(2))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(found) == 6
    for answer in found:
        assert_same_answer(answer, expected)


def graphs():
    """All of TensorFlow's graphs that there are, by their identities."""
    gc.collect()
    return {id(x): x for x in gc.get_objects() if isinstance(x, tf.Graph)}


@habit(lambda thing: thing.writes, seconds=8.0, **TASK)
def other_values_of_an_option(thing, folder):
    """Penalties and limits are data: other values of them make no other graphs, and answer as a new task does."""
    task = thing.around(thing.model(seed=3))
    task(["a b"], return_scores=True, length_penalty=0.3, max_length=4)
    before = graphs()
    values = [{"length_penalty": 0.3 * n, "max_length": 2 + n} for n in (2, 3)]
    answers = [task(["a b"], return_scores=True, **options) for options in values]
    assert not set(graphs()) - set(before)
    fresh = thing.around(task.model)
    assert_same_answer(answers, [fresh(["a b"], return_scores=True, **options) for options in values])


@habit(everything, seconds=1.0, **TASK)
def an_empty_list(thing, folder):
    """Nothing asked, nothing answered."""
    task = thing.around(thing.model(seed=3))
    if thing.name.startswith("QuestionAnswerer"):
        assert len(flattened(task([], []))[1]) == 0
    else:
        assert len(flattened(task([]))[0]) == 0


@habit(everything, seconds=6.0, **TASK)
def a_walk_of_changes(thing, folder):
    """Several changes in the order of a seed, with questions between."""
    rng = np.random.default_rng(13)
    ask = next(iter(thing.asks.values()))
    task = thing.around(thing.model(seed=3))
    names = [name for name, (_, applies) in CHANGES.items() if applies(thing)]
    for name in rng.permutation(names):
        if quantization_of(task.model) is not None or keras_attn.models.has_lora(task.model):
            with_another_model(task, thing)
        ask(task)
        CHANGES[name][0](task, thing)
        assert_same_answer(ask(task), ask(thing.around(task.model)))


@habit(everything, seconds=40.0, **TASK)
def served_from_its_folder(thing, folder):
    """What is served for a folder answers as the task in it, also after another was saved there with the same dates."""
    from keras_attn.export import verify_saved_model
    from keras_attn.serve.folders import find_version

    with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder / "cache")}):
        task = thing.around(thing.model(seed=3))
        versions = []
        for change in (None, with_other_weights):
            if change is not None:
                change(task, thing)
                shutil.rmtree(folder / "it")
            task.save(folder / "it")
            for path in (folder / "it").rglob("*"):
                os.utime(path, (1, 1))
            loaded = keras_attn.load(folder / "it")
            version = find_version(folder / "it").folder
            assert version not in versions
            versions.append(version)
            checks = verify_saved_model(version, loaded.verification_inputs(), loaded.default_answers)
            assert not any(check.problems for check in checks)
