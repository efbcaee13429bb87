"""Texts of strangers in a terminal: their control characters are written out, so that they command nothing."""

import re
import sys
import traceback

# C0 and C1 but tab and line feed, separators of lines and paragraphs, what turns the direction of writing, lone surrogates.
_COMMANDS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text):
    r"""A text whose control characters are written as escape sequences of Python, `\x1b` for instance.

    Whatever a command prints of a folder's files, their names and errors about them goes through this function:
    otherwise a stranger's folder could clear the screen, hide a line, or set the terminal's clipboard. Tabs and line
    feeds stay.

    Args:
        text: String; anything else is made one.

    Returns:
        A string.

    Example:

    ```python
    assert printable("a\x1b[2Jb") == r"a\x1b[2Jb"
    ```
    """
    return _COMMANDS.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), str(text))


def printable_line(text):
    """As `printable`, in one line: white space is one space."""
    return printable(" ".join(str(text).split()))


def say(text):
    """Prints a text to the terminal, or to whatever reads the command's output, with its control characters written out."""
    print(printable(text), flush=True)


def say_aside(text):
    """Prints a text to stderr, beside the answers that a program may read from the command's output."""
    print(printable(text), file=sys.stderr, flush=True)


def say_error(error):
    """Prints the one line of a command that ends with an error."""
    print(f"keras-attn: error: {printable_line(error)}", file=sys.stderr)


def say_fault():
    """Prints the error that is being handled, with its traceback, to stderr."""
    print(printable(traceback.format_exc()), end="", file=sys.stderr, flush=True)


def write_answer(text, end="\n"):
    """Prints what a model answered: the text itself for a program that reads it, `printable` for a person at a terminal."""
    print(printable(text) if sys.stdout.isatty() else text, end=end, flush=True)
