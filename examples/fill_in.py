"""A masked language model of one minute: it learns the grammar of a small language, and fills in what is left out.

    python examples/fill_in.py

A verb agrees with its subject, not with the noun before it: "the dog near the cats sleeps". The sentences that the model is
tested on were not in its training. The picture shows where it looks while it fills in the verb.

References: Devlin et al., 2019, "BERT" (arXiv:1810.04805), section 3.1; Linzen et al., 2016, "Assessing the Ability of LSTMs
to Learn Syntax-Sensitive Dependencies" (arXiv:1611.01368), for the task.
"""

import argparse
import importlib.util
import itertools
import pathlib

import keras
import numpy as np

import keras_attn
from keras_attn.layers import MaskedLanguageModelHead
from keras_attn.models import EncoderTransformer, EncoderWithHead
from keras_attn.plots import explore, plot_attention
from keras_attn.text import PipelineTokenizer

NOUNS = ["dog", "cat", "bird", "child", "friend", "farmer", "teacher", "horse"]
PLURALS = ["dogs", "cats", "birds", "children", "friends", "farmers", "teachers", "horses"]
VERBS = ["sleeps", "sings", "runs", "waits", "laughs"]
VERBS_OF_MANY = ["sleep", "sing", "run", "wait", "laugh"]
PREPOSITIONS = ["near", "behind", "with"]
SPECIAL = ["[PAD]", "[UNK]", "[MASK]"]
WORDS = [*SPECIAL, "the", *NOUNS, *PLURALS, *VERBS, *VERBS_OF_MANY, *PREPOSITIONS]
VERB = 5  # its place: the dog near the cats sleeps


def make_sentences(seed):
    """All sentences, shuffled: a list of them, and whether the verb and the noun before it are of one number."""
    subjects = [*zip(NOUNS, itertools.repeat(VERBS)), *zip(PLURALS, itertools.repeat(VERBS_OF_MANY))]
    sentences = []
    agree = []
    for (subject, verbs), preposition, (other, other_verbs) in itertools.product(
        subjects, PREPOSITIONS, subjects
    ):
        for verb in verbs:
            sentences.append(f"the {subject} {preposition} the {other} {verb}")
            agree.append(verbs is other_verbs)
    order = np.random.default_rng(seed).permutation(len(sentences))
    return [sentences[i] for i in order], np.array(agree)[order]


def make_tokenizer():
    """A word is a token; so is the mask."""
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    description = {
        "model": {
            "type": "WordPiece",
            "vocab": {word: i for i, word in enumerate(WORDS)},
            "unk_token": "[UNK]",
        },
        "added_tokens": [{"id": 2, "content": "[MASK]", "special": True, **flags}],
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece"},
    }
    return PipelineTokenizer(
        description, {"unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    )


def masked_once(token_ids, seed):
    """The ids with one of each row masked, and weights that are 1 there."""
    is_masked = np.zeros(token_ids.shape, "float32")
    places = np.random.default_rng(seed).integers(0, token_ids.shape[1], len(token_ids))
    is_masked[np.arange(len(token_ids)), places] = 1
    return np.where(is_masked, WORDS.index("[MASK]"), token_ids), is_masked


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--output", default="runs/fill_in", help="folder of the pictures")
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error("--epochs must be at least 1")

    keras.utils.set_random_seed(1)
    encoder = EncoderTransformer.from_sizes(
        len(WORDS), 2, hidden_dim=48, num_heads=4, intermediate_dim=96, dropout=0.0, max_sequence_length=16
    )
    model = EncoderWithHead(encoder, MaskedLanguageModelHead(encoder.embedding.token))
    fill_mask = keras_attn.FillMask(model, make_tokenizer(), top_k=5)

    sentences, agree = make_sentences(seed=1)
    token_ids = np.array([[WORDS.index(word) for word in sentence.split()] for sentence in sentences])
    held_out = len(sentences) // 5
    train(model, token_ids[held_out:], arguments.epochs)

    texts = [" ".join([*sentence.split()[:VERB], "[MASK]"]) for sentence in sentences[:held_out]]
    right = np.array([share_of_right_number(text, fills) for text, [fills] in zip(texts, fill_mask(texts))])
    for name, rows in (("of one number", agree[:held_out]), ("of two numbers", ~agree[:held_out])):
        print(f"Verbs that agree with the subject, nouns {name}: {right[rows].mean():.1%}")
    show(fill_mask, "the dog near the cats [MASK]", pathlib.Path(arguments.output))


def train(model, token_ids, epochs):
    model.compile(
        keras.optimizers.Adam(0.003),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[],
    )
    for epoch in range(epochs):  # other masks in each
        inputs, is_masked = masked_once(token_ids, seed=epoch)
        model.fit({"token_ids": inputs}, token_ids, sample_weight=is_masked, batch_size=64, verbose=0)


def share_of_right_number(text, fills):
    """Whether the best word for the verb is one, and of the subject's number."""
    return fills[0].token in (VERBS if text.split()[1] in NOUNS else VERBS_OF_MANY)


def show(fill_mask, text, folder):
    [fills] = fill_mask(text)
    print(f"{text}: " + ", ".join(f"{fill.token} {fill.score:.0%}" for fill in fills))
    words = text.split()
    hidden = fill_mask.encoder.embedding(np.array([[WORDS.index(word) for word in words]]))
    scores = []
    for block in fill_mask.encoder.blocks:
        hidden, layer_scores = block(hidden, return_attention_scores=True)
        scores.append(np.array(layer_scores)[0])
    # The head, of all layers, that looks most at the subject from the mask.
    heads = np.concatenate(scores)
    best = heads[heads[:, VERB, 1].argmax()]
    print(f"One head looks from the mask at {words[1]!r} with {best[VERB, 1]:.0%} of its attention.")
    maps = {f"layer {number}": layer_scores for number, layer_scores in enumerate(scores, start=1)}
    explore(maps, words, title=text, path=folder / "attention.html")
    if importlib.util.find_spec("matplotlib"):
        plot_attention(best, words, words, title=text, path=folder / "attention.png")
    print(f"Its attention lies in {folder}")


if __name__ == "__main__":
    main()
