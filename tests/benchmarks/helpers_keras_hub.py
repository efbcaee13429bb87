"""KerasHub's Transformer, which training is timed against."""

import keras
import keras_hub
from keras import ops


class KerasHubTransformer(keras.Model):
    """KerasHub's encoder and decoder layers, with its embeddings, tied."""

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        layers = keras_hub.layers
        width, dropout = config["hidden_dim"], config["dropout"]
        self.embedding = layers.ReversibleEmbedding(config["vocabulary_size"], width)
        self.positions = layers.SinePositionEncoding()
        self.dropout = keras.layers.Dropout(dropout)
        arguments = {
            "intermediate_dim": config["intermediate_dim"],
            "num_heads": config["num_heads"],
            "dropout": dropout,
        }
        self.encoder = [layers.TransformerEncoder(**arguments) for _ in range(config["num_encoder_layers"])]
        self.decoder = [layers.TransformerDecoder(**arguments) for _ in range(config["num_decoder_layers"])]

    def call(self, inputs, training=None):
        encoder_mask = ops.not_equal(inputs["encoder_token_ids"], 0)
        decoder_mask = ops.not_equal(inputs["decoder_token_ids"], 0)
        x, y = (self.embed(inputs[f"{side}_token_ids"], training=training) for side in ("encoder", "decoder"))
        for layer in self.encoder:
            x = layer(x, padding_mask=encoder_mask, training=training)
        for layer in self.decoder:
            y = layer(
                y, x, decoder_padding_mask=decoder_mask, encoder_padding_mask=encoder_mask, training=training
            )
        return self.embedding(y, reverse=True)

    def embed(self, token_ids, training):
        x = self.embedding(token_ids)
        x = x * x.shape[-1] ** 0.5
        return self.dropout(x + self.positions(x), training=training)
