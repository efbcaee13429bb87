"""The processes and devices that train one model together."""

import contextlib
import os

import keras
import numpy as np
import tensorflow as tf

_PROCESSES = "KERAS_DISTRIBUTION_NUM_PROCESSES"


class Workers:
    """Who takes part in a run: one process, or several of the JAX backend that `keras.distribution` joined.

    All of them train; the first alone writes, validates and shows what goes on, and tells the others what it found.

    Attributes:
        number: Integer, this process, from 0.
        count: Integer, the number of processes.
        num_devices: Integer, the devices of this process among which Keras divides the rows of a batch.

    Raises:
        ValueError: where the distribution would divide the data once more, or leaves no process with whole weights.
    """

    def __init__(self):
        self.number, self.count = 0, 1
        self.num_devices = tf.distribute.get_strategy().num_replicas_in_sync
        distribution = keras.distribution.distribution() if keras.backend.backend() == "jax" else None
        if distribution is None:
            return
        import jax

        self.number, self.count = jax.process_index(), jax.process_count()
        self.num_devices = max(1, distribution.num_model_replicas // self.count)
        if self.count > 1 and distribution.auto_shard_dataset:
            raise ValueError(
                "Each process gets its own rows here. Set the distribution with `auto_shard_dataset=False`."
            )
        if self.count > 1 and not isinstance(distribution, keras.distribution.DataParallel):
            raise ValueError(
                "Several processes train with `keras.distribution.DataParallel`; `ModelParallel` is for the devices of "
                f"one. Received: {type(distribution).__name__} and {self.count} processes."
            )

    @property
    def is_first(self):
        return self.number == 0

    def wait(self):
        """Returns when every process has called it as often as this one."""
        self.tell(0.0)

    def tell(self, value):
        """The float of the first process, in all of them. Every process must call it."""
        if self.count == 1:
            return value
        from jax.experimental import multihost_utils

        return float(multihost_utils.broadcast_one_to_all(np.float32(value)))

    @contextlib.contextmanager
    def alone(self):
        """Within the block, what this process makes is its own."""
        if self.count == 1:
            yield
            return
        distribution = keras.distribution.distribution()
        keras.distribution.set_distribution(None)
        try:
            yield
        finally:
            keras.distribution.set_distribution(distribution)


@contextlib.contextmanager
def all_devices():
    """Within the block, a model is made for all the devices there are, unless the caller has said for which.

    TensorFlow with several GPUs: `tf.distribute.MirroredStrategy`. JAX: `keras.distribution.DataParallel`, of several
    processes if the environment variables of `keras.distribution.initialize` name them.
    """
    if keras.backend.backend() == "tensorflow":
        several = len(tf.config.list_physical_devices("GPU")) > 1 and not tf.distribute.has_strategy()
        with tf.distribute.MirroredStrategy().scope() if several else contextlib.nullcontext():
            yield
        return
    if keras.backend.backend() == "jax" and keras.distribution.distribution() is None:
        import jax

        if _PROCESSES in os.environ and not jax.distributed.is_initialized():
            keras.distribution.initialize()  # from the environment
        if jax.device_count() > 1:
            keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
            try:
                yield
            finally:
                keras.distribution.set_distribution(None)
            return
    yield
