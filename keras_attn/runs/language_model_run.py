"""The training run of a language model."""

import math

import keras
import numpy as np
import tensorflow as tf

from keras_attn.data import TextWindows, consecutive_windows
from keras_attn.data.text_files import checksum
from keras_attn.files import replaced_file
from keras_attn.generation import DecodingOptions
from keras_attn.runs.board import perplexity
from keras_attn.runs.training_run import TrainingRun
from keras_attn.tasks.buckets import compiled_with_jax
from keras_attn.text import ByteTokenizer
from keras_attn.training import LabelSmoothedCrossentropy
from keras_attn.training.summaries import markdown_table

_NUM_SAMPLES = 3
_WINDOWS_PER_BATCH = 128


class LanguageModelRun(TrainingRun):
    """Trains a decoder-only model on the bytes of a text; the result is the Keras model."""

    def describe_data(self):
        return {
            split: None if text is None else [f"{text.name}, {len(text.text):,} characters"]
            for split, text in self.data._asdict().items()
        }

    def checksum(self, text):
        return checksum([text.text])

    def prepare(self):
        recipe, self.tokenizer = self.recipe, ByteTokenizer()
        self.model = recipe.make_model(
            vocabulary_size=self.tokenizer.vocabulary_size, dtype=recipe.dtype_policy
        )
        for split, text in self.data._asdict().items():
            if text is not None and len(self.token_ids(split)) < 2:
                raise ValueError(f"{text.name} must have two bytes or more, one of them to be predicted.")
        if self.workers.is_first:
            self.tokenizer.save(self.folder / "tokenizer")
        length = self.model.max_sequence_length
        self.batches = TextWindows(
            self.token_ids("train"),
            window_length=length,
            batch_size=max(1, recipe.max_tokens * recipe.gradient_accumulation_steps // length),
            seed=recipe.seed,
            num_micro_batches=recipe.gradient_accumulation_steps,
            num_devices=self.workers.num_devices,
            worker=(self.workers.number, self.workers.count),
        )
        self.compile_functions()

    def compile_functions(self):
        self.total_loss = self.compiled_loss()
        self.continuations = self.compiled_sampling()

    def token_ids(self, split):
        return self.tokenizer.encode([getattr(self.data, split).text])[0]

    def compiled_loss(self):
        """A function of windows and their labels that returns the sum of the tokens' cross-entropies."""
        model, cross_entropy = self.model, LabelSmoothedCrossentropy(reduction="sum")

        def total_loss(token_ids, labels):
            return cross_entropy(labels, model({"token_ids": token_ids}))

        if keras.backend.backend() == "jax":
            return compiled_with_jax(model, total_loss)
        return tf.function(total_loss, input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2)

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

    def loss(self, split):
        """The mean cross-entropy, in nats, of all tokens of a split but the first, within their windows."""
        token_ids = self.token_ids(split)
        total = sum(
            float(self.total_loss(inputs, labels))
            for inputs, labels in consecutive_windows(
                token_ids, self.model.max_sequence_length, _WINDOWS_PER_BATCH
            )
        )
        return total / (len(token_ids) - 1)

    def score(self, name):
        self.results[f"validation, {name}"] = {"loss": self.loss("validation")}
        return self.results[f"validation, {name}"]["loss"]

    def evaluate(self):
        for split in ("validation", "test"):
            if getattr(self.data, split) is None:
                continue
            loss = self.loss(split)
            self.results[split] = {"loss": loss}
            self.say(
                f"{getattr(self.data, split).name}: loss {loss:.4f} nats a byte, perplexity {math.exp(loss):.3f}"
            )
        self.say("")
        for text in self.samples():
            self.say(text)

    def samples(self):
        """A few texts sampled from the model after a line break."""
        prompt = np.repeat(np.array(self.tokenizer.encode(["\n"]), "int32"), _NUM_SAMPLES, axis=0)
        return self.tokenizer.decode(np.asarray(self.continuations(prompt)))

    def compiled_sampling(self):
        """A function of prompts (B, P) that returns the token ids drawn after them, with the same seeds each time."""
        model = self.model
        options = DecodingOptions(temperature=0.8, seed=self.recipe.seed + np.arange(_NUM_SAMPLES))

        def continuations(prompt):
            max_length = model.max_sequence_length - prompt.shape[1]
            return model.generate(prompt, self.tokenizer.end_token_id, max_length=max_length, options=options)

        # Op by op, a few samples take seconds.
        compiled = compiled_with_jax if keras.backend.backend() == "jax" else _with_tensorflow
        return compiled(model, continuations)

    def save_result(self):
        with replaced_file(self.folder / "model.keras") as aside:  # Keras does not write atomically
            self.model.save(aside)

    def load_result(self):
        self.model = keras.models.load_model(self.folder / "model.keras", compile=False)
        self.compile_functions()

    @property
    def result(self):
        return self.model

    def where(self):
        return f"The model lies in {self.folder / 'model.keras'}"


def _with_tensorflow(model, function):
    return tf.function(function)
