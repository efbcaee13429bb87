"""What was loaded goes out whole: weights bit for bit, configs field by field, the class, labels, logits."""

import re

import keras
import numpy as np
import pytest
import torch
import transformers
from helpers_checkpoints import change_config
from helpers_models import assert_close
from helpers_parity import answers_of_twins, twin_of
from keras import ops

from keras_attn import huggingface
from keras_attn.huggingface.activations import their_activation
from keras_attn.huggingface.config_fields import Fields
from keras_attn.huggingface.model_types import MODEL_TYPES, writers
from keras_attn.layers.activations import get_activation, serialize_activation
from keras_attn.models import DecoderTransformer, SwinTransformer, read_weights

# (model type, class, other fields): every class of the types that are written, and other forms of some.
CLASSES = [(model_type, name, {}) for model_type in writers() for name in MODEL_TYPES[model_type].classes]
CLASSES += [
    ("llama", "LlamaForCausalLM", {"tie_word_embeddings": True, "attention_bias": True}),
    ("vit", "ViTForImageClassification", {"qkv_bias": False, "hidden_act": "gelu_new"}),
    ("dinov2", "Dinov2ForImageClassification", {"use_swiglu_ffn": True}),
    ("swin", "SwinForImageClassification", {"use_absolute_embeddings": True, "qkv_bias": False}),
]
# None of these is transformers' default.
LABELS = {"0": "good", "1": "bad", "2": "ugly"}
ODD = {"id2label": LABELS, "problem_type": "multi_label_classification", "initializer_range": 0.031}
IDS = {"bos_token_id": 7, "eos_token_id": [2, 5], "sep_token_id": 8}
GENERATION = {
    "eos_token_id": [2, 5],
    "bos_token_id": 7,
    "pad_token_id": 0,
    "num_beams": 3,
    "length_penalty": 0.7,
}
GENERATION |= {"max_length": 13, "no_repeat_ngram_size": 3, "forced_bos_token_id": 9}
OF_TYPES = {
    "gpt2": {"scale_attn_by_inverse_layer_idx": True, "summary_type": "first"},
    "llama": {
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
        "mlp_bias": True,
    },
    "bert": {"hidden_act": "quick_gelu", "classifier_dropout": 0.23, "hidden_dropout_prob": 0.17},
    "t5": {"feed_forward_proj": "gated-silu", "dropout_rate": 0.21},
    "swin": {"mlp_ratio": 2.3},
    "vit": {"num_channels": 2, "encoder_stride": 3},
}


def odd_twin(model_type, name, **more):
    kind = MODEL_TYPES[model_type].kind
    fields = {**ODD, **({} if kind == "images" else IDS), **OF_TYPES.get(model_type, {}), **more}
    if name.endswith("QuestionAnswering"):
        fields["id2label"] = {"0": "first", "1": "last"}
    if kind == "seq2seq":  # transformers' heads of these want one
        fields |= {"decoder_start_token_id": 11, "eos_token_id": 2}
    fields["label2id"] = {label: int(i) for i, label in fields["id2label"].items()}
    twin = twin_of(model_type, name, **fields)
    if twin.can_generate():
        start = {"decoder_start_token_id": 11} if kind == "seq2seq" else {}
        twin.generation_config = transformers.GenerationConfig(**GENERATION, **start)
    return twin


def differences(config_class, *folders):
    """{field: its values} where the configs in two folders differ, defaults of transformers included."""
    first, second = (config_class.from_pretrained(folder).to_dict() for folder in folders)
    return {
        name: (first.get(name), second.get(name))
        for name in {**first, **second}
        if first.get(name) != second.get(name) and name not in ("dtype", "_name_or_path")
    }


def assert_same_tensors(folder, other):
    """Whatever the model needs of the first folder's tensors is in the other, bit for bit."""
    before, after = (read_weights(path / "model.safetensors") for path in (folder, other))
    for row in huggingface.read_report(folder):
        if row.variable is not None and not row.note.startswith("same as"):
            np.testing.assert_array_equal(after[row.tensor], before[row.tensor], err_msg=row.tensor)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("model_type", "name", "fields"), CLASSES)
