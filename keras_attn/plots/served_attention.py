import base64
import math
from collections.abc import Mapping

import numpy as np

from keras_attn.plots.explorer import explore, token_text

_KINDS = ("encoder", "decoder", "cross")


def explore_answer(answer, title=None, path=None):
    """Makes the page of `explore` from what the signature `attention` of an export answers, wherever it is served.

    It needs the answer alone: no model, no tokenizer, no TensorFlow.

    Args:
        answer: Mapping from the names of the outputs to their values for one text: an element of `predictions` of TF
            Serving's REST interface; or arrays without the batch axis, of strings or bytes.
        title: String above the page.
        path: Where to write the page, as `.html`.

    Returns:
        `Explorer`.

    Raises:
        ValueError: if it is no answer of `attention`, or one with a batch axis, or of a text or an image without an answer.

    Example:

    ```python
    answer = {
        "encoder_tokens": ["the", "dog", ""],  # padded, as in a batch
        "encoder_layers": ["encoder_block_0/self_attention"],
        "encoder_attention": [[[[0.25, 0.75, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]]],  # (L, N, T, S)
    }
    explorer = explore_answer(answer, title="the dog")
    ```
    """
    kinds = [kind for kind in _KINDS if _is_part(answer, kind)]
    if not kinds:
        names = list(answer) if isinstance(answer, Mapping) else type(answer).__name__
        raise ValueError(
            "`answer` must hold the outputs of a signature `attention` for one text, `encoder_attention` for instance. "
            f"Received: {names}."
        )
    if "grid" in answer:
        return _explore_image(answer, title, path)
    tokens = _tokens(answer)
    maps = {}
    for kind in kinds:
        queries, keys = _sides(kind, tokens)
        if queries and keys:
            maps[kind] = _layers(answer, kind, len(queries), len(keys))
    if not maps:
        raise ValueError("The answer has no token: it is that of an empty text.")
    steps = None
    if "next_tokens" in answer and {"decoder", "cross"} & set(maps):
        steps = _steps(answer, len(tokens["decoder"]))
    sides = {kind: _sides(kind, tokens) for kind in maps}
    return explore(maps, sides, steps=steps, title=title, path=path)


def _is_part(answer, kind):
    return isinstance(answer, Mapping) and {f"{kind}_attention", f"{kind}_layers"} <= set(answer)


def _tokens(answer):
    """The tokens by the sides that have them, without what fills them up."""
    tokens = {}
    for side, name in (
        ("encoder", "encoder_tokens"),
        ("decoder", "decoder_tokens"),
        ("target", "target_tokens"),
    ):
        strings = answer.get(name, ())
        if not all(isinstance(string, str | bytes) or _is_base64(string) for string in strings):
            raise ValueError(
                f"`{name}` must be a list of strings, the tokens of one text; of a batch, give the answer of one row. "
                f"Received: {type(strings).__name__} of {type(strings[0]).__name__}."
            )
        strings = [_text(string) for string in strings]
        while strings and not strings[-1]:
            strings.pop()
        tokens[side] = strings
    return tokens


def _sides(kind, tokens):
    """The tokens of queries and keys."""
    if kind != "cross":
        return tokens[kind], tokens[kind]
    # A step of a translator is named by the token that it writes. A decoder that only reads a text (BART) writes none.
    writes = len(tokens["target"]) == len(tokens["decoder"])
    queries = tokens["target"] if writes else tokens["decoder"]
    return queries, tokens["encoder"]


def _layers(answer, kind, queries, keys):
    scores = np.asarray(answer[f"{kind}_attention"], "float32")
    names = answer[f"{kind}_layers"]
    if scores.ndim != 4 or len(scores) != len(names) or scores.shape[2] < queries or scores.shape[3] < keys:
        raise ValueError(
            f"`{kind}_attention` must have shape (L, N, T, S) for {len(names)} layers, {queries} queries and {keys} keys. "
            f"Received: shape={scores.shape}. Of a batch, give the answer of one row."
        )
    return {_text(name): layer[:, :queries, :keys] for name, layer in zip(names, scores)}


def _steps(answer, length):
    steps = []
    rows = zip(
        answer["next_tokens"], answer["next_probabilities"], answer["target_tokens"], answer["token_scores"]
    )
    for tokens, probabilities, target, score in list(rows)[:length]:
        step = list(zip(map(_text, tokens), map(float, probabilities)))
        target = _text(target)
        if target and target not in dict(step):
            step.append((target, math.exp(score)))
        steps.append(step)
    return steps


def _explore_image(answer, title, path):
    grid = tuple(int(number) for number in answer["grid"])
    image = np.asarray(answer["image"], "uint8")
    scores = np.asarray(answer["encoder_attention"], "float32")
    if scores.ndim != 4:
        raise ValueError(
            f"`encoder_attention` must have shape (L, N, T, S). Received: shape={scores.shape}. Of a batch, give the answer "
            "of one row."
        )
    if not scores.any():
        raise ValueError("The answer has no score: the image could not be read, which its `status` tells.")
    layers = dict(zip(map(_text, answer["encoder_layers"]), scores))
    return explore(layers, image=image, grid=grid, title=title, path=path)


def _is_base64(value):
    return isinstance(value, Mapping) and set(value) == {"b64"}


def _text(value):
    if _is_base64(value):
        value = base64.b64decode(value["b64"])
    return token_text(value)
