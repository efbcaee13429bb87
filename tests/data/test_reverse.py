import re
import statistics

import pytest

from keras_attn.data import reverse_pairs


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("split", "size", "longest"), [("train", 40_000, 25), ("validation", 1_000, 30), ("test", 1_000, 30)]
)
def test_targets_are_sources_in_reverse(split, size, longest):
    pairs = reverse_pairs(split)
    assert len(pairs) == size
    assert pairs.name == f"reverse {split}"
    rows = [list(map(int, source.split(" "))) for source in pairs.sources]
    assert [" ".join(map(str, row[::-1])) for row in rows] == pairs.targets
    assert {len(row) for row in rows} == set(range(1, longest + 1))
    assert {number for row in rows for number in row} == set(range(50))
    # Lengths and numbers are drawn evenly: their means are within four standard errors of what that gives.
    assert abs(statistics.fmean(map(len, rows)) - (1 + longest) / 2) < 4 * longest / (12 * size) ** 0.5
    assert abs(statistics.fmean(row[0] for row in rows) - 24.5) < 4 * 50 / (12 * size) ** 0.5


def test_the_same_arguments_give_the_same_pairs():
    pairs = reverse_pairs("train", size=23, seed=5)
    assert pairs == reverse_pairs("train", size=23, seed=5)
    assert reverse_pairs("train", size=11, seed=5).sources == pairs.sources[:11]
    assert pairs.sources != reverse_pairs("train", size=23, seed=7).sources
    assert pairs.sources != reverse_pairs("validation", size=23, seed=5).sources


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "dev"}, "`split` must be one of train, validation, test. Received: split='dev'."),
        (
            {"split": "test", "size": 0},
            "`size` must be a positive integer. Received: size=0.",
        ),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        reverse_pairs(**arguments)
