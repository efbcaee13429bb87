"""A model of this library from a checkpoint's folder: all of its weights, or an error."""

import collections
import contextlib
import contextvars
import math
import re

import keras

from keras_attn.checks import check_positive
from keras_attn.huggingface.architecture import Output, own_name
from keras_attn.huggingface.checkpoint_files import Folder
from keras_attn.huggingface.config_fields import Fields, note_without_effect
from keras_attn.huggingface.generation_fields import is_generation_field
from keras_attn.huggingface.heads import with_head
from keras_attn.huggingface.model_types import is_body, model_type_of, task_of
from keras_attn.huggingface.name_tables import places
from keras_attn.huggingface.origin import keep_origin
from keras_attn.huggingface.weight_assignment import assign_in_parts, unwritten_variables
from keras_attn.models.copies import run_without_values
from keras_attn.models.weight_names import named_weights
from keras_attn.terminal import say

ReportRow = collections.namedtuple("ReportRow", ["tensor", "variable", "shape", "note"])
ReportRow.__doc__ = """What became of one tensor of a checkpoint.

tensor: its name in the files.
variable: the name of the variable, or None if the tensor is of no use to the model.
shape: its shape in the files.
note: "", "transposed", "same as NAME", or why it is of no use.
"""


_reads_weights = contextvars.ContextVar("reads_weights", default=True)
Twin = collections.namedtuple("Twin", ["shapes", "config"])
Twin.__doc__ = """A model that was made to be measured: {name: shape} of its variables, and its config."""


def load_model(folder, dtype=None, report=False, ignored_fields=(), head=True, num_new_labels=None):
    """The model in a checkpoint's folder: an `EncoderTransformer`, `DecoderTransformer`, `Seq2SeqTransformer` or
    `VisionTransformer`, or an `EncoderWithHead`.

    An encoder has the head that the class in the config's `architectures` has: a masked language model's, or one of sequence
    classification, token classification, question answering or image classification. Other heads are not used.

    Reads config.json and safetensors files, one tensor at a time. Every variable of the model is filled, and every
    tensor of the files is used or known to be of no use; otherwise nothing is returned.

    Args:
        folder: Path of a folder with config.json and model.safetensors, or its shards and their index.
        dtype: Dtype policy of the model, "mixed_bfloat16" for instance. Defaults to the global one. Weights are cast.
        report: Boolean, whether a row for each tensor is printed, see `read_report`.
        ignored_fields: Names of fields of the config that are not understood, but do not change the model.
        head: Boolean, False for an encoder without its head.
        num_new_labels: Integer, for fine-tuning: the encoder gets the classification head of its architecture with so many
            labels. Its logits have fresh weights, and so has the projection before them unless the files hold one.

    Returns:
        The model.

    Raises:
        FileNotFoundError: if the folder or one of its files is missing.
        ValueError: if the architecture or a field of the config is not known, a file is damaged, a tensor is missing or
            of another shape, holds NaN or an infinite value, or nobody knows what a tensor is for.

    Example:

    ```python
    model = load_model("all-MiniLM-L6-v2")
    vectors = model.sentence_vectors({"token_ids": np.array([[101, 7592, 102]])})  # (1, 384)
    ```
    """
    checkpoint = _Checkpoint(folder, ignored_fields, head, num_new_labels)
    if report:
        say("\n".join(map(_line, checkpoint.report)))
    with _dtype_policy(dtype):
        with unwritten_variables():
            model = checkpoint.body.make()
        if num_new_labels is not None:
            model = checkpoint.new_head.on(model)
    if _reads_weights.get():
        checkpoint.fill(model)
    keep_origin(model, checkpoint.folder, ignored_fields)
    return model


@contextlib.contextmanager
def weights_unread():
    """Models that are loaded in the block are made and checked, but the values of their weights are not read.

    Example:

    ```python
    with weights_unread():
        task = load_task("opus-mt-en-de")  # or the error that it would raise
    ```
    """
    token = _reads_weights.set(False)
    try:
        yield
    finally:
        _reads_weights.reset(token)


