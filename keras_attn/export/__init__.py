"""From a model and its tokenizers to a SavedModel that takes strings and returns strings."""
