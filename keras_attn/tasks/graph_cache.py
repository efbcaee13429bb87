"""The graphs that a task keeps; and a page of everything that this package keeps.

What an answer depends on is in the key of whatever is kept. So each line says what is kept, its key, and what can change
beneath it. Whoever keeps something new writes its line here.

In a process, until what they belong to goes:

- The graphs of a task (`GraphCache`, here; on JAX its compiled functions). Key: what a call has of its own size, the number of
  beams or samples, the options given and how many ids they have, rounded up, the most tokens, rounded up. Beneath: the
  attributes of the task and all that its model is made of (`models.trace_guard.TraceGuard`); when these change, all graphs go.
  The values of variables are read when a graph runs; penalties, limits, temperatures and seeds are its inputs. The last 16 are
  kept. The graphs of strings alone, `("texts", tokenizer, ...)`, have what they depend on in the key.
- Programs of XLA, in a graph with `jit_compile`, and of `jax.jit`: by the shapes of inputs, which are rounded up to few
  (`tasks.batches`). They belong to their graph.
- What Keras compiles for `fit`, `evaluate` and `predict`, in a model: Keras forgets it in `compile` and `quantize`,
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

In a process, for good, of what cannot change in it (`functools.cache`): the processor's instructions, whether there is a fused
kernel and whether a softmax is rounded once (`ops`), classes of messages (`export`), the explorer's files (`plots`), the dates of
the splits (`data.generated_pairs`), the names of Keras' own attributes (`models.trace_guard`), the arguments of a class (`tasks.task`);
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
import threading

from keras_attn.models.trace_guard import TraceGuard

# The most graphs that a task keeps. One takes seconds to make, and tens of megabytes; few tasks are asked for more kinds.
MOST_GRAPHS = 16


class GraphCache:
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
            if is_stale and self._structure is structure:
                self._structure = None
                self._graphs.clear()
            graph = self._graphs.get(key)
            if graph is not None:
                self._graphs.move_to_end(key)
        return graph

    def _keep(self, key, graph):
        # Layers may be built, or set an attribute, while they are traced: what comes after is compared with what is now.
        structure = TraceGuard(self._owner, self._data)
        with self._lock:
            self._structure = structure
            self._graphs[key] = graph
            while len(self._graphs) > self._most:
                self._graphs.popitem(last=False)
