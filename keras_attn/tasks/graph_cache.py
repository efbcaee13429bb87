"""The graphs that a task keeps, and how it knows that they are still right; and a list of all that this package keeps.

What an answer depends on is in the key of whatever is kept. Each entry below says what is kept, its key, and what may change
that is not in the key. Whoever keeps something new adds an entry.

In a process, as long as the object that it belongs to:

- The graphs of a task (`GraphCache`, here; on JAX its compiled functions). Key: the sizes of a call: the number of beams or
  samples, the options given and how many ids they have, rounded up, the most tokens, rounded up. Not in the key: the attributes
  of the task and all that its model is made of; when these change, which `TraceGuard` tells, all graphs are dropped. The values
  of variables are read when a graph runs; penalties, limits, temperatures and seeds are its inputs. The last 16 are kept. The
  graphs of strings alone, `("texts", tokenizer, ...)`, have what they depend on in the key.
- Programs of XLA, in a graph with `jit_compile`, and of `jax.jit`: by the shapes of inputs, which are rounded up to few
  (`tasks.batches`). They belong to their graph.
- What Keras compiles for `fit`, `evaluate` and `predict`, in a model: Keras drops it in `compile` and `quantize`,
  `layers.lora_and_quantization.forget_compiled` where a model of this library gets LoRA or is stored in bfloat16.
- Graphs of the signatures of an export (`tf.function`s and `cached_property`s of `SignatureFunctions`, `AttentionFunction`, `ExportFiles`):
  of one task, while it is exported. With XLA its small weights are constants: an export is of the weights as they are then.
  A task from `as_exported`, with which `verify` compares, has them too: it is for that alone.
- Gradients of `tf.custom_gradient`: TensorFlow keeps all of them, with their graphs, until the process ends. So graphs of
  `inference_scope` have none (`ops.custom_gradient`).
- The page of `plots.Explorer` (`html`): of its arrays, which are its own.
- A served version (`serve.models`: its description, its process): by its folder's number, which is never written again. The task
  of its attention pages (`serve.pages`): by the checksum of what its folder held.
- A run's checksums, callbacks and films (`cached_property`s in `runs`), `window_losses` and `state_snapshots`: of one run,
  whose model and data are its own; training changes values alone.
- Plans of batches (`data.pair_batches`, `data.seeded_batches`): of their lengths, which are frozen.

In a process, until it ends, what cannot change in it (`functools.cache`): the processor's instructions, whether there is a fused
kernel and whether a softmax is rounded once (`ops`), classes of messages (`export`), the explorer's files (`plots`), the dates of
the splits (`data.generated_pairs`), the names of Keras' own attributes (here), the arguments of a class (`tasks.task`);
and of the last 256 functions their arguments (`layers.layer_slots`). The resource of a sentencepiece model is named by its content.

In one call, by the `id` of a layer or a tensor that the call holds: matrices of steps (`layers.projection`), guarded inputs
(`layers.multi_head_attention`), tensors that are overwritten (`ops.kv_cache`), layers that are described or made again
(`layers.layer_slots`), methods that are watched (`inspection.watching`, which holds their layers).

On disk: exports for serving here (`tasks.export_cache`), by a checksum of the content of the folder, of the code and of the
versions; translations of teachers (`runs.teacher_translations`), by checksums of the teachers, the settings and the texts; token
ids of training data (`data.token_pairs`), by a checksum of the texts, the tokenizers and what stands around them; states of a run
(`runs.checkpoints`), by the run's recipe and the checksums of its data; downloads (`data.downloaded_texts`), by their SHA-256.
"""

import collections
import dataclasses
import functools
import itertools
import math
import operator
import threading

import keras

from keras_attn.compat.keras import (
    DTYPE_POLICY,
    bookkeeping_attributes,
    is_tracking_attribute,
    layers_and_variables_of_its_own,
)
from keras_attn.layers.dropout import Dropout

# The most graphs that a task keeps. One takes seconds to make, and tens of megabytes; few tasks are asked for more kinds.
MOST_GRAPHS = 16
# What a graph of a model is built of, and what not: endings of the names of attributes that only make new weights, or matter
# only in training.
_WEIGHT_MAKERS = ("_initializer", "_regularizer", "_constraint", "partial_output_shape", "bias_axes")
# Attributes of a quantised layer. Quantisation also changes its policy and variables, which are compared.
_QUANTIZATION_ARGUMENTS = ("quantization_config", "gptq_unpacked_column_size")
# Layers that do nothing outside of training.
_DROPOUTS = (keras.layers.Dropout, Dropout)
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
# Longer lists are compared by their lengths alone, or each comparison would take too long.
_LONGEST = 1000


