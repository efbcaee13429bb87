"""Scripted step functions, and the search algorithms written slowly and obviously, in NumPy float64.

A script says which logits follow a prefix. The step function built from it knows no model: it writes the token of
each beam into a fake cache of one head, and finds a beam's prefix again through the attention mask alone. A mask
that shows a beam too many slots, too few, or a stranger's, therefore gives other logits.
"""

import functools
import itertools

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.generation import SearchInputs, beam_search
from keras_attn.ops import empty_cache, write_cache

# The pad lies outside the vocabulary, so that every token of a table is a word.
PAD, START, END = -1, 2, 3
# A prefix is known by its hash, which picks the row of a table; other tokens, or another order, pick another.
NUM_HASHES = 997
_WEIGHTS = np.array([pow(31, step, NUM_HASHES) for step in range(128)], "int32")


def compilers():
    """Every way in which this backend can run a function of tensors."""

    def eager(function):
        return function

    match keras.backend.backend():
        case "tensorflow":
            import tensorflow as tf

            return {
                "eager": eager,
                "graph": functools.partial(tf.function, autograph=False),
                "xla": functools.partial(tf.function, autograph=False, jit_compile=True),
            }
        case "jax":
            import jax

            return {"eager": eager, "jit": jax.jit}
    return {"eager": eager}


def each_compiler():
    """Their names, as parameters of a test; XLA, which takes seconds, among the extended ones."""
    return [pytest.param(name, marks=pytest.mark.extended if name == "xla" else ()) for name in compilers()]


def quickest():
    """The name of the compiler that takes the least time to build and run a loop."""
    return {"tensorflow": "graph", "jax": "jit"}.get(keras.backend.backend(), "eager")


def prefix_hash(prefix):
    """`prefix` is a tuple of the tokens after START."""
    return sum((token + 1) * int(_WEIGHTS[i]) for i, token in enumerate((START, *prefix))) % NUM_HASHES


def random_tables(seed, batch_size, vocabulary_size, end_logit=0.0):
    """Logits (B, hashes, V) float32, not normalised; `end_logit` is added to those of END."""
    rng = np.random.default_rng(seed)
    tables = rng.normal(size=(batch_size, NUM_HASHES, vocabulary_size)) * 2 + rng.normal() * 5
    tables[..., END] += end_logit
    return tables.astype("float32")


def written_tables(vocabulary_size, *scripts):
    """Tables of a batch from dicts {prefix: {token: probability}}; where nothing is written, END is certain."""
    tables = np.full((len(scripts), NUM_HASHES, vocabulary_size), -50.0, "float32")
    tables[..., END] = 0.0
    for table, script in zip(tables, scripts):
        assert len({prefix_hash(prefix) for prefix in script}) == len(script)
        for prefix, probabilities in script.items():
            rest = 1 - sum(probabilities.values())
            assert rest > -1e-9
            table[prefix_hash(prefix)] = -50.0
            for token, probability in probabilities.items():
                table[prefix_hash(prefix), token] = np.log(probability)
    return tables


def scripted_step(tables):
    """The step function, and the `make_cache`, of tables (B, hashes, V); its `row_context` can be other tables."""
    vocabulary_size = tables.shape[-1]

    def step(token_ids, index, cache, attention_mask, tables=tables):
        num_beams, batch_size = token_ids.shape[1], ops.shape(tables)[0]
        rows = ops.reshape(tables, (-1, vocabulary_size))
        first_row = ops.expand_dims(ops.arange(batch_size, dtype="int32") * NUM_HASHES, -1)
        ((tokens, ages),) = cache
        new = ops.reshape(ops.cast(token_ids + 1, "float32"), (-1, 1, num_beams, 1))
        tokens, ages = write_cache((tokens, ages), new, ops.ones_like(new), index * num_beams)
        slots = ops.shape(tokens)[-2]  # a tensor where a graph lets the cache grow
        weights = ops.repeat(ops.convert_to_tensor(_WEIGHTS), num_beams)[:slots]
        stored = ops.cast(tokens[:, :, :, 0], "int32") * weights  # (B, 1, slots)
        hashes = ops.sum(ops.where(attention_mask, stored, 0), axis=-1) % NUM_HASHES
        logits = ops.take(rows, ops.reshape(hashes + first_row, (-1,)), axis=0)
        logits = ops.reshape(logits, (batch_size, num_beams, vocabulary_size))
        seen = ops.sum(ops.cast(attention_mask, "int32"), axis=-1, keepdims=True)
        return ops.where(seen == index + 1, logits, float("nan")), ((tokens, ages),)

    return step, lambda slots: (empty_cache(ops.shape(tables)[0], 1, slots, 1),)


