"""A step of decoding in a TensorFlow graph has few operations: there, each takes about as long as a product of a small model."""

import keras
import pytest

from keras_attn.layers import DecoderBlock, FeedForward, MultiHeadAttention, RotaryEmbedding, TokenEmbedding
from keras_attn.models import DecoderTransformer, Seq2SeqTransformer
from keras_attn.ops import inference_scope

if keras.backend.backend() != "tensorflow":
    pytest.skip("graphs of TensorFlow", allow_module_level=True)

import tensorflow as tf

V = 2003
NOT_COUNTED = {"Const", "Identity", "NoOp", "Placeholder"}


def seq2seq_transformer():
    model = Seq2SeqTransformer.from_preset("tiny", V, max_sequence_length=37)
    return lambda token_ids, num_beams: model.generate(token_ids, 2, 3, num_beams, max_length=17)


def decoder_transformer():
    """Four blocks as LLaMA's."""
    model = DecoderTransformer(
        TokenEmbedding(V, 128),
        [
            DecoderBlock(
                self_attention=MultiHeadAttention(
                    4, 32, num_key_value_heads=2, use_bias=False, rotary_embedding=RotaryEmbedding()
                ),
                feed_forward=FeedForward(300, activation="silu", gated=True, use_bias=False),
                norm=keras.layers.RMSNormalization(),
                normalize_first=True,
            )
            for _ in range(4)
        ],
        norm=keras.layers.RMSNormalization(),
        max_sequence_length=37,
    )
    return lambda token_ids, num_beams: model.generate(token_ids, 3, num_beams, max_total_length=31)


def loops(nodes, functions):
    """(body, condition, number of inputs) of all loops in these nodes, outer ones first; bodies are lists of nodes."""
    for node in nodes:
        if node.op in ("While", "StatelessWhile"):
            body, condition = (
                with_called(functions[node.attr[name].func.name].node_def, functions)
                for name in ("body", "cond")
            )
            yield body, condition, len(node.input)
            yield from loops(body, functions)


def with_called(nodes, functions):
    """Nodes, those of the functions that they call in place of calls, as TensorFlow runs them."""
    called = []
    for node in nodes:
        if node.op in ("PartitionedCall", "StatefulPartitionedCall"):
            called += with_called(functions[node.attr["f"].func.name].node_def, functions)
        else:
            called.append(node)
    return called


def count(nodes):
    return sum(node.op not in NOT_COUNTED for node in nodes)


@pytest.mark.parametrize(
    ("make_generate", "num_beams", "most", "most_inputs"),
    [(seq2seq_transformer, 1, 417, 71), (seq2seq_transformer, 4, 526, 73), (decoder_transformer, 1, 402, 44)],
)
def test_the_body_of_the_decoding_loop_does_not_grow(make_generate, num_beams, most, most_inputs):
    generate = make_generate()

    def traced(token_ids):
        with inference_scope():
            return generate(token_ids, num_beams)

    function = tf.function(traced, [tf.TensorSpec([None, None], tf.int32)], autograph=False)
    graph = function.get_concrete_function().graph.as_graph_def()
    functions = {function.signature.name: function for function in graph.library.function}
    all_loops = list(loops(graph.node, functions))
    loops_of_steps = [loop for loop in all_loops if "MatMul" in {node.op for node in loop[0]}]
    # One for a single row and one for several; beams are always several.
    assert len(loops_of_steps) == (2 if num_beams == 1 else 1)
    for body, condition, num_inputs in loops_of_steps:
        assert not {node.op for node in body} & {"Assert", "If", "StatelessIf", "ReadVariableOp"}
        assert count(body) <= most
        assert count(condition) <= 12
        # In every step of several rows, each passes through three operations more: Merge, Switch and NextIteration.
        assert num_inputs <= most_inputs, (count(body), count(condition))


class Counted(keras.layers.Layer):
    """A layer that counts its calls."""

    def build(self, input_shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="float32")

    def call(self, inputs):
        self.count.assign(self.count + 1)
        return inputs


def test_a_layer_of_a_user_that_assigns_a_weight_does_so_in_every_step():
    counted = Counted()
    block = DecoderBlock(num_heads=2, feed_forward=counted)
    model = DecoderTransformer(TokenEmbedding(V, 16), [block], max_sequence_length=37)
    model.build()
    function = tf.function(
        lambda token_ids: model.generate(token_ids, 3, max_total_length=31),
        [tf.TensorSpec([None, None], tf.int32)],
        autograph=False,
    ).get_concrete_function()
    counted.count.assign(0)
    num_written = int(tf.reduce_sum(tf.cast(function(tf.constant([[5, 6, 7]])) != 0, "int32")))
    assert int(counted.count.value) >= num_written > 3
