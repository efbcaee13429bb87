"""Decoding over a step function: one loop, and the searches that run in it."""

from keras_attn.generation.beam_search import Hypotheses, beam_search
from keras_attn.generation.decode import cache_length, decode

__all__ = ["Hypotheses", "beam_search", "cache_length", "decode"]
