"""One training step of `Seq2SeqTransformer` against the same model made of `keras.layers.MultiHeadAttention`.

The other model is written as TensorFlow's tutorial writes it, with explicit masks. Both hold the same weights, and
their outputs are compared before anything is timed.
"""

from helpers_benchmarks import median_seconds, parser, print_table  # isort: skip -- quietens TensorFlow

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_attn.models import Seq2SeqTransformer
from keras_attn.training import LabelSmoothedCrossentropy

VOCABULARY_SIZE = 8000
STEPS_PER_ROUND = 3


class KerasTransformer(keras.Model):
    """What `Seq2SeqTransformer` computes, post-norm and with one tied embedding, from Keras' own layers."""

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.hidden_dim = config["hidden_dim"]
        self.embedding = keras.layers.Embedding(
            config["vocabulary_size"], self.hidden_dim, dtype=self.dtype_policy
        )
        self.encoder_blocks = [
            KerasBlock(config, attentions=1, dtype=self.dtype_policy)
            for _ in range(config["num_encoder_layers"])
        ]
        self.decoder_blocks = [
            KerasBlock(config, attentions=2, dtype=self.dtype_policy)
            for _ in range(config["num_decoder_layers"])
        ]
        self.dropout = keras.layers.Dropout(config["dropout"], dtype=self.dtype_policy)
        self.position_encoding = position_table(config["max_sequence_length"], self.hidden_dim)

    def call(self, inputs, training=None):
        encoder_mask = ops.not_equal(inputs["encoder_token_ids"], 0)[:, None, :]
        decoder_mask = ops.not_equal(inputs["decoder_token_ids"], 0)[:, None, :]
        x = self.embed(inputs["encoder_token_ids"], training)
        for block in self.encoder_blocks:
            x = block(x, training=training, self_mask=encoder_mask)
        y = self.embed(inputs["decoder_token_ids"], training)
        for block in self.decoder_blocks:
            y = block(y, x, training=training, self_mask=decoder_mask, cross_mask=encoder_mask)
        table = ops.convert_to_tensor(self.embedding.embeddings)
        logits = ops.matmul(y, ops.transpose(ops.cast(table, y.dtype)))
        return ops.cast(logits, "float32")

    def embed(self, token_ids, training):
        x = self.embedding(token_ids)
        x = x * ops.cast(self.hidden_dim**0.5, x.dtype)
        positions = ops.convert_to_tensor(self.position_encoding, x.dtype)[: ops.shape(x)[1]]
        return self.dropout(x + positions, training=training)


class KerasBlock(keras.layers.Layer):
    """An encoder block with one attention, a decoder block with two."""

    def __init__(self, config, attentions, **kwargs):
        super().__init__(**kwargs)
        num_heads, hidden_dim = config["num_heads"], config["hidden_dim"]

        def norm():
            return keras.layers.LayerNormalization(
                epsilon=config["layer_norm_epsilon"], dtype=self.dtype_policy
            )

        def attention():
            return keras.layers.MultiHeadAttention(
                num_heads, hidden_dim // num_heads, dtype=self.dtype_policy
            )

        self.self_attention, self.self_norm = attention(), norm()
        self.cross_attention = None
        if attentions == 2:
            self.cross_attention, self.cross_norm = attention(), norm()
        self.intermediate = keras.layers.Dense(
            config["intermediate_dim"], activation="relu", dtype=self.dtype_policy
        )
        self.output_dense = keras.layers.Dense(hidden_dim, dtype=self.dtype_policy)
        self.norm = norm()
        self.dropout = keras.layers.Dropout(config["dropout"], dtype=self.dtype_policy)

    def call(self, x, encoder_sequence=None, training=None, self_mask=None, cross_mask=None):
        causal = self.cross_attention is not None
        update = self.self_attention(
            x, x, attention_mask=self_mask, use_causal_mask=causal, training=training
        )
        x = self.self_norm(x + self.dropout(update, training=training))
        if self.cross_attention is not None:
            update = self.cross_attention(x, encoder_sequence, attention_mask=cross_mask, training=training)
            x = self.cross_norm(x + self.dropout(update, training=training))
        update = self.output_dense(self.intermediate(x))
        return self.norm(x + self.dropout(update, training=training))


