"""The progress of a run: counted in batches, shown, and saved, so that the run can be resumed."""

import csv
import io
import time

import keras

from keras_attn.data import BatchPosition
from keras_attn.files import replaced_file
from keras_attn.runs.stop_signals import StopTraining


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
        self.num_real = self.num_positions = 0  # of this epoch
        self._metric_values = None
        self._last_save = self._started = time.monotonic()
        self.num_tokens = 0  # of this process and epoch

    def state(self):
        """The state for `resume`, as values that JSON can hold."""
        metrics = [float(keras.ops.convert_to_numpy(variable)) for variable in self._metric_variables]
        return {**{name: getattr(self, name) for name in _STATE}, "metrics": metrics}

    def resume(self, state):
        """Continues from the `state()` of another `Progress`."""
        for name in _STATE:
            setattr(self, name, state[name])
        self.position = BatchPosition(*state["position"])
        self._metric_values = state["metrics"]

    def on_epoch_begin(self, epoch, logs=None):
        self._started, self.num_tokens = time.monotonic(), 0
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
        self.epoch, self.batch, self.num_real, self.num_positions = epoch + 1, 0, 0, 0

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
        self.rows.append({"epoch": epoch + 1, **{name: float(value) for name, value in logs.items()}})

    def write(self):
        """Writes the file."""
        text = io.StringIO(newline="")
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        with replaced_file(self.path) as aside:
            aside.write_text(text.getvalue(), encoding="utf-8")
