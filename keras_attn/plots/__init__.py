"""Plots of attention scores and of learning curves, and the explorer of attention."""

from keras_attn.plots.explorer import Explorer, explore
from keras_attn.plots.explorer_data import MAX_TOKENS
from keras_attn.plots.figures import (
    attention_grid,
    figure_pixels,
    plot_attention,
    plot_learning_curves,
)
from keras_attn.plots.served_attention import explore_answer

__all__ = [
    "MAX_TOKENS",
    "Explorer",
    "attention_grid",
    "explore",
    "explore_answer",
    "figure_pixels",
    "plot_attention",
    "plot_learning_curves",
]
