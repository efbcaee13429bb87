"""One training step of `Seq2SeqTransformer` at equal shapes: against three peers, and against its matrix products alone.

The model of `keras.layers.MultiHeadAttention` is written as TensorFlow's tutorial writes it, with explicit masks; it
holds the same weights as ours, and outputs are compared before anything is timed. KerasHub's layers and torch's
`nn.Transformer` drop attention weights too; with `--dropout 0` all compute the same.
"""

from helpers_benchmarks import median_seconds, parser, print_table  # isort: skip -- quietens TensorFlow

import keras
import numpy as np
import tensorflow as tf
import torch
from helpers_keras_hub import KerasHubTransformer
from helpers_peers import KerasTransformer, TorchTransformer, forward_products

import keras_attn
from keras_attn.models import Seq2SeqTransformer
from keras_attn.models.seq2seq_transformer import PRESETS
from keras_attn.training import LabelSmoothedCrossentropy

VOCABULARY_SIZE = 8000
STEPS_PER_ROUND = 3


def sizes_of(size, **options):
    """The sizes that all models are made from."""
    others = {"vocabulary_size": VOCABULARY_SIZE, "max_sequence_length": 512, "layer_norm_epsilon": 1e-5}
    return {**PRESETS[size], **others, **options}


# The sub-layers of a block in the order in which the model of Keras' layers makes them.
PARTS = ("self_attention", "self_attention_residual", "cross_attention", "cross_attention_residual")
PARTS += ("feed_forward", "feed_forward_residual")


def variables_of(model):
    """The trainable variables in the order of `KerasTransformer`."""
    if isinstance(model, KerasTransformer):
        return model.trainable_variables
    blocks = [*model.encoder_blocks, *model.decoder_blocks]
    of_blocks = [w for block in blocks for part in PARTS for w in block.weights if f"/{part}/" in w.path]
    return [model.target_embedding.token.embeddings, *of_blocks]


def make_models(sizes, policy, batch):
    """Ours, and the one that may have the same weights."""
    ours = Seq2SeqTransformer.from_sizes(**sizes, dtype=policy)
    theirs = KerasTransformer(sizes, dtype=policy)
    theirs(batch)
    for variable, other in zip(theirs.weights, variables_of(ours), strict=True):
        variable.assign(other)
    return {"keras_attn": ours, "Keras MHA": theirs}


def make_batch(batch_size, length, padding=0):
    rng = np.random.default_rng(1)
    ids = rng.integers(4, VOCABULARY_SIZE, (3, batch_size, length)).astype("int32")
    if padding:
        ids[:, ::2, -padding:] = 0
    inputs = {"encoder_token_ids": tf.constant(ids[0]), "decoder_token_ids": tf.constant(ids[1])}
    return inputs, tf.constant(ids[2])


def check_equal(size):
    """Logits of real tokens, and the loss with its gradient, without dropout.

    In float64, because in float32 one model may round a unit of a ReLU to the other side of 0, which shows in gradients.
    """
    inputs, labels = make_batch(batch_size=3, length=11, padding=4)
    models = make_models(sizes_of(size, dropout=0.0), "float64", inputs)
    real = inputs["decoder_token_ids"].numpy() != 0
    results = []
    for model in models.values():
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            loss = LabelSmoothedCrossentropy(0.1)(labels, logits)
        gradients = tape.gradient(loss, [weight.value for weight in variables_of(model)])
        results.append(
            [logits.numpy()[real], loss.numpy(), *(tf.convert_to_tensor(x).numpy() for x in gradients)]
        )
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * max(1.0, np.abs(theirs).max()))


def forward(model, inputs, labels):
    """The loss of a model of Keras layers."""
    return LabelSmoothedCrossentropy(label_smoothing=0.1)(labels, model(inputs, training=True))


def gradients(model, inputs, labels):
    with tf.GradientTape() as tape:
        loss = forward(model, inputs, labels)
    return loss, tape.gradient(loss, [weight.value for weight in model.trainable_variables])


def compiled(function, model, batch):
    """Function without arguments: some calls of `function(model, *batch)` as a graph."""
    step = tf.function(lambda *batch: function(model, *batch), autograph=False)

    def run():
        for _ in range(STEPS_PER_ROUND):
            values = tf.nest.flatten(step(*batch))
        assert all(np.isfinite(value.numpy()).all() for value in values[:1])

    return run


