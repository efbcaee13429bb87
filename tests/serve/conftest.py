"""A server with two models, in this process; each model runs in a process of its own."""

import contextlib
import pathlib

import pytest
from helpers_serving import MOST_ROWS, Client, running, signatures

import keras_attn
from keras_attn.export import export_saved_model, write_batching_parameters


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Folders of `plain`, which is not batched, and of `merged`, in batches of at most `MOST_ROWS`."""
    root = tmp_path_factory.mktemp("served")
    export_saved_model(root / "plain", {name: signatures()[name] for name in ("serving_default", "several")})
    merged = export_saved_model(root / "merged", signatures())
    write_batching_parameters(merged, MOST_ROWS, batch_timeout_micros=100_000, max_enqueued_batches=2)
    return [root / "plain", root / "merged"]


@pytest.fixture(scope="session")
def server(folders):
    with running(folders) as (port, models):
        yield port, models


@pytest.fixture
def client(server):
    with contextlib.closing(Client(server[0])) as client:
        yield client


@pytest.fixture(scope="session")
def dates_url():
    """A server of the repository's own translator of dates."""
    with running([pathlib.Path(keras_attn.__file__).parents[1] / "saved_models" / "dates"]) as (port, _):
        yield f"http://127.0.0.1:{port}"
