"""The tasks of this package: where each is defined, and what it says of itself. Nothing is imported to look that up.

A task registers itself where its class is defined, a user's own as well. Those of this package need TensorFlow to be imported,
which `import keras_attn` and `keras-attn info` do without: what is known of them before is read from their source.
"""

import ast
import dataclasses
import functools
import importlib
import pathlib

# The files in keras_attn/tasks that define a task, whose class is called after the file. A new one adds its name here.
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
    """What is known of a task before it is imported: attributes of its class, see `keras_attn.tasks.Task`."""

    name: str
    heads: tuple = ()
    bodies: tuple = ()
    checkpoint_formats: tuple = ()

    @property
    def file_stem(self):
        """The name of the folder of such a task in the folder of a run, and of its kind in an export's declaration."""
        return self.name.replace(" ", "_")

    @property
    def config_file(self):
        """The name of the file that tells the kind of a saved task."""
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
