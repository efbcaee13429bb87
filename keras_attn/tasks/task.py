"""What all tasks share: graphs that are made once, exports, and the form in which calls answer."""

import copy
import functools
import inspect
import pathlib

import keras
import tensorflow as tf

from keras_attn.checks import choose
from keras_attn.export import TEXTS, export_saved_model
from keras_attn.models import (
    QUANTIZATIONS,
    CausalGeneration,
    EncoderWithHead,
    Seq2SeqGeneration,
    quantization_of,
    quantize,
    quantized_copy,
)
from keras_attn.ops import inference_scope, int8_problem, with_int8_check
from keras_attn.tasks.batches import untold_cuts
from keras_attn.tasks.buckets import BATCH_SIZES
from keras_attn.tasks.bundle import Bundle
from keras_attn.tasks.kept_graphs import KeptGraphs
from keras_attn.tasks.quantization_report import answers_before
from keras_attn.text import PipelineTokenizer


class Task:
    """A model and its tokenizers, called with strings.

    A subclass sets `name`, what messages call it, with its `article`, after which its files are named too; `mixin`, the class that its model
    must have; `needs_tensorflow`, what it says on other backends; and `saved_options`, the names of the arguments of its
    constructor, beside the parts, which are attributes and are saved, of which `saved_lists` are lists of strings.
    `tokenizer_names` are the arguments that are tokenizers, each saved in a folder of its name; `data_names` the attributes that
    graphs are given as inputs.

    A task answers as it is now: its model may be trained, quantised, adapted and exchanged, and so may every argument of its
    constructor, which is an attribute, and is checked when it is set as it is there. A copy has graphs of its own.

    Args:
        model: A model with the `mixin`.
        tokenizers: Dict from the name of an attribute to a tokenizer.
    """

    name = mixin = needs_tensorflow = None
    article = "A"
    saved_options = saved_lists = ()
    tokenizer_names = ("tokenizer",)
    data_names = ()

    def __init__(self, model, tokenizers):
        if not isinstance(model, self.mixin):
            raise ValueError(_wrong_model_message(self.mixin, model))
        self.model = model
        self.tokenizers = tokenizers
        self._graphs = KeptGraphs(self, self._names_outside_graphs())

    def __setattr__(self, name, value):
        kind = self._constructed_by()
        if name in vars(self) and kind is not None and name in _arguments_of(kind):
            vars(self).update(self.replaced(**{name: value}).__getstate__())
        else:
            super().__setattr__(name, value)

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "_graphs"}

    def __setstate__(self, state):
        vars(self).update(state)
        self._graphs = KeptGraphs(self, self._names_outside_graphs())

    def replaced(self, **changes):
        """A task with other values of its constructor's arguments; the other parts are shared, and the graphs are not.

        Args:
            **changes: The arguments that are others, by their names.

        Raises:
            ValueError: as the constructor.

        Example:

        ```python
        translator = keras_attn.Translator.load("runs/dates/translator")
        quick = translator.replaced(num_beams=1, jit_compile=True)
        ```
        """
        kind = self._constructed_by()
        if kind is None:
            raise ValueError(
                f"The arguments of {type(self).__name__} must be its attributes, to be replaced."
            )
        return kind(**{name: getattr(self, name) for name in _arguments_of(kind)} | changes)

    def quantize(self, mode):
        """Quantises the model in place, see `keras_attn.models.quantize`: calls then run the graphs of a quantised export.

        Args:
            mode: `"int8"` or `"bfloat16"`.

        Returns:
            The task itself.

        Raises:
            ValueError: for another mode, a model that is quantised or has LoRA, or int8 without `jit_compile` on a machine
                that cannot compute it.

        Example:

        ```python
        translator = keras_attn.Translator.load("runs/dates/translator").quantize("int8")
        ```
        """
        self._check_backend()
        if mode == "int8" and not getattr(self, "jit_compile", False):
            check_int8()
        quantize(self.model, mode)
        self._graphs.clear()  # they hold the variables as they were
        return self

    def quantized(self, quantization, xla=False):
        """This task, or if a quantisation is given, one with a quantised copy of the model.

        Args:
            quantization: A mode of `keras_attn.models.quantize`, or None.
            xla: Boolean, whether XLA will compile the products.

        Raises:
            ValueError: for another quantisation, int8 on a machine that cannot compute it, or a model as `quantize`
                refuses.
        """
        if quantization is None:
            quantization = quantization_of(self.model)
        else:
            choose("quantization", quantization, QUANTIZATIONS)
        if quantization == "int8" and not xla:
            check_int8()
        if quantization == quantization_of(self.model):
            return self
        task = copy.copy(self)
        task.model = quantized_copy(self.model, quantization)
        return task

    def as_exported(self, quantization, buckets):
        """This task, quantised and compiled in Python as an export is, whose answers can then be compared.

        Args:
            quantization: As in `quantized`.
            buckets: What `read_xla_buckets` says of the export: a dict of its `batch_sizes` and `lengths`, or None.

        Raises:
            ValueError: as `quantized`, or for buckets that are not of this task.
        """
        task = copy.copy(self.quantized(quantization, buckets is not None))
        task.jit_compile = buckets is not None
        return task

    def more_to_save(self):
        """What is saved beside the options: {name: value for JSON}, without names if there is nothing."""
        return {}

    @classmethod
    def from_saved(cls, config):
        """The arguments of the constructor that `more_to_save` has described in a saved configuration."""
        return {}

    def default_answers(self, texts):
        """What `serving_default` of the export answers to a list of strings. Texts are cut without a warning, as there."""
        with untold_cuts():
            return self._default_answers(texts)

    def _default_answers(self, texts):
        return self(texts)

    def attention_answers(self, texts):
        """A request about texts to the signature `attention` of the export, and what it must answer.

        Each text is run alone, eagerly, and watched by `keras_attn.capture_attention`.

        Args:
            texts: List of strings and bytes. Those without a token are left out.

        Returns:
            Dict of lists by the names of the inputs; a list of dicts of arrays without padding by the names of outputs; and
            whether the model rounds its activations (to bfloat16), so that another order of additions changes the scores.
        """
        with inference_scope(), untold_cuts():  # as an export is made
            inputs, answers = self._attention_answers(texts)
        return inputs, answers, self.model.compute_dtype != "float32"

    def verified_on(self):
        """What `verify_saved_model` feeds to the export: strings, bytes, or bytes as `{"b64": str}`."""
        return TEXTS

    def graph_of(self, key, function, input_signature, of_task=True):
        """The graph of a key, traced when it is first needed, and again when the task has changed.

        Args:
            key: What the graph depends on beside the task.
            function: Function of tensors, in which TensorFlow runs.
            input_signature: The specs of its inputs.
            of_task: Boolean, whether it depends on the task at all, and so on its model: of a graph of strings alone False.
        """

        def made():
            if of_task:
                self._check_backend()
            with inference_scope():
                return tf.function(function, input_signature, autograph=False).get_concrete_function()

        return self._graphs.get(key, made, of_task)

    def kept(self, key, make):
        """What `make` returns for a key, made when it is first needed, and again when the task has changed."""
        return self._graphs.get(key, make)

    def _export(self, folder, signatures, examples, unquantized=None):
        """Writes a version with these signatures; `unquantized` is the task that this is a quantised copy of."""
        bundle = Bundle(signatures, pathlib.Path(folder).resolve().name, examples)
        mode = quantization_of(self.model)
        if mode is not None:
            bundle.quantization = {"quantization": mode, **answers_before(unquantized, bundle.examples)}
        functions = signatures.all()
        if mode == "int8" and not signatures.buckets:
            functions = {name: (_checked(function), specs) for name, (function, specs) in functions.items()}
        with inference_scope():
            return export_saved_model(
                folder,
                functions,
                models=[self.model],
                resources=list(self.tokenizers.values()),
                add_files=bundle.write,
            )

    def _names_outside_graphs(self):
        return ("_graphs", *self.data_names)

    def _constructed_by(self):
        """The class, or the first of its bases whose constructor's arguments are attributes: a user's class may take others."""
        for kind in type(self).__mro__:
            is_whole = getattr(kind, "mixin", None) is not None
            if is_whole and all(name in vars(self) for name in _arguments_of(kind)):
                return kind
        return None

    def _check_backend(self):
        if keras.backend.backend() != "tensorflow":
            raise RuntimeError(self.needs_tensorflow)

    def _check_export(self, xla, signatures, attention=False, batch_sizes=BATCH_SIZES, lengths=None):
        self._check_backend()
        if not xla and (batch_sizes != BATCH_SIZES or lengths is not None):
            raise ValueError(
                "`batch_sizes` and `lengths` are those of an export for XLA: give `xla=True`, or leave them out."
            )
        if xla and attention:
            raise ValueError(
                "An export for XLA has `serving_default` alone: export `attention` to another folder, without `xla`."
            )
        if xla and signatures is not None:
            raise ValueError("An export for XLA has `serving_default` alone: give `xla` or `signatures`.")


