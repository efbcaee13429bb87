"""What stands around a source's tokens: END alone, or what the template of a checkpoint's tokenizer has."""

import dataclasses

import tensorflow as tf

# Stands for the token of the source's language in `SourceForm.before` and `SourceForm.after`.
LANGUAGE = -1


@dataclasses.dataclass(frozen=True)
class SourceForm:
    """The token ids of a source: `before`, those of its text, `after`.

    Args:
        before, after: Tuples of integers; `LANGUAGE` stands for the token of the source's language.
        text_prefix: String that every text begins with, the name of the task for instance, as T5 was trained with.

    Example:

    ```python
    form = SourceForm(after=(3,), text_prefix="translate English to German: ")
    ```
    """

    before: tuple = ()
    after: tuple = ()
    text_prefix: str = ""

    def __post_init__(self):
        for name in ("before", "after"):  # lists, if they come from JSON
            object.__setattr__(self, name, tuple(map(int, getattr(self, name))))
        if not isinstance(self.text_prefix, str):
            raise ValueError(f"`text_prefix` must be a string. Received: text_prefix={self.text_prefix!r}.")

    @property
    def num_special(self):
        """How many tokens stand around a text's."""
        return len(self.before) + len(self.after)

    def num_added(self, tokenizer):
        """How many tokens the source of an empty text has."""
        prefix = tokenizer.encode([self.text_prefix])[0] if self.text_prefix else []
        return self.num_special + len(prefix)

    def token_ids(self, tokenizer, texts, max_sequence_length, language_ids=None):
        """The ids of sources, of which the text is cut if they are too long.

        Args:
            tokenizer: The tokenizer of the source.
            texts: Strings (B,).
            max_sequence_length: Integer, the most ids of a source.
            language_ids: int32 (B,), the token of each source's language, if the form has one.

        Returns:
            Ragged ids (B, None), and booleans (B,): which were cut.
        """
        if self.text_prefix:
            texts = tf.strings.join([self.text_prefix, texts])
        whole = tokenizer.tokenize(texts)
        room = max_sequence_length - self.num_special
        parts = [self._rows(self.before, whole, language_ids), whole[:, :room]]
        parts.append(self._rows(self.after, whole, language_ids))
        return tf.concat(parts, axis=1), whole.row_lengths() > room

    def _rows(self, ids, whole, language_ids):
        rows = tf.tile(tf.constant([ids], whole.dtype, [1, len(ids)]), [whole.nrows(), 1])
        if LANGUAGE not in ids:
            return rows
        language = tf.cast(language_ids, whole.dtype)[:, tf.newaxis]
        return tf.where(rows == LANGUAGE, language, rows)
