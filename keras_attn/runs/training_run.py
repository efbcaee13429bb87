"""The base class of training runs: a folder, a resumable `fit`, the best weights, and a record."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import math
import shlex
import signal
import time

import keras
import tensorflow as tf

from keras_attn.compat.keras import synchronize_jax_state
from keras_attn.files import locked_folder, remove_unfinished
from keras_attn.models import assign_weights, average_weights, read_weights, save_weights, write_weights
from keras_attn.runs.board import TrainingCurves, ValidationBoard
from keras_attn.runs.checkpoints import Checkpoints
from keras_attn.runs.data import free_folder
from keras_attn.runs.display import EpochBar, duration
from keras_attn.runs.held_out import shared_notes
from keras_attn.runs.kept_weights import Kept, kept_weights
from keras_attn.runs.optimizer import make_optimizer
from keras_attn.runs.progress import HistoryFile, Progress, RunCallbacks
from keras_attn.runs.run_record import (
    changed_data,
    check_no_files_of_others,
    differences,
    epochs_done,
    has_ended,
    is_extended,
    read_record,
    with_plan_of,
    write_record,
)
from keras_attn.runs.snapshots import state_snapshots
from keras_attn.runs.stop_signals import StopSignals, StopTraining
from keras_attn.runs.time_plan import (
    SHARE_OF_EVALUATION,
    Costs,
    Rest,
    plan_report,
    planned,
    planned_rest,
    seconds_per_update,
)
from keras_attn.terminal import printable, say
from keras_attn.training import (
    KeepBest,
    LabelSmoothedCrossentropy,
    LearningRateLogger,
    Perplexity,
    StopOnInvalidLoss,
    averaged_weights,
    restore_training_state,
)

# Of one tag; TensorBoard keeps ten.
MOST_PICTURES = 20
# The speed of a run for some minutes is measured over this share of them, and over so many seconds.
_SHARE_OF_A_MEASUREMENT, _SECONDS_OF_A_MEASUREMENT = 0.02, 1.0


class TrainingRun:
    """A training run: a recipe, data and a folder.

    A subclass implements `describe_data()`, a dict for the record; `prepare()`, which sets `model` and
    `batches`; `checksum(part)` and `names(split, part)`, the checksums of a part of the data, one or a list, and what each is of; `validators()`, the callbacks that write `val_METRIC` to `logs`; `samples_text()` and `pictures()`, what
    TensorBoard shows of a validation; `examples()`, texts of the validation data for the record; `score(name)`, the metric of the current weights on the validation data, and what it
    was computed from; `p_value(of_average, of_best)`, a paired test of two of the latter; `evaluate()`, the final scores;
    `save_result()` and `load_result()`; `result`, the return value of the run; and `where()`, a text with the path of the
    result.
    """

    label_padding = 0  # the label that marks padding

    def __init__(self, recipe, data, folder, verbose, workers):
        self.workers = workers
        self.recipe = recipe
        self.data = data
        self.folder = folder
        self.verbose = verbose if workers.is_first else 0
        self.checkpoints = folder / "checkpoints"
        self.states = Checkpoints(self.checkpoints, log=self.log)
        self.results = {}
        self.weights_metadata = {}  # what is written with the weights of an epoch
        self.score_before = None  # training
        self.created = time.monotonic()
        self.validation_seconds = 0.0
        self.has_validated = False
        self.new_plan = None  # of the rest, where the machine became slower: a dict, see `plan_rest`
        self.measured_from = None  # (time, updates)
        self.seconds_an_update = None  # at the last measurement
        self.stop_signals = StopSignals(enabled=workers.count == 1)

    def go(self):
        if tf.distribute.has_strategy() and self.recipe.gradient_accumulation_steps > 1:
            raise ValueError(
                "Keras does not accumulate gradients under `tf.distribute`. Raise `max_tokens`, or use the JAX backend. "
                f"Received: gradient_accumulation_steps={self.recipe.gradient_accumulation_steps}."
            )
        with self.lock():
            self.train_and_evaluate()
        if self.stop_signals.received == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        return self.result

    def lock(self):
        """Keeps other commands from training in the folder; the first of several processes holds the lock for all."""
        if not self.workers.is_first:
            return contextlib.nullcontext()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                f"{self.folder} cannot be the folder of a run: {error.strerror}. Choose another folder."
            ) from error
        return locked_folder(self.folder)

    def train_and_evaluate(self):
        resumed = self.is_resumed = self.check_folder()
        self.workers.wait()  # until all processes have checked
        keras.utils.set_random_seed(self.recipe.seed)
        names = " and ".join(self.describe_data()["train"])
        held_out = " and ".join(self.describe_data()["validation"])
        self.say(f"{'Going on with' if resumed else 'Training on'} {names}, in {self.folder}.")
        self.say(f"Validating on {held_out}.")
        if self.workers.is_first and not resumed:
            for note in shared_notes(self.data):
                self.say(note)
        self.prepare()
        self.say(f"{self.model.count_params():,} parameters, {self.model.dtype_policy.name}.")
        self.say(self.batches.report())
        self.compile()
        if self.recipe.minutes and not resumed:
            self.plan_time()
        if self.workers.is_first:
            remove_unfinished(self.folder)
            self.write_record()
        self.fit()
        if self.stop_signals.received == signal.SIGTERM:
            return
        if self.workers.is_first:
            self.end()
        self.workers.wait()
        if not self.workers.is_first:
            with self.workers.alone():
                self.load_result()

    def end(self):
        with self.workers.alone():
            if self.workers.count > 1:  # the processes share the model's weights
                self.load_result()
            self.choose_weights()
            self.save_result()
            self.say("")
            self.evaluate()
            self.say(f"Trained for {self.results['training_seconds']:.0f} s. {self.where()}.")
            for command in self.next_commands():
                self.say(f"  {command}")
        self.results["ended"] = self.stop_signals.received is None
        self.write_record()
        if self.results["ended"]:
            self.clean_up()

    def next_commands(self):
        """What a user may do next, commands to copy."""
        folder, export, curves = (
            shlex.quote(str(path))
            for path in (self.folder, f"saved_models/{self.folder.name}", self.folder / "tensorboard")
        )
        return [
            self.command_to_try(folder),
            f"keras-attn serve {folder}",
            f"keras-attn export {folder} {export}",
            f"tensorboard --logdir {curves}",
        ]

    def clean_up(self):
        """Removes what only a run that goes on needs."""

    def check_folder(self):
        """Whether the folder holds this run, to go on with.

        Raises:
            ValueError: if it holds another run, or one that has ended and is not to train longer.
        """
        record = read_record(self.folder)
        if record is None:
            check_no_files_of_others(self.folder)
            return False
        self.recipe = with_plan_of(record, self.recipe)
        if changed := changed_data(record, self.checksums, self.data_names()):
            raise ValueError(self.other_data_message(changed))
        if changed := differences(record["recipe"], self.recipe):
            raise ValueError(
                f"{self.folder} holds a run with other settings: {'; '.join(changed)}. Leave them out to go on with it, or "
                "choose another folder."
            )
        if has_ended(record) and not is_extended(record, self.recipe):
            raise ValueError(
                f"{self.folder} holds a run that has ended. To train it longer, give it more than {epochs_done(record)} epochs, "
                "or more minutes than it took; for another run, choose another folder."
            )
        return True

    def data_names(self):
        """What each checksum is of, by the part of the data: the files, or what the data are called."""
        return {
            split: f"the {split} data" if part is None else self.names(split, part)
            for split, part in self.data._asdict().items()
        }

    def other_data_message(self, changed):
        """What to do with a folder whose run had other data than those in a list of names."""
        text = f"{self.folder} holds a run on other data than {' and '.join(changed)} hold now. "
        if not (self.folder / "translator").is_dir():
            return f"{text}Choose another folder."
        other = shlex.quote(str(free_folder(self.folder)))
        return (
            f"{text}To train its translator on the new data: --from {shlex.quote(str(self.folder))} --output {other} "
            "(start_from= and another folder in Python). To begin anew: another folder."
        )

    def plan_time(self):
        """Sets the length of the training after timing a few updates."""
        self.say("Timing the first updates ...")
        an_update = seconds_per_update(self.model, self.batches)
        left = 60 * self.recipe.minutes - (time.monotonic() - self.created)
        self.recipe = planned(self.recipe, left, an_update)
        self.say(plan_report(self.recipe, an_update))
        self.compile()

    def compile(self):
        recipe, steps = self.recipe, self.recipe.gradient_accumulation_steps
        self.perplexity = Perplexity(self.label_padding)
        # An epoch ends with an update.
        self.steps_per_epoch = math.ceil((recipe.steps_per_epoch or len(self.batches)) / steps) * steps
        self.model.compile(
            optimizer=make_optimizer(
                recipe, self.model.hidden_dim, self.steps_per_epoch // steps * recipe.epochs
            ),
            loss=LabelSmoothedCrossentropy(self.recipe.label_smoothing, self.label_padding, reduction="sum"),
            metrics=[self.perplexity],
        )

    def fit(self):
        loss = next(metric for metric in self.model.metrics if metric.name == "loss")
        self.progress = Progress(
            self.batches,
            self.steps_per_epoch,
            [loss, self.perplexity],
            self.save_state,
            self.recipe.save_updates,
            self.recipe.save_minutes,
            after_update=self.after_update,
            should_stop=lambda: self.stop_signals.received is not None,
        )
        self.curves = TrainingCurves(
            self.folder / "tensorboard" / "train",
            self.progress,
            loss,
            self.perplexity,
            self.recipe,
        )
        self.keep_best = KeepBest(
            self.save_best, monitor=self.monitor, mode="min" if self.recipe.lower_is_better else "max"
        )
        if self.score_before is not None:
            self.keep_best.best = self.score_before
            if not (self.checkpoints / "best.safetensors").is_file():
                self.save_best(None)  # the weights that the run began with
        self.bar = EpochBar(self.progress, self.recipe.epochs)
        self.take_snapshot = state_snapshots(self.model)
        self.history = HistoryFile(self.folder / "history.csv")
        self.seconds_before = 0.0
        self.started = time.monotonic()
        if self.resume():
            self.finish_fit()
            return
        self.stop_on_invalid_loss = StopOnInvalidLoss(self.states.newest, self.progress.batch)
        validators = [*self.validators(), self.validation_board()] if self.workers.is_first else []
        writers = [self.curves, *validators] if self.workers.is_first else []
        try:
            with self.stop_signals:
                self.model.fit(
                    self.batches.dataset(self.progress.position),
                    # `Progress` ends the epochs, which may be longer than planned where their number is smaller.
                    steps_per_epoch=self.steps_per_epoch
                    * (1 if self.recipe.minutes is None else self.recipe.epochs),
                    initial_epoch=self.progress.epoch,
                    epochs=self.recipe.epochs,
                    shuffle=False,  # the batches are shuffled already
                    callbacks=RunCallbacks(self.callbacks(validators), self.model, self.recipe.epochs),
                    verbose=0,  # the run's own bar and lines
                )
        except BaseException as error:
            self.bar.close()
            for writer in writers:
                writer.on_train_end()
            if not isinstance(error, StopTraining):
                raise
            self.after_stop()
        finally:
            self.states.wait()
        self.finish_fit()

    def after_stop(self):
        """Training was stopped after an update whose state is saved."""
        if self.keep_best.best_epoch is None and self.score_before is None and self.workers.is_first:
            save_weights(self.model, self.checkpoints / "best.safetensors", self.weights_metadata)
        self.say(f"\nStopped after update {self.progress.updates:,}. The same command goes on from there.")
        if self.stop_signals.received == signal.SIGINT:
            self.say("Evaluating the best weights so far; Ctrl-C again skips that.")

    @property
    def monitor(self):
        """The name of the metric in `logs`."""
        return f"val_{self.recipe.metric}"

    def callbacks(self, validators):
        """The callbacks of `fit`, in this order; validators see averaged weights."""
        average = contextlib.ExitStack()

        def on_epoch_end(function):
            return keras.callbacks.LambdaCallback(on_epoch_end=function)

        return [
            keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: self.begin_epoch(epoch)),
            self.stop_on_invalid_loss,
            self.progress,
            *([self.curves] if self.workers.is_first else []),
            *([self.bar] if self.verbose else []),
            on_epoch_end(lambda epoch, logs: average.enter_context(averaged_weights(self.model))),
            on_epoch_end(lambda epoch, logs: self.begin_validation()),
            *validators,
            on_epoch_end(lambda epoch, logs: self.share(logs)),
            LearningRateLogger(),
            self.keep_best,
            on_epoch_end(lambda epoch, logs: self.keep_for_average(epoch, logs[self.monitor])),
            on_epoch_end(lambda epoch, logs: average.close()),
            self.history,
            on_epoch_end(lambda epoch, logs: self.after_epoch(logs[self.monitor])),
        ]

    def validation_board(self):
        return ValidationBoard(
            self.folder / "tensorboard" / "validation",
            self.progress,
            self.samples_text,
            self.pictures(),
            epochs_per_picture=math.ceil(self.recipe.epochs / MOST_PICTURES),
        )

    def pictures(self):
        """A function that returns a dict from tags to pictures."""
        return dict

    @property
    def num_epochs(self):
        """The epochs of the run, as planned last."""
        return self.recipe.epochs if self.new_plan is None else self.new_plan["epochs"]

    def steps_of_epoch(self, epoch):
        """The batches of an epoch, as planned last."""
        plan = self.new_plan
        if plan is None or epoch < plan["epoch"]:
            return self.steps_per_epoch
        return self.micro_batches * (plan["updates"] + plan["done"] * (epoch == plan["epoch"]))

    @property
    def micro_batches(self):
        """The batches of an update."""
        return self.recipe.gradient_accumulation_steps

    def begin_epoch(self, epoch):
        """Sets the length of the epoch, and begins to measure."""
        self.progress.steps_per_epoch = self.steps_of_epoch(epoch)
        self.measured_from = None
        self.epoch_from = time.monotonic(), self.progress.updates

    def after_update(self):
        """Writes a point of the curves, and measures."""
        if self.workers.is_first:
            self.curves.after_update()
        # Several processes have several clocks: they plan between epochs, when the first tells the others.
        if self.recipe.minutes is not None and self.workers.count == 1:
            self.measure()

    def measure(self):
        """Times the updates, and plans the rest anew when a measurement is complete."""
        now, updates = time.monotonic(), self.progress.updates
        if self.measured_from is None:
            self.measured_from = now, updates
            return
        seconds = now - self.measured_from[0]
        if seconds < max(_SECONDS_OF_A_MEASUREMENT, 60 * self.recipe.minutes * _SHARE_OF_A_MEASUREMENT):
            return
        self.seconds_an_update = seconds / (updates - self.measured_from[1])
        self.measured_from = now, updates
        if self.progress.batch < self.progress.steps_per_epoch:
            self.plan_rest()

    def plan_rest(self, *, strict=False):
        """Plans what is left of a run for some minutes anew if the machine is slower, or fast again; `strict` as in `planned_rest`."""
        if self.workers.count > 1:
            self.seconds_an_update = self.workers.tell(self.seconds_an_update or 0.0) or None
        if self.seconds_an_update is None:
            return
        progress = self.progress
        done = progress.batch // self.micro_batches
        rest = sum(self.steps_of_epoch(epoch) for epoch in range(progress.epoch, self.num_epochs))
        rest = Rest(rest // self.micro_batches - done, self.num_epochs - progress.epoch)
        position, total = self.position(), self.total_updates()
        validation = self.validation_seconds if self.has_validated else None
        costs = Costs(self.seconds_an_update, validation, self.seconds_of_the_end())
        if progress.epoch == 1 and validation is not None:  # most of the first is the tracing of graphs
            most = SHARE_OF_EVALUATION * 60 * self.recipe.minutes
            share = most / max(most, validation * rest.epochs + costs.end)
            costs = Costs(costs.update, share * validation, share * costs.end)
        left = self.workers.tell(60 * self.recipe.minutes - self.seconds_used())
        new = planned_rest(rest, max(1, math.ceil(total - position)), left, costs, strict=strict)
        if new is None:
            return
        self.set_pace(position, (total - position) / new.updates)
        self.new_plan = {
            "epochs": progress.epoch + new.epochs,
            "epoch": progress.epoch,
            "done": done,
            "updates": new.updates // new.epochs,
            "of": [self.recipe.epochs, self.recipe.minutes],
        }
        progress.steps_per_epoch = self.steps_of_epoch(progress.epoch)
        self.bar.epochs = self.num_epochs
        if progress.batch:  # else it is saved at the end of the epoch
            self.save_state()
        self.say(
            f"An update takes {1000 * costs.update:.0f} ms now, and {left:.0f} s are left: {new.updates:,} more in {new.epochs} "
            f"epoch{'s' if new.epochs > 1 else ''}, not {rest.updates:,}, with the schedule to its end."
        )

    def total_updates(self):
        """The updates of the schedule, those of the first plan."""
        return self.steps_per_epoch // self.micro_batches * self.recipe.epochs

    def position(self):
        """Where the schedule is, in updates of the first plan."""
        update, position, speed = (float(x) for x in keras.ops.convert_to_numpy(self.pace()))
        return position + (self.progress.updates - update) * speed

    def pace(self):
        """The variable by which the schedule goes on, see `PacedSchedule`."""
        model = self.model
        synchronize_jax_state(model)
        # mixed_float16 wraps the optimizer that has it.
        return getattr(model.optimizer, "inner_optimizer", model.optimizer).pace

    def set_pace(self, position, speed):
        """From this update on, the schedule goes on from a position with a speed."""
        self.pace().assign([self.progress.updates, position, speed])

    def seconds_used(self):
        """The seconds of the run so far, what came before the training in this process included."""
        return self.started - self.created + self.seconds()

    def begin_validation(self):
        self.validation_began = time.monotonic()
        began, updates = self.epoch_from
        # The epoch may have been too short to measure.
        if self.seconds_an_update is None and self.progress.updates > updates:
            self.seconds_an_update = (self.validation_began - began) / (self.progress.updates - updates)

    def share(self, logs):
        """Sends the metric from the first process, which has validated, to the others."""
        self.validation_seconds = self.workers.tell(time.monotonic() - self.validation_began)
        self.has_validated = True
        logs[self.monitor] = self.workers.tell(logs.get(self.monitor, 0.0))

    def finish_fit(self):
        self.results["training_seconds"] = round(self.seconds(), 1)
        self.results["epochs"] = self.progress.epoch

    def seconds(self):
        """The seconds of training so far, those before the run was resumed included."""
        return self.seconds_before + time.monotonic() - self.started

    def save_state(self, has_ended=False):
        self.stop_on_invalid_loss.check()
        progress = {
            **self.progress.state(),
            "curves": self.curves.state(),
            "best": self.keep_best.best,
            "best_epoch": self.keep_best.best_epoch,
            "history": self.history.rows,
            "seconds": self.seconds(),
            "plan": self.new_plan,
            "validation_seconds": self.validation_seconds if self.has_validated else None,
            "has_ended": has_ended,
        }
        if self.workers.is_first:
            self.states.save(self.progress.updates, self.take_snapshot(), progress)

    def resume(self):
        """Restores the last state, if there is one; returns whether training had ended."""
        saved = self.states.load(clean=self.workers.is_first)
        self.workers.wait()
        if saved is None:
            return False
        arrays, state = saved
        restore_training_state(self.model, arrays)
        self.progress.resume(state)
        self.curves.resume(state.get("curves"))
        self.keep_best.best, self.keep_best.best_epoch = state["best"], state["best_epoch"]
        self.history.rows = state["history"]
        self.seconds_before = state["seconds"]
        self.resume_plan(state)
        self.say(
            f"Resumed after update {self.progress.updates:,}, in epoch {self.progress.epoch + 1}, "
            f"batch {self.progress.batch:,}."
        )
        why = self.why_over(self.scores()[-1]) if state["has_ended"] else ""
        if why and self.progress.epoch < self.num_epochs:
            self.say(
                f"Training ended after epoch {self.progress.epoch}: {why}. To train longer, change that too."
            )
        return bool(why)

    def resume_plan(self, state):
        """Goes on with the plan of a state, or, where the run was given another length since, with the recipe's."""
        plan = state.get("plan")
        if (seconds := state.get("validation_seconds")) is not None:
            self.validation_seconds, self.has_validated = seconds, True
        if plan is not None and plan["of"] == [self.recipe.epochs, self.recipe.minutes]:
            self.new_plan = plan
        else:
            updates = self.steps_per_epoch // self.micro_batches
            done = min(self.progress.batch // self.micro_batches, updates - 1)
            position = self.progress.epoch * updates + done
            if plan is not None or position != self.progress.updates:
                self.set_pace(position, 1.0)
        self.progress.steps_per_epoch = self.steps_of_epoch(self.progress.epoch)
        self.bar.epochs = self.num_epochs

    def scores(self):
        """The metric of validation after each epoch so far."""
        return [row[self.monitor] for row in self.history.rows]

    def save_best(self, epoch):
        if self.workers.is_first:
            save_weights(self.model, self.checkpoints / "best.safetensors", self.weights_metadata)
            self.save_result()

    def keep_for_average(self, epoch, score):
        """Saves the weights of this epoch if it is to be averaged, and deletes those no longer needed."""
        if self.recipe.num_averaged < 2 or not self.workers.is_first:
            return
        save_weights(self.model, self.epoch_file(epoch + 1), self.weights_metadata)
        scores = {row["epoch"]: row[self.monitor] for row in self.history.rows}
        scores[epoch + 1] = score
        sign = -1 if self.recipe.lower_is_better else 1
        order = {"last": lambda number: number, "best": lambda number: (sign * scores[number], number)}
        kept = sorted(scores, key=order[self.recipe.averaged])[-self.recipe.num_averaged :]
        for number in set(scores) - set(kept):
            self.epoch_file(number).unlink(missing_ok=True)

    def after_epoch(self, score):
        if self.workers.is_first:
            self.history.write()
        recipe, epoch = self.recipe, self.progress.epoch
        if recipe.minutes is not None and epoch < self.num_epochs:
            self.plan_rest(strict=True)
        why = self.why_over(score)
        has_ended = bool(why)
        self.model.stop_training = has_ended
        self.save_state(has_ended)
        left = self.seconds_of_the_end()
        if not has_ended:
            left += self.seconds() / epoch * (self.num_epochs - epoch)
        self.bar.close()
        self.say(
            f"Epoch {epoch}/{self.num_epochs}: {recipe.metric} {score:.4g}, best {self.keep_best.best:.4g}; "
            f"{duration(self.seconds())}, at most {duration(left)} left"
        )
        if sample := self.sample():
            self.say(sample)
        if has_ended and epoch < self.num_epochs:
            self.say(f"Training ends after epoch {epoch}: {why}.")
        if self.stop_signals.received is not None and not has_ended:
            raise StopTraining

    def sample(self):
        """One answer of the model at hand, a line to read."""
        return ""

    def seconds_of_the_end(self):
        """An estimate of the seconds from the last epoch to the end of the run."""
        num_evaluations = 1 + (self.data.test is not None) + 2 * (self.recipe.num_averaged > 1)
        # Validation of an epoch is greedy; the last evaluations search with beams.
        return num_evaluations * self.validation_seconds * (1 + self.recipe.num_beams / 2)

    def why_over(self, score):
        """Why the run ends after the epoch that gave `score`; "" if it goes on."""
        recipe, epoch, best = self.recipe, self.progress.epoch, self.keep_best.best_epoch
        # Without a best epoch, the weights that the run began with are the best.
        since_best = epoch if best is None else epoch - 1 - best
        if epoch >= self.num_epochs:
            return f"`epochs` is {self.num_epochs}"
        if recipe.minutes is not None and self.next_epoch_is_too_long():
            return f"`minutes` is {recipe.minutes:g}, too few for one more"
        if recipe.stop_at is not None and recipe.reaches(score, recipe.stop_at):
            return f"`stop_at` is {recipe.stop_at:g}, and {recipe.metric} was {score:.4g}"
        if recipe.patience is not None and since_best >= recipe.patience:
            return f"`patience` is {recipe.patience}, and so many epochs gave no better {recipe.metric}"
        return ""

    def next_epoch_is_too_long(self):
        """Whether there is no time for one more epoch and for the evaluation of the run."""
        seconds = 60 * self.recipe.minutes
        end = self.seconds_of_the_end() + self.validation_seconds
        if self.progress.epoch == 1:  # most of the first validation is the tracing of graphs
            end = min(end, SHARE_OF_EVALUATION * seconds)
        # `plan_rest` has made the next epoch so short that there is time for it, if there is time for an update.
        an_update = self.workers.tell(self.seconds_an_update or 0.0)
        return self.workers.tell(self.seconds_used()) + an_update + end > seconds

    def epoch_file(self, number):
        return self.checkpoints / f"epoch-{number:03d}.safetensors"

    def choose_weights(self):
        """Sets the average of several epochs, or the best epoch if a paired test on validation says that it is better.

        The score of the best of many epochs is too high by its choice, that of the average is not. `results["kept"]` and
        the log tell which was kept, and why.
        """
        best_file = self.checkpoints / "best.safetensors"
        epoch_files = sorted(self.checkpoints.glob("epoch-*.safetensors"))
        assign_weights(self.model, read_weights(best_file))
        if len(epoch_files) < 2:
            self.results["kept"] = dataclasses.asdict(Kept("best epoch", "no epochs are averaged"))
            return
        best, of_best = self.validate("best epoch")
        average = average_weights(epoch_files)
        assign_weights(self.model, average)
        name = f"average of the {self.recipe.averaged} {len(epoch_files)} epochs"
        averaged, of_average = self.validate(name)
        if self.recipe.reaches(averaged, best):
            kept = kept_weights(name, None)
        elif self.score_before is not None and self.keep_best.best_epoch is None:
            # Those are not the best of many: no choice makes their score too high, and no run ends worse than it began.
            kept = Kept("weights at the start", "no epoch scores better on validation, nor does the average")
        else:
            kept = kept_weights(name, self.p_value(of_average, of_best))
        if kept.weights == name:
            write_weights(average, self.checkpoints / "average.safetensors", self.weights_metadata)
        else:
            assign_weights(self.model, read_weights(best_file))
        self.results["kept"] = dataclasses.asdict(kept)
        self.say(kept.report())

    def validate(self, name):
        """The score of the current weights on validation, and what `p_value` compares."""
        score, compared = self.score(name)
        self.say(f"Validation {self.recipe.metric}, {name}: {score:.4g}")
        return score, compared

    def record(self):
        backend = keras.backend.backend()
        packages = ["keras", "tensorflow-text", "sentencepiece", "sacrebleu", "numpy"]
        if backend != "tensorflow":
            packages.append(backend)
        return {
            "recipe": dataclasses.asdict(self.recipe),
            "dtype_policy": self.recipe.dtype_policy,
            "data": self.describe_data(),
            "checksums": self.checksums,
            "backend": backend,
            # TensorFlow's package has several names, tensorflow-cpu for example.
            "versions": {"tensorflow": tf.__version__, **{name: _version(name) for name in packages}},
            "results": self.results,
            "examples": self.examples(),
        }

    @functools.cached_property
    def checksums(self):
        """A checksum of each part of the data, by its name."""
        return {
            split: None if part is None else self.checksum(part)
            for split, part in self.data._asdict().items()
        }

    def write_record(self):
        write_record(self.folder, self.record())

    def say(self, text):
        text = printable(text)  # it may name files and texts of others
        if self.verbose:
            say(text)
        self.log(text)

    def log(self, text):
        if not self.workers.is_first:
            return
        with open(self.folder / "log.txt", "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


def compiles_for_shapes():
    """Whether a training step is compiled anew for each shape: Keras uses XLA on JAX, and with a GPU."""
    return keras.backend.backend() == "jax" or bool(tf.config.list_physical_devices("GPU"))


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
