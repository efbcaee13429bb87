"""The models that training is timed against: what `Seq2SeqTransformer` computes, made of others' layers."""

import keras
import numpy as np
import torch
from keras import ops


class KerasTransformer(keras.Model):
    """What `Seq2SeqTransformer` computes, post-norm and with one tied embedding, from Keras' own layers."""

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.hidden_dim = config["hidden_dim"]
        self.embedding = keras.layers.Embedding(
            config["vocabulary_size"], self.hidden_dim, dtype=self.dtype_policy
        )
        self.encoder_blocks = [
            KerasBlock(config, attentions=1, dtype=self.dtype_policy)
            for _ in range(config["num_encoder_layers"])
        ]
        self.decoder_blocks = [
            KerasBlock(config, attentions=2, dtype=self.dtype_policy)
            for _ in range(config["num_decoder_layers"])
        ]
        self.dropout = keras.layers.Dropout(config["dropout"], dtype=self.dtype_policy)
        self.position_encoding = position_table(config["max_sequence_length"], self.hidden_dim)

    def call(self, inputs, training=None):
        encoder_mask = ops.not_equal(inputs["encoder_token_ids"], 0)[:, None, :]
        decoder_mask = ops.not_equal(inputs["decoder_token_ids"], 0)[:, None, :]
        x = self.embed(inputs["encoder_token_ids"], training)
        for block in self.encoder_blocks:
            x = block(x, training=training, self_mask=encoder_mask)
        y = self.embed(inputs["decoder_token_ids"], training)
        for block in self.decoder_blocks:
            y = block(y, x, training=training, self_mask=decoder_mask, cross_mask=encoder_mask)
        table = ops.convert_to_tensor(self.embedding.embeddings)
        logits = ops.matmul(y, ops.transpose(ops.cast(table, y.dtype)))
        return ops.cast(logits, "float32")

    def embed(self, token_ids, training):
        x = self.embedding(token_ids)
        x = x * ops.cast(self.hidden_dim**0.5, x.dtype)
        positions = ops.convert_to_tensor(self.position_encoding, x.dtype)[: ops.shape(x)[1]]
        return self.dropout(x + positions, training=training)


class KerasBlock(keras.layers.Layer):
    """An encoder block with one attention, a decoder block with two."""

    def __init__(self, config, attentions, **kwargs):
        super().__init__(**kwargs)
        num_heads, hidden_dim = config["num_heads"], config["hidden_dim"]

        def norm():
            return keras.layers.LayerNormalization(
                epsilon=config["layer_norm_epsilon"], dtype=self.dtype_policy
            )

        def attention():
            return keras.layers.MultiHeadAttention(
                num_heads, hidden_dim // num_heads, dtype=self.dtype_policy
            )

        self.self_attention, self.self_norm = attention(), norm()
        self.cross_attention = None
        if attentions == 2:
            self.cross_attention, self.cross_norm = attention(), norm()
        self.intermediate = keras.layers.Dense(
            config["intermediate_dim"], activation="relu", dtype=self.dtype_policy
        )
        self.output_dense = keras.layers.Dense(hidden_dim, dtype=self.dtype_policy)
        self.norm = norm()
        self.dropout = keras.layers.Dropout(config["dropout"], dtype=self.dtype_policy)

    def call(self, x, encoder_sequence=None, training=None, self_mask=None, cross_mask=None):
        causal = self.cross_attention is not None
        update = self.self_attention(
            x, x, attention_mask=self_mask, use_causal_mask=causal, training=training
        )
        x = self.self_norm(x + self.dropout(update, training=training))
        if self.cross_attention is not None:
            update = self.cross_attention(x, encoder_sequence, attention_mask=cross_mask, training=training)
            x = self.cross_norm(x + self.dropout(update, training=training))
        update = self.output_dense(self.intermediate(x))
        return self.norm(x + self.dropout(update, training=training))


def position_table(length, hidden_dim):
    angles = np.arange(length)[:, None] * 10000.0 ** -(np.arange(0, hidden_dim, 2) / hidden_dim)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, hidden_dim).astype("float32")


class TorchTransformer(torch.nn.Module):
    """`torch.nn.Transformer` between one tied embedding."""

    def __init__(self, config):
        super().__init__()
        width = config["hidden_dim"]
        self.scale = width**0.5
        self.embedding = torch.nn.Embedding(config["vocabulary_size"], width)
        torch.nn.init.normal_(self.embedding.weight, std=width**-0.5)
        table = position_table(config["max_sequence_length"], width)
        self.register_buffer("positions", torch.tensor(table))
        self.dropout = torch.nn.Dropout(config["dropout"])
        self.transformer = torch.nn.Transformer(
            width,
            config["num_heads"],
            config["num_encoder_layers"],
            config["num_decoder_layers"],
            config["intermediate_dim"],
            config["dropout"],
            batch_first=True,
        )

    def embed(self, token_ids):
        return self.dropout(self.embedding(token_ids) * self.scale + self.positions[: token_ids.shape[1]])

    def forward(self, source, target):
        length = target.shape[1]
        causal = torch.triu(torch.ones(length, length, dtype=torch.bool, device=target.device), diagonal=1)
        x = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            src_key_padding_mask=source == 0,
            tgt_key_padding_mask=target == 0,
            memory_key_padding_mask=source == 0,
            tgt_is_causal=True,
        )
        return x @ self.embedding.weight.T


def forward_products(config, batch_size, length):
    """The matrix products of one call of these models: a list of how often, and the sizes of (B, M, K) x (B, K, N).

    Training does two more of as many operations for each, for the gradients of both factors.
    """
    width, heads, rows = config["hidden_dim"], config["num_heads"], batch_size * length
    encoder, decoder = config["num_encoder_layers"], config["num_decoder_layers"]
    attentions = encoder + 2 * decoder
    return [
        (4 * attentions, 1, rows, width, width),
        (attentions, batch_size * heads, length, width // heads, length),
        (attentions, batch_size * heads, length, length, width // heads),
        (encoder + decoder, 1, rows, width, config["intermediate_dim"]),
        (encoder + decoder, 1, rows, config["intermediate_dim"], width),
        (1, 1, rows, width, config["vocabulary_size"]),
    ]
