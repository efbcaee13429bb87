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
from keras_attn.tasks.batches import NO_TOKEN, compiled_with_xla, padded

Answer = collections.namedtuple("Answer", ["texts", "scores", "token_ids"])
Answer.__doc__ = """The answers to one text.

texts, scores: lists, best first.
token_ids: their ids, int32 array (n, L), filled with `NO_TOKEN`.
"""


def search_batch(task, input_ids, options, search):
    """The `Answer` for each text of a batch.

    Args:
        task: A task.
        input_ids: List of lists of ids.
        options: Dict of arrays with the options of each text.
        search: The result of the task's `search_options`.
    """
    num_rows = len(input_ids)
    inputs = padded(input_ids, to_buckets=task.jit_compile or keras.backend.backend() == "jax")
    num_more = inputs.shape[0] - num_rows  # rows that only fill the bucket
    if num_more:
        options = {name: _with_last_row_repeated(values, num_more) for name, values in options.items()}
    token_ids, scores = _search(task, inputs, options, search)
    token_ids = np.asarray(token_ids)[:num_rows, : search["num_return_sequences"] or 1]
    num_answers = token_ids.shape[1]
    if scores is None:
        scores = np.zeros((num_rows, num_answers))
    else:
        scores = np.asarray(scores)[:num_rows, :num_answers]
    is_used = np.any(token_ids != NO_TOKEN, axis=(0, 1))
    longest = np.max(np.flatnonzero(is_used), initial=0) + 1
    token_ids = token_ids[:, :, :longest]
    texts = task.answer_texts(input_ids, token_ids).numpy()
    answers = []
    for row_texts, row_scores, row_ids in zip(texts, scores, token_ids):
        is_found = np.isfinite(row_scores)
        is_found[0] = True  # if the options allow no answer: "" with score -inf
        found_texts = [text.decode("utf-8") for text in row_texts[is_found]]
        answers.append(Answer(found_texts, row_scores[is_found].tolist(), row_ids[is_found]))
    return answers


def _with_last_row_repeated(values, num_more):
    paddings = [(0, num_more)] + [(0, 0)] * (values.ndim - 1)
    return np.pad(values, paddings, "edge")


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
    num_beams = search["num_beams"]
    num_answers = search["num_return_sequences"]
    is_sampling = False
    if options or num_answers is not None:
        is_sampling = checked_options(DecodingOptions(**options), num_beams, num_answers).is_sampling
    if is_sampling:
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

    key = tuple(sizes.values())
    if not is_graph:
        key += tuple((name, values.shape[1:]) for name, values in options.items())
        function = task.cached(key, lambda: function_of_arrays(task.model, generate))
        return function(inputs, options, limits)
    option_specs = {
        name: tf.TensorSpec([None, *values.shape[1:]], values.dtype, name) for name, values in options.items()
    }
    limit_specs = {name: tf.TensorSpec([], value.dtype, name) for name, value in limits.items()}
    specs = [tf.TensorSpec([None, None], tf.int32), option_specs, limit_specs]
    graph = task.graph_of((*key, *option_specs.values()), generate, specs)
    return graph(inputs, options, limits)


def _size_for(task, max_length):
    """The first of few sizes that is no less than a number of tokens."""
    size = 16
    while size < max_length:
        size *= 2
    return min(size, task.longest)


def _few_widths(values):
    """Ids (B, P), filled with `NO_TOKEN`, for a P that is a power of two; other options unchanged."""
    if values.ndim < 2:
        return values
    width = max(values.shape[1], 1)
    more = (1 << (width - 1).bit_length()) - values.shape[1]
    return np.pad(values, [(0, 0), (0, more)], constant_values=NO_TOKEN)


def function_of_arrays(model, function):
    """The function as the backend runs it best: compiled with JAX; on PyTorch as it is, without gradients.

    Args:
        model: The model whose weights `function` uses.
        function: Function of tensors, or of nested structures of them. It returns such a structure; None stands for
            nothing in it.

    Returns:
        Function of NumPy arrays that returns NumPy arrays.
    """
    if keras.backend.backend() == "jax":
        call = _compiled_with_jax(model, function)
    else:
        call = _without_gradients(function)

    def to_numpy(x):
        return None if x is None else keras.ops.convert_to_numpy(x)

    return lambda *inputs: keras.tree.map_structure(to_numpy, call(*inputs))


def _compiled_with_jax(model, function):
    """The function, compiled separately for each input shape, on this process' devices.

    The model's weights are inputs, with their values at the time of the call. If they are spread over the
    devices of several processes, each process has all of them and uses its own copy, so the others need not
    take part.
    """
    import jax

    variables = model.variables

    @jax.jit
    def compiled(values, *inputs):
        with keras.StatelessScope(state_mapping=list(zip(variables, values))):
            return function(*inputs)

    def call(*inputs):
        values = [variable.value for variable in variables]
        if not all(value.is_fully_addressable for value in values):
            values = [np.asarray(value) for value in values]
        return compiled(values, *keras.tree.map_structure(np.asarray, inputs))

    return call


def _without_gradients(function):
    import torch

    def call(*inputs):
        with torch.no_grad():
            return function(*keras.tree.map_structure(keras.ops.convert_to_tensor, inputs))

    return call


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
        for token_id in greedy_tokens(task, input_ids, most):
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
