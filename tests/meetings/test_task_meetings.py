"""Every task meets every habit with tasks: see test_meetings.py."""

import pytest
import task_habits  # noqa: F401
from helpers_marks import CUTS_ARE_EXPECTED
from task_things import TASK_THINGS
from test_meetings import meetings

from keras_attn import task_registry


@CUTS_ARE_EXPECTED
@pytest.mark.parametrize(("habit", "thing"), meetings("tasks", TASK_THINGS))
def test_meeting(habit, thing, tmp_path):
    habit.check(thing, tmp_path)


def test_every_public_task_is_a_thing():
    assert set(task_registry.CLASS_NAMES) == {thing.public_name for thing in TASK_THINGS.values()}
