"""Habits of calling, saving and copying: every path gives the answer of a plain eager call."""

import copy
import threading

import keras
import numpy as np
import pytest
from habits import BACKEND, both, everything, habit, reads_ids
from helpers_layers import compiled
from keras import ops
from mask_habits import assert_same_tokens, has_real_tokens
from things import LENGTHS, T, as_array, assert_close

from keras_attn.models import RNNSeq2Seq, load_weights, read_weights, save_weights


def has_batch(thing):
    return not thing.without_batch


def has_a_functional_model(thing):
    """Positions written down as an array are no part of a functional model that is saved."""
    return not thing.without_batch and "Axial" not in thing.name


def inputs_of(batch):
    return {name: array for name, array in batch.items() if name != "mask"}


def unmasked(thing):
    """(what was made, its inputs, its answer without a mask, a functional model of it)."""
    made, batch = thing.made(), inputs_of(thing.batch())
    return made, batch, thing.answer(made, batch), thing.functional(made)


@habit(has_batch)
def a_functional_model(thing, folder):
    _, batch, expected, model = unmasked(thing)
    assert_close(as_array(model(batch)), expected)


@habit(has_real_tokens)
def a_functional_model_with_a_mask(thing, folder):
    made, batch = thing.made(), thing.batch()
    model = thing.functional(made, with_mask=True)
    inputs = batch if thing.takes_mask else inputs_of(batch)
    assert_same_tokens(thing, (as_array(model(inputs)), batch), (thing.answer(made, batch), batch))


@habit(has_batch, seconds=1.0)
def predict_in_batches(thing, folder):
    """Batches of two rows, the last of one; and `predict_on_batch`."""
    _, batch, expected, model = unmasked(thing)
    assert_close(as_array(model.predict(batch, batch_size=2, verbose=0)), expected)
    assert_close(as_array(model.predict_on_batch(batch)), expected)


@habit(everything, seconds=0.8)
def a_compiled_function(thing, folder):
    made, batch = thing.made(), inputs_of(thing.batch())
    expected = thing.answer(made, batch)
    tensors = {name: ops.convert_to_tensor(array) for name, array in batch.items()}
    for jit in (False, True) if BACKEND == "tensorflow" else (True,):
        assert_close(as_array(compiled(lambda x: thing.call(made, **x), jit=jit)(tensors)), expected)


@habit(has_real_tokens, backends=("tensorflow",), seconds=0.8)
def a_graph_of_unknown_sizes(thing, folder):
    """B and T unknown, also their number of axes of the mask: one trace for several lengths."""
    import tensorflow as tf

    made, traces = thing.made(), []
    names = [name for name in thing.batch() if name != "mask" or thing.takes_mask]
    first = thing.batch()
    specs = {
        name: tf.TensorSpec([None, None, *first[name].shape[2:]], first[name].dtype, name=name)
        for name in names
    }

    @tf.function(input_signature=[specs], autograph=False)
    def call(inputs):
        traces.append(1)
        output = thing.call(made, **inputs)
        return output[0] if isinstance(output, (tuple, list)) else output

    for lengths, length in ((LENGTHS, T), ((3, 1), 5), ((7,), 11)):
        batch = thing.batch(lengths, length)
        output = as_array(call({name: tf.constant(batch[name]) for name in names}))
        assert_same_tokens(thing, (output, batch), (thing.answer(made, batch), batch))
    assert len(traces) == 1


@habit(has_batch)
def an_empty_batch(thing, folder):
    made, batch = thing.made(), inputs_of(thing.batch())
    expected = thing.answer(made, batch)
    empty = {name: array[:0] for name, array in batch.items()}
    assert thing.answer(made, empty).shape == (0, *expected.shape[1:])


@habit(has_batch)
def rows_in_another_order(thing, folder):
    made, batch = thing.made(), thing.batch()
    order = np.array([2, 0, 1])
    expected = thing.answer(made, batch)[order]
    assert_close(thing.answer(made, {name: array[order] for name, array in batch.items()}), expected)


@habit(everything)
def called_twice_with_something_between(thing, folder):
    """Nothing of a call stays: other sizes, a mask or `training` between change nothing, to the bit."""
    made, batch = thing.made(), inputs_of(thing.batch())
    expected = thing.answer(made, batch)
    thing.answer(made, thing.batch())
    if thing.reads in ("ids", "vectors"):
        thing.answer(made, thing.batch((3, 1), 5))
    np.testing.assert_array_equal(thing.answer(made, batch), expected)


