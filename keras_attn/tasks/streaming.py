import tensorflow as tf

from keras_attn.tasks.token_ids import with_end
from keras_attn.text import as_utf8


def stream_text(translator, text, max_length):
    """The pieces of a greedy translation, each as soon as it cannot change any more; see `Translator.stream`."""
    token_ids = []
    sent = 0
    for token_id in _greedy_tokens(translator, text, max_length):
        token_ids.append(token_id)
        # A character of several byte tokens reads as U+FFFD until it is whole.
        stable = translator.target_tokenizer.decode([token_ids])[0].rstrip("\N{REPLACEMENT CHARACTER}")
        if len(stable) > sent:
            yield stable[sent:]
            sent = len(stable)
    rest = translator.target_tokenizer.decode([token_ids])[0][sent:] if token_ids else ""
    if rest:
        yield rest


def _greedy_tokens(translator, text, max_length):
    """The best token of each step, up to END; one graph reads the source, one makes a step."""
    model, tokenizer = translator.model, translator.target_tokenizer
    ids, _ = with_end(translator.source_tokenizer, as_utf8(text), model.max_sequence_length)
    if ids.shape[1] == 1 or int(ids.row_lengths()[0]) == 1:
        return
    start = translator.graph_of(
        ("stream_start", max_length),
        lambda source_ids: model.init_cache(source_ids, max_length),
        [tf.TensorSpec([1, None], tf.int32)],
    )
    # Whatever the model's cache looks like, a step takes what the start gives.
    cache_specs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), start.structured_outputs)

    def one_step(token_id, index, cache):
        logits, cache = model.call_with_cache(token_id, cache, index)
        logits = logits[:, -1]
        is_pad = tf.range(tf.shape(logits)[-1]) == model.pad_token_id
        best = tf.argmax(tf.where(is_pad, logits.dtype.min, logits), axis=-1, output_type=tf.int32)
        return best[:, tf.newaxis], cache

    scalar, token = tf.TensorSpec([], tf.int32), tf.TensorSpec([1, 1], tf.int32)
    step = translator.graph_of(("stream_step", max_length), one_step, [token, scalar, cache_specs])
    token_id, cache = tf.constant([[tokenizer.start_token_id]]), start(ids.to_tensor())
    for index in range(max_length):
        token_id, cache = step(token_id, tf.constant(index), cache)
        found = token_id.numpy().item()
        if found == tokenizer.end_token_id:
            return
        yield found
