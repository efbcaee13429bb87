"""A run that is to end within some minutes: its speed is measured, and its length and warm-up follow.

The machine may become slower or faster afterwards, so the speed is measured again and again, and the rest of the training planned
anew. The schedule then goes on faster, from where it is, and is complete at the new end.
"""

import dataclasses
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
# The rest is planned anew where there is time for less than this share of it, or for more than this, and it was cut before.
_LESS, _MORE = 0.9, 1.25
# Of the time that is left, what validation and the last evaluation may take where they are known to be slow.
_MOST_OF_EVALUATION = 0.5
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
        text += f"\nNote: {updates:,} updates are few for most data. If the score is low at the end, give more minutes."
    return text


@dataclasses.dataclass(frozen=True)
class Rest:
    """What is left of a training: so many updates, divided evenly among epochs, the one at hand included.

    Args:
        updates, epochs: Integers.
    """

    updates: int
    epochs: int


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds, as measured: of an update, of a validation, which is None before the first, and of the end of the run."""

    update: float
    validation: float | None
    end: float


def planned_rest(rest, most, seconds, costs, *, strict=False):
    """The `Rest` for which there is time, or None if it may stay as it is.

    Args:
        rest: `Rest`, the plan so far.
        most: Integer, the updates that are left of the first plan. There are never more.
        seconds: Float, what is left, evaluation included.
        costs: `Costs`.
        strict: Boolean, whether the rest is cut for any lack of time, not for a large one only.
    """
    epochs = rest.epochs
    if costs.validation is None:
        evaluation = SHARE_OF_EVALUATION * seconds
    else:
        while epochs > 1 and epochs * costs.validation + costs.end > _MOST_OF_EVALUATION * seconds:
            epochs -= 1
        evaluation = epochs * costs.validation + costs.end
    updates = max(1, min(most, int((seconds - evaluation) / costs.update)))
    epochs = min(epochs, updates)
    is_cut = rest.updates < most
    if (
        epochs == rest.epochs
        and updates >= (1 if strict else _LESS) * rest.updates
        and not (is_cut and updates > _MORE * rest.updates)
    ):
        return None
    return Rest(updates // epochs * epochs, epochs)
