"""What `--help` says: a sentence for every option of every command, and every task by its name."""

import argparse

import pytest

import keras_attn_cli
from keras_attn import task_registry


def commands():
    (action,) = (
        action
        for action in keras_attn_cli.make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return action.choices


@pytest.mark.parametrize("name", commands())
def test_every_option_says_what_it_does_and_what_it_takes(name):
    for action in commands()[name]._actions:
        option = f"{name} {action.option_strings or action.dest}"
        assert action.help, option
        assert len(action.help.split()) > 3, option
        takes_value = action.nargs != 0
        assert not takes_value or action.choices or action.metavar, option


def test_a_command_for_all_tasks_names_each():
    for command in ("export", "show"):
        said = " ".join(commands()[command].format_help().split()).replace("- ", "-")
        declarations = task_registry.declarations()
        for class_name in task_registry.CLASS_NAMES:  # other tests may have declared tasks of their own
            name = declarations[class_name].name
            assert name in said, (command, name)


def test_a_number_from_1_is_read_in_one_place(capsys):
    with pytest.raises(SystemExit):
        keras_attn_cli.make_parser().parse_args(["translate", "folder", "--num-beams", "0"])
    assert "must be a positive integer, not 0" in capsys.readouterr().err
