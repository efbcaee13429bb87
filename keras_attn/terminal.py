"""Texts of strangers in a terminal: their control characters are written out, so that they command nothing."""

import contextlib
import contextvars
import re
import sys
import time
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


def counted(number, noun):
    """A number and what it counts, `1 pair` or `1,000 pairs`: the noun is one that takes an s.

    Example:

    ```python
    assert counted(1, "pair") == "1 pair"
    assert counted(0.5, "minute") == "0.5 minutes"
    ```
    """
    shown = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{shown} {noun}" if number == 1 else f"{shown} {noun}s"


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


_stages = contextvars.ContextVar("stages", default=None)


def stage(text, *, done):
    """Says what a long command does next, within `stages_shown`; elsewhere nothing.

    Args:
        text: String.
        done: Float from 0 to 1, the share of the command's time that usually comes before this, by which what is left is estimated.

    Example:

    ```python
    stage("saving the weights", done=0.6)
    ```
    """
    stages = _stages.get()
    if stages is not None:
        stages.begin(text, done)


@contextlib.contextmanager
def stages_shown(name):
    """Within the block, every `stage` is shown on stderr: in a terminal as one line that changes, elsewhere each as a
    line when it begins.

    Args:
        name: String, the whole in words, for the last line.

    Example:

    ```python
    with stages_shown("the export"):
        stage("saving the weights", done=0.6)
    ```
    """
    stages = _Stages(sys.stderr)
    token = _stages.set(stages)
    try:
        yield
        stages.end(name)
    except BaseException:
        stages.clear()
        raise
    finally:
        _stages.reset(token)


class _Stages:
    """The stages of a command, as they are shown on a stream."""

    def __init__(self, stream):
        self.began = time.monotonic()
        self._stream = stream
        self._stage = None

    def begin(self, text, done):
        now = time.monotonic()
        left = ""
        spent = now - self.began
        if done and spent >= 1:
            left = f"about {spent * (1 - done) / done:.0f} s left"
        self._stage = printable_line(text)
        if self._stream.isatty():
            more = f"; {left}" if left else ""
            self._write(f"{self._stage} ...{more}")
            return
        more = f" ({', '.join(filter(None, [f'{spent:.0f} s so far', left]))})" if spent >= 1 else ""
        self._write(f"{self._stage} ...{more}\n")

    def end(self, name):
        now = time.monotonic()
        self._stage = None
        self._write(f"{name} took {now - self.began:.0f} s\n")

    def clear(self):
        """Takes the line away: what comes is an error's."""
        if self._stage is not None and self._stream.isatty():
            self._write("")
        self._stage = None

    def _write(self, text):
        """Writes a line over the one before it."""
        over = "\r\x1b[K" if self._stream.isatty() else ""
        self._stream.write(f"{over}{text}")
        self._stream.flush()
