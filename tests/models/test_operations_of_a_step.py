"""A step of decoding in a TensorFlow graph has few operations: there, each takes about as long as a product of a small model."""

import os

import keras
import pytest
import tensorflow as tf

from keras_attn.models import Seq2SeqTransformer
from keras_attn.ops import inference_scope

pytestmark = pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow", reason="graphs of TensorFlow"
)
NOT_COUNTED = {"Const", "Identity", "NoOp", "Placeholder"}


def loops(nodes, functions):
    """(body, condition) of all loops in these nodes, outer ones first: lists of nodes."""
    for node in nodes:
        if node.op in ("While", "StatelessWhile"):
            body, condition = (functions[node.attr[name].func.name].node_def for name in ("body", "cond"))
            yield body, condition
            yield from loops(body, functions)


def count(nodes):
    return sum(node.op not in NOT_COUNTED for node in nodes)


@pytest.mark.parametrize(("num_beams", "most"), [(1, 425), (4, 534)])
def test_the_body_of_the_decoding_loop_does_not_grow(num_beams, most):
    keras.utils.set_random_seed(1)
    model = Seq2SeqTransformer.from_preset("tiny", 2003, max_sequence_length=37)

    def generate(token_ids):
        with inference_scope():
            return model.generate(token_ids, 2, 3, num_beams=num_beams, max_length=17)

    function = tf.function(generate, [tf.TensorSpec([None, None], tf.int32)], autograph=False)
    graph = function.get_concrete_function().graph.as_graph_def()
    functions = {function.signature.name: function for function in graph.library.function}
    *_, (body, condition) = loops(graph.node, functions)
    kinds = {node.op for node in body}
    assert "MatMul" in kinds
    assert not kinds & {"Assert", "If", "StatelessIf", "ReadVariableOp"}
    assert count(body) <= most
    assert count(condition) <= 12
