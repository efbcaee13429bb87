"""LLaMA, BERT, T5 v1.1 and Marian, composed of the public parts, against transformers with the same weights."""

import functools

import keras
import numpy as np
import pytest
from helpers_architectures import (
    END,
    MARIAN_END,
    MARIAN_PAD,
    PAD,
    START,
    V,
    bert,
    bert_twin,
    llama,
    llama_twin,
    marian,
    marian_twin,
    t5,
    t5_twin,
)
from helpers_generation import compilers, quickest
from helpers_marks import slow_but
from helpers_models import assert_close
from keras import ops

from keras_attn.generation import DecodingOptions

pytest.importorskip("transformers", reason='needs transformers: pip install "keras_attn[peers]"')
torch = pytest.importorskip("torch", reason='needs torch: pip install "keras_attn[peers]"')

MAX_LENGTH, NUM_ROWS = 11, 23


@functools.cache
def twins(name):
    """Our model, and transformers'; every array of the latter was put into the former, or is known to be of no use."""
    make_twin, make = {"llama": (llama_twin, llama), "t5": (t5_twin, t5), "marian": (marian_twin, marian)}[
        name
    ]
    twin = make_twin()
    model, state = make(twin)
    assert not state.left
    return model, twin


def rows(seed, length, end, pad, first=None):
    """Rows of different lengths, each with END at its end, padded on the right."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(3, V - 1, (NUM_ROWS, length)).astype("int32")
    for row, size in enumerate(rng.integers(2, length + 1, NUM_ROWS)):
        ids[row, size - 1], ids[row, size:] = end, pad
    if first is not None:
        ids[:, 0] = first
    return ids


def to_torch(ids):
    return torch.tensor(ids).long()


def their_logits(twin, **inputs):
    with torch.no_grad():
        return twin(**{name: to_torch(ids) for name, ids in inputs.items()}).logits.numpy()


def assert_answers_are_theirs(generate, twin, num_beams, end, pad, first, **inputs):
    """Greedy search and beam search, token for token, where no two of a row's best have the same score."""
    options = DecodingOptions(exact_stopping=True)
    arguments = {"num_beams": num_beams, "num_return_sequences": num_beams, "options": options}
    ours, scores = (ops.convert_to_numpy(x) for x in generate(**arguments))
    with torch.no_grad():
        theirs = twin.generate(
            **{name: to_torch(ids) for name, ids in inputs.items()},
            num_beams=num_beams,
            do_sample=False,
            max_new_tokens=MAX_LENGTH,
            suppress_tokens=[pad],
            early_stopping="never" if num_beams > 1 else False,
            pad_token_id=pad,
            eos_token_id=end,
        ).numpy()[:, first:]
    compared, lengths = 0, set()
    for row in range(NUM_ROWS):
        if num_beams > 1 and scores[row, 0] - scores[row, 1] < 1e-5:
            continue
        best = ours[row, 0].tolist()
        best = best[: best.index(end) + 1] if end in best else best
        their_best = theirs[row].tolist()
        their_best = their_best[: their_best.index(end) + 1] if end in their_best else their_best
        assert best == their_best, row
        compared += 1
        lengths.add(len(best))
    assert compared > NUM_ROWS - 4
    assert len(lengths) > 1, lengths  # some end before the limit


def assert_it_comes_back(model, inputs, path):
    """`.keras`: the same bits, and as many weights: what was shared still is."""
    model.save(path / "model.keras")
    again = keras.saving.load_model(path / "model.keras")
    np.testing.assert_array_equal(ops.convert_to_numpy(again(inputs)), ops.convert_to_numpy(model(inputs)))
    assert len(again.weights) == len(model.weights) == len({id(weight) for weight in again.weights})
    return again


# --- LLaMA ---


def test_llama_logits():
    model, twin = twins("llama")
    ids = rows(5, 13, END, PAD, START)
    mask = ids != PAD
    logits = ops.convert_to_numpy(model({"token_ids": ids, "padding_mask": mask}))
    assert_close(logits[mask], their_logits(twin, input_ids=ids, attention_mask=mask)[mask])


