"""The steps of every training run: its folder, a `fit` that can be resumed, the choice of weights, and a record.

`go` locks the folder; `train_and_evaluate` prepares, compiles and fits; `finish_run` chooses the weights, evaluates and saves.
"""

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

from keras_attn.files import locked_folder, remove_unfinished, replaced_folder, restored_folder
from keras_attn.models import assign_weights, average_weights, read_weights, save_weights, write_weights
from keras_attn.runs import next_command
from keras_attn.runs.data import free_folder, shared_notes
from keras_attn.runs.optimizer import make_optimizer
from keras_attn.runs.progress import (
    EpochBar,
    HistoryFile,
    Progress,
    RunCallbacks,
    StopSignals,
    StopTraining,
    duration,
)
from keras_attn.runs.run_folder import (
    SavedStates,
    changed_data,
    check_no_files_of_others,
    differences,
    epochs_done,
    has_ended,
    is_extended,
    read_record,
    state_snapshots,
    with_plan_of,
    write_record,
)
from keras_attn.runs.tensorboard_logs import TrainingCurves, ValidationBoard
from keras_attn.runs.time_plan import RunPlan, plan_report, planned, seconds_per_update
from keras_attn.terminal import printable, say
from keras_attn.text import load_tokenizer
from keras_attn.training import (
    KeepBest,
    LabelSmoothedCrossentropy,
    LearningRateLogger,
    Perplexity,
    StopOnInvalidLoss,
    averaged_weights,
    restore_training_state,
)

# The most pictures of one tag; TensorBoard keeps ten.
_MOST_PICTURES = 20
# The best epoch is kept in place of the average if chance makes it so much better with less than this probability.
_SIGNIFICANT = 0.05


