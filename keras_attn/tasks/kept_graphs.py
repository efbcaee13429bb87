"""The graphs that a task keeps, and a page of all that the package keeps.

(The page is written below.)
"""

import collections
import threading

from keras_attn.models.structure import Structure

# The most graphs that a task keeps. One takes seconds to make, and tens of megabytes; few tasks are asked for more kinds.
MOST_GRAPHS = 16


class KeptGraphs:
    """The graphs that were made of an object, the last used of them; none that was made of it before it changed.

    Args:
        owner: The object.
        data: Names of its attributes that its graphs are given as inputs, or do not read: they may change.
        most: Integer, how many graphs are kept. The one that was not used for longest goes first.
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

    def held_keys(self):
        """The keys of the graphs that are kept, the last used one last."""
        return list(self._graphs)

    def get(self, key, make, of_owner=True):
        """The graph of a key: what `make` returns, if it is not kept.

        `make` is called by one thread at a time: threads that trace at the same time pass the GIL back and forth at every
        operation, and take many times as long.

        Args:
            key: What the graph depends on beside the owner.
            make: Function without arguments.
            of_owner: Boolean, whether it depends on the owner at all.
        """
        graph = self._find(key, of_owner)
        if graph is not None:
            return graph
        with self._making:
            graph = self._find(key, of_owner)
            if graph is None:
                graph = make()
                self._keep(key, graph)
        return graph

    def clear(self):
        """Forgets all graphs, so that their memory is free."""
        with self._lock:
            self._structure = None
            self._graphs.clear()

    def _find(self, key, of_owner):
        structure = self._structure
        is_stale = of_owner and structure is not None and not structure.is_unchanged()
        with self._lock:
            if is_stale and self._structure is structure:
                self._structure = None
                self._graphs.clear()
            graph = self._graphs.get(key)
            if graph is not None:
                self._graphs.move_to_end(key)
        return graph

    def _keep(self, key, graph):
        # Layers may be built, or set an attribute, while they are traced: what comes after is compared with what is now.
        structure = Structure(self._owner, self._data)
        with self._lock:
            self._structure = structure
            self._graphs[key] = graph
            while len(self._graphs) > self._most:
                self._graphs.popitem(last=False)
