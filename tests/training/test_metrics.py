import keras
import numpy as np
import pytest
import sacrebleu
from keras import ops

from keras_attn.training import (
    CorpusScore,
    LabelSmoothedCrossentropy,
    MaskedAccuracy,
    Perplexity,
    corpus_bleu,
    corpus_chrf,
    exact_match,
)
from keras_attn.training.significance import paired_p_value

V = 11
PAD = 0
METRICS = {"accuracy": MaskedAccuracy, "perplexity": Perplexity}


def make_epoch(seed=0):
    """Batches of unequal size, length and share of padding: a mean of means would be wrong."""
    rng = np.random.default_rng(seed)
    for rows, columns in [(2, 3), (5, 7), (1, 13)]:
        labels = rng.integers(1, V, (rows, columns))
        for row, length in enumerate(rng.integers(1, columns, rows)):
            labels[row, length:] = PAD
        logits = 2 * rng.normal(size=(rows, columns, V)).astype("float32")
        # Half of the labels, and all padding, are what the logits say.
        right = (rng.uniform(size=labels.shape) < 0.5) | (labels == PAD)
        logits[right, labels[right]] += 9
        yield labels, logits, rng.uniform(0.2, 3.0, labels.shape)


def by_hand(name, epoch, weighted=False):
    """The token mean over all batches together, in float64 and one token at a time."""
    total = count = 0.0
    for labels, logits, weights in epoch:
        for index in np.argwhere(labels != PAD):
            index = tuple(index)
            z = logits[index].astype("float64")
            weight = weights[index] if weighted else 1.0
            correct = np.argmax(z) == labels[index]
            negative_log_likelihood = np.log(np.sum(np.exp(z))) - z[labels[index]]
            total += weight * (correct if name == "accuracy" else negative_log_likelihood)
            count += weight
    return total / count if name == "accuracy" else np.exp(total / count)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("weighted", [False, True])
def test_value_is_the_token_mean_over_the_epoch(name, weighted):
    metric = METRICS[name]()
    epoch = list(make_epoch())
    for labels, logits, weights in epoch:
        metric.update_state(labels, logits, sample_weight=weights if weighted else None)
    assert float(metric.result()) == pytest.approx(by_hand(name, epoch, weighted), rel=1e-5)
    assert by_hand(name, epoch, True) != pytest.approx(by_hand(name, epoch, False), rel=1e-3)


@pytest.mark.parametrize("name", METRICS)
def test_weights_of_sequences_equal_weights_of_their_tokens(name):
    labels, logits, _ = list(make_epoch())[1]
    weights = np.array([0.0, 1.0, 0.5, 2.0, 3.0])
    of_sequences = METRICS[name]()(labels, logits, sample_weight=weights)
    of_tokens = METRICS[name]()(labels, logits, sample_weight=np.repeat(weights[:, None], 7, axis=1))
    assert float(of_sequences) == pytest.approx(float(of_tokens), rel=1e-6)


def test_nothing_seen_is_a_number():
    assert float(MaskedAccuracy().result()) == 0.0
    assert float(Perplexity().result()) == 1.0
    assert float(MaskedAccuracy()([[PAD, PAD]], np.ones((1, 2, V)))) == 0.0
    assert float(Perplexity()([[PAD, PAD]], np.ones((1, 2, V)))) == 1.0


@pytest.mark.parametrize("name", METRICS)
def test_reset_forgets(name):
    first, second = list(make_epoch(3))[:2]
    metric = METRICS[name]()
    metric.update_state(*first[:2])
    metric.reset_state()
    metric.update_state(*second[:2])
    assert float(metric.result()) == pytest.approx(by_hand(name, [second]), rel=1e-5)


def test_perplexity_of_equal_logits_is_the_vocabulary_size():
    assert float(Perplexity()([[4, 2, 0]], np.zeros((1, 3, V)))) == pytest.approx(V, rel=1e-6)


def test_perplexity_is_the_exponential_of_the_unsmoothed_loss():
    labels, logits, _ = list(make_epoch(4))[1]
    loss = float(LabelSmoothedCrossentropy()(labels, logits))
    assert float(Perplexity()(labels, logits)) == pytest.approx(np.exp(loss), rel=1e-5)


def test_half_precision_logits_do_not_lower_the_precision():
    labels, logits, _ = list(make_epoch(5))[1]
    half = ops.cast(logits, "float16")
    exact = ops.convert_to_numpy(ops.cast(half, "float32"))
    value = Perplexity()(labels, half)
    assert keras.backend.standardize_dtype(value.dtype) == "float32"
    assert float(value) == pytest.approx(by_hand("perplexity", [(labels, exact, labels)]), rel=1e-5)


