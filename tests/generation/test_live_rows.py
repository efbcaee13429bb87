"""Rows that are done leave the batch in TensorFlow graphs: the answers of searches in which they stay, for fewer steps."""

import dataclasses
import functools
import pathlib

import keras
import numpy as np
import pytest
from helpers_generation import END, PAD, START, random_tables, scripted_inputs
from helpers_marks import slow_but
from keras import ops

from keras_attn.generation import DecodingOptions, beam_search, greedy_search, sample
from keras_attn.models import DecoderTransformer, Seq2SeqTransformer

if keras.backend.backend() != "tensorflow":
    pytest.skip("only TensorFlow's graphs learn their batch size when they run", allow_module_level=True)

import tensorflow as tf

from keras_attn.tasks.batches import compiled_with_xla

pytestmark = pytest.mark.extended

B, V, L = 23, 7, 67

# One value for each row, so that a row with another's value would answer otherwise.
rng = np.random.default_rng(5)
OF_ALL = {
    "min_length": rng.integers(0, 9, B),
    "max_length": rng.integers(1, L, B),
    "stop_token_ids": rng.integers(4, V, (B, 1)),
    "prefix_token_ids": rng.integers(4, V, (B, 2)),
    "repetition_penalty": rng.uniform(0.7, 1.5, B).astype("float32"),
}
OF_SAMPLES = {"seed": rng.integers(0, 99, B), "temperature": rng.uniform(0.5, 2, B).astype("float32")}
PENALTIES = rng.uniform(0, 2, B).astype("float32")
SEARCHES = {
    "greedy": (greedy_search, {}, {}),
    "greedy, options": (greedy_search, {}, OF_ALL),
    "samples": (functools.partial(sample, num_samples=2), {}, OF_SAMPLES),
    "samples, options": (
        functools.partial(sample, num_samples=3),
        {"length_penalty": PENALTIES},
        {**OF_ALL, **OF_SAMPLES},
    ),
    "beams": (functools.partial(beam_search, num_beams=3), {}, {}),
    "beams, options": (
        functools.partial(beam_search, num_beams=3),
        {"length_penalty": PENALTIES},
        {**OF_ALL, "num_beams": rng.integers(1, 4, B)},
    ),
}


class Rows:
    """Searches through tables, as a graph for any batch size; counts the rows of all its steps."""

    def __init__(self, name, compiler=None):
        self.search, arguments, options = SEARCHES[name]
        self.values = {**arguments, **options}
        self.option_names = set(options)
        self.compiler = compiler
        self.num_rows = tf.Variable(0)

    def __call__(self, tables, counts=True):
        inputs = scripted_inputs(tables, L, row_context=tables, compiler=self.compiler)

        def counting(token_ids, *others):
            if counts:
                self.num_rows.assign_add(ops.shape(token_ids)[0])
            return inputs.step(token_ids, *others)

        options = {name: self.values[name] for name in self.option_names}
        others = {name: value for name, value in self.values.items() if name not in options}
        return self.search(
            dataclasses.replace(inputs, step=counting), options=DecodingOptions(**options), **others
        )

    def in_open_graph(self, tables, counts=True):
        spec = tf.TensorSpec([None, *tables.shape[1:]], tf.float32)
        run = tf.function(lambda tables: self(tables, counts), [spec], autograph=False)
        return [x.numpy() for x in tf.nest.flatten(run(tables))]


def tables_of(seed, end_logit=1.5):
    return random_tables(seed, B, V, end_logit)


@pytest.mark.parametrize("name", slow_but(("greedy", "samples", "beams, options"), SEARCHES))
def test_answers_are_those_of_a_batch_that_nobody_leaves(name):
    tables, rows = tables_of(1), Rows(name)
    expected = [x.numpy() for x in tf.nest.flatten(rows(tf.constant(tables)))]
    all_rows = int(rows.num_rows.numpy())  # B at every step up to the longest answer
    rows.num_rows.assign(0)
    actual = rows.in_open_graph(tables)
    for one, two in zip(actual, expected):
        np.testing.assert_allclose(one, two, rtol=1e-6)  # of tokens: equal
    lengths = np.sum(expected[0].reshape(B, -1, L)[:, 0] != PAD, axis=1)
    assert len(set(lengths.tolist())) > 5, "answers of few lengths show nothing"
    assert all_rows % B == 0
    # While more than half of the rows are live all are computed, so never more than two for each live one.
    if expected[0].ndim == 2:
        assert lengths.sum() <= rows.num_rows.numpy() <= 2 * lengths.sum()
    assert rows.num_rows.numpy() < 0.75 * all_rows


@pytest.mark.parametrize("batch_size", [0, 1, 2, 3])
def test_small_batches(batch_size):
    tables, rows = tables_of(2)[:batch_size], Rows("greedy")
    expected = rows(tf.constant(tables), counts=False).numpy() if batch_size else np.zeros((0, L))
    (actual,) = rows.in_open_graph(tables)
    np.testing.assert_array_equal(actual, expected)