def test_what_was_loaded_goes_out_whole(model_type, name, fields, tmp_path):
    twin = odd_twin(model_type, name, **fields)
    twin.save_pretrained(tmp_path / "a")
    model = huggingface.load_model(tmp_path / "a")
    huggingface.save_model(model, tmp_path / "b")
    assert_same_tensors(tmp_path / "a", tmp_path / "b")
    assert differences(transformers.AutoConfig, tmp_path / "a", tmp_path / "b") == {}
    again, report = type(twin).from_pretrained(tmp_path / "b", output_loading_info=True)
    again.eval()
    # Poolers that no vector comes from, and sines.
    assert not [key for key in report["missing_keys"] if not re.search("pooler|embed_positions", key)]
    assert not report["unexpected_keys"]
    assert again.config.architectures == [name]
    assert_close(*answers_of_twins(model, twin), 3e-5)
    assert_close(*answers_of_twins(model, again), 3e-5)
    has_generation = twin.can_generate()
    assert (tmp_path / "b" / "generation_config.json").exists() == has_generation
    if has_generation:
        assert differences(transformers.GenerationConfig, tmp_path / "a", tmp_path / "b") == {}
        ids = torch.tensor([[6, 8, 7, 2]])
        assert torch.equal(again.generate(ids), twin.generate(ids))


def test_a_copy_keeps_what_was_loaded_and_what_is_given_now_counts(tmp_path):
    odd_twin("gpt2", "GPT2LMHeadModel").save_pretrained(tmp_path / "a")
    model = huggingface.load_model(tmp_path / "a")
    copy = type(model).from_config(model.get_config())
    copy.set_weights(model.get_weights())
    huggingface.save_model(copy, tmp_path / "b", eos_token_id=4)
    assert differences(transformers.AutoConfig, tmp_path / "a", tmp_path / "b") == {
        "eos_token_id": ([2, 5], 4)
    }
    found = differences(transformers.GenerationConfig, tmp_path / "a", tmp_path / "b")
    assert found == {"eos_token_id": ([2, 5], 4)}


def test_a_model_that_was_changed_goes_out_as_it_is_with_what_still_holds(tmp_path):
    odd_twin("bert", "BertForQuestionAnswering").save_pretrained(tmp_path / "a")
    model = huggingface.load_model(tmp_path / "a", num_new_labels=5)
    huggingface.save_model(model, tmp_path / "b")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "b")
    assert config.architectures == ["BertForSequenceClassification"]
    assert config.num_labels == 5
    assert config.eos_token_id == [2, 5]
    twin = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "b").eval()
    assert_close(*answers_of_twins(model, twin))


@pytest.mark.parametrize("problem", [None, "single_label_classification", "regression"])
def test_one_label_goes_out_as_transformers_opens_it(problem, tmp_path):
    twin = odd_twin("bert", "BertForSequenceClassification", id2label={"0": "score"}, problem_type=None)
    twin.save_pretrained(tmp_path / "a")
    change_config(tmp_path / "a", problem_type=problem)
    model = huggingface.load_model(tmp_path / "a")
    huggingface.save_model(model, tmp_path / "b")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "b").eval()
    assert again.config.problem_type == (problem if problem == "regression" else None)
    assert_close(*answers_of_twins(model, again))
    model = huggingface.load_model(tmp_path / "b")
    with pytest.raises(ValueError, match="`problem_type` of a classifier with one label must be"):
        huggingface.save_model(model, tmp_path / "c", problem_type="single_label_classification")


