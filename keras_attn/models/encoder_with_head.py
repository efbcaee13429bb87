"""A model with a head, and the encoder-decoder model that reads a text for a head."""

import keras
from keras import ops

from keras_attn.layers.layer_slots import build_layer, call_layer
from keras_attn.models.base_model import TransformerWrapper, as_dict, checked_inputs


@keras.saving.register_keras_serializable(package="keras_attn")
class EncoderWithHead(TransformerWrapper):
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

    _SLOTS = ("encoder", "head")
    _OPTIONS = ()

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


@keras.saving.register_keras_serializable(package="keras_attn")
class Seq2SeqReader(TransformerWrapper):
    """A `Seq2SeqTransformer` that reads a text for a head: its decoder gets the encoder's text, shifted by one token.

    The vectors are the decoder's, so each has seen the whole text by cross-attention. It takes the place of an
    `EncoderTransformer` in `EncoderWithHead`, as BART and T5 classify texts and answer questions.

    Args:
        seq2seq: `Seq2SeqTransformer` with one vocabulary.
        start_token_id: Integer, the decoder's first token; None for the text's own last one, as in mBART.
        end_token_id: Integer: a head sees each text up to its last token with this id, so that `pooling="last"` reads the vector
            there. None for the whole text.

    Call arguments:
        inputs: Integers (B, T), or a dict of these `token_ids` and of `padding_mask`, boolean (B, T). Pads are on the right.
        training: Boolean.

    Returns:
        Floats (B, T, D).

    Raises:
        ValueError: if `seq2seq` is no model with `decoder_sequence`.

    Example:

    ```python
    seq2seq = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    reader = keras_attn.models.Seq2SeqReader(seq2seq, start_token_id=2, end_token_id=3)
    vectors = reader(np.array([[5, 6, 3, 0], [7, 3, 0, 0]]))  # (2, 4, 128)
    ```

    Reference: [Lewis et al., 2019](https://arxiv.org/abs/1910.13461), section 3.1.
    """

    _SLOTS = ("seq2seq",)
    _OPTIONS = ("start_token_id", "end_token_id")

    def __init__(self, seq2seq, start_token_id=None, end_token_id=None, **kwargs):
        super().__init__(**kwargs)
        if not hasattr(seq2seq, "decoder_sequence"):
            raise ValueError(
                f"`seq2seq` must be a model with the method `decoder_sequence`. Received: seq2seq={type(seq2seq).__name__}."
            )
        self._take_parts(seq2seq=seq2seq)
        self.start_token_id = start_token_id
        self.end_token_id = end_token_id
        self.build()

    def build(self, input_shape=None):
        self.built = True

    def call(self, inputs, training=None):
        return self.sequence_and_mask(inputs, training)[0]

    def sequence_and_mask(self, inputs, training=None):
        """What a head reads: the decoder's vectors, floats (B, T, D), and which of them it sees, boolean (B, T).

        Args:
            inputs, training: As in a call.
        """
        inputs = checked_inputs(as_dict(inputs), ("token_ids",), ("padding_mask",))
        token_ids = ops.convert_to_tensor(inputs["token_ids"])
        tokens = self._tokens(token_ids, inputs.get("padding_mask"))
        padding_mask = ops.cast(tokens.padding_mask, "bool")
        encoder_sequence = self.seq2seq.encode(token_ids, padding_mask, training=training)
        decoder_token_ids = self._shift(token_ids, padding_mask)
        sequence = self.seq2seq.decoder_sequence(
            decoder_token_ids, encoder_sequence, padding_mask, padding_mask, training
        )
        return sequence, self._seen(token_ids, padding_mask)

    def compute_mask(self, inputs, previous_mask=None):
        return self._seen(as_dict(inputs)["token_ids"], self._output_mask(inputs))

    def _shift(self, token_ids, padding_mask):
        """The decoder's ids (B, T): START, and the text without its last column."""
        if self.start_token_id is None:
            last = ops.maximum(ops.sum(ops.cast(padding_mask, "int32"), axis=1, keepdims=True) - 1, 0)
            first = ops.take_along_axis(token_ids, last, axis=1)
        else:
            first = ops.full_like(token_ids[:, :1], self.start_token_id)
        return ops.concatenate([first, token_ids[:, :-1]], axis=1)

    def _seen(self, token_ids, padding_mask):
        """Which vectors the head sees, boolean (B, T)."""
        if self.end_token_id is None:
            return padding_mask
        is_end = ops.cast((token_ids == self.end_token_id) & padding_mask, "int32")
        num_ends_before = ops.cumsum(is_end, axis=1) - is_end
        num_ends = ops.sum(is_end, axis=1, keepdims=True)
        return padding_mask & ((num_ends_before < num_ends) | (num_ends == 0))

    @property
    def embedding(self):
        """The embedding of the text."""
        return self.seq2seq.source_embedding
