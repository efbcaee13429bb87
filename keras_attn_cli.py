"""The command `keras-attn`: its arguments, and a start that is quick and quiet.

Arguments are read before Keras is imported, so that `--help` answers at once and a misspelt option is told at once.
What the commands do is in keras_attn/cli.py.
"""

import argparse
import contextlib
import functools
import gc
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import sys
import tempfile


def main(arguments=None):
    """Runs one command and returns its exit code.

    The code is 2, with one line on stderr, if the input is wrong, and 1 if `verify` finds a problem.
    """
    options = _parsed(arguments)
    if options.command == "info":
        return _info(options.folder, options.ignored_fields)
    if options.command == "deploy":
        return _deploy(options)
    try:
        with quiet_imports(for_training=options.command in ("train", "distill")):
            from keras_attn import cli
    except KeyboardInterrupt:
        return 130
    return cli.run(options)


def _info(folder, ignored_fields):
    """Prints what a folder holds, and returns the exit code. Only a checkpoint needs TensorFlow, because its model is made."""
    with _light_packages():
        from keras_attn import info, terminal

    def check(folder):
        with quiet_imports():
            from keras_attn.tasks.loading import check_checkpoint
        return check_checkpoint(folder, ignored_fields=ignored_fields or ())

    try:
        terminal.say(info.report(info.describe(folder, check)))
    except (ValueError, OSError) as error:
        terminal.say_error(error)
        return 2
    return 0


def _deploy(options):
    """Writes what serves exports in production, without TensorFlow, and returns the exit code."""
    with _light_packages():
        from keras_attn import terminal
        from keras_attn.export import deployment

    try:
        written = deployment.write_deployment(
            options.folders, options.output, xla=options.xla, overwrite=options.overwrite
        )
    except (ValueError, OSError) as error:
        terminal.say_error(error)
        return 2
    terminal.say(written.report())
    return 0


@contextlib.contextmanager
def _light_packages():
    """Within the block, a module of the package is imported alone: the `__init__` of the package and of its rooms do not run."""
    before = set(sys.modules)
    for name in ("", ".export", ".generation", ".huggingface", ".opennmt", ".runs", ".tasks"):
        name = f"keras_attn{name}"
        if name not in sys.modules:
            sys.modules[name] = importlib.util.module_from_spec(importlib.util.find_spec(name))
    try:
        yield
    finally:  # a later import of the package runs them
        for name in set(sys.modules) - before:
            if name.split(".")[0] == "keras_attn":
                del sys.modules[name]


@functools.cache
def _recipe_fields():
    """The settings of a run, as they are declared."""
    with _light_packages():
        from keras_attn.runs import recipe_fields
    return recipe_fields


@functools.cache
def _decoding_options():
    """The options of decoding, as they are declared: a dict."""
    with _light_packages():
        from keras_attn.generation import options
    return options.OPTIONS


