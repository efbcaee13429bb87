"""Weight files: everything or an error that names what is wrong, and nothing half-loaded."""

import json
import resource
import struct

import keras
import ml_dtypes
import numpy as np
import pytest

from keras_attn.models import (
    Seq2SeqTransformer,
    assign_weights,
    average_weights,
    check_sizes,
    load_weights,
    read_metadata,
    read_shapes,
    read_weights,
    save_weights,
    write_weights,
)


def make_model(seed):
    keras.utils.set_random_seed(seed)
    return Seq2SeqTransformer.from_sizes(11, 1, 2, hidden_dim=6, num_heads=2, intermediate_dim=7)


def values(model):
    return [np.array(weight) for weight in model.weights]


def test_a_file_brings_every_weight_bit_for_bit(tmp_path):
    one, other = make_model(1), make_model(2)
    save_weights(one, tmp_path / "model.safetensors")
    load_weights(other, tmp_path / "model.safetensors")
    assert all(np.array_equal(a, b) for a, b in zip(values(one), values(other)))
    assert len(read_weights(tmp_path / "model.safetensors")) == len(one.weights)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", ["missing", "renamed", "reshaped"])
def test_a_file_that_does_not_fit_is_refused_whole(tmp_path, fault):
    model = make_model(1)
    save_weights(model, tmp_path / "model.safetensors")
    arrays = read_weights(tmp_path / "model.safetensors")
    name = "decoder_block_1/cross_attention/value/kernel"
    array = arrays.pop(name)
    if fault == "renamed":
        arrays[f"{name}_1"] = array
    if fault == "reshaped":
        arrays[name] = array[:, :1]
    write_weights({key: value + 1 for key, value in arrays.items()}, tmp_path / "bad.safetensors")
    before = values(model)
    with pytest.raises(ValueError, match=name) as error:
        load_weights(model, tmp_path / "bad.safetensors")
    assert "bad.safetensors" in str(error.value)
    assert all(np.array_equal(a, b) for a, b in zip(before, values(model)))


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no weight file .*nothing\.safetensors"):
        read_weights(tmp_path / "nothing.safetensors")
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(ValueError, match=r"text\.safetensors is damaged"):
        read_weights(tmp_path / "text.safetensors")


