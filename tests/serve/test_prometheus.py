"""The route of Prometheus: read by prometheus_client, counted against what was asked, with TF Serving's names and buckets."""

import concurrent.futures
import math

import pytest
from helpers_serving import MOST_ROWS, ask_once

from keras_attn.serve.errors import CODE_NAMES, HTTP_STATUS, INTERNAL, NOT_FOUND, OK, UNAVAILABLE
from keras_attn.serve.metrics import PATH, Metrics

parser = pytest.importorskip("prometheus_client.parser", reason="pip install prometheus-client")

# The buckets that a TF Serving wrote, for load_latency_by_stage, which is declared as request_latency is.
BUCKETS = """
    10 18 32.4 58.32 104.976 188.957 340.122 612.22 1102 1983.59 3570.47 6426.84 11568.3 20823 37481.3 67466.4 121440 218591
    393464 708235 1.27482e+06 2.29468e+06 4.13043e+06 7.43477e+06 1.33826e+07 2.40887e+07 4.33596e+07 7.80473e+07 1.40485e+08
    2.52873e+08 4.55172e+08 8.19309e+08 1.47476e+09 +Inf
""".split()
REQUESTS = ":tensorflow:serving:request_count"
TIMES = ":tensorflow:serving:request_latency"
RUNS = ":tensorflow:serving:runtime_latency"
WAITS = ":tensorflow:serving:batching_session:queuing_latency"
BATCHES = ":tensorflow:serving:batching_session:wrapped_run_count"


def families(text):
    """{name: family} of a page; the reader appends `_total` to the samples of counters."""
    found = list(parser.text_string_to_metric_families(text))
    assert len({family.name for family in found}) == len(found)
    return {family.name: family for family in found}


def value(text, name, suffix="_total", **labels):
    """A sample's value; 0 where it is not there."""
    samples = families(text)[name].samples
    found = [sample.value for sample in samples if sample.name == name + suffix and sample.labels == labels]
    assert len(found) <= 1
    return found[0] if found else 0


def test_the_text_is_that_of_tf_serving():
    metrics = Metrics()
    metrics.record_load("/models/bert/17", 7.960377)
    metrics.record_load("/models/bert/16", 8.021486)
    metrics.record_request("bert", "predict", OK, 0.000_02)
    lines = metrics.text().splitlines()
    assert lines[:6] == [
        "# TYPE :tensorflow:cc:saved_model:load_attempt_count counter",
        ':tensorflow:cc:saved_model:load_attempt_count{model_path="/models/bert/16",status="success"} 1',
        ':tensorflow:cc:saved_model:load_attempt_count{model_path="/models/bert/17",status="success"} 1',
        "# TYPE :tensorflow:cc:saved_model:load_latency counter",
        ':tensorflow:cc:saved_model:load_latency{model_path="/models/bert/16"} 8021486',
        ':tensorflow:cc:saved_model:load_latency{model_path="/models/bert/17"} 7960377',
    ]
    start = lines.index(f"# TYPE {TIMES} histogram")
    labels = 'model_name="bert",API="predict",entrypoint="REST"'
    assert lines[start + 1 : start + 37] == [
        *(f'{TIMES}_bucket{{{labels},le="{end}"}} {int(number > 1)}' for number, end in enumerate(BUCKETS)),
        f"{TIMES}_sum{{{labels}}} 20",
        f"{TIMES}_count{{{labels}}} 1",
    ]


def test_histograms_add_up():
    metrics = Metrics()
    seconds = [0.000_009, 0.000_010, 0.000_017, 0.5, 2000.0]  # the end of a bucket is the first of the next
    for sample in seconds:
        metrics.record_run("dates", sample)
    labels = {"model_name": "dates", "API": "Predict", "runtime": "TF1"}
    text = metrics.text()
    counts = [value(text, RUNS, "_bucket", **labels, le=end) for end in BUCKETS]
    assert counts[:3] == [1, 3, 3]
    assert counts[BUCKETS.index("393464") : BUCKETS.index("1.27482e+06")] == [3, 4]
    assert counts[-2:] == [4, 5]
    assert value(text, RUNS, "_sum", **labels) == sum(round(sample * 1e6) for sample in seconds)
    assert value(text, RUNS, "_count", **labels) == len(seconds)
    metrics.record_batch([0.0001, 1.0])
    ends = [
        sample.labels["le"] for sample in families(metrics.text())[WAITS].samples if "le" in sample.labels
    ]
    assert len(ends) == 53
    assert ends[:3] == ["100", "120", "144"]
    assert math.isclose(float(ends[-2]), 100 * 1.2**51, rel_tol=1e-5)


