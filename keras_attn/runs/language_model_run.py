"""The training run of a language model."""

import dataclasses

import keras

from keras_attn.data import TextWindows
from keras_attn.data.text_files import checksum
from keras_attn.generation import DecodingOptions
from keras_attn.runs.attention_views import TextFilm
from keras_attn.runs.evaluation import (
    check_predictable,
    losses_of_windows,
    text_evaluation,
    text_token_ids,
    window_losses,
)
from keras_attn.runs.run_folder import first_texts
from keras_attn.runs.tensorboard_logs import perplexity
from keras_attn.runs.training_run import TrainingRun
from keras_attn.tasks import TextGenerator
from keras_attn.text import ByteTokenizer, SentencePieceTokenizer, characters_of
from keras_attn.training import p_value_of_differences
from keras_attn.training.summaries import markdown_table

_NUM_SAMPLES = 3
_TOKENS_OF_A_SAMPLE = 60
_PROMPT_WORDS = 4
_SEEDS = 2**31  # a seed of drawing is an int32, one of a run goes up to 2**32 - 1


class LanguageModelRun(TrainingRun):
    """Trains a decoder-only model on a text; the result is a `TextGenerator`."""

    result_name = "text_generator"

    def describe_data(self):
        described = {}
        for split, text in self.data._asdict().items():
            described[split] = None if text is None else [f"{text.name}, {len(text.text):,} characters"]
        return described

    def examples(self):
        lines = self.data.validation.text.splitlines()
        return first_texts(" ".join(line.split()[:_PROMPT_WORDS]) for line in lines)

    def checksum(self, text):
        return checksum([text.text])

    def names(self, split, text):
        files = {"train": self.recipe.data, "validation": self.recipe.validation, "test": self.recipe.test}
        return ", ".join(files[split] or self.recipe.data) or text.name

    def prepare(self):
        recipe = self.recipe
        tokenizer = self.saved_tokenizer(self.make_tokenizer)
        self.model = recipe.make_model(vocabulary_size=tokenizer.vocabulary_size, dtype=recipe.dtype_policy)
        self.token_ids = {}
        for split, text in self.data._asdict().items():
            if text is not None:
                self.token_ids[split] = text_token_ids(tokenizer, text.text, documents=recipe.documents)
                check_predictable(self.token_ids[split], text.name)
        length = self.model.max_sequence_length
        self.batches = TextWindows(
            self.token_ids["train"],
            window_length=length,
            batch_size=max(1, recipe.max_tokens * recipe.gradient_accumulation_steps // length),
            seed=recipe.seed,
            num_micro_batches=recipe.gradient_accumulation_steps,
            num_devices=self.processes.num_devices,
            worker=(self.processes.number, self.processes.count),
        )
        # What a text begins after: the end of the one before it, or of the line before it.
        start_token_id = tokenizer.end_token_id
        if not recipe.documents:
            start_token_id = tokenizer.encode(["\n"])[0][-1]
        self.generator = TextGenerator(
            self.model, tokenizer, max_length=recipe.max_length, start_token_id=start_token_id
        )
        self.window_losses = window_losses(self.model)

    def make_tokenizer(self):
        recipe = self.recipe
        if recipe.tokenizer == "bytes":
            tokenizer = ByteTokenizer()
            tokenizer.characters = characters_of([self.data.train.text])
            return tokenizer
        return SentencePieceTokenizer.train(
            self.data.train.text.splitlines(),
            recipe.vocabulary_size,
            model_type=recipe.tokenizer,
            split_digits=recipe.split_digits,
            keep_white_space=True,
        )

    def validators(self):
        def write(epoch, logs):
            logs["val_loss"] = self.loss("validation")
            logs["val_perplexity"] = perplexity(logs["val_loss"])

        return [keras.callbacks.LambdaCallback(on_epoch_end=write)]

    def samples_text(self):
        """Texts sampled from the model, those of all epochs with the same seeds."""
        rows = [(str(number), text) for number, text in enumerate(self.samples(), 1)]
        return {"samples": markdown_table(("", "sample"), rows)}

    def make_film(self):
        return TextFilm(self.generator, self.token_ids["validation"], self.folder)

    def loss(self, split):
        """The mean cross-entropy, in nats, of all tokens of a split but the first, within their windows."""
        return self.evaluation(split).loss

    def evaluation(self, split):
        text = getattr(self.data, split)
        return text_evaluation(text, self.token_ids[split], self.generator.tokenizer, self.losses(split))

    def losses(self, split):
        """The summed loss of each window of a split."""
        return losses_of_windows(self.token_ids[split], self.model, self.window_losses)

    def score(self, name):
        losses = self.losses("validation")
        loss = float(losses.sum()) / (len(self.token_ids["validation"]) - 1)
        self.results[f"validation, {name}"] = {"loss": loss}
        return loss, losses

    def p_value(self, average, best):
        """The p-value that the best epoch's losses of windows are lower than the average's."""
        return p_value_of_differences(best - average)

    def evaluate(self):
        for split in ("validation", "test"):
            if getattr(self.data, split) is None:
                continue
            self.say(f"Evaluating {getattr(self.data, split).name} ...")
            evaluation = self.evaluation(split)
            self.results[split] = dataclasses.asdict(evaluation) | {
                "perplexity": evaluation.perplexity,
                "nats_a_byte": evaluation.nats_a_byte,
                "bits_a_byte": evaluation.bits_a_byte,
            }
            self.say(evaluation.report())
        self.say("")
        for text in self.samples():
            self.say(text)

    def samples(self):
        """A few texts that the model writes, those of all epochs with the same seeds."""
        return [self.written(self.recipe.seed + number) for number in range(_NUM_SAMPLES)]

    def written(self, seed, max_length=None):
        """A text that the model writes."""
        options = DecodingOptions(temperature=0.8, seed=seed % _SEEDS)
        return self.generator("", max_length=max_length, options=options)

    def sample(self):
        if not self.processes.is_first:
            return ""
        length = min(_TOKENS_OF_A_SAMPLE, self.generator.max_length)
        return f"  writes: {' '.join(self.written(self.progress.epoch, length).split())}"

    def seconds_of_the_end(self):
        # Nothing is searched for: the last evaluations take as long as the others.
        return self.num_evaluations() * self.plan.validation_seconds

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
