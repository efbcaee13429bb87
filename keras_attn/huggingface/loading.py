"""A model of this library from a checkpoint's folder: all of its weights, or an error.

How a folder of BERT becomes a model; no weight is loaded before step 6:

1. `Folder` (checkpoint_files.py) reads config.json, and the names, shapes and dtypes in the headers of the weight files.
2. `model_type_of` (model_types.py) finds the `ModelType` "bert", which names the function `bert` of bert.py.
3. `bert` reads the config through `Fields` (config_fields.py), which checks each field, and returns an `Architecture`: a function
   that makes the model, the table from the names of our variables to those of their tensors, and the heads. `with_head`
   (heads.py) adds the head of the class that the config names.
4. `places` (models/checkpoint_names.py) says for each variable which tensor it is, and in which layout.
5. `_Plan`, here, compares this with the files: every variable has its tensor, every other tensor is known not to be needed.
6. The model is made without values (weight_assignment.py), and `_Plan.fill` reads one tensor after the other into it.
"""

import dataclasses
import json
import math
import re

from keras_attn.checks import check_positive
from keras_attn.huggingface.architecture import Output
from keras_attn.huggingface.checkpoint_files import Folder, read_json
from keras_attn.huggingface.config_fields import Fields
from keras_attn.huggingface.dry_run import is_dry_run, note_without_effect
from keras_attn.huggingface.generation_fields import GENERATION_FILE, is_generation_field
from keras_attn.huggingface.heads import with_head
from keras_attn.huggingface.model_types import is_body, model_type_of, task_of
from keras_attn.huggingface.weight_assignment import assign_in_parts, unwritten_variables
from keras_attn.layers.layer_slots import global_policy
from keras_attn.models.checkpoint_names import ReportRow, check_whole, measured_model, places, report_line
from keras_attn.models.weight_names import named_weights
from keras_attn.terminal import say


def load_model(folder, dtype=None, *, report=False, ignored_fields=(), head=True, num_new_labels=None):
    """The model in a checkpoint's folder: an `EncoderTransformer`, `DecoderTransformer`, `Seq2SeqTransformer` or
    `VisionTransformer`, or an `EncoderWithHead`.

    An encoder has the head that the class in the config's `architectures` has: a masked language model's, or one of sequence
    classification, token classification, question answering or image classification. Other heads are not used.

    Reads config.json and safetensors files, one tensor at a time. Every variable of the model is filled, and every
    tensor of the files is used or known not to be needed; otherwise nothing is returned.

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
    loading = _Loading(folder, ignored_fields, head, num_new_labels)
    if report:
        say("\n".join(map(report_line, loading.plan.report())))
    model = loading.model(dtype)
    if not is_dry_run():
        loading.plan.fill(model)
    _keep_origin(model, loading.folder, ignored_fields)
    return model


def read_report(folder, *, ignored_fields=(), head=True):
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
    return _Loading(folder, ignored_fields, head).plan.report()


class _Loading:
    """A call of `load_model`: the folder, the architecture of its config, and the plan of its weights. Takes no memory for
    weights."""

    def __init__(self, folder, ignored_fields=(), head=True, num_new_labels=None):
        self.folder = Folder(folder)
        config = self.folder.config
        has_new_head = num_new_labels is not None
        if has_new_head:
            config = _with_labels(config, num_new_labels)
        reads_head = head and not has_new_head
        self._model_type = model_type_of(config)
        num_tensors = len(self.folder.tensors)
        self._fields = Fields(config, self.folder.num_values, num_tensors, ignored_fields)
        self._checkpoint = _Checkpoint(
            self.folder,
            task=task_of(config, head=reads_head),
            is_tied=self._model_type.is_tied,
            may_be_body=not reads_head or is_body(config),
            has_new_head=has_new_head,
        )
        # What the files have to hold whole. A new head comes on top of it.
        self._stored_architecture = self._architecture_of_config()
        self._new_head = None
        architecture = self._stored_architecture
        if has_new_head:
            self._new_head = self._classification_head()
            architecture = with_head(architecture, self._new_head)
        self.plan = _Plan(self.folder, architecture, has_new_head=has_new_head)

    def model(self, dtype):
        """The model; what the files hold has no values yet."""
        with global_policy(dtype):
            with unwritten_variables():
                model = self._stored_architecture.make()
            if self._new_head is not None:
                model = self._new_head.on(model)
        return model

    def _architecture_of_config(self):
        """The `Architecture` of the config, with the head that its class has."""
        architecture = self._model_type.architecture(self._fields, self._checkpoint)
        self._fields.refuse_not_obeyed()
        unknown = [name for name in self._fields.unknown_names if not is_generation_field(name)]
        note_without_effect("config.json", unknown)
        if self._checkpoint.task not in architecture.heads:
            return architecture
        head = architecture.heads[self._checkpoint.task]()
        self._check_masked_output(head)
        return with_head(architecture, head)

    def _check_masked_output(self, head):
        """Reads `tie_word_embeddings` of an encoder, where it is of the masked language model's output alone."""
        is_tied = self._fields.flag("tie_word_embeddings", True)
        if is_tied or self._checkpoint.task != "MaskedLM":
            return
        _, output = head.same[0]
        if not self._checkpoint.tensors_named(output):
            raise ValueError(
                f"{self.folder.path} does not hold {output}, and by `tie_word_embeddings` it is not the token embedding. "
                "Received: tie_word_embeddings=False."
            )

    def _classification_head(self):
        """The classification head of the architecture."""
        task = "ImageClassification" if self._model_type.kind == "images" else "SequenceClassification"
        if task not in self._stored_architecture.heads:
            raise ValueError(
                f"A new head is one that transformers has, and it has no {self._model_type.class_name}For{task}."
            )
        return self._stored_architecture.heads[task]()


