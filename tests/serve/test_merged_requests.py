"""Requests merged into batches: sizes, time, room, and what one request does to its batch-mates."""

import concurrent.futures
import json
import threading
import time

import pytest
from helpers_serving import MOST_ROWS, ask_once

from keras_attn.serve.batching import Batcher
from keras_attn.serve.errors import RequestError
from keras_attn.serve.tensors import Tensor


class Recorder:
    """Runs `doubled`, one batch or several at a time, and keeps what it was given."""

    def __init__(self):
        self.batches, self.at_once, self.most_at_once = [], 0, 0
        self.go_on = threading.Event()
        self.go_on.set()
        self._lock = threading.Lock()

    def run(self, name, inputs):
        with self._lock:
            self.batches.append(inputs["x"])
            self.at_once += 1
            self.most_at_once = max(self.at_once, self.most_at_once)
        assert self.go_on.wait(20)
        with self._lock:
            self.at_once -= 1
        if "bad" in inputs["x"]:
            raise RequestError("a bad text")
        return {"outputs": [2 * value for value in inputs["x"]]}


@pytest.fixture
def make_batcher():
    batchers = []

    def make(recorder, threads=2, **parameters):
        batchers.append(Batcher(recorder.run, parameters, threads))
        return batchers[-1]

    yield make
    for batcher in batchers:
        batcher.close()


def rows(*values):
    return {"x": Tensor(list(values), (len(values),))}


def ask_together(batcher, requests):
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda values: batcher.ask("signature", rows(*values)), requests))


def wait_until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_each_request_gets_its_own_rows(make_batcher):
    recorder = Recorder()
    batcher = make_batcher(recorder, max_batch_size=7, batch_timeout_micros=2000, max_enqueued_batches=100)
    requests = [[f"{number}-{row}" for row in range(number % 4)] for number in range(113)]
    answers = ask_together(batcher, requests)
    assert answers == [{"outputs": [2 * value for value in request]} for request in requests]
    assert max(map(len, recorder.batches)) <= 7
    assert len(recorder.batches) < 113 / 2


def test_as_many_batches_run_at_once_as_there_are_threads(make_batcher):
    recorder = Recorder()
    recorder.go_on.clear()
    batcher = make_batcher(recorder, threads=3, max_batch_size=1)
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        futures = [pool.submit(batcher.ask, "signature", rows(letter)) for letter in "abcde"]
        wait_until(lambda: recorder.at_once == 3 and sum(map(len, batcher._waiting.values())) == 2)
        recorder.go_on.set()
        assert [future.result()["outputs"] for future in futures] == [[2 * letter] for letter in "abcde"]
    assert recorder.most_at_once == 3


def test_a_full_batch_does_not_wait(make_batcher):
    recorder = Recorder()
    batcher = make_batcher(recorder, max_batch_size=3, batch_timeout_micros=60_000_000)
    assert ask_together(batcher, [["a"], ["b"], ["c"]]) == [{"outputs": [2 * x]} for x in "abc"]
    assert [sorted(batch) for batch in recorder.batches] == [["a", "b", "c"]]


def test_a_batch_that_never_fills_runs_when_its_first_request_has_waited(make_batcher):
    batcher = make_batcher(Recorder(), max_batch_size=3, batch_timeout_micros=50_000)
    start = time.monotonic()
    assert batcher.ask("signature", rows("a")) == {"outputs": ["aa"]}
    assert time.monotonic() - start >= 0.05


def test_there_is_room_for_so_many_batches(make_batcher):
    """shared_batch_scheduler.h, ValidateBatchTaskQueueCapacity"""
    recorder = Recorder()
    recorder.go_on.clear()
    batcher = make_batcher(recorder, threads=1, max_batch_size=2, max_enqueued_batches=3)
    with concurrent.futures.ThreadPoolExecutor(7) as pool:
        first = pool.submit(batcher.ask, "signature", rows("a"))
        wait_until(lambda: recorder.at_once == 1)
        others = []
        for number in range(1, 4):
            others.append(pool.submit(batcher.ask, "signature", rows("b", "c")))
            wait_until(lambda number=number: sum(map(len, batcher._waiting.values())) == number)
        with pytest.raises(RequestError) as caught:
            batcher.ask("signature", rows("d"))
        assert caught.value.http_status == 503
        assert caught.value.message == (
            "The batch scheduling queue to which this task was submitted is full; currently 3 batches enqueued and "
            "max_enqueued_batches is 3"
        )
        elsewhere = pool.submit(batcher.ask, "another", rows("e"))  # each signature has a queue of its own
        recorder.go_on.set()
        assert [future.result()["outputs"][0] for future in (first, *others, elsewhere)] == [
            "aa",
            *["bb"] * 3,
            "ee",
        ]