@contextlib.contextmanager
def quiet_imports(for_training=False):
    """Imports TensorFlow before the block; keeps what native libraries write to stderr meanwhile.

    TensorFlow's C++ code writes several lines to file descriptor 2 before its log level counts. They are written out
    after all if an import raises, or if there is an NVIDIA driver and TensorFlow finds no GPU. What Python code
    writes to `sys.stderr` is always shown.

    Args:
        for_training: Whether oneDNN is turned on, which TensorFlow leaves off on processors without AVX512-VNNI. Training is
            1.5 times faster with it there; decoding in small batches is not.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if for_training:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    if "tensorflow" in sys.modules:
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    has_failed = True
    with (
        tempfile.TemporaryFile() as captured,
        open(saved, "w", encoding="utf-8", errors="backslashreplace") as shown,
        contextlib.redirect_stderr(shown),
    ):
        os.dup2(captured.fileno(), 2)
        try:
            with _without_unused_packages():
                import tensorflow as tf

            has_gpu = bool(tf.config.list_physical_devices("GPU"))  # looking for one writes lines too
            if os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0" and not has_gpu:
                # Without AVX-512, oneDNN writes once that it leaves integers to TensorFlow: let it do so here.
                tf.transpose(tf.zeros([2, 3], tf.int64))
            yield
            has_failed = not has_gpu and pathlib.Path("/dev/nvidiactl").exists()
        except KeyboardInterrupt:
            has_failed = False
            raise
        finally:
            shown.flush()
            os.dup2(saved, 2)
            if has_failed:
                captured.seek(0)
                os.write(2, captured.read())


# What Keras and TensorFlow import if it is installed, and no command uses: scikit-learn's wrappers, galleries of images, and JAX
# for TensorFlow Lite. It takes a third of the time in which a command starts.
_UNUSED_PACKAGES = ("jax", "matplotlib", "sklearn")


@contextlib.contextmanager
def _without_unused_packages():
    """Within the block, some packages cannot be imported, and what is imported is not searched for garbage; later all can."""
    backend = _keras_backend()
    names = [name for name in _UNUSED_PACKAGES if name not in sys.modules and name != backend]
    sys.modules.update(dict.fromkeys(names))
    gc.disable()
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        gc.freeze()
        gc.enable()


def _keras_backend():
    """The name of the backend that Keras will have: that of the environment, or of its configuration file."""
    home = os.environ.get("KERAS_HOME") or pathlib.Path.home() / ".keras"
    try:
        configured = json.loads(pathlib.Path(home, "keras.json").read_text("utf-8")).get("backend")
    except (OSError, ValueError, AttributeError):
        configured = None
    return os.environ.get("KERAS_BACKEND") or configured or "tensorflow"


class _Parser(argparse.ArgumentParser):
    """One line for a wrong argument, as for every other wrong input."""

    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


_HUB = "or a checkpoint, by its folder or its name on the hub"
# What every command that takes a task reads; docs/text_tasks.md and docs/images.md say what each task does.
_TASKS = (
    "a translator, text generator, text classifier, token classifier, text embedder, question answerer, mask filler or image "
    "classifier"
)
_TASK = f"{_TASKS}: its saved folder, the run that made it, for example runs/dates, {_HUB}"
_RUN_FOLDER = (
    "write the run to this folder; an unfinished run there goes on (default: the next free runs/NAME)"
)


def make_parser(words=None):
    """The parser of all commands, or, to start sooner, of those that are among the words of a command line."""
    parser = _Parser(
        prog="keras-attn",
        description="Train, evaluate, use and export Transformer translators and language models.",
    )
    version = _version() if words is None or "--version" in words else ""
    parser.add_argument("--version", action="version", version=f"keras_attn {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (help, add_arguments) in _COMMANDS.items():
        command = commands.add_parser(name, help=help)
        if words is None or name in words:
            add_arguments(command.add_argument)
    return parser


def _parsed(arguments):
    """The options of a command line; texts may stand before its options or after them."""
    if arguments is None:
        arguments = sys.argv[1:]
    parser = make_parser(arguments)
    options, rest = parser.parse_known_args(arguments)
    texts = {"translate": "texts", "generate": "prompts"}.get(options.command)
    # If an option comes before the texts, argparse of Python 3.11 leaves them over.
    if texts and not getattr(options, texts) and not any(text.startswith("-") for text in rest):
        setattr(options, texts, rest)
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return options


def _train_options(add):
    add("files", nargs="*", metavar="FILE", help="what to train on: the same as --data, without the option")
    add(
        "--recipe", metavar="FILE", help=f"start from these settings: {_RECIPE}; options replace what it says"
    )
    add("--output", dest="folder", metavar="FOLDER", help=_RUN_FOLDER)
    add(
        "--language-model", action="store_true", help="train a language model on plain text, not a translator"
    )
    add(
        "--size",
        metavar="SIZE",
        help="give the model this size: tiny, base or big (default: what fits the data)",
    )
    _add_settings(add, "train")
    add(
        "--text-prefix",
        metavar="TEXT",
        help='with --from a checkpoint: put this before every text, "summarize: " for example',
    )
    add(
        "--purpose",
        metavar="NAME",
        help="with --from a checkpoint: use this entry of its task_specific_params",
    )
    _add_ignored_fields(add)


_RECIPE = "a TOML file, a run's folder, its run.json, or the name of a built-in recipe, for example multi30k"


def _distill_options(add):
    add(
        "teachers",
        nargs="*",
        metavar="TEACHER",
        help="a translator, or the run that made it, for example runs/dates; several translate as an ensemble",
    )
    add(
        "--recipe",
        metavar="FILE",
        help=f"train the student with these settings: {_RECIPE} (default: the recipe of the first teacher's run, or what is fitted to the "
        "data)",
    )
    add(
        "--output",
        dest="folder",
        metavar="FOLDER",
        help="write the run to this folder; an unfinished run there goes on (default: the next free runs/NAME-student)",
    )
    add(
        "--layers", metavar="E+D", help="give the student so many encoder and decoder layers, for example 6+1"
    )
    add(
        "--size",
        metavar="SIZE",
        help="give the student this size: tiny, base or big (default: that of the first teacher)",
    )
    add(
        "--references",
        action=argparse.BooleanOptionalAction,
        help="whether the student also learns from the given targets (default: yes)",
    )
    add(
        "--teacher-num-beams",
        dest="num_beams",
        type=_recipe_fields().positive_integer,
        metavar="N",
        help="let the teachers search with so many beams (default: their own)",
    )
    add(
        "--teacher-length-penalty",
        dest="length_penalty",
        type=float,
        metavar="X",
        help="let the teachers search with this length penalty (default: their own)",
    )
    _add_settings(add, "distill")


def _average_options(add):
    add(
        "checkpoints",
        nargs="+",
        metavar="CHECKPOINT",
        help="the weights to average, for example runs/mine/checkpoints/epoch-*.safetensors",
    )
    add(
        "--translator",
        required=True,
        metavar="FOLDER",
        help="take tokenizers and options from this saved translator",
    )
    add(
        "--output", dest="folder", required=True, metavar="FOLDER", help="write the translator to this folder"
    )


def _ensemble_options(add):
    add(
        "translators",
        nargs="+",
        metavar="FOLDER",
        help="translators with the same tokenizers, or the runs that made them; the first gives the options",
    )
    add(
        "--output", dest="folder", required=True, metavar="FOLDER", help="write the translator to this folder"
    )


def _evaluate_options(add):
    add(
        "task",
        metavar="FOLDER",
        help=f"a translator or text generator: its saved folder, the run that made it, for example runs/dates, {_HUB}",
    )
    _add_settings(add, "evaluate", needs_data=True)
    add(
        "--split",
        choices=("validation", "test"),
        default="test",
        help="evaluate on this part of built-in data (default: %(default)s)",
    )
    add(
        "--bleu-tokenize",
        default="13a",
        metavar="NAME",
        help="split words with this tokenizer of sacreBLEU; none for text that is tokenised already (default: %(default)s)",
    )
    add("--shortlist", metavar="FILE", help="tell what this shortlist changes, instead of all scores")
    _add_search(add)
    _add_ignored_fields(add)


def _shortlist_options(add):
    add("translator", metavar="FOLDER", help="a translator, or the run that made it")
    _add_settings(add, "shortlist", needs_data=True)
    add(
        "--output",
        metavar="FILE",
        required=True,
        help="write the shortlist to this file, for `keras-attn export --shortlist`",
    )
    add(
        "--alignments",
        metavar="FILE",
        help="read the word alignments of the data from this file, `0-0 1-2` in each line, as fast_align and eflomal write them "
        "(default: the translator's own)",
    )
    add(
        "--num-anywhere",
        type=_recipe_fields().positive_integer,
        default=100,
        metavar="N",
        help="allow this many of the most frequent target tokens for every source (default: 100)",
    )
    add(
        "--num-of-source",
        type=_recipe_fields().positive_integer,
        default=50,
        metavar="N",
        help="allow at most this many target tokens for each source token (default: 50)",
    )
    _add_ignored_fields(add)


def _translate_options(add):
    add("translator", metavar="FOLDER", help=f"a translator, for example runs/dates/translator, {_HUB}")
    add(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="the texts to translate (default: the lines of --input or standard input)",
    )
    add(
        "--input",
        dest="input_file",
        metavar="FILE",
        help="translate the lines of this UTF-8 file, one sentence a line",
    )
    add(
        "--output",
        dest="output_file",
        metavar="FILE",
        help="write the translations to this file (default: standard output)",
    )
    _add_search(add)
    _add_checkpoint(add)


def _generate_options(add):
    add(
        "generator",
        metavar="FOLDER",
        help=f"a text generator, or the run that made it, for example runs/play; {_HUB}",
    )
    add(
        "prompts",
        nargs="*",
        metavar="PROMPT",
        help="the texts to continue (default: the lines of standard input)",
    )
    add(
        "--max-length",
        type=_recipe_fields().positive_integer,
        metavar="N",
        help="write at most so many new tokens",
    )
    add(
        "--num-return-sequences",
        type=_recipe_fields().positive_integer,
        metavar="N",
        help="write so many continuations of each text",
    )
    _add_search(add)
    for name, option in _decoding_options().items():
        if option.flag:
            _add_decoding_option(add, name, option)
    _add_ignored_fields(add)


def _add_decoding_option(add, name, option):
    flag = f"--{name.replace('_', '-')}"
    if option.dtype == "bool":
        add(flag, action="store_true", default=None, help=option.help)
        return
    read = {"int32": int, "float32": float}[option.dtype]
    metavar = {"int32": "N", "float32": "X"}[option.dtype]
    add(flag, type=read, nargs="+" if option.is_list else None, metavar=metavar, help=option.help)


def _show_options(add):
    add("task", metavar="FOLDER", help=_TASK)
    add("text", metavar="TEXT", help="what the model reads; of an image classifier the file of an image")
    add(
        "--output",
        metavar="FILE",
        default="attention.html",
        help="write the page to this file (default: %(default)s)",
    )
    add(
        "--target",
        metavar="TEXT",
        help="explore this translation (translators; default: the best that is found)",
    )
    add("--pair", metavar="TEXT", help="read this second text too; for a question its context")
    add(
        "--num-beams",
        type=_recipe_fields().positive_integer,
        metavar="N",
        help="search with so many beams; 1 is greedy search (tasks that write)",
    )
    add(
        "--max-length",
        type=_recipe_fields().positive_integer,
        metavar="N",
        help="write at most so many new tokens (tasks that write)",
    )
    add(
        "--compare",
        metavar="FOLDER",
        help="show this task of the same kind and tokens beside it; options of a checkpoint are for both",
    )
    add(
        "--grid",
        type=_grid,
        metavar="ROWSxCOLUMNS",
        help="show an image classifier in so many patches: of a stage of a Swin Transformer, or of a model that does not say them",
    )
    add("--title", metavar="TEXT", help="put this title above the page (default: the text)")
    _add_checkpoint(add)


def _export_options(add):
    add("task", metavar="FOLDER", help=_TASK)
    add(
        "folder",
        metavar="EXPORT",
        help="write to this folder, for example saved_models/dates; a SavedModel is its next version",
    )
    add(
        "--format",
        choices=("saved_model", "ctranslate2", "onnx", "litert", "huggingface"),
        default="saved_model",
        help="write for TF Serving or for this engine (default: %(default)s)",
    )
    add(
        "--quantization",
        metavar="NAME",
        help="compute in bfloat16 or int8; for ctranslate2, in what that engine knows, int8_float32 for example",
    )
    add(
        "--shortlist",
        metavar="FILE",
        help="let a translator choose among the tokens of this shortlist alone, which `keras-attn shortlist` writes (SavedModel and "
        "ctranslate2)",
    )
    add(
        "--examples",
        metavar="FILE",
        help="use these typical texts, one a line, for warm-up and README (default: of a run, some of its validation data)",
    )
    add(
        "--signatures",
        nargs="+",
        metavar="NAME",
        help="write these signatures beside serving_default, score for example (SavedModel; default: all of the task)",
    )
    add(
        "--attention",
        action="store_true",
        help="add a signature for what every head looks at, which `serve` shows (SavedModel)",
    )
    add(
        "--xla",
        action="store_true",
        help="export what XLA compiles, for a server with --xla_cpu_compilation_enabled",
    )
    add("--verify", action="store_true", help="then check the SavedModel, as `keras-attn verify` does")
    _add_checkpoint(add)
    add(
        "--max-length",
        type=_recipe_fields().positive_integer,
        metavar="N",
        help="write at most so many new tokens (checkpoints)",
    )
    _add_search(add, " (checkpoints)")


def _verify_options(add):
    add(
        "version",
        metavar="VERSION_FOLDER",
        help="the export to check, for example saved_models/dates/1, or saved_models/dates for its newest version",
    )
    add(
        "--task",
        metavar="FOLDER",
        help="compare its answers with those of this task: a saved folder, the run that made it, or a checkpoint",
    )
    _add_ignored_fields(add)


def _deploy_options(add):
    add(
        "folders",
        nargs="+",
        metavar="FOLDER",
        help="exported models, for example saved_models/dates for its newest version, saved_models/dates/1 for that one, or "
        "saved_models for all in it",
    )
    add("--output", metavar="FOLDER", default="deploy", help="the folder to write (default: %(default)s)")
    add(
        "--xla",
        action="store_true",
        help="let the server compile with XLA; a model that was exported with --xla turns this on",
    )
    add("--overwrite", action="store_true", help="replace files in --output that say something else")


def _serve_options(add):
    add(
        "folders",
        nargs="+",
        metavar="FOLDER",
        help="exported models, for example saved_models/dates; or runs, translators and checkpoints, which are exported "
        "to the user's cache first. A SavedModel is a program: give those that you trust",
    )
    add(
        "--port",
        type=_port,
        default=8501,
        metavar="PORT",
        help="listen on this port; 0 for any that is free (default: %(default)s)",
    )
    add(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="listen on this address; 0.0.0.0 answers every machine that reaches this one (default: %(default)s)",
    )
    add("--xla", action="store_true", help="let graphs be compiled with XLA, which a stock server does not")
    _add_ignored_fields(add)


def _info_options(add):
    add(
        "folder",
        metavar="FOLDER",
        help="the folder to look at: a checkpoint, a saved task, a run or an export",
    )
    _add_ignored_fields(add)


def _add_settings(add, command, *, needs_data=False):
    """The options of a command that are settings of a recipe."""
    for flag, arguments in _recipe_fields().options_of(command):
        add(flag, required=needs_data and flag == "--data", **arguments)


def _add_search(add, whose=""):
    add(
        "--num-beams",
        type=_recipe_fields().positive_integer,
        metavar="N",
        help=f"search with so many beams; 1 is greedy search{whose}",
    )
    add(
        "--length-penalty",
        type=float,
        metavar="X",
        help=f"divide a score by the answer's length to this power: more favours longer answers{whose}",
    )


def _add_ignored_fields(add):
    add(
        "--ignored-fields",
        type=_names,
        metavar="NAME,NAME",
        help="read a checkpoint in spite of these fields of its files, which are refused and which you know to change nothing",
    )


def _names(text):
    """The names in a list with commas between them."""
    return list(filter(None, map(str.strip, text.split(","))))


def _add_checkpoint(add):
    _add_ignored_fields(add)
    add(
        "--max-sequence-length",
        type=_recipe_fields().positive_integer,
        metavar="N",
        help="read at most so many tokens of a text, if the checkpoint's architecture sets no limit, as T5's",
    )
    add(
        "--source-language",
        metavar="NAME",
        help="read this language, eng_Latn for example (multilingual checkpoints)",
    )
    add(
        "--target-language",
        metavar="NAME",
        help="write this language, deu_Latn for example (multilingual checkpoints)",
    )
    add(
        "--text-prefix",
        metavar="TEXT",
        help='put this before every text, "summarize: " for example (checkpoints)',
    )
    add(
        "--purpose",
        metavar="NAME",
        help="use this entry of a checkpoint's task_specific_params, translation_en_to_de for example",
    )
    add(
        "--num-heads",
        type=_recipe_fields().positive_integer,
        metavar="N",
        help="the heads of a checkpoint of OpenNMT-tf, if its folder does not say",
    )
    add(
        "--checkpoint",
        metavar="NAME",
        help="read this checkpoint of a folder of OpenNMT-tf: ckpt-5000 or avg (default: the newest)",
    )


def _grid(text):
    """The rows and columns of 14x14."""
    rows, times, columns = text.lower().partition("x")
    if not times or not (rows.isdecimal() and columns.isdecimal()) or not int(rows) * int(columns):
        raise argparse.ArgumentTypeError(f"must be rows and columns, for example 14x14, not {text}")
    return int(rows), int(columns)


def _port(text):
    """A number of a TCP port, or 0."""
    number = int(text)
    if not 0 <= number < 2**16:
        raise argparse.ArgumentTypeError(f"must be from 0 to {2**16 - 1}, not {text}")
    return number


_port.__name__ = "integer"  # what argparse calls it in "invalid integer value"


# Each command: what `--help` says, and the function that adds its options.
_COMMANDS = {
    "train": (
        "train a translator or a language model; with the --output of a run that was killed, go on with it",
        _train_options,
    ),
    "distill": (
        "train a student on the translations of one or several teachers; with the --output of a run that was killed, go on "
        "with it",
        _distill_options,
    ),
    "average": ("write a translator with the mean of several checkpoints", _average_options),
    "ensemble": (
        "write several translators as one, which takes the mean of their probabilities",
        _ensemble_options,
    ),
    "evaluate": (
        "BLEU, chrF and exact match of a translator; perplexity and bits a byte of a text generator",
        _evaluate_options,
    ),
    "translate": (
        "translate texts, a file line by line, or the lines of standard input",
        _translate_options,
    ),
    "generate": ("continue texts with a language model", _generate_options),
    "show": ("write a page on which to explore what a model attends to in a text", _show_options),
    "export": ("write a SavedModel for TF Serving, or what another engine runs", _export_options),
    "verify": ("check whether TF Serving can serve an export", _verify_options),
    "deploy": (
        "write what serves exports in production: TF Serving in Docker, with batching, metrics and example requests",
        _deploy_options,
    ),
    "serve": ("a local server with TF Serving's REST routes and a page to try models", _serve_options),
    "shortlist": (
        "write which target tokens may come for each source token, from word alignments of training data",
        _shortlist_options,
    ),
    "info": ("what a folder holds, and whether it can be used; no weights are read", _info_options),
}


def _version():
    try:
        return importlib.metadata.version("keras_attn")
    except importlib.metadata.PackageNotFoundError:  # run from a copy that is not installed
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
