"""Callbacks that score translations, log the learning rate, save the best model and stop on a bad loss."""

import math
import operator

import keras

from keras_attn.compat.keras import learning_rate_schedule
from keras_attn.terminal import say
from keras_attn.training.metrics import (
    check_bleu_tokenizer,
    check_text_pairs,
    corpus_bleu,
    corpus_chrf,
    exact_match,
)
from keras_attn.training.summaries import Summaries, samples_table

_METRICS = ("bleu", "chrf", "exact_match")
_BETTER = {"max": operator.gt, "min": operator.lt}


class TranslationQuality(keras.callbacks.Callback):
    """Translates held-out sentences after each epoch and scores them as text.

    The loss is computed with the correct prefix given; a corpus score shows what a user would get. The scores
    are put into the epoch's `logs`, so the progress bar, `History` and every callback later in the list
    (`TensorBoard`, `EarlyStopping`, `KeepBest`) see them like any Keras metric: put this callback first.

    Args:
        translate: Function from a list of strings to the list of their translations.
        sources: List of strings to translate.
        references: List of strings, the correct translation of each.
        metrics: Names out of `"bleu"`, `"chrf"` and `"exact_match"`; all are in percent.
        prefix: String put before each name in `logs`.
        num_samples: Integer, how many of the first translations are shown.
        log_dir: Folder for TensorBoard event files, or None: the scores by optimizer update, tagged with their
            names alone, and `translations`, a table of the samples with what is right and wrong. Give the folder
            `validation` next to one named `train`: TensorBoard then draws both in one picture.
        print_samples: Boolean, whether the samples are printed, below the progress bar of their epoch.
        bleu_tokenize: String, sacreBLEU's tokenizer; `"none"` for text that is tokenised already.

    Attributes:
        translations: List of strings, the translations after the last epoch.

    Raises:
        ValueError: If an argument is out of range, or `translate` returns another number of translations.
        ImportError: If `log_dir` is given and TensorFlow is not installed.

    Example:

    ```python
    quality = TranslationQuality(
        translate=lambda texts: [text.upper() for text in texts],
        sources=["a b", "c d"],
        references=["A B", "C D"],
        metrics=("bleu", "exact_match"),
    )
    callbacks = [quality, keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=3)]
    ```
    """

    def __init__(
        self,
        translate,
        sources,
        references,
        metrics=("bleu",),
        prefix="val_",
        num_samples=3,
        log_dir=None,
        print_samples=False,
        bleu_tokenize="13a",
    ):
        super().__init__()
        check_text_pairs("sources", sources, "references", references)
        metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        unknown = [name for name in metrics if name not in _METRICS]
        if unknown:
            raise ValueError(f"`metrics` must be among {sorted(_METRICS)}. Received: metrics={metrics}.")
        if "bleu" in metrics:
            check_bleu_tokenizer(bleu_tokenize)
        if num_samples < 0:
            raise ValueError(f"`num_samples` must not be negative. Received: num_samples={num_samples}.")
        self.translate = translate
        self.sources = list(sources)
        self.references = list(references)
        self.metrics = metrics
        self.prefix = prefix
        self.num_samples = num_samples
        self.log_dir = log_dir
        self.print_samples = print_samples
        self.bleu_tokenize = bleu_tokenize
        self.translations = []
        self._summaries = None
        self._unprinted = None

    def on_train_begin(self, logs=None):
        if self.log_dir is not None:
            self._summaries = Summaries(self.log_dir)

    def on_epoch_begin(self, epoch, logs=None):
        self._print_samples()

    def on_epoch_end(self, epoch, logs=None):
        translations = list(self.translate(list(self.sources)))
        if len(translations) != len(self.sources):
            raise ValueError(
                "`translate` must return one translation for each source. "
                f"Received: {len(translations)} translations of {len(self.sources)} sources."
            )
        self.translations = translations
        scores = {f"{self.prefix}{name}": self._score(name, translations) for name in self.metrics}
        # Keras hands one dict to all callbacks in turn, and its own History and progress bar come last.
        if logs is not None:
            logs.update(scores)
        samples = (
            self.sources[: self.num_samples],
            translations[: self.num_samples],
            self.references[: self.num_samples],
        )
        if self._summaries is not None:
            texts = {"translations": samples_table(*samples)} if self.num_samples else None
            scalars = {name: scores[f"{self.prefix}{name}"] for name in self.metrics}
            self._summaries.write(updates_of(self.model), scalars=scalars, texts=texts)
        if self.print_samples:
            self._unprinted = list(zip(*samples))

    def _score(self, name, translations):
        if name == "bleu":
            return corpus_bleu(translations, self.references, tokenize=self.bleu_tokenize).score
        if name == "chrf":
            return corpus_chrf(translations, self.references).score
        return exact_match(translations, self.references)

    def on_train_end(self, logs=None):
        self._print_samples()
        if self._summaries is not None:
            self._summaries.close()
            self._summaries = None

    def _print_samples(self):
        # Printed one event late: at the end of the epoch the progress bar has not finished its line.
        for source, translation, reference in self._unprinted or ():
            sample = f"  source:      {source}\n  reference:   {reference}\n  translation: {translation}\n"
            say(sample)
        self._unprinted = None


