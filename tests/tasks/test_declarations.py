"""Tasks declare themselves once: what is known of them before they are imported, in their exports, and of a user's own."""

import json

import pytest
from helpers_encoder_tasks import MAKERS, D, embedder, tagger, with_head, word_tokenizer
from helpers_images import image_classifier
from helpers_text_generators import byte_generator
from helpers_translators import byte_translator

import keras_attn
from keras_attn import layers, task_registry
from keras_attn.export import read_task_declaration, verify_saved_model, write_task_declaration
from keras_attn.models import EncoderWithHead
from keras_attn.serve.models import read_signature_defs
from keras_attn.tasks.encoder_task import EncoderFunctions, EncoderTask
from keras_attn.tasks.signatures import Signature

VIEWS = {"answers", "continuation", "text", "labels", "spans", "fills", "span_of_second", "vector", None}
WIDGETS = {"text", "image", "second_text", "box", "number", "slider", "seed"}


def kinds_of(task_class, name):
    inputs = [task_class.signature_inputs[given] for given in task_class.signatures[name].inputs]
    return [given.widget["kind"] for given in inputs if given.widget is not None]


@pytest.mark.parametrize("name", task_registry.CLASS_NAMES)
def test_a_declaration_is_whole(name):
    task_class = getattr(keras_attn, name)
    assert task_class.declaration() == task_registry.declarations()[name]
    assert next(iter(task_class.signatures)) == "serving_default"
    for signature_name, signature in task_class.signatures.items():
        assert set(signature.inputs) <= set(task_class.signature_inputs)
        assert signature.view in VIEWS
        assert callable(getattr(task_class.served_functions, signature_name))
        assert set(kinds_of(task_class, signature_name)) <= WIDGETS
    for asked in (*task_class.asked_signatures, "serving_default"):
        assert task_class.signatures[asked].view is not None
        [_] = [kind for kind in kinds_of(task_class, asked) if kind in ("text", "image")]
        statuses = {status for status in task_class.statuses if status in str(task_class.signatures[asked])}
        assert statuses or "status" not in task_class.signatures[asked].outputs


def check_against_graph(version_folder):
    """The declaration of an export, whose signatures are those of its graph."""
    declaration = read_task_declaration(version_folder)
    graph = {name: one for name, one in read_signature_defs(version_folder).items() if name[0] != "_"}
    assert set(declaration["signatures"]) == set(graph)
    for name, declared in declaration["signatures"].items():
        assert set(declared["inputs"]) == set(graph[name].inputs)
        assert set(declared["outputs"]) == set(graph[name].outputs)
        assert all(given["meaning"] for given in (declared, *declared["inputs"].values()))
    return declaration


@pytest.mark.extended
@pytest.mark.parametrize("make", [byte_translator, byte_generator, image_classifier, *MAKERS])
def test_an_export_says_what_it_is(make, tmp_path):
    task = make()
    declaration = check_against_graph(task.export(tmp_path / "it"))
    assert declaration["task"] == type(task).__name__
    assert declaration["kind"] == task.declaration().file_stem
    assert declaration["ask"] == task.asked_signatures[0]
    assert declaration["takes"] == ("images" if isinstance(task, keras_attn.ImageClassifier) else "texts")
    assert (declaration["sample"] == "sample") == (task.drawing_signature is not None)
    assert declaration["attention"] is None
    neutral = {
        name: value for one in declaration["signatures"].values() for name, value in one["inputs"].items()
    }
    assert {name for name, value in neutral.items() if "neutral" in value} <= set(task.neutral_values())


@pytest.mark.extended
def test_an_export_of_few_signatures_and_one_for_xla_say_it_too(tmp_path):
    declaration = check_against_graph(byte_translator().export(tmp_path / "score", signatures=["score"]))
    assert (declaration["kind"], declaration["ask"]) == ("translator", "serving_default")
    assert (declaration["sample"], list(declaration["signatures"])) == (None, ["serving_default", "score"])
    options = {"xla": True, "batch_sizes": (1, 2), "lengths": (23,)}
    declaration = check_against_graph(tagger().export(tmp_path / "xla", **options))
    assert (declaration["kind"], declaration["ask"]) == ("token_classifier", "serving_default")
    declaration = check_against_graph(embedder().export(tmp_path / "attention", attention=True))
    assert declaration["attention"] == "attention"