def keras_step(model, batch, optimizer=keras.optimizers.Adam):
    optimizer = optimizer(1e-4)
    model(batch[0])
    optimizer.build(model.trainable_variables)

    def step(model, *batch):
        loss, values = gradients(model, *batch)
        optimizer.apply(values, model.trainable_variables)
        return loss

    return compiled(step, model, batch)


def torch_step(config, batch):
    torch.manual_seed(1)
    model = TorchTransformer(config)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    loss_function = torch.nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)
    inputs, labels = batch
    source, target, labels = (
        torch.from_numpy(ids.numpy().astype("int64"))
        for ids in (inputs["encoder_token_ids"], inputs["decoder_token_ids"], labels)
    )

    def run():
        for _ in range(STEPS_PER_ROUND):
            optimizer.zero_grad()
            loss = loss_function(model(source, target).flatten(0, 1), labels.flatten())
            loss.backward()
            optimizer.step()
        assert np.isfinite(loss.item())

    return run


def matrix_products(config, batch_size, length, dtype):
    """Function without arguments: the matrix products of as many steps, forward and backward, and nothing else."""
    pairs = []  # of operands, none of which comes twice: TensorFlow would compute one product for both
    for count, batch, m, k, n in forward_products(config, batch_size, length):
        for rows_left, shared, columns in ((m, k, n), (m, n, k), (k, m, n)):
            shapes = (batch, rows_left, shared), (batch, shared, columns)
            pairs += [[tf.random.normal(shape, dtype=dtype) for shape in shapes] for _ in range(count)]

    @tf.function(autograph=False)
    def multiply(pairs):
        # A product that nothing reads would not be computed.
        return tf.add_n([tf.matmul(*operands)[0, 0, 0] for operands in pairs])

    def run():
        for _ in range(STEPS_PER_ROUND):
            value = multiply(pairs)
        assert np.isfinite(float(value))

    return run


def measure(options):
    """Median milliseconds of a step of each model, and of the parts of ours."""
    batch = make_batch(options.batch, options.length)
    dropout = {} if options.dropout is None else {"dropout": options.dropout}
    sizes = sizes_of(options.size, **dropout)
    candidates = {}
    for policy in options.policies:
        models = make_models(sizes, policy, batch[0])
        ours = models["keras_attn"]
        dtype = ours.compute_dtype
        candidates |= {
            f"products alone, {dtype}": matrix_products(sizes, options.batch, options.length, dtype),
            f"forward, {policy}": compiled(forward, ours, batch),
            f"forward and backward, {policy}": compiled(gradients, ours, batch),
            f"keras_attn, {policy}": keras_step(ours, batch, keras_attn.training.Adam),
            f"Keras MHA, {policy}": keras_step(models["Keras MHA"], batch),
        }
    candidates["KerasHub, float32"] = keras_step(KerasHubTransformer(sizes), batch)
    candidates["torch nn.Transformer, float32"] = torch_step(sizes, batch)
    seconds = median_seconds(candidates, options.rounds)
    return {name: 1000 * value / STEPS_PER_ROUND for name, value in seconds.items()}


def main():
    options = parser(__doc__.splitlines()[0], rounds=10)
    options.add_argument("--size", choices=["tiny", "base"], default="tiny")
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--length", type=int, default=24)
    options.add_argument("--dropout", type=float, help="of all models; that of the named size by default")
    options.add_argument("--policies", nargs="+", default=["float32", "mixed_bfloat16"])
    options = options.parse_args()
    torch.set_num_threads(2)
    check_equal(options.size)
    times = measure(options)
    first = options.policies[0]
    ours = times[f"keras_attn, {first}"]
    rows = [
        [name, f"{value:.1f}", f"{1000 * options.batch * options.length / value:,.0f}", f"{value / ours:.2f}"]
        for name, value in times.items()
    ]
    print_table(
        f"Training step, {options.size}, batch {options.batch} x {options.length}, V = {VOCABULARY_SIZE}; outputs, loss "
        f"and gradients of the first peer equal to 1e-5; medians of {options.rounds} rounds of {STEPS_PER_ROUND} steps.",
        ["", "ms", "tokens/s", f"x our {first} step"],
        rows,
    )


if __name__ == "__main__":
    main()
