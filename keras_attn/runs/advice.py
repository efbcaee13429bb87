"""What to say after a run whose translations are hardly related to the references."""

import numpy as np

# A score near nothing: chrF of unrelated texts in one language, and few words, is up to 35.
_LOW = {"bleu": 10.0, "chrf": 40.0, "exact_match": 5.0}
FEW_PAIRS = 1000
FEW_UPDATES = 1000
_LOW_CORRELATION = 0.2
_ENOUGH_FOR_CORRELATION = 50


def advice_on_a_low_score(evaluation, pairs, scores, num_updates):
    """The likely causes of a low score, as a text; an empty one if the score is not low.

    Args:
        evaluation: `Evaluation` on the validation data.
        pairs: List of `TextPairs` that the model was trained on.
        scores: List of floats, the metric of validation after each epoch, higher being better.
        num_updates: Integer, the updates of the training.
    """
    if any(getattr(evaluation, name) >= low for name, low in _LOW.items()):
        return ""
    causes = []
    num_pairs = sum(map(len, pairs))
    if num_pairs < FEW_PAIRS:
        causes.append(f"{num_pairs:,} training pairs are few: a translator learns from thousands.")
    if not _lengths_agree(pairs):
        causes.append(
            "The lengths of sources and targets do not go together. Check that line i of one file is the translation "
            "of line i of the other."
        )
    if num_updates < FEW_UPDATES:
        causes.append(f"{num_updates:,} updates are few. Give more epochs (--epochs) or time (--minutes).")
    elif len(scores) > 1 and max(scores) == scores[-1]:
        causes.append("The score was still rising when training ended. Give more epochs (--epochs).")
    if not causes:
        causes.append(
            "The model may have learned its pairs by heart: compare `loss` and the scores in history.csv. More pairs "
            "help, and so may a smaller model or vocabulary."
        )
    return "\n".join(
        [
            f"These translations are hardly related to the references (BLEU {evaluation.bleu:.1f}). Likely causes:"
        ]
        + [f"  - {cause}" for cause in causes]
    )


def _lengths_agree(pairs):
    """Whether longer sources have longer targets, or there are too few pairs to tell."""
    lengths = [
        (len(source), len(target))
        for part in pairs
        for source, target in zip(part.sources[:1000], part.targets[:1000])
    ]
    if len(lengths) < _ENOUGH_FOR_CORRELATION or np.ptp(lengths, axis=0).min() == 0:
        return True
    return np.corrcoef(np.array(lengths).T)[0, 1] >= _LOW_CORRELATION
