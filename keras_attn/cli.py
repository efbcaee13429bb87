"""The commands of `keras-attn`: what each does with its options (keras_attn_cli.py reads them)."""

import os
import pathlib
import signal
import sys

import tensorflow as tf

from keras_attn.terminal import printable_line, say, say_error

FOUND_SOMETHING = 1
BAD_INPUT = 2
INTERRUPTED = 128 + signal.SIGINT
OUTPUT_CLOSED = 128 + 13  # SIGPIPE, which Windows does not have


def run(options):
    """Runs the command that `options` name; returns its exit code.

    The code is 2, with one line on stderr, if the input is wrong, and 1 if `verify` finds a problem.
    """
    try:
        return _COMMANDS[options.command](options) or 0
    except BrokenPipeError:  # whoever read the output has ended, as `head` does
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # or Python's last flush would complain
        return OUTPUT_CLOSED
    except (ValueError, OSError, ImportError, FloatingPointError, tf.errors.OpError) as error:
        is_missing = isinstance(error, FileNotFoundError) and error.filename is not None
        message = f"{error.filename} does not exist. Check the path." if is_missing else str(error)
        say_error(message)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED


# Each command imports its modules when it runs, so `translate`, for example, needs no training packages.


def _train(options):
    from keras_attn import runs

    if options.files and options.data:
        raise ValueError("Give the files once: either as arguments or with --data.")
    runs.train(
        options.data or options.files or None,
        options.output,
        options.recipe,
        size=options.size,
        language_model=options.language_model,
        **_given(options, _OF_TRAIN),
    )


def _distill(options):
    from keras_attn import runs

    runs.distill(
        options.teachers,
        options.output,
        options.data,
        options.recipe,
        size=options.size,
        layers=options.layers,
        references=options.references,
        num_beams=options.teacher_num_beams,
        length_penalty=options.teacher_length_penalty,
        **_given(options, _OF_DISTILL),
    )


def _given(options, names):
    """The options that are given, by their names."""
    given = {name: getattr(options, name, None) for name in names}
    return {name: value for name, value in given.items() if value is not None}


_LANGUAGES = ("source_language", "target_language")
# Options of `distill` that are fields of a recipe.
_OF_DISTILL = (
    "validation",
    "test",
    "data_dir",
    *_LANGUAGES,
    "epochs",
    "max_tokens",
    "gradient_accumulation_steps",
    "learning_rate",
    "warmup_steps",
    "patience",
    "dtype",
    "subword_sampling",
    "seed",
)
# Those of `train`, and what they say of the checkpoint of --from.
_OF_TRAIN = (
    *_OF_DISTILL,
    "tokenizer",
    "documents",
    "vocabulary_size",
    "minutes",
    "start_from",
    "text_prefix",
    "purpose",
    "ignored_fields",
)


def _average(options):
    from keras_attn import runs

    runs.average_translator(options.checkpoints, options.translator, options.output)
    say(options.output)


def _ensemble(options):
    from keras_attn import runs

    runs.ensemble_translators(options.translators, options.output)
    say(options.output)


def _evaluate(options):
    from keras_attn import Translator, runs
    from keras_attn.data import read_plain_text
    from keras_attn.tasks import TextGenerator, load_task

    task = load_task(options.task, **_given(options, ("ignored_fields",)))
    if not isinstance(task, Translator | TextGenerator):
        raise ValueError(f"`evaluate` is for translators and text generators. Received: a {task.name}.")
    if isinstance(task, TextGenerator):
        if options.num_beams is not None or options.length_penalty is not None or options.shortlist:
            raise ValueError("--num-beams, --length-penalty and --shortlist are for translators.")
        say(runs.evaluate_text(task, read_plain_text(*options.data)).report())
        return
    pairs = runs.open_pairs(
        options.data,
        options.split,
        folder=options.data_dir,
        languages=(options.source_language or "en", options.target_language or "de"),
    )
    search = options.num_beams, options.length_penalty, options.bleu_tokenize
    if options.shortlist:
        say(runs.evaluate_shortlist(task, pairs, options.shortlist, *search).report())
        return
    say(runs.evaluate(task, pairs, *search).report())


def _shortlist(options):
    from keras_attn import Translator, runs

    translator = _load(options.translator, Translator, _given(options, ("ignored_fields",)))
    pairs = runs.open_pairs(
        options.data,
        "train",
        folder=options.data_dir,
        languages=(options.source_language or "en", options.target_language or "de"),
    )
    shortlist = runs.shortlist_of(
        translator, pairs, options.alignments, options.num_anywhere, options.num_of_source
    )
    shortlist.save(options.output, translator.source_tokenizer, translator.target_tokenizer)
    say(options.output)


def _generate(options):
    from keras_attn import runs
    from keras_attn.generation import DecodingOptions
    from keras_attn.tasks import TextGenerator

    given = _given(options, _OF_DECODING)
    runs.generate_texts(
        _load(options.generator, TextGenerator, _given(options, ("ignored_fields",))),
        options.prompts,
        options.num_return_sequences,
        DecodingOptions(**given),
        num_beams=options.num_beams,
        length_penalty=options.length_penalty,
        max_length=options.max_length,
    )


# The options of `generate` that are `DecodingOptions`.
_OF_DECODING = (
    "min_length",
    "no_repeat_ngram_size",
    "repetition_penalty",
    "stop_token_ids",
    "suppressed_token_ids",
    "wu_length_penalty",
    "exact_stopping",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
)