class AttentionImages(keras.callbacks.Callback):
    """Writes a picture of attention scores to TensorBoard after each epoch.

    Args:
        draw: Function without arguments that returns the picture, uint8 (height, width, 3), for example from
            `keras_attn.plots.attention_grid` for a fixed sentence, or from `keras_attn.plots.plot_attention` and
            `keras_attn.plots.figure_pixels` with its tokens.
        log_dir: Folder for TensorBoard event files.
        name: String, the name of the picture in TensorBoard.

    Raises:
        ImportError: If TensorFlow is not installed.

    Example:

    ```python
    pictures = AttentionImages(draw=lambda: np.zeros((16, 24, 3), "uint8"), log_dir="run/tensorboard")
    ```
    """

    def __init__(self, draw, log_dir, name="cross_attention"):
        super().__init__()
        self.draw = draw
        self.log_dir = log_dir
        self.name = name
        self._summaries = None

    def on_train_begin(self, logs=None):
        self._summaries = Summaries(self.log_dir)

    def on_epoch_end(self, epoch, logs=None):
        self._summaries.write(updates_of(self.model), pictures={self.name: self.draw()})

    def on_train_end(self, logs=None):
        if self._summaries is not None:
            self._summaries.close()
            self._summaries = None


class LearningRateLogger(keras.callbacks.Callback):
    """Puts the learning rate of the last update of each epoch into `logs` as `learning_rate`.

    Keras' `logs` has no learning rate, and `optimizer.learning_rate` is already that of the next update. Put
    it before callbacks that change a constant learning rate, such as `ReduceLROnPlateau`.

    Example:

    ```python
    callbacks = [LearningRateLogger(), keras.callbacks.CSVLogger("training.csv")]
    ```
    """

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs["learning_rate"] = last_learning_rate(self.model.optimizer)


class KeepBest(keras.callbacks.Callback):
    """Calls `save` after each epoch in which a monitored value is better than ever before.

    `keras.callbacks.ModelCheckpoint` saves Keras files, and only warns when the monitored value is missing,
    and then saves nothing. Here the caller's function decides what is saved and how, and a missing value is
    an error: at once if the epoch was validated without producing it, otherwise at the end of training. NaN
    is never better. A second `fit` continues from the best value of the first.

    Args:
        save: Function of the epoch (integer, from 0).
        monitor: String, the key in `logs`. The callback that writes it must come earlier in the list.
        mode: `"max"` or `"min"`: whether a higher or a lower value is better.

    Attributes:
        best: Float, the best value so far; negative or positive infinity before the first.
        best_epoch: Integer, its epoch; None before the first.

    Raises:
        ValueError: If `mode` is unknown or `logs` has no key `monitor`.

    Example:

    ```python
    saved = []
    keep_best = KeepBest(save=saved.append, monitor="val_loss", mode="min")
    ```
    """

    def __init__(self, save, monitor="val_bleu", mode="max"):
        super().__init__()
        if mode not in _BETTER:
            raise ValueError(f"`mode` must be among {sorted(_BETTER)}. Received: mode={mode!r}.")
        if not callable(save):
            raise ValueError(f"`save` must be a function of the epoch. Received: save={save!r}.")
        self.save = save
        self.monitor = monitor
        self.mode = mode
        self.best = -math.inf if mode == "max" else math.inf
        self.best_epoch = None
        self._seen = False
        self._other_keys = set()

    def on_train_begin(self, logs=None):
        self._seen = False
        self._other_keys = set()

    def on_epoch_end(self, epoch, logs=None):
        logs = logs or {}
        if self.monitor not in logs:
            self._other_keys.update(logs)
            # With `validation_freq`, it is correct that some epochs have no validation metric.
            if not self.monitor.startswith("val_") or "val_loss" in logs:
                self._raise_missing()
            return
        self._seen = True
        if _BETTER[self.mode](logs[self.monitor], self.best):
            self.save(epoch)
            self.best = float(logs[self.monitor])
            self.best_epoch = epoch

    def on_train_end(self, logs=None):
        if self._other_keys and not self._seen:
            self._raise_missing()

    def _raise_missing(self):
        raise ValueError(
            f"`monitor` must be a value that training reports: one of {sorted(self._other_keys)}, or one "
            f"that a callback earlier in the list writes. Received: monitor={self.monitor!r}."
        )


