"""The graphs of a task's search: for a batch at once, or for one text token by token."""

import collections

import keras
import numpy as np
import tensorflow as tf

from keras_attn.generation import (
    DecodingOptions,
    GreedySearch,
    Prompt,
    SearchInputs,
    cache_lengths,
    checked_max_length,
    checked_options,
    extend_caches,
)
from keras_attn.tasks.batches import padded
from keras_attn.tasks.buckets import compiled_with_xla, powers_of_two
from keras_attn.tasks.other_backends import function_of_arrays
from keras_attn.tasks.token_ids import NO_TOKEN

Answer = collections.namedtuple("Answer", ["texts", "scores", "attention_map"], defaults=[None])
Answer.__doc__ = (
    """The answers to one text, best first, their scores, and the attention map of the first, or None."""
)


def found_in_batch(task, input_ids, options, search):
    """The token ids (B, n, L) and the `Answer` for each text of a batch.

    Args:
        task: A task.
        input_ids: List of lists of ids.
        options: Dict of arrays with the options of each text.
        search: The result of the task's `search_options`.
    """
    inputs = padded(input_ids, to_buckets=task.jit_compile or keras.backend.backend() == "jax")
    more = inputs.shape[0] - len(input_ids)  # rows that only fill the bucket
    options = {name: np.pad(x, [(0, more), *[(0, 0)] * (x.ndim - 1)], "edge") for name, x in options.items()}
    token_ids, scores = _search(task, inputs, options, search)
    token_ids = np.asarray(token_ids)[: len(input_ids), : search["num_return_sequences"] or 1]
    shape = token_ids.shape[:2]
    scores = np.zeros(shape) if scores is None else np.asarray(scores)[: shape[0], : shape[1]]
    used = np.any(token_ids != NO_TOKEN, axis=(0, 1))
    token_ids = token_ids[:, :, : np.max(np.flatnonzero(used), initial=0) + 1]
    answers = []
    for row_texts, row_scores in zip(task.texts_of(input_ids, token_ids).numpy(), scores):
        found = np.isfinite(row_scores)
        found[0] = True  # if the options allow no answer: "" with score -inf
        texts = [text.decode("utf-8") for text in row_texts[found]]
        answers.append(Answer(texts, row_scores[found].tolist()))
    return token_ids, answers


def greedy_tokens(task, input_ids, max_length):
    """The tokens of a greedy answer one by one, up to END, which is left out.

    One graph reads the input. A second makes one step of the greedy search of `num_beams=1`, with caches that
    grow in the same way.

    Args:
        task: A task.
        input_ids: List of ids.
        max_length: Integer, the most tokens of the answer.
    """
    compiler = compiled_with_xla if task.jit_compile else None
    size = _size_for(task, max_length)

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
    limit, number = tf.constant(max_length), tf.TensorSpec([], tf.int32)
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
    advance = task.graph_of(("stream_step", size), step if compiler is None else compiler(step), specs)
    rooms = [length if compiler else min(length, max_length) for length in cache_lengths(size)]
    of_prompt = cache[0][0].shape[-2] - rooms[0]
    index = 0
    for room in rooms:
        if index:
            cache = extend_caches(cache, of_prompt + room)
        while index < min(room, max_length):
            state, cache = advance(tf.constant(index), limit, state, cache, row_values)
            if bool(state.done):
                if (found := state.token_ids.numpy().item()) != task.output_tokenizer.end_token_id:
                    yield found
                return
            yield state.token_ids.numpy().item()
            index += 1
        if index == max_length:
            return


def _search(task, inputs, options, search):
    """The token ids (B, n, L) of the answers to rows of ids (B, S), and their scores (B, n) or None.

    One graph serves many searches. Data are options, limits and penalties; of beams all are returned, from which a caller takes
    the first. A graph is what has a size of its own: the number of beams or samples, which options there are and how many ids
    they have, rounded up, and the most tokens, rounded up.

    XLA compiles parts of it for each input shape. On JAX, all of it is compiled; on PyTorch, nothing.
    """
    is_graph = keras.backend.backend() == "tensorflow"
    compiler = compiled_with_xla if task.jit_compile and is_graph else None
    max_length = checked_max_length(search["max_length"], task.longest)
    num_beams, num_answers = search["num_beams"], search["num_return_sequences"]
    if checked_options(DecodingOptions(**options), num_beams, num_answers).is_sampling:
        num_beams = 1
    elif num_beams > 1:
        num_answers = num_beams
    sizes = {
        "num_beams": num_beams,
        "num_return_sequences": num_answers,
        "max_length": _size_for(task, max_length),
    }
    options = {name: _few_widths(x) for name, x in options.items()}
    limits = {
        "limit": np.int32(max_length),
        "length_penalty": np.float32(search["length_penalty"]),
    }

    def generate(token_ids, given, limits):
        return task.generate(token_ids, {**sizes, **limits, "options": DecodingOptions(**given)}, compiler)

    if not is_graph:
        key = (*sizes.values(), *((name, x.shape[1:]) for name, x in options.items()))
        return task.kept(key, lambda: function_of_arrays(task.model, generate))(inputs, options, limits)
    specs = [
        tf.TensorSpec([None, None], tf.int32),
        {name: tf.TensorSpec([None, *x.shape[1:]], x.dtype, name) for name, x in options.items()},
        {name: tf.TensorSpec([], x.dtype, name) for name, x in limits.items()},
    ]
    return task.graph_of((*sizes.values(), *specs[1].values()), generate, specs)(inputs, options, limits)


def _size_for(task, max_length):
    """The first of few sizes that is no less than a number of tokens."""
    return next(size for size in powers_of_two(16, task.longest) if size >= max_length)


def _few_widths(values):
    """Ids (B, P), filled with `NO_TOKEN`, for a P that is a power of two; other options unchanged."""
    if values.ndim < 2:
        return values
    width = max(values.shape[1], 1)
    more = (1 << (width - 1).bit_length()) - values.shape[1]
    return np.pad(values, [(0, 0), (0, more)], constant_values=NO_TOKEN)
