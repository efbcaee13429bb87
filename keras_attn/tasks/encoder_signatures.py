"""What the signatures of the encoders' tasks share."""

import functools

import numpy as np
import tensorflow as tf

from keras_attn.tasks.attention_signature import (
    ATTENTION_LENGTH,
    CROSS_OUTPUTS,
    DECODER_OUTPUTS,
    ENCODER_OUTPUTS,
    SeenAttention,
    attention_limit,
)
from keras_attn.tasks.showing import by_kind
from keras_attn.tasks.signature_parts import (
    Input,
    Signature,
    Status,
    TaskSignatures,
    is_repaired,
    vocabulary,
)
from keras_attn.tasks.token_ids import NO_TOKEN

TEXTS = {"inputs": Input("the texts", tf.string)}
PAIRS = {**TEXTS, "pairs": Input("the second text of each pair", tf.string)}
STATUS = {
    "status": '"ok", or what was done to a text, joined by commas: `text_repaired` (invalid UTF-8), `text_truncated`'
}


class EncoderSignatures(TaskSignatures):
    """The graph functions of an `EncoderTask`.

    Args:
        task: The task.
        names: As in `TaskSignatures`.
        buckets: The `Buckets` of a task that XLA compiles, or None.
        attention: As in `TaskSignatures`.
    """

    input_table = PAIRS

    def __init__(self, task, names=None, buckets=None, attention=False):
        super().__init__(task, names, attention)
        self.buckets = buckets
        # Each is traced once, and its graph is a function that the signatures call.
        strings = tf.TensorSpec([None], tf.string)
        self._of_texts = tf.function(lambda texts: task.answers(texts), [strings], autograph=False)
        self._of_pairs = tf.function(
            lambda texts, pairs: task.answers(texts, pairs), [strings, strings], autograph=False
        )

    def example_inputs(self, signature_name, texts, ask):
        if "pairs" not in self.table[signature_name].inputs:
            return {"inputs": texts}
        return {"inputs": texts, "pairs": [*texts[1:], texts[0]]}

    @property
    def attention_signature(self):
        """That of exports which are asked for it."""
        outputs = {**ENCODER_OUTPUTS, **DECODER_OUTPUTS, **CROSS_OUTPUTS, **STATUS}
        inputs = self.table["serving_default"].inputs
        return Signature("what every head looks at while the model reads", inputs, outputs)

    def attention(self, *texts):
        """The attention scores of each text, or pair of texts."""
        task, status = self.task, Status()
        framed = task.framed(*texts, max_length=min(ATTENTION_LENGTH, task.max_length))
        status.note("text_repaired", tf.reduce_any([is_repaired(column) for column in texts], axis=0))
        status.note("text_truncated", framed.is_cut)
        inputs = task.model_inputs(framed)
        token_ids, is_token = inputs["token_ids"], inputs["padding_mask"]
        outputs = {"encoder_tokens": tf.where(is_token, token_ids, NO_TOKEN)}
        if hasattr(task.encoder, "seq2seq"):
            first = task.encoder.start_token_id
            if first is None:  # the text's own last token
                last = tf.maximum(tf.reduce_sum(tf.cast(is_token, tf.int32), axis=1) - 1, 0)
                first = tf.gather(token_ids, last, batch_dims=1)
            first = tf.broadcast_to(tf.cast(first, token_ids.dtype), tf.shape(token_ids)[:1])
            shifted = tf.concat([first[:, tf.newaxis], token_ids[:, :-1]], axis=1)
            outputs["decoder_tokens"] = tf.where(is_token, shifted, NO_TOKEN)
        _, scores = self._seen_attention(*inputs.values())
        return {
            **{name: self._token_strings(task.tokenizer, token_ids) for name, token_ids in outputs.items()},
            **self._seen_attention.outputs(scores, dict.fromkeys(scores, (is_token, is_token))),
            "status": status.text(),
        }

    @functools.cached_property
    def _seen_attention(self):
        task = self.task
        length = min(5, task.max_length)
        with tf.init_scope():
            texts = [tf.constant([""])] * len(self.attention_signature.inputs)
            names = list(task.model_inputs(task.framed(*texts)))

        def read(*inputs):
            task.model(dict(zip(names, inputs)), training=False)
            return []

        of_name = {"padding_mask": np.ones((1, length), bool)}
        example = [of_name.get(name, np.zeros((1, length), "int32")) for name in names]
        sides = ("encoder", "decoder", "cross") if hasattr(task.encoder, "seq2seq") else ("encoder",)
        return SeenAttention(
            task.model,
            read,
            [tf.TensorSpec([None, None], array.dtype) for array in example],
            example,
            lambda maps: by_kind(maps, dict.fromkeys(sides, (length, length))),
        )

    def num_tokens(self, text):
        """How many tokens the model reads of a request to `serving_default` that is made of a text."""
        columns = self.example_inputs("serving_default", [text], None).values()
        framed = self.task.framed(*(tf.constant(column, tf.string) for column in columns))
        return int(framed.token_ids.row_lengths()[0])

    def limits(self):
        """Lines about the sizes of requests and answers."""
        return [
            f"A text, or a pair of texts, has at most {self.task.max_length} tokens, special tokens counted; what is "
            "longer is cut.",
            f"Vocabulary: {vocabulary(self.task.tokenizer)}.",
            *(
                [attention_limit(min(ATTENTION_LENGTH, self.task.max_length))]
                if "attention" in self.names
                else []
            ),
        ]

    def _answers(self, *texts):
        """The task's answers, `status` among them."""
        answers = dict((self._of_texts if len(texts) == 1 else self._of_pairs)(*texts))
        status = Status()
        repaired = [is_repaired(column) for column in texts]
        status.note("text_repaired", tf.reduce_any(repaired, axis=0))
        status.note("text_truncated", answers.pop("is_cut"))
        return {**answers, "status": status.text()}
