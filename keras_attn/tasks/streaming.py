import numpy as np

from keras_attn.tasks.search_graphs import greedy_tokens


def stream_text(task, make_token_ids):
    """Yields the pieces of a greedy answer, each as soon as it is final; see `Translator.stream`.

    Args:
        task: A task.
        make_token_ids: Function without arguments that returns the ids of the input and the most tokens of the answer.
    """
    input_ids, most = make_token_ids()
    if not most:
        return

    def decoded():
        token_ids = []
        for token_id in greedy_tokens(task, input_ids, most):
            token_ids.append(token_id)
            yield _text(task, input_ids, token_ids)

    yield from final_pieces(decoded(), task.output_tokenizer.open_end)


def final_pieces(texts, open_end):
    """The pieces of a text that grows, each as soon as it is final; joined they are the whole text.

    Args:
        texts: Iterable of `str`, what the first token decodes to, the first two, and so on.
        open_end: `open_end` of the tokenizer that decodes: a character of several byte tokens is U+FFFD until it is complete.
    """
    text, sent = "", 0
    for text in texts:
        stable = open_end.sub("", text)
        if len(stable) > sent:
            yield stable[sent:]
            sent = len(stable)
    if text[sent:]:
        yield text[sent:]


def _text(task, input_ids, token_ids):
    return task.texts_of([input_ids], np.array([[token_ids]], "int32")).numpy().item().decode("utf-8")
