import collections
import contextlib
import numbers

import keras
import numpy as np
from keras import ops

from keras_attn.inspection.attention_layers import attention_layers, chosen
from keras_attn.inspection.watching import _HOW_TO_CALL, Watcher, watching


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
        self._calls = {}
        self._keys = {}
        self._path_of = {}
        for path, scores in calls:
            self._add(path, scores)

    def __getitem__(self, key):
        return self._keys[key]

    def __iter__(self):
        return iter(self._keys)

    def __len__(self):
        return len(self._keys)

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

    def _add(self, path, scores):
        calls = self._calls.setdefault(path, [])
        calls.append(scores)
        key = path if len(calls) == 1 else f"{path}#{len(calls)}"
        self._keys[key], self._path_of[key] = scores, path


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
        maps._add(path, _array(call.scores, rows, dtype))

    with watching(Watcher(chosen(layers_to_watch(model), layers), see), model):
        yield maps
    if not maps:
        raise RuntimeError(
            "No attention layer was called in the `with` block, in the thread that opened it. " + _HOW_TO_CALL
        )


def _float_dtype(dtype):
    """The NumPy dtype; in one of integers every score below 1 would be 0."""
    try:
        found = np.dtype(dtype)
    except TypeError:  # no dtype at all
        found = None
    # By its name, since NumPy does not count bfloat16 among its floats. Its dtype of None is float64.
    if dtype is None or found is None or not found.name.startswith(("float", "bfloat")):
        raise ValueError(f"`dtype` must be a float dtype, such as 'float32'. Received: dtype={dtype!r}.")
    return found


def layers_to_watch(model):
    """The attention layers of a model, by path.

    Raises:
        ValueError: if it is no model, is not built or has none.
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
    found = attention_layers(model)
    if not found:
        raise ValueError(
            "The model has no attention layer that can be watched: none of keras_attn, no "
            "`keras.layers.MultiHeadAttention` or `GroupQueryAttention`, and no other layer whose `call` takes "
            f"`return_attention_scores`. Received: {model.name!r}."
        )
    return found


def _array(scores, rows, dtype):
    scores = np.asarray(ops.convert_to_numpy(scores))
    if rows is None:
        return scores.astype(dtype)
    if isinstance(rows, numbers.Integral):
        rows = [rows]
    try:
        return scores[rows].astype(dtype)
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
    seen, unseen = [], {}

    def see(path, call):
        if is_seen(call.output):
            seen.append((path, call.scores))
        else:
            unseen[path] = None

    with watching(Watcher(layers_to_watch(model), see, takes_traced=True)):
        yield seen
    if lost := [path for path in unseen if path not in {path for path, _ in seen}]:
        raise ValueError(
            f"The scores of {lost} are computed inside a loop, where a graph cannot give them. Call the model eagerly in "
            "`keras_attn.capture_attention`."
        )
