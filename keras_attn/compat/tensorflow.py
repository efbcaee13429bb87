"""What the library uses of TensorFlow, and of tensorflow-text, that they do not promise.

Nothing is imported before a function is called: `export/saved_model_runner.py` reads this file in a process without
TensorFlow's Python. Seen with TensorFlow 2.20.1 and 2.21.0, and with tensorflow-text 2.20.1.
"""

import contextlib
import importlib

# Graphs


def is_for_xla(graph):
    """Whether a graph, or one around it, is traced for XLA (`jit_compile=True`): `GraphOrParentsInXlaContext`.

    Why: a function that is traced has no public way to know. XLA is given other operations, which it compiles better.
    Since: TensorFlow 2.2.
    If it goes: every graph fails to be traced.
    """
    control_flow = importlib.import_module("tensorflow.python.ops.control_flow_util")
    return control_flow.GraphOrParentsInXlaContext(graph)


def graph_around_control_flow(graph):
    """The graph itself, or if it is the body of a loop or a branch, the one around them all: `control_flow_v2_func_graphs`.

    Why: graphs of loops and branches are told from those of functions by their classes, which are not public.
    Since: TensorFlow 2.0.
    If it goes: graphs that multiply in bfloat16 fail to be traced.
    """
    control_flow = importlib.import_module("tensorflow.python.ops.control_flow_v2_func_graphs")
    inner_graphs = (
        control_flow.CondBranchFuncGraph,
        control_flow.WhileBodyFuncGraph,
        control_flow.WhileCondFuncGraph,
    )
    while isinstance(graph, inner_graphs):
        graph = graph.outer_graph
    return graph


def graph_around_function(graph):
    """The graph in which a graph's function is traced, `FuncGraph.outer_graph`; None if there is none.

    Why: what is computed once for all steps of a loop is computed around the function of a step.
    Since: TensorFlow 2.0.
    If it goes: graphs of searches that multiply in bfloat16 fail to be traced.
    """
    return graph.outer_graph


def values_from_outside(graph):
    """The tensors of a graph of a function that stand for tensors around it, a list: `FuncGraph.internal_captures`.

    Why: the body of a loop returns all of its values, also those that it reads alone.
    Since: TensorFlow 2.0.
    If it goes: no search can be traced.
    """
    return list(graph.internal_captures)


# The attribute of a function of a graph that TensorFlow compiles with XLA (`jit_compile=True`), in
# tensorflow/python/eager/polymorphic_function/attributes.py. Since TensorFlow 2.0. If it goes, `verify` does not say of an
# export that a server without XLA refuses it.
XLA_ATTRIBUTE = "_XlaMustCompile"


@contextlib.contextmanager
def unoptimized_graphs():
    """Within the block, graphs that are called for the first time run as they are traced: `disable_meta_optimizer`.

    Why: TensorFlow's graph optimiser takes seconds for each graph, to save milliseconds in each call, and an export calls each
    of its graphs once or twice.
    Since: TensorFlow 2.0, `tf.config.optimizer.set_experimental_options`.
    If it goes: an export takes longer.
    """
    import tensorflow as tf

    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})


# Operations without a function in Python


def product_and_bias(rows, matrix):
    """bfloat16 rows (R, K) times a matrix (K, N) by `_FusedMatMul`, with a bias of zeros: tensorflow/core/ops/math_ops.cc.

    Why: of TensorFlow's operations on a CPU only this one multiplies bfloat16 by oneDNN without converting the matrix first.
    It is what the graph optimiser makes of `MatMul` and `BiasAdd`, though not in a loop.
    Since: TensorFlow 2.0; bfloat16 since 2.5.
    If it goes: bfloat16 exports do not load, which `verify` and every warm-up tell.
    """
    import tensorflow as tf

    fused_ops = tf.compat.v1.AttrValue.ListValue(s=[b"BiasAdd"])
    attributes = {
        "T": {"type": tf.bfloat16.as_datatype_enum},
        "num_args": {"i": 1},
        "fused_ops": {"list": fused_ops},
        "epsilon": {"f": 0.0},
        "transpose_a": {"b": False},
        "transpose_b": {"b": False},
    }
    inputs = [
        tf.convert_to_tensor(rows),
        tf.convert_to_tensor(matrix),
        tf.zeros([matrix.shape[1]], tf.bfloat16),
    ]
    product = _operation("_FusedMatMul", inputs, tf.bfloat16, attributes, "bfloat16_product")
    product.set_shape([None, matrix.shape[1]])
    return product


