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
    extend_caches,
)
from keras_attn.tasks.batches import padded
from keras_attn.tasks.buckets import compiled_with_xla
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
    token_ids, scores = _search_graph(task, search, options)(inputs, options)
    token_ids = np.asarray(token_ids)[: len(input_ids)]
    scores = np.zeros(token_ids.shape[:2]) if scores is None else np.asarray(scores)[: len(input_ids)]
    used = np.any(token_ids != NO_TOKEN, axis=(0, 1))
    token_ids = token_ids[:, :, : np.max(np.flatnonzero(used), initial=0) + 1]
    answers = []
    for row_texts, row_scores in zip(task.texts_of(input_ids, token_ids).numpy(), scores):
        found = np.isfinite(row_scores)
        found[0] = True  # if the options allow no answer: "" with score -inf
        texts = [text.decode("utf-8") for text in row_texts[found]]
        answers.append(Answer(texts, row_scores[found].tolist()))
    return token_ids, answers


def greedy_tokens(task, input_ids, max_length, most):
    """The tokens of a greedy answer one by one, up to END, which is left out.

    One graph reads the input. A second makes one step of the greedy search of `num_beams=1`, with caches that
    grow in the same way.

    Args:
        task: A task.
        input_ids: List of ids.
        max_length: Integer, the most tokens of an answer.
        most: Integer, the most tokens of this one.
    """
    compiler = compiled_with_xla if task.jit_compile else None

    def start(input_ids):
        inputs = task.stream_inputs(input_ids, max_length, compiler)
        return GreedySearch(inputs, options=task.options).begin()

    def step(index, state, cache, context):
        prompt = context[0]["prompt"]
        inputs = SearchInputs(
            task.model.decoding_step(),
            make_cache=None,
            batch_size=tf.shape(state.done)[0],
            max_length=max_length,
            start_token_id=task.start_token_id,
            end_token_id=task.output_tokenizer.end_token_id,
            pad_token_id=NO_TOKEN,
            unwritable_token_ids=task.unwritable_token_ids,
            prompt=prompt if isinstance(prompt, Prompt) else None,
        )
        return GreedySearch(inputs, options=task.options).advance(index, state, cache, context)

    inputs = padded([input_ids], to_buckets=task.jit_compile)
    start = task.graph_of(("stream_start", max_length), start, [tf.TensorSpec([None, None], tf.int32)])
    state, cache, context = start(inputs)
    # The batch size is dynamic, as in the graph of a search: for a fixed size, other kernels may be used.
    state_spec, cache_spec, context_spec = tf.nest.map_structure(
        lambda x: tf.TensorSpec(x.shape, x.dtype), start.structured_outputs
    )
    # Each call gives the cache as many slots as it needs by then.
    cache_spec = tf.nest.map_structure(
        lambda spec: tf.TensorSpec([*spec.shape[:2], None, *spec.shape[3:]], spec.dtype), cache_spec
    )
    specs = [tf.TensorSpec([], tf.int32), state_spec, cache_spec, context_spec]
    advance = task.graph_of(("stream_step", max_length), step if compiler is None else compiler(step), specs)
    lengths = cache_lengths(max_length)
    of_prompt = cache[0][0].shape[-2] - lengths[0]
    index = 0
    for number, length in enumerate(lengths):
        if number:
            cache = extend_caches(cache, of_prompt + length)
        while index < min(length, most):
            state, cache = advance(tf.constant(index), state, cache, context)
            if bool(state.done):
                if (found := state.token_ids.numpy().item()) != task.output_tokenizer.end_token_id:
                    yield found
                return
            yield state.token_ids.numpy().item()
            index += 1


def _search_graph(task, search, options):
    """One graph for each search and set of options; option values, lengths and batch sizes are its inputs.

    XLA compiles parts of it for each input shape. On JAX, all of it is compiled; on PyTorch, nothing.
    """
    is_graph = keras.backend.backend() == "tensorflow"
    compiler = compiled_with_xla if task.jit_compile and is_graph else None

    def generate(token_ids, given):
        return task.generate(token_ids, {**search, "options": DecodingOptions(**given)}, compiler)

    if not is_graph:
        key = (*search.values(), *options)
        return task.made_once(key, lambda: function_of_arrays(task.model, generate))
    of_options = {name: tf.TensorSpec([None, *x.shape[1:]], x.dtype, name) for name, x in options.items()}
    spec = tf.TensorSpec([None, None], tf.int32)
    return task.graph_of((*search.values(), *of_options.values()), generate, [spec, of_options])
