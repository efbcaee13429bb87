"""The classes of transformers of the types that are read: tiny, with random weights, and what they and ours answer."""

import importlib

import helpers_vision
import numpy as np
import torch
import transformers
from helpers_checkpoints import CASES, END, PAD, V, randomized
from keras import ops

from keras_attn.huggingface.model_types import MODEL_TYPES
from keras_attn.models import EncoderWithHead, gives_logits

# The case of `helpers_checkpoints` or `helpers_vision` with the fields of a type, if it is not of the type's name.
_CASES = {
    "xlm-roberta": "xlm-roberta",
    "gemma3_text": "gemma3",
    "dinov2_with_registers": "dinov2-registers",
    "marian": "marian",
}


def classes_of(model_type):
    """The names of all classes of transformers that have weights of this type."""
    config_class = transformers.models.auto.configuration_auto.CONFIG_MAPPING[model_type]
    module = importlib.import_module(config_class.__module__.replace("configuration", "modeling"))
    names = [name for name in module.__all__ if isinstance(getattr(module, name), type)]
    return [
        name
        for name in names
        if getattr(getattr(module, name), "config_class", None) is config_class
        and not name.startswith("Pretrained")
        and not name.lower().endswith("pretrainedmodel")
    ]


def fields_of(model_type):
    """The fields of a tiny config."""
    case = _CASES.get(model_type, model_type)
    return helpers_vision.CASES[case][2] if case in helpers_vision.CASES else CASES[case][3]


def twin_of(model_type, class_name, **fields):
    """A model of transformers with random weights."""
    twin_class = getattr(transformers, class_name)
    config = transformers.AutoConfig.for_model(model_type, **{**fields_of(model_type), **fields})
    return randomized(twin_class(config), seed=5)


def texts():
    """Ids (B, T) and their mask: each text has one END, which is its last token."""
    rng, lengths = np.random.default_rng(7), np.array([[11], [7], [9]])
    ids, columns = rng.integers(5, V - 3, (3, 11)), np.arange(11)
    ids = np.where(columns == lengths - 1, END, ids)
    return np.where(columns < lengths, ids, PAD).astype("int32"), columns < lengths


def answers(model, twin):
    """What ours and theirs return for the same texts or images, at real tokens, as a pair of arrays."""
    if MODEL_TYPES[twin.config.model_type].kind == "images":
        x = helpers_vision.images(*((24, 24) if twin.config.model_type == "swin" else (21, 21)))
        return helpers_vision.ours(model, x), helpers_vision.theirs(twin, x)
    ids, mask = texts()
    # END may be the pad of a decoder, whose texts need none.
    end = twin.config.eos_token_id if twin.config.is_encoder_decoder else 9
    ids, pad = np.where(ids == END, end, ids), twin.config.pad_token_id
    ids = np.where(mask, ids, PAD if pad is None else pad).astype("int32")
    if pad is None:
        ids, mask = ids[:1], mask[:1]
    ours, theirs = {"token_ids": ids, "padding_mask": mask}, {"input_ids": ids, "attention_mask": mask}
    if twin.config.is_encoder_decoder and not isinstance(model, EncoderWithHead):
        target = np.broadcast_to(ids[:1, :7], (len(ids), 7))
        ours = {"encoder_token_ids": ids, "encoder_padding_mask": mask, "decoder_token_ids": target}
        ours["decoder_padding_mask"] = np.ones(target.shape, "bool")
        theirs["decoder_input_ids"], mask = target, np.ones(target.shape, "bool")
    with torch.no_grad():
        output = twin(**{name: torch.tensor(np.ascontiguousarray(x)).long() for name, x in theirs.items()})
    if "start_logits" in output:
        expected = torch.stack([output.start_logits, output.end_logits], dim=-1).numpy()
    else:
        expected = (output.logits if "logits" in output else output.last_hidden_state).numpy()
    if "last_hidden_state" not in output or not gives_logits(model):
        found = model(ours)
    elif twin.config.is_encoder_decoder:
        sequence = model.encode(ids, ours["encoder_padding_mask"])
        found = model.decoder_sequence(target, sequence, ours["encoder_padding_mask"], mask)
    else:
        found = model.sequence_and_mask(ours)[0]
    found = ops.convert_to_numpy(found)
    return (found[mask], expected[mask]) if expected.ndim == 3 else (found, expected)
