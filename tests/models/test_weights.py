"""Weight files: everything or an error that names what is wrong, and nothing half-loaded."""

import keras
import numpy as np
import pytest

from keras_attn.models import (
    Seq2SeqTransformer,
    assign_weights,
    average_weights,
    load_weights,
    read_metadata,
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
    with pytest.raises(ValueError, match="same names and shapes"):
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
