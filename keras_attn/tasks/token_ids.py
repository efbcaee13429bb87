import tensorflow as tf


def with_end(tokenizer, texts, max_sequence_length):
    """Strings (B,) -> ragged ids (B, None), cut to `max_sequence_length` with END; and which were cut."""
    whole = tokenizer.tokenize(texts)
    token_ids = whole[:, : max_sequence_length - 1]
    end = tf.fill([token_ids.nrows(), 1], tf.constant(tokenizer.end_token_id, token_ids.dtype))
    return tf.concat([token_ids, end], axis=1), whole.row_lengths() > max_sequence_length - 1


def to_texts(tokenizer, token_ids):
    """Ids (B, n, L) -> strings (B, n)."""
    flat = tf.reshape(token_ids, [-1, tf.shape(token_ids)[-1]])
    return tf.reshape(tokenizer.detokenize(flat), tf.shape(token_ids)[:2])


def continuations(tokenizer, prompts, token_ids):
    """Ids of prompts (B, P), padded, and ids (B, n, L) after them -> the texts that follow, strings (B, n).

    They are what is added to the texts of the prompts: of tokens alone, a tokenizer may drop the space before a word.
    """
    num_answers = tf.shape(token_ids)[1]
    repeated = tf.repeat(prompts[:, tf.newaxis], num_answers, axis=1)
    whole = to_texts(tokenizer, tf.concat([repeated, token_ids], axis=2))
    before = tf.strings.length(tokenizer.detokenize(prompts))
    before = tf.repeat(before[:, tf.newaxis], num_answers, axis=1)
    lengths = tf.strings.length(whole)
    return tf.strings.substr(whole, tf.minimum(before, lengths), lengths)
