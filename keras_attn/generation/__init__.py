"""Decoding with a step function: one loop, the searches that run in it, and their options."""

from keras_attn.generation.beam_search import beam_search
from keras_attn.generation.choose_search import checked_options, find_answers
from keras_attn.generation.decoding_loop import cache_lengths, decode, extend_caches
from keras_attn.generation.greedy_and_sampling import GreedySearch, greedy_search, sample
from keras_attn.generation.options import MAX_HYPOTHESES, OPTIONS, DecodingOptions
from keras_attn.generation.search import (
    FEWEST_LISTED,
    Hypotheses,
    ListedTokens,
    Prompt,
    SearchInputs,
    check_num_hypotheses,
)
from keras_attn.generation.speculative_decoding import speculative_decode

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
    "checked_options",
    "decode",
    "extend_caches",
    "find_answers",
    "greedy_search",
    "sample",
    "speculative_decode",
]
