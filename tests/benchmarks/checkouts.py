"""Two checkouts of this library against each other on the same work: has a change made anything slower?

Each checkout runs in a process of its own with one thread. A turn of one is followed by a turn of the other, so that what
else the machine does falls on both alike; the ratio is the median of those of the turns. Pin it to a core:

    git worktree add ../before COMMIT
    taskset -c 0 python tests/benchmarks/checkouts.py ../before . --rounds 5

The work: a training step from token ids (mixed lengths, in float32 and mixed_bfloat16) and of blocks with masks as a user composes
them, decoding as it is served (no XLA, float32, int8 and bfloat16) and with XLA, the attention layer forward and backward.
"""

from helpers_benchmarks import parser  # isort: skip -- quietens TensorFlow

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

# A turn takes at least so long.
SECONDS = 0.4
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def train_step(size, policy="float32"):
    import numpy as np
    import tensorflow as tf

    import keras_attn

    model = keras_attn.models.Seq2SeqTransformer.from_preset(size, vocabulary_size=8000, dtype=policy)
    ids = np.random.default_rng(1).integers(4, 8000, (3, 64, 24)).astype("int32")
    ids[:, ::2, -7:] = 0
    loss_function = keras_attn.training.LabelSmoothedCrossentropy(label_smoothing=0.1)
    return _compiled_step(
        model,
        loss_function,
        {"encoder_token_ids": tf.constant(ids[0]), "decoder_token_ids": tf.constant(ids[1])},
        tf.constant(ids[2]),
    )


def blocks_step():
    """Two encoder blocks and two decoder blocks of a user's functional model, with padding masks."""
    import keras
    import numpy as np
    import tensorflow as tf

    from keras_attn.layers import DecoderBlock, EncoderBlock

    x, y = keras.Input([None, 128]), keras.Input([None, 128])
    masks = keras.Input([None], dtype="bool"), keras.Input([None], dtype="bool")
    encoded, decoded = x, y
    for _ in range(2):
        encoded = EncoderBlock(256, 4)(encoded, padding_mask=masks[0])
    for _ in range(2):
        decoded = DecoderBlock(256, 4)(
            decoded, encoded, decoder_padding_mask=masks[1], encoder_padding_mask=masks[0]
        )
    model = keras.Model([x, y, *masks], decoded)
    rng = np.random.default_rng(2)
    sequences = [tf.constant(rng.normal(size=(64, length, 128)).astype("float32")) for length in (24, 23)]
    lengths = rng.integers(5, 23, (2, 64, 1))
    padding = [tf.constant(np.arange(length) < rows) for length, rows in zip((24, 23), lengths)]

    def loss_function(labels, outputs):
        return tf.reduce_mean(tf.square(outputs))

    return _compiled_step(model, loss_function, [*sequences, *padding], tf.zeros(()))


def _compiled_step(model, loss_function, inputs, labels):
    import tensorflow as tf

    @tf.function(autograph=False)
    def step(inputs, labels):
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(inputs, training=True))
        gradients = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
        return tf.add_n([tf.reduce_sum(tf.cast(tf.convert_to_tensor(x), "float32")) for x in gradients])

    return lambda: step(inputs, labels).numpy()


def decode(size, batch_size, num_beams, quantization=None, jit_compile=False):
    import keras_attn

    sizes = {"hidden_dim": 128, "num_heads": 4, "intermediate_dim": 256}
    if size == "base":
        sizes = {"hidden_dim": 512, "num_heads": 8, "intermediate_dim": 2048}
    tokenizer = keras_attn.text.ByteTokenizer()
    model = keras_attn.models.Seq2SeqTransformer.from_sizes(tokenizer.vocabulary_size, 4, 4, **sizes)
    translator = keras_attn.Translator(
        model, tokenizer, tokenizer, num_beams=num_beams, max_length=17, jit_compile=jit_compile
    )
    if quantization is not None:
        translator = translator.quantized(quantization)
    texts = ["a dog runs by", "two dogs run over", "snow fell, all day"]
    texts = [texts[number % 3] for number in range(batch_size)]
    return lambda: translator(texts, batch_size=64, num_workers=1)


def attention_layer(length, dtype="float32"):
    import keras
    import tensorflow as tf

    from keras_attn.layers import MultiHeadAttention

    layer = MultiHeadAttention(8, 64, dtype=dtype)
    x = tf.random.stateless_normal([8, length, 512], [1, 2])
    mask = tf.sequence_mask([length - 5 * row for row in range(8)], length)
    layer(x, x)

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, x, value_mask=mask)
        return tf.reduce_sum(tape.gradient(y, x)) + tf.reduce_sum(keras.ops.cast(y, "float32"))

    return lambda: step(x).numpy()


