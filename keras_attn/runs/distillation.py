"""A student, which learns from its teachers' translations: its recipe, its teachers, their translations, and its training run."""

import dataclasses
import functools
import hashlib
import json
import os
import re
import time

import keras

from keras_attn.checks import check_positive
from keras_attn.data import TextPairs
from keras_attn.data.text_files import Rows, checksum
from keras_attn.files import folder_digest, replaced_folder, restored_folder
from keras_attn.huggingface import checkpoint_folder
from keras_attn.layers.layer_slots import run_without_values
from keras_attn.runs import next_command
from keras_attn.runs.combined_translators import load_ensemble
from keras_attn.runs.data import as_corpora
from keras_attn.runs.pair_settings import FittedRecipe, fit_recipe
from keras_attn.runs.progress import duration
from keras_attn.runs.recipe import Recipe, holds_run
from keras_attn.runs.translation_run import TranslationRun
from keras_attn.tasks import Translator
from keras_attn.tasks.saved_tasks import task_folder
from keras_attn.text import load_tokenizer

# Reasons of a fitted recipe that do not hold for a student: its tokenizers are given, its layers may be.
_NOT_OF_STUDENTS = ("tokens", "vocabulary", "model")
_TOKENIZERS = ("source_tokenizer", "target_tokenizer")
_SEARCH = ("num_beams", "length_penalty")
_SOURCES_A_PIECE = 1024
_SECONDS_BETWEEN_LINES = 20.0


def student_recipe(
    teachers, recipe=None, size=None, layers=None, references=None, num_beams=None, length_penalty=None
):
    """The recipe of a student of some teachers.

    Args:
        teachers: Folders of translators, or of the runs that made them.
        recipe: `Recipe` of the student's training. Defaults to that of the first teacher's run.
        size: Named size, as in `Recipe.with_size`.
        layers: String or pair of integers: encoder and decoder layers, `"6+1"`.
        references: Boolean, whether the student learns from the given targets beside the teachers' translations. Defaults to
            the recipe's own setting, or True.
        num_beams, length_penalty: Of the teachers' search; by default the recipe's setting, or the teachers' own.

    Returns:
        A `Recipe` with `distill`.

    Raises:
        ValueError: if there is no recipe, or a value is out of range.

    Example:

    ```python
    recipe = student_recipe(["runs/tok-s1", "runs/tok-s2"], Recipe.load("multi30k_tokenized"), layers="6+1")
    assert recipe.model_arguments["num_decoder_layers"] == 1
    ```
    """
    teachers = [str(teacher) for teacher in teachers]
    if recipe is None:
        if not teachers or not holds_run(teachers[0]):
            raise ValueError(
                "A student needs a recipe: give one, or the folder of a run as the first teacher, whose recipe is then used. "
                f"Received: teachers={teachers}."
            )
        # A teacher may have been a student itself.
        recipe = dataclasses.replace(Recipe.load(teachers[0]), distill=None)
    if size is not None:
        recipe = recipe.with_size(size)
    distill = dict(recipe.distill or {})
    if teachers:
        distill["teachers"] = teachers
    given = {"references": references, "num_beams": num_beams, "length_penalty": length_penalty}
    distill |= {name: value for name, value in given.items() if value is not None}
    recipe = dataclasses.replace(recipe, distill=distill, minutes=None)
    return recipe if layers is None else with_layers(recipe, layers)


def with_layers(recipe, layers):
    """The recipe with encoder and decoder layers: `"6+1"`, or a pair of integers."""
    pair = layers
    if isinstance(layers, str):
        match = re.fullmatch(r"(\d+)\+(\d+)", layers)
        pair = tuple(map(int, match.groups())) if match else ()
    if not isinstance(pair, list | tuple) or len(pair) != 2 or 0 in pair:
        raise ValueError(f'`layers` must be of the encoder and of the decoder, "6+1". Received: {layers!r}.')
    encoder, decoder = (check_positive("layers", number) for number in pair)
    model = {**recipe.model, "num_encoder_layers": encoder, "num_decoder_layers": decoder}
    return dataclasses.replace(recipe, model=model)


def fit_student_recipe(data, recipe, given=(), references=True):
    """The `FittedRecipe` of `fit_recipe` for a student, whose tokenizers are its teachers'.

    Args:
        data, recipe, given: As in `fit_recipe`.
        references: Boolean, whether the student learns from the given pairs too: it then has twice as many.
    """
    if references:
        data = data._replace(train=as_corpora(data.train) * 2)
    fitted = fit_recipe(data, recipe, given)
    reasons = {name: reason for name, reason in fitted.reasons.items() if name not in _NOT_OF_STUDENTS}
    return FittedRecipe(fitted.recipe, {"vocabulary": "the teachers'", **reasons}, fitted.note)


