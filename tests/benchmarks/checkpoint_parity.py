"""Checkpoints of transformers and our models from them, side by side: every architecture, tiny, with random weights.

A row is an architecture with a head. Its columns: the largest difference of vectors or logits at real tokens, as a part
of the largest, rows padded on the right and on the left, and that of the hidden states after each block, and of a
middle-sized model (8 times the width, 3 times the depth); how many prompts are answered token for token as transformers
does, greedily and with 4 beams (but for those whose best two answers are as good); whether a checkpoint that is loaded
and saved has the same bits; and whether the exported SavedModel answers strings, in TensorFlow's C library, as Python does.
Images are of the size of the config, and of two others that are no whole number of patches or windows.

    python tests/benchmarks/checkpoint_parity.py
    python tests/benchmarks/checkpoint_parity.py --only marian t5 swin --prompts 11

The command fails if a difference is 1e-5 or more, or a cell is not as it should be. "-" is what there is no such thing for.
"""

from helpers_benchmarks import print_table  # isort: skip -- it stands beside this file

import argparse
import pathlib
import shutil
import sys
import tempfile

import numpy as np

TESTS = pathlib.Path(__file__).parents[1]
sys.path += [str(TESTS), str(TESTS / "huggingface")]

from helpers_checkpoints import CASES, add_middle_sized, checkpoint, rows, twins  # noqa: E402

import helpers_parity as parity  # isort: skip # noqa: E402
import helpers_vision as vision  # isort: skip # noqa: E402

HEADER = [
    "checkpoint",
    "head",
    "difference",
    "hidden states",
    "middle-sized",
    "greedy",
    "4 beams",
    "round trip",
    "exported",
]
LIMIT = 1e-5
NONE = "-"
# {(checkpoint, head): what an error must say}: what cannot be, and is refused.
REFUSED = {
    ("electra-one-width", "none"): "There is no task for this checkpoint",  # it ends with replaced tokens
    ("gpt2-scaled-by-layer", "language model"): "A gpt2 cannot be this model",  # as it goes out
    ("marian-two-vocabularies", "language model"): "The target tokenizer must have",  # the table's has one
}


class Cells:
    """The cells of one row, and whether one of them is not as it should be."""

    def __init__(self, *names):
        self.texts, self.is_right = list(names), True

    def add(self, compute, *args):
        """Adds what `compute` returns: (text, whether it is right). An error is a cell too."""
        try:
            text, is_right = compute(*args)
        except Exception as error:  # the table goes on, and shows it
            refusal = REFUSED.get(tuple(self.texts[:2]))
            is_right = refusal is not None and str(error).startswith(refusal)
            text = "refused" if is_right else f"{type(error).__name__}: {error}".splitlines()[0][:90]
        self.texts.append(text if is_right else f"{text} !")
        self.is_right = self.is_right and is_right


def relative_difference(ours, theirs):
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def difference(name):
    found = max(relative_difference(*parity.outputs(name, side)) for side in ("right", "left"))
    return f"{found:.1e}", found < LIMIT


def difference_of_hidden_states(name):
    pairs = [pair for side in ("right", "left") for pair in parity.hidden_states(name, side)]
    found = max(relative_difference(*pair) for pair in pairs)
    return f"{found:.1e} of {len(pairs) // 2}", found < LIMIT


def difference_of_middle_sized(name):
    return difference(add_middle_sized(name))


def difference_of_head(name, task):
    found = max(relative_difference(*parity.logits_of_head(name, task, side)) for side in ("right", "left"))
    return f"{found:.1e}", found < LIMIT


def answers(name, num_beams, num_prompts):
    if CASES[name][0] == "encoder":
        return NONE, True
    pairs = parity.answers(name, num_beams, num_prompts)
    equal = sum(ours == theirs for ours, theirs in pairs)
    return f"{equal} of {len(pairs)}", equal == len(pairs) and len(pairs) > 0.9 * num_prompts


def round_trip(name):
    if not parity.is_written(name):
        return "not written", True
    with tempfile.TemporaryDirectory() as folder:
        again, before = parity.written(name, folder)
    same = all(np.array_equal(array, before[tensor]) for tensor, array in again.items())
    return ("the same bits" if same else "other bits"), same


