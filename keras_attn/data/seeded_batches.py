"""Endless sequences of batches, each batch determined by a seed and a `BatchPosition`."""

import collections
import math
import threading

import numpy as np
import tensorflow as tf

from keras_attn.checks import check_positive

_PREFETCHED_BATCHES = 16
_KEPT_PLANS = 3

BatchPosition = collections.namedtuple("BatchPosition", ["epoch", "update"], defaults=[0, 0])
BatchPosition.__doc__ = (
    """A point in the sequence of batches: before update `update` of epoch `epoch`, both from 0."""
)


class SeededBatches:
    """The base class of sequences of batches.

    There is no shuffle buffer and no hidden state: a run that was stopped can continue from any `BatchPosition`. An
    optimizer update may consist of several batches (gradient accumulation) or be shared by several workers
    and devices; all of them take rows of the same update, so the result is that of one large batch.

    A subclass implements `_make_plan(epoch)`, a list of updates, each with `num_tokens`, `num_real` and
    `num_positions`; `_batch(update, number)`, the arrays of one batch of an update; and `_element_spec()`,
    the specs of these arrays.

    Args:
        seed: Integer. The same seed gives the same sequence of batches, on every machine.
        num_micro_batches: Integer, the number of batches of an update: the `gradient_accumulation_steps` of
            the optimizer.
        num_devices: Integer, the number of devices among which Keras divides the rows of this process. The
            number of rows is a multiple of it.
        worker: Pair of integers (number, count): the number of this process, and the count of processes that
            train together. Each process gets its own rows of each batch, equally many for all.

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
        check_positive("num_micro_batches", num_micro_batches)
        check_positive("num_devices", num_devices)
        if not 0 <= worker[0] < worker[1]:
            raise ValueError(
                f"`worker` must be a number from 0 and the count of workers. Received: worker={worker}."
            )
        self._seed = seed
        self.num_micro_batches = num_micro_batches
        self._num_devices = num_devices
        self._worker, self._num_workers = worker
        self._updates_of_first_epoch = None
        self._plans = collections.OrderedDict()
        self._lock = threading.Lock()

    def __len__(self):
        """The number of batches in the first epoch; others may differ if weights are not integers."""
        if self._updates_of_first_epoch is None:
            self._updates_of_first_epoch = len(self.plan(0))  # which may be dear, and is not kept
        return self._updates_of_first_epoch * self.num_micro_batches

    def dataset(self, position=(0, 0)):
        """All batches from a `BatchPosition` on: `model.fit(batches.dataset(), steps_per_epoch=len(batches))`.

        Args:
            position: `BatchPosition`, or a pair of integers (epoch, update).

        Returns:
            An endless `tf.data.Dataset` of the batches that the class describes.
        """
        batches = tf.data.Dataset.from_generator(
            lambda: self._batches(*position), output_signature=self._element_spec()
        )
        # There is nothing to tune, and the autotune thread can delay the end of `fit` by seconds.
        options = tf.data.Options()
        options.autotune.enabled = False
        return batches.prefetch(_PREFETCHED_BATCHES).with_options(options)

    def after(self, position):
        """The `BatchPosition` that follows one update after `position`."""
        epoch, update = position
        if update + 1 < len(self.plan(epoch)):
            return BatchPosition(epoch, update + 1)
        return BatchPosition(epoch + 1, 0)

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
        """`num_rows`, rounded up so that all micro-batches, workers and devices have equally many rows."""
        parts = self.num_micro_batches * self._num_devices * self._num_workers
        return math.ceil(num_rows / parts) * parts

    def _my_rows(self, number):
        """The slice of an update's rows that this worker has in micro-batch `number`."""
        return slice(number * self._num_workers + self._worker, None, self._stride)

    @property
    def _stride(self):
        return self.num_micro_batches * self._num_workers

    def _weights(self, num_rows, update):
        """Weights, float32 (B,), with which a summed loss is the mean over the real tokens of an update."""
        # Keras averages over micro-batches, and adds over replicas and workers.
        return np.full(num_rows, self.num_micro_batches / update.num_tokens, np.float32)
