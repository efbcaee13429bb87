"""Sequences of numbers and the same in reverse: a task for attention that needs no files."""

import random

from keras_attn.data.text_pairs import TextPairs, checked_size

NUM_SYMBOLS = 50
LONGEST = {"train": 25, "validation": 30, "test": 30}
SPLITS = {"train": 40_000, "validation": 1_000, "test": 1_000}


def reverse_pairs(split, size=None, seed=0):
    """Draws pairs of numbers from 0 to 49 and the same numbers in reverse, such as "3 14 15" and "15 14 3".

    This is the task of JoeyNMT's tutorial. Validation and test have sequences up to five numbers longer than
    in training: one in six of them uses positions that were never trained. The same arguments give the same
    pairs on any machine, and a smaller `size` gives the first pairs of a larger one.

    Args:
        split: `"train"`, `"validation"` or `"test"`.
        size: Number of pairs. Defaults to 40,000 for train, and 1,000 for validation and test.
        seed: Integer, the seed of the numbers.

    Returns:
        `TextPairs`, of 1 to 25 numbers for train, and of 1 to 30 for validation and test.

    Raises:
        ValueError: If `split` is unknown or `size` is not a positive integer.

    Example:

    ```python
    from keras_attn.data import reverse_pairs

    pairs = reverse_pairs("test")
    assert pairs.targets[0].split() == pairs.sources[0].split()[::-1]
    ```

    Reference: [Kreutzer et al., 2019](https://arxiv.org/abs/1907.12484), and the tutorial of its code.
    """
    size = checked_size(split, size, SPLITS)
    generator = random.Random(f"keras_attn.data.reverse {seed} {split}")

    def draw(count):
        return int(generator.random() * count)  # the one function that Python promises never to change

    rows = [[draw(NUM_SYMBOLS) for _ in range(1 + draw(LONGEST[split]))] for _ in range(size)]
    sources = [" ".join(map(str, row)) for row in rows]
    targets = [" ".join(map(str, reversed(row))) for row in rows]
    return TextPairs(sources, targets, name=f"reverse {split}")
