"""The post-processors of a tokenizer.json: which special tokens stand around one text and around a pair."""

import collections

import tensorflow as tf

from keras_attn.text.json_parts import check_value, read_part

# A part is (0, type) for the first text, (1, type) for the second, or (None, type, ids) for special tokens.
Template = collections.namedtuple("Template", "single pair")
Template.__doc__ = """The parts of a sequence of one text and of a pair."""

_PLAIN = Template([(0, 0, ())], [(0, 0, ()), (1, 1, ())])


def read_template(part):
    """The `Template` of a post-processor; without one, texts stand alone.

    Raises:
        ValueError: If the post-processor is not understood.
    """
    if part is None:
        return _PLAIN
    if isinstance(part, dict) and part.get("type") == "Sequence":
        found = [read_template(inner) for inner in part.get("processors", [])]
        adding = [template for template in found if template is not _PLAIN]
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
    rows = first.nrows()
    ids, types = [], []
    for source, kind, special in parts:
        if source is None:
            piece = tf.RaggedTensor.from_tensor(tf.tile(tf.constant([special], tf.int32), [rows, 1]))
        else:
            piece = (first, second)[source]
        ids.append(piece)
        types.append(piece.with_values(tf.fill(tf.shape(piece.values), kind)))
    return tf.concat(ids, axis=1), tf.concat(types, axis=1)


def num_special(parts):
    """How many special tokens a template adds."""
    return sum(len(special) for _, _, special in parts)


def truncated(first, second, room, strategy="longest_first", from_left=False):
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
    sizes, others = first.row_lengths(), second.row_lengths()
    if strategy == "only_first":
        return _shortened(first, room - others, from_left), second
    if strategy == "only_second":
        return first, _shortened(second, room - sizes, from_left)
    # As `tokenizers` does it: the shorter keeps what it has if that is less than half of the room.
    less, more = tf.minimum(sizes, others), tf.maximum(sizes, others)
    small = tf.where(less > room // 2, room // 2, less)
    big = tf.minimum(more, room - small)
    swapped = sizes > others
    fits = sizes + others <= room
    first_room = tf.where(fits, sizes, tf.where(swapped, big, small))
    second_room = tf.where(fits, others, tf.where(swapped, small, big))
    return _shortened(first, first_room, from_left), _shortened(second, second_room, from_left)


def _shortened(ids, lengths, from_left):
    sizes = ids.row_lengths()
    places = tf.ragged.range(sizes)
    lengths = tf.repeat(tf.maximum(lengths, 0), sizes)
    # Counted from the end that is kept.
    places = tf.repeat(sizes, sizes) - 1 - places.values if from_left else places.values
    is_kept = places < lengths
    return tf.ragged.boolean_mask(ids, ids.with_values(is_kept))


def _template_processing(single, pair, special_tokens):
    def parts(items):
        return [_part(item, special_tokens) for item in items]

    template = Template(parts(single), parts(pair))
    if [part[0] for part in template.single if part[0] is not None] != [0]:
        raise ValueError("The template of one text must hold that text once.")
    if sorted(part[0] for part in template.pair if part[0] is not None) != [0, 1]:
        raise ValueError("The template of a pair must hold each text once.")
    return template


def _part(item, special_tokens):
    ((kind, fields),) = item.items()
    check_value("template", "part", kind, ("Sequence", "SpecialToken"))
    type_id = int(fields["type_id"])
    if kind == "SpecialToken":
        return None, type_id, tuple(int(number) for number in special_tokens[fields["id"]]["ids"])
    return {"A": 0, "B": 1}[fields["id"]], type_id, ()


def _bert(sep, cls):
    start, end = (int(cls[1]),), (int(sep[1]),)
    single = [(None, 0, start), (0, 0, ()), (None, 0, end)]
    return Template(single, [*single, (1, 1, ()), (None, 1, end)])


def _roberta(sep, cls, trim_offsets=True, add_prefix_space=True):
    start, end = (int(cls[1]),), (int(sep[1]),)
    single = [(None, 0, start), (0, 0, ()), (None, 0, end)]
    return Template(single, [*single, (None, 0, end), (1, 0, ()), (None, 0, end)])


_BUILDERS = {
    "TemplateProcessing": _template_processing,
    "BertProcessing": _bert,
    "RobertaProcessing": _roberta,
    "ByteLevel": lambda **_: _PLAIN,
}
