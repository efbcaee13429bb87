"""The command `keras-attn`: its arguments, and a start that is quick and quiet.

Arguments are read before Keras is imported, so that `--help` answers at once and a misspelt option is told at once.
What the commands do is in keras_attn/cli.py.
"""

import argparse
import contextlib
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
    try:
        with quiet_imports(for_training=options.command in ("train", "distill")):
            from keras_attn import cli
    except KeyboardInterrupt:
        return 130
    return cli.run(options)


def _info(folder, ignored_fields):
    """Prints what a folder holds, and returns the exit code. Of checkpoints alone, whose model is made, TensorFlow is imported."""
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


@contextlib.contextmanager
def _light_packages():
    """In the block, modules of the package are imported without what the package and its rooms import at their start."""
    names = [
        name
        for name in ("keras_attn", "keras_attn.huggingface", "keras_attn.opennmt", "keras_attn.tasks")
        if name not in sys.modules
    ]
    for name in names:
        sys.modules[name] = importlib.util.module_from_spec(importlib.util.find_spec(name))
    try:
        yield
    finally:  # whoever imports the package later gets all of it
        for name in [name for name in sys.modules if name in names or name.startswith("keras_attn.")]:
            if names:
                del sys.modules[name]


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
    saved, has_failed = os.dup(2), True
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
                # oneDNN says once that it leaves integers to TensorFlow, which is so without AVX-512.
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


def _parsed(arguments):
    """The options of a command line; texts may stand before its options or after them."""
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    texts = {"translate": "texts", "generate": "prompts"}.get(options.command)
    # argparse of Python 3.11 takes none for texts if an option comes before them.
    if texts and not getattr(options, texts) and not any(text.startswith("-") for text in rest):
        setattr(options, texts, rest)
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return options


def make_parser():
    """The parser of all commands."""
    parser = _Parser(
        prog="keras-attn",
        description="Train, evaluate, use and export Transformer translators and language models.",
    )
    parser.add_argument("--version", action="version", version=f"keras_attn {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_train(commands)
    _add_distill(commands)
    _add_average(commands)
    _add_ensemble(commands)
    _add_evaluate(commands)
    _add_translate(commands)
    _add_generate(commands)
    _add_show(commands)
    _add_export(commands)
    _add_verify(commands)
    _add_serve(commands)
    _add_shortlist(commands)
    _add_info(commands)
    return parser


def _add_train(commands):
    command = commands.add_parser(
        "train",
        help="train a translator or a language model; with the --output of a run that was killed, go on with it",
    )
    command.add_argument(
        "--recipe", metavar="FILE", help="a TOML file, or the run.json of a run; options replace what it says"
    )
    command.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="what to train on: a source and a target file, as --data has them; or any number of plain text files",
    )
    command.add_argument(
        "--language-model",
        action="store_true",
        help="train a language model on plain text instead of a translator",
    )
    command.add_argument(
        "--documents",
        action="store_true",
        default=None,
        help="each line of the plain text is a document (default: running text)",
    )
    _add_data(command, required=False)
    command.add_argument(
        "--validation",
        nargs="+",
        metavar="FILE",
        help="validation file(s); without, a part of the data is held out",
    )
    command.add_argument("--test", nargs="+", metavar="FILE", help="test file(s), for the final scores")
    command.add_argument("--output", metavar="FOLDER", help="run folder (default: the next free runs/NAME)")
    command.add_argument(
        "--from",
        dest="start_from",
        metavar="FOLDER",
        help="begin with a trained translator: a saved one, the run that made it, or a checkpoint's folder",
    )
    command.add_argument("--text-prefix", metavar="TEXT", help="of a checkpoint: what every text begins with")
    command.add_argument(
        "--purpose", metavar="NAME", help="of a checkpoint: a name in its task_specific_params"
    )
    command.add_argument("--size", help="named model size: tiny, base or big")
    command.add_argument("--tokenizer", choices=("bpe", "unigram", "wordpiece", "bytes"))
    command.add_argument("--vocabulary-size", type=_positive)
    command.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help="train for so long that all is done within N minutes of this machine",
    )
    _add_training(command)
    _add_ignored_fields(command)


def _add_training(command):
    """What is said of the training of a run."""
    command.add_argument("--epochs", type=_positive)
    command.add_argument(
        "--max-tokens", type=_positive, help="positions of one side of a batch, pads included"
    )
    command.add_argument(
        "--gradient-accumulation-steps", type=_positive, metavar="N", help="batches that make one update"
    )
    command.add_argument("--learning-rate", type=float, help="the highest, reached after the warm-up")
    command.add_argument("--warmup-steps", type=_positive, help="optimizer updates")
    command.add_argument(
        "--patience", type=_positive, metavar="N", help="stop after N epochs without a better score"
    )
    command.add_argument("--dtype", help="Keras dtype policy, for example mixed_bfloat16, or auto")
    command.add_argument(
        "--subword-sampling",
        type=float,
        metavar="X",
        help="segment the training texts anew for each epoch, with this share of BPE's merges left out, for example 0.1",
    )
    command.add_argument("--seed", type=int)


