"""Training steps and decoding on one GPU: ours through Keras' JAX or PyTorch backend, against Keras' layers and torch.

KERAS_BACKEND=jax python tests/benchmarks/gpu.py

Training is `model.fit` over batches that lie in memory, as users call it; torch's `nn.Transformer` is trained by a loop,
as it is and compiled. The share of the peak is that of the model's matrix products, forward and backward, in what the
GPU gives for one large product of the same dtype. Float32 products are TensorFloat-32 on both sides.
"""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch is in the same process

from helpers_benchmarks import median_seconds, parser, print_table  # isort: skip -- quietens TensorFlow

import gc

import keras
import numpy as np
import torch
from helpers_decoding import (
    END,
    START,
    TARGET_LENGTH,
    VOCABULARY_SIZE,
    make_model,
    make_source,
    of_transformers,
)
from helpers_peers import KerasTransformer, TorchTransformer, forward_products

import keras_attn
from keras_attn.models import PRESETS, Seq2SeqTransformer
from keras_attn.tasks.other_backends import function_of_arrays
from keras_attn.training import LabelSmoothedCrossentropy

BACKEND = keras.backend.backend()
STEPS = 50  # of a call of `fit`
DTYPES = {"float32": "float32", "mixed_bfloat16": "bfloat16"}


def peak(dtype, size=8192, repeats=20):
    """The operations a second of a large matrix product in torch."""
    left, right = (torch.randn(size, size, device="cuda", dtype=getattr(torch, dtype)) for _ in range(2))

    def multiply():
        for _ in range(repeats):
            product = left @ right
        assert np.isfinite(product[0, 0].item())

    return repeats * 2 * size**3 / median_seconds({"": multiply}, rounds=5)[""]


def make_batch(batch_size, length):
    ids = np.random.default_rng(1).integers(4, VOCABULARY_SIZE, (3, batch_size, length)).astype("int32")
    return {"encoder_token_ids": ids[0], "decoder_token_ids": ids[1]}, ids[2]


class Batches(keras.utils.PyDataset):
    """The same batch as often as a call of `fit` has steps."""

    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        return self.batch


def fitted(model, optimizer, batch):
    """Function without arguments: an epoch of `fit`."""
    model.compile(optimizer=optimizer, loss=LabelSmoothedCrossentropy(label_smoothing=0.1))
    batches = Batches(batch)

    def fit():
        history = model.fit(batches, verbose=0, shuffle=False)
        assert np.isfinite(history.history["loss"][-1])

    return fit


def torch_loop(sizes, batch, dtype, is_compiled):
    """Function without arguments: as many steps of `nn.Transformer`."""
    torch.manual_seed(1)
    model = TorchTransformer(sizes).to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=True)
    loss_function = torch.nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)
    inputs, labels = batch
    ids = (inputs["encoder_token_ids"], inputs["decoder_token_ids"], labels)
    source, target, labels = (torch.tensor(array.astype("int64"), device="cuda") for array in ids)
    call = torch.compile(model) if is_compiled else model

    def run():
        for _ in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=dtype == "bfloat16"):
                loss = loss_function(call(source, target).flatten(0, 1), labels.flatten())
            loss.backward()
            optimizer.step()
        assert np.isfinite(loss.item())

    return run


def training(options):
    """Rows of the table of training steps."""
    rows = []
    for size in options.sizes:
        sizes = {"vocabulary_size": VOCABULARY_SIZE, "max_sequence_length": 512, **PRESETS[size]}
        sizes["layer_norm_epsilon"] = 1e-5
        operations = 3 * sum(
            2 * count * batch * m * k * n
            for count, batch, m, k, n in forward_products(sizes, options.batch, options.length)
        )
        batch = make_batch(options.batch, options.length)
        for policy in options.policies:
            dtype = DTYPES[policy]
            found = {
                "keras_attn": fitted(
                    Seq2SeqTransformer.from_sizes(**sizes, dtype=policy),
                    keras_attn.training.Adam(1e-4),
                    batch,
                ),
                "Keras MHA": fitted(
                    KerasTransformer(sizes, dtype=policy), keras.optimizers.Adam(1e-4), batch
                ),
                "torch nn.Transformer": torch_loop(sizes, batch, dtype, is_compiled=False),
                "torch nn.Transformer, compiled": torch_loop(sizes, batch, dtype, is_compiled=True),
            }
            found = {name: run for name, run in found.items() if name not in options.without}
            seconds = median_seconds(found, options.rounds)
            best, rate = seconds["keras_attn"], peak(dtype)
            for name, value in seconds.items():
                a_step = value / STEPS
                rows.append(
                    [
                        size,
                        policy,
                        name,
                        f"{1000 * a_step:.2f}",
                        f"{options.batch * options.length / a_step:,.0f}",
                        f"{operations / a_step / rate:.1%}",
                        f"{value / best:.2f}",
                    ]
                )
                print(*rows[-1], flush=True)
            del found
            gc.collect()
    return rows


