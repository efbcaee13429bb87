"""Decoding over a step function: one loop, the searches that run in it, and what they can be asked to do."""

from keras_attn.generation.answers import answers, checked_max_length, checked_options
from keras_attn.generation.beam_search import Hypotheses, beam_search
from keras_attn.generation.decode import cache_length, decode
from keras_attn.generation.greedy_search import greedy_search
from keras_attn.generation.options import DecodingOptions
from keras_attn.generation.prompt import Prompt
from keras_attn.generation.sampling import sample
from keras_attn.generation.speculative import speculative_decode

__all__ = [
    "DecodingOptions",
    "Hypotheses",
    "Prompt",
    "answers",
    "beam_search",
    "cache_length",
    "checked_max_length",
    "checked_options",
    "decode",
    "greedy_search",
    "sample",
    "speculative_decode",
]
