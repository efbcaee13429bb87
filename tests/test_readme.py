"""The README keeps its word: its code runs, its commands and links lead to something that exists."""

import ast
import configparser
import functools
import pathlib
import re

import keras
import pytest
from helpers_markdown import Block, anchors, code_blocks, commands, links
from site_parts.pages import is_executed

import keras_attn_cli

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
BLOCKS = list(code_blocks(README.read_text(encoding="utf-8")))
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("", "docs", "examples", "saved_models")
    for path in (ROOT / folder).glob("*.md" if folder == "" else "**/*.md")
)
COMMANDS = [
    pytest.param(command, id=f"{document}: {' '.join(command[:3])}")
    for document in DOCUMENTS
    for block in code_blocks((ROOT / document).read_text(encoding="utf-8"))
    if block.language == "bash"
    for command in commands(block.code)
]
RECIPES = sorted((ROOT / "keras_attn" / "runs" / "recipes").glob("*.toml"))
# What documents need besides the library.
PEERS = {
    "docs/other_engines.md": ("ctranslate2", "tf2onnx", "onnxruntime", "ai_edge_litert"),
    "docs/move/keras_hub.md": ("keras_hub",),
}
# What trains or searches with several models; and what makes several, as other tests do.
LONG = {"docs/decoding.md", "docs/training.md"}
LONGER_THAN_MOST = {
    *("docs/checkpoints.md", "docs/text_tasks.md", "docs/images.md", "docs/position_bias.md"),
    *("docs/move/tf_addons.md", "docs/seeing.md", "docs/serve.md"),
    *(
        "docs/time_series.md",
        "docs/recommenders.md",
        "docs/change_one_thing.md",
        "docs/move/tensorflow_tutorial.md",
    ),
}
# Its blocks run in new processes, which tests/docs/test_reload.py starts.
IN_NEW_PROCESSES = ("docs/reload.md",)
MARKS = {
    **dict.fromkeys({*PEERS, *LONG}, pytest.mark.slow),
    **dict.fromkeys(LONGER_THAN_MOST, pytest.mark.extended),
}
# Modules that are imported for the classes or operations that they register.
REGISTER = {"keras_attn", "my_layers", "tensorflow_text"}
# Programs that are not ours, whose options are not checked; the files they are given are.
OTHERS = set("cat cd curl docker echo git ls mv oxlint pytest ruff source tensorboard".split())
OUR_FOLDERS = (".ci/", "docs/", "examples/", "keras_attn/", "tests/")


def test_the_readme_shows_code_and_the_two_commands():
    shown = [command for block in BLOCKS if block.language == "bash" for command in commands(block.code)]
    assert ["pip", "install", "-e", "."] in shown
    assert ["python", "examples/translate.py"] in shown
    assert sum(block.language == "python" for block in BLOCKS) >= 2


def test_every_block_has_a_language_that_these_tests_know():
    assert {block.language for block in BLOCKS} <= {"python", "bash", "json", "text"}


def test_the_python_blocks_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # One step of training is made at once: its graph would take twenty seconds, and other tests train in graphs.
    compile_ = keras.Model.compile
    monkeypatch.setattr(keras.Model, "compile", functools.partialmethod(compile_, run_eagerly=True))
    run_python(BLOCKS, "README.md")


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(name, marks=MARKS.get(name, ()))
        for name in DOCUMENTS
        # The cells of the others run when the site is built, which tests/docs/test_site.py does.
        if name.startswith("docs/") and not is_executed(name) and name not in IN_NEW_PROCESSES
    ],
)
def test_the_python_blocks_of_the_documentation_run(document, tmp_path, monkeypatch):
    for package in PEERS.get(document, ()):
        pytest.importorskip(package, reason=f'needs {package}: pip install "keras_attn[peers]"')
    monkeypatch.chdir(tmp_path)
    run_python(code_blocks((ROOT / document).read_text(encoding="utf-8")), document)


