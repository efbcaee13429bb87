"""What all tasks share: graphs that are made once, exports, and the form in which calls answer."""

import pathlib
import threading

import keras
import tensorflow as tf

from keras_attn.export import export_saved_model
from keras_attn.tasks.bundle import Bundle
from keras_attn.text import PipelineTokenizer


class Task:
    """A model and its tokenizers, called with strings.

    A subclass sets `name`, what messages call it, after which its files are named too; `mixin`, the class that its model
    must have; `needs_tensorflow`, what it says on other backends; and `saved_options`, the names of the arguments of its
    constructor, beside the parts, which are attributes and are saved, of which `saved_lists` are lists of strings.

    Args:
        model: A model with the `mixin`.
        tokenizers: Dict from the name of an attribute to a tokenizer.
    """

    name = mixin = needs_tensorflow = None
    saved_options = saved_lists = ()

    def __init__(self, model, tokenizers):
        if not isinstance(model, self.mixin):
            kinds = self.mixin if isinstance(self.mixin, tuple) else (self.mixin,)
            names = " or ".join(f"keras_attn.models.{kind.__name__}" for kind in kinds)
            raise ValueError(f"`model` must have the mixin {names}. Received: {type(model).__name__}.")
        self.model = model
        self.tokenizers = tokenizers
        self._functions = {}
        self._functions_lock = threading.Lock()

    def more_to_save(self):
        """What is saved beside the options: {name: value for JSON}, without names if there is nothing."""
        return {}

    @classmethod
    def from_saved(cls, config):
        """The arguments of the constructor that `more_to_save` has described in a saved configuration."""
        return {}

    def default_answers(self, texts):
        """What `serving_default` of the export answers to a list of strings."""
        return self(texts)

    def graph_of(self, key, function, input_signature):
        """The graph of a key, traced when it is first needed."""
        if key not in self._functions and key != "texts":
            self._check_backend()
        return self.made_once(
            key, lambda: tf.function(function, input_signature, autograph=False).get_concrete_function()
        )

    def made_once(self, key, make):
        """The result of `make` for a key: `make` is called once, and by one thread at a time.

        Threads that trace at the same time pass the GIL back and forth at every op, and take many times as
        long.
        """
        if key not in self._functions:
            with self._functions_lock:
                if key not in self._functions:
                    self._functions[key] = make()
        return self._functions[key]

    def _export(self, folder, signatures, examples):
        bundle = Bundle(signatures, pathlib.Path(folder).resolve().name, examples)
        return export_saved_model(
            folder,
            signatures.all(),
            models=[self.model],
            resources=list(self.tokenizers.values()),
            add_files=bundle.write,
        )

    def _check_backend(self):
        if keras.backend.backend() != "tensorflow":
            raise RuntimeError(self.needs_tensorflow)

    def _check_export(self, xla, signatures):
        self._check_backend()
        if xla and signatures is not None:
            raise ValueError("An export for XLA has `serving_default` alone: give `xla` or `signatures`.")


def as_given(columns, single):
    """Lists as the caller wants them: one alone is no tuple; of a single text, only its own values."""
    if single:
        columns = [column[0] for column in columns]
    return columns[0] if len(columns) == 1 else tuple(columns)


def check_vocabulary(name, tokenizer, vocabulary_size):
    """Raises ValueError if a tokenizer does not have the vocabulary of the model; `name` is for the message.

    The models of checkpoints may have more rows than their tokenizers have ids.
    """
    fits = tokenizer.vocabulary_size == vocabulary_size
    if isinstance(tokenizer, PipelineTokenizer):
        fits = tokenizer.vocabulary_size <= vocabulary_size
    if not fits:
        raise ValueError(
            f"The {name} must have the model's vocabulary. Received: tokenizer with "
            f"{tokenizer.vocabulary_size} ids, model with {vocabulary_size}."
        )
