"""Which of a test's examples are in the default run."""

import pytest


def slow_but(default, values):
    """Parameters of `values`; those that are not in `default` are one case more of the same, and slow tests."""
    return [pytest.param(value, marks=() if value in default else pytest.mark.slow) for value in values]
