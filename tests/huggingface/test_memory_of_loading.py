"""Peak memory of a load: at most 1.2 times the model, though half of it is one tensor. Measured in a new process."""

import json
import math
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attn import huggingface
from keras_attn.huggingface.weight_assignment import assign_in_parts, unwritten_variables
from keras_attn.models import write_weights

V, D, FF = 41_003, 512, 2048
CONFIG = {
    "model_type": "bert",
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "intermediate_size": FF,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}


def shapes():
    """{name: shape} of the checkpoint's tensors."""
    found = {
        "embeddings.word_embeddings.weight": (V, D),
        "embeddings.position_embeddings.weight": (128, D),
        "embeddings.token_type_embeddings.weight": (2, D),
    }
    dense = {f"attention.self.{part}": (D, D) for part in ("query", "key", "value")}
    dense |= {"attention.output.dense": (D, D), "intermediate.dense": (FF, D), "output.dense": (D, FF)}
    norms = ["embeddings.LayerNorm"]
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        found |= {f"{layer}.{name}.weight": shape for name, shape in dense.items()}
        found |= {f"{layer}.{name}.bias": shape[:1] for name, shape in dense.items()}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    return found | {f"{name}.{kind}": (D,) for name in norms for kind in ("weight", "bias")}


def resident_bytes(field):
    """What Linux says of this process: `VmRSS` now, `VmHWM` at the peak. `ru_maxrss` would begin at the parent's peak."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])


def measure(folder):
    """Loads, and prints how far the memory of this process grew at most, in multiples of the model."""
    tf.zeros(3)  # the runtime's own memory
    huggingface.read_report(folder)
    before = resident_bytes("VmRSS")
    model = huggingface.load_model(folder)
    size = sum(math.prod(weight.shape) * np.dtype(weight.dtype).itemsize for weight in model.weights)
    print(json.dumps({"size": size, "peak": (resident_bytes("VmHWM") - before) / size}))


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float16", marks=pytest.mark.slow)])
def test_the_peak_is_at_most_a_fifth_more_than_the_model(dtype, tmp_path):
    rng = np.random.default_rng(3)
    arrays = {name: rng.random(shape, "float32").astype(dtype) for name, shape in shapes().items()}
    write_weights(arrays, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    result = subprocess.run([sys.executable, __file__, tmp_path], capture_output=True, text=True, check=True)
    measured = json.loads(result.stdout.splitlines()[-1])
    assert measured["size"] > 150e6
    assert measured["peak"] < 1.2, measured


def test_variables_made_without_values_take_those_assigned():
    with unwritten_variables():
        layer = keras.layers.Dense(7)
        layer.build((None, 5))
        dropout = keras.layers.Dropout(0.5, seed=11)
    assert [tuple(weight.shape) for weight in layer.weights] == [(5, 7), (7,)]
    layer.set_weights([np.full((5, 7), 2.0), np.arange(7.0)])
    np.testing.assert_array_equal(np.asarray(layer(np.ones((3, 5), "float32")))[2], 10 + np.arange(7.0))
    # The state of a random generator keeps its own value.
    expected = keras.layers.Dropout(0.5, seed=11)
    ones = np.ones((3, 11), "float32")
    np.testing.assert_array_equal(dropout(ones, training=True), expected(ones, training=True))


def test_initialisers_of_floats_compute_nothing():
    class Initializer(keras.initializers.Initializer):
        def __call__(self, shape, dtype=None):
            assert not tf.executing_eagerly()
            return keras.ops.zeros(shape, dtype)

    with unwritten_variables():
        keras.layers.Dense(7, kernel_initializer=Initializer()).build((None, 5))
    with pytest.raises(AssertionError):
        keras.layers.Dense(7, kernel_initializer=Initializer()).build((None, 5))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_is_assigned_in_parts_is_read_without_a_copy(rng, dtype):
    values = rng.normal(size=(1117, 1039)).astype("float32")  # more than a part in each dtype
    variable = keras.Variable(np.zeros(values.shape), dtype=dtype)
    assign_in_parts(variable, values)
    expected = values.astype(variable.value.numpy().dtype)
    np.testing.assert_array_equal(variable.value.numpy(), expected)
    bits = tf.int32 if dtype == "float32" else tf.int16
    one, other = (np.from_dlpack(tf.bitcast(variable.value.read_value(), bits)) for _ in range(2))
    assert one.ctypes.data == other.ctypes.data
    variable.assign_add(keras.ops.ones_like(variable))  # training goes on as with any variable
    np.testing.assert_array_equal(variable.value.numpy(), expected + expected.dtype.type(1))


if __name__ == "__main__":
    measure(sys.argv[1])