@habit(everything, seconds=0.5)
def two_threads(thing, folder):
    made = thing.made()
    batches = [inputs_of(thing.batch(seed=seed)) for seed in range(2)]
    expected = [thing.answer(made, batch) for batch in batches]
    found = {}

    def work(number):
        found[number] = [thing.answer(made, batches[number]) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, of_batch in enumerate(expected):
        for answer in found[number]:
            assert_close(answer, of_batch, 1e-6)


# --- saved and copied ---


@habit(has_a_functional_model, seconds=0.8)
def a_keras_file(thing, folder):
    _, batch, expected, model = unmasked(thing)
    model.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    assert_close(as_array(loaded(batch)), expected, 1e-6)


@habit(lambda thing: thing.is_model, seconds=0.8)
def a_keras_file_of_the_model(thing, folder):
    made, batch = thing.made(), inputs_of(thing.batch())
    made.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    assert_close(thing.answer(loaded, batch), thing.answer(made, batch), 1e-6)


@habit(has_a_functional_model, seconds=0.8)
def weight_files(thing, folder):
    """Keras' and ours, into a model of other weights."""
    made, batch, expected, model = unmasked(thing)
    other = thing.functional(thing.made(seed=8))
    model.save_weights(folder / "it.weights.h5")
    other.load_weights(folder / "it.weights.h5")
    assert_close(as_array(other(batch)), expected, 1e-6)
    if not made.weights:
        return
    other = thing.functional(thing.made(seed=8))
    save_weights(model, folder / "it.safetensors")
    load_weights(other, folder / "it.safetensors")
    assert_close(as_array(other(batch)), expected, 1e-6)
    assert len(read_weights(folder / "it.safetensors")) == len(model.weights)


@habit(has_a_functional_model, seconds=0.6)
def clone_model(thing, folder):
    _, batch, expected, model = unmasked(thing)
    clone = keras.models.clone_model(model)
    if model.weights:
        clone.set_weights(model.get_weights())
    assert_close(as_array(clone(batch)), expected, 1e-6)
    assert not {id(w) for w in clone.weights} & {id(w) for w in model.weights}


@habit(everything)
def from_its_configuration(thing, folder):
    made, batch = thing.made(), inputs_of(thing.batch())
    again = type(made).from_config(made.get_config())
    thing.answer(again, batch)
    again.set_weights(made.get_weights())
    assert_close(thing.answer(again, batch), thing.answer(made, batch), 1e-6)


@habit(everything)
def a_deep_copy(thing, folder):
    """It answers as the first does, and changes alone."""
    made, batch = thing.made(), inputs_of(thing.batch())
    expected = thing.answer(made, batch)
    other = copy.deepcopy(made)
    assert_close(thing.answer(other, batch), expected, 1e-6)
    for weight in other.weights:
        weight.assign(np.zeros(weight.shape))
    assert_close(thing.answer(made, batch), expected, 1e-6)


@habit(has_a_functional_model, backends=("tensorflow",), seconds=2.5)
def a_saved_model(thing, folder):
    """Exported with Keras, loaded with TensorFlow alone, at two sizes."""
    import tensorflow as tf

    made, _, _, model = unmasked(thing)
    model.export(folder / "it", format="tf_saved_model", verbose=False)
    served = tf.saved_model.load(str(folder / "it")).signatures["serving_default"]
    for lengths, length in ((LENGTHS, T), ((5, 2), 5)):
        batch = inputs_of(thing.batch(lengths, length))
        output = next(iter(served(**{name: tf.constant(array) for name, array in batch.items()}).values()))
        assert_close(as_array(output), thing.answer(made, batch))


@habit(both(reads_ids, lambda thing: thing.is_model), seconds=1.5)
def inside_another_model(thing, folder):
    """A part of a functional model that is saved, cloned and loaded, beside a layer of Keras'."""
    made, batch = thing.made(), inputs_of(thing.batch())
    inner = thing.functional(made)
    outputs = keras.layers.Dense(5, kernel_initializer="ones")(inner.output)
    model = keras.Model(inner.inputs, outputs)
    arrays = [batch[tensor.name] for tensor in inner.inputs]  # Keras sorts a dict of inputs by name
    expected = as_array(model(arrays))
    model.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    assert_close(as_array(loaded(arrays)), expected, 1e-6)


@habit(both(reads_ids, lambda thing: thing.is_model), backends=("tensorflow",), seconds=6.0)
def an_onnx_and_a_litert_model(thing, folder):
    """Graphs for other engines, at sizes other than those of the export. Neither has a form for the loops of Keras' RNNs."""
    import ai_edge_litert.interpreter
    import onnxruntime
    import tensorflow as tf

    from keras_attn.export import export_litert, export_onnx

    made = thing.made()
    batch = inputs_of(thing.batch((7, 7), 7))
    specs = [tf.TensorSpec([None, None], "int32", name=name) for name in batch]
    functions = {"it": (lambda *arrays: {"y": thing.call(made, **dict(zip(batch, arrays)))}, specs)}
    expected = thing.answer(made, batch)
    if isinstance(made, RNNSeq2Seq):
        with pytest.raises(ValueError, match="ONNX cannot express 'it'"):
            export_onnx(folder / "onnx", functions, {})
        with pytest.raises(Exception, match="TensorListReserve"):
            export_litert(folder / "litert", functions, [made], {})
        return
    export_onnx(folder / "onnx", functions, {})
    session = onnxruntime.InferenceSession(str(folder / "onnx" / "it.onnx"))
    names = [part.name for part in session.get_inputs()]
    found = session.run(None, {name: batch[name.partition(":")[0]] for name in names})[0]
    assert_close(np.asarray(found, "float32"), expected, 1e-4)
    export_litert(folder / "litert", functions, [made], {})
    interpreter = ai_edge_litert.interpreter.Interpreter(str(folder / "litert" / "model.tflite"))
    found = interpreter.get_signature_runner("it")(**batch)["y"]
    assert_close(np.asarray(found, "float32"), expected, 1e-4)
