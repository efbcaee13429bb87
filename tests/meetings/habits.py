"""The registry of habits: what people do with things, and what must hold then, without expected numbers."""

import dataclasses
from collections.abc import Callable

import keras

BACKEND = keras.backend.backend()
ALL_BACKENDS = ("tensorflow", "jax", "torch")
# By what meets them: sequences (layers and models), tasks, measures (losses and metrics).
HABITS = {"sequences": {}, "tasks": {}, "measures": {}}


@dataclasses.dataclass(frozen=True)
class Habit:
    """What someone does.

    Attributes:
        name: Its name in test ids.
        check: Function of a thing and of an empty folder; it fails where an invariant does.
        applies: Function of a thing to whether it can be done with it, by what the thing declares.
        seconds: About how long a meeting takes on one core; dear habits meet fewer things by default.
    """

    name: str
    check: Callable
    applies: Callable
    seconds: float = 0.3


def habit(applies, backends=ALL_BACKENDS, seconds=0.3, name=None, of="sequences"):
    """Registers a function as a habit on the backends that it concerns."""

    def register(check):
        if BACKEND in backends:
            found = Habit(name or check.__name__, check, applies, seconds)
            assert found.name not in HABITS[of], f"two habits are called {found.name}"
            HABITS[of][found.name] = found
        return check

    return register


def everything(thing):
    return True


def is_masked(thing):
    return thing.takes_mask


def reads_vectors(thing):
    return thing.reads == "vectors"


def reads_ids(thing):
    return thing.reads == "ids"


def both(*conditions):
    return lambda thing: all(condition(thing) for condition in conditions)
