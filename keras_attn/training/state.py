"""The complete state of a training run as arrays, to resume it exactly."""

import contextlib

import keras
import numpy as np

from keras_attn.compat.keras import moving_averages, trained_variables


def training_state(model):
    """The state of a compiled model in training: weights, random seeds and optimizer, copied.

    Keras' weight files and `BackupAndRestore` leave out the seeds of dropout, so a resumed training differs
    from one that was not interrupted. The optimizer's part holds its count of updates, moments, accumulated
    gradients, moving averages and the loss scale. Metrics, which `fit` sets to zero each epoch, are not
    included.

    Args:
        model: A compiled `keras.Model`, built.

    Returns:
        Dict of NumPy arrays, to be passed to `restore_training_state`.

    Example:

    ```python
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
    model.compile("adam", "mse")
    model.fit(np.ones((5, 3)), np.ones((5, 2)), verbose=0)
    state = training_state(model)
    restore_training_state(model, state)
    ```
    """
    variables = state_variables(model)
    values = {name: np.array(keras.ops.convert_to_numpy(variable)) for name, variable in variables.items()}
    return {**values, **constants_of_state(model)}


def restore_training_state(model, arrays):
    """Restores the state that `training_state` returned, in a model compiled the same way.

    Args:
        model: A compiled `keras.Model`, built.
        arrays: Dict of NumPy arrays.

    Raises:
        ValueError: if names or shapes are not exactly those of the model, or its optimizer trains other weights; then
            nothing is assigned.
    """
    variables = state_variables(model)
    arrays = dict(arrays)
    for name, value in constants_of_state(model).items():
        if not np.array_equal(arrays.pop(name, None), value):
            raise ValueError(
                "The state is that of an optimizer of other weights: freeze and thaw the same layers before the model is "
                "compiled and restored."
            )
    missing = sorted(set(variables) - set(arrays))
    foreign = sorted(set(arrays) - set(variables))
    if missing or foreign:
        raise ValueError(
            "The state is not that of this model and optimizer. "
            f"Missing: {', '.join(missing) or 'none'}. Not in the model: {', '.join(foreign) or 'none'}."
        )
    for name, variable in variables.items():
        if tuple(arrays[name].shape) != tuple(variable.shape):
            raise ValueError(
                f"The state holds {name} with shape {tuple(arrays[name].shape)}; "
                f"the model's has shape {tuple(variable.shape)}."
            )
    for name, variable in variables.items():
        variable.assign(arrays[name])


@contextlib.contextmanager
def averaged_weights(model):
    """Within the block, the model has the moving average of its weights, if its optimizer keeps one.

    The average is exponential. Keras' `SwapEMAWeights` swaps by adding and subtracting, which rounds; here
    training continues with exactly the same weights.

    Args:
        model: A `keras.Model`; nothing happens unless its optimizer was made with `use_ema=True`.

    Example:

    ```python
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.Adam(use_ema=True, ema_momentum=0.999), "mse")
    model.fit(np.ones((5, 3)), np.ones((5, 2)), verbose=0)
    with averaged_weights(model):
        model.evaluate(np.ones((5, 3)), np.ones((5, 2)), verbose=0)
    ```
    """
    averages = _averages(model.optimizer)
    kept = [np.array(keras.ops.convert_to_numpy(weight)) for weight, _ in averages]
    for weight, average in averages:
        weight.assign(average)
    try:
        yield
    finally:
        for (weight, _), value in zip(averages, kept, strict=True):
            weight.assign(value)


def _averages(optimizer):
    """The pairs of a weight and its moving average that an optimizer keeps."""
    return [
        pair
        for part in _single_optimizers(optimizer)
        if part.use_ema and part.built
        for pair in zip(trained_variables(part), moving_averages(part), strict=True)
        if pair[1] is not None
    ]


def _single_optimizers(optimizer):
    """The optimizers inside those that wrap others: mixed_float16's, and several optimizers for parts of a model."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return getattr(inner, "optimizers", [inner])


def _trained_weights(model):
    """Which of the model's variables its optimizer was built for, integers in the optimizer's order."""
    positions = {id(variable): position for position, variable in enumerate(model.variables)}
    trained = [weight for part in _single_optimizers(model.optimizer) for weight in trained_variables(part)]
    return np.array([positions.get(id(weight), -1) for weight in trained], "int32")


def state_variables(model):
    """The variables of which `training_state` is made, a dict: {name: variable}."""
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    groups = {"model": model.variables, "optimizer": model.optimizer.variables}
    # Numbered, because Keras' paths contain counters that grow within a process, and all seeds have the same
    # name.
    return {
        f"{group}/{number:04d}": variable
        for group, variables in groups.items()
        for number, variable in enumerate(variables)
    }


def constants_of_state(model):
    """What `training_state` has beside the values of variables, a dict of arrays: nothing that training changes."""
    return {"optimizer/trained": _trained_weights(model)}
