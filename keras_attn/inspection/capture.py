import collections
import contextlib
import numbers

import keras
import numpy as np

from keras_attn.inspection.attention_layers import attention_layers, select_layers
from keras_attn.inspection.backends import as_array
from keras_attn.inspection.watching import HOW_TO_CALL, Watcher, watching


class AttentionMaps(collections.abc.Mapping):
    """The attention scores of the calls of a model's layers, as NumPy arrays by the layers' paths.

    A mapping in the order of the calls. The first call of a layer has the layer's path as its key; further calls have
    `path#2`, `path#3` and so on. `capture_attention` makes it.

    Args:
        calls: Pairs of a path and scores (B, N, T, S), in the order of the calls.

    Example:

    ```python
    model = keras_attn.models.EncoderTransformer.from_sizes(100, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    with keras_attn.capture_attention(model) as maps:
        model(np.array([[5, 6, 7, 3]]))
        model(np.array([[5, 9, 3]]))
    path = maps.paths[0]
    first, second = maps.calls(path)  # (1, 2, 4, 4) and (1, 2, 3, 3)
    ```
    """

    def __init__(self, calls=()):
        self._calls = {}  # by path, a list
        self._scores = {}  # by key
        for path, scores in calls:
            self.add(path, scores)

    def __getitem__(self, key):
        return self._scores[key]

    def __iter__(self):
        return iter(self._scores)

    def __len__(self):
        return len(self._scores)

    def __repr__(self):
        shapes = ", ".join(f"{key!r}: {scores.shape}" for key, scores in self.items())
        return f"{type(self).__name__}({{{shapes}}})"

    @property
    def paths(self):
        """The paths of the layers that were called, a list of strings."""
        return list(self._calls)

    def calls(self, path):
        """The scores of every call of one layer, a list of arrays (B, N, T, S) in the order of the calls."""
        return list(self._calls[path])

    def add(self, path, scores):
        """Adds the scores (B, N, T, S) of one more call of a layer."""
        calls = self._calls.setdefault(path, [])
        calls.append(scores)
        key = path if len(calls) == 1 else f"{path}#{len(calls)}"
        self._scores[key] = scores


@contextlib.contextmanager
def capture_attention(model, layers=None, rows=None, dtype="float16"):
    """Captures the attention scores of any Keras model while it is called, without a change to its code or outputs.

    The scores are those that the layers would return for `return_attention_scores=True`, before dropout. They are
    captured of keras_attn's attention layers, of `keras.layers.MultiHeadAttention`, `GroupQueryAttention` and their
    subclasses, and of every other layer whose `call` takes `return_attention_scores`. The model may be functional,
    subclassed or nested; layers without heads have one.

    Only eager calls are seen, of the thread that opened the `with` block. Blocks may be nested. Each layer's scores are computed
    when it is called, one layer at a time, and what is kept of them is copied to NumPy.

    Args:
        model: `keras.Model` or layer, which must be built.
        layers: What to capture, to save memory: a path, a regular expression that is found in a path, a layer, or a list
            of them. Defaults to all attention layers.
        rows: Integer, slice or list of integers, the rows of each batch to keep. Defaults to all.
        dtype: Of the maps, a float's. float16 needs half the memory of float32, and rounds a score by at most 2.5e-4.

    Returns:
        A context manager that gives an `AttentionMaps`: arrays (B, N, T, S) by layer path. Windows of
        `WindowAttention` are (B, W, N, T, S). Several attended axes are flattened into one.

    Raises:
        ValueError: if the model is not built, has no such layers, `rows` does not fit the batch, or `dtype` is not a float's.
        RuntimeError: if the model runs compiled, or no layer was called in the block.

    Example:

    ```python
    model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    inputs = {"encoder_token_ids": np.array([[5, 6, 7, 3]]), "decoder_token_ids": np.array([[2, 8, 9]])}
    with keras_attn.capture_attention(model, layers="cross_attention") as maps:
        model(inputs)
    cross_attention = list(maps.values())  # of each decoder layer, (1, 4, 3, 4)
    ```
    """
    dtype = _float_dtype(dtype)
    maps = AttentionMaps()

    def see(path, call):
        maps.add(path, _selected_rows(call.scores, rows).astype(dtype))

    watched = select_layers(layers_to_watch(model), layers)
    with watching(Watcher(watched, see), model):
        yield maps
    if not maps:
        raise RuntimeError(
            "No attention layer was called in the `with` block, in the thread that opened it. " + HOW_TO_CALL
        )


def _float_dtype(dtype):
    """The NumPy dtype. Integers are refused: every score below 1 would become 0."""
    try:
        # NumPy takes None for float64, and does not count bfloat16 among its floats.
        if dtype is not None and np.dtype(dtype).name.startswith(("float", "bfloat")):
            return np.dtype(dtype)
    except TypeError:  # not a dtype
        pass
    raise ValueError(f"`dtype` must be a float dtype, such as 'float32'. Received: dtype={dtype!r}.")


def layers_to_watch(model):
    """The attention layers of a model, by path.

    Raises:
        ValueError: if it is not a model, not built, or without attention layers.
    """
    if not isinstance(model, keras.layers.Layer):
        raise ValueError(
            "`model` must be a `keras.Model` or a layer; a task of keras_attn holds it as `task.model`. "
            f"Received: {model!r}."
        )
    if not model.built:
        raise ValueError(
            f"The model must be built, so that its layers exist: call it once before. Received: {model.name!r}."
        )
    layers = attention_layers(model)
    if not layers:
        raise ValueError(
            "The model has no attention layer that can be watched: none of keras_attn, no "
            "`keras.layers.MultiHeadAttention` or `GroupQueryAttention`, and no other layer whose `call` takes "
            f"`return_attention_scores`. Received: {model.name!r}."
        )
    return layers


def _selected_rows(scores, rows):
    """The rows of scores as an array, as the argument `rows` of `capture_attention` says."""
    scores = as_array(scores)
    if rows is None:
        return scores
    if isinstance(rows, numbers.Integral):
        rows = [rows]
    try:
        return scores[rows]
    except IndexError as error:
        raise ValueError(
            f"`rows` must be rows of the batch, which has {len(scores)}. Received: rows={rows}."
        ) from error


@contextlib.contextmanager
def traced_attention(model, is_seen):
    """The attention scores of a model while a graph of it is made, as tensors of that graph.

    Args:
        model: As in `capture_attention`.
        is_seen: Function of the output of a layer's call to whether its scores may be read: those of a call in the body of
            a loop cannot be read outside.

    Returns:
        A context manager that gives a list of pairs (path, scores), in the order of the calls.

    Raises:
        ValueError: if the model is not built or has no such layers, or a layer was called where no call could be seen.
    """
    calls = []
    unseen_paths = {}  # in the order of the calls

    def see(path, call):
        if is_seen(call.output):
            calls.append((path, call.scores))
        else:
            unseen_paths[path] = None

    with watching(Watcher(layers_to_watch(model), see, takes_traced=True)):
        yield calls
    seen_paths = {path for path, _ in calls}
    lost_paths = [path for path in unseen_paths if path not in seen_paths]
    if lost_paths:
        raise ValueError(
            f"The scores of {lost_paths} are computed inside a loop, where a graph cannot give them. Call the model eagerly in "
            "`keras_attn.capture_attention`."
        )
