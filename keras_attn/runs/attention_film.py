"""The page of a run on which attention is explored: of one sentence, as it sharpened from epoch to epoch."""

import shutil

import numpy as np

from keras_attn.files import replaced_file
from keras_attn.runs.attention_pictures import short_pairs
from keras_attn.tasks.showing import explore_translation, translation_maps

PAGE = "attention.html"
_FRAMES = "attention"


class AttentionFilm:
    """Keeps what a translator attends to in a validation pair, and writes all of it as a page in the end.

    The decoder is given the reference, so that all epochs have the same tokens. The frames are files, so a run that is
    killed and goes on has them still.

    Args:
        translator: `Translator`.
        pairs: `TextPairs`.
        folder: `pathlib.Path` of the run.
    """

    def __init__(self, translator, pairs, folder):
        self._translator = translator
        self._folder = folder
        self._pair = next(iter(short_pairs(translator, pairs)), None)
        if self._pair is not None:
            try:
                translation_maps(translator, *self._pair)
            except ValueError:  # a model of parts that are no attention has no page
                self._pair = None

    def keep(self, epoch):
        """Keeps a frame: the maps of the model as it is now."""
        if self._pair is None:
            return
        maps, _, _ = translation_maps(self._translator, *self._pair)
        arrays = {
            f"{kind}:{path}": scores for kind, layers in maps.items() for path, scores in layers.items()
        }
        with (
            replaced_file(self._folder / _FRAMES / f"epoch-{epoch:03d}.npz") as aside,
            aside.open("wb") as file,
        ):
            np.savez_compressed(file, **arrays)

    def write(self, translator):
        """Writes the page of the run's translator, with the frames before it; returns its path, or None without a pair."""
        if self._pair is None:
            return None
        frames = {}
        for path in sorted((self._folder / _FRAMES).glob("epoch-*.npz")):
            maps = {}
            with np.load(path, allow_pickle=False) as arrays:
                for name in arrays.files:
                    kind, layer = name.split(":", 1)
                    maps.setdefault(kind, {})[layer] = arrays[name]
            frames[f"epoch {int(path.stem.removeprefix('epoch-'))}"] = maps
        source_ids, target_ids = self._pair
        [title] = translator.source_tokenizer.decode([source_ids])
        path = self._folder / PAGE
        explore_translation(
            translator,
            source_ids,
            [(target_ids, 0.0)],
            title,
            path,
            compare=frames,
            name="the run's translator",
        )
        return path

    def remove_frames(self):
        shutil.rmtree(self._folder / _FRAMES, ignore_errors=True)