def test_a_write_that_fails_leaves_the_older_file(tmp_path, monkeypatch):
    model = make_model(1)
    save_weights(model, tmp_path / "model.safetensors")
    before = (tmp_path / "model.safetensors").read_bytes()

    def full_disk(arrays, path, metadata=None):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full_disk)
    with pytest.raises(
        OSError, match=r"model\.safetensors could not be written: .*No space left.* is untouched"
    ):
        save_weights(make_model(2), tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.extended
def test_the_average_is_the_mean_of_the_files(tmp_path):
    models = [make_model(seed) for seed in (1, 2, 3)]
    paths = [tmp_path / f"{number}.safetensors" for number in range(3)]
    for model, path in zip(models, paths):
        save_weights(model, path)
    target = make_model(4)
    assign_weights(target, average_weights(paths))
    for mean, *parts in zip(values(target), *map(values, models)):
        np.testing.assert_allclose(mean, np.mean(np.stack(parts).astype("float64"), axis=0), rtol=1e-6)
        assert mean.dtype == "float32"


def test_averages_of_nothing_or_of_strangers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one weight file"):
        average_weights([])
    save_weights(make_model(1), tmp_path / "a.safetensors")
    write_weights({"x": np.zeros(3, "float32")}, tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match="same names, shapes and dtypes"):
        average_weights([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])


def test_the_average_of_one_file_is_itself(tmp_path):
    model = make_model(1)
    save_weights(model, tmp_path / "a.safetensors")
    average = average_weights([tmp_path / "a.safetensors"])
    assert all(
        np.array_equal(average[name], array)
        for name, array in read_weights(tmp_path / "a.safetensors").items()
    )


def test_scalars_and_metadata_come_back(tmp_path):
    path = tmp_path / "arrays.safetensors"
    write_weights({"scalar": np.int32(7), "turned": np.arange(6).reshape(2, 3).T}, path, {"where": "here"})
    arrays = read_weights(path)
    assert (arrays["scalar"].shape, int(arrays["scalar"])) == ((), 7)
    np.testing.assert_array_equal(arrays["turned"], [[0, 3], [1, 4], [2, 5]])
    assert read_metadata(path) == {"where": "here"}
    with pytest.raises(FileNotFoundError, match="There is no weight file"):
        read_metadata(tmp_path / "none.safetensors")


def write_raw(path, dtype, content, shape):
    header = json.dumps({"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(content)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + content)


class OneOfEach(keras.Model):
    """A weight of each kind, without the help of a layer."""

    def __init__(self, **dtypes):
        super().__init__()
        dtypes = {"number": "float32", "half": "bfloat16", "code": "int8", "flag": "bool"} | dtypes
        for name, dtype in dtypes.items():
            weight = self.add_weight(
                shape=(2, 3), dtype=dtype, initializer="zeros", trainable=False, name=name
            )
            setattr(self, name, weight)
        self.built = True


ARRAYS = {
    "number": np.arange(6, dtype="float32").reshape(2, 3) / 7,
    "half": (np.arange(6).reshape(2, 3) / 8).astype(ml_dtypes.bfloat16),
    "code": np.arange(-3, 3, dtype="int8").reshape(2, 3),
    "flag": np.array([[True, False, True], [False, False, True]]),
}


def test_every_dtype_comes_back_as_it_was(tmp_path):
    one, other = OneOfEach(), OneOfEach()
    assign_weights(one, ARRAYS)
    save_weights(one, tmp_path / "model.safetensors")
    load_weights(other, tmp_path / "model.safetensors")
    for name, array in ARRAYS.items():
        found = np.array(getattr(other, name))
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
    mean = average_weights([tmp_path / "model.safetensors"] * 3)
    assert all(mean[name].dtype == array.dtype for name, array in ARRAYS.items())
    assert all(np.array_equal(mean[name], array) for name, array in ARRAYS.items())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_floats_of_any_width_are_cast(tmp_path, dtype):
    dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    arrays = {name: (ARRAYS["number"] * 4).astype(dtype) for name in ("number", "half")}
    write_weights(ARRAYS | arrays, tmp_path / "model.safetensors")
    model = OneOfEach()
    load_weights(model, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(np.array(model.number), arrays["number"].astype("float32"))
    np.testing.assert_array_equal(np.array(model.half), arrays["half"].astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("number", ARRAYS["flag"], "number with dtype bool; the model's has dtype float32"),
        ("number", ARRAYS["code"], "number with dtype int8; the model's has dtype float32"),
        ("number", ARRAYS["number"] * np.nan, "number with values that are NaN or infinite in float32"),
        ("half", ARRAYS["half"] - np.inf, "half with values that are NaN or infinite in bfloat16"),
        ("number", np.full((2, 3), 1e300), "number with values that are NaN or infinite in float32"),
        ("code", ARRAYS["number"], "code with dtype float32; the model's has dtype int8"),
        ("code", np.full((2, 3), 300, "int32"), "code with dtype int32; the model's has dtype int8"),
        ("code", ARRAYS["code"].view("uint8"), "code with dtype uint8; the model's has dtype int8"),
        ("code", ARRAYS["flag"], "code with dtype bool; the model's has dtype int8"),
        ("flag", ARRAYS["code"], "flag with dtype int8; the model's has dtype bool"),
    ],
)
def test_a_dtype_or_value_that_does_not_fit_is_refused_before_anything_is_assigned(
    tmp_path, name, array, message
):
    write_weights(ARRAYS | {name: array}, tmp_path / "model.safetensors")
    model = OneOfEach()
    with pytest.raises(ValueError, match=rf"model\.safetensors holds {message}"):
        load_weights(model, tmp_path / "model.safetensors")
    assert not any(np.any(np.array(weight).astype(bool)) for weight in model.weights)


@pytest.mark.parametrize("read", [read_weights, read_shapes, lambda path: average_weights([path, path])])
@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "C64", "F999"])
def test_dtypes_that_numpy_lacks_are_refused(tmp_path, read, dtype):
    path = tmp_path / "model.safetensors"
    write_raw(path, dtype, bytes(48 if dtype == "C64" else 6), [2, 3])
    message = (
        "unknown variant `F999`" if dtype == "F999" else f"holds x with dtype {dtype}. Known: BF16, BOOL"
    )
    with pytest.raises(ValueError, match=message):
        read(path)


def test_a_dtype_that_cannot_be_read_is_not_written(tmp_path):
    for dtype in (ml_dtypes.float8_e4m3fn, "complex64", "U3"):
        with pytest.raises(ValueError, match="x must hold floats, integers or booleans"):
            write_weights({"x": np.ones((2, 3)).astype(dtype)}, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_header_that_is_nested_too_deeply_is_damaged(tmp_path):
    header = b'{"x":' * 100_000
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        read_shapes(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"number": ARRAYS["number"] * np.nan}, r"b\.safetensors holds number with values that are NaN"),
        ({"code": ARRAYS["code"] + np.int8(1)}, "code holds integers, which have no mean, and differs in"),
        ({"number": ARRAYS["code"]}, "same names, shapes and dtypes"),
    ],
)
def test_averages_of_what_has_no_mean_are_refused(tmp_path, changes, message):
    write_weights(ARRAYS, tmp_path / "a.safetensors")
    write_weights(ARRAYS | changes, tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match=message):
        average_weights([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])


