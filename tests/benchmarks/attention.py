"""Attention, forward and backward: short against Keras' layer and torch's kernel, long against both and in memory.

Three tables. The layer with its projections, against `keras.layers.MultiHeadAttention` with the same weights. The op
alone, against `torch.nn.functional.scaled_dot_product_attention`. Long sequences, the memory-efficient form against
the dense one and torch, each in a process of its own whose memory is read from the operating system. Outputs and
gradients are compared before anything is timed.
"""

from helpers_benchmarks import median_seconds, parser, print_table  # isort: skip -- quietens TensorFlow

import argparse
import json
import pathlib
import re
import subprocess
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import keras_attn
from keras_attn.ops import MaskRule, memory_efficient_attention
from keras_attn.ops.attention_paths import attend

BATCH_SIZE, NUM_HEADS, KEY_DIM = 8, 8, 64
SHORT = (64, 128, 256, 512)
THREADS = 2
WINDOW = 512
# A turn of a short candidate: the threads of the one before it spin for a while.
LEAST_SECONDS = 0.2


def main():
    options = parser(__doc__, rounds=15)
    options.add_argument(
        "--tables", nargs="*", default=["layer", "op", "long"], choices=["layer", "op", "long"]
    )
    options.add_argument("--long-rounds", type=int, default=3, help="how often each long case is timed")
    options.add_argument("--child", help=argparse.SUPPRESS)
    given = options.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    if given.child:
        print(json.dumps(long_case(**json.loads(given.child))))
        return
    if "layer" in given.tables:
        layer_table(given.rounds)
    if "op" in given.tables:
        op_table(given.rounds)
    if "long" in given.tables:
        long_table(given.long_rounds)


# --- the layer, with projections ---


def layer_table(rounds):
    header = ["T = S", "Keras ms", "ours ms", "Keras / ours", "ours bf16 ms", "float32 / bf16"]
    rows = []
    for length in SHORT:
        steps, x = {}, inputs(BATCH_SIZE, length, NUM_HEADS * KEY_DIM)
        upstream = inputs(BATCH_SIZE, length, NUM_HEADS * KEY_DIM, seed=1)
        keras_layer = keras.layers.MultiHeadAttention(NUM_HEADS, KEY_DIM)
        keras_layer(x, x)
        steps["keras"] = layer_step(keras_layer, x, upstream)
        for name, dtype in (("ours", "float32"), ("bfloat16", "mixed_bfloat16")):
            layer = keras_attn.layers.MultiHeadAttention(NUM_HEADS, KEY_DIM, dtype=dtype)
            layer(x, x)
            layer.set_weights(keras_layer.get_weights())
            steps[name] = layer_step(layer, x, upstream)
        assert_all_close(steps["ours"](), steps["keras"](), 1e-4)
        assert_all_close(steps["bfloat16"]()[:2], steps["keras"]()[:2], 5e-2)
        seconds = median_seconds(steps, rounds, least_seconds=LEAST_SECONDS)
        rows.append(
            [
                length,
                *(f"{1e3 * seconds[name]:.2f}" for name in ("keras", "ours")),
                f"{seconds['keras'] / seconds['ours']:.2f}",
                f"{1e3 * seconds['bfloat16']:.2f}",
                f"{seconds['ours'] / seconds['bfloat16']:.2f}",
            ]
        )
    title = "Self-attention layer with its projections, forward and backward, B 8, N 8, H 64"
    print_table(title, header, rows)


def layer_step(layer, x, upstream):
    upstream = tf.cast(upstream, layer.compute_dtype)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, x)
        return y, *tape.gradient(y, [x, *layer.trainable_variables], upstream)

    return lambda: finished(step(x))


# --- the op alone ---


def op_table(rounds):
    import torch

    torch.set_num_threads(THREADS)
    header = ["T = S", "torch ms", "ours ms", "torch / ours"]
    rows = []
    for length in SHORT:
        arrays = [heads(length, BATCH_SIZE, seed) for seed in range(4)]
        steps = {"torch": torch_step(arrays), "ours": op_step(dense, arrays)}
        assert_all_close(steps["ours"](), steps["torch"](), 1e-4)
        seconds = median_seconds(steps, rounds, least_seconds=LEAST_SECONDS)
        milliseconds = [f"{1e3 * seconds[name]:.2f}" for name in ("torch", "ours")]
        rows.append([length, *milliseconds, f"{seconds['torch'] / seconds['ours']:.2f}"])
    print()
    print_table("Attention alone, forward and backward, float32, B 8, N 8, H 64", header, rows)


def dense(query, key, value, mask):
    return attend(query, key, value, mask=mask, memory_efficient=False)[0]


def op_step(function, arrays, rule=lambda length: None, dtype="float32"):
    *tensors, upstream = (tf.constant(x, dtype) for x in arrays)

    @tf.function
    def step(query, key, value):
        mask = rule(query.shape[-2])
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            output = function(query, key, value, mask)
        return output, *tape.gradient(output, [query, key, value], upstream)

    return lambda: finished(step(*tensors))


