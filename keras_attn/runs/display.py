"""What a person sees of a run: one bar for the epoch at hand on a terminal, and lines that fit 80 columns."""

import contextlib
import time

import keras
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_COLUMNS = 80
_SECONDS_PER_CHANGE = 0.1  # Reading the loss waits for the device.


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
        self._bar = self._task = None
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
        self._bar = Progress(*columns, console=console, transient=True)
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
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _cut(text, width):
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: width - 3]}..."