class _Checkpoint:
    """What the function of an architecture asks of a checkpoint beside its config: the task, and which tensors it holds.

    Args:
        folder: `Folder`.
        task: The task of the head, or None.
        is_tied: Boolean, `ModelType.is_tied`.
        may_be_body: Boolean, whether the files may be those of a body.
        has_new_head: Boolean, whether a model under a new head is wanted.
    """

    def __init__(self, folder, *, task, is_tied, may_be_body, has_new_head):
        self.task = task
        self._folder = folder
        self._is_tied = is_tied
        self._may_be_body = may_be_body
        # A head reads the vectors of a model that writes texts, not its logits.
        self._gives_vectors = task is not None or has_new_head

    def output(self, fields, output, token):
        """The `Output` of a model that writes texts.

        A model under a head has no output projection. A body has none either, if its files hold none and the token embedding
        is not tied to be one. Else `tie_word_embeddings` says whether it is the token embedding; it is not if the files hold
        two different tensors.

        Args:
            fields: `Fields`.
            output, token: Names of the tensors.
        """
        is_tied = fields.flag("tie_word_embeddings", self._is_tied)
        is_body = self._may_be_body and not is_tied and not self.tensors_named(output)
        if self._gives_vectors or is_body:
            return Output(is_tied=False, gives_logits=False)
        return Output(is_tied=is_tied and not self.differ(output, token))

    def differ(self, name, other):
        """Whether the files hold both tensors, and with different values."""
        names = self.tensors_named(name)
        others = self.tensors_named(other)
        if not names or not others:
            return False
        return not self._folder.are_equal(names[0], others[0])

    def tensors_named(self, name):
        """The names in the files of the tensors of this name, with whatever prefix."""
        return [tensor for tensor in self._folder.tensors if f".{tensor}".endswith(f".{name}")]