@functools.cache
def _arguments_of(kind):
    return tuple(inspect.signature(kind.__init__).parameters)[1:]


def check_int8():
    """Raises ValueError where int8 products without XLA cannot be computed."""
    if (problem := int8_problem()) is not None:
        raise ValueError(problem)


def _checked(function):
    """A signature that answers only where int8 products are right, on whatever machine it is served."""
    return lambda *inputs: with_int8_check(function(*inputs))


def as_given(columns, single):
    """Lists as the caller wants them: one alone is no tuple; of a single text, only its own values."""
    if single:
        columns = [column[0] for column in columns]
    return columns[0] if len(columns) == 1 else tuple(columns)


def _wrong_model_message(mixin, model):
    kinds = mixin if isinstance(mixin, tuple) else (mixin,)
    names = " or ".join(
        "keras.Model" if kind is keras.Model else f"keras_attn.models.{kind.__name__}" for kind in kinds
    )
    way_out = ""
    if mixin in (CausalGeneration, Seq2SeqGeneration):
        way_out = (
            " A model that is composed by hand, a functional one for instance, decodes by an adapter of about ten lines, a "
            f'class with this mixin: help(keras_attn.models.{mixin.__name__}), and "Your own model" in docs/decoding.md.'
        )
    elif EncoderWithHead in kinds:
        way_out = " An encoder of token ids becomes one with a head: keras_attn.models.EncoderWithHead(encoder, head)."
    return f"`model` must be a {names}. Received: {type(model).__name__}.{way_out}"


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