@pytest.mark.extended
def test_options_of_a_translator_are_its_own(tmp_path):
    translator = byte_translator(num_beams=1, length_penalty=0.5)
    inputs = check_against_graph(translator.export(tmp_path / "one"))["signatures"]["translate"]["inputs"]
    assert inputs["num_beams"]["widget"] is None
    assert inputs["length_penalty"]["neutral"] == 0.5
    inputs = check_against_graph(byte_translator().export(tmp_path / "three"))["signatures"]["translate"][
        "inputs"
    ]
    assert inputs["num_beams"]["widget"] == {
        "kind": "slider",
        "label": "Beams",
        "range": [1, 3, 1],
        "zero": "3",
    }
    assert list(inputs)[:3] == ["inputs", "target_prefix", "num_beams"]


def test_a_damaged_declaration_is_named(tmp_path):
    assert read_task_declaration(tmp_path) is None
    path = write_task_declaration(tmp_path, {"format": 2, "task": "Translator", "signatures": {}})
    for content in (path.read_text("utf-8"), "[]", "{", '{"format": 1, "task": "Translator"}'):
        path.write_text(content, "utf-8")
        with pytest.raises(ValueError, match=r'assets.extra/task.json must hold an object with "format": 1'):
            read_task_declaration(tmp_path)


class ScorerFunctions(EncoderFunctions):
    def serving_default(self, inputs):
        return {"outputs": self.task_answers(inputs)["outputs"]}


class Scorer(EncoderTask):
    """A task of a user's own: one number for each text."""

    name = "text scorer"
    mixin = EncoderWithHead
    saved_options = ("scale", "max_length")
    signatures = {
        "serving_default": Signature("the score of each text", ["inputs"], {"outputs": "the score"}, "text")
    }
    served_functions = ScorerFunctions

    def __init__(self, model, tokenizer, scale=1.0, max_length=None, jit_compile=False):
        super().__init__(model, tokenizer, max_length, jit_compile)
        self.scale = scale

    def __call__(self, texts):
        return [float(row["outputs"]) for row in self.answer_rows([texts], 64, None)]

    def answers(self, texts):
        framed = self.framed(texts)
        logits = self.computed(self.logits, self.model_inputs(framed), 1)
        return {"outputs": logits[:, 0] * self.scale, "is_cut": framed.is_cut}


@pytest.mark.extended
def test_a_task_of_ones_own_is_one_class(tmp_path):
    model = with_head(lambda body: layers.ClassificationHead(1, intermediate_dim=D))
    task = Scorer(model, word_tokenizer(), scale=2.0)
    task.save(tmp_path / "run" / "text_scorer")
    again = keras_attn.load(tmp_path / "run")
    assert type(again) is Scorer
    assert again(["the dog runs"]) == task(["the dog runs"])
    version = task.export(tmp_path / "served")
    assert json.loads((version / "assets.extra" / "task.json").read_text("utf-8"))["task"] == "Scorer"
    assert not any(check.problems for check in again.verify(version))


@pytest.mark.extended
def test_verify_tells_a_declaration_of_another_graph(tmp_path):
    version = embedder().export(tmp_path / "it")
    declaration = read_task_declaration(version)
    del declaration["signatures"]["embed"]
    del declaration["signatures"]["similarity"]["inputs"]["pairs"]
    write_task_declaration(version, declaration)
    [check] = [check for check in verify_saved_model(version) if check.name.startswith("declaration")]
    assert len(check.problems) == 2
    assert "'embed' is in one of the graph and assets.extra/task.json alone" in check.problems[0]
