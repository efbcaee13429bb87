"""Checkpoints as people keep them: config.json with fields of other programs, in old forms, with defaults left out.

transformers is the judge: it opens the same folder, whatever was done to it, and gives the same numbers.
"""

import json
import pathlib
import shutil
import warnings

import numpy as np
import pytest
import transformers
from helpers_checkpoints import CASES, checkpoint
from helpers_models import assert_close
from helpers_parity import checkpoint_with_head, logits_of_head_of, outputs_of

from keras_attn import huggingface
from keras_attn.huggingface.model_types import MODEL_TYPES
from keras_attn.tasks import load_task

NUM_DRAWS = 400
OLD_FORMS = pytest.mark.filterwarnings("ignore:`rope_scaling` is deprecated:FutureWarning")
_HEADS = ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering")
_WITHOUT_HEADS = ("electra-one-width", "modernbert")
# (case, head or None)
KINDS = [
    (name, head)
    for name, (kind, _, _, _) in CASES.items()
    for head in (
        None,
        *(_HEADS if kind == "encoder" and name.split("-")[0] in ("bert", "roberta", "albert") else ()),
    )
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
_NULLS = """
    bos_token_id classifier_dropout finetuning_task prefix problem_type rope_scaling sep_token_id
    task_specific_params tokenizer_class torch_dtype _num_labels
""".split()


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
    for general, own in MODEL_TYPES[config["model_type"]].aliases.items():
        if own in config and random.random() < 0.5:
            config[general] = config.pop(own)


def _with_both_names(config, random):
    for general, own in MODEL_TYPES[config["model_type"]].aliases.items():
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
    """A folder of one kind, with some of the edits; returns the kind."""
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
    return name, head


@OLD_FORMS
@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(NUM_DRAWS))
def test_outputs_are_theirs(seed, tmp_path):
    folder = tmp_path / "checkpoint"
    name, head = draw(seed, folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    twin = getattr(transformers, config["architectures"][0]).from_pretrained(folder).eval()
    model = huggingface.load_model(folder)
    if head is None:
        ours, theirs = outputs_of(name, model if not hasattr(model, "head") else model.encoder, twin, "right")
    else:
        ours, theirs = logits_of_head_of(name, head, model, twin, "right")
    assert_close(ours, theirs, 2e-5)


def _generation_file(folder, change):
    path = folder / "generation_config.json"
    if path.is_file():
        content = json.loads(path.read_text("utf-8"))
        change(content)
        path.write_text(json.dumps(content), "utf-8")


def _generation_with_others(folder, random):
    notes = {"author": "someone", "_from_model_config": True, "transformers_version": "4.31.0", "my_top_k": 3}
    _generation_file(folder, lambda content: content.update(notes))


def _generation_with_nulls(folder, random):
    names = """
        max_length max_new_tokens num_beams forced_bos_token_id suppress_tokens stop_strings
    """.split()
    chosen = random.permutation(names)[:4]
    _generation_file(folder, lambda content: [content.setdefault(name, None) for name in chosen])


def _generation_with_ends(folder, random):
    def change(content):
        if isinstance(content.get("eos_token_id"), int):
            content["eos_token_id"] = [content["eos_token_id"]]

    _generation_file(folder, change)


def _generation_in_config(folder, random):
    """As folders had it before there was such a file."""
    path = folder / "generation_config.json"
    config = json.loads((folder / "config.json").read_text("utf-8"))
    if not path.is_file() or isinstance(config.get("eos_token_id"), list):
        return
    for name, value in json.loads(path.read_text("utf-8")).items():
        config.setdefault(name, value)
    path.unlink()
    (folder / "config.json").write_text(json.dumps(config), "utf-8")


def _tokenizer_file(folder, change, name="tokenizer.json"):
    path = folder / name
    if path.is_file():
        content = json.loads(path.read_text("utf-8"))
        change(content)
        path.write_text(json.dumps(content), "utf-8")


def _tokenizer_with_last_calls(folder, random):
    """transformers writes the truncation and padding of its last call, and forgets them in its next."""
    truncation = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 7},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    _tokenizer_file(folder, lambda content: content.update(truncation=truncation, padding=padding))


def _tokenizer_with_others(folder, random):
    notes = {"author": "someone", "added_by": None, "processor_class": None, "name_or_path": "someone/model"}
    _tokenizer_file(folder, lambda content: content.update(notes), "tokenizer_config.json")


def _tokenizer_with_nulls(folder, random):
    notes = dict.fromkeys(("chat_template", "additional_special_tokens", "sp_model_kwargs", "tokenizer_file"))
    _tokenizer_file(
        folder, lambda content: [content.setdefault(name, None) for name in notes], "tokenizer_config.json"
    )


def _tokenizer_with_a_map(folder, random):
    """Roles in a file of their own, as texts and as objects."""
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    options = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    roles = {
        name: {"content": value, **options} if random.random() < 0.5 else value
        for name, value in config.items()
        if name in ("bos_token", "eos_token", "unk_token", "pad_token") and isinstance(value, str)
    }
    (folder / "special_tokens_map.json").write_text(json.dumps(roles), "utf-8")


FILE_EDITS = {
    edit.__name__: edit
    for edit in (
        _generation_with_others,
        _generation_with_nulls,
        _generation_with_ends,
        _generation_in_config,
        _tokenizer_with_last_calls,
        _tokenizer_with_others,
        _tokenizer_with_nulls,
        _tokenizer_with_a_map,
    )
}
TASKS = tuple("gpt2 llama gemma2 mistral qwen2 qwen3 gemma3 marian t5 bart mt5 pegasus".split())
NUM_TASK_DRAWS = 240


@OLD_FORMS
@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(NUM_TASK_DRAWS))
def test_answers_are_theirs(seed, tmp_path):
    from helpers_checkpoint_tasks import MAX_LENGTH, TEXTS, answers_there
    from helpers_checkpoint_tasks import checkpoint as checkpoint_of_task

    random = np.random.default_rng([seed, 1])
    name = TASKS[random.integers(len(TASKS))]
    folder = shutil.copytree(checkpoint_of_task(name)[0], tmp_path / "checkpoint")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    for edit in EDITS.values():
        if random.random() < 0.3 and edit is not _with_searches:
            edit(config, random)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    edits = [edit for edit in FILE_EDITS if random.random() < 0.4]
    for edit in edits:
        FILE_EDITS[edit](folder, random)
    twin = getattr(transformers, config["architectures"][0]).from_pretrained(folder).eval()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses", UserWarning)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    task = load_task(folder, max_length=MAX_LENGTH)
    texts = [TEXTS[i] for i in random.permutation(len(TEXTS))[:9]]
    num_beams = int(random.choice([1, 3]))
    expected = answers_there(task, twin, tokenizer, texts, num_beams=num_beams)
    assert task(texts, num_beams=num_beams) == expected, (name, edits)