def exported(name, source):
    """Whether the task of a checkpoint's folder, which has a tokenizer here, answers as its SavedModel does."""
    import keras_attn
    from keras_attn.export import verify_saved_model

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shutil.copytree(source, folder / "checkpoint")
        parity.write_tokenizer(name, folder / "checkpoint")
        task = keras_attn.load(folder / "checkpoint")
        version = task.export(folder / "saved")
        ids, mask = rows(8, 6, 0)
        texts = [" ".join(f"w{i}" for i in row[real]) for row, real in zip(ids, mask)]
        checks = verify_saved_model(version, texts, expected=getattr(task, "default_answers", task))
    problems = [problem for check in checks for problem in check.problems]
    kind = type(task).__name__
    return (f"{kind}: {problems[0]}"[:90] if problems else kind), not problems


def row(name, num_prompts):
    """The row of an architecture with the head of its case, if it is no encoder, and without one otherwise."""
    is_encoder = CASES[name][0] == "encoder"
    cells = Cells(name, "none" if is_encoder else "language model")
    cells.add(difference, name)
    cells.add(difference_of_hidden_states, name)
    cells.add(difference_of_middle_sized, name)
    cells.add(answers, name, 1, num_prompts)
    cells.add(answers, name, 4, num_prompts)
    cells.add(round_trip, name)
    cells.add(exported, name, checkpoint(name)[0])
    return cells


def row_of_head(name, task):
    cells = Cells(name, task)
    cells.add(difference_of_head, name, task)
    cells.texts += [NONE] * 5
    cells.add(exported, name, parity.checkpoint_with_head(name, task)[0])
    return cells


def difference_of_images(name, end="Model"):
    model, (_, twin) = vision.loaded(name, end), vision.checkpoint(name, end)
    pairs = [(model, twin, vision.images(*size)) for size in vision.sizes_of(name)]
    found = max(
        relative_difference(vision.ours(model, x), vision.theirs(twin, x)) for model, twin, x in pairs
    )
    return f"{found:.1e}", found < LIMIT


def hidden_states_of_images(name):
    pairs = vision.hidden_states(name)
    found = max(relative_difference(*pair) for pair in pairs)
    return f"{found:.1e} of {len(pairs) - 1}", found < LIMIT


def round_trip_of_images(name, end="Model"):
    from keras_attn import huggingface
    from keras_attn.models import read_weights

    with tempfile.TemporaryDirectory() as folder:
        huggingface.save_model(vision.loaded(name, end), folder, vision.CASES[name][0])
        again = read_weights(pathlib.Path(folder) / "model.safetensors")
    before = read_weights(vision.checkpoint(name, end)[0] / "model.safetensors")
    shared = [tensor for tensor in again if not tensor.endswith("mask_token")]  # of training alone
    same = all(np.array_equal(again[tensor], before[tensor]) for tensor in shared)
    return ("the same bits" if same else "other bits"), same


def rows_of_images(name):
    cells = Cells(name, "none")
    cells.add(difference_of_images, name)
    cells.add(hidden_states_of_images, name)
    cells.add(lambda: difference_of_images(vision.add_middle_sized(name)))
    cells.texts += [NONE] * 2
    cells.add(round_trip_of_images, name)
    cells.texts.append(NONE)
    yield cells
    for case, end in vision.HEADS:
        if case == name:
            cells = Cells(name, end.removeprefix("For"))
            cells.add(difference_of_images, name, end)
            cells.texts += [NONE] * 4
            cells.add(round_trip_of_images, name, end)
            cells.texts.append(NONE)
            yield cells


def table(names, num_prompts):
    from keras_attn.huggingface.model_types import TASKS

    for name in names:
        if name in vision.CASES:
            yield from rows_of_images(name)
            continue
        yield row(name, num_prompts)
        if CASES[name][0] == "encoder":
            yield from (row_of_head(name, task) for task in TASKS)
        twins.cache_clear()


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--prompts", type=int, default=50, help="how many prompts are answered")
    names = [*CASES, *vision.CASES]
    options.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    options = options.parse_args()
    found = []
    for cells in table(options.only, options.prompts):
        print("  ".join(cells.texts), file=sys.stderr, flush=True)
        found.append(cells)
    print_table(
        "Checkpoints of transformers, random weights, against transformers.",
        HEADER,
        [cells.texts for cells in found],
    )
    wrong = sum(not cells.is_right for cells in found)
    print(f"\n{len(found)} rows, {wrong} with a cell that is not as it should be (!).")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
