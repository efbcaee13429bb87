"""Plots of attention scores and of learning curves, as figures."""

import contextlib
import csv
import functools
import importlib
import io
import math
import warnings
from pathlib import Path

import numpy as np

_FIGURE_FILE_TYPES = (".png", ".svg", ".pdf")
_INCHES_PER_TOKEN = 0.24
_MIN_PANEL_INCHES = 1.6
_MAX_COLUMNS = 4
_LABEL_SIZE = 9
_DOTS_PER_INCH = 150
# The largest rounding error of a score of 1 in bfloat16.
_ROUNDING = 2**-7
# The end colours of matplotlib's "Blues", for the scores 0 and 1.
_LIGHT = np.array([247, 251, 255])
_DARK = np.array([8, 48, 107])


def plot_attention(attention_scores, source_tokens, target_tokens, title=None, path=None):
    """Draws how much each target token attends to each source token.

    The colours run from 0 to 1 in every picture, so two pictures can be compared. No `pyplot` state is read
    or changed, so this is safe in threads and servers. A notebook shows the figure as the last expression of a cell.

    Args:
        attention_scores: Array or tensor of probabilities, of shape `(T, S)` for one map, or `(N, T, S)` for
            one panel per head.
        source_tokens: The S labels of the keys, drawn above the map.
        target_tokens: The T labels of the queries, drawn on its left.
        title: Text above the figure.
        path: Where to save the figure, as `.png`, `.svg` or `.pdf`. Missing folders are created.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If the shape does not match the labels, a score is not a probability, or the file type is
            unknown.
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
    scores, source_tokens, target_tokens = _check_maps(attention_scores, source_tokens, target_tokens)
    path = _check_path(path, _FIGURE_FILE_TYPES)
    columns = min(len(scores), _MAX_COLUMNS)
    rows = math.ceil(len(scores) / columns)
    size = _figure_size(rows, columns, source_tokens, target_tokens)
    figure = _new_figure(size)
    panels = [figure.add_subplot(rows, columns, head + 1) for head in range(len(scores))]
    _draw_heads(figure, panels, scores)
    for head, panel in enumerate(panels):
        # Only the outer panels have labels, because all panels of a figure share their tokens.
        panel.tick_params(labelbottom=False, labeltop=head < columns, labelleft=head % columns == 0)
        _label_axes(panel, source_tokens, target_tokens)
    if title is not None:
        figure.suptitle(title, parse_math=False)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=_DOTS_PER_INCH)
    return figure


def attention_grid(attention_scores, scale=8):
    """Draws the maps of all layers and heads as one picture: a row per layer, a column per head.

    High scores are dark. There are no labels: the picture is meant for a series of pictures of one sentence,
    such as TensorBoard shows during training.

    Args:
        attention_scores: Floats (L, N, T, S) from 0 to 1: layer, head, target token, source token.
        scale: Integer, the width of a score in pixels.

    Returns:
        uint8 array (height, width, 3).

    Raises:
        ValueError: if the scores are of another rank, or not from 0 to 1.

    Example:

    ```python
    import numpy as np
    from keras_attn import plots

    picture = plots.attention_grid(np.full((2, 4, 7, 5), 0.2))
    ```
    """
    scores = np.asarray(attention_scores, dtype="float32")
    if scores.ndim != 4 or scores.size == 0:
        raise ValueError(
            "`attention_scores` must have shape (L, N, T, S), none of them 0. "
            f"Received: attention_scores.shape={scores.shape}."
        )
    if not (scores.min() >= -_ROUNDING and scores.max() <= 1 + _ROUNDING):
        raise ValueError(
            "`attention_scores` must be numbers from 0 to 1. "
            f"Received: numbers from {scores.min():.3g} to {scores.max():.3g}."
        )
    shares = np.clip(scores, 0, 1)[..., np.newaxis]
    colours = np.rint(_LIGHT + shares * (_DARK - _LIGHT)).astype("uint8")  # (L, N, T, S, 3)
    colours = colours.repeat(scale, axis=2).repeat(scale, axis=3)
    gap = scale // 2
    colours = np.pad(colours, [(0, 0), (0, 0), (gap, gap), (gap, gap), (0, 0)], constant_values=255)
    layers, heads, height, width, _ = colours.shape
    return colours.transpose(0, 2, 1, 3, 4).reshape(layers * height, heads * width, 3)


def figure_pixels(figure, width=480):
    """Draws a figure as an array, for example for TensorBoard.

    Args:
        figure: `matplotlib.figure.Figure`, such as `plot_attention` returns.
        width: Integer, the width of the picture in pixels. Its height follows from the figure.

    Returns:
        uint8 array (height, width, 3).

    Raises:
        ImportError: If matplotlib is not installed.

    Example:

    ```
    import numpy as np
    from keras_attn.plots import figure_pixels, plot_attention

    figure = plot_attention(np.array([[0.9, 0.1], [0.2, 0.8]]), ["der", "Hund"], ["the", "dog"])
    assert figure_pixels(figure).shape[1:] == (480, 3)
    ```
    """
    canvas_class = _import("matplotlib.backends.backend_agg").FigureCanvasAgg
    # Rounding up by less than a pixel: matplotlib cuts what is left of one.
    figure.set_dpi((width + 0.01) / figure.get_size_inches()[0])
    canvas = canvas_class(figure)
    with _missing_glyphs_as_boxes():
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def plot_learning_curves(files, column="val_bleu", title=None, path=None):
    """Draws a column of the `history.csv` of several runs over their epochs.

    A notebook shows the figure as the last expression of a cell.

    Args:
        files: Dict from the name of a run to the path of its `history.csv`.
        column: String, the column that is drawn.
        title: Text above the figure.
        path: Where to save the figure, as `.png`, `.svg` or `.pdf`. Missing folders are created.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If a file has no such column, or the file type is unknown.
        ImportError: If matplotlib is not installed.

    Example:

    ```
    import pathlib
    import tempfile
    from keras_attn.plots import plot_learning_curves

    file = pathlib.Path(tempfile.mkdtemp()) / "history.csv"
    file.write_text("epoch,val_bleu\\n1,12.5\\n2,21.0\\n", encoding="utf-8")
    figure = plot_learning_curves({"first try": file})
    ```
    """
    path = _check_path(path, _FIGURE_FILE_TYPES)
    curves = {name: _curve(file, column) for name, file in files.items()}
    figure = _new_figure((7, 4))
    panel = figure.subplots()
    for name, (epochs, values) in curves.items():
        panel.plot(epochs, values, label=name, linewidth=1.5)
    panel.set_xlabel("epoch", fontsize=_LABEL_SIZE)
    panel.set_ylabel(column, fontsize=_LABEL_SIZE)
    panel.tick_params(labelsize=_LABEL_SIZE)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=_LABEL_SIZE, frameon=False)
    if title:
        figure.suptitle(title)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=_DOTS_PER_INCH)
    return figure


def _new_figure(size):
    """A figure of this size in inches, which a notebook shows where pyplot's backend was never imported, too."""
    figure = _import("matplotlib.figure").Figure(figsize=size, layout="constrained")
    # IPython asks an object for its picture by this name, unless pyplot's backend draws figures there.
    figure._repr_png_ = functools.partial(_png, figure)
    return figure


