"""Tokenizers: strings in, token ids out, and back."""

from keras_attn.text.byte_level_bpe_tokenizer import ByteLevelBPETokenizer
from keras_attn.text.byte_tokenizer import ByteTokenizer
from keras_attn.text.characters import characters_of
from keras_attn.text.loading import load_tokenizer
from keras_attn.text.pipeline_tokenizer import PipelineTokenizer
from keras_attn.text.sentencepiece_tokenizer import SentencePieceTokenizer
from keras_attn.text.tokenizer import Tokenizer, as_utf8
from keras_attn.text.wordpiece_tokenizer import WordPieceTokenizer

__all__ = [
    "ByteLevelBPETokenizer",
    "ByteTokenizer",
    "PipelineTokenizer",
    "SentencePieceTokenizer",
    "Tokenizer",
    "WordPieceTokenizer",
    "as_utf8",
    "characters_of",
    "load_tokenizer",
]
