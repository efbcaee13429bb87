"""Which of a test's examples are in the default run."""

import pytest


def extended_but(default, values):
    """Parameters of `values`; those that are not in `default` are extended tests."""
    return [pytest.param(value, marks=() if value in default else pytest.mark.extended) for value in values]
