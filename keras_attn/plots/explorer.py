import base64
import functools
import hashlib
import html
import itertools
import json
import math
import numbers
import pathlib
import re
from collections.abc import Mapping

import numpy as np

from keras_attn.files import replaced_file
from keras_attn.plots.explorer_data import MAX_TOKENS, Encoded, packed, thumbnail
from keras_attn.plots.figures import printable
from keras_attn.plots.head_kinds import head_kinds, name_of_kind, real_tokens

_FOLDER = pathlib.Path(__file__).resolve().parent
_STYLES = ("base.css", "explorer.css")
# Each stands after those that it imports from.
_SCRIPTS = (
    "dom.js",
    "words.js",
    "maps.js",
    "drawing.js",
    "overview.js",
    "text_view.js",
    "lines_view.js",
    "matrix_view.js",
    "image_view.js",
    "decoding.js",
    "explorer.js",
)
_KINDS = {"encoder": "Encoder", "decoder": "Decoder", "cross": "Cross-attention"}
_ROUNDING = 2**-7  # the largest rounding error of 1 in bfloat16
_LONGEST_SIDE = 448
_LONGEST_TITLE = 120
# <s>, </s>, [CLS], <|endoftext|>; but no byte token (<0x0A>), which is text.
_SPECIAL_TOKEN = re.compile(r"<(?!0x[0-9A-Fa-f]{2}>)[^<>\s]+>|\[[A-Z0-9_]+\]|")
_POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


def explore(
    maps,
    tokens=None,
    image=None,
    grid=None,
    steps=None,
    beams=None,
    compare=None,
    name="model",
    special_tokens=None,
    title=None,
    path=None,
    max_megabytes=15,
):
    """Makes a page on which a person explores attention: all heads as thumbnails, each head as text, lines and matrix.

    The page is one HTML file that needs only a browser: no network, no other file. Tokens are shown as text, whatever they
    hold. It shows each score to within sqrt(score)/255 (0.004 for a score of 1, 0.0004 for one of 0.01). Maps that are too
    large for `max_megabytes` are shown less exactly, to within sqrt(score)/64 at worst, and still larger ones by the largest
    scores of each query. The page says which, and what share of the attention it holds.

    Args:
        maps: Mapping from a layer's name to its scores, array or tensor (N, T, S) or (1, N, T, S), as
            `keras_attn.capture_attention` gives them. Or a mapping from "encoder", "decoder" and "cross" to such mappings;
            otherwise, where `tokens` is a mapping, the kind of a layer is read from its name.
        tokens: List of strings (or of UTF-8 bytes), the tokens of self-attention; or a pair of lists, the T queries and the S keys; or a mapping
            from the kinds of `maps` to one of these. "cross" defaults to the tokens of "decoder" and of "encoder". Defaults
            to the names of patches, if there is an image.
        image: Array (height, width), (height, width, 1 or 3): uint8, or floats from 0 to 1. The keys of the first kind are
            its patches.
        grid: Pair of integers, the rows and columns of patches. Tokens before the patches (class, registers) are not in it.
        steps: For each query of the decoder, a list of pairs (token, probability): the best next tokens, best first.
        beams: List of triples (tokens, their log-probabilities, score), the answers of a beam search, best first.
        compare: Mapping from a name to maps like `maps`: other models, or earlier epochs, on the same tokens. The page shows
            two of them side by side, or all as a film that ends with `maps`. Layers stand beside each other by name if one
            model has all names of the others, else by their order in their kind. A model may have fewer layers or heads.
        name: String, the name of `maps` beside those of `compare`.
        special_tokens: Collection of strings, the tokens that can be hidden. Defaults to those like `</s>`, `[CLS]` and
            `<pad>`.
        title: String above the page.
        path: Where to write the page, as `.html`. Missing folders are created.
        max_megabytes: Float, the largest size of the maps on the page.

    Returns:
        `Explorer`, which a notebook shows.

    Raises:
        ValueError: if shapes do not fit the tokens, a score is not a probability, there are too many tokens or maps, or
            `max_megabytes` is no positive number.

    Example:

    ```python
    scores = np.random.default_rng(0).dirichlet(np.ones(3), size=(2, 3))  # (N, T, S)
    explorer = explore({"layer 1": scores}, ["the", "tired", "dog"], title="A sentence")
    assert "A sentence" in explorer.html
    ```

    References: [Vig, 2019](https://arxiv.org/abs/1906.05714), whose views the lines are;
    [Jain and Wallace, 2019](https://arxiv.org/abs/1902.10186), on what attention does not explain.
    """
    is_number = isinstance(max_megabytes, numbers.Real) and not isinstance(max_megabytes, bool)
    if not (is_number and max_megabytes > 0):
        raise ValueError(
            f"`max_megabytes` must be a positive number. Received: max_megabytes={max_megabytes!r}."
        )
    picture = _picture(image, grid) if image is not None else None
    models = {str(other): other_maps for other, other_maps in (compare or {}).items()}
    if str(name) in models:
        raise ValueError(f"The names of `compare` must differ from `name`. Received: name={name!r}.")
    models[str(name)] = maps
    kinds = [_by_kind(model_maps, tokens) for model_maps in models.values()]
    if len({_is_nested(model_maps) for model_maps in models.values()}) > 1:
        raise ValueError("The maps of `compare` must be by kind of attention if `maps` are, and only then.")
    groups = _groups(kinds, tokens, picture)
    layers = {}
    for m, model in enumerate(models):
        for g, group in enumerate(groups):
            for row, layer in enumerate(group["rows"][m]):
                if layer is not None:
                    scores = kinds[m][group["kind"]][layer]
                    _check_scores(scores, layer, group, model)
                    layers[m, g, row] = scores
    encoded = Encoded(list(layers.values()), max_megabytes * 1e6)
    data = {
        "title": "Attention" if title is None else str(title),
        "models": list(models),
        "groups": [_described(group, special_tokens, len(models)) for group in groups],
        "levels": encoded.levels,
        "kept": encoded.kept,
        "leastShare": encoded.least_share,
        "meanShare": encoded.mean_share,
        "image": picture,
        "steps": None if steps is None else _checked_steps(steps, groups),
        "beams": None if beams is None else _checked_beams(beams),
    }
    heads = {}
    for ((m, g, row), scores), encoded_heads in zip(layers.items(), encoded.heads):
        group = data["groups"][g]
        group["seen"][m][row] = {"path": groups[g]["rows"][m][row], **_seen(scores, group)}
        heads[f"{m}.{g}.{row}"] = encoded_heads
    explorer = Explorer(data, heads)
    if path is not None:
        explorer.save(path)
    return explorer