def ours(model, source, num_beams):
    """Function without arguments: the answers of `generate`, compiled where the backend compiles it."""

    def generate(ids):
        return model.generate(ids, START, END, num_beams=num_beams, max_length=TARGET_LENGTH)

    generate = function_of_arrays(model, generate)
    return lambda: generate(source)


def decoding(options):
    """Rows of the table of decoding."""
    rows = []
    for size in options.sizes:
        for dtype in options.dtypes:
            model = make_model(size, dtype)
            reference = model if dtype == "float32" else make_model(size)
            for batch_size in options.batches:
                source = make_source(batch_size)
                for num_beams in options.beams:
                    found = {
                        "keras_attn": ours(model, source, num_beams),
                        "transformers": of_transformers(reference, source, num_beams, "cuda", dtype),
                    }
                    answers = [generate() for generate in found.values()]
                    assert answers[0].shape == answers[1].shape
                    assert END not in answers[0]
                    agreement = (answers[0] == answers[1]).all(axis=1).mean()
                    seconds = median_seconds(found, options.rounds, least_seconds=0.2)
                    for name, value in seconds.items():
                        speed = seconds["transformers"] / value
                        rows.append([size, dtype, batch_size, num_beams, name, f"{batch_size / value:,.0f}"])
                        rows[-1] += [f"{batch_size * TARGET_LENGTH / value:,.0f}", f"{speed:.2f}"]
                        rows[-1].append(f"{agreement:.0%}")
                        print(*rows[-1], flush=True)
    return rows


def main():
    options = parser(__doc__.splitlines()[0], rounds=5)
    options.add_argument(
        "--parts", nargs="+", choices=["training", "decoding"], default=["training", "decoding"]
    )
    options.add_argument("--sizes", nargs="+", choices=["tiny", "base", "big"], default=["tiny", "base"])
    options.add_argument("--policies", nargs="+", choices=DTYPES, default=list(DTYPES))
    options.add_argument("--batch", type=int, default=512, help="sentences of a training batch")
    options.add_argument("--length", type=int, default=32)
    options.add_argument(
        "--batches", type=int, nargs="+", default=[1, 64, 1024], help="sentences decoded at once"
    )
    options.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    options.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    options.add_argument("--without", nargs="*", default=[], help="candidates to leave out, by name")
    options = options.parse_args()
    torch.set_float32_matmul_precision("high")
    card = f"{torch.cuda.get_device_name()}, {BACKEND}, torch {torch.__version__}"
    versions = ("keras", BACKEND) if BACKEND != "torch" else ("keras",)
    if "training" in options.parts:
        print_table(
            f"{card}. A training step, {options.batch} x {options.length}, V = {VOCABULARY_SIZE}; medians of "
            f"{options.rounds} rounds of {STEPS} steps.",
            ["size", "policy", "", "ms", "tokens/s", "of the peak", "x ours"],
            training(options),
            versions,
        )
    if "decoding" in options.parts:
        print_table(
            f"{card}. Decoding of {TARGET_LENGTH} tokens, V = {VOCABULARY_SIZE}; medians of {options.rounds}.",
            [
                "size",
                "dtype",
                "batch",
                "beams",
                "",
                "sentences/s",
                "tokens/s",
                "x transformers",
                "same answers",
            ],
            decoding(options),
            versions,
        )


if __name__ == "__main__":
    main()