def _add_distill(commands):
    command = commands.add_parser(
        "distill",
        help="train a student on the translations of one or several teachers; with the --output of a run that was killed, go "
        "on with it",
    )
    command.add_argument(
        "teachers",
        nargs="*",
        metavar="TEACHER",
        help="a translator, or the run that made it, for example runs/dates; several translate as an ensemble",
    )
    _add_data(command, False, "--data", "--train")
    command.add_argument(
        "--recipe",
        metavar="FILE",
        help="of the student's training: a TOML file, or the run.json of a run (default: the recipe of the first teacher's "
        "run, or what is fitted to the data)",
    )
    command.add_argument(
        "--layers", metavar="E+D", help="the student's encoder and decoder layers, for example 6+1"
    )
    command.add_argument("--size", help="named size of the student: tiny, base or big")
    command.add_argument(
        "--references",
        action=argparse.BooleanOptionalAction,
        help="whether the student also learns from the given targets (default: yes)",
    )
    command.add_argument(
        "--teacher-num-beams",
        type=_positive,
        metavar="N",
        help="of the teachers' search (default: their own)",
    )
    command.add_argument(
        "--teacher-length-penalty",
        type=float,
        metavar="X",
        help="of the teachers' search (default: their own)",
    )
    command.add_argument("--validation", nargs="+", metavar="FILE", help="validation file(s)")
    command.add_argument("--test", nargs="+", metavar="FILE", help="test file(s), for the final scores")
    command.add_argument(
        "--output", metavar="FOLDER", help="run folder (default: the next free runs/NAME-student)"
    )
    _add_training(command)


_TASK = (
    "a saved translator, text generator or other task, or the run that made it, for example runs/dates; or a checkpoint, by "
    "its folder or its name on the hub"
)


def _add_average(commands):
    command = commands.add_parser("average", help="write a translator with the mean of several checkpoints")
    command.add_argument(
        "checkpoints",
        nargs="+",
        metavar="CHECKPOINT",
        help="for example runs/mine/checkpoints/epoch-*.safetensors",
    )
    command.add_argument(
        "--translator",
        required=True,
        metavar="FOLDER",
        help="the saved translator whose tokenizers and options are used",
    )
    command.add_argument("--output", required=True, metavar="FOLDER", help="where it is written")


def _add_ensemble(commands):
    command = commands.add_parser(
        "ensemble", help="write several translators as one, which takes the mean of their probabilities"
    )
    command.add_argument(
        "translators",
        nargs="+",
        metavar="FOLDER",
        help="translators with the same tokenizers, or the runs that made them; the first gives the options",
    )
    command.add_argument("--output", required=True, metavar="FOLDER", help="where it is written")


def _add_evaluate(commands):
    command = commands.add_parser(
        "evaluate",
        help="BLEU, chrF and exact match of a translator; perplexity and bits a byte of a text generator",
    )
    command.add_argument("task", metavar="FOLDER", help=_TASK)
    _add_data(command, required=True)
    command.add_argument(
        "--split", choices=("validation", "test"), default="test", help="of built-in data and multi30k"
    )
    command.add_argument(
        "--bleu-tokenize",
        default="13a",
        help="sacreBLEU's tokenizer; none for text that is tokenised already",
    )
    command.add_argument(
        "--shortlist", metavar="FILE", help="tell what this shortlist changes, instead of all scores"
    )
    _add_decoding(command)
    _add_ignored_fields(command)


def _add_shortlist(commands):
    command = commands.add_parser(
        "shortlist",
        help="write which target tokens may come for each source token, from word alignments of training data",
    )
    command.add_argument("translator", metavar="FOLDER", help="a translator, or the run that made it")
    _add_data(command, required=True)
    command.add_argument(
        "--output", metavar="FILE", required=True, help="for `keras-attn export --shortlist`"
    )
    command.add_argument(
        "--alignments",
        metavar="FILE",
        help="word alignments of the data, `0-0 1-2` in each line, by fast_align or eflomal (default: the translator's own)",
    )
    command.add_argument(
        "--num-anywhere",
        type=_positive,
        default=100,
        metavar="N",
        help="the most frequent target tokens, which may come for every source (default: 100)",
    )
    command.add_argument(
        "--num-of-source",
        type=_positive,
        default=50,
        metavar="N",
        help="the most target tokens of a source token (default: 50)",
    )
    _add_ignored_fields(command)


