"""What was loaded goes out whole: config.json and generation_config.json field by field, the class, labels, logits."""

import json

import pytest
from helpers_models import assert_close

from keras_attn import huggingface
from keras_attn.huggingface.model_types import MODEL_TYPES, writers
from keras_attn.models import DecoderTransformer

transformers = pytest.importorskip(
    "transformers", reason='needs transformers: pip install "keras_attn[peers]"'
)
torch = pytest.importorskip("torch", reason='needs torch: pip install "keras_attn[peers]"')

from helpers_classes import answers, twin_of  # noqa: E402 -- it needs both

CLASSES = [(model_type, name) for model_type in writers() for name in MODEL_TYPES[model_type].classes]
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


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("model_type", "name"), CLASSES)
def test_what_was_loaded_goes_out_whole(model_type, name, tmp_path):
    twin = odd_twin(model_type, name)
    twin.save_pretrained(tmp_path / "a")
    model = huggingface.load_model(tmp_path / "a")
    huggingface.save_model(model, tmp_path / "b")
    assert differences(transformers.AutoConfig, tmp_path / "a", tmp_path / "b") == {}
    again = type(twin).from_pretrained(tmp_path / "b").eval()
    assert again.config.architectures == [name]
    assert_close(*answers(model, twin), 3e-5)
    assert_close(*answers(model, again), 3e-5)
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
    assert_close(*answers(model, twin))


@pytest.mark.parametrize("problem", [None, "single_label_classification", "regression"])
def test_one_label_goes_out_as_transformers_opens_it(problem, tmp_path):
    twin = odd_twin("bert", "BertForSequenceClassification", id2label={"0": "score"}, problem_type=None)
    twin.save_pretrained(tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text("utf-8"))
    (tmp_path / "a" / "config.json").write_text(json.dumps({**config, "problem_type": problem}), "utf-8")
    model = huggingface.load_model(tmp_path / "a")
    huggingface.save_model(model, tmp_path / "b")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "b").eval()
    assert again.config.problem_type == (problem if problem == "regression" else None)
    assert_close(*answers(model, again))
    model = huggingface.load_model(tmp_path / "b")
    with pytest.raises(ValueError, match="`problem_type` of a classifier with one label must be"):
        huggingface.save_model(model, tmp_path / "c", problem_type="single_label_classification")


def test_a_class_that_is_not_the_models_is_refused(tmp_path):
    model = DecoderTransformer.from_sizes(53, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    with pytest.raises(ValueError, match="`architectures` must be a class of this model"):
        huggingface.save_model(model, tmp_path, "gpt2", architectures=["GPT2ForSequenceClassification"])
    with pytest.raises(ValueError, match="`model_type` must be one of"):
        huggingface.save_model(model, tmp_path)
