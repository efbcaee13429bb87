"""The training run of a translator."""

import dataclasses
import functools
import importlib.util
import math
import shutil

import keras

from keras_attn.data import PairForm, TextPairs, translation_batches
from keras_attn.data.text_files import checksum
from keras_attn.files import replaced_folder, restored_folder
from keras_attn.runs.advice import advice_on_a_low_score
from keras_attn.runs.attention_film import TranslationFilm
from keras_attn.runs.attention_pictures import AttentionPictures
from keras_attn.runs.averaging import weights_origin
from keras_attn.runs.board import perplexity
from keras_attn.runs.data import corpora_in
from keras_attn.runs.display import sample_line
from keras_attn.runs.evaluation import evaluate, evaluation_of
from keras_attn.runs.run_record import first_texts, read_record
from keras_attn.runs.starting_model import check_tokenizers, load_start, seed_dropout, start_of_run
from keras_attn.runs.training_run import TrainingRun, compiles_for_shapes
from keras_attn.tasks import Translator
from keras_attn.text import ByteTokenizer, SentencePieceTokenizer, WordPieceTokenizer, load_tokenizer
from keras_attn.training import TranslationQuality, paired_p_value
from keras_attn.training.summaries import samples_table

_TOKENIZER, _TOKENS, START = "tokenizer", "tokens", "start"
# More tokens than any source has: nothing is cut.
_UNCUT = 2**30
_BEFORE = "validation, before training"
_NUM_SAMPLES = 8
# If there are more lines, a vocabulary is trained on evenly spaced ones: sentencepiece holds them in memory.
_MOST_LINES_FOR_VOCABULARY = 5_000_000
# Functions of texts and of the size of the vocabulary.
_TOKENIZERS = {
    "bpe": functools.partial(SentencePieceTokenizer.train, model_type="bpe"),
    "unigram": functools.partial(SentencePieceTokenizer.train, model_type="unigram"),
    "wordpiece": WordPieceTokenizer.train,
}


