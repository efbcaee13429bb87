"""Sentences a second with a shortlist and without, of ours as it is served and of CTranslate2, with the same weights and lists.

The weights are random; the sentences are those of 17 tokens, END included, of a training file, and their answers have 16. The
lists are as long as those of real alignments: words are linked that stand at the same share of their sentences.
"""

from helpers_benchmarks import median_seconds, parser, print_table  # isort: skip -- quietens TensorFlow

import itertools
import pathlib
import sys
import tempfile

import ctranslate2
import keras
import numpy as np
import tensorflow as tf

from keras_attn import Translator
from keras_attn.data import read_text_pairs
from keras_attn.models import Seq2SeqTransformer
from keras_attn.tasks import make_shortlist
from keras_attn.tasks.batches import NO_TOKEN
from keras_attn.text import SentencePieceTokenizer

VOCABULARY_SIZE, SOURCE_LENGTH, TARGET_LENGTH = 8000, 17, 16


def make_translator(size, tokenizer):
    keras.utils.set_random_seed(1)
    model = Seq2SeqTransformer.from_preset(size, VOCABULARY_SIZE, max_sequence_length=64, dtype="float32")
    table, end = model.target_embedding.token.embeddings, tokenizer.end_token_id
    # END never seems likely.
    table.assign(keras.ops.concatenate([table[:end], 0 * table[:1], table[end + 1 :]]))
    return Translator(model, tokenizer, tokenizer, max_length=TARGET_LENGTH)


def links_of(pairs):
    """Words at the same share of their sentences."""
    for source, target in zip(pairs.sources, pairs.targets):
        counts = len(source.split()), len(target.split())
        yield [(i * counts[0] // counts[1], i) for i in range(counts[1])] if all(counts) else []


def ours(translator, source, num_beams):
    search = translator.search_options(num_beams=num_beams, num_return_sequences=None)
    graph = tf.function(
        lambda ids: translator.generate(ids, search).token_ids[:, 0],
        input_signature=[tf.TensorSpec([None, None], tf.int32)],
        autograph=False,
    )
    source = tf.constant(source, tf.int32)
    return lambda: graph(source).numpy()


def of_ctranslate2(folder, tokens, num_beams, use_vmap):
    engine = ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=1)
    return lambda: engine.translate_batch(
        tokens,
        beam_size=num_beams,
        max_batch_size=len(tokens),
        use_vmap=use_vmap,
        max_decoding_length=TARGET_LENGTH,
        min_decoding_length=TARGET_LENGTH,
    )


def main():
    options = parser(__doc__.splitlines()[0], rounds=7)
    options.add_argument("source", help="training file, which also gives the sentences")
    options.add_argument("target", help="its other side")
    options.add_argument("--sizes", nargs="+", choices=["tiny", "base"], default=["tiny", "base"])
    options.add_argument("--batches", type=int, nargs="+", default=[1, 64])
    options.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    options = options.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    pairs = read_text_pairs(options.source, options.target)
    texts = [*pairs.sources[:], *pairs.targets[:]]
    tokenizer = SentencePieceTokenizer.train(texts, VOCABULARY_SIZE, "bpe")
    source_ids = tokenizer.encode(pairs.sources[:])
    sentences = [[*ids, tokenizer.end_token_id] for ids in source_ids if len(ids) == SOURCE_LENGTH - 1]
    rows, shortlist = [], None
    for size, batch_size in itertools.product(options.sizes, options.batches):
        translator = make_translator(size, tokenizer)
        if shortlist is None:
            shortlist = make_shortlist(translator, links_of(pairs), pairs.sources[:], pairs.targets[:])
        listing = translator.replaced(shortlist=shortlist)
        source = np.array(sentences[:batch_size])
        tokens = [tokenizer.token_strings(ids[:-1]) for ids in source]
        count = shortlist.listed_tokens(
            tf.constant(source, tf.int32), VOCABULARY_SIZE, VOCABULARY_SIZE
        ).token_ids.shape[0]
        with tempfile.TemporaryDirectory() as folder:
            folder = listing.export_model(pathlib.Path(folder, "engine"), "ctranslate2")
            for num_beams in options.beams:
                found = {
                    "ours": ours(translator, source, num_beams),
                    "ours, shortlist": ours(listing, source, num_beams),
                    "CTranslate2": of_ctranslate2(folder, tokens, num_beams, use_vmap=False),
                    "CTranslate2, vmap": of_ctranslate2(folder, tokens, num_beams, use_vmap=True),
                }
                for name in ("ours", "ours, shortlist"):
                    assert not np.isin(found[name](), (tokenizer.end_token_id, NO_TOKEN)).any(), name
                seconds = median_seconds(found, options.rounds)
                for name, whole in (("ours", "ours"), ("CTranslate2", "CTranslate2")):
                    listed = next(key for key in found if key.startswith(f"{name}, "))
                    rows.append(
                        [
                            *(size, batch_size, num_beams, name, count),
                            f"{batch_size / seconds[whole]:.1f}",
                            f"{batch_size / seconds[listed]:.1f}",
                            f"{seconds[whole] / seconds[listed]:.2f}",
                        ]
                    )
                print(*rows[-2:], sep="\n", file=sys.stderr, flush=True)
    print_table(
        f"Decoding of {TARGET_LENGTH} tokens, V = {VOCABULARY_SIZE}, one thread: sentences a second, medians of "
        f"{options.rounds}. ctranslate2 {ctranslate2.__version__}",
        ["size", "batch", "beams", "engine", "listed", "all tokens", "shortlist", "x"],
        rows,
    )


if __name__ == "__main__":
    main()
