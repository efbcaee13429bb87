"""Tokens that a tokenizer.json adds to its vocabulary: they are found in the text before anything else happens to it."""

import tensorflow as tf

from keras_attn.text.patterns import CUT, WHITE_SPACE, escaped

# Begins an added token among the pieces of a text.
_MARK = b"\xfe"
_FIELDS = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}


class AddedTokens(tf.Module):
    """Finds added tokens in texts.

    Args:
        tokens: List of the objects in `added_tokens`.
        normalize: Function from a list of `str` to that of their normalized forms, for tokens that are looked for in
            normalized text.
    """

    def __init__(self, tokens, normalize):
        super().__init__()
        tokens = [_checked(token) for token in tokens]
        self.ids = {token["content"]: token["id"] for token in tokens}
        self.special_ids = {token["id"] for token in tokens if token["special"]}
        late = [token for token in tokens if token["normalized"]]
        contents = normalize([token["content"] for token in late]) if late else []
        # Without a normalizer the two kinds are looked for in turn all the same.
        self._first = _pattern([(token["content"], token) for token in tokens if not token["normalized"]])
        self._late = _pattern([pair for pair in zip(contents, late, strict=True) if pair[0]])
        self._contents = tf.constant(["", *self.ids, *contents])
        self._ids = tf.constant([-1, *self.ids.values(), *(token["id"] for token in late)], tf.int32)

    def cut(self, texts):
        """Cuts texts at the tokens that are looked for before normalization.

        Args:
            texts: String tensor of shape (B,).

        Returns:
            Ragged string tensor of shape (B, None), without empty pieces; tokens begin with a mark.
        """
        return _cut(texts, self._first)

    def cut_normalized(self, pieces):
        """Cuts the pieces of `cut`, normalized since, at the other tokens. Ragged in, ragged out."""
        if self._late is None:
            return pieces
        cut = _cut(pieces.values, self._late, is_added(pieces.values))
        return pieces.with_values(cut).merge_dims(1, 2)

    def ids_of(self, pieces):
        """The id of each piece, -1 for one that is no added token: strings of shape (N,) to int32 of shape (N,)."""
        where = tf.where(is_added(pieces))  # few
        contents = tf.strings.substr(tf.gather_nd(pieces, where), 1, -1)
        same = tf.equal(contents[:, tf.newaxis], self._contents)
        found = tf.gather(self._ids, tf.argmax(same, axis=1))
        return tf.tensor_scatter_nd_update(tf.fill(tf.shape(pieces), -1), where, found)


def is_added(pieces):
    """Whether each piece is an added token."""
    return tf.equal(tf.strings.substr(pieces, 0, 1), _MARK)


def _cut(texts, pattern, is_token=None):
    if pattern is None:
        pieces = tf.RaggedTensor.from_row_lengths(texts, tf.fill(tf.shape(texts), tf.constant(1, tf.int64)))
    else:
        cut = tf.strings.regex_replace(texts, *pattern)
        cut = cut if is_token is None else tf.where(is_token, texts, cut)
        pieces = tf.strings.split(cut, CUT)
    return tf.ragged.boolean_mask(pieces, pieces.with_values(tf.strings.length(pieces.values) > 0))


def _pattern(pairs):
    """The RE2 pattern of the tokens, longer ones first, and what a match is replaced by."""
    if not pairs:
        return None
    # White space beside a token belongs to it where the token says so. The text of the match is in one group.
    kinds = {}
    for content, token in sorted(pairs, key=lambda pair: -len(pair[0])):
        kinds.setdefault((token["lstrip"], token["rstrip"]), []).append(content)
    space = f"[{WHITE_SPACE}]*"
    options = [
        f"{space if left else ''}({'|'.join(escaped(content) for content in contents)}){space if right else ''}"
        for (left, right), contents in kinds.items()
    ]
    _check_unambiguous(list(kinds.values()))
    groups = b"".join(rb"\%d" % (number + 1) for number in range(len(options)))
    return "|".join(options), CUT + _MARK + groups + CUT


def _check_unambiguous(kinds):
    """Between tokens that treat white space in different ways, none may begin another: the longer would not be found."""
    for kind in kinds:
        for other in kinds:
            for content in kind:
                longer = [text for text in other if kind is not other and text.startswith(content)]
                if longer:
                    raise ValueError(
                        f"Added tokens of different `lstrip` or `rstrip` must not begin with each other. Received: "
                        f"{content!r} and {longer[0]!r}."
                    )


def _checked(token):
    if not isinstance(token, dict) or set(token) != _FIELDS or not token["content"]:
        raise ValueError(f"An added token must have the fields {sorted(_FIELDS)}. Received: {token!r:.100}")
    if not isinstance(token["id"], int) or not isinstance(token["content"], str) or token["id"] < 0:
        raise ValueError(f"An added token must have an int and a text. Received: {token!r:.100}")
    if token["single_word"]:
        raise ValueError(
            f"An added token with single_word=True is not supported: TensorFlow's patterns cannot look around it. "
            f"Received: {token['content']!r}."
        )
    return token
