"""The progress of a run: counted in batches, saved when it is due, stopped by Ctrl-C, written to history.csv, and shown."""

import contextlib
import csv
import io
import signal
import threading
import time

import keras
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from keras_attn.data import BatchPosition
from keras_attn.files import replaced_file

_COLUMNS = 80
_SECONDS_PER_CHANGE = 0.1  # Reading the loss waits for the device.


class Progress(keras.callbacks.Callback):
    """Counts batches, adds tokens per second and the share of pads to `logs`, and saves the state when due.

    It can begin in the middle of an epoch, which Keras' `fit` cannot. The first epoch then ends where the
    interrupted one would have ended, and continues with the metric sums of the interrupted one.

    Args:
        batches: `TranslationBatches`.
        steps_per_epoch: Integer, the batches of an epoch, an attribute that may change between updates. `fit`'s own may be
            larger.
        metrics: List of `keras.metrics.Metric`, whose sums a resumed epoch continues with.
        save: Function without arguments, called after an update when the state is due.
        after_update: Function without arguments, called after each update, before the state is saved.
        should_stop: Function without arguments; when it returns True after an update, the state is saved and
            `StopTraining` is raised.
        save_updates, save_minutes: As in `Recipe`.
    """

    def __init__(
        self,
        batches,
        steps_per_epoch,
        metrics,
        save,
        save_updates=None,
        save_minutes=None,
        after_update=lambda: None,
        should_stop=lambda: False,
    ):
        super().__init__()
        self.batches = batches
        self.steps_per_epoch = steps_per_epoch
        self._metric_variables = [variable for metric in metrics for variable in metric.variables]
        self.save = save
        self.save_updates = save_updates
        self.save_minutes = save_minutes
        self.after_update = after_update
        self.should_stop = should_stop
        self.epoch = 0
        self.batch = 0  # the batches done in this epoch
        self.updates = 0
        self.position = BatchPosition()
        self.num_real = 0  # of this epoch
        self.num_positions = 0
        self._metric_values = None
        self._started = time.monotonic()
        self._last_save = self._started
        self.num_tokens = 0  # of this process and epoch

    def state(self):
        """The state for `resume`, as values that JSON can hold."""
        metrics = [float(keras.ops.convert_to_numpy(variable)) for variable in self._metric_variables]
        counters = {name: getattr(self, name) for name in _STATE}
        return counters | {"metrics": metrics}

    def resume(self, state):
        """Continues from the `state()` of another `Progress`."""
        for name in _STATE:
            setattr(self, name, state[name])
        self.position = BatchPosition(*state["position"])
        self._metric_values = state["metrics"]

    def on_epoch_begin(self, epoch, logs=None):
        self._started = time.monotonic()
        self.num_tokens = 0
        if self.batch:  # `fit` has just set the metrics to zero.
            for variable, value in zip(self._metric_variables, self._metric_values):
                variable.assign(value)

    def on_train_batch_end(self, batch, logs=None):
        self.batch += 1
        steps = self.batches.num_micro_batches
        if self.batch % steps == 0:
            update = self.batches.plan(self.position.epoch)[self.position.update]
            self.num_tokens += update.num_tokens
            self.num_real += update.num_real
            self.num_positions += update.num_positions
            self.updates += 1
            self.position = self.batches.after(self.position)
        if logs is not None:
            logs.update(self._throughput())
        if self.batch >= self.steps_per_epoch:
            self.model.stop_training = True  # ends this epoch only; `on_epoch_end` resets it
        if self.batch % steps:
            return
        self.after_update()
        if self.batch < self.steps_per_epoch:
            should_stop = self.should_stop()
            if should_stop or self._is_due():
                _ = self.model  # on JAX, reading it updates the weights
                self.save()
                self._last_save = time.monotonic()
            if should_stop:
                raise StopTraining

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = False
        if logs is not None:
            logs.update(self._throughput())
        self.epoch = epoch + 1
        self.batch = 0
        self.num_real = 0
        self.num_positions = 0

    def _throughput(self):
        if not self.num_positions:  # before the first update
            return {}
        return {
            "tokens_per_second": round(self.num_tokens / (time.monotonic() - self._started)),
            "padding": 1 - self.num_real / self.num_positions,
        }

    def _is_due(self):
        if self.save_updates and self.updates % self.save_updates == 0:
            return True
        return self.save_minutes is not None and time.monotonic() > self._last_save + 60 * self.save_minutes


_STATE = ("epoch", "batch", "updates", "position", "num_real", "num_positions")