def teacher_folders(folders):
    """The folders that teachers lie in: a list of paths.

    Args:
        folders: As in `load_ensemble`.

    Raises:
        FileNotFoundError: if one does not exist.

    Example: `runs.teacher_folders(["runs/teacher"])` is `[pathlib.Path("runs/teacher/translator")]`.
    """
    declared = Translator.declaration()
    paths = [task_folder(checkpoint_folder(folder), declared) for folder in folders]
    for path in paths:
        if not path.is_dir():
            raise FileNotFoundError(
                f"There is no teacher {path}. Give the folder of a translator, or of the run that made it."
            )
    return paths


def teachers_checksum(folders):
    """A short checksum of the files of teachers: another one for other weights, tokenizers or options, or another order."""
    digests = [folder_digest(folder) for folder in teacher_folders(folders)]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]


class DistillationRun(TranslationRun):
    """Trains a translator on its teachers' translations of the training sources and, by default, on the references too.

    Sequence-level knowledge distillation (Kim and Rush, 2016, https://arxiv.org/abs/1606.07947, section 3.2). With the
    references beside the translations as in Freitag et al., 2017 (https://arxiv.org/abs/1702.01802, section 3.4).

    The run folder also holds `teacher.jsonl`, the translations. What is in it is not translated again.
    """

    @functools.cached_property
    def checksums(self):
        """Those of the data, and one of the teachers' files."""
        teachers = self.recipe.distill.get("teachers", ())
        return {**self.data_checksums(), "teachers": teachers_checksum(teachers)}

    def data_names(self):
        return {**super().data_names(), "teachers": "the folders of the teachers"}

    def next_command(self):
        example = next(iter(self.examples()), None)
        was_stopped = self.stop_signals.received is not None
        return next_command.after_distillation(
            self.folder, example, advice=self.advice, was_stopped=was_stopped
        )

    def prepare(self):
        if not self.recipe.distill.get("teachers"):
            raise ValueError(
                "A recipe with a table [distill] needs teachers: `keras-attn distill TEACHER --recipe FILE`, or "
                "`teachers` in the table."
            )
        if self.processes.is_first:
            self.translate()
        self.processes.wait()
        # Loading the teachers draws random numbers, and a run that goes on may need no teacher.
        keras.utils.set_random_seed(self.recipe.seed)
        super().prepare()

    def translate(self):
        """Completes the translations, and takes the teachers' tokenizers into the folder."""
        translations = self.translations()
        if translations.is_complete and self.has_tokenizers():
            return
        teachers = self.recipe.distill["teachers"]
        teacher = load_ensemble(teachers)
        self.save_tokenizers(teacher)
        self.check_student()
        self.write_record()  # now that nothing is wrong: a kill from here on is gone on with
        if translations.is_complete:
            return
        search = self.teachers_search()
        beams = search["num_beams"] or teacher.num_beams
        how = "greedy" if beams == 1 else f"{beams} beams"
        self.say(f"{' and '.join(teachers)}: translating {len(translations.sources):,} sources, {how}.")
        translations.complete(lambda texts: teacher(texts, **search))

    def teachers_search(self):
        return {name: self.recipe.distill.get(name) for name in _SEARCH}

    def check_student(self):
        """Raises what making the student and its batches would raise for the recipe, before hours of translating."""
        tokenizers = self.make_tokenizers()
        run_without_values(lambda: self.make_model(*tokenizers))
        if self.recipe.subword_sampling:
            for tokenizer in tokenizers:
                tokenizer.bpe_dropout()

    def translations(self):
        sources = [text for pairs in as_corpora(self.data.train) for text in pairs.sources]
        made_with = {"teachers": self.checksums["teachers"], **self.teachers_search()}
        return TeacherTranslations(self.folder / "teacher.jsonl", sources, made_with, self.say)

    def has_tokenizers(self):
        return restored_folder(self.folder / _TOKENIZERS[0]).is_dir()

    def save_tokenizers(self, teacher):
        """Saves the source tokenizer last: where it is, both are."""
        if teacher.target_tokenizer is not teacher.source_tokenizer:
            self.save_tokenizer(teacher.target_tokenizer, _TOKENIZERS[1])
        self.save_tokenizer(teacher.source_tokenizer, _TOKENIZERS[0])

    def save_tokenizer(self, tokenizer, name):
        with replaced_folder(self.folder / name, "tokenizer.json", "tokenizer") as built:
            tokenizer.save(built)

    def make_tokenizers(self):
        source = load_tokenizer(restored_folder(self.folder / _TOKENIZERS[0]))
        target_folder = restored_folder(self.folder / _TOKENIZERS[1])
        target = load_tokenizer(target_folder) if target_folder.is_dir() else source
        return source, target

    def training_pairs(self):
        """The sources with the teachers' translations, and the given pairs with `references`; weighted as the corpora are."""
        corpora = as_corpora(self.data.train)
        translations = self.translations().read()
        taught = []
        first = 0
        for pairs in corpora:
            taught.append(self.taught_pairs(pairs, translations[first : first + len(pairs)]))
            first += len(pairs)
        weights = self.recipe.data_weights
        if self.recipe.distill.get("references", True):
            taught += corpora
            weights = weights and weights * 2
        return taught, weights

    def taught_pairs(self, pairs, translations):
        """The sources of a corpus with their translations, blank ones left out."""
        rows = [row for row, text in enumerate(translations) if text.strip()]
        if not rows:
            raise ValueError(f"The teachers translate nothing of {pairs.name}: all translations are blank.")
        if len(rows) < len(pairs):
            self.say(f"{len(pairs) - len(rows):,} blank translations of {pairs.name} are left out.")
        # `Rows` know the lines of the user's file.
        sources = Rows(pairs.sources, rows)
        return TextPairs(sources, [translations[row] for row in rows], f"{pairs.name}, by the teachers")