# A change of the size takes about as long as a step, and each size is compiled: so few, and none below 8 rows.
@pytest.mark.parametrize(
    ("name", "copies", "expected_sizes"),
    [
        ("greedy", 4, {92, 46, 11}),
        pytest.param("beams, options", 1, {23, 11}, marks=pytest.mark.slow),
    ],
)
def test_compiled_batches_have_few_sizes(name, copies, expected_sizes):
    tables, shapes = np.concatenate([tables_of(3 + number) for number in range(copies)]), set()

    def compiler(function):
        compiled = compiled_with_xla(function)

        def call(index, last, fewest, state, cache, context):
            tf.py_function(lambda size, slots: shapes.add((int(size), int(slots))), sizes_of(cache), [])
            return compiled(index, last, fewest, state, cache, context)

        return call

    def sizes_of(cache):
        shape = tf.shape(cache[0][0])
        return [shape[0], shape[2]]

    expected = [x.numpy() for x in tf.nest.flatten(Rows(name)(tf.constant(tables), counts=False))]
    actual = Rows(name, compiler).in_open_graph(tables, counts=False)
    for one, two in zip(actual, expected):
        np.testing.assert_allclose(one, two, rtol=1e-6)
    sizes = {size for size, _ in shapes}
    assert sizes == expected_sizes, shapes


@pytest.fixture(scope="module")
def models():
    keras.utils.set_random_seed(3)
    sizes = {"hidden_dim": 12, "num_heads": 2, "intermediate_dim": 20, "max_sequence_length": 64}
    return (
        Seq2SeqTransformer.from_sizes(13, num_encoder_layers=1, num_decoder_layers=2, **sizes),
        DecoderTransformer.from_sizes(13, num_layers=2, position_encoding="rotary", **sizes),
    )


@pytest.mark.parametrize("kind", slow_but(["seq2seq"], ["seq2seq", "coverage", "decoder"]))
@pytest.mark.parametrize("num_beams", slow_but([3], [1, 3]))
def test_models(models, kind, num_beams):
    seq2seq, decoder = models
    ids = np.random.default_rng(4).integers(4, 13, (B, 11))
    for row, count in enumerate(np.random.default_rng(5).integers(0, 10, B)):
        ids[row, 11 - count :] = 0
    # A third of the rows may answer three tokens, a third eleven, and a third as many as they like.
    options = DecodingOptions(
        max_length=np.array([3, 11, 40] * B)[:B],
        coverage_penalty=np.linspace(0, 1, B).astype("float32") if kind == "coverage" else None,
    )
    arguments = {"end_token_id": END, "num_beams": num_beams, "num_return_sequences": num_beams}
    if kind == "decoder":
        generate = functools.partial(decoder.generate, **arguments, max_length=40, options=options)
    else:
        generate = functools.partial(
            seq2seq.generate, start_token_id=START, **arguments, max_length=40, options=options
        )
    # A prompt has a length of its own; the batch size alone is known, or left open.
    expected, actual = (
        tf.function(lambda ids: generate(ids), [tf.TensorSpec([size, 11], tf.int32)], autograph=False)(
            ids.astype("int32")
        )
        for size in (B, None)
    )
    np.testing.assert_array_equal(actual.token_ids, expected.token_ids)
    np.testing.assert_allclose(actual.scores, expected.scores, rtol=1e-5, atol=1e-5)
    assert np.any(expected.token_ids.numpy()[:, 0, 12:] != 0)


def has_bfloat16_instructions():
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def test_the_same_seed_draws_the_same_in_bfloat16_in_any_batch():
    keras.utils.set_random_seed(3)
    sizes = {"hidden_dim": 32, "num_heads": 2, "intermediate_dim": 20, "max_sequence_length": 64}
    model = Seq2SeqTransformer.from_sizes(259, 1, 2, **sizes, dtype="mixed_bfloat16")
    source = np.random.default_rng(4).integers(4, 259, (61, 11)).astype("int32")
    specs = [tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)]

    @functools.partial(tf.function, input_signature=specs, autograph=False)
    def draw(source, seeds):
        return model.generate(source, START, END, max_length=30, options=DecodingOptions(seed=seeds))

    seeds = np.arange(61, dtype="int32")
    expected = draw(source, seeds).numpy()
    assert len(set(map(tuple, expected.tolist()))) == 61
    for size in (1, 7, 23):
        differs = 0
        for start in range(0, 61, size):
            rows = slice(start, start + size)
            differs += np.any(draw(source[rows], seeds[rows]) != expected[rows], axis=1).sum()
        # There, products of other numbers of rows round differently (docs/decoding.md).
        assert differs <= (6 if has_bfloat16_instructions() else 0)
