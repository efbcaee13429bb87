import inspect
import re

import keras
import pytest

from keras_attn import training


def examples():
    for name in training.__all__:
        docstring = inspect.getdoc(getattr(training, name))
        for block in re.findall(r"```python\n(.*?)```", docstring, re.DOTALL):
            yield pytest.param(block, id=name)


@pytest.mark.parametrize("block", list(examples()))
def test_docstring_example_runs(block):
    exec(block, {"keras": keras, **vars(training)})


def test_every_public_name_but_the_record_has_an_example():
    assert {case.id for case in examples()} == set(training.__all__) - {"CorpusScore"}
