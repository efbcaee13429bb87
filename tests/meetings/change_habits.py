"""Habits of training in parts: LoRA, freezing, averages; and what comes after them."""

import keras
import numpy as np
import pytest
from habits import both, habit
from path_habits import has_a_functional_model, inputs_of
from things import as_array, assert_close

from keras_attn.models import merge_lora
from keras_attn.training import Adam, AdamW, averaged_weights, restore_training_state, training_state

OPTIMIZERS = {"adam": Adam, "adamw": AdamW, "sgd": keras.optimizers.SGD}


def is_trained(thing):
    return thing.trains and not thing.without_batch


def is_adapted(thing):
    return hasattr(thing.public_class, "enable_lora")


def adapt(made):
    """LoRA on queries and values, or in a layer without them on all that it can adapt."""
    leaves = [layer.name for layer in made._flatten_layers() if hasattr(layer, "lora_enabled")]
    is_whole = hasattr(made, "_LORA_TARGETS") and not set(made._LORA_TARGETS) & set(leaves)
    made.enable_lora(2, **({"target_layer_names": leaves} if is_whole else {}))


def with_trained_lora(made):
    """LoRA enabled and as if it were trained."""
    adapt(made)
    rng = np.random.default_rng(6)
    for weight in made.trainable_weights:
        if "lora" in weight.name:
            weight.assign(rng.normal(0, 0.2, weight.shape))


@habit(is_adapted, seconds=0.6)
def lora(thing, folder):
    """It changes nothing until it is trained, then the answer, and merging it keeps that."""
    made, batch = thing.made(), inputs_of(thing.batch())
    before = thing.answer(made, batch)
    adapt(made)
    assert_close(thing.answer(made, batch), before, 1e-6)
    made = thing.made()
    with_trained_lora(made)
    trained = thing.answer(made, batch)
    assert np.abs(trained - before).max() > 1e-3
    if thing.is_model:
        assert_close(thing.answer(merge_lora(made), batch), trained)
        assert_close(thing.answer(made, batch), trained, 1e-6)


@habit(both(is_adapted, has_a_functional_model), seconds=1.0)
def lora_saved(thing, folder):
    """A file has the trained answer."""
    made, batch = thing.made(), inputs_of(thing.batch())
    model = thing.functional(made)
    with_trained_lora(made)
    expected = as_array(model(batch))
    model.save(folder / "model.keras")
    assert_close(as_array(keras.models.load_model(folder / "model.keras")(batch)), expected)


@habit(both(is_adapted, has_a_functional_model), seconds=1.0)
def lora_after_a_graph(thing, folder):
    """`predict` has compiled a graph without LoRA."""
    made, batch = thing.made(), inputs_of(thing.batch())
    model = thing.functional(made)
    before = as_array(model.predict(batch, verbose=0))
    with_trained_lora(made)
    expected = as_array(model(batch))
    assert np.abs(expected - before).max() > 1e-3
    model.compile(run_eagerly=False)  # Keras' own rule after a change of layers
    assert_close(as_array(model.predict(batch, verbose=0)), expected)


@habit(is_trained, seconds=0.6)
def a_frozen_part(thing, folder):
    """What is not trainable does not move, and all else moves as in a model that is not frozen."""
    batch = inputs_of(thing.batch())
    keras.utils.set_random_seed(3)  # of dropout
    made = thing.made()
    keras.utils.set_random_seed(3)
    twin = thing.made()
    model, model_of_twin = thing.functional(made), thing.functional(twin)
    first = made.trainable_weights[0]
    owner = next(
        layer for layer in made._flatten_layers() if any(w is first for w in layer._trainable_variables)
    )
    owner.trainable = False
    frozen = {id(weight): as_array(weight) for weight in owner.weights}
    targets = np.ones(as_array(model(batch)).shape)
    for each in (model, model_of_twin):
        each.compile(keras.optimizers.SGD(0.05), "mse", run_eagerly=True)
    model_of_twin.train_on_batch(batch, targets)
    if not made.trainable_weights:
        with pytest.warns(UserWarning, match="does not have any trainable weights"):
            model.train_on_batch(batch, targets)
    else:
        model.train_on_batch(batch, targets)
    for weight, free in zip(made.weights, twin.weights):
        if id(weight) in frozen:
            np.testing.assert_array_equal(as_array(weight), frozen[id(weight)])
        else:
            assert_close(as_array(weight), as_array(free), 1e-5)


def average_after_freezing(optimizer):
    def check(thing, folder):
        """Each weight has its own average, or stays as it is, whatever was frozen since; then its value again."""
        batch, made = inputs_of(thing.batch()), thing.made()
        model = thing.functional(made)
        model.compile(OPTIMIZERS[optimizer](0.03, use_ema=True, ema_momentum=0.7), "mse", run_eagerly=True)
        targets = np.ones(as_array(model(batch)).shape)
        for _ in range(3):
            model.train_on_batch(batch, targets)
        values = [as_array(weight) for weight in model.weights]
        with averaged_weights(model):
            averages = [as_array(weight) for weight in model.weights]
        assert any(np.abs(value - average).max() > 1e-4 for value, average in zip(values, averages))
        next(layer for layer in made._flatten_layers() if layer._trainable_variables).trainable = False
        with averaged_weights(model):
            for weight, value, average in zip(model.weights, values, averages):
                found = as_array(weight)
                assert np.array_equal(found, average) or np.array_equal(found, value), weight.path
        for weight, value in zip(model.weights, values):
            np.testing.assert_array_equal(as_array(weight), value)

    return check


for _optimizer in OPTIMIZERS:
    habit(is_trained, name=f"average_after_freezing_with_{_optimizer}", seconds=1.0)(
        average_after_freezing(_optimizer)
    )


@habit(is_trained, seconds=1.0)
def a_restored_state(thing, folder):
    """The next update is the same after the state was kept, the model spoilt, and the state restored."""
    batch = inputs_of(thing.batch())
    model = thing.functional(thing.made())
    model.compile(Adam(0.01), "mse", run_eagerly=True)
    targets = np.ones(as_array(model(batch)).shape)
    model.train_on_batch(batch, targets)
    state = training_state(model)
    model.train_on_batch(batch, targets)
    expected = [as_array(w) for w in model.weights]
    for weight in model.trainable_weights:
        weight.assign(np.zeros(weight.shape))
    restore_training_state(model, state)
    model.train_on_batch(batch, targets)
    for weight, value in zip(model.weights, expected):
        if "seed" not in weight.path:
            assert_close(as_array(weight), value, 1e-6)
