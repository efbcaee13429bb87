"""The page of a run on which attention is explored: of one text, as it sharpened from epoch to epoch."""

import shutil

import numpy as np

from keras_attn.files import replaced_file
from keras_attn.plots import explore
from keras_attn.runs.attention_pictures import short_pairs
from keras_attn.tasks.attention_maps import continuation_maps, translation_maps

PAGE = "attention.html"
_FRAMES = "attention"
_MOST_TOKENS = 30  # of a text that goes on for as long as the data


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
        with (
            replaced_file(self._folder / _FRAMES / f"epoch-{epoch:03d}.npz") as aside,
            aside.open("wb") as file,
        ):
            np.savez_compressed(file, **arrays)

    def write(self, task):
        """Writes the page of the task that the run made, with the frames before it; returns its path, or None without a text."""
        if self._shown is None:
            return None
        frames = {}
        for path in sorted((self._folder / _FRAMES).glob("epoch-*.npz")):
            maps = {}
            with np.load(path, allow_pickle=False) as arrays:
                for name in arrays.files:
                    kind, layer = name.split(":", 1)
                    maps.setdefault(kind, {})[layer] = arrays[name]
            frames[f"epoch {int(path.stem.removeprefix('epoch-'))}"] = maps
        path = self._folder / PAGE
        self.explore(task, path=path, compare=frames, name=f"the run's {task.name}")
        return path

    def remove_frames(self):
        shutil.rmtree(self._folder / _FRAMES, ignore_errors=True)


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
        start, *text = self._shown
        [title] = task.tokenizer.decode([text])
        explore(**task.explored([start], [(text, 0.0)]), title=title, **more)
