import tensorflow as tf
from keras import ops

# Fills the rows of a batch in this room. It is no token in any vocabulary, where a pad may be one: END, or a real token
# that is there by chance.
NO_TOKEN = -1


def for_model(token_ids):
    """Ids (B, S) filled with `NO_TOKEN` -> what a model takes: ids, and the mask that is True at tokens."""
    token_ids = ops.convert_to_tensor(token_ids)
    return ops.maximum(token_ids, 0), token_ids >= 0


def filled(token_ids):
    """Ragged ids -> dense ids (B, S), filled with `NO_TOKEN`, of at least one column."""
    dense = token_ids.to_tensor(NO_TOKEN)
    # An empty batch, or one of empty texts, has no widest row, but needs a first column.
    missing = tf.maximum(1 - tf.shape(dense)[1], 0)
    return tf.pad(dense, [[0, 0], [0, missing]], constant_values=NO_TOKEN)


def to_texts(tokenizer, token_ids):
    """Ids (B, n, L) -> strings (B, n)."""
    flat = tf.reshape(token_ids, [-1, tf.shape(token_ids)[-1]])
    return tf.reshape(tokenizer.detokenize(flat), tf.shape(token_ids)[:2])


def continuations(tokenizer, prompts, token_ids):
    """Ids of prompts (B, P), filled, and ids (B, n, L) after them -> the texts that follow, strings (B, n).

    They are what is added to the texts of the prompts: of tokens alone, a tokenizer may drop the space before a word.
    """
    num_answers = tf.shape(token_ids)[1]
    # A tokenizer reads no further than END, which may be the token before a text, or be in a prompt.
    prompts = tf.where(prompts == tokenizer.end_token_id, NO_TOKEN, prompts)
    repeated = tf.repeat(prompts[:, tf.newaxis], num_answers, axis=1)
    whole = to_texts(tokenizer, tf.concat([repeated, token_ids], axis=2))
    before = tf.strings.length(tokenizer.detokenize(prompts))
    before = tf.repeat(before[:, tf.newaxis], num_answers, axis=1)
    lengths = tf.strings.length(whole)
    return tf.strings.substr(whole, tf.minimum(before, lengths), lengths)
