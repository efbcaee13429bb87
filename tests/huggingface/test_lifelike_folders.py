"""Checkpoints as people keep them: config.json with fields of other programs, in old forms, with defaults left out.

transformers is the judge: it opens the same folder, whatever was done to it, and gives the same numbers.
"""

import json
import pathlib
import shutil

import numpy as np
import pytest
from helpers_checkpoints import CASES, checkpoint
from helpers_models import assert_close

from keras_attn import huggingface
from keras_attn.huggingface.fields import ALIASES

transformers = pytest.importorskip("transformers", reason='pip install "keras_attn[peers]"')
pytest.importorskip("torch", reason='needs torch: pip install "keras_attn[peers]"')

from helpers_parity import checkpoint_with_head, logits_of_head_of, outputs_of  # noqa: E402 -- it needs both

NUM_DRAWS = 400
_HEADS = ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering")
_WITHOUT_HEADS = ("electra-one-width", "modernbert")
# (case, head or None)
KINDS = [
    (name, head)
    for name, (kind, _, _, _) in CASES.items()
    for head in (None, *(_HEADS if kind == "encoder" and name.split("-")[0] in ("bert", "roberta", "albert") else ()))
]
_OTHER_PROGRAMS = {
    "author": "someone",
    "unsloth_version": "2025.3.2",
    "training_args": {"learning_rate": 5e-4, "seed": None},
    "do_blenderbot_90_layernorm": False,
    "directionality": "bidi",
    "pooler_fc_size": 768,
    "n_ctx": 23,
    "gap_size": 0,
    "save_step": 7,
    "vocab_projection": [1],
    "layers_to_use": [0],
    "model_max_length": 7,
    "max_sequence_length": 5,
    "kobert_version": 1.0,
    "hub_token": "",
    "auto_map": {"AutoModel": "modeling.Mine"},
    "label_smoothing": 0.1,
}
_OF_SEARCHES = {
    "num_beams": 3,
    "max_length": 19,
    "no_repeat_ngram_size": 2,
    "early_stopping": True,
    "length_penalty": 2.0,
    "do_sample": False,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "return_dict_in_generate": False,
    "top_k": 50,
}
_NULLS = (
    "bos_token_id",
    "classifier_dropout",
    "finetuning_task",
    "prefix",
    "problem_type",
    "rope_scaling",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "_num_labels",
)


def _with_others(config, random):
    for name in random.permutation(list(_OTHER_PROGRAMS))[:4]:
        config.setdefault(name, _OTHER_PROGRAMS[name])


def _with_searches(config, random):
    for name in random.permutation(list(_OF_SEARCHES))[:3]:
        config.setdefault(name, _OF_SEARCHES[name])


def _without_defaults(config, random):
    defaults = transformers.CONFIG_MAPPING[config["model_type"]]().to_dict()
    for name in sorted(set(config) & set(defaults) - {"model_type", "architectures"}):
        if config[name] == defaults[name] and random.random() < 0.7:
            del config[name]


def _with_nulls(config, random):
    for name in random.permutation(_NULLS)[:3]:
        config.setdefault(name, None)


def _with_general_names(config, random):
    for general, own in ALIASES.get(config["model_type"], {}).items():
        if own in config and random.random() < 0.5:
            config[general] = config.pop(own)


def _with_both_names(config, random):
    for general, own in ALIASES.get(config["model_type"], {}).items():
        if own in config and random.random() < 0.3:
            config[general] = config[own]
            config[own] += 1


def _in_an_old_form(config, random):
    config["torch_dtype"] = config.pop("dtype", None) or "float32"
    parameters = config.get("rope_parameters")
    if isinstance(parameters, dict) and "rope_theta" in parameters:
        del config["rope_parameters"]
        config["rope_theta"] = parameters.pop("rope_theta")
        kind = parameters.pop("rope_type", "default")
        if kind != "default" or random.random() < 0.3:
            config["rope_scaling"] = {"type": kind, "finetuned": True, **parameters}
    for name in ("hidden_act", "activation_function", "activation"):
        if config.get(name) == "gelu":
            config[name] = "gelu_python"


def _with_ends(config, random):
    if isinstance(config.get("eos_token_id"), int):
        config["eos_token_id"] = [config["eos_token_id"], 3]


EDITS = {
    edit.__name__: edit
    for edit in (
        _with_others,
        _with_searches,
        _without_defaults,
        _with_nulls,
        _with_general_names,
        _with_both_names,
        _in_an_old_form,
        _with_ends,
    )
}


def draw(seed, folder):
    """A folder of one kind, with some of the edits; returns the kind and the edits' names."""
    random = np.random.default_rng(seed)
    name, head = KINDS[random.integers(len(KINDS))]
    source = checkpoint(name)[0] if head is None else checkpoint_with_head(name, head)[0]
    shutil.copytree(source, folder)
    path = pathlib.Path(folder, "config.json")
    config = json.loads(path.read_text("utf-8"))
    edits = [edit for edit in EDITS if random.random() < 0.4] or ["_with_others"]
    for edit in edits:
        EDITS[edit](config, random)
    path.write_text(json.dumps(config), "utf-8")
    return name, head, edits


@pytest.mark.sampled(14)
@pytest.mark.parametrize("seed", range(NUM_DRAWS))
def test_outputs_are_theirs(seed, tmp_path):
    folder = tmp_path / "checkpoint"
    name, head, edits = draw(seed, folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    twin = getattr(transformers, config["architectures"][0]).from_pretrained(folder).eval()
    model = huggingface.load_model(folder)
    if head is None:
        ours, theirs = outputs_of(name, model if not hasattr(model, "head") else model.encoder, twin, "right")
    else:
        ours, theirs = logits_of_head_of(name, head, model, twin, "right")
    assert_close(ours, theirs, 2e-5)
