import numpy as np

from keras_attn.tasks.search_graphs import greedy_tokens, texts_of
from keras_attn.tasks.token_ids import with_end
from keras_attn.text import as_utf8


def stream_text(translator, text, max_length):
    """Yields the pieces of a greedy translation, each as soon as it is final; see `Translator.stream`."""
    source_ids, _ = with_end(translator.source_tokenizer, as_utf8(text), translator.model.max_sequence_length)
    [source_ids] = source_ids.to_list()
    if len(source_ids) == 1:  # END alone: no text
        return
    token_ids = []
    sent = 0
    for token_id in greedy_tokens(translator, source_ids, max_length):
        token_ids.append(token_id)
        # A character of several byte tokens is decoded as U+FFFD until it is complete.
        text = _text(translator, token_ids)
        stable = text.rstrip("\N{REPLACEMENT CHARACTER}")
        if len(stable) > sent:
            yield stable[sent:]
            sent = len(stable)
    if token_ids and text[sent:]:
        yield text[sent:]


def _text(translator, token_ids):
    return texts_of(translator, np.array([[token_ids]], "int32")).numpy().item().decode("utf-8")
