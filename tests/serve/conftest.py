"""What the tests of the page share: a browser, the server that it opens, and a page that must end without errors."""

import os

import pytest
from helpers_browser import INSTALL, Browser, find_chromium
from helpers_page_server import PageServer


@pytest.fixture(scope="session")
def browser():
    path = find_chromium()
    if path is None:
        reason = f"The tests of the page need a browser: {INSTALL}"
        if os.environ.get("KERAS_ATTN_NEEDS_CHROMIUM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    browser = Browser(path)
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def odd_url():
    """A server whose models answer what a test needs: errors, markup, statuses, every kind of model."""
    server = PageServer()
    yield server.url
    server.close()


@pytest.fixture(scope="session")
def base_url(odd_url):
    """The server of the page. Its first model is a translator that can `translate` and `sample`."""
    return odd_url


@pytest.fixture
def open_page(browser):
    """Opens a page of some size and colour scheme; after the test, its console must hold no error."""
    pages = []

    def open_page(url, **options):
        pages.append(browser.page(url, **options))
        pages[-1].wait_for("document.querySelector('#model').options.length > 0")
        return pages[-1]

    yield open_page
    errors = [error for page in pages for error in page.errors()]
    for page in pages:
        page.close()
    assert not [error for error in errors if ":predict" not in error]