@pytest.mark.parametrize("name", METRICS)
def test_config_round_trip(name):
    metric = METRICS[name](pad_token_id=4, name="mine")
    copy = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert type(copy) is METRICS[name]
    expected = {"pad_token_id": 4, "name": "mine"} | ({"from_logits": True} if name == "perplexity" else {})
    assert copy.get_config() == expected


def make_model(run_eagerly=False):
    model = keras.Sequential(
        [keras.Input((None,), dtype="int32"), keras.layers.Embedding(V, 5), keras.layers.Dense(V)]
    )
    model.compile(
        keras.optimizers.Adam(0.2),
        loss=LabelSmoothedCrossentropy(0.1),
        metrics=[MaskedAccuracy(), Perplexity()],
        run_eagerly=run_eagerly,
    )
    return model


@pytest.mark.extended
def test_fit_reports_token_means_and_monitors_know_the_direction():
    keras.utils.set_random_seed(1)
    labels = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0], [5, 3, 0, 0, 0]])
    model = make_model()
    early = [keras.callbacks.EarlyStopping(f"val_{name}", patience=50) for name in METRICS]
    history = model.fit(
        labels, labels, batch_size=2, epochs=13, validation_data=(labels, labels), verbose=0, callbacks=early
    ).history
    assert history["val_accuracy"][-1] == 1.0
    epoch = [(labels, model.predict(labels, verbose=0), labels)]
    assert history["val_perplexity"][-1] == pytest.approx(by_hand("perplexity", epoch), rel=1e-4)


def test_compiled_model_reloads_with_its_metrics(tmp_path):
    labels = np.array([[3, 1, 4, 0], [9, 2, 0, 0]])
    model = make_model(run_eagerly=True)
    model.fit(labels, labels, verbose=0)
    model.save(tmp_path / "model.keras")
    reloaded = keras.models.load_model(tmp_path / "model.keras")
    expected = model.evaluate(labels, labels, verbose=0, return_dict=True)
    assert reloaded.evaluate(labels, labels, verbose=0, return_dict=True) == pytest.approx(expected)
    assert set(expected) == {"loss", "accuracy", "perplexity"}


HYPOTHESES = ["the cat sat on the mat .", "a dog barks", "Two men are walking ."]
REFERENCES = ["the cat sat on a mat .", "a dog barks", "two men walk along the street ."]


def test_corpus_scores_are_those_of_sacrebleu():
    bleu = corpus_bleu(HYPOTHESES, REFERENCES)
    assert isinstance(bleu, CorpusScore)
    assert bleu.score == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score)
    assert "tok:13a" in bleu.signature
    chrf = corpus_chrf(HYPOTHESES, REFERENCES)
    assert chrf.score == pytest.approx(sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score)
    assert "nc:6" in chrf.signature


@pytest.mark.parametrize("tokenize", ["none", "13a"])
def test_sacrebleu_does_not_warn_of_tokenised_text_in_words_of_its_own(caplog, tokenize):
    sentences = [f"number {number} ends in a period ." for number in range(100)]
    corpus_bleu(sentences, sentences, tokenize=tokenize)
    paired_p_value(sentences, ["nothing", *sentences[1:]], sentences, "bleu", tokenize=tokenize)
    assert not caplog.records


def test_bleu_of_tokenised_lowercased_text():
    options = {"tokenize": "none", "lowercase": True}
    bleu = corpus_bleu(HYPOTHESES, REFERENCES, **options)
    assert bleu.score == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], **options).score)
    assert "tok:none" in bleu.signature
    assert "case:lc" in bleu.signature
    assert bleu.score != pytest.approx(corpus_bleu(HYPOTHESES, REFERENCES).score)


def test_exact_match_is_a_percentage():
    assert exact_match(HYPOTHESES, REFERENCES) == pytest.approx(100 / 3)


@pytest.mark.parametrize("score", [corpus_bleu, corpus_chrf, exact_match])
def test_corpora_that_do_not_fit_are_refused(score):
    with pytest.raises(
        ValueError, match=r"same length, at least 1\. Received: len\(hypotheses\)=3, len\(ref"
    ):
        score(HYPOTHESES, REFERENCES[:2])
    with pytest.raises(ValueError, match=r"len\(hypotheses\)=0, len\(references\)=0"):
        score([], [])
    with pytest.raises(
        ValueError, match=r"`references` must be a list of strings\. Received: references='a b c'"
    ):
        score(HYPOTHESES, "a b c")


@pytest.mark.parametrize("metric", METRICS.values())
def test_bad_pad_token_id_is_refused(metric):
    with pytest.raises(
        ValueError, match=r"`pad_token_id` must be an integer\. Received: pad_token_id='<pad>'"
    ):
        metric(pad_token_id="<pad>")