def _add_translate(commands):
    command = commands.add_parser(
        "translate", help="translate texts, a file line by line, or the lines of standard input"
    )
    command.add_argument(
        "translator",
        metavar="FOLDER",
        help="a translator, for example runs/dates/translator, or a checkpoint, by its folder or its name on the hub",
    )
    command.add_argument(
        "texts", nargs="*", metavar="TEXT", help="the texts (default: the lines of --input or standard input)"
    )
    command.add_argument("--input", metavar="FILE", help="UTF-8 text, one sentence a line")
    command.add_argument("--output", metavar="FILE", help="default: standard output")
    _add_decoding(command)
    _add_checkpoint(command)


def _add_generate(commands):
    command = commands.add_parser("generate", help="continue texts with a language model")
    command.add_argument(
        "generator",
        metavar="FOLDER",
        help="a text generator, or the run that made it, for example runs/play; or a checkpoint, by its folder or its "
        "name on the hub",
    )
    command.add_argument(
        "prompts", nargs="*", metavar="PROMPT", help="the texts (default: the lines of standard input)"
    )
    command.add_argument("--max-length", type=_positive, metavar="N", help="the most new tokens")
    command.add_argument("--min-length", type=int, metavar="N", help="the fewest new tokens, END included")
    command.add_argument("--num-return-sequences", type=_positive, metavar="N", help="continuations of each")
    _add_decoding(command)
    command.add_argument("--wu-length-penalty", type=float)
    command.add_argument("--exact-stopping", action="store_true", default=None, help="of a beam search")
    command.add_argument("--temperature", type=float, help="draws instead of searching; 0 for the best token")
    command.add_argument("--top-k", type=int, metavar="N", help="draws from the N likeliest tokens")
    command.add_argument(
        "--top-p", type=float, help="draws from the likeliest, with this probability together"
    )
    command.add_argument("--min-p", type=float, help="draws from those with this share of the likeliest's")
    command.add_argument("--seed", type=int, help="of drawing; the same seed draws the same")
    command.add_argument("--repetition-penalty", type=float, help="of tokens that are there already")
    command.add_argument("--no-repeat-ngram-size", type=int, metavar="N")
    command.add_argument("--stop-token-ids", type=int, nargs="+", metavar="ID", help="end a text as END does")
    command.add_argument("--suppressed-token-ids", type=int, nargs="+", metavar="ID", help="are never chosen")
    _add_ignored_fields(command)


def _add_show(commands):
    command = commands.add_parser(
        "show", help="write a page on which to explore what a model attends to in a text"
    )
    command.add_argument("task", metavar="FOLDER", help=_TASK)
    command.add_argument(
        "text", metavar="TEXT", help="what the model reads; of an image classifier the file of an image"
    )
    command.add_argument(
        "--output", metavar="FILE", default="attention.html", help="the page (default: %(default)s)"
    )
    command.add_argument(
        "--target", metavar="TEXT", help="of a translator: a translation to explore (default: the best found)"
    )
    command.add_argument(
        "--pair", metavar="TEXT", help="the second text of a pair; the context of a question"
    )
    command.add_argument(
        "--num-beams", type=_positive, metavar="N", help="of a task that writes; 1 is greedy search"
    )
    command.add_argument(
        "--max-length", type=_positive, metavar="N", help="of a task that writes: the most new tokens"
    )
    command.add_argument(
        "--compare",
        metavar="FOLDER",
        help="another such task with the same tokens, beside it; options of a checkpoint are for both",
    )
    command.add_argument(
        "--grid",
        type=_grid,
        metavar="ROWSxCOLUMNS",
        help="of an image classifier: the patches of a stage of a Swin Transformer, or of a model that does not say them",
    )
    command.add_argument("--title", metavar="TEXT", help="above the page (default: the text)")
    _add_checkpoint(command)


def _add_export(commands):
    command = commands.add_parser(
        "export", help="write a SavedModel for TF Serving, or what another engine runs"
    )
    command.add_argument("task", metavar="FOLDER", help=_TASK)
    command.add_argument("folder", metavar="EXPORT", help="for example saved_models/dates")
    command.add_argument(
        "--format",
        choices=("saved_model", "ctranslate2", "onnx", "litert", "huggingface"),
        default="saved_model",
    )
    command.add_argument(
        "--quantization", help="bfloat16 or int8; of ctranslate2, what that engine knows, for example int8"
    )
    command.add_argument(
        "--shortlist",
        metavar="FILE",
        help="of a translator: the tokens that may come, as `keras-attn shortlist` writes them; SavedModel and ctranslate2",
    )
    command.add_argument(
        "--examples",
        metavar="FILE",
        help="typical input texts, one a line, for warm-up and README (default: of a run, some of its validation data)",
    )
    command.add_argument(
        "--signatures",
        nargs="+",
        metavar="NAME",
        help="of a SavedModel, beside serving_default: translate_n_best, translate, sample, score, encode (default: all)",
    )
    command.add_argument(
        "--attention",
        action="store_true",
        help="of a SavedModel: with a signature for what every head looks at, which `serve` shows",
    )
    command.add_argument(
        "--xla",
        action="store_true",
        help="export what XLA compiles, for a server with --xla_cpu_compilation_enabled",
    )
    command.add_argument(
        "--verify", action="store_true", help="then check the SavedModel, as `keras-attn verify` does"
    )
    _add_checkpoint(command)
    command.add_argument(
        "--max-length", type=_positive, metavar="N", help="of a checkpoint: the most new tokens"
    )
    _add_decoding(command, "of a checkpoint: ")


