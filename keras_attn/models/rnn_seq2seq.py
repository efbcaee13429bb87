import collections

import keras
import numpy as np
from keras import ops

from keras_attn.checks import check_positive, check_rank, check_rate, choose
from keras_attn.layers import BahdanauAttention, TokenEmbedding
from keras_attn.layers.clean_padding import clean_padding
from keras_attn.layers.layer_slots import plain_policy
from keras_attn.layers.lora_and_quantization import Adaptable
from keras_attn.layers.masks import real_token_mask
from keras_attn.models.base_model import checked_inputs, padding_mask_of_ids
from keras_attn.models.generation import Seq2SeqGeneration
from keras_attn.models.quantization import config_that_comes_back
from keras_attn.ops import empty_cache, write_cache

RNNCache = collections.namedtuple("RNNCache", ["states", "encoded"])
RNNCache.__doc__ = """All that decoding needs from the encoder and the earlier tokens, as a value.

Attributes:
    states: A tuple with one pair, in the format of keys and values: the states of the cells after the token in
        each of C slots, (B, 1, C, Z - D), and the output that is fed to the next step, (B, 1, C, D).
    encoded: An `Encoded`.
"""

Encoded = collections.namedtuple("Encoded", ["sequence", "projected_key", "padding_mask", "first_state"])
Encoded.__doc__ = """The data that the decoder needs from the source.

sequence: float (B, S, 2D), the states of both directions.
projected_key: float (B, S, D), `sequence` projected to the keys of the attention.
padding_mask: boolean (B, S), True at real tokens.
first_state: float (B, Z).
"""

_REQUIRED_INPUTS = ("encoder_token_ids", "decoder_token_ids")
_OPTIONAL_INPUTS = ("encoder_padding_mask", "decoder_padding_mask")

_CELLS = {
    "gru": (keras.layers.GRU, keras.layers.GRUCell, 1),
    "lstm": (keras.layers.LSTM, keras.layers.LSTMCell, 2),
}


