"""The training run of a student, which learns from its teachers' translations."""

import functools

import keras

from keras_attn.data import TextPairs
from keras_attn.data.text_files import Rows
from keras_attn.files import replaced_folder, restored_folder
from keras_attn.models.copies import run_without_values
from keras_attn.runs.ensembles import load_ensemble
from keras_attn.runs.teacher_translations import TeacherTranslations
from keras_attn.runs.teachers import teachers_checksum
from keras_attn.runs.translation_run import TranslationRun, corpora_of
from keras_attn.text import load_tokenizer

_TOKENIZERS = ("source_tokenizer", "target_tokenizer")


class DistillationRun(TranslationRun):
    """Trains a translator on its teachers' translations of the training sources and, by default, on the references too.

    Sequence-level knowledge distillation (Kim and Rush, 2016, https://arxiv.org/abs/1606.07947, section 3.2). With the
    references beside the translations as in Freitag et al., 2017 (https://arxiv.org/abs/1702.01802, section 3.4).

    The run folder also holds `teacher.jsonl`, the translations. What is in it is not translated again.
    """

    @functools.cached_property
    def checksums(self):
        """Those of the data, and one of the teachers' files."""
        of_data = {
            split: None if pairs is None else self.checksum(pairs)
            for split, pairs in self.data._asdict().items()
        }
        return {**of_data, "teachers": teachers_checksum(self.recipe.distill.get("teachers", ()))}

    def data_names(self):
        return {**super().data_names(), "teachers": "the folders of the teachers"}

    def prepare(self):
        settings = self.recipe.distill
        if not settings.get("teachers"):
            raise ValueError(
                "A recipe with a table [distill] needs teachers: `keras-attn distill TEACHER --recipe FILE`, or "
                "`teachers` in the table."
            )
        if self.workers.is_first:
            self.translate()
        self.workers.wait()
        # Loading the teachers draws random numbers, and a run that goes on may need no teacher.
        keras.utils.set_random_seed(self.recipe.seed)
        super().prepare()

    def translate(self):
        """Completes the translations, and takes the teachers' tokenizers into the folder."""
        settings, translations = self.recipe.distill, self.translations()
        if translations.is_complete and self.has_tokenizers():
            return
        teacher = load_ensemble(settings["teachers"])
        self.save_tokenizers(teacher)
        self.check_student()
        self.write_record()  # now that nothing is wrong: a kill from here on is gone on with
        if translations.is_complete:
            return
        names = " and ".join(settings["teachers"])
        search = {name: settings.get(name) for name in ("num_beams", "length_penalty")}
        beams = search["num_beams"] or teacher.num_beams
        count = len(translations.sources)
        self.say(f"{names}: translating {count:,} sources, {'greedy' if beams == 1 else f'{beams} beams'}.")
        translations.complete(lambda texts: teacher(texts, **search))

    def check_student(self):
        """Raises what making the student and its batches would raise for the recipe, before hours of translating."""
        tokenizers = self.make_tokenizers()
        run_without_values(lambda: self.make_model(*tokenizers))
        if self.recipe.subword_sampling:
            for tokenizer in tokenizers:
                tokenizer.bpe_dropout()

    def translations(self):
        sources = [text for pairs in corpora_of(self.data.train) for text in pairs.sources]
        settings = self.recipe.distill
        made_with = {"teachers": self.checksums["teachers"]}
        made_with |= {name: settings.get(name) for name in ("num_beams", "length_penalty")}
        return TeacherTranslations(self.folder / "teacher.jsonl", sources, made_with, self.say)

    def has_tokenizers(self):
        return restored_folder(self.folder / _TOKENIZERS[0]).is_dir()

    def save_tokenizers(self, teacher):
        tokenizers = [getattr(teacher, name) for name in _TOKENIZERS]
        shared = tokenizers[0] is tokenizers[1]
        for name, tokenizer in reversed(list(zip(_TOKENIZERS, tokenizers))):
            if name == _TOKENIZERS[0] or not shared:
                with replaced_folder(self.folder / name, "tokenizer.json", "tokenizer") as built:
                    tokenizer.save(built)

    def make_tokenizers(self):
        source = load_tokenizer(restored_folder(self.folder / _TOKENIZERS[0]))
        other = restored_folder(self.folder / _TOKENIZERS[1])
        return source, load_tokenizer(other) if other.is_dir() else source

    def training_pairs(self):
        """The sources with the teachers' translations, and the given pairs with `references`; weighted as the corpora are."""
        corpora, translations = corpora_of(self.data.train), self.translations().read()
        taught, first = [], 0
        for pairs in corpora:
            of_corpus = translations[first : first + len(pairs)]
            first += len(pairs)
            rows = [row for row, text in enumerate(of_corpus) if text.strip()]
            if not rows:
                raise ValueError(
                    f"The teachers translate nothing of {pairs.name}: all translations are blank."
                )
            if len(rows) < len(pairs):
                self.say(f"{len(pairs) - len(rows):,} blank translations of {pairs.name} are left out.")
            # `Rows` know the lines of the user's file.
            sides = Rows(pairs.sources, rows), [of_corpus[row] for row in rows]
            taught.append(TextPairs(*sides, f"{pairs.name}, by the teachers"))
        weights = self.recipe.data_weights
        if not self.recipe.distill.get("references", True):
            return taught if len(taught) > 1 else taught[0], weights
        return [*taught, *corpora], None if weights is None else (*weights, *weights)
