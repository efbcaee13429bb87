"""The file of a teacher's translations, which grows piece by piece and is gone on with after a kill."""

import json
import os
import time

from keras_attn.data.text_files import checksum
from keras_attn.runs.display import duration

_SOURCES_A_PIECE = 1024
_SECONDS_BETWEEN_LINES = 20.0


class TeacherTranslations:
    """Translations of texts in a file of JSON lines: a header that tells of what, and a line for each piece.

    A line is written as a whole and reaches the disk before the next piece begins. A line that a kill has cut short is
    removed when the file is opened again.

    Args:
        path: Path of the file.
        sources: Sequence of strings.
        made_with: Dict for JSON: all that the translations depend on but the sources.
        say: Function of a text, a line for the user.

    Raises:
        ValueError: if the file holds translations of other sources or made with something else, or is damaged.
    """

    def __init__(self, path, sources, made_with, say):
        self.path, self.sources, self.say = path, sources, say
        self.header = {**made_with, "sources": checksum(sources), "sources_a_piece": _SOURCES_A_PIECE}
        self.done = 0
        self.num_pieces = -(-len(sources) // _SOURCES_A_PIECE)
        self._open()

    @property
    def is_complete(self):
        """Whether all sources are translated."""
        return self.done == self.num_pieces

    def complete(self, translate):
        """Translates what is left.

        Args:
            translate: Function of a list of strings that returns their translations.
        """
        total, began, first = len(self.sources), time.monotonic(), self.done
        said = began
        if not self.path.exists() or not self.path.stat().st_size:
            self._append(self.header)
        while not self.is_complete:
            texts = self._texts(self.done)
            translations = [text.replace("\n", " ") for text in translate(texts)]
            self._append({"piece": self.done, "texts": checksum(texts), "translations": translations})
            self.done += 1
            now = time.monotonic()
            if now - said < _SECONDS_BETWEEN_LINES and not self.is_complete:
                continue
            said = now
            left = (now - began) / (self.done - first) * (self.num_pieces - self.done)
            translated = min(total, self.done * _SOURCES_A_PIECE)
            self.say(f"Translated {translated:,} of {total:,} sources; {duration(left)} left")

    def read(self):
        """All translations, a list of strings, in the order of the sources."""
        with open(self.path, encoding="utf-8") as file:
            next(file)
            return [text for line in file for text in json.loads(line)["translations"]]

    def _texts(self, piece):
        return list(self.sources[piece * _SOURCES_A_PIECE : (piece + 1) * _SOURCES_A_PIECE])

    def _open(self):
        """Counts the whole pieces that are there, checks them, and removes what is left of one that was cut short."""
        lines, whole = [], 0
        if self.path.exists():
            with open(self.path, "rb") as file:
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    lines.append(line)
                    whole += len(line)
            os.truncate(self.path, whole)
        if not lines:
            return
        if (there := self._parsed(lines[0])) != self.header:
            other = sorted(name for name, value in self.header.items() if there.get(name) != value)
            raise ValueError(
                f"{self.path} holds translations made otherwise: {', '.join(other)}. Choose another folder, or remove "
                "the file."
            )
        for number, line in enumerate(lines[1:]):
            piece, texts = self._parsed(line), self._texts(number)
            is_right = piece.get("piece") == number and piece.get("texts") == checksum(texts)
            if not is_right or len(piece.get("translations", ())) != len(texts):
                raise ValueError(f"{self.path} is damaged in line {number + 2}. Remove the file.")
        self.done = len(lines) - 1

    def _parsed(self, line):
        try:
            parsed = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{self.path} is damaged: {error}. Remove the file.") from error
        return parsed if isinstance(parsed, dict) else {}

    def _append(self, value):
        with open(self.path, "ab") as file:
            file.write(json.dumps(value, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
