"""A translator, the version folder that it exported, and a process that answers for it as a server would."""

import pytest
from helpers_translators import byte_translator, exported_once, serving, subword_translator


@pytest.fixture(
    scope="session", params=[byte_translator, pytest.param(subword_translator, marks=pytest.mark.slow)]
)
def exported(request, tmp_path_factory):
    return exported_once(tmp_path_factory, request.param)


@pytest.fixture(scope="session")
def server(exported):
    with serving(exported[1]) as server:
        yield server