class GraphCache:
    """The graphs that were made of an object and used last; none of them is older than the last change of the object.

    Args:
        owner: The object.
        data: Names of its attributes that its graphs are given as inputs, or do not read: they may change.
        most: Integer, how many graphs are kept. The one that was unused for longest is dropped first.
    """

    def __init__(self, owner, data=(), most=MOST_GRAPHS):
        self._owner = owner
        self._data = data
        self._most = most
        self._structure = None
        self._graphs = collections.OrderedDict()
        self._lock = threading.Lock()
        self._making = threading.Lock()

    def __len__(self):
        return len(self._graphs)

    def cached_keys(self):
        """The keys of the graphs that are kept, the last used one last."""
        return list(self._graphs)

    def get(self, key, make, depends_on_owner=True):
        """The graph of a key: what `make` returns, if it is not kept.

        `make` is called by one thread at a time: threads that trace at the same time pass the GIL back and forth at every
        operation, and take many times as long.

        Args:
            key: What the graph depends on beside the owner.
            make: Function without arguments.
            depends_on_owner: Boolean, whether it depends on the owner at all.
        """
        graph = self._find(key, depends_on_owner)
        if graph is not None:
            return graph
        with self._making:
            graph = self._find(key, depends_on_owner)
            if graph is None:
                graph = make()
                self._keep(key, graph)
        return graph

    def clear(self):
        """Forgets all graphs, so that their memory is free."""
        with self._lock:
            self._structure = None
            self._graphs.clear()

    def _find(self, key, depends_on_owner):
        structure = self._structure
        is_stale = depends_on_owner and structure is not None and not structure.is_unchanged()
        with self._lock:
            if is_stale and self._structure is structure:  # else another thread has made graphs since
                self._structure = None
                self._graphs.clear()
            graph = self._graphs.get(key)
            if graph is not None:
                self._graphs.move_to_end(key)
        return graph

    def _keep(self, key, graph):
        # Tracing may build layers or set their attributes, so the object is looked at after it.
        structure = TraceGuard(self._owner, self._data)
        with self._lock:
            self._structure = structure
            self._graphs[key] = graph
            while len(self._graphs) > self._most:
                self._graphs.popitem(last=False)


class TraceGuard:
    """Remembers what an object is made of, and tells whether it has changed since a graph of it was traced.

    A graph reads the values of variables when it runs. All else is built into it: which variables and layers there are, and
    their attributes. Compared are the attributes of the object, of its parts, and of all layers among them: variables, layers,
    tensors and other objects by identity; lists and dicts by what is in them; numbers, strings and frozen dataclasses by value.
    Not compared are the attributes in which Keras keeps its own books, and what matters to training alone: an optimizer, what
    is frozen, a dropout's rate. An array that is changed in place is not noticed, nor what is inside the parts of a part that is
    not a layer.

    It keeps a reference to all that it compares by identity, so that no new object gets the identity of an old one.

    Args:
        root: The object: a model, or one that has a model among its attributes.
        ignored: Names of attributes of `root` that do not count.

    Example:

    ```python
    from keras_attn.tasks.graph_cache import TraceGuard

    model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    guard = TraceGuard(model)
    assert guard.is_unchanged()
    model.enable_lora(rank=4)
    assert not guard.is_unchanged()
    ```
    """

    def __init__(self, root, ignored=()):
        self._root = root
        self._ignored = frozenset(ignored)
        self._description, self._quick = self._look()

    def is_unchanged(self):
        """Whether nothing has changed; takes about 0.1 ms for a model of 180 layers."""
        try:
            if self._quick.is_same():
                return True
        except Exception:  # comparing tensors or arrays may raise
            pass
        description, quick = self._look()
        if description != self._description:
            return False
        self._quick = quick  # only what does not count has changed
        return True

    def _look(self):
        owners = _owners(self._root, self._ignored)
        description = [
            (_Same(owner), tuple(attributes), _comparable(list(attributes.values()) + _lists_of_keras(owner)))
            for owner, attributes in owners
        ]
        return description, _QuickDescription(owners)