def scripted_inputs(tables, max_length, pad_token_id=PAD, step=None, **others):
    """`SearchInputs` of tables (B, hashes, V), with their own `step` or another that wraps it."""
    own_step, make_cache = scripted_step(tables)
    return SearchInputs(
        own_step if step is None else step,
        make_cache,
        ops.shape(tables)[0] if tables.shape[0] is None else tables.shape[0],
        max_length,
        START,
        END,
        pad_token_id,
        **others,
    )


@functools.lru_cache
def _compiled_search(compiler, max_length, num_beams, pad_token_id, unwritable_token_ids):
    def search(tables, length_penalty):
        inputs = scripted_inputs(tables, max_length, pad_token_id, unwritable_token_ids=unwritable_token_ids)
        return beam_search(inputs, num_beams, length_penalty)

    return compilers()[compiler](search)


def search_tables(
    tables,
    max_length,
    num_beams,
    length_penalty=1.0,
    compiler=None,
    pad_token_id=PAD,
    unwritable_token_ids=(),
):
    """`beam_search` over tables: token ids and scores as NumPy arrays. `compiler` is by default the quickest.

    Searches that differ in the values of their tables and in the length penalty alone share what was compiled.
    """
    search = _compiled_search(
        compiler or quickest(), max_length, num_beams, pad_token_id, unwritable_token_ids
    )
    found = search(ops.convert_to_tensor(tables), ops.convert_to_tensor(length_penalty, "float32"))
    return tuple(ops.convert_to_numpy(x) for x in found)


def log_probabilities(table, prefix):
    logits = np.asarray(table[prefix_hash(prefix)], "float64")
    return logits - logits.max() - np.log(np.sum(np.exp(logits - logits.max())))


def rescored(table, token_ids, length_penalty):
    """The score of a padded answer, token by token from its table."""
    tokens = answer(token_ids)
    total = sum(log_probabilities(table, tokens[:i])[token] for i, token in enumerate(tokens))
    return total / len(tokens) ** length_penalty


def answer(token_ids):
    """The tokens up to END, END included, or all of them."""
    tokens = tuple(int(token) for token in token_ids)
    return tokens[: tokens.index(END) + 1] if END in tokens else tokens


def padded(hypotheses, max_length, pad_token_id=PAD):
    """[(score, tokens)] as arrays (n, L) and (n,)."""
    token_ids = np.full((len(hypotheses), max_length), pad_token_id)
    for row, (_, tokens) in zip(token_ids, hypotheses):
        row[: len(tokens)] = tokens
    return token_ids, np.array([score for score, _ in hypotheses])


