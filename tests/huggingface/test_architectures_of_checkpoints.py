"""Every architecture: a random checkpoint that transformers saved, loaded by us, gives the outputs of transformers."""

import pytest
from helpers_checkpoints import CASES, END, NUM_ROWS, rows, twins
from helpers_models import assert_close
from keras import ops

pytest.importorskip("transformers", reason='needs transformers: pip install "keras_attn[peers]"')
pytest.importorskip("torch", reason='needs torch: pip install "keras_attn[peers]"')

from helpers_parity import answers, outputs

# One configuration of each maths is tested by default.
SECOND_RANK = {
    *("bert", "xlm-roberta", "electra-one-width", "albert-groups", "llama-tied", "qwen2", "mt5", "mbart"),
    *("modernbert-plain", "gpt2-scaled-by-layer", "pegasus", "marian-two-vocabularies", "gemma2"),
    *("m2m_100", "bart", "modernbert", "t5-1.1"),
}


def cases(names):
    extended = pytest.mark.extended
    return [pytest.param(name, marks=extended if name in SECOND_RANK else ()) for name in names]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("side", [pytest.param("right", marks=pytest.mark.extended), "left"])
@pytest.mark.parametrize("name", cases(CASES))
def test_vectors_or_logits_are_theirs(name, side):
    assert_close(*outputs(name, side))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", cases(CASES))
def test_weights_are_all_that_is_initialised_by_files(name):
    """Variables that hold floats have no values of their own when a model is made for a checkpoint."""
    model, _ = twins(name)
    ours = {id(weight) for weight in model.weights}
    assert not [v.path for v in model.variables if "float" in v.dtype and id(v) not in ours]


# qwen3's END is its pad; mistral's and the second GPT-2's pad is missing.
GENERATED = ("llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt2-scaled-by-layer", "gemma2", "gemma3")
TRANSLATED = ("t5", "t5-1.1", "bart", "mbart", "pegasus", "m2m_100", "marian")
FIRST_RANK = (("marian", 4),)
# One of each kind of cache: learned places, windows beside full layers, position biases, forced tokens. The rest is slow.
EXTENDED = (("qwen3", 1), ("gpt2", 4), ("gemma3", 4), ("t5", 4), ("m2m_100", 1))


def rank(case):
    return () if case in FIRST_RANK else pytest.mark.extended if case in EXTENDED else pytest.mark.slow


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "num_beams"),
    [
        pytest.param(name, num_beams, marks=rank((name, num_beams)))
        for name in (*GENERATED, *TRANSLATED)
        for num_beams in (1, 4)
    ],
)
def test_answers_are_theirs(name, num_beams):
    pairs = answers(name, num_beams, NUM_ROWS)
    assert len(pairs) > NUM_ROWS - 3
    for ours, theirs in pairs:
        assert ours == theirs


@pytest.mark.extended
def test_a_row_of_qwen3_ends_though_its_pad_is_its_end():
    """Else the test above would not show that END can be written."""
    model, _ = twins("qwen3")
    assert model.pad_token_id == END
    ids, mask = rows(7, 6, END, "left")
    found = ops.convert_to_numpy(model.generate(ids, END, padding_mask=mask, max_length=9))
    assert (found == END).any()
