"""The command `keras-attn`: its arguments, and a start that is quick and quiet.

Arguments are read before Keras is imported, so that `--help` answers at once and a misspelt option is told at once.
What the commands do is in keras_attn/cli.py.
"""

import argparse
import contextlib
import functools
import importlib.metadata
import importlib.util
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


class _Parser(argparse.ArgumentParser):
    """One line for a wrong argument, as for every other wrong input."""

    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


_HUB = "or a checkpoint, by its folder or its name on the hub"
_TASK = f"a saved translator, text generator or other task, or the run that made it, for example runs/dates; {_HUB}"
_RUN_FOLDER = "run folder (default: the next free runs/NAME)"


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
    add("files", nargs="*", metavar="FILE", help="what to train on, as --data has it")
    add("--recipe", metavar="FILE", help=f"{_RECIPE}; options replace what it says")
    add("--output", dest="folder", metavar="FOLDER", help=_RUN_FOLDER)
    add(
        "--language-model", action="store_true", help="train a language model on plain text, not a translator"
    )
    add("--size", help="named model size: tiny, base or big")
    _add_settings(add, "train")
    add("--text-prefix", metavar="TEXT", help="of a checkpoint: what every text begins with")
    add("--purpose", metavar="NAME", help="of a checkpoint: a name in its task_specific_params")
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
        help=f"of the student's training: {_RECIPE} (default: the recipe of the first teacher's run, or what is fitted to the "
        "data)",
    )
    add(
        "--output",
        dest="folder",
        metavar="FOLDER",
        help="run folder (default: the next free runs/NAME-student)",
    )
    add("--layers", metavar="E+D", help="the student's encoder and decoder layers, for example 6+1")
    add("--size", help="named size of the student: tiny, base or big")
    add(
        "--references",
        action=argparse.BooleanOptionalAction,
        help="whether the student also learns from the given targets (default: yes)",
    )
    add(
        "--teacher-num-beams",
        dest="num_beams",
        type=_positive,
        metavar="N",
        help="of the teachers' search (default: their own)",
    )
    add(
        "--teacher-length-penalty",
        dest="length_penalty",
        type=float,
        metavar="X",
        help="of the teachers' search (default: their own)",
    )
    _add_settings(add, "distill")


def _average_options(add):
    add(
        "checkpoints",
        nargs="+",
        metavar="CHECKPOINT",
        help="for example runs/mine/checkpoints/epoch-*.safetensors",
    )
    add(
        "--translator",
        required=True,
        metavar="FOLDER",
        help="the saved translator whose tokenizers and options are used",
    )
    add("--output", dest="folder", required=True, metavar="FOLDER", help="where it is written")


def _ensemble_options(add):
    add(
        "translators",
        nargs="+",
        metavar="FOLDER",
        help="translators with the same tokenizers, or the runs that made them; the first gives the options",
    )
    add("--output", dest="folder", required=True, metavar="FOLDER", help="where it is written")


def _evaluate_options(add):
    add("task", metavar="FOLDER", help=_TASK)
    _add_settings(add, "evaluate", needs_data=True)
    add(
        "--split",
        choices=("validation", "test"),
        default="test",
        help="the part of built-in data (default: %(default)s)",
    )
    add(
        "--bleu-tokenize",
        default="13a",
        metavar="NAME",
        help="sacreBLEU's tokenizer; none for text that is tokenised already (default: %(default)s)",
    )
    add("--shortlist", metavar="FILE", help="tell what this shortlist changes, instead of all scores")
    _add_search(add)
    _add_ignored_fields(add)


def _shortlist_options(add):
    add("translator", metavar="FOLDER", help="a translator, or the run that made it")
    _add_settings(add, "shortlist", needs_data=True)
    add("--output", metavar="FILE", required=True, help="for `keras-attn export --shortlist`")
    add(
        "--alignments",
        metavar="FILE",
        help="word alignments of the data, `0-0 1-2` in each line, by fast_align or eflomal (default: the translator's own)",
    )
    add(
        "--num-anywhere",
        type=_positive,
        default=100,
        metavar="N",
        help="the most frequent target tokens, which may come for every source (default: 100)",
    )
    add(
        "--num-of-source",
        type=_positive,
        default=50,
        metavar="N",
        help="the most target tokens of a source token (default: 50)",
    )
    _add_ignored_fields(add)


def _translate_options(add):
    add("translator", metavar="FOLDER", help=f"a translator, for example runs/dates/translator, {_HUB}")
    add(
        "texts", nargs="*", metavar="TEXT", help="the texts (default: the lines of --input or standard input)"
    )
    add("--input", dest="input_file", metavar="FILE", help="UTF-8 text, one sentence a line")
    add("--output", dest="output_file", metavar="FILE", help="default: standard output")
    _add_search(add)
    _add_checkpoint(add)


