"""All that a training run has become, as arrays: what resumes it exactly."""

import contextlib

import keras
import numpy as np


def training_state(model):
    """The state of a compiled model in training: weights, random seeds and optimizer, copied.

    Keras' weight files and `BackupAndRestore` leave out the seeds of dropout, so what follows is another training
    than the one that was interrupted. The optimizer's part holds its count of updates, moments, accumulated gradients,
    moving averages and the loss scale. Metrics, which `fit` sets to zero each epoch, are no part of it.

    Args:
        model: A compiled `keras.Model`, built.

    Returns:
        Dict of NumPy arrays. `restore_training_state` takes it back.

    Example:

    ```python
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
    model.compile("adam", "mse")
    model.fit(np.ones((5, 3)), np.ones((5, 2)), verbose=0)
    state = training_state(model)
    restore_training_state(model, state)
    ```
    """
    return {
        name: np.array(keras.ops.convert_to_numpy(variable))
        for name, variable in _named_variables(model).items()
    }


def training_snapshots(model):
    """A way to take the state of a model between two steps, and to copy it later, while training goes on.

    TensorFlow's variables share their memory with what was read from them until they are assigned to, so that nothing
    is copied when a snapshot is taken; JAX gives the memory away to the next step, and PyTorch writes into it, so that
    there all is copied at once.

    Args:
        model: A compiled `keras.Model`, built.

    Returns:
        Function without arguments that takes a snapshot: another function without arguments, for any thread, which
        returns what `training_state` would have returned.

    Example:

    ```python
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    take = training_snapshots(model)
    snapshot = take()
    model.fit(np.ones((5, 3)), np.ones((5, 2)), verbose=0)
    untrained = snapshot()
    ```
    """
    if keras.backend.backend() != "tensorflow":

        def take():
            state = training_state(model)
            return lambda: state

        return take

    import tensorflow as tf

    variables = _named_variables(model)
    # In a graph, for calls from Python take longer than all the rest.
    read = tf.function(
        lambda: [variable.value.read_value() for variable in variables.values()], autograph=False
    )

    def take():
        values = read()
        return lambda: {name: np.array(value) for name, value in zip(variables, values)}

    return take


def restore_training_state(model, arrays):
    """Gives a model, compiled as the one was, the state that `training_state` returned of it.

    Args:
        model: A compiled `keras.Model`, built.
        arrays: Dict of NumPy arrays.

    Raises:
        ValueError: if names or shapes are not exactly those of the model; nothing is assigned then.
    """
    variables = _named_variables(model)
    missing, foreign = sorted(set(variables) - set(arrays)), sorted(set(arrays) - set(variables))
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
    """Within the block, the model has the exponential moving average of its weights, if its optimizer keeps one.

    Keras' `SwapEMAWeights` swaps by adding and subtracting, which rounds; here training goes on with the very bits.

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
    # mixed_float16 wraps the optimizer that keeps the averages.
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    # Keras has no public way to the averages.
    averages = optimizer._model_variables_moving_average if optimizer.use_ema and optimizer.built else []
    weights = model.trainable_variables[: len(averages)]
    kept = [np.array(keras.ops.convert_to_numpy(weight)) for weight in weights]
    for weight, average in zip(weights, averages):
        weight.assign(average)
    try:
        yield
    finally:
        for weight, value in zip(weights, kept):
            weight.assign(value)


def _named_variables(model):
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    groups = {"model": model.variables, "optimizer": model.optimizer.variables}
    # Numbered: a path holds names that Keras counts up within a process, and the names of seeds are all alike.
    return {
        f"{group}/{number:04d}": variable
        for group, variables in groups.items()
        for number, variable in enumerate(variables)
    }