class Explorer:
    """A page on which attention is explored; `explore` makes it. A notebook shows it in a frame of its own.

    Attributes:
        html: The page, a string.

    Example:

    ```python
    explorer = explore({"layer 1": np.full((2, 3, 3), 1 / 3)}, ["the", "tired", "dog"])
    explorer.save("attention.html")
    ```
    """

    def __init__(self, data, heads):
        self._data = data
        self._heads = heads

    @functools.cached_property
    def html(self):
        files = _files()
        # Base64 holds no markup; the page reads a layer's text when one of its heads is opened.
        layers = [
            f'<script type="text/plain" data-heads="{place}">{" ".join(heads)}</script>'
            for place, heads in self._heads.items()
        ]
        parts = {
            "policy": _POLICY.format(script=_sha256(files["script"]), style=_sha256(files["style"])),
            "title": html.escape(self._short_title()),
            "data": _as_json(self._data),
            "heads": "\n".join(layers),
            "style": files["style"],
            "script": files["script"],
        }
        return re.sub(r"\{\{(\w+)\}\}", lambda name: parts[name[1]], files["page"])

    def save(self, path):
        """Writes the page.

        Args:
            path: Path that ends in `.html`. Missing folders are created.

        Returns:
            `pathlib.Path` of the file.

        Raises:
            ValueError: if it has another ending.
        """
        path = pathlib.Path(path)
        if path.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"`path` must end in one of ('.html', '.htm'). Received: path={str(path)!r}.")
        with replaced_file(path) as aside:
            aside.write_text(self.html, encoding="utf-8")
        return path

    def _short_title(self):
        """The title for a tab or a frame: of a whole text, the beginning."""
        title = " ".join(printable(self._data["title"]).split())
        return title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 1]}…"

    def __repr__(self):
        groups = ", ".join(
            f"{group['label']}: {len(group['paths'])} layers, {len(group['queries'])} x {len(group['keys'])} tokens"
            for group in self._data["groups"]
        )
        return f"<Explorer of {self._data['title']!r} ({groups}); save(path) writes the page>"

    def _repr_html_(self):
        # A frame of another origin: the page can neither read the notebook nor be disturbed by its styles.
        title = html.escape(self._short_title())
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" title="{title}" '
            'sandbox="allow-scripts allow-downloads" width="100%" height="760" frameborder="0"></iframe>'
        )