def quantized_product(rows, matrix, column_scales, is_transposed, is_constant):
    """int8 rows (R, K) times an int8 matrix (K, N), in integers by oneDNN: `_QuantizedMatMul`, tensorflow/core/ops/mkl_nn_ops.cc.

    Why: of TensorFlow's operations on a CPU only this one multiplies int8 by oneDNN. The public `QuantizedMatMul` is a slow
    reference.
    Since: TensorFlow 2.8.
    If it goes: int8 exports do not load, which `verify` and every warm-up tell.

    Args:
        rows: int8 (R, K).
        matrix: int8 (K, N), or (N, K) if `is_transposed`.
        column_scales: float32 (N,), by which the sums of integers are multiplied.
        is_transposed: Boolean.
        is_constant: Boolean, whether oneDNN may keep the matrix in its own layout from one run to the next.

    Returns:
        float32 (R, N).
    """
    import tensorflow as tf

    highest = tf.constant(127.0)
    largest_in_columns = column_scales * highest
    inputs = [
        tf.bitcast(rows, tf.qint8),
        tf.bitcast(matrix, tf.qint8),
        tf.zeros_like(column_scales),
        -highest,
        highest,
        -largest_in_columns,
        largest_in_columns,
    ]
    dtypes = {"T1": tf.qint8, "T2": tf.qint8, "Tbias": tf.float32, "U": tf.float32, "Tout": tf.float32}
    attributes = {name: {"type": dtype.as_datatype_enum} for name, dtype in dtypes.items()}
    attributes |= {
        "Tdevice_inputs": {"list": {"type": [x.dtype.as_datatype_enum for x in inputs]}},
        "Thost_inputs": {"list": {}},
        "Tdevice_outputs": {"list": {"type": [tf.float32.as_datatype_enum]}},
        "Thost_outputs": {"list": {}},
        "transpose_a": {"b": False},
        "transpose_b": {"b": is_transposed},
        "is_weight_const": {"b": is_constant},
        "is_bias_const": {"b": is_constant},
        "fused_ops": {"list": {"s": [b"BiasAdd", b"Dequantize"]}},
        "input_quant_mode": {"s": b"SCALED"},
        "output_quant_mode": {"s": b"SCALED"},
    }
    product = _operation("_QuantizedMatMul", inputs, tf.float32, attributes, "int8_product")
    product.set_shape([rows.shape[0], column_scales.shape[0]])
    return product


def _operation(kind, inputs, dtype, attributes, name):
    """The one output of an operation of the graph that is traced."""
    import tensorflow as tf

    values = {key: tf.compat.v1.AttrValue(**value) for key, value in attributes.items()}
    graph = tf.compat.v1.get_default_graph()
    return graph.create_op(kind, inputs, [dtype], attrs=values, name=name).outputs[0]


# tensorflow-text


def sentencepiece_resource(model_proto, name):
    """The handle of a sentencepiece model as a resource of TensorFlow with a name: `gen_sentencepiece_tokenizer.sentencepiece_op`.

    Why: the resource that tensorflow-text creates has no name and is deleted with the cached kernel that created it;
    `tf.random.set_seed` and `keras.utils.clear_session` empty that cache, and every later call fails with "Resource does not
    exist" (https://github.com/tensorflow/text/issues/570). A named resource outlives its kernel.
    Since: tensorflow-text 2.0.
    If it goes: no sentencepiece tokenizer can be made.
    """
    library = importlib.import_module("tensorflow_text.python.ops.sentencepiece_tokenizer")
    return library.gen_sentencepiece_tokenizer.sentencepiece_op(model=model_proto, shared_name=name)


def set_sentencepiece_resource(tokenizer, resource):
    """Gives a `tensorflow_text.SentencepieceTokenizer` the resource that holds its model: `_model_resource`.

    Why: its constructor has no argument for that, see `sentencepiece_resource`.
    Since: tensorflow-text 2.0.
    If it goes: tokenizers fail after `keras.utils.set_random_seed`.
    """
    tokenizer._model_resource = resource


# The C++ libraries

# sizeof(TF_TString), tensorflow/core/platform/ctstring_internal.h: the C API has functions for a string and none for its size.
# Since TensorFlow 2.4. If it changes, exports with strings cannot be run without TensorFlow's Python, by `verify` or `serve`.
TSTRING_BYTES = 24


def disable_xla(library):
    """Switches XLA off in this process, for good: `tensorflow::DisableXlaCompilation()`.

    Why: TF Serving calls it unless a flag enables XLA, and an export must be tried as it is served. The C API does not have it.
    Since: TensorFlow 2.6.
    If it goes: `verify` and `serve` cannot start.

    Args:
        library: `ctypes.CDLL` of TensorFlow's C++ code.
    """
    library["_ZN10tensorflow21DisableXlaCompilationEv"]()
