"""A translator, the version folder that it exported, and a process that answers for it as a server would."""

import pytest
from helpers_translators import byte_translator, serving, subword_translator


@pytest.fixture(
    scope="session", params=[byte_translator, pytest.param(subword_translator, marks=pytest.mark.slow)]
)
def exported(request, tmp_path_factory):
    translator = request.param()
    return translator, translator.export(tmp_path_factory.mktemp("models") / "it")


@pytest.fixture(scope="session")
def server(exported):
    with serving(exported[1]) as server:
        yield server
