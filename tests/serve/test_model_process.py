"""The process of a model: what happens when it dies, and that it never outlives the server."""

import json
import os
import signal
import subprocess
import threading
import time

import pytest
from helpers_serving import ask_once

from keras_attn.export import runner_command
from keras_attn.serve.errors import RequestError
from keras_attn.serve.folders import find_version
from keras_attn.serve.model_process import ModelProcess
from keras_attn.serve.models import ServedModel
from keras_attn.serve.rest import Call
from keras_attn.serve.tensors import Tensor

SLOW = {"signature_name": "slow", "inputs": [2000.0]}


def is_alive(process_id):
    try:
        os.kill(process_id, 0)
        with open(f"/proc/{process_id}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_request_during_which_the_process_dies_is_answered_and_the_next_one_works(server, client):
    port, models = server
    process = models.find("merged").process
    older = process.process_id
    found = []

    def ask():
        found.append(ask_once(port, "/v1/models/merged:predict", SLOW))

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: process._pending)
    os.kill(older, signal.SIGKILL)
    thread.join()
    [(status, content)] = found
    assert status == 503
    assert b"ended with code -9 during this request" in content
    assert client.predict({"instances": ["a"]}, model="merged") == {"predictions": ["<a>"]}
    assert process.process_id != older


@pytest.mark.extended
def test_a_slow_request_does_not_keep_another_waiting(server, client):
    port, models = server
    thread = threading.Thread(target=lambda: ask_once(port, "/v1/models/merged:predict", SLOW))
    thread.start()
    process = models.find("merged").process
    wait_until(lambda: process._pending)
    assert client.predict({"instances": ["a"]}, model="merged") == {"predictions": ["<a>"]}
    assert process._pending
    os.kill(process.process_id, signal.SIGKILL)  # nobody waits for the slow one
    thread.join()


@pytest.mark.extended
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux, to be kept to one core")
def test_nor_on_a_single_core(folders):
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        process = ModelProcess(find_version(folders[1]).folder, False, 2)
    finally:
        os.sched_setaffinity(0, cores)

    def ask():
        with pytest.raises(RequestError):  # closed before it answers
            process.run("slow", {"inputs": [2000.0]})

    slow = threading.Thread(target=ask)
    slow.start()
    wait_until(lambda: process._pending)
    assert process.run("summed", {"inputs": [1.0, 2.0]})["outputs"] == 3.0
    assert process._pending
    process.close()
    slow.join()


@pytest.mark.extended
def test_closing_ends_the_process_and_fails_what_it_was_at(folders):
    process = ModelProcess(find_version(folders[1]).folder, False, 2)
    failed = []

    def ask():
        try:
            process.run("slow", {"inputs": [2000.0]})
        except RequestError as error:
            failed.append(error.http_status)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: process._pending)
    process.close()
    thread.join()
    assert failed == [503]
    assert not is_alive(process.process_id)
    with pytest.raises(RequestError, match="The server is stopping"):
        process.run("serving_default", {"inputs": ["a"]})


@pytest.mark.extended
def test_a_model_that_is_closed_keeps_nobody_waiting(folders):
    model = ServedModel(find_version(folders[1]))
    answers = []

    def ask():
        try:
            model.ask(Call("slow", {"inputs": Tensor([2000.0], (1,))}, is_in_rows=False))
        except RequestError as error:
            answers.append(error.http_status)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: model.process._pending)
    start = time.monotonic()
    model.close()
    thread.join()
    assert answers == [503]
    assert time.monotonic() - start < 10


@pytest.mark.extended
def test_the_process_ends_when_its_pipe_is_closed(folders):
    command = runner_command(find_version(folders[0]).folder, False, 1, "--stay")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert json.loads(process.stdout.readline()) == {"ready": True}
        request = {"id": 7, "signature": "serving_default", "inputs": {"inputs": ["a", {"b64": "/w=="}]}}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        assert answer == {"id": 7, "outputs": {"outputs": ["<a>", "<\udcff>"]}}
        process.stdin.close()
        assert process.wait(20) == 0


def test_a_model_that_does_not_load_is_told(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ChildProcessError, match="Cannot load a SavedModel from"):
        ModelProcess(tmp_path, False, 1)
