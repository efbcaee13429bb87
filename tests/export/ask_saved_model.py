"""Asks an exported translator random things through TensorFlow's C library; the tests in test_fuzz.py start it.

It imports no TensorFlow: a process that answers here, and goes on answering, is what a server is. Its arguments are one
JSON object; it prints one, with what it counted and the first of what was wrong.
"""

import base64
import contextlib
import json
import pathlib
import resource
import runpy
import sys
import threading

import numpy as np

# Before TensorFlow's libraries: their BoringSSL would answer for the OpenSSL that `numpy.random` brings, and crash.
from numpy.random import default_rng

INT32 = (-(2**31), 2**31 - 1)
# The least float that is not denormal: TensorFlow takes those for 0.
TINY, HUGE = 1.2e-38, 3e38
# The least and the greatest value that each option can have; a value outside is clamped, and its row told so.
RANGES = {
    "min_length": (0, "max_length"),
    "max_length": (0, "max_length"),
    "num_beams": (0, "num_beams"),
    "no_repeat_ngram_size": (0, 2**31 - 1),
    "repetition_penalty": (0.01, 100.0),
    "length_penalty": (-10.0, 10.0),
    "temperature": (0.0, 100.0),
    "top_k": (0, "vocabulary_size"),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "seed": INT32,
}
# 0 stands for the default of these, and 1 is their least.
FROM_ONE = {"max_length", "num_beams"}
TOKEN_LISTS = {"stop_token_ids", "suppressed_token_ids"}
NOTES = """
    source_repaired source_truncated target_repaired target_truncated prefix_repaired prefix_truncated
    unfinished
""".split()
MAY_BE_UNFINISHED = {"translate", "sample"}


