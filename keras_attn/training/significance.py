"""Whether one system is better than another on the same test sentences, or only by chance: paired bootstrap tests."""

import numpy as np

from keras_attn.training.metrics import check_bleu_tokenizer, check_text_pairs

_NUM_SAMPLES = 1000
_SEED = 12345  # sacrebleu's own


def paired_p_value(baseline, hypotheses, references, metric="bleu", tokenize="13a"):
    """The p-value of a two-sided paired bootstrap test between the translations of two systems.

    It is the probability of a difference in the metric as large as that between these two, in either direction, if the
    systems are equally good and only the choice of the test sentences makes one of them look better. BLEU and chrF are
    tested by sacrebleu (`sacrebleu.significance.PairedTest`, 1,000 resamples), exact match in the same way.

    Args:
        baseline, hypotheses: Lists of strings, the translations of the two systems.
        references: List of strings, one for each translation.
        metric: `"bleu"`, `"chrf"` or `"exact_match"`.
        tokenize: sacreBLEU's tokenizer, for BLEU.

    Returns:
        Float, above 0 and at most 1.

    Raises:
        ValueError: if the lists are empty or differ in length, or there is no such metric or tokenizer.

    Example:

    ```python
    references = ["a b c d e f"] * 40
    assert paired_p_value(["x b c d e f"] * 40, references, references) < 0.05
    ```

    Reference: [Koehn, 2004](https://aclanthology.org/W04-3250/).
    """
    for name, texts in (("baseline", baseline), ("hypotheses", hypotheses)):
        check_text_pairs(name, texts, "references", references)
    if list(baseline) == list(hypotheses):
        return 1.0
    if metric == "exact_match":
        expected = np.array(references, object)
        are_right = np.equal(np.array(hypotheses, object), expected)
        were_right = np.equal(np.array(baseline, object), expected)
        return p_value_of_differences(are_right.astype("float64") - were_right)
    # Loaded on use: it is slow to import.
    from sacrebleu.metrics import BLEU, CHRF
    from sacrebleu.significance import PairedTest

    check_bleu_tokenizer(tokenize)
    references = [list(references)]
    if metric == "bleu":
        scorer = BLEU(tokenize=tokenize, force=True, references=references)
    elif metric == "chrf":
        scorer = CHRF(references=references)
    else:
        raise ValueError(f'`metric` must be "bleu", "chrf" or "exact_match". Received: metric={metric!r}.')
    systems = [("baseline", list(baseline)), ("system", list(hypotheses))]
    test = PairedTest(systems, {metric: scorer}, references=None, test_type="bs", n_samples=_NUM_SAMPLES)
    _, results = test()
    _, system_result = next(result for name, result in results.items() if name != "System")
    return float(system_result.p_value)


def p_value_of_differences(differences):
    """The p-value of the same test for a metric that is a sum over sentences.

    Args:
        differences: Floats (N,), the metric of one system minus that of the other, for each sentence.

    Example:

    ```python
    assert p_value_of_differences([1.0, -1.0, 0.0, 1.0]) > 0.05
    assert p_value_of_differences([1.0, 0.9, 1.1] * 9) < 0.05
    ```
    """
    differences = np.asarray(differences, "float64")
    if not differences.any():
        return 1.0
    count = len(differences)
    rows = np.random.default_rng(_SEED).choice(count, size=(_NUM_SAMPLES, count))
    sums = differences[rows].sum(axis=1)
    # How far the differences of resamples lie from their mean: what they would be if the real difference were 0.
    as_large = np.abs(sums - sums.mean()) >= abs(differences.sum()) * (1 - 1e-12)
    return (int(as_large.sum()) + 1) / (_NUM_SAMPLES + 1)
