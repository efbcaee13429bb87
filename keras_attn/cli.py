"""The command line, `keras-attn train | average | evaluate | translate | export | verify`: arguments and calls."""

import argparse
import pathlib
import sys

FOUND_SOMETHING = 1
BAD_INPUT = 2
INTERRUPTED = 130


def main(arguments=None):
    """Runs one command and returns its exit code.

    2, with one line on stderr, for anything wrong with the input; 1 where `verify` finds something.
    """
    options = make_parser().parse_args(arguments)
    try:
        return options.run(options) or 0
    except (ValueError, OSError, ImportError) as error:
        print(f"keras-attn: error: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED


def make_parser():
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="keras-attn", description="Train, evaluate, use and export Transformer translators."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_train(commands)
    _add_average(commands)
    _add_evaluate(commands)
    _add_translate(commands)
    _add_export(commands)
    _add_verify(commands)
    return parser


def _add_train(commands):
    command = commands.add_parser(
        "train", help="train a translator; with the --output of a run that was killed, go on with it"
    )
    command.add_argument(
        "--recipe", metavar="FILE", help="a TOML file, or the run.json of a run; options replace what it says"
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
    command.add_argument("--size", help="named model size: tiny, base or big")
    command.add_argument("--epochs", type=int)
    command.add_argument("--tokenizer", choices=("bpe", "unigram", "wordpiece", "bytes"))
    command.add_argument("--vocabulary-size", type=int)
    command.add_argument("--max-tokens", type=int, help="positions of one side of a batch, pads included")
    command.add_argument(
        "--gradient-accumulation-steps", type=int, metavar="N", help="batches that make one update"
    )
    command.add_argument("--learning-rate", type=float, help="the highest, reached after the warm-up")
    command.add_argument("--warmup-steps", type=int, help="optimizer updates")
    command.add_argument(
        "--patience", type=int, metavar="N", help="stop after N epochs without a better score"
    )
    command.add_argument("--dtype", help="Keras dtype policy, for example mixed_bfloat16, or auto")
    command.add_argument("--seed", type=int)
    command.set_defaults(run=_train)


def _add_average(commands):
    command = commands.add_parser("average", help="write a translator with the mean of several checkpoints")
    command.add_argument(
        "checkpoints",
        nargs="+",
        metavar="CHECKPOINT",
        help="for example runs/mine/checkpoints/epoch-*.safetensors",
    )
    command.add_argument(
        "--translator", required=True, metavar="FOLDER", help="whose tokenizers and options it takes"
    )
    command.add_argument("--output", required=True, metavar="FOLDER", help="where it is written")
    command.set_defaults(run=_average)


def _add_evaluate(commands):
    command = commands.add_parser("evaluate", help="BLEU, chrF and exact match of a translator")
    command.add_argument(
        "translator", metavar="FOLDER", help="a translator, for example runs/dates/translator"
    )
    _add_data(command, required=True)
    command.add_argument(
        "--split", choices=("validation", "test"), default="test", help="of built-in data and multi30k"
    )
    command.add_argument(
        "--bleu-tokenize",
        default="13a",
        help="sacreBLEU's tokenizer; none for text that is tokenised already",
    )
    _add_decoding(command)
    command.set_defaults(run=_evaluate)


def _add_translate(commands):
    command = commands.add_parser("translate", help="translate a file, or standard input, line by line")
    command.add_argument(
        "translator", metavar="FOLDER", help="a translator, for example runs/dates/translator"
    )
    command.add_argument(
        "--input", metavar="FILE", help="UTF-8 text, one sentence a line (default: standard input)"
    )
    command.add_argument("--output", metavar="FILE", help="default: standard output")
    _add_decoding(command)
    command.set_defaults(run=_translate)


def _add_export(commands):
    command = commands.add_parser(
        "export", help="write a SavedModel for TF Serving, or what another engine runs"
    )
    command.add_argument(
        "translator", metavar="FOLDER", help="a translator, for example runs/dates/translator"
    )
    command.add_argument("folder", metavar="EXPORT", help="for example saved_models/dates")
    command.add_argument(
        "--format", choices=("saved_model", "ctranslate2", "onnx", "litert"), default="saved_model"
    )
    command.add_argument("--quantization", help="of ctranslate2, for example int8")
    command.add_argument(
        "--examples",
        metavar="FILE",
        help="texts such as it will be asked, one a line, for warm-up and README",
    )
    command.add_argument(
        "--xla",
        action="store_true",
        help="export what XLA compiles, for a server with --xla_cpu_compilation_enabled",
    )
    command.set_defaults(run=_export)


def _add_verify(commands):
    command = commands.add_parser("verify", help="look whether TF Serving would answer with an export")
    command.add_argument("version", metavar="VERSION_FOLDER", help="for example saved_models/dates/1")
    command.add_argument(
        "--translator", metavar="FOLDER", help="the saved translator that the export must agree with"
    )
    command.set_defaults(run=_verify)


def _add_data(command, required):
    command.add_argument(
        "--data",
        nargs="+",
        required=required,
        metavar="DATA",
        help="`dates`, `reverse`, `multi30k`, `multi30k-tokenized`, `shakespeare`, a source and a target file, or one TSV file",
    )
    command.add_argument(
        "--data-dir", metavar="FOLDER", help="where Multi30k lies (default: it is downloaded)"
    )
    command.add_argument("--source-language", help="of multi30k: en (the default) or de")
    command.add_argument("--target-language", help="of multi30k: en or de (the default)")


def _add_decoding(command):
    command.add_argument("--num-beams", type=int, help="1 is greedy search")
    command.add_argument("--length-penalty", type=float)


# Each command imports what it needs when it runs: `translate` without training's packages, and so on.


def _train(options):
    from keras_attn import runs

    if not (options.recipe or options.data):
        raise ValueError("Give --data, what to train on, or --recipe, a file that says it.")
    recipe = runs.Recipe.load(options.recipe) if options.recipe else runs.default_recipe(options.data)
    if options.size:
        recipe = recipe.with_size(options.size)
    recipe = recipe.replace(**{name: getattr(options, name) for name in _RECIPE_OPTIONS})
    folder = options.output or runs.free_folder(f"runs/{runs.data_name(recipe.data)}")
    runs.train(recipe, runs.open_splits(recipe), folder)


# Those options of `train` that are fields of a recipe.
_RECIPE_OPTIONS = (
    "data",
    "validation",
    "test",
    "data_dir",
    "source_language",
    "target_language",
    "epochs",
    "tokenizer",
    "vocabulary_size",
    "max_tokens",
    "gradient_accumulation_steps",
    "learning_rate",
    "warmup_steps",
    "patience",
    "dtype",
    "seed",
)


def _average(options):
    from keras_attn import runs

    runs.average_translator(options.checkpoints, options.translator, options.output)
    print(options.output)


def _evaluate(options):
    from keras_attn import Translator, runs

    translator = Translator.load(options.translator)
    pairs = runs.open_pairs(
        options.data,
        options.split,
        folder=options.data_dir,
        languages=(options.source_language or "en", options.target_language or "de"),
    )
    print(
        runs.evaluate(
            translator, pairs, options.num_beams, options.length_penalty, options.bleu_tokenize
        ).report()
    )


def _translate(options):
    from keras_attn import Translator, runs

    translator = Translator.load(options.translator)
    runs.translate_lines(translator, options.input, options.output, options.num_beams, options.length_penalty)


def _export(options):
    from keras_attn import Translator

    is_saved_model = options.format == "saved_model"
    if is_saved_model and options.quantization:
        raise ValueError("--quantization is for --format ctranslate2.")
    if not is_saved_model and (options.xla or options.examples):
        raise ValueError(f"--xla and --examples are for a SavedModel. Received: --format {options.format}.")
    translator = Translator.load(options.translator)
    if not is_saved_model:
        print(translator.export_model(options.folder, options.format, options.quantization))
        return
    examples = None
    if options.examples:
        lines = pathlib.Path(options.examples).read_text(encoding="utf-8").splitlines()
        examples = list(filter(str.strip, lines))
    print(translator.export(options.folder, examples, xla=options.xla))


def _verify(options):
    from keras_attn import Translator
    from keras_attn.export import verify_saved_model

    translator = Translator.load(options.translator) if options.translator else None
    checks = verify_saved_model(options.version, expected=translator)
    for check in checks:
        print(f"{'FAILED' if check.problems else 'ok':7} {check.name}")
        for problem in check.problems:
            print(f"        {problem}")
    return FOUND_SOMETHING if any(check.problems for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