def random_text(rng):
    kind = rng.integers(9)
    length = int(rng.integers(0, 60))
    if kind == 0:
        return rng.bytes(length)
    if kind == 1:  # any characters that there are, right-to-left ones and NUL among them
        points = rng.integers(0, 0x110000, length)
        return "".join(chr(p) for p in points if not 0xD800 <= p < 0xE000).encode()
    if kind == 2:
        return bytes(rng.choice([32, 9, 13, 10, 0], length).tolist())
    if kind == 3:  # a surrogate alone, an overlong slash, and a character cut short, in text
        odd = [b"\xed\xa0\x80", b"\xc0\xaf", b"\xf0\x9f\x98", b"\xff", "שלום".encode(), "\u200f".encode()]
        return b"ab ".join(odd[i] for i in rng.integers(0, len(odd), 3))
    if kind == 4:
        return b""
    if kind == 5 and rng.random() < 0.02:
        return b"long line " * 100_000
    if kind == 6:
        return "مرحبا 😀 👩‍👩‍👧".encode()[: length // 2]
    return " ".join(rng.choice(["a", "dog", "runs", "zwei", "Hund", "."], 1 + length // 4)).encode()


def random_value(rng, least, greatest, dtype):
    kind = rng.integers(4)
    if dtype == "int":
        if kind:
            return int(rng.integers(least, greatest, endpoint=True))
        return int(rng.choice([*INT32, -1, 0, least, greatest, int(rng.integers(*INT32))]))
    if kind:
        return float(rng.uniform(least, greatest))
    odd = [
        float("nan"),
        float("inf"),
        -float("inf"),
        HUGE,
        -HUGE,
        TINY,
        -TINY,
        1e-45,
        0.0,
        -0.0,
        least,
        greatest,
    ]
    return float(rng.choice(odd))


def random_request(rng, limits, signature, batch_size):
    """{input: a value for each row}."""
    inputs = {}
    for name in SIGNATURE_INPUTS[signature]:
        if name in TOKEN_LISTS:
            ids = rng.integers(0, limits["vocabulary_size"], (batch_size, 8))
            ids = np.where(rng.random((batch_size, 8)) < 0.7, -1, ids)
            wild = rng.integers(*INT32, (batch_size, 8))
            inputs[name] = np.where(rng.random((batch_size, 8)) < 0.02, wild, ids).tolist()
        elif name in RANGES:
            least, greatest = (limits.get(bound, bound) for bound in RANGES[name])
            dtype = "float" if isinstance(RANGES[name][0], float) else "int"
            inputs[name] = [random_value(rng, least, greatest, dtype) for _ in range(batch_size)]
        else:
            inputs[name] = [random_text(rng) for _ in range(batch_size)]
    return inputs


def fed(inputs):
    """The same with bytes as the runner takes them."""
    return {
        name: [
            {"b64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
            for value in values
        ]
        for name, values in inputs.items()
    }


def is_valid(text):
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def clamped(inputs, limits, row):
    """What the status of a row must say of its options."""
    names = set()
    for name in set(inputs) & set(RANGES):
        least, greatest = (np.float32(limits.get(bound, bound)) for bound in RANGES[name])
        value = np.float32(inputs[name][row])
        if np.isnan(value):
            names.add(f"{name}_is_nan")
            continue
        if name == "min_length" and inputs["max_length"][row]:
            greatest = np.clip(inputs["max_length"][row], 1, greatest)
        names |= set() if least <= value <= greatest else {f"{name}_clamped"}
    for name in set(inputs) & TOKEN_LISTS:
        outside = [i for i in inputs[name][row] if i != -1 and not 0 <= i < limits["vocabulary_size"]]
        names |= {f"{name}_clamped"} if outside else set()
    return names


def problems(signature, inputs, outputs, limits):
    """What is wrong with an answer, in words; and what its rows say."""
    batch_size = len(inputs["inputs"])
    found = [f"{name} has {len(x)} rows" for name, x in outputs.items() if len(x) != batch_size]
    for name, values in outputs.items():
        if values.dtype != object:
            found += [] if np.isfinite(values).all() else [f"{name} is not finite"]
        elif not all(map(is_valid, values.flat)):
            found.append(f"{name} is not UTF-8")
    statuses = [text.decode() for text in outputs.get("status", [])]
    for row, status in enumerate(statuses):
        notes = set(status.split(",")) - {"ok"}
        expected = clamped(inputs, limits, row)
        for side, name in (("source", "inputs"), ("target", "targets"), ("prefix", "target_prefix")):
            if name in inputs and not is_valid(inputs[name][row]):
                expected.add(f"{side}_repaired")
            # The byte tokenizer has a token for each byte, and END takes the last place.
            elif name in inputs and side != "prefix" and limits["bytes_are_tokens"]:
                is_cut = len(inputs[name][row]) > limits["max_sequence_length"] - 1
                expected |= {f"{side}_truncated"} if is_cut else set()
        if not notes and status != "ok":
            found.append(f"status {status!r}")
        free = NOTES if not limits["bytes_are_tokens"] else {"prefix_truncated", "unfinished"}
        free = free | {
            name
            for name in NOTES
            if name.endswith("truncated") and expected & {"source_repaired", "target_repaired"}
        }
        if signature not in MAY_BE_UNFINISHED:
            free = free - {"unfinished", "prefix_truncated"}
        if (notes ^ expected) - free:
            found.append(f"status {status!r}, where {sorted(expected)} was due")
    return found, statuses


def same(answer, other, row):
    """Whether row 0 of `other` is that row of `answer`, what is padded to the batch's width aside."""
    for name, values in answer.items():
        one, two = values[row], other[name][0]
        if np.ndim(one):
            width = min(len(one), len(two))
            one, two = one[:width], two[:width]
        equal = np.array_equal(one, two) if values.dtype == object else np.allclose(one, two, 1e-4, 1e-4)
        if not equal:
            return False
    return True


def resident_bytes():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def fuzz(model, limits, num_requests, seed):
    rng = default_rng(seed)
    wrong, notes, resident = [], {}, {}
    rows = alone = 0
    for number in range(num_requests):
        signature = sorted(SIGNATURE_INPUTS)[number % len(SIGNATURE_INPUTS)]
        inputs = random_request(rng, limits, signature, int(rng.integers(0, 10)))
        outputs = model.run(signature, fed(inputs))
        found, statuses = problems(signature, inputs, outputs, limits)
        rows += len(inputs["inputs"])
        for note in ",".join(statuses).split(","):
            notes[note] = notes.get(note, 0) + 1
        if number % 7 == 0 and inputs["inputs"]:
            row = int(rng.integers(len(inputs["inputs"])))
            only = {name: values[row : row + 1] for name, values in inputs.items()}
            found += (
                [] if same(outputs, model.run(signature, fed(only)), row) else [f"row {row} differs alone"]
            )
            alone += 1
        wrong += [f"request {number}, {signature}: {problem}" for problem in found]
        if (number + 1) % 250 == 0:
            resident[number + 1] = resident_bytes()
    return {"rows": rows, "alone": alone, "notes": notes, "resident": resident, "wrong": wrong}


def in_threads(model, limits, num_requests, seed, num_threads=64):
    """Requests of all signatures, sizes and options: their answers one after the other, and then all at once."""
    rng = default_rng(seed)
    names = sorted(SIGNATURE_INPUTS)
    jobs = []
    for number in range(num_requests):
        signature = names[number % len(names)]
        jobs.append((signature, fed(random_request(rng, limits, signature, int(rng.integers(0, 6))))))
    serial = [model.run(*job) for job in jobs]
    parallel, barrier = [None] * num_requests, threading.Barrier(num_threads)

    def work(first):
        barrier.wait()
        for number in range(first, num_requests, num_threads):
            parallel[number] = model.run(*jobs[number])

    threads = [threading.Thread(target=work, args=(first,)) for first in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wrong = []
    for number, (one, two) in enumerate(zip(serial, parallel)):
        rows = len(next(iter(one.values())))
        shapes = two is not None and all(one[name].shape == two[name].shape for name in one)
        if not shapes or not all(
            same(one, {k: x[r : r + 1] for k, x in two.items()}, r) for r in range(rows)
        ):
            wrong.append(f"request {number}, {jobs[number][0]}: another answer than alone")
    return {"answers": sum(answer is not None for answer in parallel), "wrong": wrong}


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    runner = runpy.run_path(arguments["runner"])
    with contextlib.closing(runner["SavedModel"](runner["CApi"](), arguments["folder"])) as model:
        SIGNATURE_INPUTS = {name: list(signature.inputs) for name, signature in model.signatures.items()}
        ask = {"fuzz": fuzz, "threads": in_threads}[arguments["what"]]
        report = ask(model, arguments["limits"], arguments["num_requests"], arguments["seed"])
    report["wrong"], report["num_wrong"] = report["wrong"][:20], len(report["wrong"])
    report["signatures"] = sorted(SIGNATURE_INPUTS)
    report["unwanted"] = sorted({"tensorflow", "tensorflow_text", "keras", "keras_attn"} & set(sys.modules))
    print(json.dumps(report))
