"""A stranger's saved task takes memory and time in proportion to its size, runs nothing, and is loaded or a ValueError."""

import copy
import json
import random
import shutil
import sys
import time

import keras
import pytest
from helpers_encoder_tasks import classifier, encoder, word_tokenizer
from helpers_images import patch_classifier
from helpers_text_generators import byte_generator
from helpers_translators import byte_translator

from keras_attn.layers import EncoderBlock
from keras_attn.models import EncoderTransformer
from keras_attn.tasks import TextEmbedder, load_task

T, D = 16, 22
MEGABYTES = 80  # of a load, which is of some kilobytes
SECONDS = 20  # on a busy machine


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of an embedder whose block has a layer without weights in a slot."""
    folder = tmp_path_factory.mktemp("hostile") / "embedder"
    part = encoder()
    block = EncoderBlock(num_heads=2, feed_forward=keras.layers.Activation("relu"))
    model = EncoderTransformer(embedding=part.embedding, blocks=[block], max_sequence_length=T)
    TextEmbedder(model, word_tokenizer()).save(folder)
    return folder


@pytest.fixture
def load_with(saved, tmp_path):
    """Loads that embedder with another layer in the slot."""

    def load(layer):
        folder = tmp_path / "embedder"
        shutil.copytree(saved, folder)
        file = folder / "text_embedder.json"
        config = json.loads(file.read_text("utf-8"))
        config["model"]["config"]["blocks"][0]["config"]["feed_forward"] = layer
        file.write_text(json.dumps(config), "utf-8")
        return load_task(folder)

    return load


def memory():
    """Megabytes that this process took at most."""
    resource = pytest.importorskip("resource")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**10 if sys.platform == "linux" else 2**20)


def described(function, **changes):
    """The description of a functional model, with other values for the arguments of its layers."""
    inputs = keras.Input((T, D), name="x")
    description = json.loads(
        json.dumps(keras.saving.serialize_keras_object(keras.Model(inputs, function(inputs))))
    )
    for layer in description["config"]["layers"]:
        layer["config"] |= {name: value for name, value in changes.items() if name in layer["config"]}
    return description


def layer(class_name, /, **config):
    return {"module": "keras.layers", "class_name": class_name, "config": config, "registered_name": None}


def constant(value, name="__tensor__", dtype="float32"):
    return {"class_name": name, "config": {"value": value, "dtype": dtype}}


def at_once(name, value, **config):
    """A model one of whose layers is called on a constant: Keras runs that as it makes the model."""
    description = described(keras.layers.Activation("relu"))
    evil = {**layer(name, **config, name="evil"), "name": "evil"}
    evil["inbound_nodes"] = [{"args": [constant(value)], "kwargs": {}}]
    description["config"]["layers"].append(evil)
    return description


def nested(depth):
    description = layer("Dropout", rate=0.1)
    for number in range(depth):
        description = {**layer("Sequential", name=f"s{number}", layers=[description]), "module": "keras"}
    return description


def doubled(depth, by_number=False):
    """A model that calls a model twice, that calls a model twice, ..."""
    inputs = keras.Input((T, D))
    model = keras.Model(inputs, keras.layers.Activation("relu")(inputs), name="m0")
    for number in range(3):
        inputs = keras.Input((T, D), name=f"x{number + 1}")
        model = keras.Model(inputs, model(model(inputs)), name=f"m{number + 1}")
    description = json.loads(json.dumps(keras.saving.serialize_keras_object(model)))
    for number in range(3, depth):
        text = json.dumps(description)
        outer = json.loads(
            text.replace(f'"m{number}"', f'"m{number + 1}"').replace(f'"m{number - 1}"', f'"m{number}"')
        )
        (index,) = [i for i, one in enumerate(outer["config"]["layers"]) if one["name"] == f"m{number}"]
        nodes = outer["config"]["layers"][index]["inbound_nodes"]
        outer["config"]["layers"][index] = {**description, "name": f"m{number}", "inbound_nodes": nodes}
        description = outer
    return description


pool, repeat = keras.layers.GlobalAveragePooling1D(), keras.layers.RepeatVector(T)
NO_MODEL = [
    (lambda: at_once("RepeatVector", [[1.0]], n=2**24 - 1), "'evil' is called on no tensor"),
    (lambda: at_once("UpSampling1D", [[[1.0]]], size=2**24 - 1), "'evil' is called on no tensor"),
    (lambda: at_once("ZeroPadding1D", [[[1.0]]], padding=2**24 - 1), "'evil' is called on no tensor"),
    (lambda: at_once("Reshape", [[1.0]], target_shape=[1]), "'evil' is called on no tensor"),
    (lambda: layer("UpSampling1D", size=6 * 10**8), "`size` of a UpSampling1D must be at most 16,777,216"),
    (lambda: layer("ZeroPadding1D", padding=[0, 10**9]), "`padding` of a ZeroPadding1D must be at most"),
    (lambda: layer("ZeroPadding2D", padding=[[0, 1], [0, -(10**9)]]), "`padding` of a ZeroPadding2D must be"),
    (
        lambda: described(lambda x: repeat(pool(x)), n=6 * 10**8),
        "`n` of a RepeatVector must be at most 16,777,216. Received: 600000000",
    ),
    (
        lambda: described(lambda x: repeat(pool(keras.ops.repeat(x, 2, axis=1))), repeats=10**8),
        "`repeats` of a Repeat must be at most",
    ),
    (
        lambda: described(lambda x: repeat(pool(keras.ops.repeat(x, 2, axis=1))), repeats=2**24),
        r"gives a tensor of shape \(None, 268435456, 22\), of more than 268,435,456 values",
    ),
    (lambda: constant(["a"], "__numpy__", "U500000000"), "a __numpy__ whose dtype is none of"),
    (lambda: constant(["a"], "__numpy__", ["S9"]), "a __numpy__ whose dtype is none of"),
    (lambda: constant(["a"], "__tensor__", "string"), "a __tensor__ whose dtype is none of"),
    (lambda: {"class_name": "__numpy__", "config": None}, "a __numpy__ whose dtype is none of"),
    (
        lambda: layer("Rescaling", scale=constant([0], "__numpy__", "V99999999"), offset=0),
        "whose dtype is none",
    ),
    (lambda: {"class_name": "__lambda__", "config": {"value": ["", None, None]}}, "it holds a __lambda__"),
    (lambda: {"class_name": "__typespec__", "config": []}, "it holds a __typespec__"),
    (lambda: layer("Lambda", function={"class_name": "__lambda__", "config": {}}), "it holds a __lambda__"),
    (lambda: layer("TFSMLayer", filepath="elsewhere"), "it holds a TFSMLayer, which runs a program"),
    (lambda: layer("TorchModuleWrapper", module="gASVAA=="), "it holds a TorchModuleWrapper, which runs"),
    (lambda: layer("StringLookup", vocabulary="/etc/passwd"), "(?s)describes no model: .*/etc/passwd"),
    (lambda: layer("Dense", units=10**7), "does not hold the weights of this model"),
    (lambda: layer("Embedding", input_dim=10**9, output_dim=1), "`input_dim` of a Embedding must be at most"),
    (lambda: nested(40), "it is nested more than 100 times"),
    (lambda: nested(120), "it is nested more than 100 times"),
    (lambda: doubled(18), r"its models call each other more than [\d,]+ times, though it describes"),
    (lambda: layer("LayerNormalization", axis=[10**7]), "describes no model"),
]


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
@pytest.mark.parametrize(("make", "message"), NO_MODEL, ids=[message[:40] for _, message in NO_MODEL])
def test_a_small_folder_builds_nothing_large_and_runs_nothing(load_with, make, message):
    description = make()
    before, began = memory(), time.monotonic()
    with pytest.raises(ValueError, match=message):
        load_with(description)
    assert memory() - before < MEGABYTES
    assert time.monotonic() - began < SECONDS


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda: nested(8),
        lambda: doubled(6),
        lambda: described(lambda x: repeat(pool(x))),
        lambda: described(lambda x: keras.layers.Add()([x, keras.layers.UpSampling1D(2)(x)[:, :T]])),
        lambda: described(lambda x: x * keras.ops.ones((D,))),
    ],
    ids=["nested", "doubled", "repeated", "upsampled", "constant"],
)
def test_models_as_people_make_them_are_loaded(load_with, make):
    assert load_with(make()).model.blocks[0].feed_forward is not None


def test_what_could_not_be_loaded_is_not_saved(saved, tmp_path):
    task = load_task(saved)
    task.model.blocks[0].feed_forward.factor = 1
    task.model.blocks[0].feed_forward.get_config = lambda: {"name": "evil", "padding": 2**25}
    with pytest.raises(
        ValueError, match="cannot be saved: of its description, `padding` of a Activation must"
    ):
        task.save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


MAKERS = {
    "translator": byte_translator,
    "generator": byte_generator,
    "classifier": classifier,
    "images": patch_classifier,
}
EVIL = [
    *(10**9, 10**6, 2**63, 10**30, -1, 0, 1, 1.5, 1e308, float("nan"), float("inf")),
    *(
        "x",
        "",
        "\ud800",
        "../../etc/passwd",
        "float32",
        "mixed_float16",
        None,
        True,
        [],
        {},
        [10**9],
        [1] * 5,
    ),
    *({"class_name": "Dense"}, {"shared_layer": 0}, {"shared_layer": [1]}, constant([1])),
    *(constant(["a"], "__numpy__", "U500000000"), {"class_name": "__tensor__", "config": 1}),
]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    for name, make in MAKERS.items():
        make().save(folder / name)
    return folder


def places(value, path=()):
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    for name, part in parts:
        yield from places(part, (*path, name))


def changed(rng, document):
    """A document with another value, without one, or with a part of it in another place."""
    document = copy.deepcopy(document)
    paths = list(places(document))[1:]
    path, other = rng.choice(paths), rng.choice(paths)
    outer, part = document, document
    for name in path[:-1]:
        outer = outer[name]
    for name in other:
        part = part[name]
    kind = rng.random()
    if kind < 0.1:
        del outer[path[-1]]
    else:
        outer[path[-1]] = copy.deepcopy(part) if kind < 0.25 else rng.choice(EVIL)
    return document


def load_changed(rng, tasks, folder):
    """Loads a task of which one file is changed; what is loaded or refused is right, anything else is raised."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(tasks / rng.choice(sorted(MAKERS)), folder)
    files = sorted(folder.rglob("*.json"))
    file = rng.choices(files, [3 if path.parent == folder else 1 for path in files])[0]
    file.write_text(json.dumps(changed(rng, json.loads(file.read_text("utf-8")))), "utf-8")
    try:
        load_task(folder)
    except (ValueError, FileNotFoundError):
        return


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("seed", "number"), [(1, 30), (2, 500)], ids=["few", "many"])
def test_a_changed_task_is_loaded_or_a_value_error(tasks, tmp_path, seed, number):
    rng = random.Random(seed)
    for name in MAKERS:
        load_task(tasks / name)  # what is imported and traced once
    before = memory()
    for _ in range(number):
        load_changed(rng, tasks, tmp_path / "task")
    assert memory() - before < MEGABYTES + number