@functools.cache
def _files():
    """The page, its style and its script. The scripts are modules that import from each other; one file needs no imports."""
    script = "\n".join(_read(name) for name in _SCRIPTS)
    script = re.sub(r"^import .*;\n", "", script, flags=re.MULTILINE)
    script = re.sub(r"^export ", "", script, flags=re.MULTILINE)
    # Strict, and with names of its own, as a module is.
    script = f'"use strict";\n{{\n{script}}}\n'
    return {"page": _read("explorer.html"), "style": "\n".join(map(_read, _STYLES)), "script": script}


def _read(name):
    return (_FOLDER / name).read_text("utf-8")


def _sha256(text):
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _as_json(value):
    """JSON that holds no markup."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _groups(models, tokens, picture):
    """For each kind of attention: its label, its tokens, and its layers, those that the models share beside each other.

    Args:
        models: For each model, its maps by kind; the last is that of `maps`, whose order holds.
        tokens, picture: As in `explore`.
    """
    groups = []
    for kind in dict.fromkeys(kind for kinds in reversed(models) for kind in kinds):
        rows = _matched([list(kinds.get(kind, ())) for kinds in models])
        layers = next(kinds[kind] for kinds in reversed(models) if kind in kinds)
        queries, keys = _tokens_for(kind, tokens, picture, next(iter(layers.values())).shape)
        groups.append(
            {
                "kind": kind,
                "label": _KINDS.get(kind, kind or "Attention"),
                "queries": [token_text(token) for token in queries],
                "keys": [token_text(token) for token in keys],
                "rows": list(zip(*rows)),
                "paths": [next(path for path in reversed(row) if path is not None) for row in rows],
            }
        )
    return groups


def token_text(token):
    """A token as a string. A piece of byte-level BPE may be a part of a letter, so not all bytes are UTF-8."""
    return token.decode("utf-8", "replace") if isinstance(token, bytes) else str(token)


def _matched(models):
    """The layers of models, lists of names, as rows of those that stand beside each other; None where a model has none."""
    longest = max(reversed(models), key=len)
    if all(set(names) <= set(longest) for names in models):
        return [[path if path in names else None for names in models] for path in longest]
    # Keras numbers the names of layers, so that those of two models made alike differ.
    return list(itertools.zip_longest(*models))


def _is_nested(maps):
    return isinstance(next(iter(maps.values())), Mapping)


def _by_kind(maps, tokens):
    """A model's scores (N, T, S) by kind of attention and name of the layer."""
    if not isinstance(maps, Mapping) or not maps:
        raise ValueError(
            "`maps` must be a mapping from a layer's name to its scores (N, T, S), with at least one layer. "
            f"Received: maps={type(maps).__name__}."
        )
    if not _is_nested(maps):
        maps = _from_names(maps) if isinstance(tokens, Mapping) else {"": maps}
    return {
        str(kind): {str(path): _scores(scores, path) for path, scores in layers.items()}
        for kind, layers in maps.items()
        if layers
    }


def _from_names(maps):
    kinds = {kind: {} for kind in ("encoder", "decoder", "cross")}
    for path, scores in maps.items():
        kind = next((kind for kind in ("cross", "decoder", "encoder") if kind in str(path).lower()), None)
        if kind is None:
            raise ValueError(
                "Where `tokens` is a mapping, the name of each layer must hold encoder, decoder or cross; or give `maps` as "
                f'{{"encoder": {{name: scores}}, ...}}. Received: the layer {path!r}.'
            )
        kinds[kind][path] = scores
    return kinds


