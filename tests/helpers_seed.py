"""A seed for a test that leaves graphs made before it ready to run."""

from unittest import mock

import keras


def set_seed(seed):
    """Seeds Python, NumPy and Keras, but not TensorFlow's own generator, which neither library nor tests draw from.

    TensorFlow throws away all that it has prepared for the graphs of the process when it is seeded: the next call of each
    costs up to half a second again.
    """
    with mock.patch("tensorflow.random.set_seed"):
        keras.utils.set_random_seed(seed)
