"""Copies of models that users wrote: other policies, integers that stay integers, weights that layers compute with."""

import keras
import numpy as np
import pytest

from keras_attn.layers import EncoderBlock, SequenceEmbedding, TokenEmbedding
from keras_attn.layers.layer_slots import global_policy
from keras_attn.models import (
    EncoderTransformer,
    float32_copy,
    load_weights,
    merge_lora,
    quantized_copy,
    save_weights,
)

VOCABULARY, WIDTH, CLASSES = 23, 12, 5
TOKEN_IDS = np.array([[5, 6, 7, 0, 0], [3, 4, 9, 8, 22]], "int32")


def functional(dtype=None):
    """Its mask and its features are casts of the ids, which are operations with a dtype and without a policy."""
    token_ids = keras.Input([None], dtype="int32")
    x = TokenEmbedding(VOCABULARY, WIDTH, dtype=dtype)(token_ids)
    x = EncoderBlock(17, num_heads=2, dtype=dtype)(x, padding_mask=keras.ops.cast(token_ids, "bool"))
    half = keras.ops.cast(keras.ops.cast(token_ids, "float32") / 2, "int32")
    x = x + TokenEmbedding(VOCABULARY, WIDTH, dtype=dtype)(half)
    return keras.Model(token_ids, keras.layers.Dense(CLASSES, dtype=dtype)(x))


class MadeByItsFirstCall(keras.Model):
    """The layers are built when they are called, as in most models that people write."""

    def __init__(self, width=WIDTH, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.embedding = TokenEmbedding(VOCABULARY, width)
        self.block = EncoderBlock(17, num_heads=3)
        self.head = keras.layers.Dense(CLASSES)

    def call(self, inputs):
        return self.head(self.block(self.embedding(inputs["token_ids"]), padding_mask=inputs["is_token"]))

    def get_config(self):
        return {**super().get_config(), "width": self.width}


def called_once(model):
    model({"token_ids": TOKEN_IDS, "is_token": TOKEN_IDS > 0})
    return model


def logits(model, inputs=TOKEN_IDS):
    return keras.ops.convert_to_numpy(keras.ops.cast(model(inputs), "float32"))


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_casts_of_a_functional_model_stay_what_they_are(dtype):
    model = functional(dtype)
    copy = float32_copy(model)
    assert copy.layers[-1].compute_dtype == "float32"
    for own, copied in zip(model.weights, copy.weights, strict=True):
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (own, copied)))
    expected = logits(model)
    if dtype == "float32":
        np.testing.assert_array_equal(logits(copy), expected)
    else:
        np.testing.assert_allclose(logits(copy), expected, atol=5e-2 * abs(expected).max())


@pytest.mark.parametrize("mode", ["int8", "bfloat16"])
def test_a_model_that_its_first_call_makes_is_copied(mode):
    model = called_once(MadeByItsFirstCall())
    inputs = {"token_ids": TOKEN_IDS, "is_token": TOKEN_IDS > 0}
    expected = logits(model, inputs)
    np.testing.assert_array_equal(logits(float32_copy(model), inputs), expected)
    copied = logits(quantized_copy(model, mode), inputs)
    assert (copied != expected).any()
    np.testing.assert_allclose(copied, expected, atol=5e-2 * abs(expected).max())


def test_lora_of_such_a_model_is_merged(rng):
    model = called_once(MadeByItsFirstCall())
    model.head.enable_lora(2)
    model.head.lora_kernel_b.assign(rng.normal(size=(2, CLASSES)))
    inputs = {"token_ids": TOKEN_IDS, "is_token": TOKEN_IDS > 0}
    expected = logits(model, inputs)
    np.testing.assert_allclose(logits(merge_lora(model), inputs), expected, atol=1e-5 * abs(expected).max())


def test_what_normalization_was_adapted_to_is_copied(rng):
    numbers = rng.normal(7, 3, (31, 3)).astype("float32")
    normalization = keras.layers.Normalization()
    normalization.adapt(numbers)
    model = keras.Sequential([keras.Input([3]), normalization, keras.layers.Dense(4)])
    expected = logits(model, numbers)
    np.testing.assert_array_equal(logits(float32_copy(model), numbers), expected)
    np.testing.assert_allclose(
        logits(quantized_copy(model, "int8"), numbers), expected, atol=3e-2 * abs(expected).max()
    )