class _QuickDescription:
    """The same description in the form that Python compares fastest.

    Python's `==` compares values, and variables that hold one number may be equal by chance, so their ids are compared.
    """

    def __init__(self, owners):
        named = [(owner, attributes) for owner, attributes in owners if attributes]
        self._reads = [(operator.itemgetter(*attributes), vars(owner)) for owner, attributes in named]
        lists = itertools.chain.from_iterable(_lists_of_keras(owner)[1:] for owner, _ in owners)
        self._lists_of_numbers = [some for some in lists if any(math.prod(one.shape) == 1 for one in some)]
        values = [_lists_of_keras(owner)[:1] for owner, _ in owners]
        values += [list(attributes.values()) for _, attributes in owners]
        containers = list(itertools.chain.from_iterable(map(_containers, values)))
        self._containers = [container for container in containers if len(container) <= _LONGEST]
        self._sized = [vars(owner) for owner, _ in owners] + containers
        self._before = self._now()
        self._contents = [_copy(container) for container in self._containers]
        self._referenced = list(itertools.chain.from_iterable(self._lists_of_numbers))

    def is_same(self):
        return self._now() == self._before and self._containers == self._contents

    def _now(self):
        """The values of attributes, the sizes of containers, and the ids of variables that hold one number."""
        values = [read(attributes) for read, attributes in self._reads]
        sizes = list(map(len, self._sized))
        ids = list(map(id, itertools.chain.from_iterable(self._lists_of_numbers)))
        return values, sizes, ids


class _Same:
    """Equal only to another `_Same` of the same object."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, _Same) and other.value is self.value

    __hash__ = None


def _owners(root, ignored):
    """`root`, its parts, and all layers below: each with {name: value} of its attributes that count."""
    owners = []
    waiting = [root]
    seen = set()
    while waiting:
        owner = waiting.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        attributes = _attributes(owner, ignored if owner is root else ())
        owners.append((owner, attributes))
        for value in _leaves(list(attributes.values()) + _lists_of_keras(owner)):
            is_part = owner is root and not isinstance(root, keras.layers.Layer) and _is_part(value)
            if is_part or isinstance(value, keras.layers.Layer):
                waiting.append(value)
    return owners


def _attributes(owner, ignored):
    """{name: value} of the attributes that count."""
    attributes = {name: value for name, value in list(vars(owner).items()) if name not in ignored}
    if type(owner) in _DROPOUTS:
        return {DTYPE_POLICY: attributes[DTYPE_POLICY]}
    if not isinstance(owner, keras.layers.Layer):
        return attributes
    return {name: value for name, value in attributes.items() if _counts(owner, name, value)}


def _counts(layer, name, value):
    """Whether an answer may depend on an attribute of a layer."""
    if name in _bookkeeping() or is_tracking_attribute(name) or name.endswith(_WEIGHT_MAKERS):
        return False
    # A method that is watched for a while, as `capture_attention` does, is the same method.
    is_watched_method = callable(value) and hasattr(value, "__wrapped__") and hasattr(type(layer), name)
    return not is_watched_method


@functools.cache
def _bookkeeping():
    """The names of the attributes that Keras has in every layer and model for itself."""
    return bookkeeping_attributes().union(_QUANTIZATION_ARGUMENTS)


def _lists_of_keras(owner):
    """The lists that Keras keeps of a layer's own layers and variables, which it changes in place."""
    if not isinstance(owner, keras.layers.Layer):
        return []
    return layers_and_variables_of_its_own(owner)


def _is_part(value):
    """Whether an attribute's value has attributes of its own that count."""
    if isinstance(value, (type, keras.Variable)) or keras.ops.is_tensor(value) or _is_value(value):
        return False
    return hasattr(value, "__dict__") and not hasattr(value, "__code__") and not hasattr(value, "__func__")


def _is_value(value):
    """Whether an object is what its fields say: a frozen dataclass of values."""
    if isinstance(value, type) or not dataclasses.is_dataclass(value):
        return False
    if not type(value).__dataclass_params__.frozen:
        return False
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _comparable(value):
    if isinstance(value, _PLAIN) or _is_value(value):
        return value
    if isinstance(value, tuple):
        return tuple(map(_comparable, value))
    if not isinstance(value, (list, dict, set)):
        return _Same(value)
    if len(value) > _LONGEST:
        return _Same(value), len(value)
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, dict):
        return [(key, _comparable(part)) for key, part in value.items()]
    return list(map(_comparable, value))


def _leaves(value):
    """What is in lists, tuples and dicts inside each other."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        yield value
    elif len(value) <= _LONGEST:
        for part in value:
            yield from _leaves(part)


def _containers(values):
    """The lists, dicts and sets among values, and inside of these and of tuples."""
    for value in values:
        if isinstance(value, (list, dict, set)):
            yield value
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, (list, tuple)) and len(value) <= _LONGEST:
            yield from _containers(value)


def _copy(container):
    for kind in (dict, set):
        if isinstance(container, kind):
            return kind(container)
    return list(container)
