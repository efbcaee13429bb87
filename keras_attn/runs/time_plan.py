"""A run that is to end within some minutes: its speed is measured, and its length and warm-up follow.

The machine may become slower or faster afterwards, so the speed is measured again and again, and the rest of the training planned
anew. The schedule then goes on faster, from where it is, and is complete at the new end.
"""

import dataclasses
import math
import time

import keras

from keras_attn.compat.keras import synchronize_jax_state
from keras_attn.runs.evaluation import FEW_UPDATES
from keras_attn.terminal import counted
from keras_attn.training import restore_training_state, training_state

# The first updates trace graphs and fill caches; they do not count.
_UNCOUNTED = 4
_COUNTED = 12
# Of the time that is left, what validation and the last evaluation may take.
SHARE_OF_EVALUATION = 0.25
# After so many parts of the training it is validated: twice a minute, within limits.
_FEWEST_VALIDATIONS = 5
_MOST_VALIDATIONS = 15
_MOST_WARMUP_STEPS = 1000
# The rest is planned anew if there is time for less than this share of it; or for more than `_MORE` times it, after a cut.
_LESS = 0.9
_MORE = 1.25
# What they may take once they are measured; if it is more, there are fewer epochs.
_MOST_OF_EVALUATION = 0.5
# The speed of a run for some minutes is measured over this share of them, and over so many seconds.
_SHARE_OF_A_MEASUREMENT = 0.02
_SECONDS_OF_A_MEASUREMENT = 1.0


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
            f"the {counted(recipe.minutes, 'minute')} are left. Give more minutes, or a smaller model or smaller batches."
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
        f"warm-up {recipe.warmup_steps:,}, for {counted(recipe.minutes, 'minute')}."
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
    least = rest.updates if strict else _LESS * rest.updates
    was_cut = rest.updates < most
    can_grow = was_cut and updates > _MORE * rest.updates
    if epochs == rest.epochs and updates >= least and not can_grow:
        return None
    return Rest(updates // epochs * epochs, epochs)


def new_plan_report(rest, new, seconds, seconds_an_update):
    """What is said of a new plan: two `Rest`s, and the seconds that are left, which may have been used up."""
    time_left = "no time is left"
    if seconds >= 1:
        time_left = f"{seconds:.0f} s are left"
    return (
        f"An update takes {1000 * seconds_an_update:.0f} ms now, and {time_left}: {new.updates:,} more in "
        f"{counted(new.epochs, 'epoch')}, not {rest.updates:,}, with the schedule to its end."
    )


class RunPlan:
    """The length of a run as planned last.

    Without `minutes` in the recipe, it is the recipe's. With them, the rest is planned anew when the machine's speed changes.

    Args:
        run: `TrainingRun`, whose recipe has the first plan.
    """

    def __init__(self, run):
        self._run = run
        self._new = None  # the plan of the rest, a dict, once there is another one than the recipe's
        self._measured_from = None  # (time, updates)
        self._epoch_from = None
        self._seconds_an_update = None  # at the last measurement
        self._validation_began = None
        self.validation_seconds = 0.0
        self.has_validated = False

    @property
    def num_epochs(self):
        """The epochs of the run."""
        return self._run.recipe.epochs if self._new is None else self._new["epochs"]

    @property
    def _micro_batches(self):
        """The batches of an update."""
        return self._run.recipe.gradient_accumulation_steps

    def steps_of_epoch(self, epoch):
        """The batches of an epoch."""
        plan = self._new
        if plan is None or epoch < plan["epoch"]:
            return self._run.steps_per_epoch
        updates = plan["updates"]
        if epoch == plan["epoch"]:
            updates += plan["done"]
        return self._micro_batches * updates

    def begin_epoch(self, epoch):
        """Sets the length of the epoch, and begins to measure."""
        progress = self._run.progress
        progress.steps_per_epoch = self.steps_of_epoch(epoch)
        self._measured_from = None
        self._epoch_from = (time.monotonic(), progress.updates)

    def after_update(self):
        """Times the updates, and plans the rest anew when a measurement is complete."""
        minutes = self._run.recipe.minutes
        # Several processes have several clocks: they plan between epochs, when the first tells the others.
        if minutes is None or self._run.processes.count > 1:
            return
        progress = self._run.progress
        now = time.monotonic()
        if self._measured_from is None:
            self._measured_from = (now, progress.updates)
            return
        seconds = now - self._measured_from[0]
        if seconds < max(_SECONDS_OF_A_MEASUREMENT, 60 * minutes * _SHARE_OF_A_MEASUREMENT):
            return
        self._seconds_an_update = seconds / (progress.updates - self._measured_from[1])
        self._measured_from = (now, progress.updates)
        if progress.batch < progress.steps_per_epoch:
            self.plan_rest()

    def begin_validation(self):
        """Notes the time; an epoch that was too short to measure is measured now."""
        self._validation_began = time.monotonic()
        began, updates = self._epoch_from
        done = self._run.progress.updates - updates
        if self._seconds_an_update is None and done > 0:
            self._seconds_an_update = (self._validation_began - began) / done

    def end_validation(self):
        """Notes how long the first process has validated."""
        seconds = time.monotonic() - self._validation_began
        self.validation_seconds = self._run.processes.tell(seconds)
        self.has_validated = True

    def plan_rest(self, *, strict=False):
        """Plans what is left anew if the machine is slower, or fast again; `strict` as in `planned_rest`."""
        run = self._run
        progress = run.progress
        if run.processes.count > 1:
            self._seconds_an_update = run.processes.tell(self._seconds_an_update or 0.0) or None
        if self._seconds_an_update is None:
            return
        done = progress.batch // self._micro_batches
        batches = sum(self.steps_of_epoch(epoch) for epoch in range(progress.epoch, self.num_epochs))
        rest = Rest(batches // self._micro_batches - done, self.num_epochs - progress.epoch)
        position = self._position()
        total = self._updates_an_epoch() * run.recipe.epochs
        costs = self._costs(rest)
        seconds_left = run.processes.tell(60 * run.recipe.minutes - run.seconds_used())
        most = max(1, math.ceil(total - position))
        new = planned_rest(rest, most, seconds_left, costs, strict=strict)
        if new is None:
            return
        self._set_pace(position, (total - position) / new.updates)
        self._new = {
            "epochs": progress.epoch + new.epochs,
            "epoch": progress.epoch,
            "done": done,
            "updates": new.updates // new.epochs,
            "of": [run.recipe.epochs, run.recipe.minutes],
        }
        progress.steps_per_epoch = self.steps_of_epoch(progress.epoch)
        run.bar.epochs = self.num_epochs
        if progress.batch:  # else it is saved at the end of the epoch
            run.save_state()
        run.say(new_plan_report(rest, new, seconds_left, costs.update))

    def _costs(self, rest):
        run = self._run
        validation = self._known_validation_seconds
        end = run.seconds_of_the_end()
        if run.progress.epoch == 1 and validation is not None:  # most of the first is the tracing of graphs
            most = SHARE_OF_EVALUATION * 60 * run.recipe.minutes
            share = most / max(most, validation * rest.epochs + end)
            validation *= share
            end *= share
        return Costs(self._seconds_an_update, validation, end)

    def is_next_epoch_too_long(self):
        """Whether there is no time for one more epoch and for the evaluation of the run."""
        run = self._run
        seconds = 60 * run.recipe.minutes
        end = run.seconds_of_the_end() + self.validation_seconds
        if run.progress.epoch == 1:  # most of the first validation is the tracing of graphs
            end = min(end, SHARE_OF_EVALUATION * seconds)
        # `plan_rest` has made the next epoch so short that there is time for it, if there is time for an update.
        an_update = run.processes.tell(self._seconds_an_update or 0.0)
        return run.processes.tell(run.seconds_used()) + an_update + end > seconds

    def state(self):
        """What a saved state keeps of the plan, a dict that JSON can hold."""
        return {"plan": self._new, "validation_seconds": self._known_validation_seconds}

    @property
    def _known_validation_seconds(self):
        """None before the first validation."""
        return self.validation_seconds if self.has_validated else None

    def resume(self, state):
        """Goes on with the plan of a state, or, where the run was given another length since, with the recipe's."""
        run = self._run
        progress = run.progress
        plan = state.get("plan")
        seconds = state.get("validation_seconds")
        if seconds is not None:
            self.validation_seconds = seconds
            self.has_validated = True
        if plan is not None and plan["of"] == [run.recipe.epochs, run.recipe.minutes]:
            self._new = plan
        else:
            updates = self._updates_an_epoch()
            done = min(progress.batch // self._micro_batches, updates - 1)
            position = progress.epoch * updates + done
            if plan is not None or position != progress.updates:
                self._set_pace(position, 1.0)
        progress.steps_per_epoch = self.steps_of_epoch(progress.epoch)
        run.bar.epochs = self.num_epochs

    def _updates_an_epoch(self):
        """Those of the first plan, which the schedule is made for."""
        return self._run.steps_per_epoch // self._micro_batches

    def _position(self):
        """Where the schedule is, in updates of the first plan."""
        update, position, speed = (float(x) for x in keras.ops.convert_to_numpy(self._pace()))
        return position + (self._run.progress.updates - update) * speed

    def _set_pace(self, position, speed):
        """From this update on, the schedule goes on from a position with a speed."""
        self._pace().assign([self._run.progress.updates, position, speed])

    def _pace(self):
        """The variable by which the schedule goes on, see `PacedSchedule`."""
        model = self._run.model
        synchronize_jax_state(model)
        # mixed_float16 wraps the optimizer that has it.
        return getattr(model.optimizer, "inner_optimizer", model.optimizer).pace