class StopOnInvalidLoss(keras.callbacks.Callback):
    """Ends training with an error as soon as the training loss is NaN or infinite.

    `keras.callbacks.TerminateOnNaN` ends `fit` as if it had succeeded, and the script then saves the broken
    weights.

    A loss that is still a tensor, which a `keras.callbacks.CallbackList` of your own may hand on, is read after the next
    batch: the device computes that one meanwhile. `check()` reads it at once, for example before a checkpoint is written.

    Args:
        last_checkpoint: Optional function without arguments that returns the path of the last good
            checkpoint, or None; the error names it.
        initial_batch: Integer, the number of batches of its first epoch that a resumed run has already done;
            `fit` counts from 0 again.

    Raises:
        FloatingPointError: From `fit`, naming epoch and batch, both counted from 1.

    Example:

    ```python
    callbacks = [StopOnInvalidLoss(last_checkpoint=lambda: "run/checkpoints/12.weights.h5")]
    ```
    """

    def __init__(self, last_checkpoint=None, initial_batch=0):
        super().__init__()
        self.last_checkpoint = last_checkpoint
        self.initial_batch = initial_batch
        self._epoch = 0
        self._batches_before = 0
        self._unread = None  # a batch and its loss

    def on_train_begin(self, logs=None):
        self._batches_before = self.initial_batch

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        self.check()
        self._batches_before = 0

    def on_train_batch_end(self, batch, logs=None):
        self.check()
        loss = (logs or {}).get("loss", 0.0)
        self._unread = batch, loss
        if not keras.ops.is_tensor(loss):
            self.check()

    def check(self):
        """Raises the error if the loss of the last batch, which may not have been read yet, is invalid."""
        if self._unread is None:
            return
        batch, loss = self._unread
        self._unread = None
        if math.isfinite(loss):
            return
        advice = "No checkpoint is known."
        if self.last_checkpoint and (checkpoint := self.last_checkpoint()):
            advice = f"The last good checkpoint is {checkpoint}."
        raise FloatingPointError(
            f"The training loss became {loss} in epoch {self._epoch + 1}, "
            f"batch {self._batches_before + batch + 1}. {advice} "
            "A smaller learning rate, a longer warm-up or gradient clipping may help."
        )


def updates_of(model):
    """The number of updates that the optimizer of a model has made."""
    return int(keras.ops.convert_to_numpy(_innermost(model.optimizer).iterations))


def last_learning_rate(optimizer):
    """The learning rate of the last update."""
    optimizer = _innermost(optimizer)
    schedule = learning_rate_schedule(optimizer)
    if schedule is None:
        return float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    # `iterations` counts updates, while the schedule is called with the count of batches.
    updates = int(keras.ops.convert_to_numpy(optimizer.iterations))
    batches = updates * (optimizer.gradient_accumulation_steps or 1)
    return float(keras.ops.convert_to_numpy(schedule(max(batches - 1, 0))))


def _innermost(optimizer):
    # mixed_float16 wraps the optimizer that has the schedule and counts updates.
    return getattr(optimizer, "inner_optimizer", optimizer)