def position_table(length, hidden_dim):
    angles = np.arange(length)[:, None] * 10000.0 ** -(np.arange(0, hidden_dim, 2) / hidden_dim)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, hidden_dim).astype("float32")


def make_models(size, policy, batch, **options):
    ours = Seq2SeqTransformer.from_preset(size, VOCABULARY_SIZE, dtype=policy, **options)
    theirs = KerasTransformer(ours.get_config(), dtype=policy)
    theirs(batch)
    # Both create embedding, encoder and decoder, and in a block query, key, value, output, norm, feed-forward, norm.
    theirs.set_weights(ours.get_weights())
    return {"keras_attn": ours, "Keras MHA": theirs}


def make_batch(batch_size, length, padding=0):
    rng = np.random.default_rng(1)
    ids = rng.integers(4, VOCABULARY_SIZE, (3, batch_size, length)).astype("int32")
    if padding:
        ids[:, ::2, -padding:] = 0
    inputs = {"encoder_token_ids": tf.constant(ids[0]), "decoder_token_ids": tf.constant(ids[1])}
    return inputs, tf.constant(ids[2])


def check_equal(size):
    """Logits of real tokens, and the loss with its gradient, in float32 and without dropout."""
    inputs, labels = make_batch(batch_size=3, length=11, padding=4)
    models = make_models(size, "float32", inputs, dropout=0.0)
    real = inputs["decoder_token_ids"].numpy() != 0
    results = []
    for model in models.values():
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            loss = LabelSmoothedCrossentropy(0.1)(labels, logits)
        gradients = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
        results.append(
            [logits.numpy()[real], loss.numpy(), *(tf.convert_to_tensor(x).numpy() for x in gradients)]
        )
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * max(1.0, np.abs(theirs).max()))


def train_step(model):
    loss_function = LabelSmoothedCrossentropy(label_smoothing=0.1)
    optimizer = keras.optimizers.Adam(1e-4)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(inputs, labels):
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(inputs, training=True))
        gradients = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step


def measure(size, policy, batch_size, length, rounds):
    """Median milliseconds of a step of each model."""
    inputs, labels = make_batch(batch_size, length)

    def steps_of(step):
        def run():
            for _ in range(STEPS_PER_ROUND):
                loss = step(inputs, labels)
            assert np.isfinite(loss.numpy())

        return run

    models = make_models(size, policy, inputs)
    candidates = {name: steps_of(train_step(model)) for name, model in models.items()}
    seconds = median_seconds(candidates, rounds)
    return {name: 1000 * value / STEPS_PER_ROUND for name, value in seconds.items()}


def main():
    options = parser(__doc__.splitlines()[0], rounds=20)
    options.add_argument("--size", choices=["tiny", "base"], default="tiny")
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--length", type=int, default=24)
    options.add_argument("--policies", nargs="+", default=["float32", "mixed_bfloat16"])
    options = options.parse_args()
    check_equal(options.size)
    rows = []
    for policy in options.policies:
        times = measure(options.size, policy, options.batch, options.length, options.rounds)
        tokens = [f"{1000 * options.batch * options.length / value:,.0f}" for value in times.values()]
        ours, theirs = times.values()
        rows.append([policy, f"{ours:.1f}", f"{theirs:.1f}", *tokens, f"{theirs / ours:.3f}"])
    print_table(
        f"Training step, {options.size}, batch {options.batch} x {options.length}, V = {VOCABULARY_SIZE}; "
        f"outputs, loss and gradients equal to 1e-4; medians of {options.rounds} rounds of {STEPS_PER_ROUND} steps.",
        ["policy", "keras_attn ms", "Keras MHA ms", "keras_attn tokens/s", "Keras MHA tokens/s", "ratio"],
        rows,
    )


if __name__ == "__main__":
    main()
