import numpy as np

from keras_attn.tasks.search_graphs import greedy_tokens


def stream_text(task, make_token_ids, max_length):
    """Yields the pieces of a greedy answer, each as soon as it is final; see `Translator.stream`.

    Args:
        task: A task.
        make_token_ids: Function without arguments that returns the ids of the input and the most tokens of the answer.
        max_length: Integer, the most tokens of any answer.
    """
    input_ids, most = make_token_ids()
    if not most:
        return
    token_ids = []
    sent = 0
    for token_id in greedy_tokens(task, input_ids, max_length, most):
        token_ids.append(token_id)
        # A character of several byte tokens is decoded as U+FFFD until it is complete.
        text = _text(task, input_ids, token_ids)
        stable = text.rstrip("\N{REPLACEMENT CHARACTER}")
        if len(stable) > sent:
            yield stable[sent:]
            sent = len(stable)
    if token_ids and text[sent:]:
        yield text[sent:]


def _text(task, input_ids, token_ids):
    return task.texts_of([input_ids], np.array([[token_ids]], "int32")).numpy().item().decode("utf-8")
