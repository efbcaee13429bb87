"""What all tasks share: their declaration, the graphs that they keep, saved folders, exports, and pages of attention."""

import collections
import copy
import dataclasses
import functools
import inspect
import pathlib

import keras
import tensorflow as tf

from keras_attn import task_registry
from keras_attn.checks import choose
from keras_attn.export import (
    TEXTS,
    export_saved_model,
    read_quantization,
    read_xla_buckets,
    verify_saved_model,
)
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
from keras_attn.plots import explore
from keras_attn.tasks.attention_maps import compared_tasks
from keras_attn.tasks.batches import BATCH_SIZES, untold_cuts
from keras_attn.tasks.export_files import ExportFiles
from keras_attn.tasks.graph_cache import GraphCache
from keras_attn.tasks.saved_tasks import model_from_description, read_task, write_task
from keras_attn.tasks.signatures import SignatureFunctions
from keras_attn.text import PipelineTokenizer, as_utf8

PageLabels = collections.namedtuple("PageLabels", ["input", "placeholder", "output"])
PageLabels.__doc__ = (
    """The words of a task's page: above the box of the text, in the empty box, and above the answer."""
)


class Task:
    """A model and its tokenizers, called with strings: the base class of all tasks.

    A task declares itself by attributes of its class. From then on it is known, and `keras_attn.load` finds it in the folders of
    saved tasks. The first four attributes are read from the source before the class is imported, so they must be literals.

    Attributes:
        name: String, what messages call it. Its files are named after it.
        heads: Endings of class names of transformers. A checkpoint whose `architectures` in config.json has one becomes this task.
        bodies: The kinds of models without a head that become this task: "encoder", "decoder", "seq2seq".
        checkpoint_formats: Formats of other checkpoints that become it: "sentence-transformers", "opennmt-tf".
        article: String, "A" or "An".
        mixin: The class of which its model must be an instance, or a tuple of classes.
        needs_tensorflow: String, the message on other backends.
        tokenizer_names: The arguments of the constructor that are tokenizers; each is saved in a folder of its name.
        saved_options: The names of other arguments that are saved; they are attributes too.
        saved_lists: Those of `saved_options` that are lists of strings.
        data_names: The attributes that are inputs of its graphs, so that no graph depends on them.
        saved_format: Integer, the format of its saved configuration. One with entries of `more_to_save` has the next number.
        signatures: {name: `Signature`} of its export, `serving_default` first.
        signature_inputs: {name: `Input`} of the inputs of all signatures, in the order in which a page shows them.
        served_functions: The subclass of `SignatureFunctions` that computes the signatures.
        export_description: String, the first sentence of an export's README.
        export_formats: The formats of `export_model`.
        compiles_with_xla: Boolean, whether there is an export for XLA.
        takes: "texts" or "images".
        page_labels: `PageLabels`.
        asked_signatures: Names of signatures. A page asks the first that an export has, or `serving_default` if it has none.
        drawing_signature: The name of the signature that draws at random, or None.
        statuses: {name in a `status`: a sentence that explains it}.
        show_options: The names of the options of `show` that this task takes.

    Args:
        model: A model with the `mixin`.
        tokenizers: Dict from the name of an attribute to a tokenizer.

    A task answers as it is now: its model may be trained, quantised, adapted and exchanged, and so may every argument of its
    constructor, which is an attribute, and is checked when it is set as it is there. A copy has graphs of its own.

    Example: that of `keras_attn.tasks.EncoderTask`.
    """

    name = None
    heads = ()
    bodies = ()
    checkpoint_formats = ()
    article = "A"
    mixin = None
    tokenizer_names = ("tokenizer",)
    saved_options = ()
    saved_lists = ()
    data_names = ()
    saved_format = 1
    signatures = {}
    signature_inputs = {}
    served_functions = SignatureFunctions
    export_description = "A model for TF Serving."
    export_formats = ()
    compiles_with_xla = True
    takes = "texts"
    page_labels = PageLabels("Text", "Type a text", "Answer")
    asked_signatures = ()
    drawing_signature = None
    statuses = {}
    show_options = ()

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if vars(cls).get("name"):  # a base of tasks has none, and a user's subclass of a task is that task
            task_registry.register(cls)

    def __init__(self, model, tokenizers):
        if not isinstance(model, self.mixin):
            raise ValueError(_wrong_model_message(self.mixin, model))
        self.model = model
        self.tokenizers = tokenizers
        self._graphs = GraphCache(self, self._names_outside_graphs())

    @classmethod
    def declaration(cls):
        """The `Declaration` of this task."""
        names = [field.name for field in dataclasses.fields(task_registry.Declaration)]
        return task_registry.Declaration(**{name: getattr(cls, name) for name in names})

    @property
    def needs_tensorflow(self):
        """What is said on other backends."""
        return f"{self.article} {self.name} needs Keras' TensorFlow backend: set KERAS_BACKEND=tensorflow."

    # As a value.

    def __setattr__(self, name, value):
        task_class = self._constructed_by()
        if name in vars(self) and task_class is not None and name in _arguments_of(task_class):
            vars(self).update(self.replaced(**{name: value}).__getstate__())
        else:
            super().__setattr__(name, value)

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "_graphs"}

    def __setstate__(self, state):
        vars(self).update(state)
        self._graphs = GraphCache(self, self._names_outside_graphs())

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
        task_class = self._constructed_by()
        if task_class is None:
            raise ValueError(
                f"The arguments of {type(self).__name__} must be its attributes, to be replaced."
            )
        arguments = {name: getattr(self, name) for name in _arguments_of(task_class)}
        return task_class(**arguments | changes)

    def _constructed_by(self):
        """The class, or the first of its bases whose constructor's arguments are attributes: a user's class may take others."""
        for task_class in type(self).__mro__:
            is_whole = getattr(task_class, "mixin", None) is not None
            if is_whole and all(name in vars(self) for name in _arguments_of(task_class)):
                return task_class
        return None

    # Quantisation.

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

    def quantized(self, quantization, *, xla=False):
        """This task, or if a quantisation is given, one with a quantised copy of the model.

        Args:
            quantization: A mode of `keras_attn.models.quantize`, or None.
            xla: Boolean, whether XLA will compile the products.

        Raises:
            ValueError: for another quantisation, int8 on a machine that cannot compute it, or a model as `quantize`
                refuses.

        Example:

        ```python
        translator = keras_attn.Translator.load("runs/dates/translator").quantized("bfloat16")
        ```
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

    # Saved folders and checkpoints.

    def save(self, folder):
        """Writes the model, the tokenizers and the options to `folder`, replacing an older task of this kind there.

        The folder is built under a temporary name and then renamed. It holds JSON, the files of tokenizers and a
        safetensors file: nothing that could contain code. LoRA is merged in what is written. The class of a custom
        model must be registered with `keras.saving.register_keras_serializable`, also where it is loaded.

        Args:
            folder: Path.

        Raises:
            ValueError: if `folder` holds anything else, or the model is quantised to other than int8 or bfloat16 or is
                not a `keras.Model`.
        """
        write_task(self, folder)

    @classmethod
    def load(cls, folder):
        """Reads the task that `save` wrote; it never runs code from the folder.

        Args:
            folder: Path of the task, or of the run that made it.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: if one is damaged, or the weights do not fit the configuration.
        """
        return read_task(cls, folder)

    def more_to_save(self):
        """What is saved beside the options: {name: value for JSON}, without names if there is nothing."""
        return {}

    def write_more(self, folder):
        """Writes further files of a saved task to its folder."""

    @classmethod
    def from_saved(cls, config, folder):
        """The arguments of the constructor that `more_to_save` and `write_more` have written."""
        return {}

    @classmethod
    def readable_formats(cls):
        """The formats of saved configurations that `load` reads."""
        return (cls.saved_format, cls.saved_format + 1)

    @classmethod
    def model_from_saved(cls, config):
        """The model that a saved configuration describes, without its weights."""
        return model_from_description(config["model"], cls.mixin)

    @classmethod
    def weight_renaming(cls, config):
        """The function that turns the name of a weight in a saved folder into its current name."""
        return str

    @classmethod
    def from_checkpoint(cls, folder, labels=None, **options):
        """The task of a checkpoint: its weights, its tokenizer, and what its files say.

        Args:
            folder: Path of a folder as the hub holds it: config.json, safetensors files and the files of a tokenizer.
            labels: Of a classifier to fine-tune, a list of different strings: the head is then a new one, the one that the
                architecture has in transformers, whatever head the checkpoint has or none. Its logits have fresh weights; a
                projection before them, BERT's pooler for instance, is that of the files if they hold one.
            **options: What the files do not say, or say otherwise, see docs/checkpoints.md: `max_length` or `num_beams`, for
                example; and `dtype` and `ignored_fields`, as in `keras_attn.huggingface.load_model`.

        Returns:
            The task.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: if a file is damaged or not understood, the model is for another task, or there is no such option.

        Example: `TextClassifier.from_checkpoint("bert-base-uncased", ["bad", "good"], dtype="mixed_bfloat16")`.
        """
        if labels is not None:
            options["labels"] = labels
        try:
            return cls.read_checkpoint(pathlib.Path(folder), **options)
        except TypeError as error:
            if "unexpected keyword argument" not in str(error):
                raise
            raise ValueError(f"A {cls.__name__} of a checkpoint has no such option: {error}.") from error

    @classmethod
    def read_checkpoint(cls, folder, **options):
        """Implements `from_checkpoint` for a `pathlib.Path`."""
        raise ValueError(f"There are no checkpoints for {cls.article.lower()} {cls.name}.")

    # Exports.

    def available_signatures(self):
        """{name: `Signature`} of those that the model can answer, `attention` aside; a new dict."""
        return dict(self.signatures)

    def attention_signature(self):
        """The `Signature` of `attention`, for exports that are asked for it."""
        raise ValueError(f"{self.article} {self.name} has no signature `attention`.")

    def neutral_values(self):
        """{input: value for one text} of every option of every signature."""
        declared = self.signature_inputs.items()
        return {name: known.neutral for name, known in declared if known.neutral is not None}

    def widget_of(self, input_name):
        """How a page asks for an input of this task, see `Input`."""
        return self.signature_inputs[input_name].widget

    def export(
        self,
        folder,
        examples=None,
        *,
        xla=False,
        batch_sizes=BATCH_SIZES,
        lengths=None,
        signatures=None,
        quantization=None,
        attention=False,
    ):
        """Writes the next version of a SavedModel that takes strings, for TF Serving.

        `signatures` of the class, and the README next to the graph, describe the signatures with all their inputs and outputs.
        Every input has the batch as its first axis, and this task's options are the defaults. `serving_default` takes texts, or
        the bytes of images, and returns answers, and nothing else. A `status` is "ok", or names the deviations from the request,
        joined by commas: `text_truncated`, `unfinished`, `top_p_clamped` and the like.

        Next to the graph are `assets.extra/task.json`, by which `keras-attn serve` and others know what the export is;
        `assets.extra/tf_serving_warmup_requests`, with a request to each signature, which the server runs before it makes the
        version available; `batching_params.pbtxt` for `--enable_per_model_batching_parameters`; and a `README.md` with
        requests, their answers and the limits.

        With `xla=True`, the export is a different model, which needs its own folder. It has only `serving_default`, with its
        model part compiled with XLA, which the server must enable (`--xla_cpu_compilation_enabled`). Batches are padded
        inside the graph, so only the shapes of `batch_sizes` and `lengths` occur, and each of them is warmed up.

        Args:
            folder: Path of the served model, for example `saved_models/dates`. Its name is the model's name.
            examples: List of typical texts, or of images as in a call, for the warm-up and the README.
            xla: Boolean, whether to export a model that XLA compiles; not of images, whose decoding is no work for XLA.
            batch_sizes: With `xla`, increasing integers; larger batches are split into batches of the last size.
            lengths: With `xla`, increasing integers, the number of tokens of a text, special tokens counted. Defaults to the
                powers of two from 16. The last is the most that the task reads: the `max_length` of an encoder's task; of a
                text generator the model's `max_sequence_length` - 1; of a translator `max_sequence_length`, or if that is
                more, at least 1,024, to which longer sources are then cut.
            signatures: Without `xla`, the names of the signatures to write beside `serving_default`; by default all.
            quantization: `"bfloat16"` or `"int8"`, how matrices are stored and multiplied; by default as in the model. int8
                without `xla` needs oneDNN's 8-bit products, here and where it is served.
            attention: Without `xla`, whether to write a signature `attention` too: the scores of every head for a text or an
                image, which `keras_attn.plots.explore_answer` makes a page of.

        Returns:
            `pathlib.Path` of the new version folder, `folder`/1 or the next integer.

        Raises:
            ValueError: if `examples`, `batch_sizes`, `lengths`, `signatures` or `quantization` are invalid, or a model with
                LoRA is to be quantised, or for int8 without `xla` on a machine that cannot compute it, or the model has no
                attention that an export can give.
        """
        self._check_export(xla, signatures, attention, batch_sizes, lengths)
        sizes = {"batch_sizes": batch_sizes, "lengths": lengths} if xla else None
        served = self.as_exported(quantization, sizes)
        buckets = None if sizes is None else served.xla_buckets(**sizes)
        functions = served.served_functions(served, signatures, attention=attention, buckets=buckets)
        files = ExportFiles(functions, pathlib.Path(folder).resolve().name, examples)
        mode = quantization_of(served.model)
        if mode is not None:
            files.compare_answers_with(self, mode)
        graphs = functions.all()
        if mode == "int8" and buckets is None:
            graphs = {name: (_with_int8_check(function), specs) for name, (function, specs) in graphs.items()}
        with inference_scope():
            return export_saved_model(
                folder,
                graphs,
                models=[served.model],
                resources=list(served.tokenizers.values()),
                add_files=files.write,
            )

    def export_model(self, folder, format, quantization=None):
        """Writes the model for another library or engine.

        A classifier has `"huggingface"`: what transformers' AutoModelForSequenceClassification and AutoTokenizer load, or
        AutoModelForImageClassification and AutoImageProcessor. The model must have the parts of a BERT, ViT, DeiT, DINOv2 or Swin,
        or of the checkpoint that it was loaded from if that can be written.

        A translator has four, with the tokenizers next to the model: tokens in, tokens out.

        - `"ctranslate2"`: see `keras_attn.export.export_ctranslate2`.
        - `"onnx"`: `logits.onnx` and `greedy.onnx`; `"litert"`: `model.tflite` with these two signatures.
          `logits` takes int32 `encoder_token_ids` (B, S) and `decoder_token_ids` (B, T) and returns float32
          `logits` (B, T, V). `greedy` takes `encoder_token_ids` and returns int32 `token_ids` (B,
          max_length): greedy search, END included, then pads. Both compute in float32.
        - `"huggingface"`: what transformers' AutoModelForSeq2SeqLM and AutoTokenizer load, see
          `keras_attn.huggingface.save_translator`.

        Args:
            folder: Path of the folder to write; it replaces an older export of this format there.
            format: String, one of `export_formats` of the class.
            quantization: How CTranslate2 stores the weights and computes, for example `"int8"`; for no other
                format.

        Returns:
            `pathlib.Path` of the folder.

        Raises:
            ValueError: for a format that the task lacks, a quantization that the format lacks, or a model that the engine or
                library cannot compute; the message names a difference.
            ImportError: if a package that writes the format is not installed; the message names it.
        """
        if not self.export_formats:
            raise ValueError(f"{self.article} {self.name} is exported as a SavedModel only.")
        if format not in self.export_formats:
            known = ", ".join(self.export_formats)
            raise ValueError(f"`format` must be one of {known}. Received: format={format!r}.")
        if quantization is not None and format != "ctranslate2":
            raise ValueError(
                "`quantization` is for SavedModels and for the format ctranslate2. "
                f"Received: quantization={quantization!r}, format={format!r}."
            )
        return self._export_model(folder, format, quantization)

    def write_export_files(self, folder):
        """Writes files to an export that this task alone has."""

    def xla_buckets(self, batch_sizes, lengths):
        """The `Buckets` of an export for XLA."""
        raise NotImplementedError(f"{type(self).__name__} has no `xla_buckets`.")

    def as_exported(self, quantization, buckets):
        """This task, quantised and compiled in Python as an export is, whose answers can then be compared.

        Args:
            quantization: As in `quantized`.
            buckets: What `read_xla_buckets` says of the export: a dict of its `batch_sizes` and `lengths`, or None.

        Raises:
            ValueError: as `quantized`, or for buckets that are not of this task.
        """
        task = copy.copy(self.quantized(quantization, xla=buckets is not None))
        task.jit_compile = buckets is not None
        return task

    def verify(self, version_folder):
        """Checks an export of this task as `keras_attn.export.verify_saved_model` does, and that it answers as this task.

        Args:
            version_folder: Path of a version folder, the one that holds `saved_model.pb`.

        Returns:
            A list of `keras_attn.export.Check`s.

        Example:

        ```python
        translator = keras_attn.Translator.load("runs/dates/translator")
        version = translator.export("saved_models/mine")
        assert not any(check.problems for check in translator.verify(version))
        ```
        """
        task = self.in_form_of(version_folder)
        return verify_saved_model(
            version_folder,
            task.verification_inputs(),
            task.default_answers,
            task.attention_answers,
        )

    def in_form_of(self, version_folder):
        """This task as an export of it was made: quantised, compiled."""
        quantization = read_quantization(version_folder)
        if not quantization:
            return self
        return self.as_exported(quantization["quantization"], read_xla_buckets(version_folder))

    def verification_inputs(self):
        """What `verify_saved_model` feeds to the export: strings, bytes, or bytes as `{"b64": str}`."""
        return TEXTS

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

    # Pages.

    def show(
        self,
        content,
        *,
        target=None,
        pair=None,
        grid=None,
        num_beams=None,
        max_length=None,
        source_language=None,
        target_language=None,
        title=None,
        path=None,
        compare=None,
        name="this",
    ):
        """A page on which a person explores what the model attends to, layer by layer and head by head.

        Of a task that writes, it shows the five best next tokens of each step too, and the answers of a beam search as a tree.
        Of an image, it shows where each patch looks, over the pixels that the patches read: a `VisionTransformer` cuts off what
        is no whole patch, a `SwinTransformer` fills it with zeros, which are the grey of the preprocessing's `mean`.

        Args:
            content: String, or of an image classifier an image as in a call.
            target: String; of a translator: a translation to explore. Defaults to the best one that the search finds.
            pair: String; of a task that reads two texts: the second text, of a question its context.
            grid: Pair of integers; of an image classifier: the rows and columns of the patches of a model that does not say
                them by a `PatchEmbedding`. Before them there may be one token, or fewer than the grid has rows and columns. Of
                a `SwinTransformer`, those of a stage, whose windows are put in place; by default the first with at most 2,048.
            num_beams, max_length: Of a task that writes: as in the constructor, whose values are the defaults.
            source_language, target_language: Of a multilingual translator: as in a call.
            title: String above the page. Defaults to the text; of an image to its label and score.
            path: Where to write the page, as `.html`.
            compare: Another task of this kind and of the same tokens, or patches, or a mapping from names to such, to show beside
                this one. All of them read the same text and what this one writes. By default it is "the other".
            name: String, the name of this task beside those of `compare`.

        Returns:
            `keras_attn.plots.Explorer`: a notebook shows it, and `save` writes it.

        Raises:
            ValueError: if the text is empty, it or what is written has more tokens than the model or the page can have, an image
                cannot be read, an option is not for this task, or `compare` has other tokens or patches.

        Example:

        ```python
        translator = keras_attn.Translator.load("runs/dates/translator")
        explorer = translator.show("4th of July 2016")
        explorer.save("attention.html")
        ```
        """
        self._check_backend()
        options = {
            "target": target,
            "pair": pair,
            "grid": grid,
            "num_beams": num_beams,
            "max_length": max_length,
            "source_language": source_language,
            "target_language": target_language,
        }
        options = {option: value for option, value in options.items() if value is not None}
        unknown = sorted(set(options) - set(self.show_options))
        if unknown:
            raise ValueError(f"{self.article} {self.name} is shown without {', '.join(unknown)}.")
        others = compared_tasks(self, compare)
        shown, compared = self.attended(content, others, **options)
        if title is not None:
            shown["title"] = title
        if compared:
            shown |= {"compare": compared, "name": name}
        return explore(**shown, path=path)

    def attended(self, content, others, **options):
        """What `show` shows.

        Args:
            content: As in `show`.
            others: Dict of the tasks to compare with, by their names.
            **options: Those of `show_options` that are given.

        Returns:
            Dict of arguments of `keras_attn.plots.explore`; and the maps of the other tasks by their names, for its `compare`.
        """
        raise ValueError(f"{self.article} {self.name} cannot be shown.")

    # Graphs.

    def graph_of(self, key, function, input_signature, *, depends_on_task=True):
        """The graph of a key, traced when it is first needed, and again when the task has changed.

        Args:
            key: What the graph depends on beside the task.
            function: Function of tensors, in which TensorFlow runs.
            input_signature: The specs of its inputs.
            depends_on_task: Boolean, whether it depends on the task or its model. False for a graph in which a tokenizer alone
                runs.
        """

        def trace():
            if depends_on_task:
                self._check_backend()
            with inference_scope():
                return tf.function(function, input_signature, autograph=False).get_concrete_function()

        return self._graphs.get(key, trace, depends_on_task)

    def cached(self, key, make):
        """What `make` returns for a key, made when it is first needed, and again when the task has changed."""
        return self._graphs.get(key, make)

    def _names_outside_graphs(self):
        return ("_graphs", *self.data_names)

    def _check_backend(self):
        if keras.backend.backend() != "tensorflow":
            raise RuntimeError(self.needs_tensorflow)

    def _check_export(self, xla, signatures, attention, batch_sizes, lengths):
        self._check_backend()
        if xla and not self.compiles_with_xla:
            raise ValueError(f"{self.article} {self.name} is exported without `xla`.")
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
def _arguments_of(task_class):
    return tuple(inspect.signature(task_class.__init__).parameters)[1:]


def check_int8():
    """Raises ValueError where int8 products without XLA cannot be computed."""
    if (problem := int8_problem()) is not None:
        raise ValueError(problem)


def _with_int8_check(function):
    """A signature that answers only where int8 products are right, on whatever machine it is served."""
    return lambda *inputs: with_int8_check(function(*inputs))


def as_given(columns, single):
    """Columns as a call returns them: a tuple if there are several; of a single text, its values instead of lists of one."""
    if single:
        columns = [column[0] for column in columns]
    return columns[0] if len(columns) == 1 else tuple(columns)


def only_text(text):
    """The UTF-8 of one text, a title for instance, as a string."""
    return as_utf8(text)[0].decode()


def _wrong_model_message(mixin, model):
    kinds = mixin if isinstance(mixin, tuple) else (mixin,)
    names = []
    for kind in kinds:
        names.append("keras.Model" if kind is keras.Model else f"keras_attn.models.{kind.__name__}")
    way_out = ""
    if mixin in (CausalGeneration, Seq2SeqGeneration):
        way_out = (
            " A model that is composed by hand, a functional one for instance, decodes by an adapter of about ten lines, a "
            f'class with this mixin: help(keras_attn.models.{mixin.__name__}), and "Your own model" in docs/decoding.md.'
        )
    elif EncoderWithHead in kinds:
        way_out = " An encoder of token ids becomes one with a head: keras_attn.models.EncoderWithHead(encoder, head)."
    return f"`model` must be a {' or '.join(names)}. Received: {type(model).__name__}.{way_out}"


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