def beam_search_by_hand(
    log_probabilities_after, max_length, num_beams, length_penalty=1.0, ends=(END,), **options
):
    """The algorithm as `beam_search` documents it, for one row: [(score, tokens)], best first.

    `log_probabilities_after` takes a prefix, a tuple of the tokens after START; what is impossible is -inf. `options`
    are those of `DecodingOptions`, one value each.
    """

    def score(total, length):
        wu = ((5 + length) / 6) ** options.get("wu_length_penalty", 0.0)
        return total / length**length_penalty / wu

    live, finished, done = [(0.0, ())], [], False
    for length in range(1, max_length + 1):
        candidates = []
        for total, prefix in live:
            step = log_probabilities_after(prefix)
            step = processed_by_hand(prefix, step, ends, max_length=max_length, **options)
            candidates += [
                (total + step[token], (*prefix, token)) for token in range(len(step)) if step[token] > -np.inf
            ]
        candidates.sort(key=lambda candidate: -candidate[0])
        for total, tokens in candidates[:num_beams]:
            if tokens[-1] in ends:
                finished.append((score(total, length), tokens))
        finished = sorted(finished, key=lambda hypothesis: -hypothesis[0])[:num_beams]
        live = [candidate for candidate in candidates if candidate[1][-1] not in ends][:num_beams]
        done = not live or (num_beams == 1 and bool(finished))
        if not done and len(finished) == num_beams:
            lengths = {length, max_length} if options.get("exact_stopping") else {length}
            done = max(score(live[0][0], future) for future in lengths) <= finished[-1][0]
            done = done or options.get("early_stopping", False)
        if done:
            break
    if not done:
        finished += [(score(total, length), tokens) for total, tokens in live]
    return sorted(finished, key=lambda hypothesis: -hypothesis[0])[:num_beams]


# Options that the searches by hand obey after the log-probabilities: beams, and sampling.
RULES_ELSEWHERE = {
    "wu_length_penalty",
    "exact_stopping",
    "early_stopping",
    "seed",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
}


def processed_by_hand(
    prefix,
    log_probabilities,
    ends=(END,),
    min_length=0,
    suppressed_token_ids=(),
    suppressed_first_token_ids=(),
    prefix_token_ids=(),
    no_repeat_ngram_size=0,
    repetition_penalty=1.0,
    renormalize=False,
    first_token_id=-1,
    last_token_id=-1,
    max_length=None,
    **others,
):
    """The log-probabilities after a prefix, one sentence of `DecodingOptions` after the other."""
    unknown = set(others) - RULES_ELSEWHERE
    assert not unknown, f"processed_by_hand has no rule for {unknown}: docs/change_one_thing.md"
    processed = np.array(log_probabilities, "float64")
    for token in set(prefix):
        processed[token] *= repetition_penalty
    n = no_repeat_ngram_size
    ngrams = {prefix[i : i + n] for i in range(len(prefix) - n + 1)}
    for token in range(len(processed)):
        if n and len(prefix) >= n - 1 and (*prefix[len(prefix) - n + 1 :], token) in ngrams:
            processed[token] = -np.inf
    forbidden = [*suppressed_token_ids, *(ends if len(prefix) + 1 < min_length else ())]
    forbidden += suppressed_first_token_ids if len(prefix) == (first_token_id >= 0) else ()
    processed[[token for token in forbidden if token >= 0]] = -np.inf
    forced = [token for token in prefix_token_ids if token >= 0]
    due = len(prefix) - (first_token_id >= 0)
    if 0 <= due < len(forced):
        processed[:] = -np.inf
        processed[forced[due]] = log_probabilities[forced[due]]
    for token, is_now in ((first_token_id, not prefix), (last_token_id, len(prefix) + 1 == max_length)):
        if token >= 0 and is_now:
            processed[:] = -np.inf
            processed[token] = 0.0
    if renormalize and np.isfinite(processed).any():
        processed -= np.log(np.exp(processed).sum())
    return processed


def greedy_by_hand(table, max_length):
    tokens = ()
    while len(tokens) < max_length and END not in tokens:
        tokens = (*tokens, int(np.argmax(log_probabilities(table, tokens))))
    return tokens


def every_hypothesis(table, max_length, length_penalty):
    """[(score, tokens)] of all answers there are, best first: those that end, and those as long as allowed."""
    vocabulary_size = table.shape[-1]
    others = [token for token in range(vocabulary_size) if token != END]
    answers = [
        (*tokens, END) for length in range(max_length) for tokens in itertools.product(others, repeat=length)
    ]
    answers += itertools.product(others, repeat=max_length)
    scored = [(rescored(table, tokens, length_penalty), tokens) for tokens in answers]
    return sorted(scored, key=lambda hypothesis: -hypothesis[0])
