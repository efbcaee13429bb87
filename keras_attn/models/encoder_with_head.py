import keras

from keras_attn.layers.layer_slots import build_layer, call_layer
from keras_attn.models.transformer import TransformerAround


@keras.saving.register_keras_serializable(package="keras_attn")
class EncoderWithHead(TransformerAround):
    """An encoder and the head on it: token ids, or images, in, the head's logits out.

    The weights exist as soon as the model does. To train the head with LoRA in the encoder, call
    `model.encoder.enable_lora(...)`: `model.enable_lora` freezes the head too.

    Args:
        encoder: Model with the method `sequence_and_mask`: an `EncoderTransformer`, a `DecoderTransformer`,
            a `VisionTransformer`.
        head: Layer from a sequence (B, T, D) to logits: a `ClassificationHead`, a `TokenClassificationHead`, a
            `MaskedLanguageModelHead`, an `ImageClassificationHead`, or one of your own, whose `call` takes
            `padding_mask`, boolean (B, T).

    Call arguments:
        inputs: As in the encoder.
        training: Boolean.

    Returns:
        What the head returns.

    Raises:
        ValueError: if `encoder` has no `sequence_and_mask`, or `head` is no layer.

    Example:

    ```python
    encoder = keras_attn.models.EncoderTransformer.from_sizes(
        100, 2, hidden_dim=16, num_heads=2, intermediate_dim=32
    )
    model = keras_attn.models.EncoderWithHead(encoder, keras_attn.layers.ClassificationHead(3, intermediate_dim=16))
    logits = model(np.array([[2, 5, 6, 3], [2, 3, 0, 0]]))  # (2, 3)
    ```

    Reference: [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), figure 4.
    """

    _SLOTS, _OPTIONS = ("encoder", "head"), ()

    def __init__(self, encoder, head, **kwargs):
        super().__init__(**kwargs)
        if not hasattr(encoder, "sequence_and_mask"):
            raise ValueError(
                "`encoder` must be a model with the method `sequence_and_mask`. "
                f"Received: encoder={type(encoder).__name__}."
            )
        if head is None:
            raise ValueError("`head` must be a layer. Received: head=None.")
        self._take_parts(encoder=encoder, head=head)
        self.build()

    def build(self, input_shape=None):
        if not self.built:
            build_layer(self.head, (None, None, self.hidden_dim), dtype=self.compute_dtype)
            self.built = True

    def compute_mask(self, inputs, previous_mask=None):
        if not self.head.supports_masking:
            return None
        sequence = keras.KerasTensor((None, None, self.hidden_dim), dtype=self.compute_dtype)
        return self.head.compute_mask(sequence, self.encoder.compute_mask(inputs, None))

    def call(self, inputs, training=None):
        sequence, padding_mask = self.encoder.sequence_and_mask(inputs, training=training)
        return call_layer(self.head, [sequence], training, padding_mask=padding_mask)