def _generate_options(add):
    add(
        "generator",
        metavar="FOLDER",
        help=f"a text generator, or the run that made it, for example runs/play; {_HUB}",
    )
    add("prompts", nargs="*", metavar="PROMPT", help="the texts (default: the lines of standard input)")
    add("--max-length", type=_positive, metavar="N", help="the most new tokens")
    add("--num-return-sequences", type=_positive, metavar="N", help="continuations of each")
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
    add("--output", metavar="FILE", default="attention.html", help="the page (default: %(default)s)")
    add(
        "--target", metavar="TEXT", help="of a translator: a translation to explore (default: the best found)"
    )
    add("--pair", metavar="TEXT", help="the second text of a pair; the context of a question")
    add("--num-beams", type=_positive, metavar="N", help="of a task that writes; 1 is greedy search")
    add("--max-length", type=_positive, metavar="N", help="of a task that writes: the most new tokens")
    add(
        "--compare",
        metavar="FOLDER",
        help="another such task with the same tokens, beside it; options of a checkpoint are for both",
    )
    add(
        "--grid",
        type=_grid,
        metavar="ROWSxCOLUMNS",
        help="of an image classifier: the patches of a stage of a Swin Transformer, or of a model that does not say them",
    )
    add("--title", metavar="TEXT", help="above the page (default: the text)")
    _add_checkpoint(add)


def _export_options(add):
    add("task", metavar="FOLDER", help=_TASK)
    add("folder", metavar="EXPORT", help="for example saved_models/dates")
    add(
        "--format",
        choices=("saved_model", "ctranslate2", "onnx", "litert", "huggingface"),
        default="saved_model",
        help="what is written (default: %(default)s)",
    )
    add("--quantization", help="bfloat16 or int8; of ctranslate2, what that engine knows, for example int8")
    add(
        "--shortlist",
        metavar="FILE",
        help="of a translator: the tokens that may come, as `keras-attn shortlist` writes them; SavedModel and ctranslate2",
    )
    add(
        "--examples",
        metavar="FILE",
        help="typical input texts, one a line, for warm-up and README (default: of a run, some of its validation data)",
    )
    add(
        "--signatures",
        nargs="+",
        metavar="NAME",
        help="of a SavedModel: the signatures of the task to write beside serving_default, score for example (default: all)",
    )
    add(
        "--attention",
        action="store_true",
        help="of a SavedModel: with a signature for what every head looks at, which `serve` shows",
    )
    add(
        "--xla",
        action="store_true",
        help="export what XLA compiles, for a server with --xla_cpu_compilation_enabled",
    )
    add("--verify", action="store_true", help="then check the SavedModel, as `keras-attn verify` does")
    _add_checkpoint(add)
    add("--max-length", type=_positive, metavar="N", help="of a checkpoint: the most new tokens")
    _add_search(add, "of a checkpoint: ")


def _verify_options(add):
    add(
        "version",
        metavar="VERSION_FOLDER",
        help="for example saved_models/dates/1, or saved_models/dates for its newest version",
    )
    add(
        "--task",
        metavar="FOLDER",
        help="the saved translator, text generator or other task that the export must agree with",
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
    add("--port", type=_port, default=8501, help="0 for any that is free (default: %(default)s)")
    add(
        "--host",
        default="127.0.0.1",
        help="the address to listen on; 0.0.0.0 answers every machine that reaches this one (default: %(default)s)",
    )
    add("--xla", action="store_true", help="let graphs be compiled with XLA, which a stock server does not")
    _add_ignored_fields(add)


def _info_options(add):
    add("folder", metavar="FOLDER", help="a checkpoint, a saved task, a run or an export")
    _add_ignored_fields(add)


def _add_settings(add, command, *, needs_data=False):
    """The options of a command that are settings of a recipe."""
    for flag, arguments in _recipe_fields().options_of(command):
        add(flag, required=needs_data and flag == "--data", **arguments)


def _add_search(add, whose=""):
    add("--num-beams", type=_positive, metavar="N", help=f"{whose}1 is greedy search")
    add(
        "--length-penalty",
        type=float,
        metavar="X",
        help=f"{whose}the power of its length that a score is divided by",
    )


def _add_ignored_fields(add):
    add(
        "--ignored-fields",
        type=_names,
        metavar="NAME,NAME",
        help="of a checkpoint: fields of its files that are refused, and that you know to change nothing",
    )


def _names(text):
    """The names in a list with commas between them."""
    return list(filter(None, map(str.strip, text.split(","))))


def _add_checkpoint(add):
    _add_ignored_fields(add)
    add(
        "--max-sequence-length",
        type=_positive,
        metavar="N",
        help="of a checkpoint whose architecture sets no limit, T5 for example: the most tokens of a text that are read",
    )
    add("--source-language", metavar="NAME", help="of a multilingual checkpoint, eng_Latn for example")
    add("--target-language", metavar="NAME", help="of a multilingual checkpoint, deu_Latn for example")
    add("--text-prefix", metavar="TEXT", help='of a checkpoint: before every text, "summarize: " for example')
    add(
        "--purpose",
        metavar="NAME",
        help="of a checkpoint whose config has task_specific_params: translation_en_to_de, for example",
    )
    add(
        "--num-heads",
        type=_positive,
        metavar="N",
        help="of a checkpoint of OpenNMT-tf, if its folder does not say",
    )
    add(
        "--checkpoint",
        metavar="NAME",
        help="in a folder of OpenNMT-tf: ckpt-5000 or avg (default: the newest)",
    )


def _positive(text):
    """An integer from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text}")
    return number


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


_port.__name__ = "integer"
_positive.__name__ = "integer"  # what argparse calls it in "invalid integer value"


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
