"""The training run of a translator."""

import dataclasses
import functools
import importlib.util
import math
import shutil

import keras

from keras_attn.data import PairForm, translation_batches
from keras_attn.data.text_files import checksum
from keras_attn.runs.attention_views import AttentionPictures, TranslationFilm
from keras_attn.runs.combined_translators import weights_origin
from keras_attn.runs.data import as_corpora, corpora_in
from keras_attn.runs.evaluation import advice_on_a_low_score, evaluate, evaluation_of
from keras_attn.runs.progress import sample_line
from keras_attn.runs.run_folder import first_texts, read_record
from keras_attn.runs.starting_model import check_tokenizers, load_start, seed_dropout, start_of_run
from keras_attn.runs.tensorboard_logs import perplexity
from keras_attn.runs.training_run import TrainingRun, compiles_for_shapes
from keras_attn.tasks import Translator
from keras_attn.terminal import counted
from keras_attn.text import (
    ByteTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
    characters_of,
)
from keras_attn.training import TranslationQuality, paired_p_value
from keras_attn.training.summaries import samples_table

_TOKENS = "tokens"
_START = "start"
# More tokens than any source has, so that nothing is cut.
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

    result_name = "translator"

    def __init__(self, recipe, data, folder, verbose, processes, start=None):
        super().__init__(recipe, data, folder, verbose, processes)
        self.start = start

    def describe_data(self):
        described = {}
        for split, pairs in self.data._asdict().items():
            described[split] = None
            if pairs is not None:
                described[split] = [f"{part.name}, {len(part)} pairs" for part in as_corpora(pairs)]
        return described

    def examples(self):
        return first_texts(self.data.validation.sources)

    def checksum(self, pairs):
        return [checksum(side) for part in as_corpora(pairs) for side in (part.sources, part.targets)]

    def names(self, split, pairs):
        files = {"train": self.recipe.data, "validation": self.recipe.validation, "test": self.recipe.test}
        corpora = corpora_in(files[split] or self.recipe.data)
        names = []
        for number, part in enumerate(as_corpora(pairs)):
            if number < len(corpora):
                names += [corpora[number][0], corpora[number][-1]]
            else:  # given in Python
                names += [f"the sources of {part.name}", f"the targets of {part.name}"]
        return names

    def prepare(self):
        recipe = self.recipe
        begins_with_translator = recipe.start_from is not None
        conventions = {}
        if begins_with_translator:
            self.translator = self.load_start()
            conventions = self.translator.conventions()
            source_tokenizer, target_tokenizer = self.translator.tokenizers.values()
            self.model = self.translator.model
            seed_dropout(self.model, recipe.seed)
        else:
            source_tokenizer, target_tokenizer = self.make_tokenizers()
            self.model = self.make_model(source_tokenizer, target_tokenizer)
        if self.processes.is_first:
            self.batches = self.make_batches(source_tokenizer, target_tokenizer)  # which writes the token ids
        self.processes.wait()
        if not self.processes.is_first:
            self.batches = self.make_batches(source_tokenizer, target_tokenizer)  # which reads them
        self.translator = Translator(
            self.model,
            source_tokenizer,
            target_tokenizer,
            num_beams=recipe.num_beams,
            length_penalty=recipe.length_penalty,
            max_length=recipe.max_length,
            **conventions,
        )
        if self.processes.is_first:  # which writes the files
            self.weights_metadata = weights_origin(self.translator)
        if begins_with_translator:
            self.score_before_training()

    def load_start(self):
        """The translator to begin with; it is kept in the run folder, so that a run that goes on needs no other."""
        if self.is_resumed:
            return start_of_run(self.folder, self.recipe)
        start = self.start
        if start is None:
            start = load_start(self.recipe)
            check_tokenizers(start, self.data.train)
        new = self.characters()
        for tokenizer in start.tokenizers.values():
            if tokenizer.characters is not None:
                tokenizer.characters = characters_of([tokenizer.characters, new])
        if self.processes.is_first:
            start.save(self.folder / _START)
        self.processes.wait()
        return start

    def score_before_training(self):
        """Sets the score that the first epoch has to beat, so that the run never ends worse than it began."""
        scores = None
        if self.is_resumed:
            scores = read_record(self.folder)["results"].get(_BEFORE)
        if scores is None and self.processes.is_first:
            logs = {}
            self.quality.on_epoch_end(-1, logs)
            scores = {self.recipe.metric: logs[self.monitor]}
            self.say(f"Validation {self.recipe.metric} before training: {logs[self.monitor]:.4g}")
        if scores is not None:
            self.results[_BEFORE] = scores
        self.score_before = self.processes.tell((scores or {}).get(self.recipe.metric, 0.0))

    def make_tokenizers(self):
        recipe = self.recipe

        def make():
            if recipe.tokenizer == "bytes":
                tokenizer = ByteTokenizer()
            else:
                texts = _vocabulary_texts(as_corpora(self.data.train))
                options = {}
                if recipe.split_digits:
                    options["split_digits"] = True
                tokenizer = _TOKENIZERS[recipe.tokenizer](texts, recipe.vocabulary_size, **options)
            tokenizer.characters = self.characters()
            return tokenizer

        tokenizer = self.saved_tokenizer(make)
        return tokenizer, tokenizer

    def characters(self):
        """The characters of the training data."""
        columns = [side for part in as_corpora(self.data.train) for side in (part.sources, part.targets)]
        return characters_of(list(map(characters_of, columns)))

    def make_model(self, source_tokenizer, target_tokenizer):
        target_vocabulary_size = None
        if target_tokenizer is not source_tokenizer:
            target_vocabulary_size = target_tokenizer.vocabulary_size
        return self.recipe.make_model(
            vocabulary_size=source_tokenizer.vocabulary_size,
            target_vocabulary_size=target_vocabulary_size,
            dtype=self.recipe.dtype_policy,
            name="transformer",
        )

    def make_batches(self, source_tokenizer, target_tokenizer):
        recipe = self.recipe
        padding = recipe.padding
        if padding is None:
            padding = "buckets" if compiles_for_shapes() else "longest"
        bucket_boundaries = None if padding == "longest" else recipe.bucket_boundaries
        packed_length = recipe.bucket_boundaries[-1] if padding == "packed" else None
        pairs, weights = self.training_pairs()
        return translation_batches(
            pairs,
            source_tokenizer,
            target_tokenizer,
            max_tokens=recipe.max_tokens * recipe.gradient_accumulation_steps,
            max_sequence_length=self.model.max_sequence_length,
            bucket_boundaries=bucket_boundaries,
            packed_length=packed_length,
            weights=weights,
            seed=recipe.seed,
            num_micro_batches=recipe.gradient_accumulation_steps,
            num_devices=self.processes.num_devices,
            worker=(self.processes.number, self.processes.count),
            sample_weights=True,
            token_folder=self.folder / _TOKENS,
            form=self.pair_form(),
            subword_sampling=recipe.subword_sampling,
        )

    def training_pairs(self):
        """The `TextPairs` that are trained on, or several, and their weights or None."""
        return self.data.train, self.recipe.data_weights

    def pair_form(self):
        """The `PairForm` of the translator that the run begins with: what stands around the tokens of a pair."""
        if self.recipe.start_from is None:
            return PairForm()
        start = self.translator
        first_ids = (start.start_token_id,)
        if start.options.first_token_id is not None:
            first_ids += (start.options.first_token_id,)

        def source_token_ids(texts):
            return start.source_token_ids(texts, longest=_UNCUT)[0]

        return PairForm(source_token_ids, first_ids, self.label_padding)

    @property
    def label_padding(self):
        # In checkpoints 0 may be any token.
        return 0 if self.recipe.start_from is None else -1

    @functools.cached_property
    def quality(self):
        """The callback that translates the validation data."""
        validation = self.data.validation

        def translate(texts):
            # A model that has learned little finds no END, and would write up to its longest answer.
            max_length = min(self.translator.max_length, self.batches.longest)
            return self.translator(texts, num_beams=1, max_length=max_length)

        return TranslationQuality(
            translate,
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
        """The perplexity of the targets of text pairs, without those that are too long for the model."""
        tokens = self.translator.target_tokenizer.encode(list(pairs.targets))
        short = [row for row, ids in enumerate(tokens) if len(ids) < self.model.max_sequence_length]
        if not short:
            return math.nan
        sources = [pairs.sources[row] for row in short]
        targets = [pairs.targets[row] for row in short]
        log_probs = sum(self.translator.score(sources, targets, length_penalty=0.0))
        num_tokens = sum(len(tokens[row]) + 1 for row in short)
        return perplexity(-log_probs / num_tokens)

    def samples_text(self):
        """The first translations of the validation data in a table, those of all epochs of the same sentences."""
        validation = self.data.validation
        table = samples_table(
            validation.sources[:_NUM_SAMPLES],
            self.quality.translations[:_NUM_SAMPLES],
            validation.targets[:_NUM_SAMPLES],
        )
        return {"translations": table}

    def make_film(self):
        return TranslationFilm(self.translator, self.data.validation, self.folder)

    def picture_drawing(self):
        if importlib.util.find_spec("matplotlib") is None:
            self.say(
                'TensorBoard gets pictures of attention with matplotlib: pip install "keras_attn[plots]"'
            )
            return dict
        return AttentionPictures(self.translator, self.data.validation).draw

    def sample(self):
        if not self.processes.is_first:
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
        pairs = self.data.validation
        translator = self.translator
        translations = translator(pairs.sources)
        evaluation = evaluation_of(
            translations, pairs, translator.num_beams, translator.length_penalty, self.recipe.bleu_tokenize
        )
        self.results[f"validation, {name}"] = dataclasses.asdict(evaluation)
        return getattr(evaluation, self.recipe.metric), translations

    def p_value(self, average, best):
        """The p-value that the best epoch's translations are better than the average's."""
        references = self.data.validation.targets
        return paired_p_value(average, best, references, self.recipe.metric, self.recipe.bleu_tokenize)

    def evaluate(self):
        advice = None
        for split in ("validation", "test"):
            pairs = getattr(self.data, split)
            if pairs is None:
                continue
            self.say(f"Evaluating {counted(len(pairs), 'pair')} ...")
            evaluation = evaluate(self.translator, pairs, bleu_tokenize=self.recipe.bleu_tokenize)
            self.results[split] = dataclasses.asdict(evaluation)
            self.say(evaluation.report())
            if split == "validation":
                advice = advice_on_a_low_score(
                    evaluation, as_corpora(self.data.train), self.scores(), self.progress.updates
                )
        self.advice = advice
        if advice:
            self.say(f"\n{advice.text}\n")

    def clean_up(self):
        # The token ids are as large as the data. They are removed only after the run has ended: a run that is
        # killed before could not be resumed without them.
        shutil.rmtree(self.folder / _TOKENS)
        # The translator that was made holds the same tokenizers and the same form of model.
        shutil.rmtree(self.folder / _START, ignore_errors=True)
        super().clean_up()

    def where(self):
        return f"The translator lies in {self.folder / 'translator'}"


def _vocabulary_texts(corpora):
    step = math.ceil(2 * sum(map(len, corpora)) / _MOST_LINES_FOR_VOCABULARY)
    texts = []
    for pairs in corpora:
        texts += pairs.sources[::step]
        texts += pairs.targets[::step]
    return texts
