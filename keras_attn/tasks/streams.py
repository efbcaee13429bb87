"""Streams: a greedy answer token by token, and the pieces of its text as soon as they are final."""

import numpy as np
import tensorflow as tf

from keras_attn.generation import GreedySearch, Prompt, SearchInputs, cache_lengths, extend_caches
from keras_attn.tasks.batches import NO_TOKEN, compiled_with_xla, padded


def stream_text(task, make_token_ids):
    """Yields the pieces of a greedy answer, each as soon as it is final; see `Translator.stream`.

    Args:
        task: A task.
        make_token_ids: Function without arguments that returns the ids of the input and the most tokens of the answer.
    """
    input_ids, most = make_token_ids()
    if not most:
        return

    def growing_texts():
        token_ids = []
        for token_id in _greedy_tokens(task, input_ids, most):
            token_ids.append(token_id)
            texts = task.answer_texts([input_ids], np.array([[token_ids]], "int32"))
            yield texts.numpy().item().decode("utf-8")

    yield from final_pieces(growing_texts(), task.output_tokenizer.open_end)


def final_pieces(texts, open_end):
    """The pieces of a text that grows, each as soon as it is final; joined they are the whole text.

    Args:
        texts: Iterable of `str`, what the first token decodes to, the first two, and so on.
        open_end: `open_end` of the tokenizer that decodes: a character of several byte tokens is U+FFFD until it is complete.
    """
    text = ""
    sent = 0
    for text in texts:
        stable = open_end.sub("", text)
        if len(stable) > sent:
            yield stable[sent:]
            sent = len(stable)
    if text[sent:]:
        yield text[sent:]


def _greedy_tokens(task, input_ids, max_length):
    """Yields the tokens of a greedy answer one by one, up to END, which is left out.

    One graph reads the input. Another makes one step of the search that `num_beams=1` makes in one graph, with caches that grow
    in the same way.

    Args:
        task: A task.
        input_ids: List of ids.
        max_length: Integer, the most tokens of the answer.
    """
    compiler = compiled_with_xla if task.jit_compile else None
    size = task.graph_length(max_length)

    def start(input_ids, limit):
        inputs = task.stream_inputs(input_ids, size, limit, compiler)
        return GreedySearch(inputs, options=task.options).begin()

    def step(index, limit, state, cache, row_values):
        prompt = row_values["prompt"]
        inputs = SearchInputs(
            task.model.decoding_step(),
            make_cache=None,
            batch_size=tf.shape(state.done)[0],
            max_length=size,
            start_token_id=task.start_token_id,
            end_token_id=task.output_tokenizer.end_token_id,
            pad_token_id=NO_TOKEN,
            unwritable_token_ids=task.unwritable_token_ids,
            prompt=prompt if isinstance(prompt, Prompt) else None,
            limit=limit,
        )
        return GreedySearch(inputs, options=task.options).for_rows(row_values).next_state(index, state, cache)

    inputs = padded([input_ids], to_buckets=task.jit_compile)
    limit = tf.constant(max_length)
    number = tf.TensorSpec([], tf.int32)
    start = task.graph_of(("stream_start", size), start, [tf.TensorSpec([None, None], tf.int32), number])
    state, cache, row_values = start(inputs, limit)
    # The batch size is dynamic, as in the graph of a search: for a fixed size, other kernels may be used.
    state_spec, cache_spec, row_specs = tf.nest.map_structure(
        lambda x: tf.TensorSpec(x.shape, x.dtype), start.structured_outputs
    )
    # Each call gives the cache as many slots as it needs by then.
    cache_spec = tf.nest.map_structure(
        lambda spec: tf.TensorSpec([*spec.shape[:2], None, *spec.shape[3:]], spec.dtype), cache_spec
    )
    specs = [number, number, state_spec, cache_spec, row_specs]
    if compiler is not None:
        step = compiler(step)
    advance = task.graph_of(("stream_step", size), step, specs)
    rooms = cache_lengths(size)
    if compiler is None:
        rooms = [min(length, max_length) for length in rooms]
    num_prompt_slots = cache[0][0].shape[-2] - rooms[0]
    index = 0
    for room in rooms:
        if index:
            cache = extend_caches(cache, num_prompt_slots + room)
        while index < min(room, max_length):
            state, cache = advance(tf.constant(index), limit, state, cache, row_values)
            token_id = state.token_ids.numpy().item()
            is_done = bool(state.done)
            if not is_done or token_id != task.output_tokenizer.end_token_id:
                yield token_id
            if is_done:
                return
            index += 1
        if index == max_length:
            return
