"""Scaled dot-product attention by hand: every step on one sentence, then the same numbers from the library.

    python examples/attention_by_hand.py

Reference: Vaswani et al., 2017, "Attention Is All You Need" (arXiv:1706.03762), section 3.2.1.
"""

import argparse
import importlib.util
import pathlib
import re

import keras
import numpy as np

from keras_attn.layers import MultiHeadAttention
from keras_attn.ops import dot_product_attention
from keras_attn.plots import explore, plot_attention

SENTENCE = "The animal didn't cross the street because it was too tired."
WORDS = re.findall(r"[\w']+|\.", SENTENCE)
IT = WORDS.index("it")
HIDDEN_DIM = 16
KEY_DIM = 8


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="runs/attention_by_hand", help="folder of the pictures")
    folder = pathlib.Path(parser.parse_args().output)
    np.set_printoptions(precision=2, suppress=True, linewidth=110)

    print(SENTENCE)
    weights = make_weights()
    x = embed(WORDS)
    output, scores = attend_by_hand(x, weights)
    compare_with_library(x, weights, output, scores)
    show_padding_mask(x, weights, output)
    causal_scores = show_causal_mask(x, weights)
    say_what_it_means(scores)
    draw(folder, "attention", scores, "Untrained attention")
    draw(folder, "causal_attention", causal_scores, "Untrained attention with a causal mask")


def embed(words):
    """A random vector for each different word, as in a model before its first training step."""
    vocabulary = sorted({word.lower() for word in words})
    table = np.random.default_rng(7).normal(size=(len(vocabulary), HIDDEN_DIM))
    return table[[vocabulary.index(word.lower()) for word in words]]


def make_weights():
    rng = np.random.default_rng(11)
    return [rng.normal(scale=HIDDEN_DIM**-0.5, size=(HIDDEN_DIM, KEY_DIM)) for _ in range(3)]


def attend_by_hand(x, weights):
    query_weights, key_weights, value_weights = weights
    step(1, "x = embeddings", f"a vector of {HIDDEN_DIM} numbers for each of the {len(WORDS)} words", x)

    query = x @ query_weights
    key = x @ key_weights
    value = x @ value_weights
    step(2, "Q = x W_Q", "what each word asks for", query)
    step(2, "K = x W_K", "what each word can be found by", key)
    step(2, "V = x W_V", "what each word hands over when it is found", value)

    logits = query @ key.T
    step(3, "Q K^T", "how well each question (row) fits each word (column)", logits)

    logits = logits / np.sqrt(KEY_DIM)
    step(4, f"Q K^T / sqrt({KEY_DIM})", "longer vectors have larger products; this takes it back", logits)

    scores = softmax(logits)
    step(5, "softmax", "each row becomes shares that sum to 1: the attention scores", scores)

    output = scores @ value
    step(6, "softmax V", "each word's new vector: the values, mixed by these shares", output)
    return output, scores


def softmax(logits):
    # The largest logit is subtracted first. This does not change the scores and keeps exp from overflowing.
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def step(number, formula, meaning, array):
    print(f"\n{number}. {formula}  {array.shape}: {meaning}\n   'it': {array[IT]}")


def compare_with_library(x, weights, output, scores):
    print("\nThe same numbers from the library")
    # Its function has an axis for heads, (N, T, H): here one head.
    query, key, value = (keras.ops.convert_to_tensor((x @ w)[None], "float32") for w in weights)
    agree("keras_attn.ops.dot_product_attention", dot_product_attention(query, key, value), (output, scores))

    layer = MultiHeadAttention(num_heads=1, key_dim=KEY_DIM, output_shape=KEY_DIM, use_bias=False)
    sequence = keras.ops.convert_to_tensor(x[None], "float32")
    layer.build(sequence.shape, sequence.shape)
    # The layer ends in a projection that joins its heads; the identity leaves the single head unchanged.
    projections = [*weights, np.eye(KEY_DIM)]
    layer.set_weights([w.reshape(v.shape) for w, v in zip(projections, layer.weights)])
    result = layer(sequence, sequence, return_attention_scores=True)
    agree("keras_attn.layers.MultiHeadAttention", result, (output, scores))


def agree(name, result, expected):
    error = max(np.abs(keras.ops.convert_to_numpy(x)[0] - y).max() for x, y in zip(result, expected))
    print(f"   {name}: largest difference {error:.0e}")
    assert error < 1e-5, name


def attend_with_mask(x, weights, mask):
    """Attention by hand: masked keys get the logit -inf, so their score is 0. Checked with the library."""
    query, key, value = (x @ w for w in weights)
    scores = softmax(np.where(mask, query @ key.T / np.sqrt(KEY_DIM), -np.inf))
    output = scores @ value
    tensors = (keras.ops.convert_to_tensor(array[None], "float32") for array in (query, key, value))
    agree("dot_product_attention(mask=...)", dot_product_attention(*tensors, mask=mask), (output, scores))
    return output, scores


def show_padding_mask(x, weights, output):
    print(
        "\nPadding mask: in a batch, short sentences are filled up; two <pad> here. Nobody may attend to them."
    )
    padded = np.concatenate([x, np.full((2, HIDDEN_DIM), 99.0)])
    is_word = np.arange(len(padded)) < len(x)
    padded_output, scores = attend_with_mask(padded, weights, is_word[None, :])
    print(f"   'it' gives the two <pad> {scores[IT, len(x) :]}, and its vector stays what it was.")
    assert np.allclose(padded_output[: len(x)], output)


def show_causal_mask(x, weights):
    print("\nCausal mask: a decoder writes from left to right, so a word sees itself and what is before it.")
    position = np.arange(len(x))
    _, scores = attend_with_mask(x, weights, position[:, None] >= position[None, :])
    print(f"   'it': {scores[IT]}")
    return scores


def say_what_it_means(scores):
    best = scores[IT].argmax()
    print(
        f"\nWhat it means: nothing yet. 'it' looks most at {WORDS[best]!r} ({scores[IT, best]:.2f}) because these "
        "random numbers say so;\nanother seed picks another word. That 'it' is the animal is something only training "
        "can teach. Nor does attention\nknow the order of words: 'The' and 'the' have the same row, which is why "
        "models add position encodings."
    )
    assert np.allclose(scores[WORDS.index("The")], scores[WORDS.index("the")])


def draw(folder, name, scores, title):
    files = [folder / f"{name}.html"]
    explore({"attention": scores[None]}, WORDS, title=title, path=files[0])
    if importlib.util.find_spec("matplotlib"):
        files.append(folder / f"{name}.png")
        plot_attention(scores, WORDS, WORDS, title=title, path=files[1])
    print(f"\n{title}: {' and '.join(map(str, files))}")


if __name__ == "__main__":
    main()
