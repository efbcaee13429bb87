"""What classifiers of texts and of images share: from logits to scores, and from scores to the labels of an answer."""

import tensorflow as tf

from keras_attn.checks import choose
from keras_attn.compat.keras import comes_from_activation
from keras_attn.tasks.task import as_given

_ACTIVATIONS = {"softmax": tf.nn.softmax, "sigmoid": tf.sigmoid, "linear": tf.identity}


def checked_activation(activation, multi_label, labels):
    """The name of the activation of the logits; None means what fits the labels."""
    if activation is None:
        activation = "sigmoid" if multi_label or len(labels) == 1 else "softmax"
    choose("activation", activation, _ACTIVATIONS)
    return activation


def best_first(logits, labels, activation):
    """Logits (B, L) -> all labels and their scores, both (B, L), best first.

    Raises:
        ValueError: if the model applies an activation itself: the softmax of a softmax would be scores of nothing.
    """
    if activation != "linear" and comes_from_activation(logits):
        raise ValueError(
            'The model ends in a softmax or sigmoid of its own. Leave it out, or give the task `activation="linear"`. '
            f"Received: activation={activation!r}."
        )
    scores, order = tf.math.top_k(_ACTIVATIONS[activation](logits), len(labels))
    return tf.gather(tf.constant(labels), order), scores


def label_answers(rows, multi_label, top_k, return_scores, is_single):
    """What a classifier answers: for each row its label or labels, and their scores if they are asked for.

    Args:
        rows: Iterable of dicts with `labels` and `scores`, best first, one for each text or image.
        multi_label, top_k, return_scores: As in the classifier's call.
        is_single: Boolean, whether one text or image was given rather than a list.
    """
    labels, scores = [], []
    for row in rows:
        of_row = row["scores"].tolist()
        most = top_k or (sum(score >= 0.5 for score in of_row) if multi_label else 1)
        labels.append([label.decode("utf-8") for label in row["labels"][:most]])
        scores.append(of_row[:most])
    columns = [labels, scores] if return_scores else [labels]
    if top_k is None and not multi_label:
        columns = [[value for [value] in column] for column in columns]
    return as_given(columns, is_single)


def problem_type(multi_label, activation, num_labels):
    """The field `problem_type` of transformers' config for a classifier; one label without it has a sigmoid there too."""
    if activation == "linear":
        return "regression"
    if num_labels == 1:
        return None
    return "multi_label_classification" if multi_label else "single_label_classification"