class TranslationRun(TrainingRun):
    """Trains an encoder-decoder model on text pairs; the result is a `Translator`.

    Args:
        start: The `Translator` that `recipe.start_from` names, or None if it is to be loaded.
    """

    def __init__(self, recipe, data, folder, verbose, workers, start=None):
        super().__init__(recipe, data, folder, verbose, workers)
        self.start = start

    def describe_data(self):
        return {
            split: None
            if pairs is None
            else [f"{part.name}, {len(part)} pairs" for part in corpora_of(pairs)]
            for split, pairs in self.data._asdict().items()
        }

    def examples(self):
        return first_texts(self.data.validation.sources)

    def checksum(self, pairs):
        return [checksum(side) for part in corpora_of(pairs) for side in (part.sources, part.targets)]

    def names(self, split, pairs):
        files = {"train": self.recipe.data, "validation": self.recipe.validation, "test": self.recipe.test}
        corpora = corpora_in(files[split] or self.recipe.data)
        names = []
        for number, part in enumerate(corpora_of(pairs)):
            if number < len(corpora):
                names += [corpora[number][0], corpora[number][-1]]
            else:  # given in Python
                names += [f"the sources of {part.name}", f"the targets of {part.name}"]
        return names

    def prepare(self):
        started = self.recipe.start_from is not None
        if started:
            self.translator = self.load_start()
            source_tokenizer, target_tokenizer = self.translator.tokenizers.values()
            self.model = self.translator.model
            seed_dropout(self.model, self.recipe.seed)
        else:
            source_tokenizer, target_tokenizer = self.make_tokenizers()
            self.model = self.make_model(source_tokenizer, target_tokenizer)
        if self.workers.is_first:
            self.batches = self.make_batches(source_tokenizer, target_tokenizer)
        self.workers.wait()
        if not self.workers.is_first:  # after the first has written the token ids
            self.batches = self.make_batches(source_tokenizer, target_tokenizer)
        recipe = self.recipe
        of_start = self.translator.conventions() if started else {}
        self.translator = Translator(
            self.model,
            source_tokenizer,
            target_tokenizer,
            num_beams=recipe.num_beams,
            length_penalty=recipe.length_penalty,
            max_length=recipe.max_length,
            **of_start,
        )
        if self.workers.is_first:  # which writes the files
            self.weights_metadata = weights_origin(self.translator)
        if started:
            self.score_before_training()

    def load_start(self):
        """The translator to begin with; it is kept in the run folder, so that a run that goes on needs no other."""
        if self.is_resumed:
            return start_of_run(self.folder, self.recipe)
        start = self.start
        if start is None:
            start = load_start(self.recipe)
            check_tokenizers(start, self.data.train)
        if self.workers.is_first:
            start.save(self.folder / START)
        self.workers.wait()
        return start

    def score_before_training(self):
        """Sets the score that the first epoch has to beat, so that the run never ends worse than it began."""
        record = read_record(self.folder) if self.is_resumed else None
        scores = record["results"].get(_BEFORE) if record else None
        if scores is None and self.workers.is_first:
            logs = {}
            self.quality.on_epoch_end(-1, logs)
            scores = {self.recipe.metric: logs[self.monitor]}
            self.say(f"Validation {self.recipe.metric} before training: {logs[self.monitor]:.4g}")
        if scores is not None:
            self.results[_BEFORE] = scores
        self.score_before = self.workers.tell((scores or {}).get(self.recipe.metric, 0.0))

    def make_tokenizers(self):
        recipe = self.recipe
        if recipe.tokenizer == "bytes":
            tokenizer = ByteTokenizer()
            return tokenizer, tokenizer
        if self.workers.is_first and not restored_folder(self.folder / _TOKENIZER).is_dir():
            options = {"split_digits": True} if recipe.split_digits else {}
            trained = _TOKENIZERS[recipe.tokenizer](
                _for_vocabulary(corpora_of(self.data.train)), recipe.vocabulary_size, **options
            )
            with replaced_folder(self.folder / _TOKENIZER, "tokenizer.json", "tokenizer") as built:
                trained.save(built)
        self.workers.wait()
        tokenizer = load_tokenizer(self.folder / _TOKENIZER)
        return tokenizer, tokenizer

    def make_model(self, source_tokenizer, target_tokenizer):
        shared = source_tokenizer is target_tokenizer
        return self.recipe.make_model(
            vocabulary_size=source_tokenizer.vocabulary_size,
            target_vocabulary_size=None if shared else target_tokenizer.vocabulary_size,
            dtype=self.recipe.dtype_policy,
            name="transformer",
        )

    def make_batches(self, source_tokenizer, target_tokenizer):
        recipe = self.recipe
        padding = recipe.padding or ("buckets" if compiles_for_shapes() else "longest")
        pairs, weights = self.training_pairs()
        return translation_batches(
            pairs,
            source_tokenizer,
            target_tokenizer,
            max_tokens=recipe.max_tokens * recipe.gradient_accumulation_steps,
            max_sequence_length=self.model.max_sequence_length,
            bucket_boundaries=None if padding == "longest" else recipe.bucket_boundaries,
            packed_length=recipe.bucket_boundaries[-1] if padding == "packed" else None,
            weights=weights,
            seed=recipe.seed,
            num_micro_batches=recipe.gradient_accumulation_steps,
            num_devices=self.workers.num_devices,
            worker=(self.workers.number, self.workers.count),
            sample_weights=True,
            token_folder=self.folder / _TOKENS,
            form=self.pair_form(),
            subword_sampling=recipe.subword_sampling,
        )

    def training_pairs(self):
        """What is trained on: `TextPairs` or several, and their weights or None."""
        return self.data.train, self.recipe.data_weights

    def pair_form(self):
        """What stands around the tokens of a pair, as the translator to begin with has it."""
        if self.recipe.start_from is None:
            return PairForm()
        start = self.translator
        first = start.options.first_token_id
        return PairForm(
            lambda texts: start.source_token_ids(texts, longest=_UNCUT)[0],
            (start.start_token_id, *(() if first is None else (first,))),
            self.label_padding,
        )

    @property
    def label_padding(self):
        # In checkpoints 0 may be any token.
        return 0 if self.recipe.start_from is None else -1

    @functools.cached_property
    def quality(self):
        """The callback that translates the validation data."""
        validation = self.data.validation
        return TranslationQuality(
            # A model that has learned little would go on to the very end.
            lambda texts: self.translator(
                texts, num_beams=1, max_length=min(self.translator.max_length, self.batches.longest)
            ),
            validation.sources,
            validation.targets,
            metrics=(self.recipe.metric,),
            bleu_tokenize=self.recipe.bleu_tokenize,
        )

    def validators(self):
        validation = self.data.validation
        if keras.backend.backend() != "tensorflow":  # the only one that scores given texts
            return [self.quality]

        def write_perplexity(epoch, logs):
            logs["val_perplexity"] = self.perplexity_of(validation)

        return [self.quality, keras.callbacks.LambdaCallback(on_epoch_end=write_perplexity)]

    def perplexity_of(self, pairs):
        """The perplexity of the targets of text pairs, those aside that are longer than the model takes."""
        tokens = self.translator.target_tokenizer.encode(list(pairs.targets))
        short = [row for row, ids in enumerate(tokens) if len(ids) < self.model.max_sequence_length]
        if not short:
            return math.nan
        sources, targets = ([texts[row] for row in short] for texts in (pairs.sources, pairs.targets))
        log_probs = sum(self.translator.score(sources, targets, length_penalty=0.0))
        num_tokens = sum(len(tokens[row]) + 1 for row in short)
        return perplexity(-log_probs / num_tokens)

    def samples_text(self):
        """The first translations of the validation data in a table, those of all epochs of the same sentences."""
        parts = (self.data.validation.sources, self.quality.translations, self.data.validation.targets)
        return {"translations": samples_table(*(texts[:_NUM_SAMPLES] for texts in parts))}

    @functools.cached_property
    def film(self):
        """What the page of attention shows, or None on backends that have no maps of given texts."""
        if keras.backend.backend() != "tensorflow":
            return None
        return TranslationFilm(self.translator, self.data.validation, self.folder)

    def pictures(self):
        if self.film is None:
            return dict
        draw = dict
        if importlib.util.find_spec("matplotlib") is None:
            self.say(
                'TensorBoard gets pictures of attention with matplotlib: pip install "keras_attn[plots]"'
            )
        else:
            draw = AttentionPictures(self.translator, self.data.validation).draw

        def keep_and_draw():
            self.film.keep(self.progress.epoch)
            return draw()

        return keep_and_draw

    def sample(self):
        if not self.workers.is_first:
            return ""
        validation = self.data.validation
        index = (self.progress.epoch - 1) % len(validation)
        return sample_line(
            validation.sources[index], self.quality.translations[index], validation.targets[index]
        )

    def save_result(self):
        self.translator.save(self.folder / "translator")

    def load_result(self):
        self.translator = Translator.load(self.folder / "translator")
        self.model = self.translator.model

    @property
    def result(self):
        return self.translator

    def score(self, name):
        pairs, recipe = self.data.validation, self.recipe
        translations = self.translator(pairs.sources)
        decoding = self.translator.num_beams, self.translator.length_penalty
        evaluation = evaluation_of(translations, pairs, *decoding, recipe.bleu_tokenize)
        self.results[f"validation, {name}"] = dataclasses.asdict(evaluation)
        return getattr(evaluation, recipe.metric), translations

    def p_value(self, of_average, of_best):
        """Of the best epoch's translations against the average's."""
        references, recipe = self.data.validation.targets, self.recipe
        return paired_p_value(of_average, of_best, references, recipe.metric, recipe.bleu_tokenize)

    def evaluate(self):
        advice = ""
        for split in ("validation", "test"):
            pairs = getattr(self.data, split)
            if pairs is None:
                continue
            evaluation = evaluate(self.translator, pairs, bleu_tokenize=self.recipe.bleu_tokenize)
            self.results[split] = dataclasses.asdict(evaluation)
            self.say(evaluation.report())
            if split == "validation":
                advice = advice_on_a_low_score(
                    evaluation, corpora_of(self.data.train), self.scores(), self.progress.updates
                )
        if advice:
            self.say(f"\n{advice}\n")
        if self.film is not None and (page := self.film.write(self.translator)):
            self.say(f"What it attends to, epoch by epoch: {page}")

    def command_to_try(self, folder):
        return f'echo "..." | keras-attn translate {folder}'

    def clean_up(self):
        # The token ids are as large as the data. They are removed only after the run has ended: a run that is
        # killed before could not be resumed without them.
        shutil.rmtree(self.folder / _TOKENS)
        # The translator that was made holds the same tokenizers and the same form of model.
        shutil.rmtree(self.folder / START, ignore_errors=True)
        if self.film is not None:
            self.film.remove_frames()

    def where(self):
        return f"The translator lies in {self.folder / 'translator'}"


def _for_vocabulary(corpora):
    step = math.ceil(2 * sum(map(len, corpora)) / _MOST_LINES_FOR_VOCABULARY)
    return [text for pairs in corpora for side in (pairs.sources, pairs.targets) for text in side[::step]]


def corpora_of(pairs):
    """One or several `TextPairs` as a list."""
    return [pairs] if isinstance(pairs, TextPairs) else list(pairs)
