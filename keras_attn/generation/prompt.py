import collections
import copy

from keras import ops

from keras_attn.generation.processors import History

Prompt = collections.namedtuple("Prompt", ["token_ids", "start"])
Prompt.__doc__ = """Tokens before an answer, padded on the left.

token_ids: int32 (B, P).
start: int32 (B,), the column of each row's first token.
"""


class AnswerStart:
    """The start of the answers of a search: after a prompt, or after START.

    Args:
        prompt: `Prompt`, or None.
        start_token_id: Integer, or integers (B,); unused with a prompt.
        shape: The number of rows and of hypotheses in each, (B, K).
    """

    def __init__(self, prompt, start_token_id, shape):
        self.prompt = prompt
        self.shape = shape
        if prompt is None and isinstance(start_token_id, int):
            self.first_token_ids = ops.full(shape, start_token_id, dtype="int32")
        else:
            first = start_token_id if prompt is None else prompt.token_ids[:, -1]
            self.first_token_ids = ops.repeat(ops.expand_dims(first, -1), shape[1], axis=1)

    @property
    def first_slot(self):
        """The number of slots that the prompt has filled."""
        return 0 if self.prompt is None else ops.shape(self.prompt.token_ids)[1] - 1

    def for_prompt(self, prompt):
        """The start of answers in other rows, whose prompts have the same length."""
        start = copy.copy(self)
        start.prompt = prompt
        return start

    def num_slots(self, cache):
        """The number of slots of a cache that are for the answers."""
        return ops.shape(cache[0][0])[-2] - self.first_slot

    def history(self, sequences, index):
        """`History` of the prompt and then the first `index` tokens of sequences (B, K, L)."""
        if self.prompt is None:
            return History(sequences, ops.zeros((1,), "int32"), index)
        before = ops.repeat(ops.expand_dims(self.prompt.token_ids, 1), self.shape[1], axis=1)
        return History(
            ops.concatenate([before, sequences], axis=-1), self.prompt.start, self.first_slot + 1 + index
        )
