"""Pictures of attention: arrays in, figure out."""

import importlib
import math
from pathlib import Path

import numpy as np

_FILE_TYPES = (".png", ".svg", ".pdf")
_INCHES_PER_TOKEN = 0.24
_MIN_PANEL_INCHES = 1.6
_MAX_COLUMNS = 4
_LABEL_SIZE = 9
_DOTS_PER_INCH = 150
# bfloat16 rounds a score of one by up to this much.
_ROUNDING = 2**-7


def plot_attention(attention_scores, source_tokens, target_tokens, title=None, path=None):
    """Draws how much each target token attends to each source token.

    The colours run from 0 to 1 in every picture, so two pictures can be compared. The figure belongs to the
    caller alone: no `pyplot` state is read or changed, so this is safe in threads and servers.

    Args:
        attention_scores: Array or tensor of probabilities, of shape `(T, S)` for one map, or `(N, T, S)` for one
            panel per head.
        source_tokens: The S labels of the keys, drawn above the map.
        target_tokens: The T labels of the queries, drawn on its left.
        title: Text above the figure.
        path: Where to save the figure, as `.png`, `.svg` or `.pdf`. Missing folders are created.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If the shape does not match the labels, a score is no probability, or the file type is unknown.
        ImportError: If matplotlib is not installed.

    Example:

    ```
    import numpy as np
    from keras_attn.plots import plot_attention

    scores = np.array([[0.9, 0.1, 0.0], [0.2, 0.1, 0.7]])
    figure = plot_attention(scores, ["der", "müde", "Hund"], ["the", "dog"])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["the", "dog"]
    ```
    """
    source_tokens = [_printable(token) for token in source_tokens]
    target_tokens = [_printable(token) for token in target_tokens]
    scores = _check_scores(attention_scores, len(target_tokens), len(source_tokens))
    path = _check_path(path)
    columns = min(len(scores), _MAX_COLUMNS)
    rows = math.ceil(len(scores) / columns)
    size = _figure_size(rows, columns, source_tokens, target_tokens)
    figure = _import_figure()(figsize=size, layout="constrained")
    panels = [figure.add_subplot(rows, columns, head + 1) for head in range(len(scores))]
    _draw_heads(figure, panels, scores)
    for head, panel in enumerate(panels):
        # The outer panels alone have labels: all panels of a figure share their tokens.
        panel.tick_params(labelbottom=False, labeltop=head < columns, labelleft=head % columns == 0)
        _label_axes(panel, source_tokens, target_tokens)
    if title is not None:
        figure.suptitle(title, parse_math=False)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=_DOTS_PER_INCH)
    return figure


def _import_figure():
    try:
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise ImportError(
            '`plot_attention` needs matplotlib. Install it: pip install "keras_attn[plots]"'
        ) from error


def _check_scores(attention_scores, target_length, source_length):
    """Returns the scores as float32 of shape (N, T, S), or raises."""
    scores = np.asarray(attention_scores, dtype="float32")
    if scores.ndim not in (2, 3) or scores.shape[-2:] != (target_length, source_length) or scores.size == 0:
        raise ValueError(
            "`attention_scores` must have shape (T, S) or (N, T, S), with one row for each of the T target tokens "
            f"and one column for each of the S source tokens. Received: shape={scores.shape}, T={target_length}, "
            f"S={source_length}."
        )
    # Written so that NaN, which compares as false, is refused as well.
    if not np.all((scores >= 0) & (scores <= 1 + _ROUNDING)):
        raise ValueError(
            "`attention_scores` must be probabilities in [0, 1], taken after the softmax and without dropout. "
            f"Received: values from {scores.min()} to {scores.max()}."
        )
    return scores[np.newaxis] if scores.ndim == 2 else scores


def _check_path(path):
    if path is None:
        return None
    path = Path(path)
    if path.suffix.lower() not in _FILE_TYPES:
        raise ValueError(f"`path` must end in one of {_FILE_TYPES}. Received: path={str(path)!r}.")
    return path


def _figure_size(rows, columns, source_tokens, target_tokens):
    """Gives every token the same room however many there are, and the labels theirs. In inches."""
    label_width = 0.08 * max(len(token) for token in target_tokens)
    label_height = 0.07 * max(len(token) for token in source_tokens)
    panel_width = max(_MIN_PANEL_INCHES, _INCHES_PER_TOKEN * len(source_tokens))
    panel_height = max(_MIN_PANEL_INCHES, _INCHES_PER_TOKEN * len(target_tokens))
    return columns * panel_width + label_width + 1.3, rows * (panel_height + 0.3) + label_height + 0.8


def _draw_heads(figure, panels, scores):
    for head, panel in enumerate(panels):
        image = _draw_map(panel, scores[head])
        if len(scores) > 1:
            panel.set_xlabel(f"head {head}", fontsize=_LABEL_SIZE)
    bar = figure.colorbar(image, ax=panels, pad=0.02, aspect=30)
    bar.set_label("attention score", fontsize=_LABEL_SIZE)
    bar.ax.tick_params(labelsize=_LABEL_SIZE, color="0.8")
    bar.outline.set_color("0.8")


def _draw_map(panel, scores):
    image = panel.imshow(scores, vmin=0, vmax=1, cmap="Blues", aspect="auto", interpolation="nearest")
    target_length, source_length = scores.shape
    # White lines between the cells let the eye follow a row to its label.
    panel.set_xticks(np.arange(source_length + 1) - 0.5, minor=True)
    panel.set_yticks(np.arange(target_length + 1) - 0.5, minor=True)
    panel.grid(which="minor", color="white", linewidth=1)
    panel.tick_params(which="both", length=0)
    panel.spines[:].set_color("0.8")
    return image


def _label_axes(panel, source_tokens, target_tokens):
    style = {"fontsize": _LABEL_SIZE, "parse_math": False}
    panel.set_xticks(range(len(source_tokens)), source_tokens, **style)
    panel.set_yticks(range(len(target_tokens)), target_tokens, **style)
    # Single characters stand upright side by side; words need the slant.
    if max(len(token) for token in source_tokens) > 2:
        for label in panel.get_xticklabels():
            label.set(rotation=50, ha="left", va="baseline", rotation_mode="anchor")


def _printable(token):
    """Spells out control characters, which no font can draw."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(token))
