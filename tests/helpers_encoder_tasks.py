"""Small tasks of encoders for tests of calling, saving and exporting; all their weights are random.

Tests share them, and with them their graphs.
"""

import functools

import keras
import numpy as np
from helpers_seed import set_seed

import keras_attn
from keras_attn import layers
from keras_attn.models import EncoderTransformer, EncoderWithHead
from keras_attn.text import PipelineTokenizer

D, MAX_LENGTH = 22, 23
_NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_PIECES = [
    "ada",
    "love",
    "##lace",
    "lives",
    "in",
    "london",
    "where",
    "?",
    "the",
    "dog",
    "runs",
    "é",
    "##s",
    "b",
    ".",
]
WORDS = [*_NAMES, *_PIECES]
VOCABULARY_SIZE = len(WORDS) + 3  # more than the tokenizer's, as in many checkpoints
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
# One with marks and emoji before the words, one that is too long, one that is no UTF-8.
TEXTS = [
    "Ada Lovelace lives in London.",
    "",
    "é 😀 Ada  é in LONDON",
    "the dog runs " * 9,
    b"dog \xff\xfe in b",
    "b",
]
CONTEXT = "Ada Lovelace lives in London. The dog runs in the b."


@functools.cache
def word_tokenizer():
    """BERT's kind, with pairs and a mask."""
    numbers = {word: number for number, word in enumerate(WORDS)}
    description = {
        "model": {
            "type": "WordPiece",
            "vocab": numbers,
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
        "added_tokens": [_added(number, name) for number, name in enumerate(_NAMES)],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": False,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
    }
    roles = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PipelineTokenizer(description, dict(zip(roles, _NAMES)))


def _added(number, name):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": name, "special": True, **flags}


def encoder(vocabulary_size=VOCABULARY_SIZE, token_types=2):
    """One block, and a table of this many token types (0: no table)."""
    embedding = layers.SequenceEmbedding(
        layers.TokenEmbedding(vocabulary_size, D, scale=False, name="token"),
        position=layers.PositionEmbedding(MAX_LENGTH, name="position"),
        token_type=keras.layers.Embedding(token_types, D, name="token_type") if token_types else None,
        norm=keras.layers.LayerNormalization(name="norm"),
        name="embedding",
    )
    block = layers.EncoderBlock(17, 2, activation="gelu", name="block_0")
    return EncoderTransformer(embedding, [block], name="encoder")


def with_random_weights(model, seed=3):
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        is_scale = weight.path.endswith("gamma")
        weight.assign(is_scale + rng.normal(size=weight.shape) * 0.5)
    return model


def with_head(head):
    set_seed(5)
    body = encoder()
    return with_random_weights(EncoderWithHead(body, head(body)))


@functools.cache
def embedder(**options):
    return keras_attn.TextEmbedder(with_random_weights(encoder()), word_tokenizer(), **options)


@functools.cache
def classifier(labels=("good", "bad", "é"), **options):
    model = with_head(lambda body: layers.ClassificationHead(len(labels), intermediate_dim=D))
    return keras_attn.TextClassifier(model, word_tokenizer(), labels, **options)


@functools.cache
def tagger(**options):
    model = with_head(lambda body: layers.TokenClassificationHead(len(LABELS)))
    return keras_attn.TokenClassifier(model, word_tokenizer(), LABELS, **options)


@functools.cache
def fill_mask(**options):
    model = with_head(lambda body: layers.MaskedLanguageModelHead(body.embedding.token))
    return keras_attn.FillMask(model, word_tokenizer(), **{"top_k": 3, **options})


@functools.cache
def answerer(**options):
    model = with_head(lambda body: layers.TokenClassificationHead(2))
    return keras_attn.QuestionAnswerer(model, word_tokenizer(), **{"max_answer_length": 4, **options})


MAKERS = [embedder, classifier, tagger, fill_mask, answerer]
