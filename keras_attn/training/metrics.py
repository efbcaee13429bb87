"""Metrics: means over tokens that ignore padding, and corpus scores of translations."""

import dataclasses

import keras
from keras import ops

from keras_attn.training.losses import (
    at_least_float32,
    checked_token_id,
    labels_and_weights,
    logits_of,
    token_negative_log_likelihood,
)


class _TokenMean(keras.metrics.Mean):
    """The mean of `token_values` over every real token since the last reset."""

    def __init__(self, pad_token_id, name):
        super().__init__(name=name, dtype=at_least_float32())
        self.pad_token_id = checked_token_id(pad_token_id)

    def token_values(self, labels, y_pred):
        raise NotImplementedError

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels, weights = labels_and_weights(y_true, y_pred, sample_weight, self.pad_token_id)
        values = self.token_values(labels, y_pred)
        # Flattened, because Keras' Mean first averages each row over its length: a token in a batch with more
        # padding would have less weight.
        super().update_state(ops.reshape(values, (-1,)), ops.reshape(weights, (-1,)))

    def get_config(self):
        return {"pad_token_id": self.pad_token_id, "name": self.name}


@keras.saving.register_keras_serializable(package="keras_attn")
class MaskedAccuracy(_TokenMean):
    """The share of real tokens whose label has the largest logit.

    Keras' `SparseCategoricalAccuracy` counts padding, which is easy to predict and raises the value. Here
    every real token of an epoch has the same weight, and padding has none. An implicit Keras mask on the
    logits is also applied.

    Args:
        pad_token_id: Integer, the label that marks padding.
        name: String, the name of the metric.

    Call arguments:
        y_true: Labels, integers of shape `(B, T)`.
        y_pred: Logits or probabilities, floats of shape `(B, T, V)`.
        sample_weight: Optional weights of shape `(B,)` or `(B, T)`.

    Returns:
        Scalar float32 tensor between 0 and 1; 0 before the first token.

    Raises:
        ValueError: If `pad_token_id` is not an integer, or the shapes do not fit.

    Example:

    ```python
    accuracy = MaskedAccuracy()
    logits = keras.ops.one_hot([[4, 3, 0]], 7)
    value = accuracy([[4, 2, 0]], logits)  # 0.5: one of two tokens, the pad is left out
    ```
    """

    # Read by Keras where a callback has mode="auto".
    _direction = "up"

    def __init__(self, pad_token_id=0, name="accuracy"):
        super().__init__(pad_token_id, name)

    def token_values(self, labels, y_pred):
        return ops.equal(ops.cast(ops.argmax(y_pred, axis=-1), labels.dtype), labels)


@keras.saving.register_keras_serializable(package="keras_attn")
class Perplexity(_TokenMean):
    """The exponential of the mean negative log-likelihood of the real tokens, without label smoothing.

    Unlike `exp(loss)`, it has no label smoothing, and the mean is taken over all tokens of an epoch before
    the exponential, not batch by batch. Together with `LabelSmoothedCrossentropy` it costs no second softmax:
    both build the same graph nodes. An implicit Keras mask on the logits is also applied.

    Args:
        pad_token_id: Integer, the label that marks padding.
        name: String, the name of the metric.
        from_logits: Boolean, False if the model ends with a softmax, as in `LabelSmoothedCrossentropy`.

    Call arguments: as in `LabelSmoothedCrossentropy`.

    Returns:
        Scalar float32 tensor, at least 1; NaN once a label was outside the vocabulary.

    Raises:
        ValueError: If `pad_token_id` is not an integer, the shapes do not fit, or `y_pred` holds probabilities in
            place of logits.

    Example:

    ```python
    perplexity = Perplexity()
    value = perplexity([[4, 2, 0]], keras.ops.zeros((1, 3, 7)))  # 7: every token is as likely
    ```

    Reference: [Jelinek et al., 1977](https://doi.org/10.1121/1.2016299).
    """

    # Read by Keras where a callback has mode="auto".
    _direction = "down"

    def __init__(self, pad_token_id=0, name="perplexity", *, from_logits=True):
        super().__init__(pad_token_id, name)
        self.from_logits = bool(from_logits)

    def token_values(self, labels, y_pred):
        return token_negative_log_likelihood(labels, logits_of(y_pred, self.from_logits), self.pad_token_id)

    def get_config(self):
        return {**super().get_config(), "from_logits": self.from_logits}

    def result(self):
        return ops.exp(super().result())


