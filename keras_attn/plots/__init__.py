"""Plots of attention scores and of learning curves, as figures or HTML pages, and the explorer of attention."""

from keras_attn.plots.explorer import Explorer, explore
from keras_attn.plots.figures import (
    attention_grid,
    attention_page,
    figure_pixels,
    plot_attention,
    plot_learning_curves,
)

__all__ = [
    "Explorer",
    "attention_grid",
    "attention_page",
    "explore",
    "figure_pixels",
    "plot_attention",
    "plot_learning_curves",
]
