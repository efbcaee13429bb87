"""Every architecture: a random checkpoint that transformers saved, loaded by us, gives the outputs of transformers."""

import numpy as np
import pytest
from helpers_checkpoints import CASES, END, PAD, rows, twins
from helpers_generation import compilers, quickest
from helpers_models import assert_close
from keras import ops

from keras_attn.generation import DecodingOptions

pytest.importorskip("transformers", reason='needs transformers: pip install "keras_attn[peers]"')
torch = pytest.importorskip("torch", reason='needs torch: pip install "keras_attn[peers]"')

# One configuration of each maths is tested by default.
SECOND_RANK = {
    *("bert", "xlm-roberta", "electra-one-width", "albert-groups", "llama-tied", "qwen2", "mt5", "mbart"),
    *("modernbert-plain", "gpt2-scaled-by-layer", "pegasus", "marian-two-vocabularies", "gemma2"),
}
# Encoders whose positions count tokens, not columns, in transformers; in ours they are passed.
COUNTS_TOKENS = ("roberta", "xlm-roberta", "mpnet")


def cases(kind, names=None):
    found = [name for name, case in CASES.items() if case[0] == kind and (names is None or name in names)]
    extended = pytest.mark.extended
    return [pytest.param(name, marks=extended if name in SECOND_RANK else ()) for name in found]


def of_torch(module, **inputs):
    with torch.no_grad():
        return module(**{name: torch.tensor(np.ascontiguousarray(x)).long() for name, x in inputs.items()})


def tokens(twin, side):
    pad = twin.config.pad_token_id
    return rows(5, 13, PAD if pad is None else pad, side)


def positions_of(mask):
    return np.maximum(np.cumsum(mask, axis=1) - 1, 0).astype("int32")


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", cases("encoder"))
def test_vectors_are_theirs(name, side):
    model, twin = twins(name)
    ids, mask = tokens(twin, side)
    ours, theirs = {"token_ids": ids, "padding_mask": mask}, {"input_ids": ids, "attention_mask": mask}
    if name in COUNTS_TOKENS:
        ours["positions"] = positions_of(mask)
    if model.embedding.token_type is not None and model.embedding.token_type.input_dim > 1:
        types = (np.arange(13) > 5).astype("int32") * np.ones_like(ids)
        ours["token_type_ids"] = theirs["token_type_ids"] = types
    body = getattr(twin, twin.base_model_prefix, twin)
    expected = of_torch(body, **theirs).last_hidden_state.numpy()
    assert_close(ops.convert_to_numpy(model(ours))[mask], expected[mask])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", cases("decoder"))
def test_logits_are_theirs(name, side):
    model, twin = twins(name)
    ids, mask = tokens(twin, side)
    positions = positions_of(mask)
    expected = of_torch(twin, input_ids=ids, attention_mask=mask, position_ids=positions).logits.numpy()
    logits = model({"token_ids": ids, "padding_mask": mask, "positions": positions})
    assert_close(ops.convert_to_numpy(logits)[mask], expected[mask])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", cases("seq2seq"))
def test_logits_of_a_target_are_theirs(name, side):
    model, twin = twins(name)
    source, source_mask = tokens(twin, side)
    target, target_mask = rows(6, 9, twin.config.pad_token_id)
    target[:, 0] = twin.config.decoder_start_token_id
    theirs = {"input_ids": source, "attention_mask": source_mask, "decoder_input_ids": target}
    expected = of_torch(twin, **theirs).logits.numpy()
    inputs = {
        "encoder_token_ids": source,
        "encoder_padding_mask": source_mask,
        "decoder_token_ids": target,
        "decoder_padding_mask": target_mask,
    }
    if name == "m2m_100":  # its sources count tokens, not columns
        inputs["encoder_positions"] = positions_of(source_mask)
    assert_close(ops.convert_to_numpy(model(inputs))[target_mask], expected[target_mask])


# qwen3's END is its pad; mistral's and the second GPT-2's pad is missing.
GENERATED = ("llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt2-scaled-by-layer", "gemma2", "gemma3")
TRANSLATED = ("t5", "t5-1.1", "bart", "mbart", "pegasus", "m2m_100", "marian")
FIRST_RANK = (("qwen3", 1), ("mistral", 1), ("marian", 4))


@pytest.mark.parametrize(
    ("name", "num_beams"),
    [
        pytest.param(name, num_beams, marks=() if (name, num_beams) in FIRST_RANK else pytest.mark.extended)
        for name in (*GENERATED, *TRANSLATED)
        for num_beams in (1, 4)
    ],
)
def test_answers_are_theirs(name, num_beams):
    model, twin = twins(name)
    config, length = twin.config, 9
    is_decoder = CASES[name][0] == "decoder"
    pad = PAD if config.pad_token_id is None else config.pad_token_id
    ids, mask = rows(7, 6, pad, "left" if is_decoder else "right")
    options = {"num_beams": num_beams, "num_return_sequences": num_beams, "max_length": length}
    options["options"] = DecodingOptions(exact_stopping=True)
    if is_decoder:
        start, mask_name = (config.eos_token_id,), "padding_mask"
    else:
        start, mask_name = (config.decoder_start_token_id, config.eos_token_id), "encoder_padding_mask"

    def generate(ids, mask):
        return model.generate(ids, *start, **{mask_name: mask}, **options)

    function = generate if model.pad_token_id < 0 else compilers()[quickest()](generate)
    ours, scores = map(
        ops.convert_to_numpy, function(ops.convert_to_tensor(ids), ops.convert_to_tensor(mask))
    )
    never = [] if config.pad_token_id in (None, config.eos_token_id) else [config.pad_token_id]
    theirs = twin.generate(
        torch.tensor(ids).long(),
        attention_mask=torch.tensor(np.ascontiguousarray(mask)).long(),
        num_beams=num_beams,
        do_sample=False,
        max_new_tokens=length,
        early_stopping="never" if num_beams > 1 else False,
        suppress_tokens=never or None,
        pad_token_id=config.eos_token_id if config.pad_token_id is None else config.pad_token_id,
    ).numpy()[:, ids.shape[1] if is_decoder else 1 :]
    compared = 0
    for row in range(len(ids)):
        if num_beams > 1 and scores[row, 0] - scores[row, 1] < 1e-5:
            continue
        assert until_end(ours[row, 0], config.eos_token_id) == until_end(theirs[row], config.eos_token_id)
        compared += 1
    assert compared > len(ids) - 3


def until_end(token_ids, end):
    token_ids = token_ids.tolist()
    return token_ids[: token_ids.index(end) + 1] if end in token_ids else token_ids


def test_a_row_of_qwen3_ends_though_its_pad_is_its_end():
    """Else the test above would not show that END can be written."""
    model, _ = twins("qwen3")
    assert model.pad_token_id == END
    ids, mask = rows(7, 6, END, "left")
    answers = ops.convert_to_numpy(model.generate(ids, END, padding_mask=mask, max_length=9))
    assert (answers == END).any()
