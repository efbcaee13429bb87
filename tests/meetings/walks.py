"""Walks: one thing after another is done with a model, in the order of a seed, and its answer stays what it must be."""

import copy

import keras
import numpy as np
from change_habits import is_adapted, with_trained_lora
from helpers_layers import compiled
from keras import ops
from mask_habits import with_garbage
from number_habits import global_policy
from things import as_array, assert_close

from keras_attn.models import QUANTIZATIONS, float32_copy, merge_lora, quantized_copy


class Walk:
    """A thing on its way: what was made, the batch, and the answer that it must give at real tokens."""

    def __init__(self, thing, seed, folder):
        self.thing, self.folder = thing, folder
        self.rng = np.random.default_rng(seed)
        self.made, self.batch = thing.made(), thing.batch()
        self.has_lora = self.is_final = False
        self.path = []
        self.expect()

    def expect(self):
        """Takes the plain eager answer as what must stay."""
        self.expected = self.rows(self.thing.answer(self.made, self.batch))

    def rows(self, output):
        """The answers of rows, at real tokens, in a list."""
        if not (self.thing.keeps_time and "mask" in self.batch):
            return list(output)
        return [row[mask] for row, mask in zip(output, self.batch["mask"])]

    def step(self):
        name = self.rng.choice([name for name, (_, may) in STEPS.items() if may(self)])
        self.path.append(str(name))
        STEPS[name][0](self)
        ask = self.rng.choice([name for name, may in ASKS.items() if may(self)])
        self.path.append(str(ask))
        for found, expected in zip(self.rows(getattr(self, ask)()), self.expected, strict=True):
            # Products of few bits are rounded, and which way depends on the last bits of sums.
            assert_close(found, expected, 0.05 if self.is_final else 3e-5)

    # --- ways to ask ---

    def inputs(self):
        return {name: array for name, array in self.batch.items() if name != "mask" or self.thing.takes_mask}

    def eagerly(self):
        return self.thing.answer(self.made, self.batch)

    def in_a_graph(self):
        tensors = {name: ops.convert_to_tensor(array) for name, array in self.inputs().items()}
        return as_array(compiled(lambda x: self.thing.call(self.made, **x), jit=False)(tensors))

    def as_a_functional_model(self):
        return as_array(self.thing.functional(self.made, with_mask=True)(self.inputs()))

    def by_predict(self):
        model = self.thing.functional(self.made, with_mask=True)
        return as_array(model.predict(self.inputs(), batch_size=2, verbose=0))

    # --- steps that change no answer ---

    def pad(self, left):
        def padded(array):
            widths = [(0, 0)] * array.ndim
            widths[1] = (2, 0) if left else (0, 3)
            return np.pad(array, widths)

        self.batch |= {name: padded(self.batch[name]) for name in ("x", "mask")}

    def pad_left(self):
        self.pad(left=True)

    def pad_right(self):
        self.pad(left=False)

    def garbage_at_pads(self):
        self.batch = with_garbage(self.thing, self.batch, 1 + self.rng.integers(9))

    def reorder(self):
        order = self.rng.permutation(len(self.expected))
        self.batch = {name: array[order] for name, array in self.batch.items()}
        self.expected = [self.expected[row] for row in order]

    def repeat_rows(self):
        self.batch = {name: np.concatenate([array, array[:1]]) for name, array in self.batch.items()}
        self.expected = [*self.expected, self.expected[0]]

    def copy_deeply(self):
        self.made = copy.deepcopy(self.made)

    def remake(self):
        weights = self.made.get_weights()
        self.made = type(self.made).from_config(self.made.get_config())
        self.eagerly()
        self.made.set_weights(weights)

    def save_and_load(self):
        path = self.folder / f"{len(self.path)}.keras"
        self.made.save(path)
        self.made = keras.models.load_model(path)

    def copy_under_a_global_policy(self):
        with global_policy("mixed_bfloat16"):
            self.made = float32_copy(self.made)

    def forget_a_call(self):
        self.thing.answer(self.made, self.thing.batch((3, 1), 5))

    # --- steps after which another answer must stay ---

    def train(self):
        rate = 0.02
        for weight in self.made.trainable_weights:
            weight.assign(weight + rate * self.rng.normal(size=weight.shape))
        self.expect()

    def freeze(self):
        self.made.trainable = not self.made.trainable

    def adapt(self):
        with_trained_lora(self.made)
        self.has_lora = True
        self.expect()

    def merge(self):
        self.made = merge_lora(self.made)
        self.has_lora = False

    def quantize(self):
        self.made = quantized_copy(self.made, self.rng.choice(sorted(QUANTIZATIONS)))
        self.is_final = True
        self.expect()


def always(walk):
    return True


def has_mask(walk):
    return walk.thing.takes_mask and walk.thing.reads in ("ids", "vectors")


def has_pads(walk):
    return has_mask(walk) and not walk.batch["mask"].all()


def is_model(walk):
    return walk.thing.is_model


def is_plain(walk):
    return not walk.has_lora and not walk.is_final


ASKS = {
    "eagerly": always,
    "in_a_graph": always,
    "as_a_functional_model": lambda walk: not walk.thing.without_batch,
    "by_predict": lambda walk: not walk.thing.without_batch,
}
STEPS = {
    "pad_left": (Walk.pad_left, lambda walk: has_mask(walk) and walk.thing.pads_on_the_left),
    "pad_right": (Walk.pad_right, has_mask),
    "garbage_at_pads": (Walk.garbage_at_pads, has_pads),
    "reorder": (Walk.reorder, lambda walk: not walk.thing.without_batch),
    "repeat_rows": (Walk.repeat_rows, lambda walk: not walk.thing.without_batch),
    "copy_deeply": (Walk.copy_deeply, lambda walk: not walk.is_final),
    "remake": (Walk.remake, is_plain),
    "save_and_load": (Walk.save_and_load, is_model),
    "copy_under_a_global_policy": (
        Walk.copy_under_a_global_policy,
        lambda walk: walk.thing.is_model and is_plain(walk),
    ),
    "forget_a_call": (Walk.forget_a_call, lambda walk: walk.thing.reads in ("ids", "vectors")),
    "train": (Walk.train, lambda walk: walk.thing.trains and not walk.is_final),
    "freeze": (Walk.freeze, lambda walk: walk.thing.trains),
    "adapt": (Walk.adapt, lambda walk: is_plain(walk) and is_adapted(walk.thing)),
    "merge": (Walk.merge, lambda walk: walk.has_lora and walk.thing.is_model),
    "quantize": (Walk.quantize, lambda walk: walk.thing.is_model and is_plain(walk)),
}
