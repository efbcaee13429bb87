"""The translations of a batch of texts, with attention maps if they are wanted."""

import numpy as np

from keras_attn.tasks.search_graphs import Answer, found_in_batch
from keras_attn.tasks.teacher_forcing import attention_maps, empty_attention_map
from keras_attn.tasks.token_ids import NO_TOKEN


def translate_batch(translator, source_ids, options, search, return_attention_scores):
    """The `Answer` for each text of a batch.

    Args:
        translator: `Translator`.
        source_ids: List of lists of ids, END included.
        options: Dict of arrays with the options of each text.
        search: The result of `Translator.search_options`.
        return_attention_scores: Boolean.
    """
    token_ids, answers = found_in_batch(translator, source_ids, options, search)
    if return_attention_scores:
        maps = attention_maps(translator, source_ids, trimmed(translator, token_ids[:, 0]))
        answers = [answer._replace(attention_map=of_text) for answer, of_text in zip(answers, maps)]
    no_map = empty_attention_map(translator.model) if return_attention_scores else None
    # An empty text, whatever the search found.
    is_empty = [len(ids) <= translator.num_added_tokens for ids in source_ids]
    return [Answer([""], [0.0], no_map) if empty else answer for empty, answer in zip(is_empty, answers)]


def trimmed(task, token_ids):
    """Ids (B, L) that a task has written -> lists of ids up to END, included."""
    end = task.output_tokenizer.end_token_id
    rows = []
    for row in np.asarray(token_ids).tolist():
        stops = [row.index(end) + 1] if end in row else []
        stops += [row.index(NO_TOKEN)] if NO_TOKEN in row else []
        rows.append(row[: min(stops, default=len(row))])
    return rows
