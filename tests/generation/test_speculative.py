"""Speculative decoding: token for token greedy search, and in distribution sampling, whatever the draft."""

import collections
import itertools

import numpy as np
import pytest
from helpers_generation import END, START, greedy_by_hand, log_probabilities, random_tables
from helpers_models import PAD, generate, make_batch, make_model
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_attn.generation import SearchInputs, speculative_decode

pytestmark = pytest.mark.extended

V = 7


def scripted(table, calls, max_length, pad_token_id=-1, unwritable_token_ids=()):
    """Inputs over a table of logits; the cache is the tokens that were read, those not kept among them."""

    def read(token_ids, index, cache):
        token_ids = ops.convert_to_numpy(token_ids)[0].tolist()
        assert index <= len(cache)
        cache = (*cache[:index], *token_ids)
        assert cache[0] == START
        calls.append(len(token_ids))
        logits = [log_probabilities(table, cache[1 : index + i + 1]) for i in range(len(token_ids))]
        return np.array([logits], "float32"), cache

    return SearchInputs(
        None, lambda slots: (), 1, max_length, START, END, pad_token_id, unwritable_token_ids, read=read
    )


def decoded(table, draft_table, max_length, **options):
    calls, draft_calls = [], []
    tokens, num_calls = speculative_decode(
        scripted(table, calls, max_length), scripted(draft_table, draft_calls, max_length), **options
    )
    assert num_calls == len(calls)
    return tuple(tokens), calls


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**16), st.sampled_from([1, 2, 3, 7]), st.sampled_from([1, 2, 5, 13]), st.floats(0, 3))
def test_it_is_greedy_search_whatever_the_draft(seed, num_draft_tokens, max_length, noise):
    table = random_tables(seed, 1, V, end_logit=-1.0)[0]
    draft = table + noise * np.random.default_rng(seed).normal(size=table.shape)
    tokens, calls = decoded(table, draft, max_length, num_draft_tokens=num_draft_tokens)
    assert tokens == greedy_by_hand(table, max_length)
    if noise == 0:
        assert len(calls) == -(-len(tokens) // (num_draft_tokens + 1))


@pytest.mark.parametrize("seed", [None, 3])
def test_pads_and_what_cannot_be_written_are_never_chosen_however_likely(seed):
    table = random_tables(9, 1, V)[0]
    pad, unwritable, likely = 4, 5, table.copy()
    table[:, [pad, unwritable]], likely[:, [pad, unwritable]] = -1e9, 1e2
    inputs = scripted(likely, [], 11, pad, (unwritable,))
    tokens, _ = speculative_decode(inputs, inputs, seed=seed)
    assert tuple(tokens) == decoded(table, table, 11, seed=seed)[0]
    assert not {pad, unwritable} & set(tokens)


def test_samples_have_the_distribution_of_the_model():
    max_length, count = 3, 6000
    table = random_tables(5, 1, 5)[0]
    draft = table + np.random.default_rng(6).normal(size=table.shape)
    drawn = collections.Counter(
        decoded(table, draft, max_length, num_draft_tokens=2, seed=seed)[0] for seed in range(count)
    )
    others = [token for token in range(5) if token != END]
    answers = [
        (*some, END) for length in range(max_length) for some in itertools.product(others, repeat=length)
    ]
    answers += itertools.product(others, repeat=max_length)
    expected = {
        tokens: np.exp(sum(log_probabilities(table, tokens[:i])[token] for i, token in enumerate(tokens)))
        for tokens in answers
    }
    assert sum(expected.values()) == pytest.approx(1)
    assert set(drawn) <= set(expected)
    # Pearson's statistic over what is expected five times or more, the rest as one; its 99.9 % point, by Wilson and Hilferty.
    common = [tokens for tokens in expected if expected[tokens] * count >= 5]
    cells = [(drawn[tokens], expected[tokens] * count) for tokens in common]
    rest = 1 - sum(expected[tokens] for tokens in common)
    cells.append((count - sum(found for found, _ in cells), rest * count))
    statistic = sum((found - due) ** 2 / due for found, due in cells if due > 1e-9)
    degrees = len(cells) - 1
    assert statistic < degrees * (1 - 2 / (9 * degrees) + 3.09 * np.sqrt(2 / (9 * degrees))) ** 3


def test_two_models_give_the_greedy_answer_of_the_greater():
    model = make_model()
    draft = make_model(seed=6, num_encoder_layers=1, num_decoder_layers=1)
    for row in make_batch(batch_size=2, pads=False)["encoder_token_ids"]:
        [expected] = generate(model, row[None], max_length=7)
        for drafting in (draft, model):
            inputs = (one.search_inputs(row[None], START, END, max_length=7) for one in (model, drafting))
            tokens, num_calls = speculative_decode(*inputs)
            assert tokens == [token for token in expected.tolist() if token != PAD]
            assert num_calls <= len(tokens)
            if drafting is model:
                assert num_calls == -(-len(tokens) // 5)


@pytest.mark.parametrize("name", ["max_length", "num_draft_tokens"])
def test_wrong_sizes_are_refused(name):
    sizes = {"max_length": 3, "num_draft_tokens": 2, name: 0}
    inputs = scripted(random_tables(9, 1, V)[0], [], sizes["max_length"])
    with pytest.raises(ValueError, match=f"`{name}` must be a positive integer. Received: {name}=0"):
        speculative_decode(inputs, inputs, sizes["num_draft_tokens"])
