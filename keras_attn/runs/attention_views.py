"""What a model attends to while it is trained: pictures for TensorBoard, and a page of one text, epoch by epoch."""

import shutil

import numpy as np

from keras_attn.files import replaced_file
from keras_attn.plots import explore, figure_pixels, plot_attention
from keras_attn.tasks.attention_maps import continuation_maps, translation_maps
from keras_attn.tasks.given_translations import alignment_layer, attention_maps

_PAGE = "attention.html"
_FRAMES = "attention"
_NUM_SENTENCES = 2
_NUM_CANDIDATES = 100
# So many fit in a picture whose labels can be read where TensorBoard shows it small.
_TOKENS = 12
_MOST_TOKENS = 30  # of a picture, and of a text that goes on for as long as the data
_MOST_HEADS = 4
_LABEL_SIZE = 13  # TensorBoard shows pictures at half their size


class AttentionPictures:
    """Draws the cross-attention of the layer that aligns words, for validation pairs with few tokens.

    The decoder is given the references, so that the pictures of all epochs have the same rows and columns.

    Args:
        translator: `Translator`.
        pairs: `TextPairs`.
    """

    def __init__(self, translator, pairs):
        self._translator = translator
        self._pairs = short_pairs(translator, pairs)

    def draw(self):
        """A dict from tags, such as `cross_attention_1/mean`, to uint8 arrays (height, width, 3)."""
        pictures = {}
        if not self._pairs:
            return pictures
        source_ids, target_ids = zip(*self._pairs)
        maps = attention_maps(self._translator, source_ids, target_ids, batch_size=len(self._pairs))
        for number, attention_map in enumerate(maps, 1):
            num_heads = _MOST_HEADS if number == 1 else 0
            for name, figure in figures(attention_map, num_heads).items():
                pictures[f"cross_attention_{number}/{name}"] = figure_pixels(figure)
        return pictures


def short_pairs(translator, pairs):
    """The ids, END included, of the few pairs whose attention is shown: pairs of lists."""
    sources = _first_ids(translator.source_tokenizer, pairs.sources)
    targets = _first_ids(translator.target_tokenizer, pairs.targets)
    limit = min(_MOST_TOKENS, translator.model.max_sequence_length)
    short = [ids for ids in zip(sources, targets) if min(map(len, ids)) > 1 and max(map(len, ids)) <= limit]
    return sorted(short, key=lambda ids: abs(len(ids[0]) - _TOKENS))[:_NUM_SENTENCES]


def _first_ids(tokenizer, texts):
    first = list(texts[:_NUM_CANDIDATES])
    return [[*ids, tokenizer.end_token_id] for ids in tokenizer.encode(first)]


def figures(attention_map, num_heads):
    """Figures of the mean over the heads of the layer that aligns words, and of its first heads.

    Args:
        attention_map: `AttentionMap`.
        num_heads: Integer, the most heads that get a figure of their own.

    Returns:
        Dict from `mean`, `head_1`, ... to `matplotlib.figure.Figure`.
    """
    scores = attention_map.attention_scores
    layer = alignment_layer(len(scores))
    head_scores = scores[layer]
    heads = len(head_scores)
    mean = head_scores.mean(axis=0)
    if heads == 1:
        maps = {"mean": ("one head", mean)}
    else:
        maps = {"mean": ("mean of all heads", mean)}
        for head in range(min(heads, num_heads)):
            maps[f"head_{head + 1}"] = (f"head {head + 1} of {heads}", head_scores[head])
    drawn = {}
    for name, (title, one_map) in maps.items():
        figure = plot_attention(
            one_map,
            attention_map.source_tokens,
            attention_map.target_tokens,
            title=f"Cross-attention, layer {layer + 1} of {len(scores)}, {title}",
        )
        figure.axes[0].tick_params(labelsize=_LABEL_SIZE)
        drawn[name] = figure
    return drawn


class AttentionFilm:
    """Keeps what a model attends to in a validation text, and writes all of it as a page in the end.

    The decoder is given the text, so that all epochs have the same tokens. The frames are files, so a run that is killed and
    goes on has them still.

    A subclass implements `maps(task)`, what a task attends to in the text, by kind, and `explore(task, **more)`, which makes
    the page.

    Args:
        task: `Translator` or `TextGenerator`.
        shown: The ids of the text, or None if there is none.
        folder: `pathlib.Path` of the run.
    """

    def __init__(self, task, shown, folder):
        self._task = task
        self._folder = folder
        self._shown = shown
        if shown is not None:
            try:
                self.maps(task)
            except ValueError:  # a model of parts that are no attention has no page
                self._shown = None

    def maps(self, task):
        """{kind: {path: scores}}."""
        raise NotImplementedError

    def explore(self, task, **more):
        """Makes the page; `more` are arguments of `keras_attn.plots.explore`."""
        raise NotImplementedError

    def keep(self, epoch):
        """Keeps a frame: the maps of the model as it is now."""
        if self._shown is None:
            return
        arrays = {
            f"{kind}:{path}": scores
            for kind, layers in self.maps(self._task).items()
            for path, scores in layers.items()
        }
        path = self._folder / _FRAMES / f"epoch-{epoch:03d}.npz"
        with replaced_file(path) as aside, aside.open("wb") as file:
            np.savez_compressed(file, **arrays)

    def write(self, task):
        """Writes the page of the task that the run made, with the frames before it; returns its path, or None without a text."""
        if self._shown is None:
            return None
        frames = {}
        for path in sorted((self._folder / _FRAMES).glob("epoch-*.npz")):
            epoch = int(path.stem.removeprefix("epoch-"))
            frames[f"epoch {epoch}"] = _read_maps(path)
        path = self._folder / _PAGE
        self.explore(task, path=path, compare=frames, name=f"the run's {task.name}")
        return path

    def remove_frames(self):
        shutil.rmtree(self._folder / _FRAMES, ignore_errors=True)


def _read_maps(path):
    maps = {}
    with np.load(path, allow_pickle=False) as arrays:
        for name in arrays.files:
            kind, layer = name.split(":", 1)
            maps.setdefault(kind, {})[layer] = arrays[name]
    return maps


class TranslationFilm(AttentionFilm):
    """The film of a translator: of a validation pair, whose target is the reference.

    Args:
        translator: `Translator`.
        pairs: `TextPairs`.
        folder: `pathlib.Path` of the run.
    """

    def __init__(self, translator, pairs, folder):
        super().__init__(translator, next(iter(short_pairs(translator, pairs)), None), folder)

    def maps(self, task):
        return translation_maps(task, *self._shown)[0]

    def explore(self, task, **more):
        source_ids, target_ids = self._shown
        [title] = task.source_tokenizer.decode([source_ids])
        explore(**task.explored(source_ids, [(target_ids, 0.0)]), title=title, **more)


class TextFilm(AttentionFilm):
    """The film of a text generator: of the beginning of the validation text.

    Args:
        generator: `TextGenerator`.
        token_ids: Integers, those of the validation text.
        folder: `pathlib.Path` of the run.
    """

    def __init__(self, generator, token_ids, folder):
        length = min(_MOST_TOKENS, generator.model.max_sequence_length)
        shown = [generator.start_token_id, *np.asarray(token_ids[:length]).tolist()]
        super().__init__(generator, shown, folder)

    def maps(self, task):
        return continuation_maps(task, self._shown)[0]

    def explore(self, task, **more):
        start = self._shown[0]
        text = self._shown[1:]
        [title] = task.tokenizer.decode([text])
        explore(**task.explored([start], [(text, 0.0)]), title=title, **more)
