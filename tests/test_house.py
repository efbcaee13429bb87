"""The house of the library: which room may import which, and what `import keras_attn` needs and brings."""

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

import keras_attn
from keras_attn.ops import graph_purpose

ROOT = pathlib.Path(keras_attn.__file__).parent
# Who may import whom. `cli` may import every room, and the package itself those that register Keras classes.
ALLOWED = {
    "ops": set(),
    "training": set(),
    "text": set(),
    "plots": set(),
    "layers": {"ops"},
    "generation": {"ops"},
    "models": {"layers", "generation", "ops"},
    "data": {"text"},
    "export": {"models", "generation", "text", "ops"},
    "huggingface": {"models", "layers", "text", "ops"},
    "opennmt": {"models", "layers", "text", "ops"},
    "tasks": set("huggingface opennmt export inspection models layers generation text plots ops".split()),
    "inspection": {"layers", "ops", "plots"},
    "serve": {"export", "tasks", "plots"},
    "runs": set(
        """
        ops training text plots layers generation models data export huggingface inspection tasks
    """.split()
    ),
    "__init__": {"layers", "models", "training", "_version"},
    "_version": set(),
    # What needs JSON and headers only. The command reads it without the rooms' own start.
    "info": {"huggingface", "opennmt", "tasks"},
}
# Leaves that every room may import.
LEAVES = {"checks", "compat", "files", "task_registry", "terminal"}
ALLOWED["cli"] = set(ALLOWED) | {"cli"}
WITH_TENSORFLOW = {"text", "data", "export", "huggingface", "opennmt", "tasks", "runs", "serve", "cli"}
# Summaries are written by TensorFlow, and only TensorFlow can add an assertion to its graph, draw random bits that no float is
# made of, update a variable by its fused kernel, multiply integers by oneDNN, choose among its kernels, make a function the body of a loop, overwrite a tensor, say
# what comes after what, and tell which operation gave a tensor and whether a graph is for XLA; and each backend takes gradients and compiles in its own way.
TENSORFLOW_INSIDE_FUNCTIONS = """
    compat/tensorflow.py inspection/backends.py layers/dropout.py ops/graph_purpose.py
    ops/int8_products.py ops/kv_cache.py ops/largest_values.py ops/matrix_products.py ops/softmax.py
    ops/step_loop.py ops/tensorflow_attention.py ops/value_checks.py training/crossentropy.py training/optimizers.py
    training/summaries.py
""".split()
LAZY_PACKAGES = {"matplotlib", "sacrebleu", "sentencepiece", "tensorflow_text"}
FILES = sorted(ROOT.rglob("*.py"))


def room_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path, at_import_time=False):
    """The modules that a file imports, `from a import b` counted as `a.b`; inside functions too, unless told."""
    modules = []
    nodes = [ast.parse(path.read_text("utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            modules += [f"{node.module}.{alias.name}" for alias in node.names]
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        nodes += [] if at_import_time and is_function else ast.iter_child_nodes(node)
    return modules


def test_every_room_is_in_the_table():
    assert {room_of(path) for path in FILES} <= set(ALLOWED) | LEAVES


@pytest.mark.parametrize("room", sorted({room_of(path) for path in FILES}))
def test_imports_keep_their_direction(room):
    for path in FILES:
        if room_of(path) != room:
            continue
        modules = imports(path)
        # `from keras_attn import x` names a room as well as `from keras_attn.x import y` does.
        rooms = {module.split(".")[1] for module in modules if module.startswith("keras_attn.")}
        assert rooms - {room, "__version__", "Translator"} - LEAVES <= ALLOWED.get(room, set()), path
        assert not [module for module in modules if module.startswith("keras.src")], path
        if room not in WITH_TENSORFLOW:
            at_import_time = path.relative_to(ROOT).as_posix() in TENSORFLOW_INSIDE_FUNCTIONS
            found = imports(path, at_import_time)
            assert not [module for module in found if module.split(".")[0] == "tensorflow"], path
        if room != "text":
            assert not [module for module in modules if module.split(".")[0] == "tensorflow_text"], path


def test_every_context_variable_is_named_in_one_docstring():
    files = {
        str(path.relative_to(ROOT)) for path in FILES if "contextvars.ContextVar(" in path.read_text("utf-8")
    }
    assert files == set(re.findall(r"^- `(.+\.py)`: ", graph_purpose.__doc__, re.MULTILINE))


def test_compat_imports_nothing_of_ours():
    for path in sorted((ROOT / "compat").glob("*.py")):
        assert not [module for module in imports(path) if module.startswith("keras_attn")]


def test_private_names_of_others_are_used_in_compat_alone():
    trees = {path: ast.parse(path.read_text("utf-8")) for path in FILES}
    own = {"_asdict", "_fields", "_replace", "_exit", "_getframe"}  # Python documents these
    used = {}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
                own.add(node.id if isinstance(node, ast.Name) else node.attr)
            elif (
                isinstance(node, ast.Attribute)
                and re.match("_[a-z]", node.attr)
                and room_of(path) != "compat"
            ):
                used.setdefault(node.attr, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: places for name, places in used.items() if name not in own} == {}
    for path in FILES:
        private = re.findall(
            r"keras\.src\b|tensorflow\.python\b|\b_(?:Fused|Quantized)MatMul|_ZN\d+", path.read_text("utf-8")
        )
        assert not private or room_of(path) == "compat", path


def in_new_process(code, backend, tmp_path, hidden=()):
    """Runs `code` where the packages in `hidden` cannot be imported."""
    blocker = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {set(hidden)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT.parent)}
    command = [sys.executable, "-c", blocker + code]
    finished = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.split()


@pytest.mark.extended
def test_it_works_and_registers_its_classes_where_tensorflow_is_not_installed(tmp_path):
    pytest.importorskip("jax", reason='pip install "keras_attn[peers]"')
    code = """
import keras, numpy as np, keras_attn
layer = keras_attn.layers.EncoderBlock(intermediate_dim=7, num_heads=3)
assert layer(np.ones((2, 5, 12), "float32")).shape == (2, 5, 12)
for name in keras_attn.layers.__all__:
    assert keras.saving.get_registered_object(f"keras_attn>{name}") is getattr(keras_attn.layers, name)
assert keras.saving.get_registered_object("keras_attn>Seq2SeqTransformer")
assert "keras_attn.generation" in sys.modules
assert not [name for name in sys.modules if name.split(".")[0].startswith("tensorflow")]
"""
    in_new_process(code, "jax", tmp_path, {"tensorflow", "tensorflow_text", "tensorboard"})


@pytest.mark.extended
def test_import_brings_no_package_that_is_used_later_and_reaches_lazy_rooms_as_attributes(tmp_path):
    # Keras itself loads matplotlib where it is installed.
    code = """
import sys, keras
before = set(sys.modules)
import keras_attn
brought = {name.split(".")[0] for name in set(sys.modules) - before}
print(keras_attn.ops.causal_mask.__name__, keras_attn.plots.__name__, *brought)
"""
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    function, room, *brought = in_new_process(code, backend, tmp_path)
    assert (function, room) == ("causal_mask", "keras_attn.plots")
    assert "keras_attn" in brought
    assert not LAZY_PACKAGES & set(brought)
    with pytest.raises(AttributeError, match="module 'keras_attn' has no attribute 'nothing'"):
        _ = keras_attn.nothing
