"""What Keras, TensorFlow and the system do not promise: each such use stands here once, as one function.

A docstring says why there is no public way, since which version this one is there, and what breaks when it goes. For each
function tests/compat holds a canary: a small test on plain Keras or TensorFlow that names the function and its users.
"""
