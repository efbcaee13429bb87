"""Which of a test's examples are in the default run."""

import itertools

import pytest

# Of tests with texts that are too long to be read whole, on purpose.
CUTS_ARE_EXPECTED = pytest.mark.filterwarnings("ignore:.* too long. .* read:UserWarning")


def slow_but(default, values):
    """Parameters of `values`; those that are not in `default` are one case more of the same, and slow tests."""
    return _marked_but(pytest.mark.slow, default, values)


def extended_but(default, values):
    """Parameters of `values`; those that are not in `default` show something of their own, and are extended tests."""
    return _marked_but(pytest.mark.extended, default, values)


def _marked_but(mark, default, values):
    return [pytest.param(value, marks=() if value in default else mark) for value in values]


def choose_samples(items):
    """Of a test marked `sampled(number)`, the default run takes so many of its cases, spread evenly; the others are extended."""
    for _, cases in itertools.groupby(items, key=lambda item: (item.path, item.originalname)):
        cases = [case for case in cases if case.get_closest_marker("slow") is None]
        cases = [case for case in cases if case.get_closest_marker("extended") is None]
        mark = cases[0].get_closest_marker("sampled") if cases else None
        if mark is None:
            continue
        (number,) = mark.args
        chosen = {len(cases) * place // number for place in range(number)}
        for place, case in enumerate(cases):
            if place not in chosen:
                case.add_marker(pytest.mark.extended)
