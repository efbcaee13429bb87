"""The graphs of a translator's search: for a batch at once, or for one text token by token."""

import collections

import keras
import numpy as np
import tensorflow as tf

from keras_attn.generation import (
    DecodingOptions,
    GreedySearch,
    SearchInputs,
    cache_lengths,
    extend_caches,
)
from keras_attn.tasks.batches import padded
from keras_attn.tasks.buckets import compiled_with_jax, compiled_with_xla
from keras_attn.tasks.teacher_forcing import attention_maps, empty_attention_map
from keras_attn.tasks.token_ids import to_texts

Answer = collections.namedtuple("Answer", ["texts", "scores", "attention_map"])
Answer.__doc__ = (
    """The translations of one text, best first, their scores, and the attention map of the first, or None."""
)


def translate_batch(translator, source_ids, options, search, return_attention_scores):
    """The `Answer` for each text of a batch.

    Args:
        translator: `Translator`.
        source_ids: List of lists of ids, END included.
        options: Dict of arrays with the options of each text.
        search: The result of `Translator.search_options`.
        return_attention_scores: Boolean.
    """
    inputs = padded(source_ids, to_buckets=translator.jit_compile or keras.backend.backend() == "jax")
    more = inputs.shape[0] - len(source_ids)  # rows that only fill the bucket
    options = {name: np.pad(x, [(0, more), *[(0, 0)] * (x.ndim - 1)], "edge") for name, x in options.items()}
    token_ids, scores = _search_graph(translator, search, options)(inputs, options)
    token_ids = np.asarray(token_ids)[: len(source_ids)]
    scores = np.zeros(token_ids.shape[:2]) if scores is None else np.asarray(scores)[: len(source_ids)]
    used = np.any(token_ids != translator.model.pad_token_id, axis=(0, 1))
    token_ids = token_ids[:, :, : np.max(np.flatnonzero(used), initial=0) + 1]
    texts = texts_of(translator, token_ids).numpy()
    maps = [None] * len(source_ids)
    if return_attention_scores:
        maps = attention_maps(translator, source_ids, _trimmed(translator, token_ids[:, 0]))
    answers = []
    for ids, row_texts, row_scores, attention_map in zip(source_ids, texts, scores, maps):
        if len(ids) == 1:  # END alone: an empty text, whatever the search found
            no_map = empty_attention_map(translator.model) if return_attention_scores else None
            answers.append(Answer([""], [0.0], no_map))
            continue
        found = np.isfinite(row_scores)
        found[0] = True  # if the options allow no answer: "" with score -inf
        texts_found = [text.decode("utf-8") for text in row_texts[found]]
        answers.append(Answer(texts_found, row_scores[found].tolist(), attention_map))
    return answers


def greedy_tokens(translator, source_ids, max_length):
    """The tokens of a greedy translation one by one, up to END, which is left out.

    One graph encodes the source. A second makes one step of the greedy search of `num_beams=1`, with caches
    that grow in the same way.

    Args:
        translator: `Translator`.
        source_ids: List of ids, END included.
        max_length: Integer.
    """
    compiler = compiled_with_xla if translator.jit_compile else None

    def start(source_ids):
        inputs = translator.model.search_inputs(
            source_ids, **_tokens(translator), max_length=max_length, compiler=compiler
        )
        return GreedySearch(inputs).begin()

    def step(index, state, cache, context):
        inputs = SearchInputs(
            translator.model.decoding_step(),
            make_cache=None,
            batch_size=tf.shape(state.done)[0],
            max_length=max_length,
            pad_token_id=translator.model.pad_token_id,
            **_tokens(translator),
        )
        return GreedySearch(inputs).advance(index, state, cache, context)

    inputs = padded([source_ids], to_buckets=translator.jit_compile)
    start = translator.graph_of(("stream_start", max_length), start, [tf.TensorSpec([None, None], tf.int32)])
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
    advance = translator.graph_of(
        ("stream_step", max_length), step if compiler is None else compiler(step), specs
    )
    index = 0
    for number, length in enumerate(cache_lengths(max_length)):
        if number:
            cache = extend_caches(cache, length)
        while index < length:
            state, cache = advance(tf.constant(index), state, cache, context)
            if bool(state.done):
                if (found := state.token_ids.numpy().item()) != translator.target_tokenizer.end_token_id:
                    yield found
                return
            yield state.token_ids.numpy().item()
            index += 1


def _tokens(translator):
    return {
        "start_token_id": translator.target_tokenizer.start_token_id,
        "end_token_id": translator.target_tokenizer.end_token_id,
        "unwritable_token_ids": translator.unwritable_token_ids,
    }


def texts_of(translator, token_ids):
    """Ids (B, n, L) -> strings (B, n), in a graph: eager mode would need dozens of calls from Python."""
    to_texts_graph = translator.graph_of(
        "texts",
        lambda token_ids: to_texts(translator.target_tokenizer, token_ids),
        [tf.TensorSpec([None, None, None], tf.int32)],
    )
    return to_texts_graph(tf.constant(token_ids))


def _search_graph(translator, search, options):
    """One graph for each search and set of options; option values, lengths and batch sizes are its inputs.

    XLA compiles parts of it for each input shape. On JAX, all of it is compiled.
    """
    is_on_jax = keras.backend.backend() == "jax"
    compiler = compiled_with_xla if translator.jit_compile and not is_on_jax else None

    def generate(token_ids, given):
        return translator.generate(token_ids, {**search, "options": DecodingOptions(**given)}, compiler)

    if is_on_jax:
        key = (*search.values(), *options)
        return translator.made_once(key, lambda: compiled_with_jax(translator.model, generate))
    of_options = {name: tf.TensorSpec([None, *x.shape[1:]], x.dtype, name) for name, x in options.items()}
    spec = tf.TensorSpec([None, None], tf.int32)
    return translator.graph_of((*search.values(), *of_options.values()), generate, [spec, of_options])


def _trimmed(translator, token_ids):
    """Ids (B, L) -> lists of ids up to END, included, or up to the first pad."""
    end, pad = translator.target_tokenizer.end_token_id, translator.model.pad_token_id
    rows = []
    for row in np.asarray(token_ids).tolist():
        stops = [row.index(end) + 1] if end in row else []
        stops += [row.index(pad)] if pad in row else []
        rows.append(row[: min(stops, default=len(row))])
    return rows
