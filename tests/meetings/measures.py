"""The public losses and metrics, and the habits of those who end a model with a softmax, pad more, or cut batches."""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
from habits import everything, habit
from helpers_layers import compiled
from keras import ops
from things import B, D, T, V, as_array, assert_close

from keras_attn import training

MEASURE = {"of": "measures"}


@dataclasses.dataclass(frozen=True)
class Measure:
    """A loss or a metric: `make()` gives one, and `value` what it says of labels and logits."""

    name: str
    make: Callable
    is_loss: bool

    @property
    def public_name(self):
        return self.name.partition("-")[0]

    def value(self, labels, logits, **options):
        measure = self.make()
        if self.is_loss:
            return float(measure(labels, logits, **options))
        measure.update_state(labels, logits, **options)
        return float(measure.result())

    def compiled_with(self):
        """The arguments of `model.compile`."""
        return {"loss": self.make()} if self.is_loss else {"loss": no_loss, "metrics": [self.make()]}

    def remade(self, **config):
        """The same measure with other options."""

        def make():
            made = self.make()
            return type(made).from_config({**made.get_config(), **config})

        return dataclasses.replace(self, make=make)


def no_loss(y_true, y_pred):
    return ops.zeros(())


def smoothed():
    return training.LabelSmoothedCrossentropy(0.1)


MEASURES = {
    measure.name: measure
    for measure in [
        Measure("LabelSmoothedCrossentropy", training.LabelSmoothedCrossentropy, is_loss=True),
        Measure("LabelSmoothedCrossentropy-smoothed", smoothed, is_loss=True),
        Measure("Perplexity", training.Perplexity, is_loss=False),
        Measure("MaskedAccuracy", training.MaskedAccuracy, is_loss=False),
    ]
}


def example(more_pads=0):
    rng = np.random.default_rng(3)
    labels = rng.integers(1, V, (B, T)).astype("int32")
    labels[1, 5:], labels[2, 2:] = 0, 0
    x = rng.normal(size=(B, T, D)).astype("float32")
    return (
        np.pad(labels, ((0, 0), (0, more_pads))),
        np.pad(x, ((0, 0), (0, more_pads), (0, 0)), constant_values=3.0),
    )


def logits_of(x):
    kernel = np.random.default_rng(4).normal(size=(D, V)).astype("float32")
    return x @ kernel


def kernel():
    return keras.initializers.Constant(np.random.default_rng(4).normal(size=(D, V)))


def dense(**options):
    return keras.layers.Dense(V, kernel_initializer=kernel(), **options)


# How tutorials end a model.
SOFTMAX_HEADS = {
    "dense_softmax": lambda x: dense(activation="softmax")(x),
    "softmax_layer": lambda x: keras.layers.Softmax()(dense()(x)),
    "activation_layer": lambda x: keras.layers.Activation("softmax")(dense()(x)),
    "softmax_operation": lambda x: ops.softmax(dense()(x)),
    "rescaling_after_softmax": lambda x: keras.layers.Rescaling(1.0)(dense(activation="softmax")(x)),
}


def evaluated(measure, end, run_eagerly):
    """The value, and the weights after one update with a loss, of a model with an end."""
    labels, x = example()
    symbol = keras.Input((T, D))
    model = keras.Model(symbol, end(symbol))
    model.compile(keras.optimizers.SGD(0.5), run_eagerly=run_eagerly, **measure.compiled_with())
    value = list(model.evaluate(x, labels, verbose=0, return_dict=True).values())[-1]
    if measure.is_loss:
        model.train_on_batch(x, labels)
    return value, [as_array(weight) for weight in model.weights]


def answer_or_refusal(measure, head, run_eagerly):
    """As `evaluated`; None where an error names the softmax, or all is NaN."""
    try:
        value, weights = evaluated(measure, head, run_eagerly)
    except ValueError as error:
        if "softmax" in str(error):
            return None
        raise
    return None if np.isnan(value) else (value, weights)


def ends_in(head, run_eagerly):
    def check(measure, folder):
        """Numbers, and the weights after one update, are those of the logits; or an error, or NaN, is no wrong number.

        Where the measure is told that these are probabilities, they are right.
        """
        labels, x = example()
        expected, weights = evaluated(measure, lambda x: dense()(x), run_eagerly)
        np.testing.assert_allclose(expected, measure.value(labels, logits_of(x)), rtol=1e-4)
        told = measure.remade(from_logits=False) if "from_logits" in measure.make().get_config() else None
        for asked in (measure, told) if told else (measure,):
            answer = answer_or_refusal(asked, head, run_eagerly)
            if answer is None:
                assert asked is measure
                continue
            np.testing.assert_allclose(answer[0], expected, rtol=1e-4)
            for one, other in zip(answer[1], weights):
                assert_close(one, other, 1e-4)

    return check


for _name, _head in SOFTMAX_HEADS.items():
    habit(everything, name=f"ends_in_{_name}", seconds=1.0, **MEASURE)(ends_in(_head, run_eagerly=False))
    habit(everything, name=f"ends_in_{_name}_eagerly", **MEASURE)(ends_in(_head, run_eagerly=True))