class TrainingRun:
    """A training run: a recipe, data and a folder.

    A subclass implements

    - `describe_data()`, a dict for the record, and `examples()`, texts of the validation data for it;
    - `checksum(part)`, one checksum of a part of the data or a list of several, and `names(split, part)`, a name for each;
    - `prepare()`, which sets `model` and `batches`;
    - `validators()`, the callbacks that write `val_METRIC` to `logs`;
    - `samples_text()` and `picture_drawing()`, what TensorBoard shows of a validation, and `make_film()`, an `AttentionFilm`;
    - `score(name)`: the metric of the current weights on the validation data, and the answers that it was computed from;
    - `p_value(average, best)`: the p-value of a paired test of the answers of two weights;
    - `evaluate()`, the final scores;
    - `save_result()`, `load_result()`, `result`, the return value of the run, and `where()`, a text with its path.
    """

    label_padding = 0  # the label that marks padding
    result_name = None  # of the folder in which the result is saved

    def __init__(self, recipe, data, folder, verbose, processes):
        self.processes = processes
        self.recipe = recipe
        self.data = data
        self.folder = folder
        self.verbose = verbose if processes.is_first else 0
        self.checkpoints = folder / "checkpoints"
        self.states = SavedStates(self.checkpoints, log=self.log)
        self.results = {}
        self.weights_metadata = {}  # what is written with the weights of an epoch
        self.score_before = None  # training
        self.advice = None  # what to say if the answers are hardly related to the references
        self.created = time.monotonic()
        self.plan = RunPlan(self)
        self.stop_signals = StopSignals(enabled=processes.count == 1)

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
        if not self.processes.is_first:
            return contextlib.nullcontext()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                f"{self.folder} cannot be the folder of a run: {error.strerror}. Choose another folder."
            ) from error
        return locked_folder(self.folder)

    def train_and_evaluate(self):
        self.is_resumed = self.check_folder()
        self.processes.wait()  # until all processes have checked
        keras.utils.set_random_seed(self.recipe.seed)
        names = " and ".join(self.describe_data()["train"])
        held_out = " and ".join(self.describe_data()["validation"])
        what = "Going on with" if self.is_resumed else "Training on"
        self.say(f"{what} {names}, in {self.folder}.")
        self.say(f"Validating on {held_out}.")
        if self.processes.is_first and not self.is_resumed:
            for note in shared_notes(self.data):
                self.say(note)
        self.prepare()
        self.say(f"{self.model.count_params():,} parameters, {self.model.dtype_policy.name}.")
        self.say(self.batches.report())
        self.compile()
        if self.recipe.minutes and not self.is_resumed:
            self.plan_time()
        if self.processes.is_first:
            remove_unfinished(self.folder)
            self.write_record()
        self.fit()
        if self.stop_signals.received == signal.SIGTERM:
            return
        if self.processes.is_first:
            self.finish_run()
        self.processes.wait()
        if not self.processes.is_first:
            with self.processes.alone():
                self.load_result()

    def finish_run(self):
        began = time.monotonic()
        with self.processes.alone():
            if self.processes.count > 1:  # the processes share the model's weights
                self.load_result()
            self.choose_weights()
            self.save_result()
            self.say("")
            self.evaluate()
            if self.film and (page := self.film.write(self.result)):
                self.say(f"What it attends to, epoch by epoch: {page}")
            evaluation_seconds = time.monotonic() - began
            has_time = self.recipe.minutes is None or self.seconds_used() <= 60 * self.recipe.minutes
            is_low = self.advice is not None
            report = time_report(
                self.results["training_seconds"], evaluation_seconds, has_time=has_time, is_low=is_low
            )
            self.say(f"{report} {self.where()}.")
            self.say(self.next_command())
        self.results["ended"] = self.stop_signals.received is None
        self.write_record()
        if self.results["ended"]:
            self.clean_up()

    def next_command(self):
        """What a user may do next, a line with a command to copy."""
        example = next(iter(self.examples()), None)
        was_stopped = self.stop_signals.received is not None
        return next_command.after_training(
            self.folder, self.result_name, example, advice=self.advice, was_stopped=was_stopped
        )

    def clean_up(self):
        """Removes what only a run that goes on needs."""
        if self.film:
            self.film.remove_frames()

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
        """The names of the files or data behind the checksums, by the part of the data."""
        names = {}
        for split, part in self.data._asdict().items():
            names[split] = f"the {split} data" if part is None else self.names(split, part)
        return names

    def other_data_message(self, changed):
        """What to do with a folder whose run had other data than those in a list of names."""
        text = f"{self.folder} holds a run on other data than {' and '.join(changed)} hold now. "
        if not (self.folder / "translator").is_dir():
            return f"{text}Choose another folder."
        here = shlex.quote(str(self.folder))
        other = shlex.quote(str(free_folder(self.folder)))
        return (
            f"{text}To train its translator on the new data: --from {here} --output {other} "
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
        recipe = self.recipe
        micro_batches = recipe.gradient_accumulation_steps
        self.perplexity = Perplexity(self.label_padding)
        # An epoch ends with an update.
        updates_per_epoch = math.ceil((recipe.steps_per_epoch or len(self.batches)) / micro_batches)
        self.steps_per_epoch = updates_per_epoch * micro_batches
        self.model.compile(
            optimizer=make_optimizer(recipe, self.model.hidden_dim, updates_per_epoch * recipe.epochs),
            loss=LabelSmoothedCrossentropy(recipe.label_smoothing, self.label_padding, reduction="sum"),
            metrics=[self.perplexity],
        )

    def fit(self):
        self.prepare_callbacks()
        has_ended = self.resume()
        if has_ended:
            self.finish_fit()
            return
        recipe = self.recipe
        self.stop_on_invalid_loss = StopOnInvalidLoss(self.states.newest, self.progress.batch)
        validators = []
        writers = []
        if self.processes.is_first:
            validators = self.validators()
            validators.append(self.validation_board())
            writers = [self.curves, *validators]
        # `Progress` ends each epoch. Epochs become longer when a run for some minutes is planned anew with fewer of them.
        longest_epoch = self.steps_per_epoch
        if recipe.minutes is not None:
            longest_epoch *= recipe.epochs
        try:
            with self.stop_signals:
                self.model.fit(
                    self.batches.dataset(self.progress.position),
                    steps_per_epoch=longest_epoch,
                    initial_epoch=self.progress.epoch,
                    epochs=recipe.epochs,
                    shuffle=False,  # the batches are shuffled already
                    callbacks=RunCallbacks(self.callbacks(validators), self.model, recipe.epochs),
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

    def prepare_callbacks(self):
        """Makes the objects behind the callbacks, in the state in which a run begins."""
        recipe = self.recipe
        loss = next(metric for metric in self.model.metrics if metric.name == "loss")
        self.progress = Progress(
            self.batches,
            self.steps_per_epoch,
            [loss, self.perplexity],
            self.save_state,
            recipe.save_updates,
            recipe.save_minutes,
            after_update=self.after_update,
            should_stop=lambda: self.stop_signals.received is not None,
        )
        curves_folder = self.folder / "tensorboard" / "train"
        self.curves = TrainingCurves(curves_folder, self.progress, loss, self.perplexity, recipe)
        mode = "min" if recipe.lower_is_better else "max"
        self.keep_best = KeepBest(self.save_best, monitor=self.monitor, mode=mode)
        if self.score_before is not None:
            self.keep_best.best = self.score_before
            if not self.best_file.is_file():
                self.save_best(None)  # the weights that the run began with
        self.bar = EpochBar(self.progress, recipe.epochs)
        self.take_snapshot = state_snapshots(self.model)
        self.history = HistoryFile(self.folder / "history.csv")
        self.seconds_before = 0.0
        self.started = time.monotonic()

    def after_stop(self):
        """Training was stopped after an update whose state is saved."""
        if self.keep_best.best_epoch is None and self.score_before is None and self.processes.is_first:
            save_weights(self.model, self.best_file, self.weights_metadata)
        self.say(f"\nStopped after update {self.progress.updates:,}. The same command goes on from there.")
        if self.stop_signals.received == signal.SIGINT:
            self.say("Evaluating the best weights so far; Ctrl-C again skips that.")

    @property
    def monitor(self):
        """The name of the metric in `logs`."""
        return f"val_{self.recipe.metric}"

    def callbacks(self, validators):
        """The callbacks of `fit`, in the order of their calls.

        From the validators to `keep_for_average`, the model has its averaged weights, if the recipe has `ema_momentum`.
        """
        average = contextlib.ExitStack()
        callbacks = [
            keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: self.plan.begin_epoch(epoch)),
            self.stop_on_invalid_loss,
            self.progress,
        ]
        if self.processes.is_first:
            callbacks.append(self.curves)
        if self.verbose:
            callbacks.append(self.bar)
        callbacks += [
            _on_epoch_end(lambda epoch, logs: average.enter_context(averaged_weights(self.model))),
            _on_epoch_end(lambda epoch, logs: self.plan.begin_validation()),
        ]
        callbacks += validators
        callbacks += [
            _on_epoch_end(lambda epoch, logs: self.share(logs)),
            LearningRateLogger(),
            self.keep_best,
            _on_epoch_end(lambda epoch, logs: self.keep_for_average(epoch, logs[self.monitor])),
            _on_epoch_end(lambda epoch, logs: average.close()),
            self.history,
            _on_epoch_end(lambda epoch, logs: self.after_epoch(logs[self.monitor])),
        ]
        return callbacks

    def validation_board(self):
        return ValidationBoard(
            self.folder / "tensorboard" / "validation",
            self.progress,
            self.samples_text,
            self.pictures(),
            epochs_per_picture=math.ceil(self.recipe.epochs / _MOST_PICTURES),
        )

    @functools.cached_property
    def film(self):
        """The `AttentionFilm`, which becomes a page, or None on backends without attention maps of given texts."""
        return self.make_film() if keras.backend.backend() == "tensorflow" else None

    def pictures(self):
        """A function that keeps a frame of the film and returns a dict from tags to pictures."""
        if self.film is None:
            return dict
        draw = self.picture_drawing()

        def keep_and_draw():
            self.film.keep(self.progress.epoch)
            return draw()

        return keep_and_draw

    def picture_drawing(self):
        """A function that returns a dict from tags to pictures."""
        return dict

    def saved_tokenizer(self, make):
        """The tokenizer in the run folder, which the first process makes, unless it is there already."""
        folder = self.folder / "tokenizer"
        if self.processes.is_first and not restored_folder(folder).is_dir():
            tokenizer = make()
            with replaced_folder(folder, "tokenizer.json", "tokenizer") as built:
                tokenizer.save(built)
        self.processes.wait()
        return load_tokenizer(folder)

    def after_update(self):
        """Writes a point of the curves, and measures."""
        if self.processes.is_first:
            self.curves.after_update()
        self.plan.after_update()

    def seconds_used(self):
        """The seconds of the run so far, what came before the training in this process included."""
        return self.started - self.created + self.seconds()

    def share(self, logs):
        """Sends the metric from the first process, which has validated, to the others."""
        self.plan.end_validation()
        logs[self.monitor] = self.processes.tell(logs.get(self.monitor, 0.0))

    def finish_fit(self):
        self.results["training_seconds"] = round(self.seconds(), 1)
        self.results["epochs"] = self.progress.epoch

    def seconds(self):
        """The seconds of training so far, those before the run was resumed included."""
        return self.seconds_before + time.monotonic() - self.started

    def save_state(self, *, has_ended=False):
        self.stop_on_invalid_loss.check()
        state = {
            **self.progress.state(),
            "curves": self.curves.state(),
            "best": self.keep_best.best,
            "best_epoch": self.keep_best.best_epoch,
            "history": self.history.rows,
            "seconds": self.seconds(),
            **self.plan.state(),
            "has_ended": has_ended,
        }
        if self.processes.is_first:
            self.states.save(self.progress.updates, self.take_snapshot(), state)

    def resume(self):
        """Restores the last state, if there is one; returns whether training ended with it."""
        saved = self.states.load(clean=self.processes.is_first)
        self.processes.wait()
        if saved is None:
            return False
        arrays, state = saved
        restore_training_state(self.model, arrays)
        self.progress.resume(state)
        self.curves.resume(state.get("curves"))
        self.keep_best.best = state["best"]
        self.keep_best.best_epoch = state["best_epoch"]
        self.history.rows = state["history"]
        self.seconds_before = state["seconds"]
        self.plan.resume(state)
        self.say(
            f"Resumed after update {self.progress.updates:,}, in epoch {self.progress.epoch + 1}, "
            f"batch {self.progress.batch:,}."
        )
        if not state["has_ended"]:
            return False
        why = self.reason_to_end(self.scores()[-1])
        if why and self.progress.epoch < self.plan.num_epochs:
            self.say(
                f"Training ended after epoch {self.progress.epoch}: {why}. To train longer, change that too."
            )
        return bool(why)

    def scores(self):
        """The metric of validation after each epoch so far."""
        return [row[self.monitor] for row in self.history.rows]

    @property
    def best_file(self):
        return self.checkpoints / "best.safetensors"

    def save_best(self, epoch):
        if self.processes.is_first:
            save_weights(self.model, self.best_file, self.weights_metadata)
            self.save_result()

    def keep_for_average(self, epoch, score):
        """Saves the weights of this epoch if it is to be averaged, and deletes those no longer needed."""
        if self.recipe.num_averaged < 2 or not self.processes.is_first:
            return
        save_weights(self.model, self.epoch_file(epoch + 1), self.weights_metadata)
        scores = {row["epoch"]: row[self.monitor] for row in self.history.rows}
        scores[epoch + 1] = score
        numbers = sorted(scores)
        if self.recipe.averaged == "best":
            sign = -1 if self.recipe.lower_is_better else 1
            numbers.sort(key=lambda number: sign * scores[number])
        for number in numbers[: -self.recipe.num_averaged]:
            self.epoch_file(number).unlink(missing_ok=True)

    def after_epoch(self, score):
        if self.processes.is_first:
            self.history.write()
        recipe = self.recipe
        epoch = self.progress.epoch
        if recipe.minutes is not None and epoch < self.plan.num_epochs:
            self.plan.plan_rest(strict=True)
        num_epochs = self.plan.num_epochs
        why = self.reason_to_end(score)
        self.model.stop_training = bool(why)
        self.save_state(has_ended=bool(why))
        left = self.seconds_of_the_end()
        if not why:
            left += self.seconds() / epoch * (num_epochs - epoch)
        self.bar.close()
        self.say(
            f"Epoch {epoch}/{num_epochs}: {recipe.metric} {score:.4g}, best {self.keep_best.best:.4g}; "
            f"{duration(self.seconds())}, at most {duration(left)} left"
        )
        if sample := self.sample():
            self.say(sample)
        if why and epoch < num_epochs:
            self.say(f"Training ends after epoch {epoch}: {why}.")
        if self.stop_signals.received is not None and not why:
            raise StopTraining

    def sample(self):
        """One answer of the model at hand, a line to read."""
        return ""

    def seconds_of_the_end(self):
        """An estimate of the seconds from the last epoch to the end of the run."""
        # Validation of an epoch is greedy; the last evaluations search with beams.
        seconds_an_evaluation = self.plan.validation_seconds * (1 + self.recipe.num_beams / 2)
        return self.num_evaluations() * seconds_an_evaluation

    def num_evaluations(self):
        """How many evaluations come after the last epoch."""
        has_test = self.data.test is not None
        compares_weights = self.recipe.num_averaged > 1
        return 1 + has_test + 2 * compares_weights

    def reason_to_end(self, score):
        """Why training ends after an epoch with this score; "" if it goes on."""
        recipe = self.recipe
        epoch = self.progress.epoch
        best = self.keep_best.best_epoch
        # Without a best epoch, the weights that the run began with are the best.
        since_best = epoch if best is None else epoch - 1 - best
        if epoch >= self.plan.num_epochs:
            return f"`epochs` is {self.plan.num_epochs}"
        if recipe.minutes is not None and self.plan.is_next_epoch_too_long():
            return f"`minutes` is {recipe.minutes:g}, too few for one more"
        if recipe.stop_at is not None and recipe.reaches(score, recipe.stop_at):
            return f"`stop_at` is {recipe.stop_at:g}, and {recipe.metric} was {score:.4g}"
        if recipe.patience is not None and since_best >= recipe.patience:
            return f"`patience` is {recipe.patience}, and so many epochs gave no better {recipe.metric}"
        return ""

    def epoch_file(self, number):
        return self.checkpoints / f"epoch-{number:03d}.safetensors"

    def choose_weights(self):
        """Sets the average of several epochs, or the best epoch if a paired test on validation says that it is better.

        A score by which the best of many epochs was chosen is higher than the epoch deserves; the average was not chosen by its
        score. `results["kept"]` and the log tell which was kept, and why.
        """
        epoch_files = sorted(self.checkpoints.glob("epoch-*.safetensors"))
        assign_weights(self.model, read_weights(self.best_file))
        if len(epoch_files) < 2:
            self.results["kept"] = dataclasses.asdict(Kept("best epoch", "no epochs are averaged"))
            return
        best_score, best_answers = self.validate("best epoch")
        average = average_weights(epoch_files)
        assign_weights(self.model, average)
        name = f"average of the {self.recipe.averaged} {len(epoch_files)} epochs"
        average_score, average_answers = self.validate(name)
        if self.recipe.reaches(average_score, best_score):
            kept = _kept_weights(name, None)
        elif self.score_before is not None and self.keep_best.best_epoch is None:
            # The weights at the start were not chosen by their score either. So no run ends worse than it began.
            kept = Kept("weights at the start", "no epoch scores better on validation, nor does the average")
        else:
            kept = _kept_weights(name, self.p_value(average_answers, best_answers))
        if kept.weights == name:
            write_weights(average, self.checkpoints / "average.safetensors", self.weights_metadata)
        else:
            assign_weights(self.model, read_weights(self.best_file))
        self.results["kept"] = dataclasses.asdict(kept)
        self.say(kept.report())

    def validate(self, name):
        """The score of the current weights on validation, and what `p_value` compares."""
        self.say(f"Evaluating the {name} ...")
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
            "versions": {"tensorflow": tf.__version__} | {name: _version(name) for name in packages},
            "results": self.results,
            "examples": self.examples(),
        }

    @functools.cached_property
    def checksums(self):
        """A checksum of each part of the data, by its name."""
        return self.data_checksums()

    def data_checksums(self):
        checksums = {}
        for split, part in self.data._asdict().items():
            checksums[split] = None if part is None else self.checksum(part)
        return checksums

    def write_record(self):
        write_record(self.folder, self.record())

    def say(self, text):
        text = printable(text)  # it may name files and texts of others
        if self.verbose:
            say(text)
        self.log(text)

    def log(self, text):
        if not self.processes.is_first:
            return
        with open(self.folder / "log.txt", "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


@dataclasses.dataclass(frozen=True)
class Kept:
    """Which weights a run kept, and why.

    Args:
        weights: String, their name.
        reason: String.
        p_value: Float, of the paired test of the best epoch against the average; None where nothing was tested.
    """

    weights: str
    reason: str
    p_value: float | None = None

    def report(self):
        """A line to read."""
        return f"Kept: {self.weights}; {self.reason}."


def _kept_weights(average, p_value):
    """The `Kept` of an average and a best epoch.

    Args:
        average: String, the name of the average.
        p_value: Float, of the paired test that the best epoch is better; None where it does not score better.
    """
    if p_value is None:
        return Kept(average, "the best epoch does not score better on validation")
    if p_value < _SIGNIFICANT:
        return Kept(
            "best epoch",
            f"it is better on validation than the average (paired test, p = {p_value:.2g})",
            p_value,
        )
    return Kept(
        average,
        "the best epoch scores better on validation, but as the best of several; its lead may be chance (paired test, "
        f"p = {p_value:.2g})",
        p_value,
    )


def time_report(training_seconds, evaluation_seconds, *, has_time, is_low):
    """How long a run took, a sentence; and why, if that is more than `minutes`.

    Args:
        training_seconds, evaluation_seconds: Floats.
        has_time: Boolean, whether the run had no `minutes`, or kept to them.
        is_low: Boolean, whether its answers are hardly related to the references.
    """
    if has_time:
        return f"Trained for {training_seconds:.0f} s."
    text = f"Trained for {training_seconds:.0f} s, evaluated for {evaluation_seconds:.0f} s: more than `minutes`."
    if is_low:
        text += " A model that has not learned to end its answers writes each as long as the limit."
    return text


def _on_epoch_end(function):
    return keras.callbacks.LambdaCallback(on_epoch_end=function)


def compiles_for_shapes():
    """Whether a training step is compiled anew for each shape: Keras uses XLA on JAX, and with a GPU."""
    return keras.backend.backend() == "jax" or bool(tf.config.list_physical_devices("GPU"))


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
