"""Configs that are unlike most: other sizes and options, older forms, fields that are left to their defaults."""

import json

import pytest
from helpers_checkpoints import CASES, END, checkpoint, twins
from helpers_models import assert_close
from helpers_parity import outputs

from keras_attn import huggingface


def _yarn(**options):
    return {
        "rope_type": "yarn",
        "rope_theta": 100.0,
        "factor": 1.7,
        "original_max_position_embeddings": 11,
        **options,
    }


def _llama3(**options):
    return {"rope_type": "llama3", "factor": 3.3, "low_freq_factor": 1.3, "high_freq_factor": 3.7, **options}


_LLAMA3 = _llama3(rope_theta=123.0, original_max_position_embeddings=16)
_OWN_TABLES = {"tie_word_embeddings": False}

# title: (case, other fields, what config.json says else, fields that config.json lacks); the last two mean the same model.
ODD = {
    "three groups": (
        "llama",
        {
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 6,
            "hidden_size": 27,
            "vocab_size": 101,
        },
    ),
    "heads wider than the model, with biases, whose END is the pad": (
        "llama",
        {
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 14,
            "hidden_size": 45,
            "attention_bias": True,
            "mlp_bias": True,
            "vocab_size": 89,
            "pad_token_id": END,
        },
    ),
    "no START and no pad": (
        "llama",
        {"bos_token_id": None, "pad_token_id": None, "hidden_act": "gelu_pytorch_tanh"},
    ),
    "windows of Qwen 2 from a layer on": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "vocab_size": 67},
    ),
    "one group": ("llama", {"num_key_value_heads": 1, "vocab_size": 97, "hidden_size": 30}),
    "Llama 3's scaling": (
        "llama",
        {"rope_parameters": _LLAMA3},
        {"rope_theta": 123.0, "rope_scaling": _llama3(original_max_position_embeddings=16)},
        ["rope_parameters"],
    ),
    "the original length in the config itself": (
        "llama",
        {"rope_parameters": _LLAMA3},
        {"original_max_position_embeddings": 16, "rope_parameters": _llama3(rope_theta=123.0)},
    ),
    "yarn with scales": ("mistral", {"rope_parameters": _yarn(mscale=0.7, mscale_all_dim=1.0)}),
    "yarn with one scale": ("mistral", {"rope_parameters": _yarn(mscale=0.7)}),
    "yarn with scales and a factor": (
        "mistral",
        {"rope_parameters": _yarn(mscale=0.7, mscale_all_dim=1.0, attention_factor=1.1)},
    ),
    "yarn without rounding": ("mistral", {"rope_parameters": _yarn(truncate=False, beta_fast=5)}),
    "no window": ("mistral", {"sliding_window": None}),
    "Mistral's defaults": (
        "mistral",
        {"num_key_value_heads": 8, "num_attention_heads": 16, "hidden_size": 16, "sliding_window": 4096},
        {},
        ["num_key_value_heads", "sliding_window"],
    ),
    "Qwen 3's defaults": (
        "qwen3",
        {"head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 10},
        {},
        ["head_dim"],
    ),
    "windows of Qwen 2 by the kinds of layers": (
        "qwen2",
        {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 4},
    ),
    "Gemma 3's pattern": (
        "gemma3",
        {
            "num_hidden_layers": 5,
            "layer_types": [f"{'full' if i == 2 else 'sliding'}_attention" for i in range(5)],
        },
        {"sliding_window_pattern": 3},
        ["layer_types"],
    ),
    "Gemma 2 without caps": ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "RoBERTa's pad": ("roberta", {}, {}, ["pad_token_id"]),
    "ELECTRA's narrow embeddings": ("electra", {"embedding_size": 128}, {}, ["embedding_size"]),
    "more groups than layers": ("albert", {"num_hidden_layers": 2, "num_hidden_groups": 3}),
    "groups that are no divisor": ("albert", {"num_hidden_layers": 7, "num_hidden_groups": 3}),
    "more rows than buckets": ("mpnet", {"relative_attention_num_buckets": 37}),
    "every second layer": ("modernbert", {"global_attn_every_n_layers": 2, "local_attention": 7}),
    "odd buckets": ("t5", {"relative_attention_num_buckets": 33, "relative_attention_max_distance": 77}),
    "mT5's feed-forward": (
        "mt5",
        {"relative_attention_num_buckets": 9},
        {},
        ["feed_forward_proj", "is_gated_act"],
    ),
    "M2M-100's defaults": ("m2m_100", {}, {}, ["scale_embedding", "activation_function"]),
    "three tables in BART": ("bart", _OWN_TABLES),
    "three tables in M2M-100": ("m2m_100", _OWN_TABLES),
    "three tables in Marian": ("marian", _OWN_TABLES),
    "three tables in a Marian with two vocabularies": ("marian-two-vocabularies", _OWN_TABLES),
    "sides that differ": ("bart", {"encoder_layers": 3, "decoder_layers": 1, "encoder_ffn_dim": 11}),
}
FIRST_RANK = {"three groups"}


def change(folder, edit, lacking):
    config = json.loads((folder / "config.json").read_text("utf-8"))
    kept = {name: value for name, value in config.items() if name not in lacking}
    (folder / "config.json").write_text(json.dumps({**kept, **edit}), "utf-8")


def odd(title, case, fields, edit=None, lacking=()):
    """Makes the checkpoint of an odd config, and its folder."""
    kind, *names, usual = CASES[case]
    CASES[title] = (kind, *names, {**usual, **fields})
    try:
        folder, _ = checkpoint(title)
        change(folder, edit or {}, lacking)
        return [outputs(title, side) for side in ("right", "left")]
    finally:
        del CASES[title]


@pytest.mark.parametrize(
    "title", [pytest.param(t, marks=() if t in FIRST_RANK else pytest.mark.extended) for t in ODD]
)
def test_outputs_are_theirs(title):
    for ours, theirs in odd(title, *ODD[title]):
        # Where it is more than 1e-5, both are as far from the same model in float64.
        assert_close(ours, theirs, 2e-5 if title == "mT5's feed-forward" else 1e-5)


@pytest.mark.parametrize(
    ("case", "fields", "match"),
    [
        ("m2m_100", {"d_model": 15}, "`d_model` of an m2m_100 config must be even"),
        ("mpnet", {"relative_attention_num_buckets": 7}, "`relative_attention_num_buckets` of an mpnet"),
        ("gemma3", {"attn_logit_softcapping": 3.0}, "`attn_logit_softcapping` of a gemma3_text config"),
        ("llama", {"rope_parameters": _yarn(mscale="1")}, "`mscale`, `mscale_all_dim` and `factor` must be"),
    ],
)
def test_what_has_no_answer_is_refused(case, fields, match, tmp_path):
    folder, _ = checkpoint(case)
    before = (folder / "config.json").read_text("utf-8")
    try:
        change(folder, fields, ())
        with pytest.raises(ValueError, match=match):
            huggingface.read_report(folder)
    finally:
        (folder / "config.json").write_text(before, "utf-8")


@pytest.mark.extended
def test_a_model_with_one_table_is_still_one():
    """Its file has one, or equal ones; those of another dtype or of older transformers have one too."""
    model, _ = twins("bart")
    assert model.source_embedding.token is model.target_embedding.token