@keras.saving.register_keras_serializable(package="keras_attn")
class RNNSeq2Seq(Seq2SeqGeneration, Adaptable, keras.Model):
    """The translation model before the Transformer: bidirectional encoder, recurrent decoder with attention.

    Bahdanau et al.'s additive attention over a bidirectional encoder, with Luong et al.'s input feeding: the
    decoder's output from state and context at one token is an input of its next step. It has the inputs, the
    outputs and the `generate` of `Seq2SeqTransformer`, so that it works with the same data, `Translator` and
    export. It is a baseline for the Transformer.

    Args:
        vocabulary_size: Integer V, of the source, and of the target too unless `target_vocabulary_size` is given.
        num_encoder_layers, num_decoder_layers: Integers.
        hidden_dim: Integer D: the width of embeddings, of the states of each direction, and of the attention.
        cell: `"gru"` or `"lstm"`.
        dropout: Float, of embeddings, between encoder layers, and before the output projection; each sequence
            has one dropout mask for all its tokens (Gal and Ghahramani, 2016).
        target_vocabulary_size: Integer. None means one vocabulary, and one embedding, for both sides.
        tie_output: Boolean, whether the output projection is the target embedding, transposed.
        max_sequence_length: Integer, the longest sequence of generation.
        pad_token_id: Integer.

    Call arguments:
        inputs: Dict of integers `encoder_token_ids` (B, S), padded on the right, and `decoder_token_ids` (B, T), the
            latter beginning with START. `encoder_padding_mask` (B, S) and `decoder_padding_mask` (B, T), boolean, are
            True at real tokens; without them the pads are the tokens with the id `pad_token_id`.
        training: Boolean.

    Returns:
        Logits, float32 (B, T, V).

    Raises:
        ValueError: for arguments out of range, inputs other than these, and token ids outside the vocabulary
            (a TensorFlow graph raises when it runs; see `TokenEmbedding`).

    Example:

    ```python
    model = keras_attn.models.RNNSeq2Seq(vocabulary_size=100, hidden_dim=16)
    encoder_token_ids = np.array([[5, 6, 7, 3, 0], [8, 9, 3, 0, 0]])
    logits = model({"encoder_token_ids": encoder_token_ids, "decoder_token_ids": np.array([[2, 5], [2, 6]])})
    token_ids = model.generate(encoder_token_ids, start_token_id=2, end_token_id=3, max_length=5)
    ```

    References: [Bahdanau et al., 2014](https://arxiv.org/abs/1409.0473), section 3;
    [Luong et al., 2015](https://arxiv.org/abs/1508.04025), section 3.3.
    """

    # One attention with one head, whatever the number of layers: (layers, heads), and the layer that aligns words.
    cross_attention_shape = (1, 1)
    alignment_layer = 0
    returns_attention_scores = True
    _LORA_TARGETS = BahdanauAttention._LORA_TARGETS

    def __init__(
        self,
        vocabulary_size,
        num_encoder_layers=1,
        num_decoder_layers=1,
        hidden_dim=256,
        cell="gru",
        dropout=0.3,
        target_vocabulary_size=None,
        tie_output=True,
        max_sequence_length=512,
        pad_token_id=0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive("vocabulary_size", vocabulary_size)
        check_positive("num_encoder_layers", num_encoder_layers)
        check_positive("num_decoder_layers", num_decoder_layers)
        check_positive("hidden_dim", hidden_dim)
        check_positive("max_sequence_length", max_sequence_length)
        check_positive("target_vocabulary_size", target_vocabulary_size, optional=True)
        check_rate("dropout", dropout)
        self.vocabulary_size = vocabulary_size
        self.num_encoder_layers = num_encoder_layers
        self.num_decoder_layers = num_decoder_layers
        self.hidden_dim = hidden_dim
        self.cell = cell
        self.dropout = dropout
        self.target_vocabulary_size = target_vocabulary_size
        self.tie_output = tie_output
        self.max_sequence_length = max_sequence_length
        self.pad_token_id = pad_token_id
        make_layer, make_cell, states_per_cell = choose("cell", cell, _CELLS)
        policy = plain_policy(self.dtype_policy)
        self.target_embedding = self._make_embedding(
            "target_embedding", target_vocabulary_size or vocabulary_size, tie_output
        )
        self.source_embedding = self.target_embedding
        if target_vocabulary_size is not None:
            self.source_embedding = self._make_embedding("source_embedding", vocabulary_size, True)
        self.encoder_layers = [
            keras.layers.Bidirectional(
                make_layer(hidden_dim, return_sequences=True, dtype=policy, name="states"),
                dtype=policy,
                name=f"encoder_layer_{i}",
            )
            for i in range(num_encoder_layers)
        ]
        self.cells = [
            make_cell(hidden_dim, dtype=policy, name=f"decoder_cell_{i}") for i in range(num_decoder_layers)
        ]
        # The state of a step, concatenated in one tensor: each cell's states, and the output that is fed.
        self._state_sizes = [hidden_dim] * (states_per_cell * num_decoder_layers + 1)
        self.first_state_dense = keras.layers.Dense(
            sum(self._state_sizes),
            activation="tanh",
            dtype=self._policy_of("first_state"),
            name="first_state",
        )
        self.attention = BahdanauAttention(hidden_dim, dtype=self._policies_of("attention"), name="attention")
        self.output_dense = keras.layers.Dense(
            hidden_dim, activation="tanh", dtype=self._policy_of("output"), name="output"
        )
        noise_shape = (None, 1, None) if dropout else None
        self._dropout = keras.layers.Dropout(dropout, noise_shape=noise_shape, dtype=policy)
        self.build()

    def _make_embedding(self, name, size, tie_weights):
        return TokenEmbedding(
            size, self.hidden_dim, tie_weights=tie_weights, dtype=self._policy_of(name), name=name
        )

    def _parts(self):
        # The recurrent layers have no kernels that Keras quantises.
        return [*self._embedding_layers(), self.first_state_dense, self.attention, self.output_dense]

    def _embedding_layers(self):
        if self.source_embedding is self.target_embedding:
            return [self.target_embedding]
        return [self.source_embedding, self.target_embedding]

    def build(self, input_shape=None):
        if self.built:
            return
        width = self.hidden_dim
        for embedding in self._embedding_layers():
            embedding.build((None, None, width))
        self.encoder_layers[0].build((None, None, width))
        for layer in self.encoder_layers[1:]:
            layer.build((None, None, 2 * width))
        self.cells[0].build((None, 2 * width))
        for cell in self.cells[1:]:
            cell.build((None, width))
        self.first_state_dense.build((None, 2 * width))
        self.attention.build((None, None, width), (None, None, 2 * width))
        self.output_dense.build((None, None, 4 * width))
        self.built = True

    def call(self, inputs, training=None):
        inputs = checked_inputs(inputs, _REQUIRED_INPUTS, _OPTIONAL_INPUTS)  # rows are not packed
        encoder_token_ids = inputs["encoder_token_ids"]
        mask = self._mask(encoder_token_ids, inputs.get("encoder_padding_mask"))
        encoder_sequence = self.encode(encoder_token_ids, mask, training)
        return self.decode(inputs["decoder_token_ids"], encoder_sequence, mask, training=training)

    def compute_mask(self, inputs, previous_mask=None):
        # The mask of the outputs. The decoder itself needs no mask of its pads, which come after all real tokens.
        return self._mask(inputs["decoder_token_ids"], inputs.get("decoder_padding_mask"))

    def encode(self, encoder_token_ids, encoder_padding_mask=None, training=None):
        """Token ids (B, S), padded on the right -> the states of both directions, float (B, S, 2D).

        Args:
            encoder_token_ids: Integers (B, S).
            encoder_padding_mask: Boolean (B, S). By default pads are found by their id.
            training: Boolean.
        """
        mask = self._mask(encoder_token_ids, encoder_padding_mask)
        x = self.source_embedding(encoder_token_ids)
        check_rank("encoder_token_ids", x.shape[:-1], "(B, S)")
        for layer in self.encoder_layers:
            x = layer(self._dropout(x, training=training), mask=mask, training=training)
        return x

    def decode(
        self,
        decoder_token_ids,
        encoder_sequence,
        encoder_padding_mask,
        training=None,
        return_attention_scores=False,
    ):
        """Logits, float32 (B, T, V), of the token after each of `decoder_token_ids` (B, T).

        No token sees a later one, so no mask of the pads after them is needed. With
        `return_attention_scores`, the attention scores are returned too, a list of one (B, 1, T, S).
        """
        encoded = self._encoded(encoder_sequence, encoder_padding_mask)
        return self._decode(decoder_token_ids, encoded, training, return_attention_scores)

    def init_cache(self, encoder_token_ids, length, encoder_padding_mask=None):
        """Runs the encoder on ids (B, S) and returns an `RNNCache` with `length` empty slots."""
        mask = self._mask(encoder_token_ids, encoder_padding_mask)
        return RNNCache(
            self._empty_states(ops.shape(encoder_token_ids)[0], length),
            self._encoded(self.encode(encoder_token_ids, mask), mask),
        )

    def call_with_cache(self, decoder_token_ids, cache, cache_update_index):
        """Logits of the token after each of `decoder_token_ids`, with the states before them in `cache`.

        Args:
            decoder_token_ids: Integers (B, T), T known.
            cache: An `RNNCache`.
            cache_update_index: Integer scalar, the slot of the first token; slots are positions.

        Returns:
            Logits, float32 (B, T, V), and the new cache.
        """
        all_logits = []
        states = cache.states
        for number in range(decoder_token_ids.shape[1]):
            index = cache_update_index + number
            token_ids = decoder_token_ids[:, number : number + 1]
            logits, states, _ = self._decoding_step(token_ids, index, states, None, cache.encoded)
            all_logits.append(logits)
        return ops.concatenate(all_logits, axis=1), cache._replace(states=states)

    def decoding_step(self, return_attention_scores=False, output_token_ids=None):
        if output_token_ids is not None:
            raise ValueError("An `RNNSeq2Seq` computes the logits of all tokens: it takes no shortlist.")
        return _RNNStep(self, return_attention_scores)

    def teacher_forced(
        self,
        encoder_token_ids,
        decoder_token_ids,
        encoder_padding_mask=None,
        return_attention_scores=False,
        cache=None,
    ):
        if cache is None:
            cache = self.init_cache(encoder_token_ids, 0, encoder_padding_mask)
        return self._decode(decoder_token_ids, cache.encoded, return_attention_scores=return_attention_scores)

    def _decode(self, decoder_token_ids, encoded, training=None, return_attention_scores=False):
        x = self._dropout(self.target_embedding(decoder_token_ids), training=training)  # (B, T, D)
        check_rank("decoder_token_ids", x.shape[:-1], "(B, T)")

        def step(state, x):
            state = self._next_state(ops.expand_dims(x, 1), ops.expand_dims(state, 1), encoded)[:, 0]
            return state, state

        _, states = ops.scan(step, encoded.first_state, ops.transpose(x, (1, 0, 2)))
        states = ops.transpose(states, (1, 0, 2))  # (B, T, Z)
        outputs = self._dropout(states[..., -self.hidden_dim :], training=training)
        logits = self._logits(outputs)
        return (logits, [self._scores(states, encoded)]) if return_attention_scores else logits

    def _decoding_step(self, token_ids, index, states, attention_mask, encoded):
        """Step `index` of hypotheses (B, K): logits (B, K, V), written slots, and new states (B, K, Z).

        The slots of a hypothesis are its history, as in a key/value cache; only the newest of them is read.
        """
        width = token_ids.shape[1]
        before = ops.maximum(index - 1, 0) * width + ops.arange(width, dtype="int32")
        last_states = [ops.take(part[:, 0], before, axis=1) for part in states[0]]
        state = ops.concatenate(last_states, axis=-1)  # (B, K, Z)
        if attention_mask is not None:
            # The history of each hypothesis has one slot of the previous step. The product selects that slot.
            is_parent = ops.cast(ops.take(attention_mask, before, axis=2), state.dtype)  # (B, K, K)
            state = ops.matmul(is_parent, state)
        state = ops.where(ops.equal(index, 0), ops.expand_dims(encoded.first_state, 1), state)
        state = self._next_state(self.target_embedding(token_ids), state, encoded)
        cell_states, fed = ops.split(state, [state.shape[-1] - self.hidden_dim], axis=-1)
        new_states = ops.expand_dims(cell_states, 1), ops.expand_dims(fed, 1)
        states = (write_cache(states[0], *new_states, index * width),)
        return self._logits(fed), states, state

    def _next_state(self, x, state, encoded):
        """Embeddings (B, K, D) and states (B, K, Z) of K hypotheses of each row -> the states after them."""
        ends = np.cumsum(self._state_sizes[:-1]).tolist()
        *states, fed = ops.split(state, ends, axis=-1)
        states_per_cell = len(states) // len(self.cells)
        flat_shape = (-1, self.hidden_dim)
        shape = (*ops.shape(x)[:2], self.hidden_dim)
        states = [ops.reshape(part, flat_shape) for part in states]
        new = []
        inputs = ops.reshape(ops.concatenate([x, fed], axis=-1), (-1, 2 * self.hidden_dim))
        for number, cell in enumerate(self.cells):
            first = number * states_per_cell
            inputs, new_states = cell(inputs, states[first : first + states_per_cell])
            new += keras.tree.flatten(new_states)
        new = [ops.reshape(part, shape) for part in new]
        top = ops.reshape(inputs, shape)
        context = self.attention(
            top, encoded.sequence, value_mask=encoded.padding_mask, projected_key=encoded.projected_key
        )
        new.append(self.output_dense(ops.concatenate([top, context, x], axis=-1)))
        return ops.concatenate(new, axis=-1)

    def _scores(self, states, encoded):
        """The attention scores (B, 1, T, S) of states (B, T, Z)."""
        # The output of the last cell is the first of its states.
        per_cell = (len(self._state_sizes) - 1) // len(self.cells)
        first = (len(self._state_sizes) - 1 - per_cell) * self.hidden_dim
        _, scores = self.attention(
            states[..., first : first + self.hidden_dim],
            encoded.sequence,
            value_mask=encoded.padding_mask,
            projected_key=encoded.projected_key,
            return_attention_scores=True,
        )
        return ops.expand_dims(scores, 1)

    def _encoded(self, encoder_sequence, encoder_padding_mask):
        encoder_sequence = clean_padding(encoder_sequence, real_token_mask(encoder_padding_mask))
        weights = ops.expand_dims(ops.cast(encoder_padding_mask, encoder_sequence.dtype), -1)
        mean = ops.sum(encoder_sequence * weights, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1)
        return Encoded(
            encoder_sequence,
            self.attention.project_keys(encoder_sequence),
            encoder_padding_mask,
            self.first_state_dense(mean),
        )

    def _empty_states(self, batch_size, length):
        cell_sizes = sum(self._state_sizes[:-1])
        return (empty_cache(batch_size, 1, length, cell_sizes, self.hidden_dim, dtype=self.compute_dtype),)

    def _logits(self, x):
        return ops.cast(self.target_embedding(x, reverse=True), "float32")

    def _mask(self, token_ids, given):
        return ops.cast(padding_mask_of_ids(token_ids, given, self.pad_token_id), "bool")

    def get_config(self):
        config = {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "num_encoder_layers": self.num_encoder_layers,
            "num_decoder_layers": self.num_decoder_layers,
            "hidden_dim": self.hidden_dim,
            "cell": self.cell,
            "dropout": self.dropout,
            "target_vocabulary_size": self.target_vocabulary_size,
            "tie_output": self.tie_output,
            "max_sequence_length": self.max_sequence_length,
            "pad_token_id": self.pad_token_id,
        }
        return config_that_comes_back(self, config)


class _RNNStep:
    """The steps of a search through an `RNNSeq2Seq`; the row context is its cache without the states."""

    def __init__(self, model, return_attention_scores):
        self.model = model
        self.return_attention_scores = return_attention_scores

    def __call__(self, token_ids, index, states, attention_mask, row_context):
        encoded = row_context.encoded
        logits, states, state = self.model._decoding_step(token_ids, index, states, attention_mask, encoded)
        if not self.return_attention_scores:
            return logits, states
        return logits, states, self.model._scores(state, encoded)[:, 0]

    def read(self, token_ids, index, states, row_context):
        logits, cache = self.model.call_with_cache(token_ids, row_context._replace(states=states), index)
        return logits, cache.states
