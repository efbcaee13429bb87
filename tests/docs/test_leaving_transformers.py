"""The page for those who leave transformers' TensorFlow classes says of each class what the code says."""

import pathlib
import re

import pytest

from keras_attn import task_registry
from keras_attn.huggingface.model_types import MODEL_TYPES
from keras_attn.tasks.checkpoint_heads import task_for

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "move" / "transformers_tf.md"
ENCODERS = ("Roberta", "XLMRoberta", "DistilBert", "Electra", "Albert", "MPNet")


def rows():
    """(class without TF, what the page says of it), of the table of models."""
    table = PAGE.read_text("utf-8").partition("## Models")[2].partition("\n## ")[0]
    for line in table.splitlines():
        cells = line.strip("| ").split(" | ")
        if len(cells) != 2 or "`" not in cells[0]:
            continue
        gone, here = cells
        names = re.findall(r"`TF(\w+)(\.\.\.)?`", gone)
        yield from ((name + dots, here) for name, dots in names)
        for end in re.findall(r"`(For\w+)` of the six others", gone):
            yield from ((name + end, here) for name in ENCODERS)


def model_type_of_class(name):
    """The longest class name that a name begins with decides; None for one of no model that is read."""
    known = {known.class_name: model_type for model_type, known in MODEL_TYPES.items()}
    fitting = [begin for begin in known if name.startswith(begin)]
    return known[max(fitting, key=len)] if fitting else None


ROWS = sorted(rows())


def test_the_page_has_rows_of_all_models_that_are_read_and_were_there():
    named = {model_type_of_class(name) for name, _ in ROWS} - {None}
    never_in_tensorflow = {"modernbert", "llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "m2m_100"}
    never_in_tensorflow |= {"dinov2", "dinov2_with_registers"}
    assert named == set(MODEL_TYPES) - never_in_tensorflow


@pytest.mark.parametrize(("name", "here"), ROWS)
def test_what_the_page_says_of_a_class_is_so(name, here):
    model_type = model_type_of_class(name)
    if name.endswith(("MainLayer", "Embeddings")):
        assert "layers" in here
        return
    if model_type is None or name.startswith("ViTMAE") or name.endswith("..."):
        assert here.startswith("none")
        return
    if name in MODEL_TYPES[model_type].classes:
        assert not here.startswith("none")
        if name.endswith("Model") and MODEL_TYPES[model_type].kind in ("encoder", "images"):
            assert "a model" in here
        else:
            task = task_for({"model_type": model_type, "architectures": [name]})
            assert f"task `{task}`" in here
        return
    if name.endswith("PreTraining"):
        assert here.startswith("the body")
        return
    if name == "GPT2DoubleHeadsModel":
        assert here.startswith("the language model")
        return
    assert here.startswith("none")


def test_each_task_stands_in_the_place_of_a_pipeline():
    lines = PAGE.read_text("utf-8").splitlines()
    pipelines = "".join(line.rpartition(" | ")[2] for line in lines if line.startswith('| `pipeline("'))
    for name in task_registry.CLASS_NAMES:
        assert f"`{name}`" in pipelines
