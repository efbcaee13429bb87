"""The translations of a batch of texts, with attention maps if they are wanted."""

import numpy as np

from keras_attn.tasks.search_graphs import Answer, found_in_batch
from keras_attn.tasks.teacher_forcing import attention_maps, empty_attention_map


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
        maps = attention_maps(translator, source_ids, _trimmed(translator, token_ids[:, 0]))
        answers = [answer._replace(attention_map=of_text) for answer, of_text in zip(answers, maps)]
    no_map = empty_attention_map(translator.model) if return_attention_scores else None
    # END alone: an empty text, whatever the search found
    return [
        Answer([""], [0.0], no_map) if len(ids) == 1 else answer for ids, answer in zip(source_ids, answers)
    ]


def _trimmed(translator, token_ids):
    """Ids (B, L) -> lists of ids up to END, included, or up to the first pad."""
    end, pad = translator.target_tokenizer.end_token_id, translator.model.pad_token_id
    rows = []
    for row in np.asarray(token_ids).tolist():
        stops = [row.index(end) + 1] if end in row else []
        stops += [row.index(pad)] if pad in row else []
        rows.append(row[: min(stops, default=len(row))])
    return rows
