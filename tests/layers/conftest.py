import pytest
from helpers_child import Children


@pytest.fixture(scope="session")
def child():
    """New processes in which what a test saved is loaded."""
    children = Children()
    yield children
    children.close()
