"""Ours beside transformers: outputs and answers of the same weights for the same tokens, as pairs (ours, theirs)."""

import atexit
import contextlib
import functools
import importlib
import json
import pathlib
import shutil
import tempfile
from unittest import mock

import helpers_vision
import numpy as np
import torch
import transformers
from helpers_checkpoints import CASES, END, PAD, START, V, checkpoint, make_twin, randomized, rows, twins
from helpers_generation import compilers, quickest
from keras import ops

from keras_attn import huggingface
from keras_attn.generation import DecodingOptions
from keras_attn.huggingface.model_types import MODEL_TYPES, writers
from keras_attn.models import EncoderWithHead, gives_logits, read_weights

# Encoders whose positions count tokens, not columns, in transformers; in ours they are passed.
COUNTS_TOKENS = ("Roberta", "XLMRoberta", "MPNet")
LENGTH = 9  # of answers


def of_torch(module, **inputs):
    """What a module returns for arrays of ids and masks."""
    with torch.no_grad():
        return module(**{name: torch.tensor(np.ascontiguousarray(x)).long() for name, x in inputs.items()})


def pad_of(twin):
    return PAD if twin.config.pad_token_id is None else twin.config.pad_token_id


def positions_of(mask):
    return np.maximum(np.cumsum(mask, axis=1) - 1, 0).astype("int32")


def outputs(name, side):
    """The vectors of an encoder, or the logits of any other model, at the real tokens of rows padded on a side."""
    return outputs_of(name, *twins(name), side)


def outputs_of(name, model, twin, side):
    """`outputs` of a model of ours and one of theirs, which are those of a case but for what config.json says."""
    functions = {"encoder": _vectors, "decoder": _logits, "seq2seq": _logits_of_a_target}
    return functions[CASES[name][0]](name, model, twin, *rows(5, 13, pad_of(twin), side))


def hidden_states(name, side):
    """What every block but the last returns at the real tokens, as pairs (ours, theirs)."""
    model, twin = twins(name)
    stacks, masks = [("blocks", twin.base_model)], [rows(5, 13, pad_of(twin), side)[1]]
    if CASES[name][0] == "seq2seq":
        stacks = [("encoder_blocks", twin.get_encoder()), ("decoder_blocks", twin.get_decoder())]
        masks.append(rows(6, 9, pad_of(twin))[1])
    with contextlib.ExitStack() as stack:
        kept = [_kept_states(stack, getattr(model, blocks), module) for blocks, module in stacks]
        outputs(name, side)
    pairs = []
    for (ours, theirs), mask in zip(kept, masks):
        # Theirs begin with the embeddings. An ALBERT layer may be several blocks of ours.
        step = len(ours) // (len(theirs[0]) - 1)
        pairs += [
            (ops.convert_to_numpy(x)[mask], y.numpy()[mask])
            for x, y in zip(ours[step - 1 : -step : step], theirs[0][1:], strict=False)
        ]
    return pairs


def _kept_states(stack, blocks, module):
    """Two lists, which a forward pass inside `stack` fills: outputs of our blocks, and their hidden states."""
    ours, theirs = [], []

    def keep(call):
        def kept(*args, **kwargs):
            output = call(*args, **kwargs)
            ours.append(output)
            return output

        return kept

    for block in {id(block): block for block in blocks}.values():  # one may stand there several times
        stack.enter_context(mock.patch.object(block, "call", keep(block.call)))
    stack.enter_context(mock.patch.object(module.config, "output_hidden_states", True))
    hook = module.register_forward_hook(lambda _, inputs, output: theirs.append(output.hidden_states))
    stack.callback(hook.remove)
    return ours, theirs


def columns_of(ids):
    """The positions of most of transformers' models, which count pads on the left too: ours count tokens."""
    return np.arange(ids.shape[1], dtype="int32")


def encoder_inputs(name, encoder, ids, mask):
    """The inputs of an encoder, for us and for transformers."""
    ours, theirs = {"token_ids": ids, "padding_mask": mask}, {"input_ids": ids, "attention_mask": mask}
    if CASES[name][1] not in COUNTS_TOKENS:
        ours["positions"] = columns_of(ids)
    token_type = encoder.embedding.token_type
    if token_type is not None and token_type.input_dim > 1:
        types = (np.arange(ids.shape[1]) > 5).astype("int32") * np.ones_like(ids)
        ours["token_type_ids"] = theirs["token_type_ids"] = types
    return ours, theirs


