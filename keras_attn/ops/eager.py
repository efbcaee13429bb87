"""What can be said of a tensor's values before anything runs."""

import numpy as np
from keras import ops


def concrete_values(tensor):
    """The tensor's values as a NumPy array where they can be seen (eagerly), None inside a trace."""
    try:
        return np.asarray(ops.convert_to_numpy(tensor))
    except Exception:  # each backend refuses to show a traced value with an exception of its own
        return None
