"""Sentences a second of the tokenizers in the graph, one core, beside `tokenizers` and KerasHub's byte-pair tokenizer.

Run it alone on a core: `taskset -c 1 python tests/benchmarks/tokenizing.py`. Each has a small vocabulary that
`tokenizers` learns from the sentences, 11 words each on average; a batch has 1,000 of them.
"""

from helpers_benchmarks import median_seconds, parser, print_table  # isort: skip -- it stands beside this file

import json
import os
import pathlib
import sys
import time

os.environ.setdefault("RAYON_NUM_THREADS", "1")
import tensorflow as tf
import tokenizers as peer
from tokenizers import models, normalizers, pre_tokenizers, trainers

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from helpers_texts import sentences

from keras_attn.text import PipelineTokenizer
from keras_attn.text.patterns import LLAMA3_PATTERN

BATCHES, ROWS = 5, 1000
COLUMNS = ("ours", "ours, one by one", "tokenizers", "KerasHub", "KerasHub, new words")


def byte_level(texts, size, pattern=None):
    theirs = peer.Tokenizer(models.BPE())
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = [] if pattern is None else [pre_tokenizers.Split(peer.Regex(pattern), "isolated")]
    theirs.pre_tokenizer = pre_tokenizers.Sequence([*split, spelling])
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    theirs.train_from_iterator(texts, trainer)
    return theirs


def word_piece(texts, size):
    theirs = peer.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    theirs.normalizer = normalizers.BertNormalizer(lowercase=True)
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=["[UNK]"], show_progress=False)
    theirs.train_from_iterator(texts, trainer)
    return theirs


def unigram(texts, size):
    theirs = peer.Tokenizer(models.Unigram())
    theirs.normalizer, theirs.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    theirs.train_from_iterator(texts, trainer)
    return theirs


def keras_hub(theirs):
    """KerasHub's tokenizer of the same merges, in a graph."""
    import keras_hub

    model = json.loads(theirs.to_str())["model"]
    merges = [" ".join(merge) for merge in model["merges"]]
    return keras_hub.tokenizers.BytePairTokenizer(vocabulary=model["vocab"], merges=merges)


def over(function, batches):
    def run():
        for batch in batches:
            function(batch)

    return run


def main():
    options = parser(__doc__.splitlines()[0], rounds=5)
    options.add_argument("--texts", help="a file with a sentence a line, in place of made ones")
    options.add_argument("--size", type=int, default=8000)
    options = options.parse_args()
    count = BATCHES * ROWS
    texts = sentences(count)
    if options.texts:
        texts = pathlib.Path(options.texts).read_text(encoding="utf-8").splitlines()[:count]
    batches = [texts[start : start + ROWS] for start in range(0, len(texts), ROWS)]
    tensors = [tf.constant(batch) for batch in batches]
    specification = [tf.TensorSpec([None], tf.string)]
    kinds = {
        "WordPiece, BERT uncased": word_piece(texts, options.size),
        "byte-level BPE, GPT-2": byte_level(texts, options.size),
        "byte-level BPE, LLaMA 3": byte_level(texts, options.size, LLAMA3_PATTERN),
        "unigram": unigram(texts, options.size),
    }
    rows = []
    for name, theirs in kinds.items():
        ours = PipelineTokenizer(json.loads(theirs.to_str()))
        graph = tf.function(ours.tokenize, input_signature=specification)
        candidates = {
            "ours": over(graph, tensors),
            "ours, one by one": over(graph, [tensors[0][i : i + 1] for i in range(0, ROWS, 10)]),
            "tokenizers": over(theirs.encode_batch, batches),
        }
        counts = {key: len(texts) for key in COLUMNS} | {"ours, one by one": ROWS // 10}
        found = {}
        if name == "byte-level BPE, GPT-2":
            # It keeps every word it has seen, so the first time differs from later ones.
            hub = tf.function(keras_hub(theirs).tokenize, input_signature=specification)
            hub(tf.constant([""]))
            candidates["KerasHub"] = over(hub, tensors)
            start = time.perf_counter()
            candidates["KerasHub"]()
            found["KerasHub, new words"] = len(texts) / (time.perf_counter() - start)
        seconds = median_seconds(candidates, options.rounds)
        found |= {key: counts[key] / value for key, value in seconds.items()}
        rows.append([name, *(f"{found[key]:,.0f}" if key in found else "" for key in COLUMNS)])
    title = f"Sentences a second, batches of {ROWS}, vocabularies of at most {options.size}, medians of {options.rounds}."
    print_table(title, ["tokenizer", *COLUMNS], rows)


if __name__ == "__main__":
    main()
