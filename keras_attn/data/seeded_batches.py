"""Endless sequences of batches that are functions of a seed and a place."""

import collections
import math
import threading

import numpy as np
import tensorflow as tf

from keras_attn.checks import check_positive

_PREFETCHED_BATCHES = 16
_KEPT_PLANS = 3

Place = collections.namedtuple("Place", ["epoch", "update"], defaults=[0, 0])
Place.__doc__ = (
    """A place in the sequence of batches: before update `update` of epoch `epoch`, both from 0."""
)


class SeededBatches:
    """What sequences of batches have in common.

    There is no shuffle buffer and no hidden state: a run that was stopped anywhere asks for the batches from its place
    on. An optimizer update may be made of several batches (gradient accumulation) or be shared by several workers and
    devices; all of them take rows of the same update, so that together they learn what one large batch would.

    A subclass gives `_make_plan(epoch)`, a list of updates, each with its `num_tokens`, `num_real` and
    `num_positions`; `_batch(update, number)`, the arrays of one of its batches; and `_element_spec()`, what they are.

    Args:
        seed: Integer. The same seed gives the same sequence of batches, on every machine.
        num_micro_batches: Integer, the batches that an update is cut into: the `gradient_accumulation_steps` of the
            optimizer.
        num_devices: Integer, the devices among which Keras divides the rows of this process: their number is a
            multiple of it.
        worker: Pair of integers (number, count): this process, among several that train together, and gets its rows
            of each batch. The number of rows is the same for all.

    Example:

    ```python
    from keras_attn.data import SeededBatches, TextWindows

    batches = TextWindows(range(3, 100), window_length=7, batch_size=2)
    assert isinstance(batches, SeededBatches)
    first_epoch = batches.dataset().take(len(batches))
    the_rest = batches.dataset((0, 5))  # from the sixth update on
    ```
    """

    def __init__(self, seed=0, num_micro_batches=1, num_devices=1, worker=(0, 1)):
        for name, count in {"num_micro_batches": num_micro_batches, "num_devices": num_devices}.items():
            check_positive(name, count)
        if not 0 <= worker[0] < worker[1]:
            raise ValueError(
                f"`worker` must be a number from 0 and the count of workers. Received: worker={worker}."
            )
        self._seed = seed
        self.num_micro_batches = num_micro_batches
        self._num_devices = num_devices
        self._worker, self._num_workers = worker
        self._plans = collections.OrderedDict()
        self._lock = threading.Lock()

    def __len__(self):
        """The number of batches in the first epoch; in the others too, unless weights are no whole numbers."""
        return len(self.plan(0)) * self.num_micro_batches

    def dataset(self, place=(0, 0)):
        """The batches from a place on, without end: `model.fit(batches.dataset(), steps_per_epoch=len(batches))`.

        Args:
            place: `Place`, or a pair of integers (epoch, update).

        Returns:
            `tf.data.Dataset` of what the class says.
        """
        batches = tf.data.Dataset.from_generator(
            lambda: self._batches(*place), output_signature=self._element_spec()
        )
        # There is nothing to tune, and the thread that tries holds up the end of `fit`, for seconds at times.
        options = tf.data.Options()
        options.autotune.enabled = False
        return batches.prefetch(_PREFETCHED_BATCHES).with_options(options)

    def after(self, place):
        """The `Place` that follows one update after `place`."""
        epoch, update = place
        return Place(epoch, update + 1) if update + 1 < len(self.plan(epoch)) else Place(epoch + 1, 0)

    def plan(self, epoch):
        """The updates of an epoch, a list."""
        with self._lock:
            if epoch not in self._plans:
                self._plans[epoch] = self._make_plan(epoch)
                while len(self._plans) > _KEPT_PLANS:
                    self._plans.popitem(last=False)
            return self._plans[epoch]

    def _batches(self, epoch, first):
        while True:
            for update in self.plan(epoch)[first:]:
                for number in range(self.num_micro_batches):
                    yield self._batch(update, number)
            epoch, first = epoch + 1, 0

    def _generator(self, *key):
        """A `numpy.random.Generator` for one purpose."""
        return np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=key))

    def _whole_rows(self, num_rows):
        """So many rows or more, that every micro-batch, worker and device may have as many as the others."""
        parts = self.num_micro_batches * self._num_devices * self._num_workers
        return math.ceil(num_rows / parts) * parts

    def _my_rows(self, number):
        """The slice of the rows of an update that are this worker's in micro-batch `number`."""
        return slice(number * self._num_workers + self._worker, None, self._stride)

    @property
    def _stride(self):
        return self.num_micro_batches * self._num_workers

    def _weights(self, num_rows, update):
        """What makes a summed loss the mean over the real tokens of the whole update, float32 (B,)."""
        # Keras averages over micro-batches, and adds over replicas and workers.
        return np.full(num_rows, self.num_micro_batches / update.num_tokens, np.float32)
