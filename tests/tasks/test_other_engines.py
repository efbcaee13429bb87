"""The graphs that other engines are given."""

import keras
import pytest
import tensorflow as tf

from keras_attn.models import Seq2SeqTransformer
from keras_attn.tasks.other_engines import token_functions

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the functions are TensorFlow's"
)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tie_output", [True, False])
def test_a_greedy_search_for_converters_is_one_loop_without_branches(tie_output, monkeypatch):
    monkeypatch.setattr("keras_attn.layers.embeddings._LARGE_TABLE", 1)
    model = Seq2SeqTransformer.from_sizes(
        14, 1, 1, hidden_dim=22, num_heads=2, intermediate_dim=23, tie_output=tie_output
    )
    function, specs = token_functions(model, 2, 3, max_length=5)["greedy"]
    graph = tf.function(function, specs, autograph=False).get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for part in graph.library.function for node in part.node_def)]
    control = [node.op for node in nodes if node.op in ("If", "StatelessIf", "Case", "StatelessCase")]
    assert control == []
    assert sum(node.op in ("While", "StatelessWhile") for node in nodes) == 1
