"""What Seq2SeqTransformer and transformers' MarianMTModel of the same weights decode."""

import numpy as np
import pytest
from helpers_engines import (
    END,
    MAX_LENGTH,
    PAD,
    START,
    answer,
    briefly_trained_model,
    marian,
    sources,
    with_end,
)
from helpers_generation import compilers, quickest
from keras import ops

from keras_attn.generation import DecodingOptions

pytestmark = pytest.mark.extended

transformers = pytest.importorskip(
    "transformers", reason='needs transformers: pip install "keras_attn[peers]"'
)
torch = pytest.importorskip("torch", reason='needs torch: pip install "keras_attn[peers]"')


@pytest.fixture(scope="module")
def twins():
    model = briefly_trained_model()
    return model, marian(model)


def decoded(model, num_beams, options, **arguments):
    """Our n-best lists of ids, and scores (B, K)."""
    function = compilers()[quickest()](
        lambda token_ids: model.generate(
            token_ids,
            START,
            END,
            num_beams=num_beams,
            num_return_sequences=num_beams,
            max_length=MAX_LENGTH,
            options=DecodingOptions(exact_stopping=True, **options),
            **arguments,
        )
    )
    token_ids, scores = function(ops.convert_to_tensor(with_end(sources())))
    token_ids = ops.convert_to_numpy(token_ids)
    return [[answer(row) for row in rows] for rows in token_ids], ops.convert_to_numpy(scores)


def decoded_there(twin, num_beams, **options):
    source_ids = torch.tensor(with_end(sources())).long()
    with torch.no_grad():
        found = twin.generate(
            source_ids,
            attention_mask=source_ids != PAD,
            num_beams=num_beams,
            num_return_sequences=num_beams,
            do_sample=False,
            max_new_tokens=MAX_LENGTH,
            suppress_tokens=[PAD],
            early_stopping="never" if num_beams > 1 else False,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            **options,
        )
    # What is left over it fills with END, taking a pad of 0 for none.
    rows = [row[: row.index(END) + 1] if END in row else row for row in found.sequences[:, 1:].tolist()]
    lists = [rows[first : first + num_beams] for first in range(0, len(rows), num_beams)]
    if num_beams > 1:
        return lists, found.sequences_scores.numpy().reshape(-1, num_beams)
    log_probs = torch.log_softmax(torch.stack(found.logits, dim=1), dim=-1).numpy()
    totals = [sum(log_probs[row, step, id] for step, id in enumerate(ids)) for row, ids in enumerate(rows)]
    return lists, np.array([[total / len(ids)] for total, ids in zip(totals, rows)])


def check(ours, theirs, scores, their_scores, compared):
    """The best `compared` are the same, except where two of a list have the same score: either may come first."""
    untied = [row for row, of_row in enumerate(scores) if np.diff(of_row).max(initial=-1) < -1e-5]
    assert len(untied) > len(ours) - 8
    assert [ours[row][:compared] for row in untied] == [theirs[row][:compared] for row in untied]
    np.testing.assert_allclose(scores[:, :compared], their_scores[:, :compared], atol=1e-4)
    best = [tuple(lists[0]) for lists in ours]
    assert len(set(best)) > 100
    assert len({len(ids) for ids in best}) > 10
    assert sum(ids[-1] == END for ids in best) > 80


@pytest.mark.slow
def test_greedy_search_decodes_what_marian_does(twins):
    model, twin = twins
    ours, scores = decoded(model, 1, {})
    theirs, their_scores = decoded_there(twin, 1)
    check(ours, theirs, scores, their_scores, compared=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "length_penalty",
    [1.0, pytest.param(0.0, marks=pytest.mark.slow), pytest.param(0.6, marks=pytest.mark.slow)],
)
def test_beam_search_decodes_what_marian_does(twins, length_penalty):
    model, twin = twins
    ours, scores = decoded(model, 4, {}, length_penalty=length_penalty)
    theirs, their_scores = decoded_there(twin, 4, length_penalty=length_penalty)
    check(ours, theirs, scores, their_scores, compared=3)


@pytest.mark.parametrize("num_beams", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_options_are_those_of_transformers(twins, num_beams):
    model, twin = twins
    # Its greedy search takes the repetition penalty from raw logits.
    penalty = {"repetition_penalty": 1.2} if num_beams > 1 else {}
    ours, scores = decoded(
        model,
        num_beams,
        {"no_repeat_ngram_size": 3, "min_length": 5, "suppressed_token_ids": [START, 7], **penalty},
    )
    theirs, their_scores = decoded_there(
        twin,
        num_beams,
        no_repeat_ngram_size=3,
        min_new_tokens=4,  # without END
        bad_words_ids=[[START], [7]],
        **penalty,
    )
    assert min(len(ids) for lists in ours for ids in lists) == 5
    if num_beams == 1:  # its logits are those before the processors
        scores, their_scores = scores[:0], their_scores[:0]
        assert ours == theirs
    else:
        check(ours, theirs, scores, their_scores, compared=3)
