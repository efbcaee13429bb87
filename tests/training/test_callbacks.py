import math
import re
import sys

import keras
import numpy as np
import pytest

from keras_attn.training import (
    AttentionImages,
    KeepBest,
    LabelSmoothedCrossentropy,
    LearningRateLogger,
    NoamSchedule,
    StopOnInvalidLoss,
    TranslationQuality,
    corpus_bleu,
    corpus_chrf,
)

V = 11
SOURCES = ["ein Hund bellt laut hier", "zwei Katzen", "drei | Vögel <unk>"]
REFERENCES = ["a dog barks loudly here", "two cats", "three birds"]


def fit(callbacks, epochs=3, optimizer="sgd", batches=2, verbose=0, **options):
    keras.utils.set_random_seed(1)
    x = np.arange(2 * batches * 3).reshape(2 * batches, 3) % V
    model = keras.Sequential(
        [keras.Input((None,), dtype="int32"), keras.layers.Embedding(V, 5), keras.layers.Dense(V)]
    )
    # A graph would be traced for a few steps of it; JAX compiles each op that runs alone.
    is_eager = keras.backend.backend() != "jax"
    model.compile(optimizer, loss=LabelSmoothedCrossentropy(), run_eagerly=is_eager)
    return model.fit(
        x, x, batch_size=2, epochs=epochs, verbose=verbose, shuffle=False, callbacks=callbacks, **options
    )