class RunCallbacks(keras.callbacks.CallbackList):
    """The callbacks of a run's `fit`, which get the `logs` of a batch as tensors.

    Keras' own list turns them to numbers first, and so waits for each update: a GPU then has nothing to do while Python
    prepares the next one. Here it waits only if a callback reads a value.

    Args:
        callbacks: List of `keras.callbacks.Callback`.
        model: The `keras.Model`.
        epochs: Integer, the argument of `fit`.
    """

    def __init__(self, callbacks, model, epochs):
        super().__init__(callbacks, add_history=True, model=model, verbose=0, epochs=epochs)

    def on_train_batch_end(self, batch, logs=None):
        logs = dict(logs or {})
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs=logs)


class HistoryFile(keras.callbacks.Callback):
    """Writes the `logs` of each epoch to a CSV file, atomically: no run ever leaves an incomplete line.

    Args:
        path: `pathlib.Path`.
        rows: List of dicts, the previous epochs.
    """

    def __init__(self, path, rows=()):
        super().__init__()
        self.path = path
        self.rows = list(rows)

    def on_epoch_end(self, epoch, logs=None):
        values = {name: float(value) for name, value in logs.items()}
        self.rows.append({"epoch": epoch + 1} | values)

    def write(self):
        """Writes the file."""
        text = io.StringIO(newline="")
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        with replaced_file(self.path) as aside:
            aside.write_text(text.getvalue(), encoding="utf-8")


class StopTraining(BaseException):
    """Ends `fit` between two updates, after the state was saved. No error: nothing but the run may catch it."""


class StopSignals:
    """Within a `with` block, Ctrl-C and SIGTERM ask for a stop in place of ending the process at any point.

    A second Ctrl-C raises `KeyboardInterrupt` at once. Signals reach the main thread only: in another thread, the block
    changes nothing.

    Args:
        enabled: Whether it changes anything. Several processes that train together must all stop after the same update,
            and a signal reaches each of them at another moment.

    Attributes:
        received: The number of the signal, or None.
    """

    def __init__(self, enabled=True):
        self.enabled = enabled
        self.received = None
        self._handlers = {}

    def __enter__(self):
        if self.enabled and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exception):
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number, frame):
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number


class EpochBar(keras.callbacks.Callback):
    """A bar of the batches of an epoch; nothing where the output is no terminal.

    Args:
        progress: The `Progress` of the run, which counts the batches; it must come earlier among the callbacks.
        epochs: Integer, the epochs of the run, an attribute that may change.
    """

    def __init__(self, progress, epochs):
        super().__init__()
        self._progress = progress
        self.epochs = epochs
        self._bar = None
        self._task = None
        self._next_change = 0.0  # of the monotonic clock

    def on_epoch_begin(self, epoch, logs=None):
        console = Console(width=_COLUMNS)
        if not console.is_terminal:
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[values]}"),
        )
        self._bar = ProgressBar(*columns, console=console, transient=True)
        self._task = self._bar.add_task(
            f"epoch {epoch + 1}/{self.epochs}",
            total=self._progress.steps_per_epoch,
            completed=self._progress.batch,
            values="",
        )
        self._bar.start()

    def on_train_batch_end(self, batch, logs=None):
        if self._bar is None or time.monotonic() < self._next_change:
            return
        self._next_change = time.monotonic() + _SECONDS_PER_CHANGE
        values = f"loss {logs['loss']:.3f}"
        if "tokens_per_second" in logs:
            values += f", {logs['tokens_per_second']:,} tokens/s"
        # The epoch may have become shorter.
        total = self._progress.steps_per_epoch
        self._bar.update(self._task, completed=self._progress.batch, total=total, values=values)

    def on_epoch_end(self, epoch, logs=None):
        if self._bar is not None:
            self._bar.update(self._task, completed=self._progress.steps_per_epoch, values="validating")

    def close(self):
        """Removes the bar. What is printed next begins on a line of its own."""
        if self._bar is not None:
            with contextlib.suppress(BrokenPipeError):
                self._bar.stop()
            self._bar = None


def sample_line(source, translation, reference):
    """A source with its translation, marked as right or wrong, in one line of at most 80 columns."""
    mark = "right" if translation == reference else "wrong"
    room = _COLUMNS - len("  ") - len(" -> ") - len(f" ({mark})")
    first = _cut(source, room // 2)
    return f"  {first} -> {_cut(translation, room - len(first))} ({mark})"


def duration(seconds):
    """Seconds as a person says them: `45 s`, `12 min`, `1 h 5 min`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def _cut(text, width):
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: width - 3]}..."