@dataclasses.dataclass(frozen=True)
class CorpusScore:
    """A score of a corpus and how it was computed.

    Attributes:
        score: Float, in percent.
        signature: String, sacrebleu's description of every choice behind the score.
    """

    score: float
    signature: str


def corpus_bleu(hypotheses, references, *, tokenize="13a", lowercase=False):
    """BLEU of translations against one reference each, as sacrebleu computes it.

    Args:
        hypotheses: List of strings, detokenised.
        references: List of strings, one for each hypothesis.
        tokenize: String, sacrebleu's tokenizer. `"none"` for text that is tokenised already.
        lowercase: Boolean, whether case is ignored.

    Returns:
        A `CorpusScore`.

    Raises:
        ValueError: If the lists are empty or differ in length, or there is no such tokenizer.

    Example:

    ```python
    corpus_bleu(["the cat sat on the mat"], ["the cat sat on a mat"]).score
    ```

    Reference: [Post, 2018](https://arxiv.org/abs/1804.08771).
    """
    check_bleu_tokenizer(tokenize)
    # Loaded on use: it is slow to import, and training without a corpus score does not need it.
    from sacrebleu.metrics import BLEU

    # Without `force`, sacrebleu logs lines about text that looks tokenised, which name arguments of its own.
    bleu = BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    return _corpus_score(bleu, hypotheses, references)


def check_bleu_tokenizer(name):
    """Raises ValueError unless sacrebleu has a tokenizer of this name."""
    from sacrebleu.metrics import BLEU

    if name not in BLEU.TOKENIZERS:
        raise ValueError(
            f"The BLEU tokenizer must be one of {', '.join(sorted(BLEU.TOKENIZERS))}. Received: {name!r}."
        )


def corpus_chrf(hypotheses, references):
    """chrF of translations against one reference each, as sacrebleu computes it.

    Args, result and errors: as in `corpus_bleu`.

    Example:

    ```python
    corpus_chrf(["the cat sat on the mat"], ["the cat sat on a mat"]).score
    ```

    Reference: [Popović, 2015](https://aclanthology.org/W15-3049/).
    """
    # Loaded on use, as for BLEU.
    from sacrebleu.metrics import CHRF

    return _corpus_score(CHRF(), hypotheses, references)


def exact_match(hypotheses, references):
    """The percentage of hypotheses that equal their reference, character by character.

    Args:
        hypotheses: List of strings.
        references: List of strings, one for each hypothesis.

    Returns:
        Float between 0 and 100.

    Raises:
        ValueError: If the lists are empty or differ in length.

    Example:

    ```python
    exact_match(["2024-02-29", "1999-01-01"], ["2024-02-29", "1999-01-10"])  # 50.0
    ```
    """
    check_text_pairs("hypotheses", hypotheses, "references", references)
    equal = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return 100.0 * equal / len(hypotheses)


def check_text_pairs(name, texts, other_name, others):
    """Raises ValueError unless both are lists of strings of one length, at least 1."""
    for argument, value in ((name, texts), (other_name, others)):
        if isinstance(value, str) or not all(isinstance(text, str) for text in value):
            raise ValueError(f"`{argument}` must be a list of strings. Received: {argument}={value!r:.100}.")
    if len(texts) != len(others) or not len(texts):
        raise ValueError(
            f"`{name}` and `{other_name}` must have the same length, at least 1. "
            f"Received: len({name})={len(texts)}, len({other_name})={len(others)}."
        )


def _corpus_score(metric, hypotheses, references):
    check_text_pairs("hypotheses", hypotheses, "references", references)
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return CorpusScore(score=score, signature=str(metric.get_signature()))