# The options of commands that say what a checkpoint's files leave open.
_OF_CHECKPOINTS = (
    "source_language",
    "target_language",
    "text_prefix",
    "purpose",
    "num_heads",
    "checkpoint",
    "max_sequence_length",
    "ignored_fields",
)


def _of_checkpoint(options, more=()):
    return _given(options, (*_OF_CHECKPOINTS, *more))


def _load(folder, task_class, options=None):
    """The task of a class that a folder holds, or that a checkpoint, by its folder or its name on the hub, is for."""
    from keras_attn.tasks import checkpoint_folder, load_task
    from keras_attn.tasks.loading import holds_checkpoint

    if not options and not holds_checkpoint(folder := checkpoint_folder(folder)):
        return task_class.load(folder)
    task = load_task(folder, **(options or {}))
    if not isinstance(task, task_class):
        raise ValueError(
            f"The checkpoint {folder} is for a {type(task).__name__}, not a {task_class.__name__}."
        )
    return task


def _translate(options):
    from keras_attn import Translator, runs

    translator = _load(options.translator, Translator, _of_checkpoint(options))
    runs.translate_lines(
        translator,
        options.input,
        options.output,
        options.num_beams,
        options.length_penalty,
        options.texts,
    )


def _show(options):
    from keras_attn.tasks import checkpoint_folder, load_task
    from keras_attn.tasks.loading import holds_checkpoint

    task = load_task(options.task, **_of_checkpoint(options))
    names = ("target", "pair", "grid", "num_beams", "max_length", "title")
    given = _given(options, names)
    unknown = sorted(set(given) - {"title", *task.show_options})
    if unknown:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in unknown)
        raise ValueError(f"{task.article} {task.name} is shown without {flags}.")
    if options.compare:
        name, other_name = _names_of(options.task, options.compare)
        # A run may stand beside the checkpoint that it began with.
        is_checkpoint = holds_checkpoint(checkpoint_folder(options.compare))
        other = load_task(options.compare, **(_of_checkpoint(options) if is_checkpoint else {}))
        given |= {"compare": {other_name: other}, "name": name}
    say(task.show(options.text, **given).save(options.output))


def _names_of(*folders):
    """The names of folders; where they are alike, as that of each run's `translator` is, the folders as they are given."""
    names = [pathlib.Path(folder).resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else list(map(str, folders))


def _export(options):
    from keras_attn import runs
    from keras_attn.data.text_files import Lines
    from keras_attn.tasks import Translator, load_task

    is_saved_model = options.format == "saved_model"
    of_saved_model = ("xla", "examples", "signatures", "attention", "verify")
    if not is_saved_model and any(getattr(options, name) for name in of_saved_model):
        raise ValueError(
            "--xla, --examples, --signatures, --attention and --verify are for a SavedModel. "
            f"Received: --format {options.format}."
        )
    task = load_task(options.task, **_of_checkpoint(options, ("max_length", "num_beams", "length_penalty")))
    if options.xla and not task.compiles_with_xla:
        raise ValueError(f"{task.article} {task.name} is exported as a SavedModel without --xla.")
    if options.shortlist:
        if not isinstance(task, Translator):
            raise ValueError(f"--shortlist is for translators. Received: {task.article.lower()} {task.name}.")
        task = task.replaced(shortlist=options.shortlist)
    if not is_saved_model:
        say(task.export_model(options.folder, options.format, options.quantization))
        return
    if options.examples:
        examples = list(filter(str.strip, Lines(options.examples)))
    else:
        examples = runs.example_texts(options.task)
    chosen = {"xla": True} if options.xla else {}
    if options.attention:
        chosen["attention"] = True
    if options.quantization:
        chosen["quantization"] = options.quantization
    version = task.export(options.folder, examples, signatures=options.signatures, **chosen)
    say(version)
    return _verified(version, task) if options.verify else 0


def _verify(options):
    from keras_attn.tasks import load_task

    task = None
    if options.task:
        task = load_task(options.task, **_given(options, ("ignored_fields",)))
    return _verified(_version_folder(options.version), task)


def _verified(version, task):
    """Prints the checks of a version folder; returns the exit code."""
    from keras_attn.export import verify_saved_model

    checks = verify_saved_model(version) if task is None else task.verify(version)
    for check in checks:
        say(f"{'FAILED' if check.problems else 'ok':7} {printable_line(check.name)}")
        for line in (*check.problems, *check.notes):
            say(f"        {printable_line(line)}")
    return FOUND_SOMETHING if any(check.problems for check in checks) else 0


def _serve(options):
    from keras_attn import serve

    serve.serve(options.folders, options.host, options.port, options.xla, options.ignored_fields or ())


def _version_folder(folder):
    """The folder, or the newest version in the folder of a model."""
    folder = pathlib.Path(folder)
    versions = [path for path in folder.glob("*/saved_model.pb") if path.parent.name.isdecimal()]
    if not versions or (folder / "saved_model.pb").is_file():
        return folder
    return max((path.parent for path in versions), key=lambda path: int(path.name))


_COMMANDS = {
    "train": _train,
    "distill": _distill,
    "average": _average,
    "ensemble": _ensemble,
    "evaluate": _evaluate,
    "generate": _generate,
    "translate": _translate,
    "show": _show,
    "export": _export,
    "verify": _verify,
    "serve": _serve,
    "shortlist": _shortlist,
}
