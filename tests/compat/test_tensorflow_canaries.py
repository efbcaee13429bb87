"""What keras_attn/compat/tensorflow.py and system.py use is there and means what it did."""

import ctypes
import importlib.util
import io
import pathlib
import sys

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
import tensorflow_text
from helpers_canaries import Canaries, users_of

from keras_attn.compat import system
from keras_attn.compat import tensorflow as compat
from keras_attn.ops import int8_problem

CANARIES = Canaries(compat, "tensorflow")
SYSTEM = Canaries(system)


@pytest.mark.parametrize("name", CANARIES.lines)
def test_canary(name):
    with CANARIES.explained(name):
        CANARIES[name]()


@pytest.mark.parametrize("name", CANARIES.lines)
def test_somebody_uses(name):
    assert users_of(name, CANARIES.path)


@CANARIES.of("unoptimized_graphs")
def graphs_as_traced():
    """Where the optimiser runs, an exponential of a constant is a constant."""
    from tensorflow.python.eager import context

    def operations_that_run():
        @tf.function(autograph=False)
        def sums(x):
            return x + tf.exp(tf.constant([5.0, 7.0]))

        context.context().enable_graph_collection()
        try:
            sums(tf.constant([3.0, 2.0]))
            functions = context.context().export_run_metadata().function_graphs
        finally:
            context.context().disable_graph_collection()
        return {node.op for function in functions for node in function.post_optimization_graph.node}

    assert "Exp" not in operations_that_run()
    with compat.unoptimized_graphs():
        assert "Exp" in operations_that_run()
    assert "Exp" not in operations_that_run()


@CANARIES.of("is_for_xla", "graph_around_control_flow", "XLA_ATTRIBUTE")
def graphs():
    seen = []

    def look():
        graph = tf.compat.v1.get_default_graph()
        seen.append((graph, compat.is_for_xla(graph), compat.graph_around_control_flow(graph)))

    def function(x):
        look()

        def then():
            look()
            return x + 1

        def body(number):
            look()
            return tf.cond(number > 3, then, lambda: number + 1)

        return tf.while_loop(lambda number: number < 9, body, [x])[0]

    for jit_compile in (True, False):
        seen.clear()
        traced = tf.function(function, jit_compile=jit_compile, autograph=False)
        definition = traced.get_concrete_function(tf.TensorSpec([], tf.int32)).function_def
        outer, loop, branch = (graph for graph, *_ in seen[:3])
        assert len({id(graph) for graph in (outer, loop, branch)}) == 3
        assert [is_for_xla for _, is_for_xla, _ in seen] == [jit_compile] * len(seen)
        assert all(around is outer for *_, around in seen)
        is_marked = compat.XLA_ATTRIBUTE in definition.attr and definition.attr[compat.XLA_ATTRIBUTE].b
        assert is_marked == jit_compile


@CANARIES.of("graph_around_function", "values_from_outside")
def functions_of_graphs():
    seen = []

    def outer(x):
        around = tf.compat.v1.get_default_graph()
        read = x + 1

        @tf.function(autograph=False)
        def inner(y):
            doubled = 2 * read + y
            graph = tf.compat.v1.get_default_graph()
            seen.append(
                (compat.graph_around_function(graph) is around, len(compat.values_from_outside(graph)))
            )
            return [doubled, *compat.values_from_outside(graph)]

        return inner(x)

    doubled, read = tf.function(outer, autograph=False)(tf.constant(3))
    assert seen == [(True, 1)]
    assert (int(doubled), int(read)) == (11, 4)


@CANARIES.of("product_and_bias")
def bfloat16_products():
    rng = np.random.default_rng(0)
    rows, matrix = (tf.constant(rng.normal(size=size), tf.bfloat16) for size in ((3, 32), (32, 16)))
    product = tf.function(compat.product_and_bias)(rows, matrix)
    expected = tf.cast(rows, tf.float32) @ tf.cast(matrix, tf.float32)
    assert product.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(product, tf.float32), expected, rtol=0.01, atol=0.05)


@CANARIES.of("quantized_product")
def int8_products():
    if (problem := int8_problem()) is not None:
        pytest.skip(problem)
    rng = np.random.default_rng(0)
    rows, matrix = (rng.integers(-9, 10, size).astype("int8") for size in ((5, 32), (32, 16)))
    scales = rng.uniform(0.5, 2, 16).astype("float32")
    expected = (rows.astype("int32") @ matrix.astype("int32")) * scales
    for is_transposed in (False, True):
        stored = matrix.T.copy() if is_transposed else matrix
        for is_constant in (False, True):
            product = tf.function(compat.quantized_product)(
                tf.constant(rows), tf.constant(stored), tf.constant(scales), is_transposed, is_constant
            )
            np.testing.assert_allclose(product, expected, rtol=1e-5)


@CANARIES.of("sentencepiece_resource", "set_sentencepiece_resource")
def named_models():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["one two three", "four five six"] * 9),
        model_writer=model,
        vocab_size=20,
        minloglevel=2,
    )
    tokenizer = tensorflow_text.SentencepieceTokenizer(model.getvalue())
    expected = tokenizer.tokenize(["two five"]).to_list()

    class Named(tf.saved_model.experimental.TrackableResource):
        def _create_resource(self):
            return compat.sentencepiece_resource(model.getvalue(), "canary")

    resource = Named()
    _ = resource.resource_handle
    compat.set_sentencepiece_resource(tokenizer, resource)
    for forget in (keras.utils.clear_session, lambda: tf.random.set_seed(0)):
        forget()
        assert tokenizer.tokenize(["two five"]).to_list() == expected


def library_of_tensorflow():
    folder = pathlib.Path(importlib.util.find_spec("tensorflow").origin).parent
    name = "libtensorflow_cc.2.dylib" if sys.platform == "darwin" else "libtensorflow_cc.so.2"
    return ctypes.CDLL(str(folder / name))


@CANARIES.of("TSTRING_BYTES")
def sizes_of_strings():
    memory = (ctypes.c_ubyte * 64)(*[255] * 64)
    library_of_tensorflow().TF_StringInit(memory)  # writes zeros
    assert list(memory).count(0) == compat.TSTRING_BYTES
    assert not any(memory[: compat.TSTRING_BYTES])


@CANARIES.of("disable_xla")
def symbols():
    library = library_of_tensorflow()

    class Lookup:
        """Looks functions up without calling them: XLA cannot be switched on again."""

        def __getitem__(self, name):
            assert library[name]
            return lambda: names.append(name)

    names = []
    compat.disable_xla(Lookup())
    assert len(names) == 1


def test_folders_are_exchanged_in_one_step(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        (folder / folder.name).touch()
    with SYSTEM.explained("exchange_folders"):
        assert system.exchange_folders(one, other) == (sys.platform == "linux")
        if sys.platform == "linux":
            assert (one / "other").exists()
            assert (other / "one").exists()
            with pytest.raises(FileNotFoundError):
                system.exchange_folders(one, tmp_path / "nothing")
