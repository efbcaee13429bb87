"""A text that is too long to be read whole is told: by a warning in Python, once for all texts of a call."""

import warnings

import pytest
from helpers_encoder_tasks import answerer, classifier, embedder, fill_mask, tagger
from helpers_text_generators import byte_generator
from helpers_translators import byte_translator

from keras_attn.generation import DecodingOptions

TASKS = {
    "translator": byte_translator,
    "generator": byte_generator,
    "classifier": classifier,
    "embedder": embedder,
    "tagger": tagger,
    "fill_mask": fill_mask,
    "answerer": answerer,
}
MESSAGES = {
    "translator": "are too long: the first {limit} tokens of a source are read.",
    "generator": "are too long: of {limit} tokens or more the end is read, with room for the answer.",
    "answerer": "are too long: the first {limit} tokens of a question are read.",
}


def limit_of(name, task):
    if name == "answerer":
        return task._question_room()
    return task.model.max_sequence_length if name in MESSAGES else task.max_length


def call(name, task, texts):
    """What the task answers, and the messages of its warnings with the files that they point at."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        if name == "answerer":
            answers = task(texts, ["a dog runs"] * len(texts))
        elif name in ("translator", "generator"):
            answers = task(texts, options=DecodingOptions(max_length=3))
        else:
            answers = task(texts)
    caught = [warning for warning in caught if warning.category is UserWarning]
    return answers, [(str(warning.message), warning.filename) for warning in caught]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TASKS)
def test_a_cut_is_told_once_at_the_line_of_the_call(name):
    task = TASKS[name]()
    limit = limit_of(name, task)
    long = "the dog " * (limit + 1)
    answers, told = call(name, task, ["a dog", long, "the", long])
    message = MESSAGES.get(name, "are too long: {limit} tokens of a text are read, special tokens counted.")
    assert told == [(f"2 of 4 texts {message.format(limit=limit)}", __file__)]
    assert len(answers) == 4
    assert call(name, task, ["a dog", "the"])[1] == []


@pytest.mark.extended
def test_other_calls_of_a_translator_tell_it_too():
    task = byte_translator()
    long = "a" * (task.model.max_sequence_length + 1)
    for answer in (
        lambda: task.score(long, "a"),
        lambda: list(task.stream(long, max_length=2)),
        lambda: task.align(long, "a"),
    ):
        with pytest.warns(UserWarning, match="1 of 1 texts is too long: the first") as told:
            answer()
        assert [one.filename for one in told if one.category is UserWarning] == [__file__]