def test_requests_that_fail_are_counted_and_not_timed():
    metrics = Metrics()
    for code in (OK, NOT_FOUND, NOT_FOUND, UNAVAILABLE, INTERNAL, 99):
        metrics.record_request("dates", "predict", code, 1.0)
    text = metrics.text()
    counts = {sample.labels["status"]: sample.value for sample in families(text)[REQUESTS].samples}
    assert counts == {"OK": 1, "NOT_FOUND": 2, "UNAVAILABLE": 1, "INTERNAL": 1, "UNKNOWN": 1}
    assert value(text, TIMES, "_count", model_name="dates", API="predict", entrypoint="REST") == 1
    assert set(CODE_NAMES) == {OK, *HTTP_STATUS}


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "Übersetzer", "a,b}", "\udcff", "\\n"])
def test_names_of_strangers_are_values(name):
    metrics = Metrics()
    metrics.record_request(name, "predict", NOT_FOUND, 1.0)
    metrics.text().encode()
    expected = name.replace("\udcff", "?")
    assert value(metrics.text(), REQUESTS, model_name=expected, status="NOT_FOUND") == 1


def test_names_of_strangers_take_no_memory_without_end():
    metrics = Metrics()
    for number in range(1013):
        metrics.record_request(f"model {number}", "predict", OK, 1.0)
    metrics.record_request("model 7", "predict", OK, 1.0)
    lines = metrics.text().splitlines()
    assert sum(line.startswith(f"{REQUESTS}{{") for line in lines) == 1000
    assert sum(line.startswith(f"{TIMES}_count{{") for line in lines) == 1000
    assert f'{REQUESTS}{{model_name="model 7",status="OK"}} 2' in lines


def page(client):
    status, content = client.ask("GET", PATH)
    assert status == 200
    assert client.headers["Content-Type"] == "text/plain"
    return content.decode()


def test_counts_are_those_of_the_requests(client):
    before = page(client)
    for _ in range(3):
        client.predict({"instances": ["a", "b"]})
    client.predict({"instances": [7]}, status=400)
    client.predict({"instances": ["a"]}, model="unknown", status=404)
    client.ask("GET", "/v1/models/plain")
    client.ask("GET", "/v1/models/plain/metadata")
    client.ask("PUT", "/v1/models/plain")
    client.ask("GET", "/monitoring")
    after = page(client)

    def more(name, suffix="_total", **labels):
        return value(after, name, suffix, **labels) - value(before, name, suffix, **labels)

    assert more(REQUESTS, model_name="plain", status="OK") == 5
    assert more(REQUESTS, model_name="plain", status="INVALID_ARGUMENT") == 1
    assert more(REQUESTS, model_name="unknown", status="NOT_FOUND") == 1
    assert more(REQUESTS, model_name="", status="INVALID_ARGUMENT") == 1
    rest = {"model_name": "plain", "entrypoint": "REST"}
    assert more(TIMES, "_count", **rest, API="predict") == 3
    assert more(TIMES, "_count", **rest, API="") == 2
    run = {"model_name": "plain", "API": "Predict", "runtime": "TF1"}
    assert more(RUNS, "_count", **run) == 3
    assert 0 < more(RUNS, "_sum", **run) < more(TIMES, "_sum", **rest, API="predict")
    assert more(BATCHES) == 0


def test_waits_are_those_of_merged_requests(server, client):
    before = page(client)
    body = {"instances": ["a"]}
    with concurrent.futures.ThreadPoolExecutor(MOST_ROWS) as pool:
        replies = [
            pool.submit(ask_once, server[0], "/v1/models/merged:predict", body) for _ in range(MOST_ROWS)
        ]
    assert [reply.result()[0] for reply in replies] == [200] * MOST_ROWS
    after = page(client)
    threads = {"thread_pool_name": "model_server_batch_threads"}
    assert value(after, WAITS, "_count", **threads) - value(before, WAITS, "_count", **threads) == MOST_ROWS
    assert 1 <= value(after, BATCHES) - value(before, BATCHES) <= MOST_ROWS


def test_loads_are_told_by_their_folders(server, client, folders):
    text = page(client)
    for folder in folders:
        path = str(folder / "1")
        assert (
            value(text, ":tensorflow:cc:saved_model:load_attempt_count", model_path=path, status="success")
            == 1
        )
        assert 0 < value(text, ":tensorflow:cc:saved_model:load_latency", model_path=path) < 6e7


def test_the_page_is_not_for_other_sites(client):
    status, _ = client.ask("GET", PATH, headers={"Origin": "http://elsewhere.example"})
    assert status == 403
    assert client.ask("GET", f"{PATH}?x=1")[0] == 200
    assert client.ask("GET", f"{PATH}/x")[0] == 404
