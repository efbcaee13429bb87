"""Milliseconds per generated token of `model.generate`, and what a larger `max_length` adds to them.

Every search runs exactly as many steps as it is told: END is impossible before the last token and certain there.
"""

from helpers_benchmarks import median_seconds, parser, print_table  # isort: skip -- quietens TensorFlow

import functools

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_attn.models import Seq2SeqTransformer

VOCABULARY_SIZE = 8000
SOURCE_LENGTH = 17
START, END = 2, 3
# Tokens decoded and max_length: a short answer under a short and a long limit; answers about as long as the limit.
SHORT, SHORT_UNDER_LONG_LIMIT = (24, 64), (24, 256)
FULL, LONG = (60, 64), (250, 256)


class FixedLengthTransformer(Seq2SeqTransformer):
    """Ends every hypothesis at token `num_tokens`, an attribute that a trace may set to a tensor."""

    num_tokens = None

    def call_with_cache(self, decoder_token_ids, cache, cache_update_index, positions, **options):
        logits, cache = super().call_with_cache(
            decoder_token_ids, cache, cache_update_index, positions, **options
        )
        end = ops.where(positions[0] == self.num_tokens - 1, 1e6, -1e6)
        return ops.where(ops.arange(logits.shape[-1]) == END, end, logits), cache


def decoder(model, max_length, num_beams, jit_compile):
    """A compiled function (encoder_token_ids, num_tokens) -> token ids."""

    @functools.partial(tf.function, jit_compile=jit_compile, autograph=False)
    def generate(encoder_token_ids, num_tokens):
        model.num_tokens = num_tokens
        return model.generate(encoder_token_ids, START, END, num_beams=num_beams, max_length=max_length)

    return generate


def measure(model, batch_size, num_beams, jit_compile, cases, rounds):
    """Median milliseconds per token of each case (num_tokens, max_length)."""
    rng = np.random.default_rng(1)
    ids = tf.constant(rng.integers(4, VOCABULARY_SIZE, (batch_size, SOURCE_LENGTH)), "int32")
    limits = sorted({max_length for _, max_length in cases})
    functions = {limit: decoder(model, limit, num_beams, jit_compile) for limit in limits}

    def run(num_tokens, max_length):
        return functions[max_length](ids, tf.constant(num_tokens)).numpy()

    for num_tokens, max_length in cases:
        token_ids = run(num_tokens, max_length)
        assert ((token_ids == END) == (np.arange(max_length) == num_tokens - 1)).all()
    seconds = median_seconds({case: functools.partial(run, *case) for case in cases}, rounds)
    return {case: 1000 * value / case[0] for case, value in seconds.items()}


def main():
    options = parser(__doc__.splitlines()[0], rounds=15)
    options.add_argument("--size", choices=["tiny", "base"], default="tiny")
    options.add_argument("--batches", type=int, nargs="+", default=[1, 64])
    options.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    options.add_argument("--compilers", nargs="+", choices=["graph", "xla"], default=["graph", "xla"])
    options.add_argument("--full", action="store_true", help="time 60 tokens under 64 and 250 under 256 too")
    options = options.parse_args()
    keras.utils.set_random_seed(1)
    model = FixedLengthTransformer.from_preset(options.size, VOCABULARY_SIZE)
    cases = [SHORT, SHORT_UNDER_LONG_LIMIT, *([FULL, LONG] if options.full else [])]
    rows = []
    for compiler in options.compilers:
        for batch_size in options.batches:
            for num_beams in options.beams:
                times = measure(model, batch_size, num_beams, compiler == "xla", cases, options.rounds)
                row = [compiler, batch_size, num_beams, *(f"{value:.2f}" for value in times.values())]
                row.append(f"{times[SHORT_UNDER_LONG_LIMIT] / times[SHORT]:.2f}")
                if options.full:
                    row.append(f"{times[LONG] / times[FULL]:.2f}")
                rows.append(row)
    columns = [f"{num_tokens} under {max_length}" for num_tokens, max_length in cases]
    ratios = [f"ratio at {SHORT[0]} tokens", *(["ratio of the full lengths"] if options.full else [])]
    print_table(
        f"Decoding, {options.size}, V = {VOCABULARY_SIZE}, {SOURCE_LENGTH} source tokens: milliseconds per token "
        f"(of a whole batch), medians of {options.rounds}.",
        ["compiler", "batch", "beams", *columns, *ratios],
        rows,
    )


if __name__ == "__main__":
    main()