@functools.cache
def checkpoint_with_head(name, task):
    """The folder of an encoder with the head of a task, and transformers' model."""
    twin = make_twin(name, end=f"For{task}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="checkpoint-"))
    atexit.register(shutil.rmtree, folder)
    twin.save_pretrained(folder)
    return folder, twin


def logits_of_head(name, task, side):
    """The logits of an encoder with a head; but for those of whole texts, at the real tokens."""
    folder, twin = checkpoint_with_head(name, task)
    return logits_of_head_of(name, task, huggingface.load_model(folder), twin, side)


def logits_of_head_of(name, task, model, twin, side):
    """`logits_of_head` of a model of ours and one of theirs."""
    ids, mask = rows(5, 13, pad_of(twin), side)
    ours, theirs = encoder_inputs(name, model.encoder, ids, mask)
    found, expected = ops.convert_to_numpy(model(ours)), of_torch(twin, **theirs)
    if task == "QuestionAnswering":
        expected = torch.stack([expected.start_logits, expected.end_logits], dim=-1).numpy()
    else:
        expected = expected.logits.numpy()
    if (
        task == "SequenceClassification"
    ):  # it takes the first column, which is a token where pads are on the right
        real = mask[:, 0]
        return found[real], expected[real]
    return found[mask], expected[mask]


def _vectors(name, model, twin, ids, mask):
    ours, theirs = encoder_inputs(name, model, ids, mask)
    body = getattr(twin, twin.base_model_prefix, twin)
    expected = of_torch(body, **theirs).last_hidden_state.numpy()
    return ops.convert_to_numpy(model(ours))[mask], expected[mask]


def _logits(name, model, twin, ids, mask):
    positions = positions_of(mask)
    expected = of_torch(twin, input_ids=ids, attention_mask=mask, position_ids=positions).logits.numpy()
    logits = model({"token_ids": ids, "padding_mask": mask, "positions": positions})
    return ops.convert_to_numpy(logits)[mask], expected[mask]


def _logits_of_a_target(name, model, twin, source, source_mask):
    target, target_mask = rows(6, 9, pad_of(twin))
    target[:, 0] = twin.config.decoder_start_token_id
    theirs = {"input_ids": source, "attention_mask": source_mask, "decoder_input_ids": target}
    expected = of_torch(twin, **theirs).logits.numpy()
    inputs = {
        "encoder_token_ids": source,
        "encoder_padding_mask": source_mask,
        "decoder_token_ids": target,
        "decoder_padding_mask": target_mask,
    }
    if CASES[name][1] != "M2M100":
        inputs["encoder_positions"] = columns_of(source)
    return ops.convert_to_numpy(model(inputs))[target_mask], expected[target_mask]


def answers(name, num_beams, num_rows):
    """A pair of lists of ids for each prompt or source, but for those whose best two hypotheses are as good."""
    model, twin = twins(name)
    is_decoder = CASES[name][0] == "decoder"
    ids, mask = rows(7, 6, pad_of(twin), "left" if is_decoder else "right", num_rows)
    ours, scores = _our_answers(model, twin.config, is_decoder, ids, mask, num_beams)
    theirs = _their_answers(twin, ids, mask, num_beams)[:, ids.shape[1] if is_decoder else 1 :]
    end = twin.config.eos_token_id
    return [
        (until_end(ours[row, 0], end), until_end(theirs[row], end))
        for row in range(len(ids))
        if num_beams == 1 or scores[row, 0] - scores[row, 1] >= 1e-5
    ]


def _our_answers(model, config, is_decoder, ids, mask, num_beams):
    options = {"num_beams": num_beams, "num_return_sequences": num_beams, "max_length": LENGTH}
    options["options"] = DecodingOptions(exact_stopping=True)
    if is_decoder:
        start, mask_name = (config.eos_token_id,), "padding_mask"
    else:
        start, mask_name = (config.decoder_start_token_id, config.eos_token_id), "encoder_padding_mask"

    def generate(ids, mask):
        return model.generate(ids, *start, **{mask_name: mask}, **options)

    function = generate if model.pad_token_id < 0 else compilers()[quickest()](generate)
    return map(ops.convert_to_numpy, function(ops.convert_to_tensor(ids), ops.convert_to_tensor(mask)))


def _their_answers(twin, ids, mask, num_beams):
    config = twin.config
    never = [] if config.pad_token_id in (None, config.eos_token_id) else [config.pad_token_id]
    return twin.generate(
        torch.tensor(ids).long(),
        attention_mask=torch.tensor(np.ascontiguousarray(mask)).long(),
        num_beams=num_beams,
        do_sample=False,
        max_new_tokens=LENGTH,
        early_stopping="never" if num_beams > 1 else False,
        suppress_tokens=never or None,
        pad_token_id=config.eos_token_id if config.pad_token_id is None else config.pad_token_id,
    ).numpy()


def until_end(token_ids, end):
    token_ids = token_ids.tolist()
    return token_ids[: token_ids.index(end) + 1] if end in token_ids else token_ids


def is_written(name):
    """Whether models of this architecture can be saved as checkpoints."""
    return checkpoint_type(name) in writers()


def checkpoint_type(name):
    return json.loads((checkpoint(name)[0] / "config.json").read_text("utf-8"))["model_type"]


def written(name, folder):
    """{tensor: values} of a checkpoint that was loaded and saved, and of the checkpoint, bodies named alike."""
    model, twin = twins(name)
    huggingface.save_model(model, folder, checkpoint_type(name))
    return [
        {
            tensor.removeprefix(f"{twin.base_model_prefix}."): _read_rows(tensor, array)
            for tensor, array in arrays.items()
        }
        for arrays in (
            read_weights(pathlib.Path(path) / "model.safetensors") for path in (folder, checkpoint(name)[0])
        )
    ]


def _read_rows(tensor, array):
    """T5's encoder shares its buckets between two directions: of an odd number, nothing reads the last."""
    is_shared = tensor.startswith("encoder.") and tensor.endswith("relative_attention_bias.weight")
    return array[: len(array) // 2 * 2] if is_shared else array


def write_tokenizer(name, folder):
    """Gives a checkpoint's folder a tokenizer: one word for each id."""
    kind, _, _, fields = CASES[name]
    words = [f"w{i}" for i in range(fields["vocab_size"])]
    end, start = (fields.get(f"{role}_token_id") for role in ("eos", "bos"))
    ids = {"pad_token": fields.get("pad_token_id"), "eos_token": END if end is None else end}
    ids |= {"bos_token": START if start is None else start, "unk_token": 3, "mask_token": 4}
    ids |= {"cls_token": ids["bos_token"], "sep_token": ids["eos_token"]}
    roles = {role: words[i] for role, i in ids.items() if i is not None}
    template = {
        "encoder": ["bos_token", None, "eos_token"],
        "decoder": [None],
        "seq2seq": [None, "eos_token"],
    }
    pieces = [
        {"Sequence": {"id": "A", "type_id": 0}}
        if role is None
        else {"SpecialToken": {"id": roles[role], "type_id": 0}}
        for role in template[kind]
    ]
    special = {
        word: {"id": word, "ids": [words.index(word)], "tokens": [word]} for word in set(roles.values())
    }
    options = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    description = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": words[i], **options} for i in sorted(map(words.index, special))
        ],
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": pieces,
            "pair": [*pieces, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": special,
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "model": {
            "type": "WordPiece",
            "unk_token": roles["unk_token"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: i for i, word in enumerate(words)},
        },
    }
    description |= dict.fromkeys(("truncation", "padding", "normalizer"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 24, **roles}
    (folder / "tokenizer.json").write_text(json.dumps(description), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")


# Every class of transformers of the types that are read: tiny, with random weights.

# The case of `helpers_checkpoints` or `helpers_vision` with the fields of a type, if it is not of the type's name.
_CASE_NAMES = {"gemma3_text": "gemma3", "dinov2_with_registers": "dinov2-registers"}


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
    case = _CASE_NAMES.get(model_type, model_type)
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


def answers_of_twins(model, twin):
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