def run_python(blocks, name):
    """Runs the Python blocks in one namespace; a traceback names the line of the document."""
    namespace = {}
    for block in blocks:
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.code, name, "exec"), namespace)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_the_blocks_import_is_used(document):
    blocks = code_blocks((ROOT / document).read_text(encoding="utf-8"))
    trees = [ast.parse(block.code) for block in blocks if block.language == "python"]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    aliases = [name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for name in node.names]
    imported = {(name.asname or name.name).partition(".")[0] for name in aliases}
    assert imported - REGISTER <= {node.id for node in nodes if isinstance(node, ast.Name)}


POSITIONS_ADDED = re.compile(
    r"\+ (?:\w+\.)*\w*(?:PositionEncoding|PositionEmbedding|position_encoding|encoding)(?:\([^()]*\))?\((\w+)\)"
)


@pytest.mark.parametrize(
    "path", [*DOCUMENTS, *sorted(f"examples/{p.name}" for p in (ROOT / "examples").glob("*.py"))]
)
def test_positions_that_are_added_with_a_plus_get_the_mask(path):
    """Keras drops a mask at `+`, so a mask is there at all only if it is passed: to the blocks, and to the positions too."""
    text = (ROOT / path).read_text(encoding="utf-8")
    codes = [text]
    if path.endswith(".md"):
        codes = [block.code for block in code_blocks(text) if block.language == "python"]
    assert not [code for code in codes if "padding_mask=" in code and POSITIONS_ADDED.search(code)]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_exists(command):
    check_command(command)


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in RECIPES])
def test_the_commands_in_the_comment_of_a_recipe_exist(path):
    comments = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    ours = [line[line.index("keras-attn ") :] for line in comments if "keras-attn " in line]
    assert ours
    for command in commands("\n".join(ours)):
        check_command(command)
    named = set(re.findall(r"--[a-z-]+", "\n".join(comments)))
    assert named <= set(re.findall(r"--[a-z-]+", "\n".join(ours))), "an option outside a command"


def check_command(command):
    """Raises AssertionError, or what the command's own parser raises, where a command cannot work."""
    program, *arguments = command
    for word in command:
        if word.startswith(OUR_FOLDERS):
            assert (ROOT / word.split("::")[0]).exists(), f"{word} does not exist"
    if command[:2] == ["taskset", "-c"]:
        check_command(command[3:])
    elif program == "keras-attn":
        keras_attn_cli.make_parser().parse_args(arguments)
    elif program == "pip":
        check_extras(arguments)
    elif program in ("python", "python3"):
        check_python(arguments)
    else:
        assert program in OTHERS or program.startswith(OUR_FOLDERS), f"{program} is not known"


def check_extras(arguments):
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for extra in re.findall(r"\w+", "".join(re.findall(r"\[(.*?)\]", " ".join(arguments)))):
        assert extra in setup["options.extras_require"], f"there is no extra {extra!r}"


def check_python(arguments):
    script = next((word for word in arguments if not word.startswith("-")), "")
    if arguments[0] == "-m" or not script.endswith(".py"):
        return
    assert script.startswith(OUR_FOLDERS), f"{script} is none of ours"
    for option in re.findall(r"(?<!\S)--[\w-]+", " ".join(arguments)):
        assert option in options_of(script), f"{script} has no option {option}"


@functools.cache
def options_of(script):
    """The options that a script and its neighbours add to their parsers. Running it would import TensorFlow each time."""
    path = ROOT / script
    tree = ast.parse(path.read_text(encoding="utf-8"))
    options = {
        name.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"
        for name in node.args
        if isinstance(name, ast.Constant)
    }
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    neighbours = (path.with_name(f"{module}.py") for module in imported)
    return options.union(
        *(options_of(file.relative_to(ROOT).as_posix()) for file in neighbours if file.exists())
    )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files_and_headings_that_exist(document):
    check_links((ROOT / document).read_text(encoding="utf-8"), (ROOT / document).parent)


