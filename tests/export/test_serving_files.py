"""The files that TF Serving reads beside a SavedModel, against its own protocol buffers."""

import numpy as np
import pytest
import tensorflow as tf

from keras_attn.export import (
    read_batching_parameters,
    read_quantization,
    read_shortlist,
    read_warmup_requests,
    read_xla_buckets,
    write_batching_parameters,
    write_quantization,
    write_shortlist,
    write_warmup_requests,
    write_xla_buckets,
)
from keras_attn.export.serving_files import WARMUP_FILE

REQUESTS = [
    ("serving_default", {"inputs": np.array([b"4 July", "ä".encode(), b"\xff"], object)}),
    (
        "translate",
        {
            "num_beams": np.array([3, 4], "int32"),
            "inputs": np.array(["a", "bc"]),
            "ids": np.full((2, 8), -1, "int32"),
            "p": np.array([1.5, 0.25], "float32"),
        },
    ),
]
# What prediction_log_pb2 of tensorflow-serving-api 2.21.0 serialises these requests to, as requests to `dates`.
OFFICIAL = [
    "323f0a3d0a180a0564617465731a0f73657276696e675f64656661756c7412210a06696e7075747312170807120412020803420634204a"
    "756c794202c3a44201ff",
    "32c3010ac0010a120a0564617465731a097472616e736c61746512550a03696473124e0803120812020802120208082240"
    + 64 * "ff"
    + "12190a06696e70757473120f080712041202080242016142026263121f0a096e756d5f6265616d731212080312041202080222080300"
    "00000400000012170a01701212080112041202080222080000c03f0000803e",
]


@pytest.fixture
def version(tmp_path):
    write_warmup_requests(tmp_path, "dates", REQUESTS)
    return tmp_path


def records(folder):
    return list(tf.data.TFRecordDataset(str(folder / WARMUP_FILE)).as_numpy_iterator())


def test_the_requests_are_the_bytes_of_the_official_messages(version):
    assert [record.hex() for record in records(version)] == OFFICIAL


def test_the_official_messages_read_and_write_the_same(version):
    message = "pip install --no-deps tensorflow-serving-api"
    logs = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2", reason=message)
    for record, (signature_name, inputs) in zip(records(version), REQUESTS, strict=True):
        log = logs.PredictionLog.FromString(record)
        assert log.WhichOneof("log_type") == "predict_log"
        assert log.predict_log.request.model_spec.name == "dates"
        assert log.predict_log.request.model_spec.signature_name == signature_name
        assert set(log.predict_log.request.inputs) == set(inputs)
        assert log.SerializeToString(deterministic=True) == record


def test_what_is_written_is_read(version):
    read = read_warmup_requests(version)
    assert [name for name, _ in read] == ["serving_default", "translate"]
    assert read[0][1]["inputs"].tolist() == [b"4 July", "ä".encode(), b"\xff"]
    assert read[1][1]["inputs"].tolist() == [b"a", b"bc"]
    for name in ("num_beams", "ids", "p"):
        np.testing.assert_array_equal(read[1][1][name], REQUESTS[1][1][name])
        assert read[1][1][name].dtype == REQUESTS[1][1][name].dtype


def test_a_folder_without_the_files(tmp_path):
    assert read_warmup_requests(tmp_path) is None
    assert read_batching_parameters(tmp_path) is None


def test_no_more_requests_than_the_server_takes(tmp_path):
    with pytest.raises(ValueError, match=r"must be at most 1000\. Received: 1001 requests"):
        write_warmup_requests(tmp_path, "dates", [REQUESTS[0]] * 1001)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("length", "Record 0 .* corrupted record"),
        ("content", "Record 1 .* corrupted record"),
        ("cut", "Record 1 .* truncated record"),
        ("no message", "Record 0 .* (corrupt|parsing)"),
        ("another message", "Record 0 .* it is no request to Predict"),
    ],
)
def test_damaged_requests_are_named(version, damage, message):
    path = version / WARMUP_FILE
    content = bytearray(path.read_bytes())
    if damage in ("length", "content"):
        content[3 if damage == "length" else len(content) - 9] ^= 0x80
    path.write_bytes(content[:-20] if damage == "cut" else content)
    if damage.endswith("message"):
        with tf.io.TFRecordWriter(str(path)) as writer:
            # Field 1 of PredictionLog is classify_log.
            writer.write(b"\xff\xff" if damage == "no message" else b"\x0a\x00")
    with pytest.raises(ValueError, match=message):
        read_warmup_requests(version)


