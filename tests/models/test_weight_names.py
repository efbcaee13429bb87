"""Weights of every kind of Keras model: all of them, each under a name of its own, and back in the right place."""

import functools
import pathlib
import runpy

import keras
import numpy as np
import pytest

from keras_attn.layers import EncoderBlock
from keras_attn.models import load_weights, read_shapes, read_weights, save_weights, write_weights
from keras_attn.models.weight_names import named_weights

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "compose_layers.py"
Dense = keras.layers.Dense


def number(model, start=0):
    """Gives every weight values that no other has, so that a swap shows."""
    for i, weight in enumerate(model.weights, start=start):
        size = int(np.prod(weight.shape))
        weight.assign(np.arange(size, dtype="float32").reshape(weight.shape) / size + 10 * i)
    return model


def values(model):
    return [np.array(weight) for weight in model.weights]


@functools.cache
def example():
    return runpy.run_path(str(EXAMPLE))


def composed():
    return example()["make_functional_model"]()


class Subclassed(keras.Model):
    """Lists, dicts, tuples and layers in layers, most of them without a name."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [EncoderBlock(7, 2, name="block"), EncoderBlock(7, 2, name="block")]
        self.heads = {"a": Dense(6), "b": (Dense(6), [Dense(6)])}
        self.first = self.blocks[0]  # again, by another way

    def build(self, input_shape=None):
        for layer in (*self.blocks, self.heads["a"], self.heads["b"][0], self.heads["b"][1][0]):
            layer.build((None, 5, 6))
        self.scale = self.add_weight(shape=(3,), name="scale")
        self.nameless = self.add_weight(shape=(3,))
        self.built = True

    def call(self, x):
        return self.blocks[1](self.blocks[0](x))


def subclassed():
    model = Subclassed()
    model.build()
    return model


def sequential():
    # Twelve of one kind: "dense_10" comes before "dense_2" in a dictionary.
    return keras.Sequential([keras.Input((6,)), *(Dense(6) for _ in range(12))])


def nested():
    """A layer that two models share, one model twice, and layers of one name in different models."""
    shared = Dense(6)

    def inner(name=None):
        x = keras.Input((6,))
        return keras.Model(x, Dense(6, name="out")(shared(Dense(6)(x))), name=name)

    x = keras.Input((6,))
    one, other = inner(), inner("named")
    y = one(other(one(x)))
    return keras.Model(x, keras.Sequential([Dense(6), Dense(6)])(keras.layers.LayerNormalization()(y)))


def recurrent():
    x = keras.Input((5, 6))
    y = keras.layers.Bidirectional(keras.layers.GRU(3, return_sequences=True))(x)
    cells = keras.layers.RNN([keras.layers.LSTMCell(6), keras.layers.LSTMCell(6)], return_sequences=True)
    y = keras.layers.BatchNormalization()(cells(y))
    return keras.Model(x, keras.layers.TimeDistributed(Dense(6))(y))


def built_before():
    """The parts are built before the model, so that their weights' paths lack its name."""
    layers = [Dense(6), Dense(6)]
    for layer in layers:
        layer.build((None, 6))
    return keras.Sequential([keras.Input((6,)), *layers])


class Hidden(keras.layers.Layer):
    """A layer whose weights belong to layers that it keeps where nobody looks."""

    def __init__(self):
        super().__init__()
        self.find = (lambda layers: lambda: layers)([Dense(6), Dense(6)])

    def build(self, input_shape):
        for layer in self.find():
            layer.build(input_shape)

    @property
    def weights(self):
        return [weight for layer in self.find() for weight in layer.weights]