def test_a_request_that_the_graph_refuses_fails_alone(make_batcher):
    recorder = Recorder()
    batcher = make_batcher(recorder, max_batch_size=3, batch_timeout_micros=60_000_000)

    def ask(value):
        try:
            return batcher.ask("signature", rows(value))["outputs"]
        except RequestError as error:
            return error.message

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, ["a", "bad", "c"])) == [["aa"], "a bad text", ["cc"]]
    assert len(recorder.batches[0]) == 3


def test_batches_are_filled_to_the_allowed_sizes(make_batcher):
    recorder = Recorder()
    batcher = make_batcher(recorder, max_batch_size=5, allowed_batch_sizes=[2, 5])
    assert batcher.ask("signature", rows("a", "b", "c")) == {"outputs": ["aa", "bb", "cc"]}
    assert recorder.batches == [["a", "b", "c", "a", "a"]]


def test_rows_of_other_shapes_are_not_merged(make_batcher):
    recorder = Recorder()
    batcher = make_batcher(recorder, max_batch_size=2, batch_timeout_micros=10_000)
    inputs = [{"x": Tensor([[value] * width], (1, width))} for value, width in (("a", 3), ("b", 5))]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda tensors: batcher.ask("signature", tensors), inputs))
    assert answers == [{"outputs": [["a"] * 6]}, {"outputs": [["b"] * 10]}] or len(recorder.batches) == 2


def test_requests_that_wait_are_failed_at_the_end(make_batcher):
    batcher = make_batcher(Recorder(), max_batch_size=3, batch_timeout_micros=60_000_000)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(batcher.ask, "signature", rows("a"))
        wait_until(lambda: batcher._waiting)
        batcher.close()
        with pytest.raises(RequestError, match="The server is stopping"):
            future.result()


def merged(client, name, values, status=200):
    return client.predict({"signature_name": name, "inputs": values}, model="merged", status=status)


def test_a_request_is_at_most_a_batch(client):
    """batching_session.cc"""
    assert merged(client, "serving_default", ["a"] * MOST_ROWS) == {"outputs": ["<a>"] * MOST_ROWS}
    message = f"Task size {MOST_ROWS + 1} is larger than maximum input batch size {MOST_ROWS}"
    assert merged(client, "serving_default", ["a"] * (MOST_ROWS + 1), status=400) == {"error": message}


def test_what_a_batch_cannot_be_made_of(client):
    """batching_util.h, ComputeTensorBatchSize; batching_session.cc, SplitOutputTensors"""
    row = {
        "text": ["a", "b"],
        "numbers": [[1, 2, 3]] * 2,
        "count": [1],
        "large": [1, 2],
        "flag": [True, False],
    }
    assert merged(client, "several", row, status=400) == {
        "error": "Batching Run() input tensors must have equal 0th-dimension size"
    }
    assert merged(client, "summed", [1.0, 2.0], status=400) == {
        "error": "Batched output tensor has 0 dimensions"
    }


def test_merged_rows_share_the_width_of_their_batch(server):
    """tensor::Split in batching_session.cc cuts the first axis alone."""

    def ask(text):
        body = {"signature_name": "widest", "inputs": [text]}
        _, content = ask_once(server[0], "/v1/models/merged:predict", body)
        return json.loads(content)["outputs"][0]

    texts = ["a", "abc", "abcde", "ab", ""]  # as many as fill a batch
    with concurrent.futures.ThreadPoolExecutor(MOST_ROWS) as pool:
        assert list(pool.map(ask, texts)) == [[*text, *[""] * (5 - len(text))] for text in texts]
    assert ask("ab") == ["a", "b"]


def test_a_graph_that_fails_fails_one_request(server):
    def ask(text):
        body = {"signature_name": "careful", "instances": [text]}
        return ask_once(server[0], "/v1/models/merged:predict", body)

    with concurrent.futures.ThreadPoolExecutor(MOST_ROWS) as pool:
        answers = list(pool.map(ask, ["a", "b", "bad", "c", "d"]))
    assert [status for status, _ in answers] == [200, 200, 400, 200, 200]
    assert b"a bad text" in answers[2][1]
    assert answers[4][1] == b'{"predictions": ["d!"]}'
