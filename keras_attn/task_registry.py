"""The tasks of this package: where each is defined, and what it says of itself. Nothing is imported to look that up.

A task registers itself where its class is defined, a user's own too. The files of this package's tasks import TensorFlow, which
`import keras_attn` and `keras-attn info` do without. So the first attributes of these classes are read from their source.
"""

import ast
import dataclasses
import functools
import importlib
import pathlib

# The files in keras_attn/tasks that define a task; the class is named after the file. A new task adds its file's name here.
_MODULES = (
    "translator",
    "text_generator",
    "text_embedder",
    "text_classifier",
    "token_classifier",
    "fill_mask",
    "question_answerer",
    "image_classifier",
)
CLASS_NAMES = tuple(module.title().replace("_", "") for module in _MODULES)

_imported = {}


@dataclasses.dataclass(frozen=True)
class Declaration:
    """What is known of a task before its class is imported: the first attributes of `keras_attn.tasks.task.Task`."""

    name: str
    heads: tuple = ()
    bodies: tuple = ()
    checkpoint_formats: tuple = ()

    @property
    def file_stem(self):
        """The name of the task's folder in a run's folder, and its `kind` in an export's declaration."""
        return self.name.replace(" ", "_")

    @property
    def config_file(self):
        """The name of the file by which a saved task's folder is recognised."""
        return f"{self.file_stem}.json"


def register(task_class):
    """Makes a task known by the name of its class."""
    _imported[task_class.__name__] = task_class


def task_class(class_name):
    """The class of a task, which is imported if it is of this package."""
    if class_name in CLASS_NAMES:
        module = _MODULES[CLASS_NAMES.index(class_name)]
        importlib.import_module(f"keras_attn.tasks.{module}")
    return _imported[class_name]


def declarations():
    """{class name: `Declaration`} of the tasks of this package, and of others that were imported."""
    declared = dict(_declarations_of_package())
    for name, imported in _imported.items():
        declared.setdefault(name, imported.declaration())
    return declared


@functools.cache
def _declarations_of_package():
    return {name: _declaration_in_source(module, name) for module, name in zip(_MODULES, CLASS_NAMES)}


def _declaration_in_source(module, class_name):
    source = pathlib.Path(__file__).with_name("tasks") / f"{module}.py"
    tree = ast.parse(source.read_text("utf-8"))
    [task] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name]
    fields = [field.name for field in dataclasses.fields(Declaration)]
    values = {}
    for node in task.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) in fields:
            values[node.targets[0].id] = ast.literal_eval(node.value)
    return Declaration(**values)