class _Plan:
    """Which tensors of a folder go into which variables of a model, and why the others are not needed.

    Args:
        folder: `Folder`.
        architecture: `Architecture`.
        has_new_head: Boolean, whether the files need not hold the head.

    Raises:
        ValueError: if a tensor is missing, not understood, stored twice, or of another shape.
    """

    def __init__(self, folder, architecture, *, has_new_head=False):
        self._folder = folder
        self._architecture = architecture
        table_names = {name: architecture.table_name(name) for name in folder.tensors}
        file_names = self._by_table_name(table_names)
        shapes = measured_model(architecture.make).shapes
        body = []
        head = []
        missing = []
        for place in places(shapes, architecture.names):
            # One tensor may be stored several times, under names of its group.
            names = [file_names[name] for name in architecture.names_of(place.tensor) if name in file_names]
            if has_new_head and place.variable.startswith("head/"):
                if self._fits_new_head(place, names):
                    head.append((place, names))
            elif names:
                body.append((place, names))
            else:
                missing.append(place.tensor)
        # The place of each variable that gets values, and the tensors that hold them, by their names in the files.
        self._sources = body + head
        used = {name for _, names in self._sources for name in names}
        reasons = self._reasons([table_names[name] for _, names in body for name in names])
        self._unused = {
            name: _reason(table_name, reasons) for name, table_name in table_names.items() if name not in used
        }
        unknown = [name for name, reason in self._unused.items() if reason is None]
        check_whole(folder.path, missing, unknown)
        self._check_shapes()

    def _by_table_name(self, table_names):
        """{name in the table: name in the files}, from the reverse."""
        file_names = {}
        for name, table_name in table_names.items():
            if table_name in file_names:
                raise ValueError(
                    f"{file_names[table_name]} and {name} in {self._folder.path} are one weight, stored twice."
                )
            file_names[table_name] = name
        return file_names

    def _fits_new_head(self, place, names):
        """Whether a new head can begin with tensors of the files. Its logits cannot: they are of other labels."""
        if not names or place.variable.startswith("head/output"):
            return False
        return all(self._folder.tensors[name].shape == place.tensor_shape for name in names)

    def _reasons(self, used):
        """{pattern: why tensors that it matches are not needed}. A head of which one tensor is used is needed whole."""
        patterns = {re.compile(text): reason for text, reason in self._architecture.all_unused.items()}
        return {
            pattern: reason
            for pattern, reason in patterns.items()
            if not any(pattern.fullmatch(name) for name in used)
        }

    def _check_shapes(self):
        for place, names in self._sources:
            for name in names:
                received = self._folder.tensors[name].shape
                if received != place.tensor_shape:
                    raise ValueError(
                        f"{name} in {self._folder.path} must have shape {place.tensor_shape} by the config. "
                        f"Received: shape {received}."
                    )

    def report(self):
        """List of `ReportRow`s."""
        rows = []
        for place, (first, *others) in self._sources:
            note = "transposed" if place.is_transposed else ""
            rows.append(ReportRow(first, place.variable, place.tensor_shape, note))
            rows += [ReportRow(n, place.variable, place.tensor_shape, f"same as {first}") for n in others]
        for name, reason in self._unused.items():
            rows.append(ReportRow(name, None, self._folder.tensors[name].shape, reason))
        return rows

    def fill(self, model):
        """Assigns all weights, the largest first: for a moment each is in memory twice."""
        variables = named_weights(model)
        for place, names in sorted(self._sources, key=lambda source: -math.prod(source[0].shape)):
            try:
                assign_in_parts(variables[place.variable], self._values(place, names))
            except FloatingPointError as error:
                raise ValueError(f"{names[0]} in {self._folder.path} has values that are {error}.") from None

    def _values(self, place, names):
        """The values of one variable, in the dtype of the file; read in parts where the tensor is the variable."""
        name, *others = names
        for other in others:
            if not self._folder.are_equal(name, other):
                raise ValueError(f"{name} and {other} in {self._folder.path} must be equal, and are not.")
        if place.is_plain:
            return self._folder.rows(name)
        return place.to_variable(self._folder.read(name))


def _reason(table_name, reasons):
    """Why a tensor is not needed, or None."""
    return next((reason for pattern, reason in reasons.items() if pattern.fullmatch(table_name)), None)


def _with_labels(config, num_labels):
    """A config whose classifier has so many labels."""
    check_positive("num_new_labels", num_labels)
    names = {str(i): f"LABEL_{i}" for i in range(num_labels)}
    return {**config, "id2label": names, "num_labels": num_labels}


# Fields of a config about the folder, how its files were written, and the dtype of its weights.
_FOLDER_FIELDS = set("_name_or_path auto_map dtype name_or_path torch_dtype transformers_version".split())


@dataclasses.dataclass(frozen=True)
class Origin:
    """The JSON files of the checkpoint that a model was loaded from, which the model keeps, so that they can go out again.

    Args:
        config: Dict, config.json.
        generation_config: Dict, generation_config.json, or None if there was none.
    """

    config: dict = dataclasses.field(default_factory=dict)
    generation_config: dict | None = None


def _keep_origin(model, folder, ignored_fields):
    """Gives a model its `Origin`, without the fields that it was loaded without."""
    left_out = _FOLDER_FIELDS | set(ignored_fields)
    config = {name: value for name, value in folder.config.items() if name not in left_out}
    path = folder.path / GENERATION_FILE
    generation_config = read_json(path) if path.is_file() else None
    body_of(model).origin = json.dumps({"config": config, "generation_config": generation_config})


def origin_of(model):
    """The `Origin` of a model, which is empty if it was not loaded from a checkpoint."""
    text = getattr(body_of(model), "origin", None)
    if text is None:
        return Origin()
    return Origin(**json.loads(text))


def body_of(model):
    """The model under a head, and under what reads texts for it."""
    for name in ("encoder", "seq2seq"):
        model = getattr(model, name, model)
    return model