class TeacherTranslations:
    """Translations of texts in a file of JSON lines: a header that tells of what, and a line for each piece.

    A line is written as a whole and reaches the disk before the next piece begins. A line that a kill has cut short is
    removed when the file is opened again.

    Args:
        path: Path of the file.
        sources: Sequence of strings.
        made_with: Dict for JSON: all that the translations depend on but the sources.
        say: Function of a text, a line for the user.

    Raises:
        ValueError: if the file holds translations of other sources or made with something else, or is damaged.
    """

    def __init__(self, path, sources, made_with, say):
        self.path = path
        self.sources = sources
        self.say = say
        self.header = {**made_with, "sources": checksum(sources), "sources_a_piece": _SOURCES_A_PIECE}
        self.done = 0
        self.num_pieces = -(-len(sources) // _SOURCES_A_PIECE)
        self._open()

    @property
    def is_complete(self):
        """Whether all sources are translated."""
        return self.done == self.num_pieces

    def complete(self, translate):
        """Translates what is left.

        Args:
            translate: Function of a list of strings that returns their translations.
        """
        total = len(self.sources)
        first = self.done
        began = time.monotonic()
        said = began
        if not self.path.exists() or not self.path.stat().st_size:
            self._append(self.header)
        while not self.is_complete:
            texts = self._texts(self.done)
            translations = [text.replace("\n", " ") for text in translate(texts)]
            self._append({"piece": self.done, "texts": checksum(texts), "translations": translations})
            self.done += 1
            now = time.monotonic()
            if now - said < _SECONDS_BETWEEN_LINES and not self.is_complete:
                continue
            said = now
            left = (now - began) / (self.done - first) * (self.num_pieces - self.done)
            translated = min(total, self.done * _SOURCES_A_PIECE)
            self.say(f"Translated {translated:,} of {total:,} sources; {duration(left)} left")

    def read(self):
        """All translations, a list of strings, in the order of the sources."""
        with open(self.path, encoding="utf-8") as file:
            next(file)
            return [text for line in file for text in json.loads(line)["translations"]]

    def _texts(self, piece):
        return list(self.sources[piece * _SOURCES_A_PIECE : (piece + 1) * _SOURCES_A_PIECE])

    def _open(self):
        """Counts the whole pieces that are there, checks them, and removes what is left of one that was cut short."""
        if not self.path.exists():
            return
        lines = self._whole_lines()
        if not lines:
            return
        header = self._parsed(lines[0])
        if header != self.header:
            other = sorted(name for name, value in self.header.items() if header.get(name) != value)
            raise ValueError(
                f"{self.path} holds translations made otherwise: {', '.join(other)}. Choose another folder, or remove "
                "the file."
            )
        for number, line in enumerate(lines[1:]):
            piece = self._parsed(line)
            texts = self._texts(number)
            is_right = piece.get("piece") == number and piece.get("texts") == checksum(texts)
            if not is_right or len(piece.get("translations", ())) != len(texts):
                raise ValueError(f"{self.path} is damaged in line {number + 2}. Remove the file.")
        self.done = len(lines) - 1

    def _whole_lines(self):
        lines = []
        with open(self.path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                lines.append(line)
        os.truncate(self.path, sum(map(len, lines)))
        return lines

    def _parsed(self, line):
        try:
            parsed = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{self.path} is damaged: {error}. Remove the file.") from error
        return parsed if isinstance(parsed, dict) else {}

    def _append(self, value):
        with open(self.path, "ab") as file:
            file.write(json.dumps(value, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
