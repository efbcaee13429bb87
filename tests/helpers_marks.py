"""Which of a test's examples are in the default run."""

import pytest


def slow_but(default, values):
    """Parameters of `values`; those that are not in `default` are one case more of the same, and slow tests."""
    return _marked_but(pytest.mark.slow, default, values)


def extended_but(default, values):
    """Parameters of `values`; those that are not in `default` show something of their own, and are extended tests."""
    return _marked_but(pytest.mark.extended, default, values)


def _marked_but(mark, default, values):
    return [pytest.param(value, marks=() if value in default else mark) for value in values]
