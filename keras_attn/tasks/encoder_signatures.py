"""What the signatures of the encoders' tasks share."""

import tensorflow as tf

from keras_attn.tasks.signature_parts import Input, Status, TaskSignatures, is_repaired, vocabulary

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
    """

    input_table = PAIRS

    def __init__(self, task, names=None, buckets=None):
        super().__init__(task, names)
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
        ]

    def _answers(self, *texts):
        """The task's answers, `status` among them."""
        answers = dict((self._of_texts if len(texts) == 1 else self._of_pairs)(*texts))
        status = Status()
        repaired = [is_repaired(column) for column in texts]
        status.note("text_repaired", tf.reduce_any(repaired, axis=0))
        status.note("text_truncated", answers.pop("is_cut"))
        return {**answers, "status": status.text()}