def test_batching_parameters_are_read_as_they_were_written(tmp_path):
    write_batching_parameters(tmp_path, 61, batch_timeout_micros=1300, max_enqueued_batches=17)
    assert read_batching_parameters(tmp_path) == {
        "max_batch_size": 61,
        "batch_timeout_micros": 1300,
        "max_enqueued_batches": 17,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_batch_size: 64", "cannot be read"),
        ("max_batch_size { value: many }", "cannot be read"),
        ("max_batch { value: 64 }", 'no field named "max_batch"'),
        (
            "max_batch_size { value: 64 } allowed_batch_sizes: [8, 32]",
            r"must increase and end with max_batch_size=64\. Received: \[8, 32\]",
        ),
        (
            "max_batch_size { value: 64 } allowed_batch_sizes: 64 allowed_batch_sizes: 64",
            "must increase and end with",
        ),
        ("max_batch_size { value: 0 }", "`max_batch_size` in batching_params.pbtxt must be at least 1"),
        ("num_batch_threads { value: -2 }", r"must be at least 1\. Received: -2"),
        ("batch_timeout_micros { value: -1 }", "must be at least 0"),
        ("max_batch_size { value: 4 } allowed_batch_sizes: [0, 4]", "`allowed_batch_sizes` .* at least 1"),
    ],
)
def test_batching_parameters_that_the_server_refuses(tmp_path, text, message):
    (tmp_path / "batching_params.pbtxt").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_batching_parameters(tmp_path)


SHORTLISTS = [
    "[2, 5]",
    '{"anywhere": [2]}',
    '{"anywhere": 2, "of_source": {}}',
    '{"anywhere": ["2"], "of_source": {}}',
    '{"anywhere": [2], "of_source": {"seven": [3]}}',
    '{"anywhere": [2], "of_source": [[3]]}',
    '{"anywhere": [2], "of_source": {}, "more": []}',
    '{"anywhere": [2',
]


@pytest.mark.parametrize(
    ("write", "read", "arguments", "content", "damaged", "message"),
    [
        (
            write_xla_buckets,
            read_xla_buckets,
            ([1, 7], (16, 37)),
            {"batch_sizes": [1, 7], "lengths": [16, 37]},
            ["{", "[]", '{"lengths": [1]}', '{"batch_sizes": 3, "lengths": [5]}'],
            "xla_buckets.json must hold lists `batch_sizes` and `lengths`",
        ),
        (
            write_quantization,
            read_quantization,
            ({"quantization": "int8", "before": ["ä"]},),
            {"quantization": "int8", "before": ["ä"]},
            ['["int8"]', '{"quantization": 8}', '{"quantization": "in'],
            r"assets.extra/quantization.json must hold `quantization`",
        ),
        (
            write_shortlist,
            read_shortlist,
            ([2, 5], {7: [3], 11: []}),
            {"anywhere": [2, 5], "of_source": {"7": [3], "11": []}},
            SHORTLISTS,
            r"assets.extra/shortlist.json must hold lists of tokens",
        ),
    ],
)
def test_what_a_version_says_of_itself(tmp_path, write, read, arguments, content, damaged, message):
    assert read(tmp_path) is None
    path = write(tmp_path, *arguments)
    assert read(tmp_path) == content
    for text in damaged:
        path.write_text(text, "utf-8")
        with pytest.raises(ValueError, match=message):
            read(tmp_path)
