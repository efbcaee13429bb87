"""`model.fit` that goes on after a kill: a run's saves, for a model and batches of any kind."""

import pathlib
import time

import keras

from keras_attn.files import locked_folder
from keras_attn.models import assign_weights, read_weights, save_weights
from keras_attn.runs.progress import EpochBar, HistoryFile, Progress, RunCallbacks
from keras_attn.runs.run_folder import SavedStates, state_snapshots
from keras_attn.terminal import say
from keras_attn.training import (
    KeepBest,
    LearningRateLogger,
    StopOnInvalidLoss,
    restore_training_state,
)

_BEST = "best.safetensors"


def resumable_fit(
    model, batches, folder, epochs, validate, mode="max", save_updates=None, save_minutes=10.0, verbose=1
):
    """Trains a compiled model with `fit`, saves its state as it goes, and keeps the weights of the best epoch.

    Called again with the same model and batches after the process was killed, it goes on from the last state, and on one
    processor ends with the same bits. Called after its end, it only reads the best weights; with more epochs it trains on.

    Args:
        model: A compiled and built `keras.Model`, made as it was the first time. Compile it without metrics: `validate`
            measures, and metrics would begin anew in the epoch that a run goes on with.
        batches: `keras_attn.data.SeededBatches`, `LabelledBatches` for instance.
        folder: Path of a folder for `state-*.safetensors`, `best.safetensors` and `history.csv`.
        epochs: Integer, the passes through the batches.
        validate: Function without arguments that returns the score of the model as it is, a float, called after each epoch.
        mode: "max" or "min", whether a higher or a lower score is better.
        save_updates, save_minutes: As in `Recipe`: the state is saved after so many updates or minutes, and each epoch.
        verbose: 0 is silent; 1 shows a bar on a terminal, and a line an epoch.

    Returns:
        A list of dicts, one an epoch, with `loss` and `val_score` among its values. The model has the best weights.

    Raises:
        ValueError: if another process trains there, or the states are those of another model.
        FloatingPointError: when the loss is no longer finite.

    Example:

    ```python
    data = keras_attn.data.LabelledTexts(["a b", "b a", "a", "b"] * 5, ["x", "y", "x", "y"] * 5)
    encoder = keras_attn.models.EncoderTransformer.from_sizes(259, 1, hidden_dim=8, num_heads=2, intermediate_dim=9)
    model = keras_attn.models.EncoderWithHead(encoder, keras_attn.layers.ClassificationHead(2))
    batches = keras_attn.data.LabelledBatches(data, keras_attn.text.ByteTokenizer(), ["x", "y"], batch_size=5)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    classifier = keras_attn.TextClassifier(model, keras_attn.text.ByteTokenizer(), ["x", "y"])
    history = resumable_fit(
        model, batches, "runs/xy", 1, lambda: np.mean(classifier(data.texts) == np.array(data.labels)), verbose=0
    )
    ```
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(folder):
        states = SavedStates(folder)
        steps = len(batches)
        loss = next(metric for metric in model.metrics if metric.name == "loss")
        progress = Progress(
            batches, steps, [loss], lambda: save(), save_updates=save_updates, save_minutes=save_minutes
        )
        best = KeepBest(lambda epoch: save_weights(model, folder / _BEST), "val_score", mode)
        history = HistoryFile(folder / "history.csv")
        bar = EpochBar(progress, epochs)
        take_snapshot = state_snapshots(model)

        def save():
            stop_on_invalid_loss.check()
            state = {"best": best.best, "best_epoch": best.best_epoch, "history": history.rows}
            states.save(progress.updates, take_snapshot(), progress.state() | state)

        saved = states.load()
        if saved is not None:
            arrays, state = saved
            restore_training_state(model, arrays)
            progress.resume(state)
            best.best = state["best"]
            best.best_epoch = state["best_epoch"]
            history.rows = state["history"]
            if verbose:
                say(f"Resumed after update {progress.updates:,}, in epoch {progress.epoch + 1}.")

        stop_on_invalid_loss = StopOnInvalidLoss(states.newest, progress.batch)

        def write_score(epoch, logs):
            bar.close()
            logs["val_score"] = float(validate())

        def after_epoch(epoch, logs):
            history.write()
            save()
            if verbose:
                row = history.rows[-1]
                say(
                    f"Epoch {epoch + 1}/{epochs}: loss {row['loss']:.4f}, validation {row['val_score']:.4f}, best "
                    f"{best.best:.4f}; {time.monotonic() - began:.0f} s"
                )

        callbacks = [stop_on_invalid_loss, progress]
        if verbose:
            callbacks.append(bar)
        callbacks += [
            keras.callbacks.LambdaCallback(on_epoch_end=write_score),
            LearningRateLogger(),
            best,
            history,
            keras.callbacks.LambdaCallback(on_epoch_end=after_epoch),
        ]
        began = time.monotonic()
        if progress.epoch < epochs:
            try:
                model.fit(
                    batches.dataset(progress.position),
                    steps_per_epoch=steps,
                    initial_epoch=progress.epoch,
                    epochs=epochs,
                    shuffle=False,
                    verbose=0,
                    callbacks=RunCallbacks(callbacks, model, epochs),
                )
            finally:
                bar.close()
                states.wait()
        assign_weights(model, read_weights(folder / _BEST))
    return history.rows