SIZES = {
    "hidden_dim": 6,
    "num_heads": 2,
    "intermediate_dim": 7,
    "num_encoder_layers": 1,
    "num_decoder_layers": 2,
}


@pytest.fixture(scope="module")
def right_sizes(tmp_path_factory):
    """Sizes of a model, and a file of its weights."""
    right = {**SIZES, "vocabulary_size": 11, "hidden_dim": 8}
    path = tmp_path_factory.mktemp("right") / "model.safetensors"
    save_weights(Seq2SeqTransformer.from_sizes(**right), path)
    check_sizes(lambda: Seq2SeqTransformer.from_sizes(**right), right, path)
    return right, path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, 10**9)
            for name in ("hidden_dim", "intermediate_dim", "num_encoder_layers", "vocabulary_size")
        ),
        ("hidden_dim", 10**30),
        ("num_heads", 10**9),
        ("hidden_dim", 12),
        ("num_decoder_layers", 3),
    ],
)
def test_a_model_of_other_sizes_is_refused_before_it_takes_memory(right_sizes, name, value):
    right, path = right_sizes
    wrong = {**right, name: value}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        ValueError, match=r"model\.safetensors (does not hold the weights of this model|holds )|divisible"
    ):
        check_sizes(lambda: Seq2SeqTransformer.from_sizes(**wrong), wrong, path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KB


def test_sizes_are_found_in_nested_configurations(tmp_path):
    write_weights({"x": np.ones((2, 3))}, tmp_path / "model.safetensors")
    for config in ({"blocks": [{"config": {"hidden_dim": 7}}]}, {"num_layers": 2}, [{"num_heads": 10**9}]):
        with pytest.raises(
            ValueError, match=r"6 values in 1 arrays\. Received: (hidden_dim|num_layers|num_heads)="
        ):
            check_sizes(
                lambda: pytest.fail("The model must not be made."), config, tmp_path / "model.safetensors"
            )


def test_no_value_is_made_for_the_check_nor_later(tmp_path):
    calls = []

    def count(shape, dtype=None):
        calls.append(shape)
        return np.zeros(shape, dtype)

    def make():
        return keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(5, kernel_initializer=count, name="one")]
        )

    save_weights(make(), tmp_path / "model.safetensors")
    calls.clear()
    check_sizes(make, {}, tmp_path / "model.safetensors")
    # When a scope ends, Keras initialises what is pending in this thread.
    with keras.StatelessScope():
        pass
    assert not calls
