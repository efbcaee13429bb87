"""Timing of several candidates in turns, and the table a benchmark prints."""

import argparse
import importlib.metadata
import math
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def parser(description, rounds):
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--rounds", type=int, default=rounds, help="how often each candidate is timed")
    return options


def median_seconds(candidates, rounds, clock=time.perf_counter, least_seconds=0.0):
    """The median time of one call of each candidate.

    The candidates take turns, in another order each round, so that what else the machine does falls on all alike.

    Args:
        candidates: Dict from a name to a function without arguments that returns when its work is done.
        rounds: Integer, the timed calls of each; one call more comes first and is not counted.
        clock: Function that gives seconds: `time.process_time` for candidates of one thread each, whose time then does
            not hold the waiting for others.
        least_seconds: Float. A candidate whose calls are shorter is called so often a turn that the turn takes this long,
            like a program that does nothing else: the first calls after another candidate find little in the caches.

    Returns:
        Dict from the name to seconds.
    """
    seconds, calls = {name: [] for name in candidates}, dict.fromkeys(candidates, 1)
    names = list(candidates)
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = clock()
            for _ in range(calls[name]):
                candidates[name]()
            seconds[name].append((clock() - start) / calls[name])
            calls[name] = max(1, math.ceil(least_seconds / seconds[name][0]))
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def print_table(title, header, rows, packages=("keras", "tensorflow")):
    """Prints columns as wide as they need to be, with the versions of what was compared."""
    from keras_attn._version import __version__  # here, for it imports Keras

    versions = {"keras_attn": __version__} | {name: importlib.metadata.version(name) for name in packages}
    print(f"{title}\n{', '.join(f'{name} {version}' for name, version in versions.items())}\n")
    lines = [header, *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