@habit(everything, **MEASURE)
def more_pads(measure, folder):
    values = [measure.value(labels, logits_of(x)) for labels, x in (example(), example(4))]
    np.testing.assert_allclose(values[1], values[0], rtol=1e-6)


@habit(everything, **MEASURE)
def labels_of_minus_100(measure, folder):
    """Other libraries' pads, said to the measure; left unsaid, they are no label of the vocabulary."""
    labels, x = example()
    marked = np.where(labels == 0, -100, labels)
    other = measure.remade(pad_token_id=-100)
    np.testing.assert_allclose(
        other.value(marked, logits_of(x)), measure.value(labels, logits_of(x)), rtol=1e-6
    )


@habit(everything, **MEASURE)
def nan_logits_at_pads(measure, folder):
    labels, x = example()
    logits = logits_of(x)
    with_nan = np.where((labels != 0)[..., None], logits, np.nan)
    np.testing.assert_allclose(measure.value(labels, with_nan), measure.value(labels, logits), rtol=1e-6)


@habit(everything, **MEASURE)
def a_mask_on_the_logits(measure, folder):
    """Keras' mask hides what labels do not: as if those labels were pads."""
    labels, x = example()
    hidden = labels.copy()
    hidden[0, 3:] = 0
    masked = keras.layers.Masking()(np.where((hidden != 0)[..., None], x, 0).astype("float32"))
    output = dense()(masked)
    np.testing.assert_allclose(measure.value(labels, output), measure.value(hidden, logits_of(x)), rtol=1e-5)


@habit(everything, **MEASURE)
def weights_of_zero(measure, folder):
    """A token of weight 0 is a pad; weights of one are none."""
    labels, x = example()
    logits = logits_of(x)
    hidden = labels.copy()
    hidden[0, 3:] = 0
    weights = (hidden != 0).astype("float32")
    value = measure.value(labels, logits, sample_weight=weights)
    np.testing.assert_allclose(value, measure.value(hidden, logits), rtol=1e-6)
    ones = np.ones(labels.shape, "float32")
    plain = measure.value(labels, logits)
    np.testing.assert_allclose(measure.value(labels, logits, sample_weight=ones), plain, rtol=1e-6)


@habit(everything, **MEASURE)
def half_precision_logits(measure, folder):
    labels, x = example()
    logits = logits_of(x).astype("float16")
    expected = measure.value(labels, logits.astype("float32"))
    np.testing.assert_allclose(measure.value(labels, logits), expected, rtol=1e-6)


@habit(lambda measure: measure.is_loss, seconds=0.5, **MEASURE)
def a_graph(measure, folder):
    labels, x = example()
    logits, loss = logits_of(x), measure.make()
    found = compiled(lambda logits: loss(labels, logits))(ops.convert_to_tensor(logits))
    np.testing.assert_allclose(float(found), measure.value(labels, logits), rtol=1e-6)


@habit(everything, **MEASURE)
def from_its_configuration(measure, folder):
    labels, x = example()
    other = measure.remade()
    assert other.make().get_config() == measure.make().get_config()
    np.testing.assert_allclose(other.value(labels, logits_of(x)), measure.value(labels, logits_of(x)))


@habit(lambda measure: not measure.is_loss, **MEASURE)
def batches_of_an_epoch(measure, folder):
    """Every token counts the same, however they are cut into batches; after a reset nothing is left."""
    labels, x = example()
    logits, made = logits_of(x), measure.make()
    for _ in range(2):
        made.reset_state()
        for row in range(B):
            made.update_state(labels[row : row + 1], logits[row : row + 1])
        np.testing.assert_allclose(float(made.result()), measure.value(labels, logits), rtol=1e-5)


@habit(lambda measure: measure.is_loss, seconds=1.0, **MEASURE)
def a_model_saved_with_it(measure, folder):
    symbol = keras.Input((T, D))
    model = keras.Model(symbol, dense()(symbol))
    model.compile("sgd", **measure.compiled_with())
    labels, x = example()
    expected = model.evaluate(x, labels, verbose=0)
    model.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    np.testing.assert_allclose(loaded.evaluate(x, labels, verbose=0), expected, rtol=1e-6)


# Public names of `keras_attn.training` that are no measures.
NO_MEASURES = {
    "Adam": "habit average_after_freezing",
    "AdamW": "habit average_after_freezing",
    "AttentionImages": "a callback",
    "CorpusScore": "of texts",
    "InverseSquareRootSchedule": "a schedule",
    "KeepBest": "a callback",
    "LearningRateLogger": "a callback",
    "NoamSchedule": "a schedule",
    "PerUpdateSchedule": "a schedule",
    "StopOnInvalidLoss": "a callback",
    "TranslationQuality": "a callback",
    "WarmupCosineSchedule": "a schedule",
    "WarmupLinearSchedule": "a schedule",
    "averaged_weights": "habit average_after_freezing",
    "corpus_bleu": "of texts",
    "corpus_chrf": "of texts",
    "exact_match": "of texts",
    "p_value_of_differences": "of numbers",
    "paired_p_value": "of numbers",
    "restore_training_state": "habit a_restored_state",
    "token_negative_log_likelihood": "what all measures call",
    "training_state": "habit a_restored_state",
}
