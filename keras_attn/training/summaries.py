"""TensorBoard event files: scalars, tables of sample translations, pictures."""

import html
import re


class Summaries:
    """Writes event files to a folder. Everything is on disk when a method returns.

    Args:
        log_dir: Path of the folder.

    Raises:
        ImportError: If TensorFlow is not installed.
    """

    def __init__(self, log_dir):
        try:
            # Imported on use: this subpackage also works where TensorFlow is not installed.
            import tensorflow as tf
        except ImportError as error:
            raise ImportError("`log_dir` needs TensorFlow: pip install tensorflow.") from error
        self._summary = tf.summary
        self._writer = tf.summary.create_file_writer(str(log_dir))

    def write(self, step, scalars=None, texts=None, pictures=None):
        """Writes dicts from tags to numbers, to texts in markdown, and to uint8 arrays (height, width, 3).

        Args:
            step: Integer, the number of updates so far.
            scalars, texts, pictures: Dicts, or None.
        """
        # Keras' TensorBoard callback may have switched recording off for the current step.
        with self._writer.as_default(step), self._summary.record_if(True):
            for tag, value in (scalars or {}).items():
                self._summary.scalar(tag, value)
            for tag, text in (texts or {}).items():
                self._summary.text(tag, text)
            for tag, picture in (pictures or {}).items():
                self._summary.image(tag, picture[None])
        self._writer.flush()

    def close(self):
        """Closes the file."""
        self._writer.close()


def samples_table(sources, translations, references):
    """A table in markdown: source, translation, reference, and whether the translation is the reference."""
    rows = []
    for source, translation, reference in zip(sources, translations, references, strict=True):
        verdict = "✓ right" if translation == reference else "✗ wrong"
        rows.append((source, translation, reference, verdict))
    return markdown_table(("source", "translation", "reference", ""), rows)


def markdown_table(head, rows):
    """A table in markdown, whose cells show the characters of their texts and no markup."""
    lines = [_markdown_row(head), _markdown_row(["---"] * len(head))]
    lines += [_markdown_row(map(_markdown_text, row)) for row in rows]
    return "\n".join(lines)


def _markdown_row(cells):
    return f"| {' | '.join(cells)} |"


def _markdown_text(text):
    one_line = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", html.escape(one_line, quote=False))
