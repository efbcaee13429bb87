"""Several cross-attentions over one encoder output: what stands in its padding, and how much padding there is, must
change nothing in any of them. Keras' layer masks the padding in the first alone."""

import functools

import keras
import numpy as np
import pytest
from helpers_layers import BACKEND, assert_equal, compiled, flat_arrays, tensors
from keras import ops

from keras_attn.layers import DecoderBlock, MultiHeadAttention
from keras_attn.ops import padding_mask

B, T, D = 3, 5, 12
TOKEN_IDS = np.array([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 0, 0, 0, 0], [8, 0, 0, 0, 0, 0, 0]], "int32")


class Paint(keras.layers.Layer):
    """Writes over a sequence, and keeps its implicit mask."""

    def __init__(self):
        super().__init__(name="painted")
        self.supports_masking = True

    def call(self, sequence, paint):
        return sequence + paint


class Stack:
    """`num_layers` cross-attentions, each with its residual connection."""

    def __init__(self, kind, implicit, num_layers=3):
        self.implicit = implicit
        self.embedding = keras.layers.Embedding(11, D, mask_zero=implicit)
        self.paint = Paint()
        self.is_block = kind == "block"
        make = {
            "block": lambda: DecoderBlock(intermediate_dim=7, num_heads=3),
            "attention": lambda: MultiHeadAttention(num_heads=2, key_dim=5),
            "keras": lambda: keras.layers.MultiHeadAttention(num_heads=2, key_dim=5),
        }[kind]
        self.layers = [make() for _ in range(num_layers)]
        norms = [] if self.is_block else range(num_layers)
        self.norms = [keras.layers.LayerNormalization() for _ in norms]
        self.adds = [keras.layers.Add() for _ in norms]

    def __call__(self, inputs):
        """The output of each layer, the last one last."""
        x = inputs["query"]
        encoder_sequence = self.paint(self.embedding(inputs["token_ids"]), inputs["paint"])
        mask = None if self.implicit else padding_mask(inputs["token_ids"])
        outputs = []
        for i, layer in enumerate(self.layers):
            if self.is_block:
                x = layer(x, encoder_sequence, encoder_padding_mask=mask)
            else:
                x = self.norms[i](self.adds[i]([x, layer(x, encoder_sequence, value_mask=mask)]))
            outputs.append(x)
        return outputs


class Subclassed(keras.Model):
    def __init__(self, stack):
        super().__init__()
        self.stack = stack
        self.sub_layers = [stack.embedding, stack.paint, *stack.layers, *stack.adds, *stack.norms]

    def call(self, inputs):
        return self.stack(inputs)


def make_model(style, kind, implicit):
    stack = Stack(kind, implicit)
    if style == "subclassed":
        model = Subclassed(stack)
        model(tensors(variants()[0]))
        return model
    inputs = {
        "query": keras.Input((None, D), name="query"),
        "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
        "paint": keras.Input((None, D), name="paint"),
    }
    return keras.Model(inputs, stack(inputs))


def variants():
    """The same sentences: plain, with other numbers in the padding, with NaN there, and with more padding."""
    rng = np.random.default_rng(19)
    query = rng.normal(size=(B, T, D)).astype("float32")
    pads = (TOKEN_IDS == 0)[..., None]
    paints = [0.0, rng.normal(0, 3, (*TOKEN_IDS.shape, D)), np.nan]
    paints = [
        np.broadcast_to(np.where(pads, paint, 0), (*TOKEN_IDS.shape, D)).astype("float32") for paint in paints
    ]
    cases = [{"query": query, "token_ids": TOKEN_IDS, "paint": paint} for paint in paints]
    longer = np.pad(paints[1], [(0, 0), (0, 4), (0, 0)], constant_values=2.5)
    return [*cases, {"query": query, "token_ids": np.pad(TOKEN_IDS, [(0, 0), (0, 4)]), "paint": longer}]