class ScriptedTranslations:
    """Returns the references for as many sentences, one more with each call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, texts):
        assert texts == SOURCES
        self.calls += 1
        return REFERENCES[: self.calls] + ["nothing of this kind"] * (len(REFERENCES) - self.calls)


def make_quality(translate=None, **options):
    return TranslationQuality(translate or ScriptedTranslations(), SOURCES, REFERENCES, **options)


class SetLog(keras.callbacks.Callback):
    def __init__(self, key, values):
        super().__init__()
        self.key = key
        self.values = values

    def on_epoch_end(self, epoch, logs=None):
        if self.values[epoch] is not None:
            logs[self.key] = self.values[epoch]


# Translation quality


def test_scores_are_in_the_history():
    history = fit([make_quality(metrics=("bleu", "chrf", "exact_match"))]).history
    expected = [REFERENCES[:n] + ["nothing of this kind"] * (3 - n) for n in (1, 2, 3)]
    assert history["val_exact_match"] == pytest.approx([100 / 3, 200 / 3, 100])
    assert history["val_bleu"] == pytest.approx([corpus_bleu(h, REFERENCES).score for h in expected])
    assert history["val_chrf"] == pytest.approx([corpus_chrf(h, REFERENCES).score for h in expected])


@pytest.mark.extended
def test_progress_bar_shows_the_scores(capsys):
    fit([make_quality(metrics=("exact_match", "bleu"))], verbose=1)
    output = capsys.readouterr().out
    assert re.findall(r"val_exact_match: ([\d.]+)", output) == ["33.3333", "66.6667", "100.0000"]
    assert re.findall(r"val_bleu: ([\d.]+)", output)[-1] == "100.0000"


def test_callbacks_later_in_the_list_see_the_scores(tmp_path):
    early = keras.callbacks.EarlyStopping("val_exact_match", mode="max", patience=1)
    translate = iter([REFERENCES, SOURCES, REFERENCES, SOURCES])
    quality = make_quality(lambda texts: next(translate), metrics="exact_match")
    checkpoint = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "{epoch}-{val_exact_match:.0f}.weights.h5"), save_weights_only=True
    )
    history = fit([quality, early, checkpoint], epochs=4).history
    assert history["val_exact_match"] == [100.0, 0.0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-100.weights.h5", "2-0.weights.h5"]


def test_prefix_is_the_callers():
    assert "test_bleu" in fit([make_quality(prefix="test_")], epochs=1).history


def test_translate_sees_the_weights_of_its_epoch():
    norms = []

    def translate(texts):
        norms.append(float(np.linalg.norm(quality.model.get_weights()[-1])))
        return REFERENCES

    quality = make_quality(translate)
    fit([quality])
    assert 0 < norms[0] < norms[1] < norms[2]


def test_samples_are_printed_below_the_progress_bar_of_their_epoch(capsys):
    fit([make_quality(num_samples=2, print_samples=True)], epochs=2, verbose=1)
    first, second = capsys.readouterr().out.split("Epoch 2/2")
    for part, translation in [(first, "nothing of this kind"), (second, "two cats")]:
        bar, sample = part.split("  source:      ein Hund bellt laut hier\n", 1)
        assert "val_bleu" in bar
        assert "  reference:   two cats\n  translation: " + translation in sample
        assert "three birds" not in sample
        assert "val_bleu" not in sample


def read_summaries(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    tags = accumulator.Tags()["tensors"]
    return {tag: [(event.step, event.tensor_proto) for event in accumulator.Tensors(tag)] for tag in tags}


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scores_and_samples_are_written_for_tensorboard(tmp_path):
    tf = pytest.importorskip("tensorflow")
    # A TensorBoard callback with update_freq switches recording off between its steps.
    tensorboard = keras.callbacks.TensorBoard(tmp_path / "keras", update_freq=1000)
    quality = make_quality(metrics=("exact_match",), num_samples=3, log_dir=tmp_path / "ours")
    fit([tensorboard, quality], epochs=2)
    summaries = read_summaries(tmp_path / "ours")
    scores = [(step, float(tf.make_ndarray(tensor))) for step, tensor in summaries["exact_match"]]
    assert scores == [(2, pytest.approx(100 / 3)), (4, pytest.approx(200 / 3))]  # two updates an epoch
    assert [step for step, _ in summaries["translations"]] == [2, 4]
    table = tf.make_ndarray(summaries["translations"][1][1]).item().decode()
    assert table.splitlines() == [
        "| source | translation | reference |  |",
        "| --- | --- | --- | --- |",
        "| ein Hund bellt laut hier | a dog barks loudly here | a dog barks loudly here | ✓ right |",
        "| zwei Katzen | two cats | two cats | ✓ right |",
        r"| drei \| Vögel &lt;unk&gt; | nothing of this kind | three birds | ✗ wrong |",
    ]


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pictures_are_written_by_update(tmp_path):
    tf = pytest.importorskip("tensorflow")
    pictures = iter(np.full((2, 5, 7, 3), [[[[11]]], [[[13]]]], "uint8"))
    fit([AttentionImages(lambda: next(pictures), tmp_path, name="cross_attention")], epochs=2)
    points = read_summaries(tmp_path)["cross_attention"]
    assert [step for step, _ in points] == [2, 4]
    for (_, tensor), grey in zip(points, (11, 13)):
        width, height, file = tensor.string_val
        assert (width, height) == (b"7", b"5")
        assert np.all(tf.io.decode_png(file) == grey)


def test_log_dir_without_tensorflow_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ImportError, match="`log_dir` needs TensorFlow: pip install tensorflow"):
        make_quality(log_dir=tmp_path).on_train_begin()


def test_wrong_number_of_translations_is_refused():
    with pytest.raises(ValueError, match="Received: 2 translations of 3 sources"):
        fit([make_quality(lambda texts: texts[:2])])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"metrics": ("bleu", "rouge")},
            r"among \['bleu', 'chrf', 'exact_match'\]. Received: metrics=\('bleu', 'rouge'",
        ),
        ({"num_samples": -1}, "`num_samples` must not be negative. Received: num_samples=-1"),
    ],
)
def test_bad_arguments_of_translation_quality_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_quality(**options)


def test_sources_without_references_are_refused():
    with pytest.raises(ValueError, match=r"Received: len\(sources\)=3, len\(references\)=2"):
        TranslationQuality(list, SOURCES, REFERENCES[:2])


# Learning rate


def noam(update):
    return 17**-0.5 * min(update**-0.5, update * 5**-1.5)


def test_logged_rate_is_that_of_the_last_update():
    optimizer = keras.optimizers.SGD(NoamSchedule(17, warmup_steps=5))
    rates = fit([LearningRateLogger()], epochs=4, batches=3, optimizer=optimizer).history["learning_rate"]
    assert rates == pytest.approx([noam(3), noam(6), noam(9), noam(12)], rel=1e-6)


@pytest.mark.extended
def test_logged_rate_with_gradient_accumulation():
    # Keras calls the schedule with its count of batches; the last update of the epoch is in batch 4 of 5.
    optimizer = keras.optimizers.SGD(NoamSchedule(17, warmup_steps=5), gradient_accumulation_steps=2)
    rates = fit([LearningRateLogger()], epochs=1, batches=5, optimizer=optimizer).history["learning_rate"]
    assert rates == pytest.approx([noam(4)], rel=1e-6)


@pytest.mark.extended
def test_logged_rate_under_loss_scaling():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(NoamSchedule(17, warmup_steps=5)))
    rates = fit([LearningRateLogger()], epochs=2, batches=3, optimizer=optimizer).history["learning_rate"]
    assert rates == pytest.approx([noam(3), noam(6)], rel=1e-6)


@pytest.mark.extended
def test_constant_rate_is_logged_before_it_is_changed():
    halve = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=100.0)
    optimizer = keras.optimizers.SGD(0.25)
    seen = SetLog("unused", [None] * 4)
    rates = fit([LearningRateLogger(), seen, halve], epochs=4, optimizer=optimizer).history["learning_rate"]
    assert rates == pytest.approx([0.25, 0.25, 0.125, 0.0625])


# Best checkpoint


@pytest.mark.parametrize(
    ("mode", "values", "saved"),
    [
        ("max", [math.nan, 3.0, 3.0, 2.0, 5.0, math.nan, 4.0], [1, 4]),
        pytest.param(
            "min", [math.nan, 3.0, 3.0, 2.0, 5.0, math.nan, 1.0], [1, 3, 6], marks=pytest.mark.extended
        ),
    ],
)
def test_save_is_called_for_each_new_best(mode, values, saved):
    epochs = []
    keep = KeepBest(epochs.append, mode=mode)
    fit([SetLog("val_bleu", values), keep], epochs=len(values))
    assert epochs == saved
    assert keep.best_epoch == saved[-1]
    assert keep.best == values[saved[-1]]


def test_best_goes_on_in_a_second_fit():
    epochs = []
    keep = KeepBest(epochs.append)
    fit([SetLog("val_bleu", [5.0, 1.0]), keep], epochs=2)
    fit([SetLog("val_bleu", [4.0, 6.0]), keep], epochs=2)
    assert epochs == [0, 1]
    assert keep.best == 6.0


def test_failed_save_is_not_the_best():
    def save(epoch):
        raise OSError("disk full")

    keep = KeepBest(save)
    with pytest.raises(OSError, match="disk full"):
        fit([SetLog("val_bleu", [5.0]), keep], epochs=1)
    assert keep.best_epoch is None
    assert keep.best == -math.inf


def test_missing_value_is_an_error_in_the_first_validated_epoch():
    epochs_seen = SetLog("val_bleu", [1.0, 2.0, 3.0])
    validation = (np.ones((2, 3), "int32"), np.ones((2, 3), "int32"))
    with pytest.raises(
        ValueError, match=r"one of \['loss', 'val_bleu', 'val_loss'\].*monitor='val_blue'"
    ) as info:
        fit([epochs_seen, KeepBest(print, monitor="val_blue")], validation_data=validation)
    assert "earlier in the list" in str(info.value)


def test_misspelt_training_value_is_an_error_at_once():
    translate = ScriptedTranslations()
    with pytest.raises(ValueError, match=r"monitor='los'"):
        fit([make_quality(translate), KeepBest(print, monitor="los", mode="min")])
    assert translate.calls == 1


@pytest.mark.extended
def test_missing_value_without_validation_is_an_error_at_the_end():
    with pytest.raises(ValueError, match=r"one of \['loss'\].*Received: monitor='val_bleu'"):
        fit([KeepBest(print)])


@pytest.mark.extended
def test_value_of_every_second_epoch_is_enough():
    epochs = []
    keep = KeepBest(epochs.append, monitor="val_loss", mode="min")
    validation = (np.ones((2, 3), "int32"), np.ones((2, 3), "int32"))
    bleu = SetLog("val_bleu", [1.0, 2.0, 3.0, 4.0])
    fit([bleu, keep], epochs=4, validation_data=validation, validation_freq=2)
    assert set(epochs) <= {1, 3}
    assert keep.best_epoch in (1, 3)


def test_bad_arguments_of_keep_best_are_refused():
    with pytest.raises(ValueError, match=r"`mode` must be among \['max', 'min'\]\. Received: mode='auto'"):
        KeepBest(print, mode="auto")
    with pytest.raises(ValueError, match=r"`save` must be a function of the epoch\. Received: save='best"):
        KeepBest("best.keras")


# Invalid loss


class BreakWeights(keras.callbacks.Callback):
    """Makes the loss of one batch invalid."""

    def __init__(self, epoch, batch, value):
        super().__init__()
        self.target = (epoch, batch)
        self.value = value

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == self.target:
            self.model.set_weights([np.full_like(weight, self.value) for weight in self.model.get_weights()])


def test_nan_loss_ends_training_with_epoch_and_batch():
    with pytest.raises(
        FloatingPointError, match=r"became nan in epoch 2, batch 3\. No checkpoint is known\."
    ):
        fit([BreakWeights(1, 2, math.nan), StopOnInvalidLoss()], batches=5)


@pytest.mark.parametrize(("epoch", "number"), [(0, 7 + 3), (1, 3)])
def test_batches_of_a_resumed_epoch_are_counted_from_its_begin(epoch, number):
    with pytest.raises(FloatingPointError, match=rf"in epoch {epoch + 1}, batch {number}\."):
        fit([BreakWeights(epoch, 2, math.nan), StopOnInvalidLoss(initial_batch=7)], batches=5)


def test_infinite_loss_ends_training():
    class LossOfInfinity(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return keras.ops.mean(y_pred, axis=-1) + math.inf

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", loss=LossOfInfinity())
    x = np.ones((3, 1), "float32")
    with pytest.raises(FloatingPointError, match=r"became inf in epoch 1, batch 1\."):
        model.fit(x, x, batch_size=1, verbose=0, callbacks=[StopOnInvalidLoss()])


def test_error_names_the_last_good_checkpoint():
    stop = StopOnInvalidLoss(last_checkpoint=lambda: "run/7.weights.h5")
    with pytest.raises(FloatingPointError, match=r"The last good checkpoint is run/7\.weights\.h5\."):
        fit([BreakWeights(0, 1, math.nan), stop])


def test_a_loss_that_is_a_tensor_is_read_a_batch_later_or_when_asked():
    finite, invalid = (keras.ops.convert_to_tensor(loss) for loss in (1.5, math.nan))
    stop = StopOnInvalidLoss(initial_batch=7)
    stop.on_train_begin()
    stop.on_epoch_begin(0)
    stop.on_train_batch_end(0, {"loss": finite})
    stop.on_train_batch_end(1, {"loss": invalid})  # which the device may not have computed yet
    with pytest.raises(FloatingPointError, match=r"nan in epoch 1, batch 9\."):
        stop.on_train_batch_end(2, {"loss": invalid})
    for late in (stop.check, lambda: stop.on_epoch_end(0)):
        stop.on_train_batch_end(3, {"loss": invalid})
        with pytest.raises(FloatingPointError, match=r"batch 11\."):
            late()
        late()  # A loss is read once.


def test_finite_loss_is_left_alone():
    assert len(fit([StopOnInvalidLoss()]).history["loss"]) == 3