def _png(figure):
    """The bytes of the picture that a notebook shows, as pyplot's own backend for notebooks draws it."""
    file = io.BytesIO()
    with _missing_glyphs_as_boxes():
        figure.savefig(file, format="png", dpi="figure", bbox_inches="tight")
    return file.getvalue()


@contextlib.contextmanager
def _missing_glyphs_as_boxes():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def _curve(file, column):
    with open(file, encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    if not rows or column not in rows[0]:
        known = ", ".join(rows[0]) if rows else "none"
        raise ValueError(f"{file} has no column {column!r}. It has: {known}.")
    return [float(row["epoch"]) for row in rows], [float(row[column]) for row in rows]


def _import(module):
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError('Figures need matplotlib. Install it: pip install "keras_attn[plots]"') from error


def _check_maps(attention_scores, source_tokens, target_tokens):
    """Returns the scores as float32 of shape (N, T, S) and the labels as printable strings, or raises."""
    source_tokens = [printable(token) for token in source_tokens]
    target_tokens = [printable(token) for token in target_tokens]
    scores = _check_scores(attention_scores, len(target_tokens), len(source_tokens))
    return scores, source_tokens, target_tokens


def _check_scores(attention_scores, target_length, source_length):
    scores = np.asarray(attention_scores, dtype="float32")
    if scores.ndim not in (2, 3) or scores.shape[-2:] != (target_length, source_length) or scores.size == 0:
        raise ValueError(
            "`attention_scores` must have shape (T, S) or (N, T, S), with one row for each of the T target tokens "
            f"and one column for each of the S source tokens. Received: shape={scores.shape}, T={target_length}, "
            f"S={source_length}."
        )
    # Written so that NaN, which compares as false, is rejected too.
    if not np.all((scores >= 0) & (scores <= 1 + _ROUNDING)):
        raise ValueError(
            "`attention_scores` must be probabilities in [0, 1], taken after the softmax and without dropout. "
            f"Received: values from {scores.min()} to {scores.max()}."
        )
    return scores[np.newaxis] if scores.ndim == 2 else scores


def _check_path(path, file_types):
    if path is None:
        return None
    path = Path(path)
    if path.suffix.lower() not in file_types:
        raise ValueError(f"`path` must end in one of {file_types}. Received: path={str(path)!r}.")
    return path


def _figure_size(rows, columns, source_tokens, target_tokens):
    """Width and height in inches: a fixed size for each token, plus space for the labels."""
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
    if _need_room(source_tokens):
        for label in panel.get_xticklabels():
            label.set(rotation=50, ha="left", va="baseline", rotation_mode="anchor")


def _need_room(tokens):
    """Whether horizontal labels would touch. If so, they are slanted or vertical."""
    return max(len(token) for token in tokens) > 2


def printable(token):
    """Spells out control characters, which no font can draw."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(token))
