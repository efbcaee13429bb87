"""Decoding with a step function: one loop, the searches that run in it, and their options."""

from keras_attn.generation.beam_search import Hypotheses, beam_search
from keras_attn.generation.decode import cache_lengths, decode, extend_caches
from keras_attn.generation.find_answers import checked_max_length, checked_options, find_answers
from keras_attn.generation.greedy_search import GreedySearch, greedy_search
from keras_attn.generation.options import MAX_HYPOTHESES, OPTIONS, DecodingOptions
from keras_attn.generation.prompt import Prompt
from keras_attn.generation.sampling import sample
from keras_attn.generation.search import SearchInputs, check_num_hypotheses
from keras_attn.generation.shortlist import FEWEST_LISTED, ListedTokens
from keras_attn.generation.speculative import speculative_decode

__all__ = [
    "FEWEST_LISTED",
    "MAX_HYPOTHESES",
    "OPTIONS",
    "DecodingOptions",
    "GreedySearch",
    "Hypotheses",
    "ListedTokens",
    "Prompt",
    "SearchInputs",
    "beam_search",
    "cache_lengths",
    "check_num_hypotheses",
    "checked_max_length",
    "checked_options",
    "decode",
    "extend_caches",
    "find_answers",
    "greedy_search",
    "sample",
    "speculative_decode",
]