def assert_padding_does_not_matter(answers):
    plain, *others, longer = answers
    assert np.isfinite(np.concatenate(plain)).all()
    for other in others:
        assert_equal(other, plain, 0)
    assert_equal(longer, plain)


# Each style meets both kinds and both masks.
STACKS = [
    ("functional", "attention", True),
    ("functional", "block", False),
    ("subclassed", "attention", False),
    ("subclassed", "block", True),
]


def name(stack):
    style, kind, implicit = stack
    return f"{style}-{kind}-{'implicit' if implicit else 'explicit'}"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stack", STACKS, ids=name)
def test_padding_does_not_matter(stack):
    model = make_model(*stack)
    assert_padding_does_not_matter([flat_arrays(model(tensors(case))) for case in variants()])


@pytest.mark.extended
@pytest.mark.parametrize("stack", STACKS[::3], ids=name)
def test_padding_does_not_matter_compiled(stack):
    model = make_model(*stack)
    function = compiled(model)
    answers = [flat_arrays(function(tensors(case))) for case in variants()]
    assert_padding_does_not_matter(answers)
    assert_equal(answers[0], flat_arrays(model(tensors(variants()[0]))))


if BACKEND == "tensorflow":

    @pytest.mark.extended
    @pytest.mark.parametrize("stack", STACKS[::3], ids=name)
    def test_padding_does_not_matter_exported(stack, tmp_path, child):
        model = make_model(*stack)
        cases = variants()
        for i, case in enumerate(cases):
            np.savez(tmp_path / f"inputs_{i}.npz", **case)
        signature = {
            "query": keras.InputSpec("float32", (None, None, D), name="query"),
            "token_ids": keras.InputSpec("int32", (None, None), name="token_ids"),
            "paint": keras.InputSpec("float32", (None, None, D), name="paint"),
        }
        model.export(
            tmp_path / "saved_model", format="tf_saved_model", verbose=False, input_signature=[signature]
        )
        answers = child("saved_model", tmp_path, len(cases))
        assert_padding_does_not_matter(answers)
        assert_equal(answers[0], flat_arrays(model(tensors(cases[0]))))


def test_removing_the_mask_matters():
    """The test above could otherwise pass because nothing is ever attended to."""
    for kind in ("attention", "block"):
        stack = Stack(kind, implicit=False, num_layers=2)
        plain, painted = (stack(tensors(case)) for case in variants()[:2])
        assert_equal(flat_arrays(painted), flat_arrays(plain), 0)
        stack.embedding.mask_zero, stack.implicit = False, True  # neither mask is left
        plain, painted = (flat_arrays(stack(tensors(case))) for case in variants()[:2])
        assert not np.allclose(painted[0], plain[0], atol=1e-2)


@pytest.mark.parametrize("style", ["functional", "subclassed"])
def test_keras_masks_padding_in_the_first_layer_alone(style):
    model = make_model(style, "keras", implicit=True)
    plain, painted = (flat_arrays(model(tensors(case))) for case in variants()[:2])
    assert_equal(painted[:1], plain[:1])
    for one, other in zip(painted[1:], plain[1:]):
        # Rows with padding differ, the one without does not.
        assert np.abs(one - other)[1:].max() > 1e-2
        assert_equal([one[0]], [other[0]])


@pytest.mark.extended
def test_keras_obeys_an_explicit_mask_in_every_layer():
    model = make_model("functional", "keras", implicit=False)
    plain, painted = (flat_arrays(model(tensors(case))) for case in variants()[:2])
    assert_equal(painted, plain)


def test_every_layer_leaves_the_mask_on_the_encoder_output():
    for make in (functools.partial(MultiHeadAttention, 2, 5), functools.partial(DecoderBlock, 7, 3)):
        encoder_sequence = keras.layers.Embedding(11, D, mask_zero=True)(TOKEN_IDS)
        for _ in range(3):
            make()(ops.ones((B, T, D)), encoder_sequence)
            np.testing.assert_array_equal(encoder_sequence._keras_mask, TOKEN_IDS != 0)