def _tokens_for(kind, tokens, picture, shape):
    """The tokens of the queries and keys of a kind, whose scores have this shape."""
    given = tokens
    if isinstance(tokens, Mapping):
        given = tokens.get(kind)
        if given is None and kind == "cross" and {"encoder", "decoder"} <= set(tokens):
            given = (_pair(tokens["decoder"])[0], _pair(tokens["encoder"])[1])
    if given is None and picture is not None:
        _, num_queries, num_keys = shape
        given = (_patch_names(num_queries, picture), _patch_names(num_keys, picture))
    if given is None:
        received = f"a mapping from {list(tokens)}" if isinstance(tokens, Mapping) else repr(tokens)
        raise ValueError(
            f"`tokens` must hold the tokens of {kind or 'the layers'}: a list of strings, or a pair of lists for queries "
            f"and keys. Received: tokens={received}."
        )
    return _pair(given)


def _pair(given):
    if isinstance(given, (str, bytes)):
        raise ValueError(f"`tokens` must be a list of strings. Received: tokens={given!r}.")
    given = list(given)
    if len(given) == 2 and not any(isinstance(part, (str, bytes)) for part in given):
        return list(given[0]), list(given[1])
    return given, given


def _patch_names(length, picture):
    num_patches = picture["rows"] * picture["columns"]
    num_before = length - num_patches
    if num_before < 0:
        raise ValueError(
            f"`grid` has {num_patches} patches, more than the {length} tokens of the scores. "
            f"Received: grid=({picture['rows']}, {picture['columns']})."
        )
    names = ["[CLASS]"][:num_before]
    names += [f"[REGISTER_{number}]" for number in range(1, num_before)]
    for row in range(1, picture["rows"] + 1):
        names += [f"row {row}, column {column}" for column in range(1, picture["columns"] + 1)]
    return names


def _scores(scores, path):
    scores = np.asarray(scores)
    if scores.ndim == 4 and scores.shape[0] == 1:
        scores = scores[0]
    if scores.ndim != 3 or scores.size == 0:
        raise ValueError(
            f"The scores of a layer must have shape (N, T, S) or (1, N, T, S), none of them 0. Received: {path!r} of shape "
            f"{scores.shape}. For a batch, take one text: scores[:1]."
        )
    return scores


def _check_scores(scores, path, group, model):
    num_queries = len(group["queries"])
    num_keys = len(group["keys"])
    if scores.shape[1:] != (num_queries, num_keys):
        raise ValueError(
            f"The scores of {path!r} of {model!r} must have a row for each of the {num_queries} query tokens and a column for each "
            f"of the {num_keys} key tokens. Received: shape={scores.shape}. For an encoder and a decoder pass "
            '{"encoder": [...], "decoder": [...]}; for cross-attention alone (query tokens, key tokens).'
        )
    if max(num_queries, num_keys) > MAX_TOKENS:
        raise ValueError(
            f"`explore` shows up to {MAX_TOKENS:,} tokens. Received: {num_queries:,} queries and {num_keys:,} keys in {path!r}. "
            f"Give a part of them: scores[..., :{MAX_TOKENS}, :{MAX_TOKENS}] and its tokens."
        )
    for head in scores:
        least = float(head.min())
        most = float(head.max())
        # Written so that NaN, which compares as false, is rejected too.
        if not (least >= 0 and most <= 1 + _ROUNDING):
            raise ValueError(
                "Scores must be probabilities in [0, 1], taken after the softmax and without dropout. "
                f"Received: {path!r} with values from {least} to {most}."
            )


def _described(group, special_tokens, num_models):
    """What the page knows of a group beside its scores; `seen` stays None for a layer that a model lacks."""

    def special(tokens):
        if special_tokens is None:
            return [number for number, token in enumerate(tokens) if _SPECIAL_TOKEN.fullmatch(token)]
        chosen = set(map(token_text, special_tokens))
        return [number for number, token in enumerate(tokens) if token in chosen]

    return {
        "kind": group["kind"],
        "label": group["label"],
        "queries": group["queries"],
        "keys": group["keys"],
        "paths": group["paths"],
        "seen": [[None] * len(group["paths"]) for _ in range(num_models)],
        "isSelf": group["queries"] == group["keys"],
        "specialQueries": special(group["queries"]),
        "specialKeys": special(group["keys"]),
    }


