"""Every task meets every habit with tasks: see test_meetings.py."""

import pytest
import task_habits  # noqa: F401
from task_things import TASK_THINGS
from test_meetings import meetings

from keras_attn import tasks
from keras_attn.tasks.task import Task


@pytest.mark.parametrize(("habit", "thing"), meetings("tasks", TASK_THINGS))
def test_meeting(habit, thing, tmp_path):
    habit.check(thing, tmp_path)


def test_every_public_task_is_a_thing():
    public = {name for name in tasks.__all__ if isinstance(getattr(tasks, name), type)}
    public = {name for name in public if issubclass(getattr(tasks, name), Task)}
    assert public == {thing.public_name for thing in TASK_THINGS.values()}