@pytest.mark.extended
@pytest.mark.parametrize("num_beams", slow_but([4], [1, 4]))
def test_llama_generates(num_beams):
    model, twin = twins("llama")
    prompt = np.random.default_rng(7).integers(3, V, (NUM_ROWS, 5)).astype("int32")
    prompt[:, 0] = START
    for row in range(NUM_ROWS):
        prompt[row] = np.roll(
            np.where(np.arange(5) < 5 - row % 4, prompt[row], PAD), row % 4
        )  # padded on the left

    def generate(**arguments):
        function = compilers()[quickest()](
            lambda ids: model.generate(ids, END, max_length=MAX_LENGTH, **arguments)
        )
        return function(ops.convert_to_tensor(prompt))

    inputs = {"input_ids": prompt, "attention_mask": prompt != PAD}
    assert_answers_are_theirs(generate, twin, num_beams, END, PAD, prompt.shape[1], **inputs)


def test_llama_comes_back(tmp_path):
    assert_it_comes_back(twins("llama")[0], {"token_ids": rows(5, 7, END, PAD, START)}, tmp_path)


# --- BERT ---


def test_bert_vectors_and_logits(tmp_path):
    twin = bert_twin()
    model, state, head = bert(twin)
    # The decoder's weights are the embeddings, and positions a constant.
    assert {name for name in state.left if "decoder" not in name and "position_ids" not in name} == set()
    ids = rows(5, 13, END, PAD)
    types = (np.arange(13) > 5).astype("int32") * np.ones_like(ids)
    mask = ids != PAD
    inputs = {"token_ids": ids, "padding_mask": mask, "token_type_ids": types}
    vectors = model(inputs)
    theirs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    with torch.no_grad():
        expected = twin.bert(**{k: to_torch(v) for k, v in theirs.items()}).last_hidden_state.numpy()
    assert_close(ops.convert_to_numpy(vectors)[mask], expected[mask])
    assert_close(ops.convert_to_numpy(head(vectors))[mask], their_logits(twin, **theirs)[mask])
    assert_it_comes_back(model, inputs, tmp_path)


# --- T5 v1.1 and Marian, whose START is the pad ---

SEQ2SEQ = {"t5": (PAD, END), "marian": (MARIAN_PAD, MARIAN_END)}


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_seq2seq_logits(name):
    (model, twin), (pad, end) = twins(name), SEQ2SEQ[name]
    source, target = rows(5, 13, end, pad), rows(6, 9, end, pad)
    target_mask = target != pad  # of the labels, and so of what is read where they are written
    target = np.concatenate([np.full((NUM_ROWS, 1), pad, "int32"), target[:, :-1]], axis=1)
    inputs = {
        "encoder_token_ids": source,
        "encoder_padding_mask": source != pad,
        "decoder_token_ids": target,
        "decoder_padding_mask": target_mask,
    }
    expected = their_logits(twin, input_ids=source, attention_mask=source != pad, decoder_input_ids=target)
    assert_close(ops.convert_to_numpy(model(inputs))[target_mask], expected[target_mask])


@pytest.mark.extended
@pytest.mark.parametrize("num_beams", slow_but([4], [1, 4]))
@pytest.mark.parametrize("name", slow_but(["t5"], SEQ2SEQ))
def test_seq2seq_generates(name, num_beams):
    (model, twin), (pad, end) = twins(name), SEQ2SEQ[name]
    source = rows(5, 13, end, pad)

    def generate(**arguments):
        function = compilers()[quickest()](
            lambda ids: model.generate(ids, pad, end, max_length=MAX_LENGTH, **arguments)
        )
        return function(ops.convert_to_tensor(source))

    inputs = {"input_ids": source, "attention_mask": source != pad}
    assert_answers_are_theirs(generate, twin, num_beams, end, pad, 1, **inputs)


@pytest.mark.extended
@pytest.mark.parametrize("name", slow_but(["t5"], SEQ2SEQ))
def test_seq2seq_comes_back(name, tmp_path):
    model, _ = twins(name)
    inputs = {
        "encoder_token_ids": rows(5, 7, *SEQ2SEQ[name][::-1]),
        "decoder_token_ids": np.array([[5, 6, 7, 8]] * NUM_ROWS, "int32"),
    }
    for again in (
        assert_it_comes_back(model, inputs, tmp_path),
        type(model).from_config(model.get_config()),
        keras.models.clone_model(model),
    ):
        assert again.source_embedding is again.target_embedding
        assert again.source_embedding is not model.source_embedding
        assert len(again.weights) == len(model.weights)
        if name == "t5":
            biases = [block.self_attention.position_bias for block in again.encoder_blocks]
            assert biases[0] is biases[1]
            assert biases[0] is not again.decoder_blocks[0].self_attention.position_bias
