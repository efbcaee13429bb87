"""How well a language model predicts a text."""

import dataclasses
import math

import keras
import numpy as np
import tensorflow as tf

from keras_attn.data import consecutive_windows
from keras_attn.tasks.search_graphs import function_of_arrays
from keras_attn.training import token_negative_log_likelihood

_WINDOWS_PER_BATCH = 128
# More than any token has.
_CHARACTERS_OF_A_TOKEN = 1000


@dataclasses.dataclass(frozen=True)
class TextEvaluation:
    """The mean cross-entropy of a text, by token and by byte.

    Args:
        name: String.
        num_tokens: Integer, the tokens that were predicted: all but the first.
        num_bytes: Integer, the bytes that were predicted.
        loss: Float, nats a token.
    """

    name: str
    num_tokens: int
    num_bytes: int
    loss: float

    @property
    def perplexity(self):
        """Of the tokens."""
        return math.exp(min(self.loss, 700.0))

    @property
    def nats_a_byte(self):
        """The loss of all tokens by the bytes of the text."""
        return self.loss * self.num_tokens / self.num_bytes

    @property
    def bits_a_byte(self):
        """The same in bits."""
        return self.nats_a_byte / math.log(2)

    def report(self):
        """A report of two lines."""
        per = "byte" if self.num_tokens == self.num_bytes else "token"
        return (
            f"{self.name}: loss {self.loss:.4f} nats a {per}, perplexity {self.perplexity:.3f}\n"
            f"  {self.nats_a_byte:.4f} nats a byte, {self.bits_a_byte:.4f} bits a byte; {self.num_tokens:,} tokens, "
            f"{self.num_bytes:,} bytes"
        )


def evaluate_text(generator, text):
    """Predicts each token of a text but the first from those before it in its window, and compares.

    A generator whose texts begin after END was trained on documents, one a line; the text is then taken as documents.

    Args:
        generator: A `TextGenerator`.
        text: `PlainText`.

    Returns:
        A `TextEvaluation`.

    Raises:
        ValueError: if the text has fewer than two tokens.

    Example:

    ```python
    generator = keras_attn.TextGenerator.load("runs/play")
    print(evaluate_text(generator, keras_attn.data.PlainText("To be, or not to be", "Hamlet")).report())
    ```
    """
    tokenizer = generator.tokenizer
    token_ids = text_token_ids(tokenizer, text.text, generator.start_token_id == tokenizer.end_token_id)
    check_predictable(token_ids, text.name)
    losses = generator.made_once("window_losses", lambda: window_losses(generator.model))
    return evaluated(text, token_ids, tokenizer, losses_of(token_ids, generator.model, losses))


def losses_of(token_ids, model, losses):
    """The summed loss of each window of a text, float64 (N,); `losses` is the result of `window_losses`."""
    windows = consecutive_windows(token_ids, model.max_sequence_length, _WINDOWS_PER_BATCH)
    return np.concatenate([np.asarray(losses(*of_batch), "float64") for of_batch in windows])


def evaluated(text, token_ids, tokenizer, losses):
    """The `TextEvaluation` of a text with these token ids, and with these losses of its windows."""
    count = len(token_ids) - 1
    _, _, stops = tokenizer.tokenize_with_offsets([text.text[:_CHARACTERS_OF_A_TOKEN]])
    num_bytes = len(text.text.encode("utf-8", "surrogatepass")) - stops.to_list()[0][0]
    return TextEvaluation(text.name, count, max(1, num_bytes), float(losses.sum()) / count)


def text_token_ids(tokenizer, text, documents):
    """The token ids of a text: a list.

    Args:
        tokenizer: A tokenizer.
        text: String.
        documents: Whether each line that is not blank is a document, with END after it.
    """
    if documents:
        # Only line feeds end lines: `str.splitlines` would cut a document at U+2028 or a form feed, too.
        lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
        return [token for ids in tokenizer.encode(lines) for token in (*ids, tokenizer.end_token_id)]
    # Line by line, because a vocabulary of pieces takes long for one long text. No piece crosses a line break.
    return [token for ids in tokenizer.encode(text.splitlines(keepends=True)) for token in ids]


def check_predictable(token_ids, name):
    """Raises ValueError if there is nothing to predict."""
    if len(token_ids) < 2:
        raise ValueError(
            f"{name} must have two bytes or more, one of them to be predicted. Give a longer text. Received: {len(token_ids)}."
        )


def window_losses(model):
    """A function of windows (B, T) and their labels that returns the sums of the cross-entropies of their tokens, (B,)."""

    def losses(token_ids, labels):
        return keras.ops.sum(token_negative_log_likelihood(labels, model({"token_ids": token_ids})), axis=-1)

    if keras.backend.backend() != "tensorflow":
        return function_of_arrays(model, losses)
    return tf.function(losses, input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2)