def test_what_discretization_was_adapted_to_is_copied(rng):
    numbers = rng.normal(size=(31, 3)).astype("float32")
    discretization = keras.layers.Discretization(num_bins=7)
    discretization.adapt(numbers)
    inputs = keras.Input([3])
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.Embedding(7, 5)(discretization(inputs))))
    np.testing.assert_array_equal(logits(float32_copy(model), numbers), logits(model, numbers))


def test_int8_in_a_wrapper_in_which_keras_multiplies_wrongly_is_refused():
    model = keras.Sequential([keras.Input([7, 5]), keras.layers.TimeDistributed(keras.layers.Dense(3))])
    with pytest.raises(ValueError, match="wrongly in int8 inside TimeDistributed"):
        quantized_copy(model, "int8")


class WithoutItsWidth(MadeByItsFirstCall):
    def get_config(self):
        return {name: value for name, value in super().get_config().items() if name != "width"}


def test_a_config_that_does_not_give_the_weights_is_refused():
    model = called_once(WithoutItsWidth(width=9))
    for copy in (float32_copy, lambda model: quantized_copy(model, "int8")):
        with pytest.raises(ValueError, match=r"WithoutItsWidth does not give its weights.*`get_config`"):
            copy(model)


@keras.saving.register_keras_serializable(package="tests")
class FeedForwardOfAUser(keras.layers.Layer):
    """As in tutorials: layers without a dtype, some made in the constructor, some in `build`."""

    def __init__(self, units=7, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.inner = keras.layers.Dense(units, activation="relu")

    def build(self, input_shape):
        self.inner.build(input_shape)
        self.outer = keras.layers.Dense(input_shape[-1])
        self.outer.build((*input_shape[:-1], self.units))
        self.built = True

    def call(self, inputs):
        return self.outer(self.inner(inputs))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def with_a_layer_of_a_user(**options):
    block = EncoderBlock(num_heads=3, feed_forward=FeedForwardOfAUser(**options))
    return EncoderTransformer(SequenceEmbedding(TokenEmbedding(VOCABULARY, WIDTH)), [block])


def policies(model):
    return [layer.dtype_policy.name for layer in model._flatten_layers()]


def came_back(model, folder):
    """The model from a `.keras` file, and from its config and a file of weights."""
    model.save(folder / "model.keras")
    save_weights(model, folder / "model.safetensors")
    twin = type(model).from_config(model.get_config())
    load_weights(twin, folder / "model.safetensors")
    return [keras.saving.load_model(folder / "model.keras"), twin]


def test_copies_are_the_same_under_any_global_policy():
    model = called_once(MadeByItsFirstCall())
    inputs = {"token_ids": TOKEN_IDS, "is_token": TOKEN_IDS > 0}
    expected, of_int8 = logits(model, inputs), logits(quantized_copy(model, "int8"), inputs)
    with global_policy("mixed_bfloat16"):
        copy, in_int8 = float32_copy(model), quantized_copy(model, "int8")
    assert set(policies(copy)) == {"float32"}
    np.testing.assert_array_equal(logits(copy, inputs), expected)
    np.testing.assert_array_equal(logits(in_int8, inputs), of_int8)


@pytest.mark.parametrize(("made", "dtype"), [("mixed_bfloat16", None), ("float32", "mixed_bfloat16")])
def test_a_layer_of_a_user_comes_back_with_its_policies_under_another_global_one(made, dtype, tmp_path):
    """Given a dtype of its own, this layer's layers have the global policy all the same: so they come back."""
    with global_policy(made):
        model = with_a_layer_of_a_user(dtype=dtype)
    expected = logits(model)
    for policy in ("float32", "mixed_bfloat16"):
        with global_policy(policy):
            for loaded in came_back(model, tmp_path):
                assert policies(loaded) == policies(model)
                np.testing.assert_array_equal(logits(loaded), expected)
