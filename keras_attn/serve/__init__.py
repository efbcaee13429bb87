"""A local server of exported models with TF Serving's REST routes, and its page."""