class WithHidden(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.seen = Hidden(), Dense(6)
        self.hidden.build((None, 6))
        self.seen.build((None, 6))
        self.built = True

    @property
    def weights(self):
        return self.hidden.weights + self.seen.weights


MAKERS = [composed, subclassed, sequential, nested, recurrent, built_before, WithHidden]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_every_weight_is_written_once_and_comes_back_to_its_place(tmp_path, make):
    model, path = number(make()), tmp_path / "model.safetensors"
    names = named_weights(model)
    assert len(names) == len(model.weights) == len({id(weight) for weight in names.values()})
    save_weights(model, path)
    assert read_shapes(path) == {name: tuple(weight.shape) for name, weight in names.items()}
    assert all(np.array_equal(array, np.array(names[name])) for name, array in read_weights(path).items())
    expected = values(model)
    number(model, start=1)
    load_weights(model, path)
    assert all(map(np.array_equal, values(model), expected))


# Without the one of the example, which takes long to make: it is a functional model as the nested one is.
@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", MAKERS[1:], ids=lambda make: make.__name__)
def test_fresh_models_of_one_class_exchange_weights(tmp_path, make):
    # The layers of the second have other names than those of the first.
    model, other = number(make()), number(make(), start=1)
    save_weights(model, tmp_path / "model.safetensors")
    load_weights(other, tmp_path / "model.safetensors")
    assert all(map(np.array_equal, values(other), values(model)))


@pytest.mark.parametrize("make", [sequential, recurrent, built_before], ids=lambda make: make.__name__)
def test_a_model_and_its_twin_from_a_config_exchange_weights(tmp_path, make):
    model = number(make())
    twin = number(keras.models.clone_model(model), start=1)
    save_weights(model, tmp_path / "model.safetensors")
    load_weights(twin, tmp_path / "model.safetensors")
    assert all(map(np.array_equal, values(twin), values(model)))


def test_names_say_where_a_weight_is():
    names = list(named_weights(subclassed()))
    assert names[0] == "scale"
    assert "block/self_attention/query/kernel" in names
    assert "block_1/self_attention/query/kernel" in names
    x = keras.Input((6,))
    inner = keras.Model(x, Dense(6, name="out")(x), name="inner")
    outer = keras.Model(x, Dense(6, name="out")(inner(x)), name="outer")
    assert list(named_weights(outer)) == ["inner/out/kernel", "inner/out/bias", "out/kernel", "out/bias"]


def test_a_name_that_was_given_is_not_taken_for_one_of_keras(tmp_path):
    def make(name):
        return keras.Sequential([keras.Input((6,)), Dense(6, name=name), keras.layers.Identity(), Dense(6)])

    save_weights(make("first"), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"Missing: .*second/kernel.*Not in the model: .*first/kernel"):
        load_weights(make("second"), tmp_path / "model.safetensors")
    # A layer of another class that is called as Keras would call this one.
    embedding = keras.layers.Embedding(6, 6, name="dense_1")
    model = keras.Sequential([keras.Input((5,)), embedding, Dense(6)])
    arrays = {
        "dense_1/embeddings": np.ones((6, 6)),
        "dense/kernel": np.zeros((6, 6)),
        "dense/bias": np.ones(6),
    }
    write_weights(arrays, tmp_path / "model.safetensors")
    load_weights(model, tmp_path / "model.safetensors")
    assert [float(np.mean(x)) for x in values(model)] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("change", ["one_more", "one_less", "another_shape", "another_class"])
def test_ranks_that_do_not_fit_are_refused_with_both_lists(tmp_path, change):
    sizes = {"one_more": [6] * 4, "one_less": [6] * 2, "another_shape": [6, 5, 6]}.get(change, [6] * 3)
    other = keras.Sequential([keras.Input((6,)), *(Dense(size) for size in sizes)])
    if change == "another_class":
        other = keras.Sequential(
            [keras.Input((6,)), Dense(6), keras.layers.EinsumDense("ab,bc->ac", 6), Dense(6)]
        )
    save_weights(number(other), tmp_path / "model.safetensors")
    model = number(keras.Sequential([keras.Input((6,)), Dense(6), Dense(6), Dense(6)]))
    before = values(model)
    message = (
        "with shape"
        if change == "another_shape"
        else r"Missing: dense.*/.*Not in the model: (dense|einsum).*/"
    )
    with pytest.raises(ValueError, match=message):
        load_weights(model, tmp_path / "model.safetensors")
    assert all(map(np.array_equal, values(model), before))


def test_a_model_without_weights_yet_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match=r"has no weights yet\. Call it once"):
        save_weights(Subclassed(), tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())
