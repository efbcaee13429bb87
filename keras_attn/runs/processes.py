"""The processes and devices that train one model together."""

import contextlib
import os

import keras
import numpy as np
import tensorflow as tf

_PROCESSES = "KERAS_DISTRIBUTION_NUM_PROCESSES"


class Processes:
    """The processes of a run: one, or several on the JAX backend, joined by `keras.distribution`.

    All of them train. Only the first writes files, validates and shows progress; it sends its results to the
    others.

    Attributes:
        number: Integer, the number of this process, from 0.
        count: Integer, the number of processes.
        num_devices: Integer, the devices of this process among which Keras divides the rows of a batch.

    Raises:
        ValueError: if the distribution would divide the data again, or no process has all the weights.
    """

    def __init__(self):
        self.number = 0
        self.count = 1
        self.num_devices = tf.distribute.get_strategy().num_replicas_in_sync
        distribution = keras.distribution.distribution() if keras.backend.backend() == "jax" else None
        if distribution is None:
            return
        import jax

        self.number = jax.process_index()
        self.count = jax.process_count()
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
        """Sends the float of the first process to all. Every process must call it."""
        if self.count == 1:
            return value
        from jax.experimental import multihost_utils

        return float(multihost_utils.broadcast_one_to_all(np.float32(value)))

    @contextlib.contextmanager
    def alone(self):
        """Within the block, variables are not distributed over processes."""
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
    """Within the block, models are made for all devices, unless the caller has chosen the devices.

    TensorFlow with several GPUs: `tf.distribute.MirroredStrategy`. JAX: `keras.distribution.DataParallel`,
    over several processes if the environment variables of `keras.distribution.initialize` name them.
    """
    if keras.backend.backend() == "tensorflow":
        several = len(tf.config.list_physical_devices("GPU")) > 1 and not tf.distribute.has_strategy()
        scope = tf.distribute.MirroredStrategy().scope() if several else contextlib.nullcontext()
        with scope:
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