def _seen(scores, group):
    """What the overview shows of a layer: thumbnails and kinds of its heads."""
    thumbnails = np.stack([thumbnail(head) for head in scores])
    # Equal tokens are the same number.
    token_ids = np.unique(group["queries"], return_inverse=True)[1][np.newaxis]
    special_keys = np.isin(np.arange(len(group["keys"])), group["specialKeys"])[np.newaxis]
    if not special_keys.any() or special_keys.all():
        special_keys = None
    heads = []
    # Head by head, since maps of thousands of tokens are large.
    maps = [np.asarray(head)[np.newaxis, np.newaxis] for head in scores]
    real_masks = [real_tokens(head, group["isSelf"]) for head in maps]
    tokens = [np.any(masks, axis=0) for masks in zip(*real_masks)]
    for head in maps:
        kinds = head_kinds(head, group["isSelf"], token_ids, special_keys, tokens)
        kinds = {kind: round(float(score), 4) for kind, [score] in kinds.items() if not np.isnan(score)}
        heads.append({"kind": name_of_kind(kinds), "scores": kinds})
    return {"thumbnails": packed(thumbnails), "size": list(thumbnails.shape[1:]), "heads": heads}


def _picture(image, grid):
    image = np.asarray(image)
    if image.ndim == 2:
        image = image[..., np.newaxis]
    if image.ndim != 3 or image.shape[-1] not in (1, 3) or image.size == 0:
        raise ValueError(
            "`image` must have shape (height, width) or (height, width, 1 or 3). "
            f"Received: shape={image.shape}."
        )
    rows, columns = check_grid(grid)
    if image.dtype != "uint8":
        if not (image.min() >= 0 and image.max() <= 1):
            raise ValueError(
                "`image` must be of uint8, or floats from 0 to 1. "
                f"Received: {image.dtype} from {image.min()} to {image.max()}."
            )
        image = np.rint(image * 255).astype("uint8")
    step = math.ceil(max(image.shape[:2]) / _LONGEST_SIDE)
    if step > 1:
        image = _shrunk(image, step)
    height, width, _ = image.shape
    pixels = np.broadcast_to(image, (height, width, 3))
    return {"width": width, "height": height, "pixels": packed(pixels), "rows": rows, "columns": columns}


def check_grid(grid):
    """Returns the rows and columns of patches as a pair of integers.

    Raises:
        ValueError: if they are none.
    """
    is_pair = isinstance(grid, tuple | list | np.ndarray) and len(grid) == 2
    if not is_pair or not all(isinstance(size, int | np.integer) and size >= 1 for size in grid):
        raise ValueError(
            "`grid` must be the rows and columns of the image's patches, a pair of integers. "
            f"Received: grid={grid!r}."
        )
    return tuple(map(int, grid))


def _shrunk(image, step):
    """The means of squares of about `step` x `step` pixels. The squares cover the whole image, so patches keep their places."""
    for axis in (0, 1):
        length = image.shape[axis]
        num_parts = math.ceil(length / step)
        starts = np.arange(num_parts) * length // num_parts
        sizes = np.diff(starts, append=length)
        image = np.add.reduceat(image, starts, axis=axis, dtype="float64")
        image /= sizes.reshape(-1, *[1] * (2 - axis))
    return np.rint(image).astype("uint8")


def _checked_steps(steps, groups):
    decoder_groups = [group for group in groups if group["kind"] in ("decoder", "cross")] or groups
    length = len(decoder_groups[0]["queries"])
    steps = [[[token_text(token), float(probability)] for token, probability in step] for step in steps]
    if len(steps) != length or not all(steps):
        raise ValueError(
            f"`steps` must hold at least one pair (token, probability) for each of the {length} queries of the decoder. "
            f"Received: {len(steps)} steps, with {sorted({len(step) for step in steps})} pairs."
        )
    if not all(0 <= probability <= 1 + _ROUNDING for step in steps for _, probability in step):
        raise ValueError("`steps` must hold probabilities, from 0 to 1.")
    return steps


def _checked_beams(beams):
    checked = []
    for tokens, log_probs, score in beams:
        tokens = [token_text(token) for token in tokens]
        log_probs = [float(value) for value in log_probs]
        if len(tokens) != len(log_probs):
            raise ValueError(
                "`beams` must hold a log-probability for each token. "
                f"Received: {len(tokens)} tokens, {len(log_probs)} log-probabilities."
            )
        if not np.isfinite(log_probs).all() or not math.isfinite(score):
            raise ValueError("Log-probabilities and scores of `beams` must be finite.")
        checked.append({"tokens": tokens, "logProbs": log_probs, "score": float(score)})
    return checked
