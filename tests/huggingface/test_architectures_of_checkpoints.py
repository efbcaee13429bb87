"""Every architecture: a random checkpoint that transformers saved, loaded by us, gives the outputs of transformers."""

import pytest
from helpers_checkpoints import CASES, END, NUM_ROWS, rows, twins
from helpers_marks import extended_but
from helpers_models import assert_close
from helpers_parity import answers, outputs
from keras import ops

# By default: one tensor for queries, keys and values; position biases; a START that is the pad.
DEFAULT = ("gpt2", "t5-1.1", "marian")


@pytest.mark.parametrize("side", extended_but(["left"], ["left", "right"]))
@pytest.mark.parametrize("name", extended_but(DEFAULT, CASES))
def test_vectors_or_logits_are_theirs(name, side):
    assert_close(*outputs(name, side))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_weights_are_all_that_is_initialised_by_files(name):
    """Variables that hold floats have no values of their own when a model is made for a checkpoint."""
    model, _ = twins(name)
    ours = {id(weight) for weight in model.weights}
    assert not [v.path for v in model.variables if "float" in v.dtype and id(v) not in ours]


# One of each kind of cache: learned places, windows beside full layers, position biases, forced tokens; qwen3's END is its
# pad. tests/benchmarks/checkpoint_parity.py has all.
@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "num_beams"),
    [("marian", 4), ("llama", 4), ("qwen3", 1), ("gpt2", 4), ("gemma3", 4), ("t5", 4), ("m2m_100", 1)],
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
