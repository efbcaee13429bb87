"""Models of our sizes as checkpoints: loaded by transformers with the same outputs, or an error."""

import json

import keras
import numpy as np
import pytest
import torch
import transformers
from helpers_checkpoints import V, rows
from helpers_models import assert_close
from keras import ops

from keras_attn import huggingface, layers
from keras_attn.models import DecoderTransformer, EncoderTransformer, Seq2SeqTransformer

SIZES = {"hidden_dim": 20, "num_heads": 5, "intermediate_dim": 31, "max_sequence_length": 37}


def gpt2_of_sizes():
    return DecoderTransformer.from_sizes(V, 2, **SIZES)


def test_a_model_of_our_sizes_goes_out_as_gpt2(tmp_path):
    model = gpt2_of_sizes()
    huggingface.save_model(model, tmp_path, "gpt2", eos_token_id=3)
    assert json.loads((tmp_path / "config.json").read_text("utf-8"))["eos_token_id"] == 3
    twin = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    ids, mask = rows(5, 13, 0)
    with torch.no_grad():
        expected = twin(torch.tensor(ids).long(), attention_mask=torch.tensor(mask).long()).logits.numpy()
    assert_close(ops.convert_to_numpy(model(ids))[mask], expected[mask])


@pytest.mark.extended
@pytest.mark.parametrize("tie_output", [True, False])
@pytest.mark.parametrize(
    ("model_type", "options"),
    [("pegasus", {"normalize_first": True}), ("marian", {}), ("marian", {"target_vocabulary_size": 47})],
)
def test_a_translation_model_goes_out(model_type, options, tie_output, tmp_path):
    """Its sines and cosines alternate, theirs do not: the channels of all weights change their order."""
    model = Seq2SeqTransformer.from_sizes(V, 2, 3, **SIZES, **options, tie_output=tie_output)
    rng = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape) * 0.3)
    huggingface.save_model(model, tmp_path, model_type, eos_token_id=3, decoder_start_token_id=2)
    name = {"marian": "MarianMTModel", "pegasus": "PegasusForConditionalGeneration"}[model_type]
    twin, report = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    twin.eval()
    # Pegasus computes its sines.
    assert not [tensor for tensor in report["missing_keys"] if "embed_positions" not in tensor]
    (source, mask), (target, target_mask) = rows(5, 13, 0), rows(6, 9, 0)
    target = np.minimum(target, 46)
    with torch.no_grad():
        arrays = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target}
        expected = twin(**{key: torch.tensor(array).long() for key, array in arrays.items()}).logits.numpy()
    inputs = {"encoder_token_ids": source, "decoder_token_ids": target, "decoder_padding_mask": target_mask}
    again = huggingface.load_model(tmp_path)
    for ours in (model, again):
        assert_close(ops.convert_to_numpy(ours(inputs))[target_mask], expected[target_mask])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("model_type", "make", "match"),
    [
        (
            "gpt2",
            lambda: DecoderTransformer.from_sizes(V, 2, **SIZES, scale_embedding=True),
            "scale would be False",
        ),
        (
            "gpt2",
            lambda: DecoderTransformer.from_sizes(V, 2, **SIZES, position_encoding="rotary"),
            "not the parts of a gpt2",
        ),
        ("bert", gpt2_of_sizes, "not the parts of a bert"),
        (
            "marian",
            lambda: Seq2SeqTransformer.from_sizes(V, 2, 2, **SIZES, position_encoding="rotary"),
            "position would be {'module'.*SinusoidalPositionEncoding.* Received: None|rotary_embedding would be None",
        ),
        ("pegasus", lambda: Seq2SeqTransformer.from_sizes(V, 2, 2, **SIZES), "normalize_first would be True"),
        (
            "pegasus",
            lambda: Seq2SeqTransformer.from_sizes(V, 2, 2, 47, **SIZES, normalize_first=True),
            "A pegasus has one token embedding for both sides",
        ),
        ("mistral", gpt2_of_sizes, "`model_type` must be one of"),
    ],
)
def test_what_an_architecture_cannot_express_is_refused(model_type, make, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        huggingface.save_model(make(), tmp_path / "out", model_type)
    assert not (tmp_path / "out").exists()


def test_blocks_that_differ_are_refused(tmp_path):
    blocks = [layers.EncoderBlock(31, 5, activation=activation) for activation in ("relu", "gelu")]
    model = EncoderTransformer(
        layers.SequenceEmbedding(
            layers.TokenEmbedding(V, 20, scale=False),
            layers.PositionEmbedding(37),
            keras.layers.Embedding(2, 20),
        ),
        blocks,
    )
    with pytest.raises(ValueError, match="A bert cannot be this model"):
        huggingface.save_model(model, tmp_path, "bert")
