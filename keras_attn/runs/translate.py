import contextlib
import itertools
import os
import pathlib
import sys

from keras_attn.files import replaced_file
from keras_attn.terminal import printable

_LINES_AT_ONCE = 1024


def translate_lines(
    translator, input_file=None, output_file=None, num_beams=None, length_penalty=None, texts=()
):
    """Translates UTF-8 text line by line: as many lines out as in, an empty line for an empty line.

    Only line feeds end lines. Invalid UTF-8 is repaired; a line feed inside a translation becomes a space.

    Args:
        translator: A `Translator`.
        input_file, output_file: Paths; None is standard input or output. The output file appears when all is
            translated; an error leaves what was there before.
        num_beams, length_penalty: Replace the translator's own.
        texts: Strings, which are translated instead of lines.

    Raises:
        ValueError: if both files are one, or if there are texts and an input file.
    """
    if texts and input_file:
        raise ValueError(
            f"Give the texts themselves or a file of them, not both. Received: {texts[0]!r} and the file {input_file}."
        )
    if input_file and output_file and _is_same_file(input_file, output_file):
        raise ValueError(f"The output must be another file than the input. Received: {output_file} for both.")
    with contextlib.ExitStack() as stack:
        if texts:
            source = map(os.fsencode, texts)
        else:
            source = stack.enter_context(open(input_file, "rb")) if input_file else sys.stdin.buffer
        target = stack.enter_context(_output(output_file)) if output_file else sys.stdout.buffer
        # A user who types waits for each line; a file is read in large chunks.
        at_once = 1 if source is sys.stdin.buffer and sys.stdin.isatty() else _LINES_AT_ONCE
        while lines := list(itertools.islice(source, at_once)):
            batch = [line.removesuffix(b"\n").removesuffix(b"\r") for line in lines]
            for translation in translator(batch, num_beams=num_beams, length_penalty=length_penalty):
                line = translation.replace("\n", " ")
                line = printable(line) if target.isatty() else line
                target.write(line.encode("utf-8") + b"\n")
            target.flush()


@contextlib.contextmanager
def _output(file):
    path = pathlib.Path(file)
    if path.exists() and not path.is_file():  # a device or a pipe
        with open(path, "wb") as target:
            yield target
        return
    with replaced_file(path) as aside, open(aside, "wb") as target:
        yield target


def _is_same_file(one, other):
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)
