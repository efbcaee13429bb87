"""What classifiers share: labels, scores of logits, the labels of an answer, checkpoints."""

import pathlib

import tensorflow as tf

from keras_attn.checks import choose
from keras_attn.compat.keras import comes_from_activation
from keras_attn.files import read_json, replaced_folder
from keras_attn.huggingface import labels as labels_of_config
from keras_attn.huggingface import save_model
from keras_attn.tasks.task import as_given

_ACTIVATIONS = {"softmax": tf.nn.softmax, "sigmoid": tf.sigmoid, "linear": tf.identity}


def check_labels(labels, num_logits):
    """The labels as a tuple.

    Raises:
        ValueError: unless they are different strings, one for each logit.
    """
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"`labels` must be a list of strings. Received: labels={labels!r}.")
    labels = tuple(labels)
    if len(set(labels)) != len(labels) or len(labels) != num_logits:
        raise ValueError(
            f"`labels` must be {num_logits} different strings, one for each logit. Received: {len(labels)}, "
            f"{list(labels)!r:.200}."
        )
    return labels


def different_labels(labels):
    """Labels of which repeated ones have their number, as ImageNet's second crane: "crane (517)"."""
    first = {}
    for number, label in enumerate(labels):
        first.setdefault(label, number)
    return [label if first[label] == number else f"{label} ({number})" for number, label in enumerate(labels)]


def checkpoint_labels(folder):
    """The arguments `labels`, `multi_label` and `activation` of a classifier, as a checkpoint's config.json has them."""
    config = read_json(folder / "config.json")
    labels = labels_of_config(config)
    return {
        "labels": different_labels(labels.names),
        "multi_label": labels.is_multi_label,
        "activation": "linear" if config.get("problem_type") == "regression" else None,
    }


def check_no_new_options(**options):
    """Refuses options of a new head where the head is the checkpoint's."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(
                f"`{name}` is for new `labels`; a checkpoint says it itself. Received: {name}={value!r}."
            )


def new_labels(labels):
    """The labels of a new head as a list; that they are different is checked with the head."""
    if isinstance(labels, str):
        raise ValueError(f"`labels` must be a list of strings. Received: labels={labels!r}.")
    return list(labels)


def check_activation(activation, multi_label, labels):
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


def joined_labels(labels, is_chosen):
    """In a graph: the labels (B, L) that are chosen, joined by commas; strings (B,)."""
    chosen = tf.where(is_chosen, tf.strings.join([",", labels]), "")
    return tf.strings.regex_replace(tf.strings.reduce_join(chosen, axis=1), "^,", "")


def label_answers(rows, multi_label, top_k, return_scores, single):
    """What a classifier answers: for each row its label or labels, and their scores if they are asked for.

    Args:
        rows: Iterable of dicts with `labels` and `scores`, best first, one for each text or image.
        multi_label, top_k, return_scores: As in the classifier's call.
        single: Boolean, whether one text or image was given rather than a list.
    """
    labels = []
    scores = []
    for row in rows:
        row_scores = row["scores"].tolist()
        num_labels = 1
        if top_k is not None:
            num_labels = top_k
        elif multi_label:
            num_labels = sum(score >= 0.5 for score in row_scores)
        labels.append([label.decode("utf-8") for label in row["labels"][:num_labels]])
        scores.append(row_scores[:num_labels])
    columns = [labels, scores] if return_scores else [labels]
    if top_k is None and not multi_label:
        columns = [[value for [value] in column] for column in columns]
    return as_given(columns, single)


def save_classifier(classifier, folder, model_type, tokenizer=None, write_more=None):
    """Writes a classifier as transformers has it; returns the `pathlib.Path` of the folder.

    Args:
        classifier: A task with `labels`, `multi_label` and `activation`.
        folder: Path of the folder to write; it replaces an older checkpoint there.
        model_type, tokenizer: As in `keras_attn.huggingface.save_model`.
        write_more: Function of the folder that writes further files; or None.
    """
    names = {str(number): label for number, label in enumerate(classifier.labels)}
    with replaced_folder(folder, "config.json", "checkpoint") as built:
        save_model(
            classifier.model,
            built,
            model_type,
            tokenizer,
            id2label=names,
            problem_type=_problem_type(classifier),
        )
        if write_more is not None:
            write_more(built)
    return pathlib.Path(folder)


def _problem_type(classifier):
    """The field `problem_type` of transformers' config; one label without it has a sigmoid there too."""
    if classifier.activation == "linear":
        return "regression"
    if len(classifier.labels) == 1:
        return None
    return "multi_label_classification" if classifier.multi_label else "single_label_classification"
