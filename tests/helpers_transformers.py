"""What every model of transformers imports, imported once: the tests' processes are forked from the one that has it, and
take two seconds for it otherwise."""

import contextlib

with contextlib.suppress(ImportError):
    import transformers.modeling_utils  # noqa: F401
