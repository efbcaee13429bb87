"""Configs as well-known checkpoints of the hub have them, old forms included: every field is understood."""

import inspect
import json
import pathlib
import re

import pytest

from keras_attn.huggingface import config_fields
from keras_attn.huggingface.architecture import Output
from keras_attn.huggingface.config_fields import Fields
from keras_attn.huggingface.model_types import MODEL_TYPES

# config.json of published checkpoints, as they were on the hub.
CONFIGS = json.loads(pathlib.Path(__file__).with_name("configs_of_the_hub.json").read_text("utf-8"))


class NoFiles:
    task = None

    def output(self, fields, output, token):
        return Output(fields.flag("tie_word_embeddings", True))

    def differ(self, name, other):
        return False

    def tensors_named(self, name):
        return [name]


def understood(name, **changed):
    fields = Fields({**CONFIGS[name], **changed}, 2**62, 2**31)
    architecture = MODEL_TYPES[CONFIGS[name]["model_type"]].architecture(fields, NoFiles())
    fields.refuse_not_obeyed()
    return architecture


@pytest.mark.parametrize("name", CONFIGS)
def test_every_field_is_understood(name):
    assert understood(name).names


@pytest.mark.parametrize(
    ("name", "changed", "match"),
    [
        ("Qwen/Qwen2.5-0.5B", {"use_mrope": True}, "`use_mrope` of a qwen2 config must be False"),
        (
            "facebook/bart-large",
            {"normalize_before": True},
            "`normalize_before` of a bart config must be False",
        ),
        ("google/pegasus-xsum", {"static_position_embeddings": False}, "`static_position_embeddings`"),
        ("google/gemma-2-2b", {"use_bidirectional_attention": True}, "`use_bidirectional_attention`"),
        ("microsoft/swin-tiny-patch4-window7-224", {"hidden_size": 96}, "`hidden_size` of a swin config"),
        (
            "facebook/dinov2-with-registers-base",
            {"interpolate_antialias": False},
            "`interpolate_antialias` of a dinov2_with_registers config must be True",
        ),
        (
            "t5-small",
            {"feed_forward_proj": "gated-swishy"},
            "`feed_forward_proj` of a t5 config cannot be 'swishy': it must be one of",
        ),
        (
            "meta-llama/Llama-3.1-8B",
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "`rope_type` must be",
        ),
    ],
)
def test_what_changes_the_maths_is_refused(name, changed, match):
    with pytest.raises(ValueError, match=match):
        understood(name, **changed)


def test_a_quantised_checkpoint_is_refused():
    with pytest.raises(ValueError, match=r"weights that are quantised, .* quantization_config="):
        understood("meta-llama/Llama-3.1-8B", quantization_config={"bits": 4})


def _names_that_modelling_code_reads(config_class):
    """The fields that the files beside a config class of transformers read from a config."""
    folder = pathlib.Path(inspect.getfile(config_class)).parent
    code = "\n".join(path.read_text("utf-8") for path in folder.glob("modeling_*.py"))
    return set(re.findall(r"\bconfig\.([a-z_]\w*)", code))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_field_of_transformers_class_is_read_or_known_to_change_nothing(model_type):
    """All other fields change nothing in transformers either, so that they may be let through."""
    import transformers

    config_class = transformers.CONFIG_MAPPING[model_type]
    assert MODEL_TYPES[model_type].aliases == config_class.attribute_map
    config = {**config_class().to_dict(), "model_type": model_type}
    for name in _names_that_modelling_code_reads(config_class):
        if not hasattr(config_class, name) or name in config_class.__dataclass_fields__:  # else a method
            config.setdefault(name, None)
    fields = Fields(config, 2**62, 2**31)
    architecture = MODEL_TYPES[model_type].architecture(fields, NoFiles())
    for make_head in architecture.heads.values():
        make_head()
    of_others = {
        "text_config",
        "vision_config",
        "image_token_id",
        "mm_tokens_per_image",
    }  # Gemma 3 with images
    left = set(fields._config) - fields._read - config_fields._WITHOUT_EFFECT - of_others
    assert not left


def test_fields_of_other_programs_change_nothing():
    fields = Fields({**CONFIGS["Qwen/Qwen2.5-0.5B"], "unsloth_version": "1.2", "a_note": None}, 2**62, 2**31)
    MODEL_TYPES["qwen2"].architecture(fields, NoFiles())
    fields.refuse_not_obeyed()
    assert fields.unknown_names == ["unsloth_version"]