def torch_step(arrays, is_causal=False):
    import torch

    *tensors, upstream = (torch.tensor(x) for x in arrays)
    tensors = [x.requires_grad_() for x in tensors]

    def step():
        output = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=is_causal)
        return output, *torch.autograd.grad(output, tensors, upstream)

    return step


# --- long sequences ---

RULES = {
    "full": lambda length: None,
    "causal": lambda length: rule(length),
    f"causal, window {WINDOW}": lambda length: rule(length, sliding_window=WINDOW),
}


def rule(length, **arguments):
    positions = tf.range(length)
    return MaskRule(query_positions=positions, key_positions=positions, causal=True, offset=0, **arguments)


CANDIDATES = {
    "torch": lambda arrays, mask: torch_step(arrays, is_causal=mask != "full"),
    "dense": lambda arrays, mask: op_step(dense, arrays, RULES[mask]),
    "memory-efficient": lambda arrays, mask: op_step(memory_efficient_attention, arrays, RULES[mask]),
    "memory-efficient, bf16": lambda arrays, mask: op_step(
        memory_efficient_attention, arrays, RULES[mask], "bfloat16"
    ),
}
LONG = (
    (4096, "torch", "full"),
    (4096, "dense", "full"),
    (4096, "memory-efficient", "full"),
    (4096, "memory-efficient, bf16", "full"),
    (16384, "torch", "full"),
    (16384, "memory-efficient", "full"),
    (16384, "memory-efficient, bf16", "full"),
    (16384, "torch", "causal"),
    (16384, "memory-efficient", "causal"),
    (16384, "memory-efficient", f"causal, window {WINDOW}"),
)


def long_table(rounds):
    for mask in RULES:
        candidates = ["dense", "memory-efficient"] + ["torch"] * (mask in ("full", "causal"))
        arrays = [heads(1024, 1, seed) for seed in range(4)]
        reference, *others = (CANDIDATES[name](arrays, mask)() for name in candidates)
        for other in others:
            assert_all_close(other, reference, 1e-4)
    seconds, memory = {case: [] for case in LONG}, {case: [] for case in LONG}
    for _ in range(rounds):
        for case in LONG:
            result = in_new_process(case)
            seconds[case].append(result["seconds"])
            memory[case].append(result["bytes"])
    rows = []
    for case in LONG:
        length, name, mask = case
        median = {key: float(np.median(times)) for key, times in seconds.items()}
        peers = [(length, peer, mask) for peer in ("torch", "dense")] + [(length, "memory-efficient", "full")]
        ratios = [f"{median[case] / median[peer]:.2f}" if peer in median else "" for peer in peers]
        gigabytes = np.median(memory[case]) / 1e9
        rows.append([length, name, mask, f"{median[case]:.2f}", *ratios, f"{gigabytes:.2f}"])
    header = ["T = S", "form", "mask", "s", "/ torch", "/ dense", "/ full", "peak GB above the inputs"]
    print()
    print_table(
        "Attention alone, forward and backward, B 1, N 8, H 64, each in its own process", header, rows
    )


def in_new_process(case):
    arguments = json.dumps(dict(zip(("length", "name", "mask"), case)))
    command = [sys.executable, __file__, "--child", arguments]
    finished_process = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(finished_process.stdout.splitlines()[-1])


def long_case(length, name, mask):
    """The seconds of one step, and the bytes that the process grew by at its peak.

    Short sequences come first, so that what the libraries load on first use counts as the process. The second of two
    steps of the full length is timed.
    """
    if name == "torch":
        import torch

        torch.set_num_threads(THREADS)
    CANDIDATES[name]([heads(64, 1, seed) for seed in range(4)], mask)()
    step = CANDIDATES[name]([heads(length, 1, seed) for seed in range(4)], mask)
    before = resident_bytes("VmRSS")
    # Forgets the peak of what came before.
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    step()
    start = time.perf_counter()
    step()
    return {"seconds": time.perf_counter() - start, "bytes": resident_bytes("VmHWM") - before}


def resident_bytes(name):
    """What Linux says of this process: `VmRSS` now, `VmHWM` at the peak."""
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{name}:\s+(\d+) kB", status)[1])


# --- what the tables share ---


def inputs(*shape, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape).astype("float32"))


def heads(length, batch_size, seed):
    shape = (batch_size, NUM_HEADS, length, KEY_DIM)
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def finished(outputs):
    """Waits for the work that stands behind them."""
    outputs[0].numpy()
    return outputs


def assert_all_close(actual, expected, tolerance):
    for a, b in zip(actual, expected, strict=True):
        a, b = (np.asarray(x.detach() if hasattr(x, "detach") else tf.cast(x, "float32")) for x in (a, b))
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, np.abs(b).max()))


if __name__ == "__main__":
    main()
