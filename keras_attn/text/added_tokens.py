"""Tokens that a tokenizer.json adds to its vocabulary: they are found in the text before anything else happens to it."""

import tensorflow as tf

from keras_attn.text.patterns import CUT, WHITE_SPACE, escaped

MARK = b"\xfe"  # begins an added token among the pieces of a text
REMOVED = b"\xfd"  # begins what is between words, where that is kept to count offsets
_FIELDS = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}


class AddedTokens(tf.Module):
    """Finds added tokens in texts.

    Args:
        tokens: List of the objects in `added_tokens`.
        normalize: Function from a list of `str` to that of their normalized forms, for tokens that are looked for in
            normalized text.
        split_special_tokens: Whether special tokens in texts are read as text.
    """

    def __init__(self, tokens, normalize, split_special_tokens=False):
        super().__init__()
        tokens = [checked_token(token) for token in tokens]
        self.ids = {token["content"]: token["id"] for token in tokens}
        sought = [token for token in tokens if not (split_special_tokens and token["special"])]
        late = [token for token in sought if token["normalized"]]
        contents = normalize([token["content"] for token in late]) if late else []
        # `tokenizers` writes the normalized form of such a token, and does not skip it as special if the form differs.
        changed = {}
        for token, content in zip(late, contents, strict=True):
            if content != token["content"]:
                changed[token["id"]] = content
        self.texts = {token["id"]: token["content"] for token in tokens} | changed
        self.special_ids = {token["id"] for token in tokens if token["special"]} - set(changed)
        # The two kinds are looked for in turn even without a normalizer.
        self._first = _pattern([(token["content"], token) for token in sought if not token["normalized"]])
        self._late = _pattern([pair for pair in zip(contents, late, strict=True) if pair[0]])
        self._contents = tf.constant([""] + list(self.ids) + contents)
        late_ids = [token["id"] for token in late]
        self._ids = tf.constant([-1] + list(self.ids.values()) + late_ids, tf.int32)

    def cut(self, texts, keeps_space=False):
        """Cuts texts at the tokens that are looked for before normalization.

        Args:
            texts: String tensor of shape (B,).
            keeps_space: Whether white space that belongs to a token is kept, as a piece that begins with `REMOVED`.

        Returns:
            Ragged string tensor of shape (B, None), without empty pieces; tokens begin with a mark.
        """
        return _cut(texts, self._first, keeps_space)

    def cut_normalized(self, pieces, keeps_space=False):
        """Cuts the pieces of `cut`, normalized since, at the other tokens. Ragged in, ragged out."""
        if self._late is None:
            return pieces
        cut = _cut(pieces.values, self._late, keeps_space, has_mark(pieces.values))
        return pieces.with_values(cut).merge_dims(1, 2)

    def ids_of(self, pieces):
        """The id of each piece, -1 for one that is no added token: strings of shape (N,) to int32 of shape (N,)."""
        where = tf.where(is_added(pieces))  # few
        contents = tf.strings.substr(tf.gather_nd(pieces, where), 1, -1)
        same = tf.equal(contents[:, tf.newaxis], self._contents)
        ids = tf.gather(self._ids, tf.argmax(same, axis=1))
        return tf.tensor_scatter_nd_update(tf.fill(tf.shape(pieces), -1), where, ids)


def is_added(pieces):
    """Whether each piece is an added token."""
    return tf.equal(tf.strings.substr(pieces, 0, 1), MARK)


def has_mark(pieces):
    """Whether each piece is an added token or what was removed, and so begins with a byte that is not its own."""
    first = tf.strings.substr(pieces, 0, 1)
    return tf.equal(first, MARK) | tf.equal(first, REMOVED)


def _cut(texts, pattern, keeps_space, is_token=None):
    if pattern is None:
        pieces = tf.RaggedTensor.from_row_lengths(texts, tf.fill(tf.shape(texts), tf.constant(1, tf.int64)))
    else:
        pattern, token, left, right = pattern
        rewrite = CUT + MARK + token + CUT
        if keeps_space:
            rewrite = CUT + REMOVED + left + rewrite + REMOVED + right + CUT
        cut = tf.strings.regex_replace(texts, pattern, rewrite)
        if is_token is not None:
            cut = tf.where(is_token, texts, cut)
        pieces = tf.strings.split(cut, CUT)
    return tf.ragged.boolean_mask(pieces, pieces.with_values(tf.strings.length(pieces.values) > 0))


def _pattern(pairs):
    """The RE2 pattern of the tokens, longer ones first, and its groups of the token and of white space beside it."""
    if not pairs:
        return None
    # White space next to a token belongs to it if its `lstrip` or `rstrip` says so.
    kinds = {}
    for content, token in sorted(pairs, key=lambda pair: -len(pair[0])):
        kinds.setdefault((token["lstrip"], token["rstrip"]), []).append(content)
    space = f"([{WHITE_SPACE}]*)"
    options = []
    groups = {"left": b"", "token": b"", "right": b""}
    number = 0
    for (left, right), contents in kinds.items():
        token = "|".join(escaped(content) for content in contents)
        option = ""
        for name, is_there, pattern in (
            ("left", left, space),
            ("token", True, f"({token})"),
            ("right", right, space),
        ):
            if is_there:
                number += 1
                groups[name] += rb"\%d" % number
                option += pattern
        options.append(option)
    _check_unambiguous(list(kinds.values()))
    return "|".join(options), groups["token"], groups["left"], groups["right"]


def _check_unambiguous(kinds):
    """Refuses a token that begins another one that treats white space differently: the longer would not be found."""
    for kind in kinds:
        for other in kinds:
            for content in kind:
                longer = [] if kind is other else [text for text in other if text.startswith(content)]
                if longer:
                    raise ValueError(
                        f"Added tokens of different `lstrip` or `rstrip` must not begin with each other. Received: "
                        f"{content!r} and {longer[0]!r}."
                    )


def checked_token(token):
    """A token of a tokenizer.json, or a ValueError if it is damaged or not understood."""
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