def test_a_class_that_is_not_the_models_is_refused(tmp_path):
    model = DecoderTransformer.from_sizes(53, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    with pytest.raises(ValueError, match="`architectures` must be a class of this model"):
        huggingface.save_model(model, tmp_path, "gpt2", architectures=["GPT2ForSequenceClassification"])
    with pytest.raises(ValueError, match="`model_type` must be one of"):
        huggingface.save_model(model, tmp_path)


def test_a_swin_whose_widths_are_rounded_goes_out(tmp_path):
    options = {"num_channels": 2, "intermediate_ratio": 2.3, "attend_to_padding": True}
    model = SwinTransformer.from_sizes(2, 12, (1, 2), (3, 2), window_size=4, **options)
    widths = {
        block.feed_forward_layer.intermediate_dim
        for block in model.blocks
        if hasattr(block, "feed_forward_layer")
    }
    assert widths == {27, 55}  # 2.25 and 2.29 times as wide
    huggingface.save_model(model, tmp_path, "swin")
    assert_close(*answers_of_twins(model, transformers.SwinModel.from_pretrained(tmp_path).eval()))


@pytest.mark.parametrize(("scaled", "by_layer"), [(False, False), (False, True), (True, True)])
def test_a_gpt2_with_scales_of_its_own_goes_out(scaled, by_layer, tmp_path):
    flags = {"scale_attn_weights": scaled, "scale_attn_by_inverse_layer_idx": by_layer}
    odd_twin("gpt2", "GPT2LMHeadModel", **flags).save_pretrained(tmp_path / "a")
    model = huggingface.load_model(tmp_path / "a")
    model.origin = None  # so that the model's parts alone say it
    huggingface.save_model(model, tmp_path / "b", "gpt2", pad_token_id=0, eos_token_id=2)
    twin = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "b").eval()
    assert {name: getattr(twin.config, name) for name in flags} == flags
    assert_close(*answers_of_twins(model, twin))


@pytest.mark.parametrize(
    "model_type", ["bert", "mpnet", pytest.param("modernbert", marks=pytest.mark.extended)]
)
def test_an_encoder_that_is_said_not_to_be_tied(model_type, tmp_path):
    """Only a masked language model has an output that could be."""
    classes = MODEL_TYPES[model_type].classes
    twin_of(model_type, classes[0]).save_pretrained(tmp_path / "a")
    twin_of(model_type, classes[1]).save_pretrained(tmp_path / "b")
    for folder in "ab":
        change_config(tmp_path / folder, tie_word_embeddings=False)
    twin = getattr(transformers, classes[0]).from_pretrained(tmp_path / "a").eval()
    assert_close(*answers_of_twins(huggingface.load_model(tmp_path / "a"), twin))
    with pytest.raises(ValueError, match=r"does not hold .*decoder.weight, and by `tie_word_embeddings`"):
        huggingface.load_model(tmp_path / "b")


X = np.linspace(-15, 15, 241).astype("float32")


@pytest.mark.parametrize("name", transformers.activations.ACT2FN)
def test_an_activation_of_transformers_has_the_same_values_or_is_refused(name):
    fields = Fields({"model_type": "bert", "hidden_act": name}, 10**6, 10**3)
    if name in ("prelu", "xielu"):
        with pytest.raises(
            ValueError, match=f"`hidden_act` of a bert config cannot be '{name}': .* weights of its own"
        ):
            fields.activation("hidden_act")
        return
    function = get_activation(fields.activation("hidden_act"))
    with torch.no_grad():
        expected = transformers.activations.ACT2FN[name](torch.tensor(X)).numpy()
    np.testing.assert_allclose(
        ops.convert_to_numpy(function(ops.convert_to_tensor(X))), expected, atol=2e-6, rtol=2e-6
    )
    again = get_activation(serialize_activation(function))
    assert again is function
    values = transformers.activations.ACT2FN[their_activation(function)](torch.tensor(X)).detach().numpy()
    np.testing.assert_allclose(values, expected, atol=2e-6, rtol=2e-6)


def test_an_unusual_activation_comes_back_from_a_file(tmp_path):
    twin = odd_twin("bert", "BertModel", hidden_act="relu2")
    twin.save_pretrained(tmp_path / "a")
    model = huggingface.load_model(tmp_path / "a")
    assert_close(*answers_of_twins(model, twin))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(answers_of_twins(again, twin)[0], answers_of_twins(model, twin)[0])
