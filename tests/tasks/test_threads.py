"""One loaded Translator under many threads and shapes: serial answers, few graphs, flat memory. test_fuzz.py asks exports so."""

import collections
import ctypes
import gc
import os
import pathlib
import resource
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
from helpers_translators import SENTENCES, byte_translator, subword_translator

import keras_attn
from keras_attn.generation import DecodingOptions

pytestmark = [pytest.mark.extended, pytest.mark.filterwarnings("ignore:.* too long: ")]

TEXTS = [*SENTENCES, "", "ab", "x" * 60, "naïve 😀", "word " * 7]


def random_job(seed, kinds):
    """A function of a translator: texts of mixed lengths and number, and options, of the seed."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 7))
    texts = [TEXTS[i] for i in rng.integers(0, len(TEXTS), count)]
    targets = [text[:20] for text in texts[::-1]]
    seeds, beams = rng.integers(0, 99, count).tolist(), rng.integers(1, 3, count).tolist()
    jobs = {
        "search": lambda translator: translator(texts, return_scores=True),
        "greedy": lambda translator: translator(texts[0], num_beams=1),
        "n_best": lambda translator: translator(texts, num_return_sequences=2, return_scores=True),
        "options": lambda translator: translator(
            texts, options=DecodingOptions(num_beams=beams, no_repeat_ngram_size=2), return_scores=True
        ),
        "sample": lambda translator: translator(
            texts, options=DecodingOptions(temperature=0.8, seed=seeds), return_scores=True
        ),
        "prefix": lambda translator: translator(texts, target_prefix=[text[:3] for text in texts]),
        "score": lambda translator: translator.score(texts, targets, return_token_scores=True),
        "align": lambda translator: translator.align(texts, targets),
        "attention": lambda translator: translator(texts[:2], return_attention_scores=True),
    }
    assert set(kinds) <= set(jobs)
    return jobs[kinds[seed % len(kinds)]]


FEW = ("search", "score")
ALL = (*FEW, "sample", "greedy", "n_best", "options", "prefix", "align", "attention")


def in_threads(jobs, num_threads=64):
    """The answers to jobs, each thread taking every 64th of them; all begin at once."""
    answers, errors, barrier = [None] * len(jobs), [], threading.Barrier(num_threads)

    def work(first):
        barrier.wait()
        try:
            for number in range(first, len(jobs), num_threads):
                answers[number] = jobs[number]()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return answers


def assert_same(actual, expected):
    tf.nest.assert_same_structure(actual, expected)
    for one, two in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
        if isinstance(two, str):
            assert one == two
        elif isinstance(two, np.ndarray) and two.dtype.hasobject:
            np.testing.assert_array_equal(one, two)
        else:
            np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)


def kinds_of(translator):
    """The keys of its graphs, but of the one that has its tokenizer in its key."""
    return {key for key in translator._graphs.cached_keys() if key[0] != "texts"}


def counting_traces(translator):
    """The translator, and a list that grows with each trace of a search: its Python runs then and only then."""
    traced, generate = [], translator.generate

    def counted(token_ids, *arguments):
        traced.append(arguments)
        return generate(token_ids, *arguments)

    translator.generate = counted
    return translator, traced


@pytest.mark.parametrize(
    ("make", "num_jobs", "kinds"),
    [
        (byte_translator, 64, FEW),
        pytest.param(byte_translator, 900, ALL, marks=pytest.mark.slow),
        pytest.param(subword_translator, 900, ALL, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_64_threads_on_a_fresh_translator_get_its_serial_answers(make, num_jobs, kinds, tmp_path):
    make().save(tmp_path / "translator")
    serial, shared = (keras_attn.Translator.load(tmp_path / "translator") for _ in range(2))
    shared, traced = counting_traces(shared)
    jobs = [random_job(seed, kinds) for seed in range(num_jobs)]
    expected = [job(serial) for job in jobs]
    # Nothing of `shared` is traced yet: the threads meet in the tracing too.
    answers = in_threads([lambda job=job: job(shared) for job in jobs])
    for one, two in zip(answers, expected):
        assert_same(one, two)
    assert kinds_of(shared) == kinds_of(serial)
    assert len(traced) == len([key for key in kinds_of(shared) if not isinstance(key, str)])


@pytest.mark.slow
def test_64_threads_on_a_translator_compiled_with_xla():
    serial, shared = byte_translator(jit_compile=True), byte_translator(jit_compile=True)
    jobs = [
        lambda translator, seed=seed: translator(TEXTS[seed % 10 : seed % 10 + 3], return_scores=True)
        for seed in range(128)
    ]
    expected = [job(serial) for job in jobs]
    for one, two in zip(in_threads([lambda job=job: job(shared) for job in jobs]), expected):
        assert_same(one, two)
    assert kinds_of(shared) == kinds_of(serial)


def shapes(count, most_rows, longest):
    """So many pairs of a batch size and a length, all different as long as there are such, in random order."""
    every = [(rows, length) for rows in range(1, most_rows + 1) for length in range(1, longest + 1)]
    order = np.random.default_rng(7).permutation(len(every))
    return [every[order[i % len(every)]] for i in range(count)]


def batch(rows, length):
    return ["abcdefghij"[row % 10] * length for row in range(rows)]


def resident_bytes():
    gc.collect()
    # What was freed goes back to the system: what is left is held.
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def growth_over(calls):
    """Bytes that a process gains over the second half of calls."""
    before = None
    for number, call in enumerate(calls):
        if number == len(calls) // 2:
            before = resident_bytes()
        call()
    return resident_bytes() - before


has_proc = pytest.mark.skipif(
    not pathlib.Path("/proc/self/statm").exists(), reason="needs /proc to read the memory in use"
)


def test_varying_shapes_are_one_trace():
    translator, traced = counting_traces(byte_translator(num_beams=2, max_length=7))
    for rows, length in shapes(100, 57, 36):
        assert len(translator(batch(rows, length))) == rows
    assert len(traced) == 1


@has_proc
@pytest.mark.slow
def test_2000_varying_shapes_are_one_trace_in_flat_memory():
    translator, traced = counting_traces(byte_translator(num_beams=2, max_length=7))
    calls = [
        lambda rows=rows, length=length: translator(batch(rows, length), batch_size=64)
        for rows, length in shapes(2000, 57, 36)
    ]
    grown = growth_over(calls)
    print(f"Translator: {grown / 2**20:.1f} MiB")
    assert grown < 24 * 2**20
    assert len(traced) == 1


@pytest.mark.slow
def test_prefixes_of_any_length_are_few_graphs():
    translator, traced = counting_traces(byte_translator(num_beams=1, max_length=5))
    for length in range(1, 5):
        translator("ab", target_prefix="z" * length)
    assert len(traced) == 3  # widths 1, 2 and 4


_VARYING_SHAPES_UNDER_XLA = """
from test_threads import batch, byte_translator, counting_traces, shapes

translator, traced = counting_traces(byte_translator(num_beams=2, max_length=7, jit_compile=True))
for rows, length in shapes(2000, 20, 36):
    translator(batch(rows, length))
assert len(traced) == 1, traced
"""


@pytest.mark.slow
def test_2000_varying_shapes_under_xla_are_one_trace_and_a_compilation_a_bucket(tmp_path):
    paths = [str(pathlib.Path(__file__).parent), *sys.path]
    environment = {"XLA_FLAGS": f"--xla_dump_to={tmp_path}", "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run(
        [sys.executable, "-c", _VARYING_SHAPES_UNDER_XLA], env={**os.environ, **environment}, check=True
    )
    compiled = [path.name.split(".")[1] for path in tmp_path.glob("*.before_optimizations.txt")]
    # 1, 2, 4, 8, 16 and 32 rows; 2, 4, 8, 12, 16, 24, 32 and 48 tokens, END being one of them. The longer batches halve to sizes
    # that short ones have too, in the loop of steps alone.
    counts = collections.Counter("steps" if "steps" in name else "encoder" for name in compiled)
    assert counts["encoder"] <= 6 * 8, counts
    assert 6 * 8 - 3 <= counts["steps"] <= 6 * 8, counts
