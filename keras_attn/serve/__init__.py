"""A local server with TF Serving's REST routes over exported models, and a page to try them."""

from keras_attn.serve.server import serve

__all__ = ["serve"]
