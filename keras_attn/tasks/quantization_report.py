"""What quantisation changes in the answers to the examples of an export."""

import numpy as np

from keras_attn.models import quantization_of
from keras_attn.tasks.batches import untold_cuts

# Signatures whose best answers have scores.
_N_BEST = ("translate_n_best", "generate_n_best")


def answers_before(task, examples):
    """A task's answers to the examples before it is quantised, a dict for JSON: `before`, and `scores_before` if known."""
    if task is None or quantization_of(task.model) is not None:
        return {}
    if hasattr(task, "search_options"):
        with untold_cuts():
            answers, scores = task(examples, return_scores=True)
        return {"examples": examples, "before": answers, "scores_before": scores}
    shown = [text if isinstance(text, str) else f"{len(text)} bytes" for text in examples]
    return {"examples": shown, "before": np.asarray(task.default_answers(examples)).tolist()}


def answers_after(bundle):
    """The answers of the graph that is exported, a dict for JSON: `after`, and `scores_after` if a signature has them."""
    answers = bundle.ask("serving_default", bundle.inputs("serving_default", bundle.examples))["outputs"]
    if answers.dtype == object:
        answers = np.array([text.decode("utf-8", "replace") for text in answers.ravel()]).reshape(
            answers.shape
        )
    report = {"after": answers.tolist()}
    for name in _N_BEST:
        if name in bundle.signatures.names:
            scores = bundle.ask(name, bundle.inputs(name, bundle.examples))["scores"]
            report["scores_after"] = scores[:, 0].tolist()
    return report
