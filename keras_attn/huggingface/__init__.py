"""Checkpoints of Hugging Face: their files in, models and tokenizers of this library out."""
