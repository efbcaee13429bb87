"""Tiny random checkpoints: transformers' models with random weights, saved by transformers, loaded by us."""

import functools
import json
import pathlib
import tempfile

import numpy as np

from keras_attn import huggingface

V = 53
PAD, START, END = 0, 1, 2
NUM_ROWS = 11
_FOLDERS = []  # removed when the process ends


def _bert(**options):
    return {
        "vocab_size": V,
        "hidden_size": 35,
        "num_hidden_layers": 2,
        "num_attention_heads": 5,
        "intermediate_size": 31,
        "max_position_embeddings": 29,
        **options,
    }


def _llama(**options):
    return {
        "vocab_size": V,
        "hidden_size": 42,
        "intermediate_size": 37,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "max_position_embeddings": 61,
        "rms_norm_eps": 1e-3,
        "pad_token_id": PAD,
        "bos_token_id": START,
        "eos_token_id": END,
        **options,
    }


def _bart(**options):
    return {
        "vocab_size": V,
        "d_model": 14,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 7,
        "encoder_ffn_dim": 27,
        "decoder_ffn_dim": 31,
        "max_position_embeddings": 43,
        "pad_token_id": PAD,
        "bos_token_id": START,
        "eos_token_id": END,
        "decoder_start_token_id": END,
        "forced_eos_token_id": None,
        "scale_embedding": True,
        **options,
    }


def _t5(**options):
    return {
        "vocab_size": V,
        "d_model": 22,
        "d_kv": 5,
        "d_ff": 29,
        "num_layers": 2,
        "num_heads": 3,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 19,
        "pad_token_id": PAD,
        "decoder_start_token_id": PAD,
        "eos_token_id": END,
        **options,
    }


_YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 3.0,
    "original_max_position_embeddings": 20,
    "beta_fast": 4.0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_GLOBAL_AND_LOCAL = {
    "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}

# name: (kind, the beginning of transformers' class names, the class, the fields of the config)
CASES = {
    "bert": ("encoder", "Bert", "Model", _bert(pad_token_id=PAD, layer_norm_eps=1e-5)),
    "bert-with-head": ("encoder", "Bert", "ForMaskedLM", _bert(hidden_act="gelu_new", pad_token_id=7)),
    "roberta": ("encoder", "Roberta", "Model", _bert(pad_token_id=1, type_vocab_size=1)),
    "xlm-roberta": ("encoder", "XLMRoberta", "ForMaskedLM", _bert(pad_token_id=3, type_vocab_size=1)),
    "electra": ("encoder", "Electra", "Model", _bert(embedding_size=13, pad_token_id=PAD)),
    "electra-one-width": ("encoder", "Electra", "ForPreTraining", _bert(embedding_size=35)),
    "distilbert": (
        "encoder",
        "DistilBert",
        "ForMaskedLM",
        {
            "vocab_size": V,
            "dim": 35,
            "hidden_dim": 31,
            "n_layers": 2,
            "n_heads": 5,
            "max_position_embeddings": 29,
        },
    ),
    "albert": ("encoder", "Albert", "ForMaskedLM", _bert(num_hidden_layers=3, embedding_size=13)),
    "albert-groups": (
        "encoder",
        "Albert",
        "Model",
        _bert(num_hidden_layers=5, num_hidden_groups=2, inner_group_num=2, embedding_size=35),
    ),
    "mpnet": ("encoder", "MPNet", "ForMaskedLM", _bert(pad_token_id=1)),
    "modernbert": (
        "encoder",
        "ModernBert",
        "ForMaskedLM",
        _bert(
            hidden_size=30,
            num_hidden_layers=4,
            pad_token_id=PAD,
            bos_token_id=START,
            cls_token_id=START,
            eos_token_id=END,
            sep_token_id=END,
            local_attention=6,
            norm_bias=True,
            attention_bias=True,
            mlp_bias=True,
        ),
    ),
    "modernbert-plain": (
        "encoder",
        "ModernBert",
        "Model",
        _bert(
            hidden_size=30,
            num_hidden_layers=3,
            pad_token_id=PAD,
            bos_token_id=START,
            cls_token_id=START,
            eos_token_id=END,
            sep_token_id=END,
            local_attention=5,
        ),
    ),
    "llama": ("decoder", "Llama", "ForCausalLM", _llama()),
    "llama-tied": (
        "decoder",
        "Llama",
        "ForCausalLM",
        _llama(tie_word_embeddings=True, rope_parameters=_LLAMA3, attention_bias=True, mlp_bias=True),
    ),
    "mistral": (
        "decoder",
        "Mistral",
        "ForCausalLM",
        _llama(sliding_window=5, rope_parameters=_YARN, pad_token_id=None),
    ),
    "qwen2": (
        "decoder",
        "Qwen2",
        "ForCausalLM",
        _llama(use_sliding_window=True, sliding_window=3, max_window_layers=1, tie_word_embeddings=True),
    ),
    "qwen3": ("decoder", "Qwen3", "ForCausalLM", _llama(pad_token_id=END)),
    "gpt2": (
        "decoder",
        "GPT2",
        "LMHeadModel",
        {
            "vocab_size": V,
            "n_embd": 35,
            "n_layer": 3,
            "n_head": 5,
            "n_inner": 31,
            "n_positions": 61,
            "bos_token_id": START,
            "eos_token_id": END,
            "pad_token_id": PAD,
        },
    ),
    "gpt2-scaled-by-layer": (
        "decoder",
        "GPT2",
        "LMHeadModel",
        {
            "vocab_size": V,
            "n_embd": 15,
            "n_layer": 3,
            "n_head": 3,
            "n_positions": 61,
            "scale_attn_by_inverse_layer_idx": True,
            "tie_word_embeddings": False,
            "activation_function": "relu",
            "bos_token_id": END,
            "eos_token_id": END,
        },
    ),
    "gemma2": (
        "decoder",
        "Gemma2",
        "ForCausalLM",
        _llama(
            query_pre_attn_scalar=7, sliding_window=4, attn_logit_softcapping=3.0, final_logit_softcapping=5.0
        ),
    ),
    "gemma3": (
        "decoder",
        "Gemma3",
        "ForCausalLM",
        _llama(
            query_pre_attn_scalar=7,
            sliding_window=4,
            rope_parameters=_GLOBAL_AND_LOCAL,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
    ),
    "t5": ("seq2seq", "T5", "ForConditionalGeneration", _t5()),
    "t5-1.1": (
        "seq2seq",
        "T5",
        "ForConditionalGeneration",
        _t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False, relative_attention_num_buckets=7),
    ),
    "mt5": ("seq2seq", "MT5", "ForConditionalGeneration", _t5(num_decoder_layers=2)),
    "bart": ("seq2seq", "Bart", "ForConditionalGeneration", _bart(scale_embedding=False)),
    "mbart": ("seq2seq", "MBart", "ForConditionalGeneration", _bart()),
    "pegasus": ("seq2seq", "Pegasus", "ForConditionalGeneration", _bart(decoder_start_token_id=PAD)),
    "m2m_100": ("seq2seq", "M2M100", "ForConditionalGeneration", _bart(pad_token_id=1, bos_token_id=0)),
    "marian": (
        "seq2seq",
        "Marian",
        "MTModel",
        _bart(activation_function="swish", pad_token_id=V - 1, eos_token_id=0, decoder_start_token_id=V - 1),
    ),
    "marian-two-vocabularies": (
        "seq2seq",
        "Marian",
        "MTModel",
        _bart(
            decoder_vocab_size=V - 2,
            share_encoder_decoder_embeddings=False,
            pad_token_id=V - 3,
            eos_token_id=0,
            decoder_start_token_id=V - 3,
        ),
    ),
}


# By how much a middle-sized config of a case is larger.
_WIDER, _DEEPER = 8, 3
_WIDTHS = {
    *"""
        hidden_size intermediate_size embedding_size head_dim dim hidden_dim n_embd n_inner
    """.split(),
    *("d_model", "d_kv", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "query_pre_attn_scalar"),
}
_DEPTHS = {
    *("num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_decoder_layers"),
    *("encoder_layers", "decoder_layers", "layer_types"),
}


def add_middle_sized(name):
    """Adds the middle-sized config of a case to `CASES`, and returns its name."""
    *others, fields = CASES[name]
    wider = {field: _WIDER * fields[field] for field in _WIDTHS & set(fields)}
    deeper = {field: _DEEPER * fields[field] for field in _DEPTHS & set(fields)}
    CASES[f"{name}, middle-sized"] = (*others, fields | wider | deeper)
    return f"{name}, middle-sized"


def make_twin(name, seed=3, spread=0.25, end=None, **options):
    """A transformers model with random weights, norms and biases included: ones and zeros would hide mistakes.

    `end` is that of another class of the same architecture, `options` are more fields of its config."""
    import transformers

    _, start, own_end, fields = CASES[name]
    config_class = "Gemma3TextConfig" if start == "Gemma3" else f"{start}Config"
    twin = getattr(transformers, start + (end or own_end))(
        getattr(transformers, config_class)(**fields, **options)
    )
    return randomized(twin, seed, spread)


def randomized(twin, seed=3, spread=0.25):
    """A transformers model after all its weights were drawn anew, from one generator."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    fixed = "nothing"  # sines are no weights
    if type(twin).__name__.startswith(("Marian", "Pegasus", "M2M100")):
        fixed = "embed_positions"
    with torch.no_grad():
        named = [*twin.named_parameters()]
        named += [(n, b) for n, b in twin.named_buffers() if "final_logits_bias" in n]
        for parameter, weight in named:
            if fixed not in parameter:
                is_scale = "norm" in parameter.lower() and parameter.endswith("weight")
                # Wide layers get small weights, or no score but the largest would count, and float32 would not do.
                size = spread * (3 / weight.shape[-1] ** 0.5 if weight.shape[-1] > 100 else 1)
                weight.copy_(is_scale + size * torch.randn(weight.shape, generator=generator))
    return twin.eval()


@functools.cache
def checkpoint(name):
    """The folder of a case's checkpoint, and transformers' model."""
    twin = make_twin(name)
    _FOLDERS.append(tempfile.TemporaryDirectory(prefix="checkpoint-"))
    folder = pathlib.Path(_FOLDERS[-1].name)
    twin.save_pretrained(folder)
    return folder, twin


@functools.cache
def twins(name):
    """Our model from the checkpoint, without a head, and transformers'."""
    folder, twin = checkpoint(name)
    return huggingface.load_model(folder, head=False), twin


def rows(seed, length, pad, side="right", num_rows=NUM_ROWS):
    """Rows of different lengths, padded on one side, and their mask."""
    rng = np.random.default_rng(seed)
    others = np.setdiff1d(np.arange(V - 3), [pad, END, PAD, START])
    ids = rng.choice(others, (num_rows, length)).astype("int32")
    lengths = np.append(rng.integers(2, length, num_rows - 1), length)
    mask = np.arange(length) < lengths[:, None]
    if side == "left":
        mask = mask[:, ::-1]
    return np.where(mask, ids, pad).astype("int32"), mask


def change_config(folder, **fields):
    """Sets fields of a folder's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **fields}), "utf-8")
