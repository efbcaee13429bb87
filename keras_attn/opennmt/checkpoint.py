"""An object-based checkpoint of TensorFlow: its variables by the paths of the objects that held them."""

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "VARIABLE_VALUE"
# Parts of the names of tensors that are not weights of a model, and what these are.
_UNUSED = {
    _GRAPH: "the names of the objects",
    "/.OPTIMIZER_SLOT/": "a slot of the optimizer",
    "optimizer/": "a state of the optimizer",
    "save_counter/": "a counter",
    "/.ATTRIBUTES/OBJECT_CONFIG_JSON": "a config of Keras",
}


class Checkpoint:
    """The tensors of a checkpoint, by the paths of objects, "model/encoder/layer_norm/gamma".

    An object that the model holds in two places, a shared embedding for instance, is stored once; both paths lead to it.

    Args:
        prefix: Path of the checkpoint without ".index".

    Raises:
        ValueError: if a file is damaged or missing, or the checkpoint is not object-based.
    """

    def __init__(self, prefix):
        self.prefix = str(prefix)
        try:
            self._reader = tf.train.load_checkpoint(self.prefix)
            self.shapes = {name: tuple(s) for name, s in self._reader.get_variable_to_shape_map().items()}
        except (tf.errors.OpError, RuntimeError, ValueError) as error:
            raise self._damaged(error) from error
        if _GRAPH not in self.shapes:
            raise ValueError(
                f"{prefix} is no checkpoint of OpenNMT-tf 2: it has no {_GRAPH}, as checkpoints of TensorFlow 1 do not."
            )
        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        try:
            graph.ParseFromString(self.read(_GRAPH))
        except Exception as error:  # The class of the error depends on the version of protobuf.
            raise self._damaged(error) from error
        self._nodes = graph.nodes

    def children(self, path):
        """{name: number} of what the object at a path holds; {} if there is no such object."""
        node = self._node(path)
        return {} if node is None else {child.local_name: child.node_id for child in node.children}

    def tensor(self, path):
        """The name of the tensor of the variable at a path, or None."""
        node = self._node(path)
        if node is None:
            return None
        keys = [attribute.checkpoint_key for attribute in node.attributes if attribute.name == _VALUE]
        return keys[0] if keys and keys[0] in self.shapes else None

    def shape(self, path, rank):
        """The shape of the variable at a path, of this many axes.

        Raises:
            ValueError: if there is none, or it has another rank.
        """
        shape = self.shapes.get(self.tensor(path))
        if shape is None or len(shape) != rank:
            raise ValueError(
                f"{self.prefix} must have {path} with {rank} axes, as a Transformer of OpenNMT-tf does. Received: "
                f"{'none' if shape is None else shape}."
            )
        return shape

    def read(self, name):
        """The values of a tensor.

        Raises:
            ValueError: if they cannot be read.
        """
        try:
            return self._reader.get_tensor(name)
        except (tf.errors.OpError, RuntimeError, ValueError) as error:
            raise self._damaged(error) from error

    def read_weights(self, name):
        """The values of a tensor of floats, all of them finite."""
        array = self.read(name)
        if not np.issubdtype(np.asarray(array).dtype, np.floating) and array.dtype.name != "bfloat16":
            raise ValueError(f"{name} in {self.prefix} must hold floats. Received: dtype {array.dtype}.")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} in {self.prefix} has values that are NaN or infinite.")
        return array

    def reason(self, name):
        """Why a tensor is not needed, or None."""
        for part, why in _UNUSED.items():
            if name.startswith(part) or (part.startswith("/") and part in name):
                return why
        return None

    def _node(self, path):
        number = 0
        for name in path.split("/"):
            children = self._nodes[number].children if number < len(self._nodes) else ()
            number = next((child.node_id for child in children if child.local_name == name), None)
            if number is None or number >= len(self._nodes):
                return None
        return self._nodes[number]

    def _damaged(self, error):
        text = " ".join(str(getattr(error, "message", error)).split())[:300]
        return ValueError(f"{self.prefix} is damaged or not complete: {text}.")
