"""Every thing meets every habit: what was tested alone is tried beside everything else, with invariants as oracles.

By default a seeded sample: each habit meets a few things. `pytest -m "extended or not extended" tests/meetings` meets all.
"""

import change_habits  # noqa: F401
import mask_habits  # noqa: F401
import measures
import number_habits  # noqa: F401
import numpy as np
import path_habits  # noqa: F401
import pytest
from habits import BACKEND, HABITS
from things import NOT_CALLED, THINGS, seed_of
from walks import Walk

from keras_attn import layers, models, training

# Seconds of meetings that each habit has by default, about, and how many walks of how many steps.
SHARE, WALKS, MORE_WALKS, STEPS = 0.15, 1, 61, 4


def sampled(habit, things):
    """The names of the things that a habit meets by default: few, and the same in every run."""
    rng = np.random.default_rng(seed_of(habit.name))
    count = int(SHARE / habit.seconds + rng.random())
    chosen = rng.permutation(len(things))[:count]
    return {things[i].name for i in chosen}


def meetings(of, all_things):
    """A parameter for every habit and every thing that it applies to."""
    found = []
    for habit in HABITS[of].values():
        things = [thing for thing in all_things.values() if habit.applies(thing)]
        default = sampled(habit, things)
        for thing in things:
            marks = [] if thing.name in default else [pytest.mark.extended]
            found.append(pytest.param(habit, thing, marks=marks, id=f"{habit.name}-{thing.name}"))
    return found


@pytest.mark.parametrize(("habit", "thing"), meetings("sequences", THINGS))
def test_meeting(habit, thing, tmp_path):
    habit.check(thing, tmp_path)


@pytest.mark.parametrize(("habit", "measure"), meetings("measures", measures.MEASURES))
def test_meeting_of_a_measure(habit, measure, tmp_path):
    habit.check(measure, tmp_path)


def walkers():
    names = sorted(THINGS)
    for seed in range(WALKS + MORE_WALKS):
        name = names[seed_of(f"walk {seed}") % len(names)]
        marks = () if seed < WALKS else pytest.mark.extended
        yield pytest.param(seed, THINGS[name], marks=marks, id=f"{seed}-{name}")


@pytest.mark.parametrize(("seed", "thing"), list(walkers()))
def test_walk(seed, thing, tmp_path):
    walk = Walk(thing, seed, tmp_path)
    try:
        for _ in range(STEPS):
            walk.step()
    except BaseException as error:
        error.add_note(f"walked: {', '.join(walk.path)}")
        raise


@pytest.mark.parametrize("room", [layers, models], ids=["layers", "models"])
def test_every_public_name_is_a_thing(room):
    public = {f"{room.__name__.rpartition('.')[2]}.{name}" for name in room.__all__}
    known = {thing.public_name for thing in THINGS.values()} | set(NOT_CALLED)
    assert public <= known


def test_every_public_name_of_training_is_a_measure():
    known = {measure.public_name for measure in measures.MEASURES.values()} | set(measures.NO_MEASURES)
    assert set(training.__all__) <= known


def test_every_habit_has_a_thing():
    for of, things in (("sequences", THINGS), ("measures", measures.MEASURES)):
        for habit in HABITS[of].values():
            assert any(habit.applies(thing) for thing in things.values()), habit.name
    assert BACKEND != "tensorflow" or len(HABITS["sequences"]) > 50
