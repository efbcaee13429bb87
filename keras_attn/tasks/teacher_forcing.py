"""Log-probabilities and attention scores of given translations."""

import collections

import numpy as np
import tensorflow as tf

from keras_attn.tasks.batches import of_batches, padded
from keras_attn.tasks.token_ids import for_model

AttentionMap = collections.namedtuple("AttentionMap", ["source_tokens", "target_tokens", "attention_scores"])
AttentionMap.__doc__ = """The attention scores of a translation.

source_tokens: list of S strings, END included.
target_tokens: list of T strings, END included if the translation has one.
attention_scores: float32 array (L, N, T, S): decoder layer, head, target token, source token.
"""


def token_log_probs(translator, source_ids, target_ids, cache=None):
    """The log-probability (B, T) of each target id, 0 after the last; ids are int32, (B, S) and (B, T), see `padded`.

    `cache` is as in `Seq2SeqGeneration.generate`.
    """
    source_ids, mask = for_model(source_ids)
    logits = translator.model.teacher_forced(
        source_ids, _after_start(translator, target_ids), mask, cache=cache
    )
    return _log_probs(translator, logits, target_ids)


def cross_attention(translator, source_ids, target_ids):
    """The scores of cross-attention, (B, L, N, T, S)."""
    source_ids, mask = for_model(source_ids)
    _, scores = translator.model.teacher_forced(
        source_ids, _after_start(translator, target_ids), mask, return_attention_scores=True
    )
    return tf.stack(scores, axis=1)


def alignment(translator, source_ids, target_ids):
    """For each target token, the index of the source token with the most attention, int32 (B, T).

    The scores are the mean over the heads of the last layer but one, which aligns words best (Garg et al.,
    2019, https://arxiv.org/abs/1909.02074, section 4.1).
    """
    return _most_attended(cross_attention(translator, source_ids, target_ids))


def token_log_probs_and_alignment(translator, source_ids, target_ids, cache=None):
    """The results of `token_log_probs` and `alignment` by one forward pass."""
    source_ids, mask = for_model(source_ids)
    logits, scores = translator.model.teacher_forced(
        source_ids, _after_start(translator, target_ids), mask, return_attention_scores=True, cache=cache
    )
    return _log_probs(translator, logits, target_ids), _most_attended(tf.stack(scores, axis=1))


def _log_probs(translator, logits, target_ids):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(target_ids, 0), logits)
    is_given = target_ids < 0
    if translator.options.first_token_id is not None:  # which a search takes at no cost
        is_given |= tf.range(tf.shape(target_ids)[1]) == 0
    return tf.where(is_given, 0.0, -losses)


def _most_attended(scores):
    of_layer = scores[:, alignment_layer(scores.shape[1])]
    return tf.argmax(tf.reduce_mean(of_layer, axis=1), axis=-1, output_type=tf.int32)


def alignment_layer(num_layers):
    """The index of the layer whose attention aligns words: the last but one."""
    return max(num_layers - 2, 0)


def of_pairs(translator, function, source_ids, target_ids, batch_size):
    """The results of a function (translator, ids (B, S), ids (B, T)) for each pair of lists of ids.

    Each result is an array, with the padding of its batch.
    """
    spec = tf.TensorSpec([None, None], tf.int32)
    graph = translator.graph_of(function.__name__, lambda *ids: function(translator, *ids), [spec, spec])

    def of_batch(rows):
        return graph(*(padded([ids[row] for row in rows]) for ids in (source_ids, target_ids))).numpy()

    return of_batches(of_batch, target_ids, batch_size)


def attention_maps(translator, source_ids, target_ids):
    """An `AttentionMap` for each pair of lists of ids; all pairs form one batch."""
    scores = of_pairs(translator, cross_attention, source_ids, target_ids, max(len(source_ids), 1))
    return [
        AttentionMap(
            translator.source_tokenizer.token_strings(source),
            translator.target_tokenizer.token_strings(target),
            of_pair[:, :, : len(target), : len(source)],
        )
        for source, target, of_pair in zip(source_ids, target_ids, scores)
    ]


def empty_attention_map(model):
    """The map of an empty text, which has no tokens."""
    return AttentionMap([], [], np.zeros((*model.cross_attention_shape, 0, 0), "float32"))


def _after_start(translator, target_ids):
    """`target_ids` (B, T) as the decoder's input: START before them, and without the last."""
    start = tf.fill([tf.shape(target_ids)[0], 1], translator.start_token_id)
    return tf.concat([start, tf.maximum(target_ids[:, :-1], 0)], axis=1)
