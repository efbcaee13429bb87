"""What every test relies on: a seed, and backend and peers named in the report."""

import contextlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# triton comes with torch for CUDA, and torch imports it. After TensorFlow (2.21; triton 3.8) that ends the process.
with contextlib.suppress(ImportError):
    import triton  # noqa: F401

import helpers_marks
import helpers_processes
import helpers_seed
import keras
import numpy as np
import pytest

# The files that take longest come first, so that the last file of one process keeps the other waiting for little.
LONGEST_FILES = """
    test_site.py test_gallery.py test_quantized_exports.py test_growing.py test_layer_contract.py
    test_resume.py test_meetings.py test_examples.py test_readme.py test_seq2seq_tensorflow.py
    test_updates.py test_runs.py test_translator.py test_signatures.py test_saved_model.py
""".split()


def pytest_addoption(parser):
    helpers_processes.add_option(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    if not helpers_processes.are_wanted(session):
        return None  # pytest's own loop
    return helpers_processes.run_in_processes(session)


def pytest_collection_modifyitems(items):
    helpers_marks.choose_samples(items)
    ranks = {name: rank for rank, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))


def pytest_report_header(config):
    return f"keras {keras.__version__}, backend {keras.backend.backend()}"


@pytest.fixture(autouse=True)
def _seed():
    helpers_seed.set_seed(1)


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.fixture(scope="session")
def browser():
    from helpers_browser import INSTALL, Browser, find_chromium

    paths = find_chromium()
    if paths is None:
        reason = f"The tests of pages need a browser: {INSTALL}"
        if os.environ.get("KERAS_ATTN_NEEDS_CHROMIUM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    browser = Browser(paths)
    yield browser
    browser.close()
