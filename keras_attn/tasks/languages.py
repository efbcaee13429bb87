"""The languages of a multilingual translator: a token each."""

import collections

import numpy as np
import tensorflow as tf


class Languages(collections.namedtuple("Languages", ["ids", "source", "target", "target_is_start"])):
    """The languages that a translator knows.

    ids: dict from names to the ids of their tokens.
    source, target: the names of the defaults, or None where there is none.
    target_is_start: whether a translation begins with its language in place of START, as in the first mBART.

    Example:

    ```python
    languages = Languages({"en": 7, "de": 8}, source="en", target="de", target_is_start=False)
    ids = languages.rows("target", ["en", "de"], num_texts=2)
    ```
    """

    __slots__ = ()

    def rows(self, side, names, num_texts):
        """The id of each text's language, int32 (B,), or None if there is none.

        Args:
            side: "source" or "target".
            names: A name, a list of names, or None for the default.
            num_texts: Integer B.

        Raises:
            ValueError: for an unknown name, or another number of names than texts.
        """
        names = getattr(self, side) if names is None else names
        if names is None:
            return None
        names = [names] * num_texts if isinstance(names, str) else list(names)
        unknown = sorted({str(name) for name in names} - set(self.ids))
        if unknown:
            raise ValueError(
                f"`{side}_language` must be among {_shown(self.ids)}. Received: {side}_language={unknown[0]!r}."
            )
        if len(names) != num_texts:
            raise ValueError(
                f"`{side}_language` must be one for all texts or one for each. Received: {len(names)} of them for "
                f"{num_texts} texts."
            )
        return np.array([self.ids[name] for name in names], "int32")

    def ids_of(self, side, names):
        """In a graph: the ids int32 (B,) of names, strings (B,), and which are unknown; "" is the default.

        An unknown name is taken for the default; without a default the id is -1.
        """
        known = tf.constant(list(self.ids))
        ids = tf.constant([*self.ids.values(), self.default(side)], tf.int32)
        is_name = names[:, tf.newaxis] == known
        found = tf.reduce_any(is_name, axis=1)
        index = tf.where(found, tf.argmax(is_name, axis=1, output_type=tf.int32), len(self.ids))
        return tf.gather(ids, index), ~found & (names != "")

    def default(self, side):
        """The id of a side's default language, -1 if there is none."""
        return self.ids.get(getattr(self, side), -1)


def _shown(names, most=8):
    names = sorted(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
