"""BERT's preprocessing of text, in the graph: cleaning, case folding and splitting into words.

The result is that of Hugging Face's `tokenizers`, the library that the published vocabularies are used with.
Its category tables are those of Unicode 8, so later characters are neither marks nor punctuation. It
lower-cases each character regardless of its neighbours, so there is no final sigma.

References:
    - Devlin et al., 2019, tokenization.py of https://github.com/google-research/bert
    - `BertNormalizer` and `BertPreTokenizer` of https://github.com/huggingface/tokenizers
"""

import tensorflow as tf

# RE2's character classes have no intersection: [^\P{Mn}...] means the characters of Mn except those listed
# after it.
_DROPPED = r"[\x00\x{FFFD}\p{Co}]|[^\P{Cc}\t\n\r]|[^\P{Cf}\x{890}-\x{891}\x{8E2}\x{110CD}\x{13430}-\x{1343F}]"
_SPACES = r"[\t\n\r\p{Z}]"
_NONSPACING_MARKS = (
    r"[^\P{Mn}\x{7FD}\x{898}-\x{8E1}\x{9FE}\x{AFA}-\x{AFF}\x{B55}\x{C04}-\x{C3C}\x{D00}\x{D3B}-\x{D3C}\x{D81}\x{EBA}"
    r"\x{ECE}\x{180F}-\x{1886}\x{1ABF}-\x{1ACE}\x{1DF6}-\x{1DFB}\x{A82C}\x{A8C5}\x{A8FF}\x{A9BD}\x{10D24}-\x{10F85}"
    r"\x{11070}-\x{11074}\x{110C2}\x{111C9}\x{111CF}\x{1123E}-\x{11241}\x{1133B}\x{11438}-\x{1145E}\x{1182F}-\x{13455}"
    r"\x{16F4F}\x{16FE4}\x{1CF00}-\x{1CF46}\x{1E000}-\x{1E4EF}\x{1E944}-\x{1E94A}]|\x{1734}"
)
_PUNCTUATION = (
    r"[!-/:-@\[-`{-~\x{166D}\x{111C9}]|[^\P{P}\x{61D}\x{9FD}-\x{A76}\x{C77}-\x{C84}\x{1B7D}-\x{1B7E}\x{2E43}-\x{2E5D}"
    r"\x{10EAD}-\x{10F89}\x{1144B}-\x{1145D}\x{11660}-\x{116B9}\x{1183B}-\x{11FFF}\x{12FF1}-\x{12FF2}\x{16E97}-\x{16FE2}"
    r"\x{1E95E}-\x{1E95F}]"
)
# The CJK characters, each of which is a word. The gap after 2B81F is a mistake in the original, kept here.
_CHINESE = (
    r"[\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B81F}"
    r"\x{2B920}-\x{2CEAF}\x{2F800}-\x{2FA1F}]"
)
# Two noncharacters, which no text has next to each other.
_NO_CHARACTERS = "\ufdd0\ufdd1"
PUNCTUATION = f"({_PUNCTUATION})"
_WORDS_OF_THEIR_OWN = f"({_PUNCTUATION}|{_CHINESE})"


def bert_words(texts, normalize_utf8, lowercase, strip_accents):
    """Splits texts into words as BERT does.

    Args:
        texts: String tensor of shape (B,), valid UTF-8.
        normalize_utf8: `tensorflow_text.normalize_utf8`.
        lowercase: Boolean, whether words are lower-cased.
        strip_accents: Boolean, whether characters are decomposed and their nonspacing marks removed.

    Returns:
        Ragged string tensor of shape (B, None).
    """
    return tf.strings.split(_spaced(texts, normalize_utf8, lowercase, strip_accents))


def bert_words_with_owners(texts, normalize_utf8, lowercase, strip_accents):
    """Like `bert_words`, and also returns where in `texts` each byte of the words comes from.

    Returns:
        The words, and two int32 tensors with one value for each byte of all the words, in order. They give
        the span, in its text, of the character that the byte was made from: its first byte, and the byte
        after its last.
    """
    characters = tf.strings.unicode_split(texts, "UTF-8")
    sizes = tf.strings.length(characters)
    ends = tf.cumsum(sizes.values)
    bytes_before_row = tf.gather(tf.concat([[0], ends], axis=0), sizes.row_starts())
    stops = ends - tf.repeat(bytes_before_row, sizes.row_lengths())
    # A character gives the same result alone as in its text, except for the order of marks that are kept.
    spaced = _spaced(characters.values, normalize_utf8, lowercase, strip_accents)
    counts = tf.strings.length(tf.strings.regex_replace(spaced, " ", ""))
    words = bert_words(texts, normalize_utf8, lowercase, strip_accents)
    return words, tf.repeat(stops - sizes.values, counts), tf.repeat(stops, counts)


def _spaced(texts, normalize_utf8, lowercase, strip_accents):
    texts = bert_normalized(
        texts,
        normalize_utf8,
        clean_text=True,
        space_chinese=False,
        lowercase=lowercase,
        strip_accents=strip_accents,
    )
    return tf.strings.regex_replace(texts, _WORDS_OF_THEIR_OWN, r" \1 ")


def bert_normalized(texts, normalize_utf8, *, clean_text, space_chinese, lowercase, strip_accents):
    """Cleans and folds texts as BERT does before it splits them.

    Args:
        texts, normalize_utf8, lowercase, strip_accents: As in `bert_words`.
        clean_text: Boolean, whether control characters are dropped and white space becomes spaces.
        space_chinese: Boolean, whether a space is put on either side of each CJK character.

    Returns:
        String tensor of shape (B,).
    """
    if clean_text:
        texts = tf.strings.regex_replace(texts, _DROPPED, "")
        texts = tf.strings.regex_replace(texts, _SPACES, " ")
    if space_chinese:
        texts = tf.strings.regex_replace(texts, _CHINESE, r" \0 ")
    if strip_accents:
        texts = tf.strings.regex_replace(normalize_utf8(texts, "NFD"), _NONSPACING_MARKS, "")
    if not lowercase:
        return texts
    return lowercased(texts) if clean_text else lowercased_with_nul(texts)


def lowercased(texts):
    """The lower case of each character, whatever its neighbours are."""
    # For these three, the result of `tf.strings.lower` depends on the server's locale or on neighbouring
    # characters.
    texts = tf.strings.lower(texts)  # ASCII
    texts = tf.strings.regex_replace(texts, "\u0130", "i\u0307")
    texts = tf.strings.regex_replace(texts, "\u03a3", "\u03c3")
    return tf.strings.lower(texts, "utf-8")


def lowercased_with_nul(texts):
    """Like `lowercased`, for texts that may hold NUL, where `tf.strings.lower` ends them."""
    texts = tf.strings.regex_replace(texts, r"\x00", _NO_CHARACTERS)
    return tf.strings.regex_replace(lowercased(texts), _NO_CHARACTERS, "\0")