def read_report(folder, ignored_fields=(), head=True):
    """What `load_model` would do with each tensor of a checkpoint, as a list of `ReportRow`s. No weight is read.

    Args:
        folder, ignored_fields, head: As in `load_model`.

    Raises:
        FileNotFoundError, ValueError: as `load_model`, for all that config and headers show.

    Example:

    ```python
    for row in read_report("all-MiniLM-L6-v2"):
        print(row.tensor, row.variable, row.shape, row.note)
    ```
    """
    return _Checkpoint(folder, ignored_fields, head).report


class _Checkpoint:
    """A folder, its architecture, and a plan: which tensor goes where. Made without memory for weights."""

    def __init__(self, folder, ignored_fields=(), head=True, num_new_labels=None):
        self.folder = Folder(folder)
        config = self.folder.config
        if num_new_labels is not None:
            check_positive("num_new_labels", num_new_labels)
            names = {str(i): f"LABEL_{i}" for i in range(num_new_labels)}
            config, head = {**config, "id2label": names, "num_labels": num_new_labels}, False
        model_type = model_type_of(config)
        self.fields = fields = Fields(
            config, self.folder.num_values, len(self.folder.tensors), ignored_fields
        )
        self.task = task_of(config, head)
        # A head on a model that writes texts reads its vectors; "MaskedLM" has an output projection of its own.
        self._reads_vectors = self.task is not None or num_new_labels is not None
        self._is_body = not head or is_body(config)
        self._is_tied = model_type.is_tied
        self.architecture = model_type.understand(fields, self)
        fields.check_all_read()
        unknown = [name for name in fields.unknown_names if not is_generation_field(name)]
        note_without_effect("config.json", unknown)
        make_head = self.architecture.heads.get(self.task)
        if make_head is not None:
            made = make_head()
            self._check_masked_output(made)
            self.architecture = with_head(self.architecture, made)
        self.body = self.architecture  # what the files have to hold whole
        if num_new_labels is not None:
            heads = self.architecture.heads
            task = "ImageClassification" if model_type.kind == "images" else "SequenceClassification"
            if task not in heads:
                raise ValueError(
                    f"A new head is one that transformers has, and it has no {model_type.class_name}For{task}."
                )
            self.new_head = heads[task]()
            self.architecture = with_head(self.architecture, self.new_head)
        shapes = without_variables(self.architecture.make).shapes
        self._plan(places(shapes, self.architecture.names), is_head_new=num_new_labels is not None)

    def _check_masked_output(self, head):
        """Reads `tie_word_embeddings` of an encoder, for which a masked language model's output alone is a matter."""
        is_tied = self.fields.flag("tie_word_embeddings", True)
        if self.task == "MaskedLM" and not is_tied:
            _, output = head.same[0]
            if not self.called(output):
                raise ValueError(
                    f"{self.folder.path} does not hold {output}, and by `tie_word_embeddings` it is not the token embedding. "
                    "Received: tie_word_embeddings=False."
                )

    def output(self, fields, output, token):
        """The `Output` of a model that writes texts. Its projection is the token embedding if the field
        `tie_word_embeddings` says so, unless the files hold two different ones. A body that does not say so has none if
        there is none in its files, and neither has a model under a head.

        Args:
            fields: `Fields`.
            output, token: Names of the tensors.
        """
        is_tied = fields.flag("tie_word_embeddings", self._is_tied)
        if self._reads_vectors or (not is_tied and self._is_body and not self.called(output)):
            return Output(False, gives_logits=False)
        return Output(is_tied and not self.differ(output, token))

    def differ(self, name, other):
        """Whether the files hold both tensors, and with different values."""
        found = self.called(name)[:1] + self.called(other)[:1]
        return len(found) == 2 and not self.folder.are_equal(*found)

    def called(self, name):
        """The tensors of this name, with whatever prefix."""
        return [tensor for tensor in self.folder.tensors if f".{tensor}".endswith(f".{name}")]

    def _plan(self, wanted, is_head_new=False):
        names = self._names_in_files()
        same = {name: group for group in self.architecture.same for name in group}
        self._sources, missing, of_head = [], [], []
        for place in wanted:
            group = [place.tensor, *(name for name in same.get(place.tensor, ()) if name != place.tensor)]
            found = [names[name] for name in group if name in names]
            if is_head_new and place.variable.startswith("head/"):
                # The logits have other labels there.
                is_of_use = not place.variable.startswith("head/output") and all(
                    self.folder.tensors[name].shape == place.tensor_shape for name in found
                )
                of_head += [(place, found)] if found and is_of_use else []
            elif found:
                self._sources.append((place, found))
            else:
                missing.append(place.tensor)
        used = {name for _, found in self._sources for name in found}
        self._sources += of_head
        of_head = {name for _, found in of_head for name in found}
        reasons = self._reasons(used)
        left = {name: reasons(name) for name in self.folder.tensors if name not in used | of_head}
        unknown = sorted(name for name, reason in left.items() if reason is None)
        if missing or unknown:
            raise ValueError(
                f"{self.folder.path} does not hold exactly the weights of its model. "
                f"Missing: {_listed(missing)}. Not understood: {_listed(unknown)}."
            )
        self._check_shapes()
        self.report = [row for source in self._sources for row in self._rows(*source)]
        self.report += [ReportRow(n, None, self.folder.tensors[n].shape, why) for n, why in left.items()]

    def _names_in_files(self):
        """{today's name without prefix: name in the files}."""
        names = {}
        for name in self.folder.tensors:
            own = self._own_name(name)
            if own in names:
                raise ValueError(
                    f"{names[own]} and {name} in {self.folder.path} are one weight, stored twice."
                )
            names[own] = name
        return names

    def _own_name(self, name):
        return own_name(name, self.architecture.prefix, self.architecture.renamed)

    def _reasons(self, used):
        """A function from a tensor's name to the reason why it is of no use, or None."""
        own = {name: self._own_name(name) for name in self.folder.tensors}
        patterns = {re.compile(pattern): reason for pattern, reason in self.architecture.all_unused.items()}
        # A head that is used is used whole.
        patterns = {
            pattern: reason
            for pattern, reason in patterns.items()
            if not any(pattern.fullmatch(own[name]) for name in used)
        }
        return lambda name: next((why for p, why in patterns.items() if p.fullmatch(own[name])), None)

    def _check_shapes(self):
        for place, names in self._sources:
            for name in names:
                received = self.folder.tensors[name].shape
                if received != place.tensor_shape:
                    raise ValueError(
                        f"{name} in {self.folder.path} must have shape {place.tensor_shape} by the config. "
                        f"Received: shape {received}."
                    )

    def _rows(self, place, names):
        first, *others = names
        note = "transposed" if place.is_transposed else ""
        yield ReportRow(first, place.variable, place.tensor_shape, note)
        for name in others:
            yield ReportRow(name, place.variable, place.tensor_shape, f"same as {first}")

    def fill(self, model):
        """Assigns all weights, the largest first: for a moment each is in memory twice."""
        variables = named_weights(model)
        for place, names in sorted(self._sources, key=lambda source: -math.prod(source[0].shape)):
            try:
                assign_in_parts(variables[place.variable], self._array(place, names))
            except FloatingPointError as error:
                raise ValueError(f"{names[0]} in {self.folder.path} has values that are {error}.") from None

    def _array(self, place, names):
        """The values of one variable, in the dtype of the file, and as far as can be in the file."""
        name, *others = names
        for other in others:
            if not self.folder.are_equal(name, other):
                raise ValueError(f"{name} and {other} in {self.folder.path} must be equal, and are not.")
        return self.folder.rows(name) if place.is_plain else place.to_variable(self.folder.read(name))


def without_variables(make):
    """The `Twin` of the model that a function makes, without memory for its variables."""

    def twin():
        model = make()
        shapes = {name: tuple(variable.shape) for name, variable in named_weights(model).items()}
        return Twin(shapes, model.get_config())

    return run_without_values(twin)


@contextlib.contextmanager
def _dtype_policy(dtype):
    """Layers made in the block have this dtype policy."""
    before = keras.config.dtype_policy()
    if dtype is not None:
        keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _listed(names, most=20):
    shown = sorted(names)[:most]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown) + more or "none"


def _line(row):
    arrow = f"-> {row.variable}" if row.variable else "(not used)"
    return f"{row.tensor} {arrow} {row.shape} {row.note}".rstrip()
