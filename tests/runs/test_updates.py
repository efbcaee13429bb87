"""One update is one update, however its rows are cut, packed or padded."""

import itertools

import keras
import numpy as np
import pytest

from keras_attn import runs
from keras_attn.data import TextPairs, translation_batches
from keras_attn.models import Seq2SeqTransformer
from keras_attn.runs.optimizer import make_optimizer
from keras_attn.text import ByteTokenizer
from keras_attn.training import LabelSmoothedCrossentropy, Perplexity, averaged_weights

RECIPE = runs.Recipe(model={"size": "tiny"}, learning_rate=0.05, warmup_steps=3, epochs=2, epsilon=1e-3)


def random_pairs(count, seed=0):
    generator = np.random.default_rng(seed)

    def texts():
        return [
            "".join(generator.choice(list("abcdefg"), length)) for length in generator.integers(1, 12, count)
        ]

    return TextPairs(texts(), texts(), "random")


def trained(pairs, num_updates, optimizer=None, recipe=RECIPE, after_batch=None, eagerly=False, **options):
    """Weights, moving averages of weights, and perplexity after some updates of a model without dropout."""
    keras.utils.set_random_seed(5)
    tokenizer = ByteTokenizer()
    options = {"max_tokens": 211, "max_sequence_length": 29, "sample_weights": True, **options}
    batches = translation_batches(pairs, tokenizer, tokenizer, **options)
    sizes = {"hidden_dim": 16, "num_heads": 2, "intermediate_dim": 11, "max_sequence_length": 64}
    model = Seq2SeqTransformer.from_sizes(259, 1, 1, dropout=0.0, **sizes)
    model.compile(
        optimizer=optimizer or make_optimizer(recipe, 16, 2 * num_updates),
        loss=LabelSmoothedCrossentropy(0.1, reduction="sum"),
        metrics=[Perplexity()],
        run_eagerly=eagerly,
    )
    model.optimizer.build(model.trainable_variables)  # or Keras traces the step twice
    steps = num_updates * batches.num_micro_batches
    spy = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: after_batch(spy.model))
    history = model.fit(
        batches.dataset(),
        steps_per_epoch=steps,
        shuffle=False,
        verbose=0,
        callbacks=[spy] if after_batch else None,
    ).history
    raw = [np.array(weight) for weight in model.trainable_variables]
    with averaged_weights(model):
        averages = [np.array(weight) for weight in model.trainable_variables]
    after = [np.array(weight) for weight in model.trainable_variables]
    assert all(np.array_equal(one, other) for one, other in zip(raw, after))
    return raw, averages, history["perplexity"][0]


def assert_close(one, other, tolerance=1e-5):
    for array, expected in zip(one, other, strict=True):
        np.testing.assert_allclose(array, expected, rtol=0, atol=tolerance * max(1, np.abs(expected).max()))


@pytest.mark.extended
@pytest.mark.parametrize(
    ("schedule", "optimizer"),
    [pytest.param("inverse_square_root", "adam", marks=pytest.mark.slow), ("cosine", "adamw")],
)
def test_accumulated_batches_equal_one_big_batch(schedule, optimizer):
    pairs = random_pairs(97)
    recipe = RECIPE.replace(schedule=schedule, optimizer=optimizer, weight_decay=0.1, global_clipnorm=0.5)
    big, _, perplexity = trained(pairs, 7, recipe=recipe, eagerly=True)
    small, _, again = trained(
        pairs, 7, recipe=recipe.replace(gradient_accumulation_steps=3), num_micro_batches=3
    )
    assert_close(small, big)
    assert again == pytest.approx(perplexity, rel=1e-5)


@pytest.mark.extended
def test_the_moving_average_is_over_updates():
    """Against the average by hand. Keras begins with the weights after the first update, and averages every batch."""
    pairs = random_pairs(97)
    steps = 3
    after = []
    trained(
        pairs,
        5,
        after_batch=lambda model: after.append([np.array(w) for w in model.trainable_variables]),
        eagerly=True,
    )
    recipe = RECIPE.replace(ema_momentum=0.8, gradient_accumulation_steps=steps)
    _, averages, _ = trained(pairs, 5, recipe=recipe, num_micro_batches=steps)
    share = 0.8 ** (1 / steps)
    expected = after[0]
    for before, weights in itertools.pairwise(after):
        for of_batch in [before] * (steps - 1) + [weights]:
            expected = [share * e + (1 - share) * w for e, w in zip(expected, of_batch)]
    assert_close(averages, expected)


@pytest.mark.extended
@pytest.mark.parametrize(
    "other",
    [
        {"packed_length": 61},
        pytest.param({"bucket_boundaries": None}, marks=pytest.mark.slow),
        pytest.param({"bucket_boundaries": (29,)}, marks=pytest.mark.slow),
    ],
)
def test_packed_and_padded_rows_have_the_loss_and_the_gradient_of_separate_ones(other):
    """With SGD and a rate of 1, what one update changes is the gradient."""
    pairs = random_pairs(23)
    sgd = {"optimizer": keras.optimizers.SGD(1.0), "max_tokens": 10**4, "eagerly": True}
    by_length, _, perplexity = trained(pairs, 1, bucket_boundaries=(13, 17, 29), **sgd)
    sgd["optimizer"] = keras.optimizers.SGD(1.0)
    other_weights, _, again = trained(pairs, 1, **other, **sgd)
    assert again == pytest.approx(perplexity, rel=1e-5)
    assert_close(other_weights, by_length)
    sgd["optimizer"] = keras.optimizers.SGD(0.0)
    start, *_ = trained(pairs, 1, bucket_boundaries=(29,), **sgd)
    assert max(np.abs(one - other).max() for one, other in zip(start, by_length)) > 0.1


@pytest.mark.slow
def test_500_steps_of_float16_with_large_logits_stay_finite():
    """The output is blown up until the scaled loss overflows: Keras' loss scale then falls, and training goes on."""
    keras.utils.set_random_seed(5)
    tokenizer = ByteTokenizer()
    batches = translation_batches(random_pairs(97), tokenizer, tokenizer, max_tokens=211)
    model = Seq2SeqTransformer.from_sizes(
        259,
        1,
        1,
        hidden_dim=16,
        num_heads=2,
        intermediate_dim=11,
        dropout=0.1,
        max_sequence_length=64,
        dtype="mixed_float16",
        normalize_first=True,
    )
    model.decoder_norm.gamma.assign(2000.0 * model.decoder_norm.gamma)
    logits = model(next(iter(batches.dataset()))[0])
    assert np.abs(np.array(logits)).max() > 1e3
    model.compile(
        optimizer=keras.optimizers.Adam(0.01, global_clipnorm=1.0),
        loss=LabelSmoothedCrossentropy(0.1),
        metrics=[Perplexity()],
    )
    losses = []
    spy = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    model.fit(batches.dataset(), steps_per_epoch=500, shuffle=False, verbose=0, callbacks=[spy])
    assert len(losses) == 500
    assert np.isfinite(losses).all()
    assert all(np.isfinite(np.array(weight)).all() for weight in model.weights)
    assert losses[-1] < losses[0]
