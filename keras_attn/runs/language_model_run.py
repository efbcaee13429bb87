"""The training run of a language model."""

import dataclasses
import functools

import keras

from keras_attn.data import TextWindows
from keras_attn.data.text_files import checksum
from keras_attn.files import replaced_folder, restored_folder
from keras_attn.generation import DecodingOptions
from keras_attn.runs.attention_film import TextFilm
from keras_attn.runs.board import perplexity
from keras_attn.runs.run_record import first_texts
from keras_attn.runs.text_evaluation import (
    check_predictable,
    evaluated,
    losses_of,
    text_token_ids,
    window_losses,
)
from keras_attn.runs.training_run import TrainingRun
from keras_attn.tasks import TextGenerator
from keras_attn.text import ByteTokenizer, SentencePieceTokenizer, load_tokenizer
from keras_attn.training import p_value_of_differences
from keras_attn.training.summaries import markdown_table

_NUM_SAMPLES = 3
_TOKENS_OF_A_SAMPLE = 60
_TOKENIZER = "tokenizer"
_PROMPT_WORDS = 4
_SEEDS = 2**31  # a seed of drawing is an int32, one of a run goes up to 2**32 - 1


class LanguageModelRun(TrainingRun):
    """Trains a decoder-only model on a text; the result is a `TextGenerator`."""

    def describe_data(self):
        return {
            split: None if text is None else [f"{text.name}, {len(text.text):,} characters"]
            for split, text in self.data._asdict().items()
        }

    def examples(self):
        return first_texts(
            " ".join(line.split()[:_PROMPT_WORDS]) for line in self.data.validation.text.splitlines()
        )

    def checksum(self, text):
        return checksum([text.text])

    def names(self, split, text):
        files = {"train": self.recipe.data, "validation": self.recipe.validation, "test": self.recipe.test}
        return ", ".join(files[split] or self.recipe.data) or text.name

    def prepare(self):
        recipe, tokenizer = self.recipe, self.make_tokenizer()
        self.model = recipe.make_model(vocabulary_size=tokenizer.vocabulary_size, dtype=recipe.dtype_policy)
        self.token_ids = {
            split: text_token_ids(tokenizer, text.text, recipe.documents)
            for split, text in self.data._asdict().items()
            if text is not None
        }
        for split, token_ids in self.token_ids.items():
            check_predictable(token_ids, getattr(self.data, split).name)
        length = self.model.max_sequence_length
        self.batches = TextWindows(
            self.token_ids["train"],
            window_length=length,
            batch_size=max(1, recipe.max_tokens * recipe.gradient_accumulation_steps // length),
            seed=recipe.seed,
            num_micro_batches=recipe.gradient_accumulation_steps,
            num_devices=self.workers.num_devices,
            worker=(self.workers.number, self.workers.count),
        )
        # What a text begins after: the end of the one before it, or of the line before it.
        end, [[*_, line_break]] = tokenizer.end_token_id, tokenizer.encode(["\n"])
        self.generator = TextGenerator(
            self.model,
            tokenizer,
            max_length=recipe.max_length,
            start_token_id=end if recipe.documents else line_break,
        )
        self.window_losses = window_losses(self.model)

    def make_tokenizer(self):
        recipe, folder = self.recipe, self.folder / _TOKENIZER
        if self.workers.is_first and not restored_folder(folder).is_dir():
            tokenizer = ByteTokenizer()
            if recipe.tokenizer != "bytes":
                tokenizer = SentencePieceTokenizer.train(
                    self.data.train.text.splitlines(),
                    recipe.vocabulary_size,
                    model_type=recipe.tokenizer,
                    split_digits=recipe.split_digits,
                    keep_white_space=True,
                )
            with replaced_folder(folder, "tokenizer.json", "tokenizer") as built:
                tokenizer.save(built)
        self.workers.wait()
        return load_tokenizer(folder)

    def validators(self):
        def write(epoch, logs):
            logs["val_loss"] = self.loss("validation")
            logs["val_perplexity"] = perplexity(logs["val_loss"])

        return [keras.callbacks.LambdaCallback(on_epoch_end=write)]

    def samples_text(self):
        """Texts sampled from the model, those of all epochs with the same seeds."""
        return {
            "samples": markdown_table(
                ("", "sample"), [(str(n), text) for n, text in enumerate(self.samples(), 1)]
            )
        }

    @functools.cached_property
    def film(self):
        """What the page of attention shows, or None on backends that have no maps of given texts."""
        if keras.backend.backend() != "tensorflow":
            return None
        return TextFilm(self.generator, self.token_ids["validation"], self.folder)

    def pictures(self):
        if self.film is None:
            return dict

        def keep():
            self.film.keep(self.progress.epoch)
            return {}

        return keep

    def loss(self, split):
        """The mean cross-entropy, in nats, of all tokens of a split but the first, within their windows."""
        return self.evaluation(split).loss

    def evaluation(self, split):
        text, losses = getattr(self.data, split), self.losses(split)
        return evaluated(text, self.token_ids[split], self.generator.tokenizer, losses)

    def losses(self, split):
        """The summed loss of each window of a split."""
        return losses_of(self.token_ids[split], self.model, self.window_losses)

    def score(self, name):
        losses = self.losses("validation")
        loss = float(losses.sum()) / (len(self.token_ids["validation"]) - 1)
        self.results[f"validation, {name}"] = {"loss": loss}
        return loss, losses

    def p_value(self, of_average, of_best):
        """Of the best epoch's losses of the windows against the average's."""
        return p_value_of_differences(of_best - of_average)

    def evaluate(self):
        for split in ("validation", "test"):
            if getattr(self.data, split) is None:
                continue
            evaluation = self.evaluation(split)
            self.results[split] = {
                **dataclasses.asdict(evaluation),
                "perplexity": evaluation.perplexity,
                "nats_a_byte": evaluation.nats_a_byte,
                "bits_a_byte": evaluation.bits_a_byte,
            }
            self.say(evaluation.report())
        self.say("")
        for text in self.samples():
            self.say(text)
        if self.film is not None and (page := self.film.write(self.generator)):
            self.say(f"What it attends to, epoch by epoch: {page}")

    def clean_up(self):
        if self.film is not None:
            self.film.remove_frames()

    def samples(self):
        """A few texts that the model writes, those of all epochs with the same seeds."""
        return [self.written(self.recipe.seed + number) for number in range(_NUM_SAMPLES)]

    def written(self, seed, max_length=None):
        """A text that the model writes."""
        options = DecodingOptions(temperature=0.8, seed=seed % _SEEDS)
        return self.generator("", max_length=max_length, options=options)

    def sample(self):
        if not self.workers.is_first:
            return ""
        length = min(_TOKENS_OF_A_SAMPLE, self.generator.max_length)
        return f"  writes: {' '.join(self.written(self.progress.epoch, length).split())}"

    def seconds_of_the_end(self):
        # Nothing is searched for: the last evaluations take as long as the others.
        return self.validation_seconds * (
            1 + (self.data.test is not None) + 2 * (self.recipe.num_averaged > 1)
        )

    def command_to_try(self, folder):
        return f"keras-attn generate {folder} 'To be'"

    def save_result(self):
        self.generator.save(self.folder / "text_generator")

    def load_result(self):
        self.generator = TextGenerator.load(self.folder / "text_generator")
        self.model = self.generator.model
        self.window_losses = window_losses(self.model)

    @property
    def result(self):
        return self.generator

    def where(self):
        return f"The text generator lies in {self.folder / 'text_generator'}"