WORK = {
    "training step, tiny": lambda: train_step("tiny"),
    "training step, tiny, mixed_bfloat16": lambda: train_step("tiny", "mixed_bfloat16"),
    "training step, base": lambda: train_step("base"),
    "training step, a user's blocks": blocks_step,
    "decoding, tiny, 1, greedy": lambda: decode("tiny", 1, 1),
    "decoding, tiny, 64, greedy": lambda: decode("tiny", 64, 1),
    "decoding, tiny, 1, 4 beams": lambda: decode("tiny", 1, 4),
    "decoding, tiny, 64, 4 beams": lambda: decode("tiny", 64, 4),
    "decoding, base, 1, greedy": lambda: decode("base", 1, 1),
    "decoding, base, 1, greedy, bfloat16": lambda: decode("base", 1, 1, "bfloat16"),
    "decoding, base, 64, greedy, bfloat16": lambda: decode("base", 64, 1, "bfloat16"),
    "decoding, base, 1, greedy, int8": lambda: decode("base", 1, 1, "int8"),
    "decoding, tiny, 1, greedy, XLA": lambda: decode("tiny", 1, 1, jit_compile=True),
    "decoding, tiny, 1, 4 beams, XLA": lambda: decode("tiny", 1, 4, jit_compile=True),
    "decoding, tiny, 64, greedy, XLA": lambda: decode("tiny", 64, 1, jit_compile=True),
    "decoding, tiny, 64, 4 beams, XLA": lambda: decode("tiny", 64, 4, jit_compile=True),
    "decoding, tiny, 64, greedy, int8, XLA": lambda: decode("tiny", 64, 1, "int8", jit_compile=True),
    "decoding, base, 1, greedy, XLA": lambda: decode("base", 1, 1, jit_compile=True),
    "attention layer, 64 tokens": lambda: attention_layer(64),
    "attention layer, 512 tokens": lambda: attention_layer(512),
    "attention layer, 512 tokens, bfloat16": lambda: attention_layer(512, "mixed_bfloat16"),
}


class Checkout:
    """A process that imports one checkout, prepares one piece of work, and does it when it is asked to."""

    def __init__(self, folder, name, clock):
        threads = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
        folder = pathlib.Path(folder).resolve()
        environment = {**os.environ, **dict.fromkeys(threads, "1"), "PYTHONPATH": str(folder)}
        command = [sys.executable, __file__, "--work", name, "--clock", clock]
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        if self._line() != f"ready {folder}":
            raise SystemExit(f"{folder} cannot do this work, or another copy of keras_attn was imported.")

    def seconds(self):
        """The seconds of one call, by the mean of a turn."""
        print("go", file=self.process.stdin, flush=True)
        return float(self._line())

    def end(self):
        self.process.stdin.close()
        self.process.wait()

    def _line(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(self.process.wait())
        return line.strip()


def work(name, clock):
    """The process of a `Checkout`."""
    import keras_attn

    now = CLOCKS[clock]

    run = WORK[name]()
    for _ in range(3):
        run()
    print("ready", pathlib.Path(keras_attn.__file__).parents[1], flush=True)
    for _ in sys.stdin:
        start = now()
        calls = 0
        while calls == 0 or now() - start < SECONDS:
            run()
            calls += 1
        print((now() - start) / calls, flush=True)


def compare(old, new, name, rounds, clock):
    checkouts = [Checkout(folder, name, clock) for folder in (old, new)]
    ratios, times = [], []
    for turn in range(rounds + 1):
        order = checkouts if turn % 2 else checkouts[::-1]
        seconds = {id(checkout): checkout.seconds() for checkout in order}
        before, after = (seconds[id(checkout)] for checkout in checkouts)
        if turn:
            ratios.append(before / after)
            times.append(after)
    for checkout in checkouts:
        checkout.end()
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    print(
        f"{name:40} {statistics.median(ratios):.3f} x  ({spread})  {statistics.median(times):.4f} s",
        flush=True,
    )


def main():
    if "--work" in sys.argv:
        child = argparse.ArgumentParser()
        child.add_argument("--work", dest="name", choices=list(WORK))
        child.add_argument("--clock", choices=list(CLOCKS))
        return work(**vars(child.parse_args()))
    options = parser(__doc__.splitlines()[0], rounds=5)
    options.add_argument("old", help="the folder of the checkout before")
    options.add_argument("new", help="the folder of the checkout after")
    options.add_argument("--only", default="", help="only the work whose names hold this")
    options.add_argument(
        "--clock", choices=list(CLOCKS), default="wall", help="processor seconds vary less beside other work"
    )
    options = options.parse_args()
    print("speed of the new checkout, as a multiple of the old one's (least to greatest), seconds of a call")
    for name in WORK:
        if options.only in name:
            compare(options.old, options.new, name, options.rounds, options.clock)
    return None


if __name__ == "__main__":
    main()