def check_links(text, folder):
    for target in links(text):
        path, _, anchor = target.partition("#")
        assert (folder / path).exists(), f"{target} does not exist"
        if anchor and (path == "" or path.endswith(".md")):
            page = (folder / path).read_text(encoding="utf-8") if path else text
            assert anchor in anchors(page), f"there is no heading {target}"


# What follows tests the checks themselves, on a document of their own.

DOCUMENT = """# A library, of course

![map](picture.png) and [the part below](#how-to-use-it), [outside](https://keras.io), `[no](link.md)`.

## How to use it

```python
x = 3
```

1. In a list:

   ```python
   if x:
       y = x + 1
   ```

```bash
pip install -e . && python examples/translate.py  # minutes
echo "4 July; 2016" | keras-attn translate runs/a/translator --num-beams 2 > answers.txt
KERAS_BACKEND=jax python -m pytest \\
    tests/layers
```
"""


def test_blocks_are_found_with_their_lines():
    blocks = list(code_blocks(DOCUMENT))
    assert blocks[0] == Block("python", "x = 3\n", line=8)
    assert blocks[1] == Block("python", "if x:\n    y = x + 1\n", line=14)
    assert [block.language for block in blocks] == ["python", "python", "bash"]


def test_commands_are_split_as_bash_splits_them():
    assert list(commands(list(code_blocks(DOCUMENT))[2].code)) == [
        ["pip", "install", "-e", "."],
        ["python", "examples/translate.py"],
        ["echo", "4 July; 2016"],
        ["keras-attn", "translate", "runs/a/translator", "--num-beams", "2"],
        ["python", "-m", "pytest", "tests/layers"],
    ]


def test_links_and_anchors_are_found():
    assert links(DOCUMENT) == ["picture.png", "#how-to-use-it"]
    assert list(anchors(DOCUMENT)) == ["a-library-of-course", "how-to-use-it"]


def test_python_blocks_share_a_namespace_and_name_the_line_that_fails():
    blocks = list(code_blocks(DOCUMENT + "\n```python\nassert (x, y) == (3, 4)\nraise KeyError\n```\n"))
    with pytest.raises(KeyError) as error:
        run_python(blocks, "DOCUMENT.md")
    assert error.traceback[-1].lineno + 1 == DOCUMENT.count("\n") + 4


@pytest.mark.parametrize(
    "line",
    [
        "pip install -e '.[plots]'",
        'pip install "keras_attn[plots,peers]"',
        "python tests/mutants.py --jobs 3",
        "python -m pytest tests/layers",
        "pytest tests/test_readme.py::test_links_and_anchors_are_found",
        "keras-attn train --data a.en a.de --epochs 3",
        "git clone https://example.com/x",
    ],
)
def test_commands_that_work_pass(line):
    for command in commands(line):
        check_command(command)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("pip install 'keras_attn[pictures]'", "there is no extra 'pictures'"),
        ("python examples/nothing.py", "examples/nothing.py does not exist"),
        ("python train.py", "train.py is none of ours"),
        ("python tests/mutants.py --seed 1", "has no option --seed"),
        ("pytest tests/nothing", "tests/nothing does not exist"),
        ("keras_attn train", "keras_attn is not known"),
    ],
)
def test_commands_that_cannot_work_fail(line, message):
    (command,) = commands(line)
    with pytest.raises(AssertionError, match=message):
        check_command(command)


@pytest.mark.parametrize("line", ["keras-attn fly", "keras-attn train --data dates --speed 3"])
def test_a_wrong_command_line_of_ours_fails(line, capsys):
    (command,) = commands(line)
    with pytest.raises(SystemExit):
        check_command(command)
    assert "(see keras-attn" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["nothing.png", "#nothing"])
def test_a_dead_link_fails(tmp_path, target):
    (tmp_path / "picture.png").touch()
    check_links(DOCUMENT, tmp_path)
    with pytest.raises(AssertionError, match=target):
        check_links(DOCUMENT + f"[dead]({target})", tmp_path)
