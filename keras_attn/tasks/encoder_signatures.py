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
    """

    input_table = PAIRS

    def __init__(self, task, names=None):
        super().__init__(task, names)
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
