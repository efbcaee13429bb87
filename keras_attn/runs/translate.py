import contextlib
import itertools
import sys

_LINES_AT_ONCE = 1024


def translate_lines(translator, input_file=None, output_file=None, num_beams=None, length_penalty=None):
    """Translates UTF-8 text line by line: as many lines out as in, an empty line for an empty line.

    Only line feeds end lines. Invalid UTF-8 is repaired; a line feed inside a translation becomes a space.

    Args:
        translator: A `Translator`.
        input_file, output_file: Paths; None is standard input or output.
        num_beams, length_penalty: Replace the translator's own.
    """
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(open(input_file, "rb")) if input_file else sys.stdin.buffer
        target = stack.enter_context(open(output_file, "wb")) if output_file else sys.stdout.buffer
        # A user who types waits for each line; a file is read in large chunks.
        at_once = 1 if not input_file and sys.stdin.isatty() else _LINES_AT_ONCE
        while lines := list(itertools.islice(source, at_once)):
            texts = [line.removesuffix(b"\n").removesuffix(b"\r") for line in lines]
            for translation in translator(texts, num_beams=num_beams, length_penalty=length_penalty):
                target.write(translation.replace("\n", " ").encode("utf-8") + b"\n")
            target.flush()
