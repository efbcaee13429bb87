"""The commands of `keras-attn`: each calls one function with its options (keras_attn_cli.py reads them), and prints the answer."""

import os
import signal
import sys

import tensorflow as tf

from keras_attn.files import not_there
from keras_attn.terminal import printable_line, say, say_aside, say_error, stages_shown

FOUND_SOMETHING = 1
BAD_INPUT = 2
INTERRUPTED = 128 + signal.SIGINT
OUTPUT_CLOSED = 128 + 13  # SIGPIPE, which Windows does not have


def run(options):
    """Runs the command that `options` name; returns its exit code.

    The code is 2, with one line on stderr, if the input is wrong, and 1 if `verify` finds a problem.
    """
    words = {name: value for name, value in vars(options).items() if value is not None}
    command = _COMMANDS[words.pop("command")]
    try:
        return command(**words) or 0
    except BrokenPipeError:  # whoever read the output has ended, as `head` does
        # Python's last flush would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_CLOSED
    except (ValueError, OSError, ImportError, FloatingPointError, tf.errors.OpError) as error:
        message = str(error)
        if isinstance(error, FileNotFoundError) and error.filename is not None:
            message = not_there(error.filename)
        say_error(message)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED


# Each command imports its modules when it runs.


def _train(files=(), data=None, **words):
    from keras_attn import runs
    from keras_attn.data.text_pairs import OneColumnError

    if files and data:
        raise ValueError("Give the files once: either as arguments or with --data.")
    try:
        runs.train(data or files or None, **words)
    except OneColumnError as error:
        raise ValueError(f"{error} For a language model, add --language-model.") from error


def _distill(**words):
    from keras_attn import runs

    runs.distill(**words)


def _average(folder, **words):
    from keras_attn import runs

    runs.average_translator(folder=folder, **words)
    say(folder)
    say_aside(runs.next_command.after_combining(folder))


def _ensemble(folder, **words):
    from keras_attn import runs

    runs.ensemble_translators(folder=folder, **words)
    say(folder)
    say_aside(runs.next_command.after_combining(folder))


def _evaluate(task, **words):
    from keras_attn import runs

    say(runs.evaluate_task(task, **words).report())
    say_aside(runs.next_command.after_evaluation(task))


def _shortlist(output, **words):
    from keras_attn import runs

    runs.write_shortlist(output=output, **words)
    say(output)


def _translate(**words):
    from keras_attn import runs

    runs.translate_lines(**words)


def _generate(**words):
    from keras_attn import runs

    runs.generate_texts(**words)


def _show(**words):
    from keras_attn import runs

    say(runs.show_task(**words))


def _export(task, **words):
    from keras_attn import runs

    with stages_shown("the export"):
        exported = runs.export_task(task, **words)
    say(exported.folder)
    checks = exported.checks or ()
    code = _say_checks(checks)
    if words.get("format", "saved_model") == "saved_model" and not code:
        say_aside(runs.next_command.after_export(exported.folder, task, was_verified=bool(checks)))
    return code


def _verify(version, **words):
    from keras_attn import runs

    with stages_shown("the verification"):
        checks = runs.verify(version, **words)
    code = _say_checks(checks)
    if not code:
        say_aside(runs.next_command.after_verification(runs.version_folder(version)))
    return code


def _serve(**words):
    from keras_attn import serve

    serve.serve(**words)


def _say_checks(checks):
    """Prints checks of an export; returns the exit code."""
    for check in checks:
        result = "FAILED" if check.problems else "ok"
        say(f"{result:7} {printable_line(check.name)}")
        for line in (*check.problems, *check.notes):
            say(f"        {printable_line(line)}")
    has_problems = any(check.problems for check in checks)
    return FOUND_SOMETHING if has_problems else 0


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
