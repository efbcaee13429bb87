"""Every class of transformers of the types that are read: it loads and answers alike, or is refused in one line."""

import json

import keras
import numpy as np
import pytest
from helpers_checkpoints import END, START, change_config
from helpers_models import assert_close
from helpers_parity import answers_of_twins, classes_of, twin_of

from keras_attn import TextGenerator, huggingface, load
from keras_attn.huggingface.model_types import MODEL_TYPES
from keras_attn.models import gives_logits
from keras_attn.tasks.checkpoint_heads import task_for
from keras_attn.text import ByteTokenizer

CLASSES = [(model_type, name) for model_type in MODEL_TYPES for name in classes_of(model_type)]
# Classes that have a head of which nothing is wanted: what is read is the body.
AS_A_BODY = ("BertForPreTraining", "ElectraForPreTraining", "AlbertForPreTraining")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("model_type", "name"), CLASSES)
def test_a_class_loads_to_the_same_outputs_or_is_refused_in_one_line(model_type, name, tmp_path):
    twin = twin_of(model_type, name)
    twin.save_pretrained(tmp_path)
    known = MODEL_TYPES[model_type].classes
    if name in (*known, *AS_A_BODY, "GPT2DoubleHeadsModel"):
        model = huggingface.load_model(tmp_path)
        assert_close(*answers_of_twins(model, twin.base_model if name in AS_A_BODY else twin), 3e-5)
        return
    for function in (huggingface.load_model, load):
        with pytest.raises(ValueError, match=f"^{name} is not read: .* Nearest are {known[0]}, ") as error:
            function(tmp_path)
        assert len(str(error.value)) < 400
        assert "\n" not in str(error.value)
    if "head=False" in str(error.value):
        model = huggingface.load_model(tmp_path, head=False)
        if not name.endswith("Backbone"):
            assert_close(*answers_of_twins(model, twin.base_model), 3e-5)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_classes_that_are_said_to_load_are_there(model_type):
    assert set(MODEL_TYPES[model_type].classes) <= set(classes_of(model_type))


# The form of e5-mistral, and its siblings.
UNTIED = "mistral llama qwen2 qwen3 gpt2 gemma2 t5 mt5 bart pegasus m2m_100 marian".split()


def save_untied(model_type, folder):
    twin = twin_of(model_type, MODEL_TYPES[model_type].class_name + "Model", tie_word_embeddings=False)
    twin.save_pretrained(folder)
    change_config(folder, tie_word_embeddings=False)
    return twin


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model_type", UNTIED)
def test_a_body_without_an_output_projection_gives_vectors_and_no_logits(model_type, tmp_path):
    twin = save_untied(model_type, tmp_path)
    for options in ({}, {"head": False}):
        model = huggingface.load_model(tmp_path, **options)
        assert not gives_logits(model)
        assert_close(*answers_of_twins(model, twin))
    ids = np.array([[7, 8]])
    starts = ([START],) if twin.config.is_encoder_decoder else ()
    with pytest.raises(ValueError, match="This model has no output projection"):
        model.generate(ids, *starts, end_token_id=2, max_length=3)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    if twin.config.is_encoder_decoder:
        with pytest.raises(
            ValueError, match=f"There is no task for {type(twin).__name__}: it has no output projection"
        ):
            task_for(config)
    else:
        assert task_for(config) == "TextEmbedder"
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(*(answers_of_twins(one, twin)[0] for one in (model, again)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model_type", UNTIED)
def test_a_new_head_needs_no_output_projection(model_type, tmp_path):
    save_untied(model_type, tmp_path)
    if not MODEL_TYPES[model_type].heads:
        with pytest.raises(ValueError, match="A new head is one that transformers has, and it has no"):
            huggingface.load_model(tmp_path, num_new_labels=3)
        return
    model = huggingface.load_model(tmp_path, num_new_labels=3)
    assert model(np.array([[7, 8, END]])).shape == (1, 3)
    assert not any("reverse" in weight.path for weight in model.weights)


def test_a_task_that_writes_refuses_a_body(tmp_path):
    save_untied("llama", tmp_path)
    tokenizer = ByteTokenizer()
    with pytest.raises(ValueError, match="must give logits of tokens, with which a text generator writes"):
        TextGenerator(huggingface.load_model(tmp_path), tokenizer)
