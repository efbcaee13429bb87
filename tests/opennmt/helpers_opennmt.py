"""Folders as OpenNMT-tf leaves them, with random weights, and its Transformer in NumPy float64, from its source.

OpenNMT-tf needs TensorFlow before 2.14, so it cannot run beside this library. The names of variables, the formulas and the
defaults are those of its version 2.32: opennmt/layers/transformer.py, position.py and common.py, opennmt/encoders and
opennmt/decoders/self_attention_*.py, opennmt/inputters/text_inputter.py, opennmt/models/sequence_to_sequence.py.
"""

import dataclasses

import numpy as np
import tensorflow as tf

SPECIAL = ["<blank>", "<s>", "</s>"]
EPSILON = 1e-3  # tf.keras.layers.LayerNormalization


@dataclasses.dataclass(frozen=True)
class Form:
    """Sizes and options of a Transformer of OpenNMT-tf."""

    source_vocabulary: tuple
    target_vocabulary: tuple
    num_layers: tuple = (2, 3)
    num_units: int = 14
    num_heads: int = 2
    ffn_inner_dim: int = 11
    pre_norm: bool = True
    mha_bias: bool = True
    output_layer_bias: bool = True
    share: str = "none"  # none, input, target, all
    max_relative: int = 0


class Node(tf.Module):
    """An object with attributes, as a checkpoint sees a layer."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class Weights:
    """Variables of one model, random, biases and norms too."""

    def __init__(self, form, seed=0):
        self.form = form
        self._random = np.random.default_rng(seed)
        sizes = [len(words) + 1 for words in (form.source_vocabulary, form.target_vocabulary)]
        source = self.variable(sizes[0], form.num_units)
        target = source if form.share in ("input", "all") else self.variable(sizes[1], form.num_units)
        inputters = Node(features_inputter=Node(embedding=source), labels_inputter=Node(embedding=target))
        tied = form.share in ("target", "all")
        output = {"kernel": target if tied else self.variable(form.num_units, sizes[1])}
        if tied:
            output["weight"] = target
        if form.output_layer_bias:
            output["bias"] = self.variable(sizes[1])
        encoder = {"layers": [self.encoder_layer() for _ in range(form.num_layers[0])]}
        decoder = {"layers": [self.decoder_layer() for _ in range(form.num_layers[1])]}
        if form.pre_norm:
            encoder["layer_norm"], decoder["layer_norm"] = self.norm(), self.norm()
        self.model = Node(
            examples_inputter=inputters,
            encoder=Node(**encoder),
            decoder=Node(output_layer=Node(**output), **decoder),
        )

    def variable(self, *shape):
        return tf.Variable(self._random.normal(0, 0.5, shape).astype("float32"))

    def norm(self):
        return Node(gamma=self.variable(self.form.num_units), beta=self.variable(self.form.num_units))

    def dense(self, inputs, outputs, has_bias=True):
        bias = {"bias": self.variable(outputs)} if has_bias else {}
        return Node(kernel=self.variable(inputs, outputs), **bias)

    def wrapped(self, layer):
        return Node(
            layer=layer, **{"input_layer_norm" if self.form.pre_norm else "output_layer_norm": self.norm()}
        )

    def attention(self, is_relative=False):
        width = self.form.num_units
        names = ("linear_queries", "linear_keys", "linear_values", "linear_output")
        parts = {name: self.dense(width, width, self.form.mha_bias) for name in names}
        if is_relative and self.form.max_relative:
            shape = 2 * self.form.max_relative + 1, width // self.form.num_heads
            parts |= {f"relative_position_{name}": self.variable(*shape) for name in ("keys", "values")}
        return self.wrapped(Node(**parts))

    def ffn(self):
        width, wide = self.form.num_units, self.form.ffn_inner_dim
        return self.wrapped(Node(inner=self.dense(width, wide), outer=self.dense(wide, width)))

    def encoder_layer(self):
        return Node(self_attention=self.attention(True), ffn=self.ffn())

    def decoder_layer(self):
        return Node(self_attention=self.attention(True), attention=[self.attention()], ffn=self.ffn())

    def save(self, prefix):
        """Writes a checkpoint with an optimizer and its slots, as a training does."""
        optimizer = tf.compat.v1.train.AdamOptimizer(0.0)
        optimizer.apply_gradients([(tf.zeros_like(v), v) for v in self.model.trainable_variables])
        return tf.train.Checkpoint(model=self.model, optimizer=optimizer).write(str(prefix))


def write_folder(folder, form, seed=0, more_yaml="", description=None, step=5000):
    """Writes checkpoint, vocabularies, data.yml and model_description.py; returns the `Weights`."""
    folder.mkdir(exist_ok=True)
    weights = Weights(form, seed)
    weights.save(folder / f"ckpt-{step}")
    # OpenNMT-tf writes the path of the machine that trained.
    (folder / "checkpoint").write_text(
        f'model_checkpoint_path: "/data/run/ckpt-{step}"\nall_model_checkpoint_paths: "/data/run/ckpt-{step}"\n'
    )
    for side in ("source", "target"):
        words = getattr(form, f"{side}_vocabulary")
        (folder / f"{side}.vocab").write_text("".join(f"{word}\n" for word in words), "utf-8")
    (folder / "data.yml").write_text(
        "model_dir: /data/run\n"
        "data:\n  train_features_file: train.en\n"
        "  source_vocabulary: /data/vocab/source.vocab\n  target_vocabulary: vocab/target.vocab\n" + more_yaml
    )
    if description is None:
        description = (
            "import opennmt\n\nraise SystemExit('this was run')\n"
            "model = lambda: opennmt.models.Transformer(\n"
            f"    num_units={form.num_units}, num_heads={form.num_heads}, ffn_activation=tf.nn.relu)\n"
        )
    (folder / "model_description.py").write_text(description)
    return weights


def logits(weights, source, source_lengths, target):
    """What SequenceToSequence gives for ids (B, S) with lengths and decoder inputs (B, T), in float64."""
    model, form = weights.model, weights.form
    mask = np.arange(source.shape[1]) < np.asarray(source_lengths)[:, None]
    encoder_sequence = run_stack(
        form, model.encoder, embedded(form, model.examples_inputter.features_inputter, source), mask[:, None]
    )
    causal = np.tril(np.ones((target.shape[1],) * 2, bool))[None]
    x = embedded(form, model.examples_inputter.labels_inputter, target)
    x = run_stack(form, model.decoder, x, causal, encoder_sequence, mask[:, None])
    output = model.decoder.output_layer
    kernel = f64(output.kernel)
    result = x @ (kernel.T if hasattr(output, "weight") else kernel)
    return result + f64(output.bias) if hasattr(output, "bias") else result


def f64(variable):
    return variable.numpy().astype("float64")


def embedded(form, inputter, ids):
    x = f64(inputter.embedding)[ids] * form.num_units**0.5
    depth = form.num_units
    positions = np.arange(ids.shape[1]) + 1.0
    increment = np.log(10000) / (depth / 2 - 1)
    times = positions[:, None] * np.exp(np.arange(depth // 2) * -increment)
    return x + np.concatenate([np.sin(times), np.cos(times)], axis=-1)


def run_stack(form, side, x, mask, encoder_sequence=None, encoder_mask=None):
    for layer in side.layers:
        x = residual(form, layer.self_attention, x, lambda a, y: attend(form, a, y, y, mask))
        if encoder_sequence is not None:
            x = residual(
                form, layer.attention[0], x, lambda a, y: attend(form, a, y, encoder_sequence, encoder_mask)
            )
        x = residual(form, layer.ffn, x, feed_forward)
    return normalized(side.layer_norm, x) if form.pre_norm else x


def residual(form, wrapper, x, function):
    if form.pre_norm:
        return function(wrapper.layer, normalized(wrapper.input_layer_norm, x)) + x
    return normalized(wrapper.output_layer_norm, function(wrapper.layer, x) + x)


def normalized(norm, x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * f64(norm.gamma) + f64(
        norm.beta
    )


def linear(dense, x):
    y = x @ f64(dense.kernel)
    return y + f64(dense.bias) if hasattr(dense, "bias") else y


def feed_forward(ffn, x):
    return linear(ffn.outer, np.maximum(linear(ffn.inner, x), 0))


def attend(form, attention, x, encoder_sequence, mask):
    def heads(y):
        return y.reshape(*y.shape[:2], form.num_heads, -1).transpose(0, 2, 1, 3)

    queries = heads(linear(attention.linear_queries, x)) * (form.num_units // form.num_heads) ** -0.5
    keys, values = (
        heads(linear(attention.linear_keys, encoder_sequence)),
        heads(linear(attention.linear_values, encoder_sequence)),
    )
    scores = np.where(mask[:, None], queries @ keys.swapaxes(-1, -2), -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    context = (scores / scores.sum(-1, keepdims=True)) @ values
    return linear(attention.linear_output, context.transpose(0, 2, 1, 3).reshape(x.shape))


def greedy(weights, source, most):
    """The ids of one greedy answer, without END, where blanks and START are never chosen."""
    found = [1]
    while len(found) <= most:
        row = logits(weights, np.array([source]), [len(source)], np.array([found]))[0, -1]
        row[[0, 1]] = -np.inf
        best = int(row.argmax())
        if best == 2:
            break
        found.append(best)
    return found[1:]
