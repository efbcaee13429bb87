import keras
from keras import ops

from keras_attn.models.transformer import TransformerAround, unpacked_inputs


@keras.saving.register_keras_serializable(package="keras_attn")
class Seq2SeqReader(TransformerAround):
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

    _SLOTS, _OPTIONS = ("seq2seq",), ("start_token_id", "end_token_id")

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
        inputs = inputs if isinstance(inputs, dict) else {"token_ids": inputs}
        token_ids, padding_mask = unpacked_inputs(inputs, ("token_ids",), ("padding_mask",))
        token_ids = ops.convert_to_tensor(token_ids)
        padding_mask = ops.cast(self._tokens(token_ids, padding_mask).padding_mask, "bool")
        encoder_sequence = self.seq2seq.encode(token_ids, padding_mask, training=training)
        sequence = self.seq2seq.decoder_sequence(
            self._shifted(token_ids, padding_mask), encoder_sequence, padding_mask, padding_mask, training
        )
        return sequence, self._seen(token_ids, padding_mask)

    def compute_mask(self, inputs, previous_mask=None):
        token_ids = inputs["token_ids"] if isinstance(inputs, dict) else inputs
        return self._seen(token_ids, self._output_mask(inputs))

    def _shifted(self, token_ids, padding_mask):
        """The decoder's ids (B, T): START, and the text without its last column."""
        if self.start_token_id is None:
            last = ops.maximum(ops.sum(ops.cast(padding_mask, "int32"), axis=1, keepdims=True) - 1, 0)
            first = ops.take_along_axis(token_ids, last, axis=1)
        else:
            first = ops.full_like(token_ids[:, :1], self.start_token_id)
        return ops.concatenate([first, token_ids[:, :-1]], axis=1)

    def _seen(self, token_ids, padding_mask):
        if self.end_token_id is None:
            return padding_mask
        is_end = ops.cast((token_ids == self.end_token_id) & padding_mask, "int32")
        after = ops.cumsum(is_end, axis=1) - is_end  # how many ENDs are before
        total = ops.sum(is_end, axis=1, keepdims=True)
        return padding_mask & ((after < total) | (total == 0))

    @property
    def embedding(self):
        """The embedding of the text."""
        return self.seq2seq.source_embedding
