"""Small models with nothing symmetric about them, and a new process to reload them in."""

import dataclasses
import functools

import keras
import numpy as np

from keras_attn.models import Seq2SeqTransformer, Sizes

PAD, START, END = 0, 2, 3
B, S, T, V, TARGET_V = 3, 7, 5, 13, 11

SIZES = {
    "vocabulary_size": V,
    # Two are the fewest that tell whether all layers of a side see its mask.
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "hidden_dim": 14,
    "num_heads": 2,
    "intermediate_dim": 17,
    "max_sequence_length": 41,
}
# Between them, every option of the model.
VARIANTS = {
    "post_norm": {},
    "pre_norm": {"normalize_first": True, "attention_dropout": 0.1},
    "two_vocabularies": {"target_vocabulary_size": TARGET_V},
    "untied_gated_rms_learned": {
        "target_vocabulary_size": TARGET_V,
        "tie_output": False,
        "normalize_first": True,
        "normalization": "rms_norm",
        "gated": True,
        "activation": "silu",
        "position_encoding": "learned",
    },
}


def sizes_of(variant="post_norm", **options):
    """The arguments of `from_sizes` for a variant, defaults included."""
    defaults = {"target_vocabulary_size": None, "tie_output": True}
    defaults |= {
        field.name: field.default
        for field in dataclasses.fields(Sizes)
        if field.default is not dataclasses.MISSING
    }
    return {**defaults, **SIZES, **VARIANTS[variant], **options}


def make_model(variant="post_norm", seed=5, **options):
    """A model whose weights are all random, and the seed's alone."""
    return randomize(Seq2SeqTransformer.from_sizes(**sizes_of(variant, **options)), seed)


def randomize(model, seed, spread=0.4):
    """Draws every weight anew: biases of 0 and scales of 1 hide mistakes."""
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        is_scale = weight.path.endswith(("gamma", "scale"))
        weight.assign((is_scale + rng.normal(size=weight.shape) * spread).astype("float32"))
    return model


_shared_model = functools.cache(make_model)


def shared_model(variant="post_norm", **options):
    """One model for all tests that only call it; whoever changes a weight makes a model of their own."""
    return _shared_model(variant, **options)


def make_batch(seed=7, batch_size=B, source_length=S, target_length=T, pads=True):
    """A batch of ids in which the rows end at different places, the first row at none."""
    rng = np.random.default_rng(seed)
    encoder_token_ids = rng.integers(4, TARGET_V, (batch_size, source_length)).astype("int32")
    decoder_token_ids = rng.integers(4, TARGET_V, (batch_size, target_length)).astype("int32")
    decoder_token_ids[:, 0] = START
    if pads:
        for row in range(1, batch_size):
            encoder_token_ids[row, source_length - row - 1 :] = PAD
            decoder_token_ids[row, target_length - row :] = PAD
    return {"encoder_token_ids": encoder_token_ids, "decoder_token_ids": decoder_token_ids}


def call(model, batch, **options):
    return keras.ops.convert_to_numpy(model(batch, **options))


def compiled(function):
    """`function` in a form that is quick to run: JAX would compile each step of a loop anew."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    return function


def generate(model, encoder_token_ids, **options):
    """`model.generate` with NumPy results: ids, or (ids, scores)."""
    found = compiled(lambda ids: model.generate(ids, START, END, **options))(
        keras.ops.convert_to_tensor(encoder_token_ids)
    )
    if isinstance(found, tuple):
        return tuple(keras.ops.convert_to_numpy(x) for x in found)
    return keras.ops.convert_to_numpy(found)


def assert_close(actual, expected, tolerance=1e-5):
    """Within `tolerance` of the largest magnitude."""
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)


def weight_gradients(model, inputs, loss):
    """{path: gradient} of `loss(outputs)`, a scalar."""
    if keras.backend.backend() == "jax":
        import jax

        fixed = [weight.value for weight in model.non_trainable_variables]

        def value(trainable):
            return loss(model.stateless_call(trainable, fixed, inputs)[0])

        gradients = jax.grad(value)([weight.value for weight in model.trainable_variables])
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss(model(inputs))
        gradients = tape.gradient(value, [weight.value for weight in model.trainable_variables])
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    paths = [weight.path.partition("/")[2] for weight in model.trainable_variables]
    return {path: np.asarray(gradient) for path, gradient in zip(paths, gradients, strict=True)}
