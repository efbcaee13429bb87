"""A run that is to end within some minutes: its speed is measured, and its length and warm-up follow."""

import math
import time

import keras

from keras_attn.runs.advice import FEW_UPDATES
from keras_attn.training import restore_training_state, training_state

# The first updates trace graphs and fill caches; they do not count.
_UNCOUNTED, _COUNTED = 4, 12
# Of the time that is left, what validation and the last evaluation may take.
SHARE_OF_EVALUATION = 0.25
# After so many parts of the training it is validated: twice a minute, within limits.
_FEWEST_VALIDATIONS, _MOST_VALIDATIONS = 5, 15
_MOST_WARMUP_STEPS = 1000
# Fields of a recipe that are planned.
PLANNED = ("epochs", "steps_per_epoch", "warmup_steps", "schedule")


def seconds_per_update(model, batches):
    """Measures the updates of a compiled model on its first batches; the model is as before afterwards."""
    state = training_state(model)
    times = []
    steps = batches.num_micro_batches
    timer = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: times.append(time.monotonic())
    )
    model.fit(
        batches.dataset(),
        steps_per_epoch=(_UNCOUNTED + _COUNTED) * steps,
        shuffle=False,
        callbacks=[timer],
        verbose=0,
    )
    restore_training_state(model, state)
    return (times[-1] - times[_UNCOUNTED * steps - 1]) / _COUNTED


def planned(recipe, seconds, seconds_an_update):
    """The recipe with the epochs, the updates and the warm-up for which there is time.

    Args:
        recipe: `Recipe`.
        seconds: Float, what is left, evaluation included.
        seconds_an_update: Float.

    Returns:
        A `Recipe`.

    Raises:
        ValueError: if there is no time for a training worth the name.
    """
    updates = int(seconds * (1 - SHARE_OF_EVALUATION) / seconds_an_update)
    validations = max(_FEWEST_VALIDATIONS, min(_MOST_VALIDATIONS, int(2 * recipe.minutes)))
    if updates < validations:
        raise ValueError(
            f"There is no time to train: an update takes {seconds_an_update:.2g} s here, and {max(0, seconds):.0f} s of "
            f"the {recipe.minutes:g} minutes are left. Give more minutes, or a smaller model or smaller batches."
        )
    an_epoch = math.ceil(updates / validations)
    return recipe.replace(
        epochs=validations,
        steps_per_epoch=an_epoch * recipe.gradient_accumulation_steps,
        warmup_steps=max(1, min(_MOST_WARMUP_STEPS, updates // 10)),
        schedule="cosine",
    )


def plan_report(recipe, seconds_an_update):
    """The plan of a recipe as a text, with a note if it lets the model learn little."""
    text = (
        f"{1000 * seconds_an_update:.0f} ms an update: {recipe.epochs} epochs of {recipe.steps_per_epoch:,} batches, "
        f"warm-up {recipe.warmup_steps:,}, for {recipe.minutes:g} minutes."
    )
    updates = recipe.epochs * recipe.steps_per_epoch // recipe.gradient_accumulation_steps
    if updates < FEW_UPDATES:
        text += f"\nNote: {updates:,} updates are few, and little will be learned. Give more minutes."
    return text
