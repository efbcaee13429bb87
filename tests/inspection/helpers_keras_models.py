"""Models as Keras' and KerasHub's users write them, with nothing of keras_attn in them."""

import keras
import numpy as np
from keras import layers, ops

VOCABULARY_SIZE = 31


class TokenAndPositionEmbedding(layers.Layer):
    """As in keras.io's "Text classification with Transformer"."""

    def __init__(self, length, vocabulary_size, width, mask_zero=False):
        super().__init__()
        self.token_emb = layers.Embedding(vocabulary_size, width, mask_zero=mask_zero)
        self.pos_emb = layers.Embedding(length, width)

    def call(self, x):
        positions = ops.arange(0, ops.shape(x)[-1], 1)
        return self.token_emb(x) + self.pos_emb(positions)

    def compute_mask(self, inputs, mask=None):
        return self.token_emb.compute_mask(inputs)


class TransformerBlock(layers.Layer):
    """As in keras.io's "Text classification with Transformer"."""

    def __init__(self, width, num_heads, inner, rate=0.1, causal=False):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=width)
        self.ffn = keras.Sequential([layers.Dense(inner, activation="relu"), layers.Dense(width)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)
        self.supports_masking = True
        self.causal = causal

    def call(self, inputs, training=False):
        attn_output = self.att(inputs, inputs, use_causal_mask=self.causal)
        attn_output = self.dropout1(attn_output, training=training)
        out1 = self.layernorm1(inputs + attn_output)
        ffn_output = self.dropout2(self.ffn(out1), training=training)
        return self.layernorm2(out1 + ffn_output)


class TransformerEncoder(layers.Layer):
    """As in keras.io's "English-to-Spanish translation with a sequence-to-sequence Transformer"."""

    def __init__(self, embed_dim, dense_dim, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.dense_proj = keras.Sequential(
            [layers.Dense(dense_dim, activation="relu"), layers.Dense(embed_dim)]
        )
        self.layernorm_1 = layers.LayerNormalization()
        self.layernorm_2 = layers.LayerNormalization()
        self.supports_masking = True

    def call(self, inputs, mask=None):
        padding_mask = None if mask is None else ops.cast(mask[:, None, :], dtype="int32")
        attention_output = self.attention(query=inputs, value=inputs, key=inputs, attention_mask=padding_mask)
        proj_input = self.layernorm_1(inputs + attention_output)
        return self.layernorm_2(proj_input + self.dense_proj(proj_input))


class TransformerDecoder(layers.Layer):
    """As in keras.io's translation example, whose decoder takes the masks of both of its inputs."""

    def __init__(self, embed_dim, latent_dim, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.attention_1 = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.attention_2 = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.dense_proj = keras.Sequential(
            [layers.Dense(latent_dim, activation="relu"), layers.Dense(embed_dim)]
        )
        self.layernorm_1 = layers.LayerNormalization()
        self.layernorm_2 = layers.LayerNormalization()
        self.layernorm_3 = layers.LayerNormalization()
        self.supports_masking = True

    def call(self, inputs, mask=None):
        inputs, encoder_outputs = inputs
        causal_mask = self.get_causal_attention_mask(inputs)
        inputs_padding_mask, encoder_outputs_padding_mask = (None, None) if mask is None else mask
        # keras.io's example passes the (B, S) mask as it is, which broadcasts over the wrong axes for B > 1.
        cross_mask = (
            None if encoder_outputs_padding_mask is None else encoder_outputs_padding_mask[:, None, :]
        )
        attention_output_1 = self.attention_1(
            query=inputs, value=inputs, key=inputs, attention_mask=causal_mask, query_mask=inputs_padding_mask
        )
        out_1 = self.layernorm_1(inputs + attention_output_1)
        attention_output_2 = self.attention_2(
            query=out_1,
            value=encoder_outputs,
            key=encoder_outputs,
            attention_mask=cross_mask,
            query_mask=inputs_padding_mask,
        )
        out_2 = self.layernorm_2(out_1 + attention_output_2)
        return self.layernorm_3(out_2 + self.dense_proj(out_2))

    def get_causal_attention_mask(self, inputs):
        batch_size, length = ops.shape(inputs)[0], ops.shape(inputs)[1]
        i, j = ops.arange(length)[:, None], ops.arange(length)
        return ops.tile(ops.cast(i >= j, "int32")[None], (batch_size, 1, 1))


def classifier(mask_zero=False, length=7):
    """keras.io's text classifier, with three outputs."""
    inputs = layers.Input(shape=(length,), name="token_ids")
    x = TokenAndPositionEmbedding(length, VOCABULARY_SIZE, 10, mask_zero)(inputs)
    x = TransformerBlock(10, 2, 13)(x)
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dropout(0.1)(x)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


def translator():
    """keras.io's translation model: encoder and decoder are models inside the model."""
    encoder_inputs = keras.Input(shape=(None,), dtype="int64", name="encoder_inputs")
    x = TokenAndPositionEmbedding(23, VOCABULARY_SIZE, 10, mask_zero=True)(encoder_inputs)
    encoder_outputs = TransformerEncoder(10, 13, 2)(x)
    decoder_inputs = keras.Input(shape=(None,), dtype="int64", name="decoder_inputs")
    x = TokenAndPositionEmbedding(23, VOCABULARY_SIZE, 10, mask_zero=True)(decoder_inputs)
    x = TransformerDecoder(10, 13, 2)([x, encoder_outputs])
    x = layers.Dropout(0.5)(x)
    decoder_outputs = layers.Dense(VOCABULARY_SIZE)(x)
    return keras.Model({"encoder_inputs": encoder_inputs, "decoder_inputs": decoder_inputs}, decoder_outputs)


class Subclassed(keras.Model):
    """Attention in a list, in a nested model and in an attribute; the last is called twice."""

    def __init__(self):
        super().__init__()
        self.embedding = layers.Embedding(VOCABULARY_SIZE, 10)
        self.blocks = [TransformerBlock(10, 2, 13) for _ in range(2)]
        inputs = keras.Input((None, 10))
        attended = layers.GroupQueryAttention(3, 4, 2, name="grouped")(inputs, inputs, use_causal_mask=True)
        self.inner = keras.Model(inputs, attended, name="inner")
        self.shared = layers.MultiHeadAttention(2, 5, name="shared")

    def call(self, inputs):
        x = self.embedding(inputs)
        for block in self.blocks:
            x = block(x)
        x = self.inner(x)
        return self.shared(x, x) + self.shared(x[:, :3], x)[:, :1]


def randomize(model, seed=3):
    """Gives every weight random values: biases of 0 and scales of 1 hide mistakes."""
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        is_scale = weight.path.endswith(("gamma", "scale"))
        weight.assign((is_scale + rng.normal(size=weight.shape) * 0.4).astype("float32"))
    return model


def token_ids(*lengths, longest=None, seed=5):
    """Random ids (B, T), padded with 0 on the right."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((len(lengths), longest or max(lengths)), "int32")
    for row, length in enumerate(lengths):
        ids[row, :length] = rng.integers(1, VOCABULARY_SIZE, length)
    return ids
