"""What TensorBoard shows of a run: curves of training and of validation, by the number of updates."""

import dataclasses
import math
import time

import keras
import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event

from keras_attn.files import replaced_file
from keras_attn.training.callbacks import last_learning_rate
from keras_attn.training.summaries import Summaries, markdown_table

# A point costs about 5 ms, and TensorBoard draws at most 1,000 of a line.
_UPDATES_PER_POINT = 10
_BYTES_READ = 2**18


class TrainingCurves(keras.callbacks.Callback):
    """Writes `loss`, `perplexity`, `learning_rate`, `tokens_per_second` and `padding`, means over some updates.

    The points divide each epoch evenly, and the last one is at its end. Means are differences of Keras' own sums, which
    are read for a point only. A run that is resumed goes on with the lines as they were at its state.

    Args:
        folder: `pathlib.Path` for event files.
        progress: The `Progress` of the run; it must come earlier among the callbacks, and call `after_update`.
        loss, perplexity: The metrics of the model, means over an epoch.
        recipe: `Recipe`, written as text at the begin of the run.
    """

    def __init__(self, folder, progress, loss, perplexity, recipe):
        super().__init__()
        self._folder = folder
        self._progress = progress
        self._variables = [loss.total, loss.count, perplexity.total, perplexity.count]
        self._recipe = recipe
        self._sums = None  # of this epoch, at the last point
        self._summaries = None

    def state(self):
        """The sums at the last point, for `resume`, as values that JSON can hold."""
        return self._sums

    def resume(self, sums):
        """Goes on after the last point of another process; None, the state of an earlier version, begins a new mean."""
        self._sums = sums

    def on_train_begin(self, logs=None):
        cut_off(self._folder.parent, self._progress.updates)
        self._summaries = Summaries(self._folder)
        if not self._progress.updates:
            self._summaries.write(0, texts={"recipe": _table(self._recipe)})

    def on_epoch_begin(self, epoch, logs=None):
        if not self._progress.batch:
            self._sums = [0.0] * (len(self._variables) + 2)
        elif self._sums is None:
            self._sums = self._read_sums()
        self._begin_clock()

    def after_update(self):
        """Writes the means since the last point if a point is due."""
        progress = self._progress
        micro_batches = progress.batches.num_micro_batches
        number = progress.batch // micro_batches
        updates = progress.steps_per_epoch // micro_batches
        points = math.ceil(updates / _UPDATES_PER_POINT)
        if number * points // updates == (number - 1) * points // updates:
            return
        sums = self._read_sums()
        changes = [now - before for now, before in zip(sums, self._sums)]
        loss, losses, cross_entropy, tokens, real, positions = changes
        scalars = {
            "loss": loss / losses,
            "perplexity": perplexity(cross_entropy / tokens),
            "learning_rate": last_learning_rate(self.model.optimizer),
            "tokens_per_second": (progress.num_tokens - self._num_tokens) / (time.monotonic() - self._time),
            "padding": 1 - real / positions,
        }
        self._summaries.write(progress.updates, scalars)
        self._sums = sums
        self._begin_clock()

    def on_train_end(self, logs=None):
        if self._summaries is not None:
            self._summaries.close()

    def _begin_clock(self):
        self._time = time.monotonic()
        self._num_tokens = self._progress.num_tokens

    def _read_sums(self):
        _ = self.model  # on JAX, reading it updates the variables
        sums = [float(keras.ops.convert_to_numpy(variable)) for variable in self._variables]
        sums += [self._progress.num_real, self._progress.num_positions]
        return sums


class ValidationBoard(keras.callbacks.Callback):
    """Writes each `val_NAME` of `logs` as `NAME`, texts and pictures, at the end of an epoch.

    Args:
        folder: `pathlib.Path` for event files, next to that of `TrainingCurves`.
        progress: The `Progress` of the run.
        texts, pictures: Functions without arguments that return a dict: from tags to texts in markdown, and from tags
            to uint8 arrays (height, width, 3).
        epochs_per_picture: Integer.
    """

    def __init__(self, folder, progress, texts, pictures, epochs_per_picture):
        super().__init__()
        self._folder = folder
        self._progress = progress
        self._texts = texts
        self._pictures = pictures
        self._epochs_per_picture = epochs_per_picture
        self._summaries = None

    def on_train_begin(self, logs=None):
        self._summaries = Summaries(self._folder)

    def on_epoch_end(self, epoch, logs=None):
        scalars = {
            name.removeprefix("val_"): value for name, value in logs.items() if name.startswith("val_")
        }
        texts = self._texts()
        pictures = None
        if epoch % self._epochs_per_picture == 0:
            pictures = self._pictures()
        self._summaries.write(
            self._progress.updates,
            scalars=scalars,
            texts=texts,
            pictures=pictures,
        )

    def on_train_end(self, logs=None):
        if self._summaries is not None:
            self._summaries.close()


def perplexity(nats):
    """The perplexity of a mean cross-entropy in nats, infinite where a float cannot hold it."""
    return math.exp(nats) if nats < 700 else math.inf


def cut_off(folder, updates):
    """Removes from the event files below a folder what lies after a number of updates.

    A run that was killed goes on from its last state, and would else have two values at the updates since.

    Args:
        folder: `pathlib.Path`.
        updates: Integer; with 0, the files are deleted.
    """
    for file in sorted(folder.rglob("events.out.tfevents.*")):
        if updates == 0:
            file.unlink()
            continue
        records, is_whole = _read_records(file)
        kept = [record for record in records if Event.FromString(record).step <= updates]
        if is_whole and len(kept) == len(records):
            continue
        with replaced_file(file) as aside, tf.io.TFRecordWriter(str(aside)) as writer:
            for record in kept:
                writer.write(record)


def _read_records(file):
    """The records of a file, and whether none of them was cut off while it was written."""
    records = []
    try:
        for record in tf.data.TFRecordDataset(str(file), buffer_size=_BYTES_READ):
            records.append(record.numpy())
    except tf.errors.DataLossError:
        return records, False
    return records, True


def _table(recipe):
    rows = [(name, str(value)) for name, value in dataclasses.asdict(recipe).items() if value is not None]
    return markdown_table(("setting", "value"), rows)