def _add_verify(commands):
    command = commands.add_parser("verify", help="check whether TF Serving can serve an export")
    command.add_argument(
        "version",
        metavar="VERSION_FOLDER",
        help="for example saved_models/dates/1, or saved_models/dates for its newest version",
    )
    command.add_argument(
        "--task",
        metavar="FOLDER",
        help="the saved translator, text generator or other task that the export must agree with",
    )
    _add_ignored_fields(command)


def _add_serve(commands):
    command = commands.add_parser(
        "serve", help="a local server with TF Serving's REST routes and a page to try models"
    )
    command.add_argument(
        "folders",
        nargs="+",
        metavar="FOLDER",
        help="exported models, for example saved_models/dates; or runs, translators and checkpoints, which are exported "
        "to the user's cache first. A SavedModel is a program: give those that you trust",
    )
    command.add_argument(
        "--port", type=_port, default=8501, help="0 for any that is free (default: %(default)s)"
    )
    command.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen on; 0.0.0.0 answers every machine that reaches this one (default: %(default)s)",
    )
    command.add_argument(
        "--xla", action="store_true", help="let graphs be compiled with XLA, which a stock server does not"
    )
    _add_ignored_fields(command)


def _add_data(command, required, *names):
    command.add_argument(
        *(names or ("--data",)),
        nargs="+",
        required=required,
        metavar="DATA",
        help="`dates`, `reverse`, `multi30k`, `multi30k-tokenized`, `shakespeare`, a source and a target file, or one TSV file",
    )
    command.add_argument(
        "--data-dir", metavar="FOLDER", help="where Multi30k lies (default: it is downloaded)"
    )
    command.add_argument(
        "--source-language",
        help="of multi30k: en (the default) or de; with --from, of a multilingual model",
    )
    command.add_argument(
        "--target-language",
        help="of multi30k: en or de (the default); with --from, of a multilingual model",
    )


def _add_decoding(command, of_what=""):
    command.add_argument("--num-beams", type=_positive, help=f"{of_what}1 is greedy search")
    command.add_argument(
        "--length-penalty", type=float, help=f"{of_what}the power of its length that a score is divided by"
    )


def _add_ignored_fields(command):
    command.add_argument(
        "--ignored-fields",
        type=_names,
        metavar="NAME,NAME",
        help="of a checkpoint: fields of its files that are refused, and that you know to change nothing",
    )


def _names(text):
    """The names in a list with commas between them."""
    return list(filter(None, map(str.strip, text.split(","))))


def _add_checkpoint(command):
    _add_ignored_fields(command)
    command.add_argument(
        "--max-sequence-length",
        type=_positive,
        metavar="N",
        help="of a checkpoint whose architecture sets no limit, T5 for example: the most tokens of a text that are read",
    )
    command.add_argument(
        "--source-language", metavar="NAME", help="of a multilingual checkpoint, eng_Latn for example"
    )
    command.add_argument("--target-language", metavar="NAME")
    command.add_argument(
        "--text-prefix", metavar="TEXT", help='of a checkpoint: before every text, "summarize: " for example'
    )
    command.add_argument(
        "--purpose",
        metavar="NAME",
        help="of a checkpoint whose config has task_specific_params: translation_en_to_de, for example",
    )
    command.add_argument(
        "--num-heads",
        type=_positive,
        metavar="N",
        help="of a checkpoint of OpenNMT-tf, if its folder does not say",
    )
    command.add_argument(
        "--checkpoint",
        metavar="NAME",
        help="in a folder of OpenNMT-tf: ckpt-5000 or avg (default: the newest)",
    )


def _add_info(commands):
    command = commands.add_parser(
        "info", help="what a folder holds, and whether it can be used; no weights are read"
    )
    command.add_argument("folder", metavar="FOLDER", help="a checkpoint, a saved task, a run or an export")
    _add_ignored_fields(command)


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


def _version():
    try:
        return importlib.metadata.version("keras_attn")
    except importlib.metadata.PackageNotFoundError:  # run from a copy that is not installed
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
