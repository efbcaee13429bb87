"""The post-processors of a tokenizer.json: which special tokens stand around one text and around a pair."""

import collections

import tensorflow as tf

from keras_attn.text.json_parts import check_value, read_part

Part = collections.namedtuple("Part", "source type_id special", defaults=[()])
Part.__doc__ = """A part of a sequence.

source: 0 for the first text, 1 for the second, None for special tokens.
type_id: The type of its tokens.
special: The ids of special tokens.
"""

Template = collections.namedtuple("Template", "single pair")
Template.__doc__ = """The parts of a sequence of one text and of a pair."""

FIRST_TEXT = Part(0, 0)
_PLAIN = Template([FIRST_TEXT], [FIRST_TEXT, Part(1, 1)])


def read_template(part):
    """The `Template` of a post-processor; without one, texts stand alone.

    Raises:
        ValueError: If the post-processor is not understood.
    """
    if part is None:
        return _PLAIN
    if isinstance(part, dict) and part.get("type") == "Sequence":
        templates = [read_template(inner) for inner in part.get("processors", [])]
        adding = [template for template in templates if template is not _PLAIN]
        if len(adding) > 1:
            raise ValueError(
                "Of a tokenizer's post-processors, one may add special tokens. Received several."
            )
        return adding[0] if adding else _PLAIN
    return read_part(part, "post-processor", _BUILDERS)


def filled(parts, first, second=None):
    """Puts token ids into a template.

    Args:
        parts: One of the two lists of a `Template`.
        first, second: Ragged int32 ids of shape (B, None). `second` belongs to pairs.

    Returns:
        The ids with special ones, and the token types, ragged int32 of shape (B, None).
    """
    texts = (first, second)
    ids = []
    types = []
    for part in parts:
        if part.source is None:
            special = tf.tile(tf.constant([part.special], tf.int32), [first.nrows(), 1])
            piece = tf.RaggedTensor.from_tensor(special)
        else:
            piece = texts[part.source]
        ids.append(piece)
        types.append(piece.with_values(tf.fill(tf.shape(piece.values), part.type_id)))
    return tf.concat(ids, axis=1), tf.concat(types, axis=1)


def num_special(parts):
    """How many special tokens a template adds."""
    return sum(len(part.special) for part in parts)


def truncated(first, second, room, strategy="longest_first", *, from_left=False):
    """Shortens texts so that both together have at most `room` tokens.

    Args:
        first, second: Ragged ids of shape (B, None); `second` may be `None`.
        room: Scalar int, tokens for both.
        strategy: "longest_first" shortens the longer one, "only_first" and "only_second" that one.
        from_left: Whether tokens are taken from the start.

    Returns:
        The two, shortened.
    """
    room = tf.maximum(tf.cast(room, tf.int64), 0)
    if second is None:
        return _shortened(first, tf.fill([first.nrows()], room), from_left), None
    first_size = first.row_lengths()
    second_size = second.row_lengths()
    if strategy == "only_first":
        return _shortened(first, room - second_size, from_left), second
    if strategy == "only_second":
        return first, _shortened(second, room - first_size, from_left)
    # As `tokenizers` does it: the shorter keeps what it has if that is less than half of the room.
    less = tf.minimum(first_size, second_size)
    more = tf.maximum(first_size, second_size)
    short_room = tf.where(less > room // 2, room // 2, less)
    long_room = tf.minimum(more, room - short_room)
    is_first_longer = first_size > second_size
    fits = first_size + second_size <= room
    first_room = tf.where(fits, first_size, tf.where(is_first_longer, long_room, short_room))
    second_room = tf.where(fits, second_size, tf.where(is_first_longer, short_room, long_room))
    return _shortened(first, first_room, from_left), _shortened(second, second_room, from_left)


def _shortened(ids, lengths, from_left):
    sizes = ids.row_lengths()
    places = tf.ragged.range(sizes).values
    if from_left:  # count from the end, which is kept
        places = tf.repeat(sizes, sizes) - 1 - places
    is_kept = places < tf.repeat(tf.maximum(lengths, 0), sizes)
    return tf.ragged.boolean_mask(ids, ids.with_values(is_kept))


def _template_processing(single, pair, special_tokens):
    def parts(items):
        return [_part(item, special_tokens) for item in items]

    template = Template(parts(single), parts(pair))
    if [part.source for part in template.single if part.source is not None] != [0]:
        raise ValueError("The template of one text must hold that text once.")
    if sorted(part.source for part in template.pair if part.source is not None) != [0, 1]:
        raise ValueError("The template of a pair must hold each text once.")
    return template


def _part(item, special_tokens):
    ((kind, fields),) = item.items()
    check_value("template", "part", kind, ("Sequence", "SpecialToken"))
    type_id = int(fields["type_id"])
    if kind == "SpecialToken":
        return Part(None, type_id, tuple(int(number) for number in special_tokens[fields["id"]]["ids"]))
    return Part({"A": 0, "B": 1}[fields["id"]], type_id)


def _bert(sep, cls):
    end = (int(sep[1]),)
    single = [Part(None, 0, (int(cls[1]),)), FIRST_TEXT, Part(None, 0, end)]
    return Template(single, single + [Part(1, 1), Part(None, 1, end)])


def _roberta(sep, cls, trim_offsets=True, add_prefix_space=True):
    end = Part(None, 0, (int(sep[1]),))
    single = [Part(None, 0, (int(cls[1]),)), FIRST_TEXT, end]
    return Template(single, single + [end, Part(1, 0), end])


_BUILDERS = {
    "TemplateProcessing": _template_processing,
    "BertProcessing": _bert,
    "RobertaProcessing": _roberta,
    "ByteLevel": lambda **_: _PLAIN,
}
