"""Requests, and what TF Serving answers by its sources: http_rest_api_handler.cc, http_rest_api_util.cc, json_tensor.cc,
get_model_status_impl.cc, server_core.cc, batching_session.cc, classifier.cc, regressor.cc, and libevent for other paths.

docs/local_server.md shows the same table.
"""

import gzip
import json
import re

import pytest

PREDICT = "/v1/models/plain:predict"
ROW = {"text": "a", "numbers": [1, 2.5, 0.1], "count": 7, "large": 2**40, "flag": True}
ANSWER = {
    "text": "a",
    "text_bytes": {"b64": "YQ=="},
    "sums": 3.6,
    "next": 8,
    "large": 2**40,
    "opposite": False,
}


def several(**changes):
    return {"signature_name": "several", "instances": [ROW, {**ROW, **changes}]}


# name: request body, the answer.
ANSWERED = {
    "rows of plain values": ({"instances": ["a", "b c"]}, {"predictions": ["<a>", "<b c>"]}),
    "rows of objects, one input": ({"instances": [{"inputs": "a"}]}, {"predictions": ["<a>"]}),
    "one column": ({"inputs": ["a", "é"]}, {"outputs": ["<a>", "<é>"]}),
    "one named column": ({"inputs": {"inputs": ["a"]}}, {"outputs": ["<a>"]}),
    "no rows in a column": ({"inputs": []}, {"outputs": []}),
    "base64 in rows": ({"instances": [{"b64": "w6k="}, "x"]}, {"predictions": ["<é>", "<x>"]}),
    "base64 without padding, with white space": (
        {"instances": [{"b64": " w6\nk"}]},
        {"predictions": ["<é>"]},
    ),
    "base64 in a column": ({"inputs": ["x", {"b64": "w6k="}]}, {"outputs": ["<x>", "<é>"]}),
    "base64 under the input's name": ({"instances": [{"inputs": {"b64": "eA=="}}]}, {"predictions": ["<x>"]}),
    "signature_name": ({"signature_name": "serving_default", "inputs": ["a"]}, {"outputs": ["<a>"]}),
    "an empty signature_name": ({"signature_name": "", "inputs": ["a"]}, {"outputs": ["<a>"]}),
    "unknown keys are ignored": ({"instances": ["a"], "more": 1}, {"predictions": ["<a>"]}),
    "several inputs and outputs in rows": (
        several(text="b", flag=False),
        {"predictions": [ANSWER, {**ANSWER, "text": "b", "text_bytes": {"b64": "Yg=="}, "opposite": True}]},
    ),
    "several columns": (
        {
            "signature_name": "several",
            "inputs": {**{name: [value] for name, value in ROW.items()}, "more": 1},
        },
        {"outputs": {name: [value] for name, value in ANSWER.items()}},
    ),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_what_is_answered(client, name):
    body, expected = ANSWERED[name]
    assert client.predict(body) == expected
    assert client.headers["Content-Type"] == "application/json"


WRONG_TYPE = "is not of expected type:"
ELEMENT = "Failed to process element:"
INVALID = "of 'instances' list. Error: INVALID_ARGUMENT:"


def pretty(value):
    return json.dumps(value, indent=4)


# The request's body and the error, with status 400. All from json_tensor.cc, but for the signature's name.
REFUSED = [
    (b"", "JSON Parse error: The document is empty"),
    (b" \n", "JSON Parse error: The document is empty. at offset: 2"),
    (b"instances = [1, 2]", "JSON Parse error: Invalid value. at offset: 0"),
    (b'{"instances": ["a"', "JSON Parse error: Missing a comma or ] after an array element. at offset: 18"),
    (
        b'{"inputs": ["{"] "x": 1}',
        "JSON Parse error: Missing a comma or } after an object member. at offset: 17",
    ),
    (
        b'{"instances" ["a"]}',
        "JSON Parse error: Missing a colon after a name of object member. at offset: 13",
    ),
    (b'{instances: ["a"]}', "JSON Parse error: Missing a name for object member. at offset: 1"),
    (b"{} {}", "JSON Parse error: The document root must not be followed by other values. at offset: 3"),
    (b'{"\xc3\xa9": ["a\\q"]}', "JSON Parse error: Invalid escape character in string. at offset: 10"),
    (b'{"a": "\\ud800x"}', "JSON Parse error: The surrogate pair in string is invalid. at offset: 7"),
    (b'{"inputs": [1, 2e999]}', "JSON Parse error: Number too big to be stored in double. at offset: 15"),
    (
        b'{"inputs": [%s]}' % (b"7" * 5000),
        "JSON Parse error: Number too big to be stored in double. at offset: 12",
    ),
    (b'["a"]', 'JSON Value: [\n    "a"\n] Is not object'),
    ({}, "Missing 'inputs' or 'instances' key"),
    ({"instances": []}, f"JSON Value: {pretty({'instances': []})} No values in 'instances' array"),
    (
        {"instances": "a"},
        f"JSON Value: {pretty({'instances': 'a'})} Excepting 'instances' to be an list/array",
    ),
    (
        {"instances": ["a"], "inputs": ["a"]},
        f"JSON Value: {pretty({'instances': ['a'], 'inputs': ['a']})} Not formatted correctly expecting only one of "
        "'inputs' or 'instances' keys to exist ",
    ),
    (
        {"signature_name": 100},
        f"JSON Value: {pretty({'signature_name': 100})} not formatted correctly. 'signature_name' key must be a string "
        "value.",
    ),
    # http_rest_api_handler.cc, GetInfoMap
    ({"signature_name": "x", "inputs": []}, 'Serving signature name: "x" not found in signature def'),
    ({"instances": [7]}, f"{ELEMENT} 0 {INVALID} JSON Value: 7 Type: Number {WRONG_TYPE} string"),
    ({"instances": ["a", None]}, f"{ELEMENT} 1 {INVALID} JSON Value: null Type: Null {WRONG_TYPE} string"),
    ({"instances": [True]}, f"{ELEMENT} 0 {INVALID} JSON Value: true Type: True {WRONG_TYPE} string"),
    ({"inputs": ["a", 1.5]}, f"JSON Value: 1.5 Type: Number {WRONG_TYPE} string"),
    ({"instances": [{"b64": "?"}]}, f"{ELEMENT} 0 {INVALID} Unable to base64 decode"),
    ({"inputs": [{"b64": 1}]}, f"JSON Value: {pretty({'b64': 1})} not formatted correctly for base64 data"),
    ({"instances": ["a", {"inputs": "a"}]}, "Expecting value/list but got object at item 1 of input list"),
    ({"instances": [{"inputs": "a"}, "a"]}, "Expecting object but got list at item 1 of input list"),
    (
        {"instances": [{"other": "a"}]},
        f"{ELEMENT} 0 key: other {INVALID} JSON object: does not have named input: other",
    ),
    ({"instances": [{}]}, f"{ELEMENT} 0 of 'instances' list. JSON object: {{}} must only have keys: inputs"),
    ({"instances": [["a"], ["a", "b"]]}, f"{ELEMENT} 1 {INVALID} Expecting tensor size: 1 but got: 2"),
    ({"instances": [["a"], "a"]}, f"{ELEMENT} 1 {INVALID} Expecting shape [1] but got: []"),
    ({"inputs": {"other": ["a"]}}, "Missing named input: inputs in 'inputs' object."),
    (
        {"inputs": [["a"], "b"]},
        'JSON Value: "b" found at incorrect level: 2 in the JSON DOM. Expected at level: 2',
    ),
    ({"inputs": ["a", ["b"]]}, "Encountered list at unexpected level: 1 expected < 1"),
    ({"inputs": [["a"], ["b", "c"]]}, "Encountered list at unexpected size: 2 at level: 1 expected size: 1"),
    (
        {"signature_name": "several", "instances": ["a"]},
        "instances is a plain list, but expecting list of objects as multiple input tensors required as per "
        "tensorinfo_map",
    ),
    (
        {"signature_name": "several", "inputs": ["a"]},
        "inputs is a plain value/list, but expecting an object as multiple input tensors required as per tensorinfo_map",
    ),
    (
        {"signature_name": "several", "instances": [{"text": "a"}]},
        f"{ELEMENT} 0 of 'instances' list. JSON object: {pretty({'text': 'a'})} must only have keys: "
        "count,flag,large,numbers,text",
    ),
    (
        several(numbers=[1, 2, "3"]),
        f'{ELEMENT} 1 key: numbers {INVALID} JSON Value: "3" Type: String {WRONG_TYPE} float',
    ),
    (
        several(numbers=[1, 2, 2**24]),
        f"{ELEMENT} 1 key: numbers {INVALID} Cannot convert JSON value: 16777216 to float without loss of precision.",
    ),
    (several(count=1.0), f"{ELEMENT} 1 key: count {INVALID} JSON Value: 1.0 Type: Number {WRONG_TYPE} int32"),
    (
        several(count=2**31),
        f"{ELEMENT} 1 key: count {INVALID} JSON Value: {2**31} Type: Number {WRONG_TYPE} int32",
    ),
    (
        several(large=2**63),
        f"{ELEMENT} 1 key: large {INVALID} JSON Value: {2**63} Type: Number {WRONG_TYPE} int64",
    ),
    (several(flag=1), f"{ELEMENT} 1 key: flag {INVALID} JSON Value: 1 Type: Number {WRONG_TYPE} bool"),
    # TF Serving leaves the shape to the graph, whose error names an op.
    ({"inputs": "a"}, "Input inputs must have shape [-1] (-1 for any size). Received: shape []."),
    ({"inputs": [["a"]]}, "Input inputs must have shape [-1] (-1 for any size). Received: shape [1,1]."),
    # MakeRowFormatJsonFromTensors
    (several(numbers=[1, 2]), f"{ELEMENT} 1 key: numbers {INVALID} Expecting tensor size: 3 but got: 2"),
]


@pytest.mark.parametrize(("body", "message"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_is_refused(client, body, message):
    assert client.predict(body, status=400) == {"error": message}
    assert client.headers["Content-Type"] == "application/json"


ROWS = {"instances": ["a"]}
STATUS = {
    "model_version_status": [
        {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    ]
}
EXAMPLES = {"examples": [{"x": 1}]}
# method, path, body, status, answer or error.
ROUTES = [
    ("POST", "/v1/models/plain/versions/1:predict", ROWS, 200, {"predictions": ["<a>"]}),
    ("POST", "/V1/Models/plain:PREDICT", ROWS, 200, {"predictions": ["<a>"]}),  # (?i)
    ("POST", "/v1/models/%70lain:predict", ROWS, 200, {"predictions": ["<a>"]}),  # DecodeArg
    # basic_manager.cc; manager.h, ServableRequest::DebugString
    ("POST", "/v1/models/x:predict", ROWS, 404, "Servable not found for request: Latest(x)"),
    ("POST", "/v1/models/x:predict", b"", 400, "JSON Parse error: The document is empty"),
    (
        "POST",
        "/v1/models/plain/versions/7:predict",
        ROWS,
        404,
        "Servable not found for request: Specific(plain, 7)",
    ),
    # server_core.cc, GetModelVersionForLabel
    (
        "POST",
        "/v1/models/plain/labels/stable:predict",
        ROWS,
        400,
        "Unrecognized servable version label: stable",
    ),
    ("GET", "/v1/models/plain", b"", 200, STATUS),
    ("GET", "/v1/models/plain/versions/1", b"", 200, STATUS),
    ("GET", "/v1/models/plain/labels/stable", b"", 200, STATUS),  # get_model_status_impl.cc reads no label
    ("GET", "/v1/models/x", b"", 404, "Could not find any versions of model x"),
    ("GET", "/v1/models/plain?x=1", b"", 404, "Could not find any versions of model plain?x=1"),
    ("GET", "/v1/models/plain/versions/7", b"", 404, "Could not find version 7 of model plain"),
    ("GET", "/v1/models/x/metadata", b"", 404, "Servable not found for request: Latest(x)"),
    ("GET", "/v1/models/plain/labels/a/metadata", b"", 400, "Unrecognized servable version label: a"),
    ("GET", "/v1/models", b"", 400, "Missing model name in request."),
    # http_rest_api_handler_test.cc, UnsupportedApiCalls
    ("GET", "/v1/foo", b"", 400, "Malformed request: GET /v1/foo"),
    ("GET", PREDICT, b"", 400, f"Malformed request: GET {PREDICT}"),
    ("PUT", PREDICT, ROWS, 400, f"Malformed request: PUT {PREDICT}"),
    ("OPTIONS", PREDICT, b"", 400, f"Malformed request: OPTIONS {PREDICT}"),
    ("POST", "/v1/models", b"", 400, "Malformed request: POST /v1/models"),
    ("POST", "/v1/models/plain", ROWS, 400, "Malformed request: POST /v1/models/plain"),
    ("POST", "/v1/models/plain/metadata", b"", 400, "Malformed request: POST /v1/models/plain/metadata"),
    (
        "POST",
        "/v1/models/plain/versions/one:predict",
        ROWS,
        400,
        "Malformed request: POST /v1/models/plain/versions/one:predict",
    ),
    (
        "GET",
        f"/v1/models/plain/versions/{'7' * 5000}",
        b"",
        400,
        f"Failed to convert version: {'7' * 5000} to numeric.",
    ),
    # TF Serving sends this one with an empty body.
    (
        "POST",
        f"/v1/models/plain/versions/{2**64}:predict",
        ROWS,
        400,
        f"Failed to convert version: {2**64} to numeric.",
    ),
    # classifier.cc and regressor.cc; FillClassifyRegressRequestFromJson
    (
        "POST",
        "/v1/models/plain:regress",
        EXAMPLES,
        400,
        "Expected output Tensor of DT_FLOAT.  Got: DT_STRING",
    ),
    ("POST", "/v1/models/x:regress", EXAMPLES, 404, "Servable not found for request: Latest(x)"),
    (
        "POST",
        "/v1/models/plain:classify",
        {"signature_name": "several", **EXAMPLES},
        400,
        "Expected one input Tensor.",
    ),
    (
        "POST",
        "/v1/models/plain:classify",
        {"signature_name": "x", **EXAMPLES},
        400,
        "No signature was found with the name: x",
    ),
    (
        "POST",
        "/v1/models/plain:classify",
        {},
        400,
        "JSON Value: {} When method is classify, key 'examples' is expected and was not found",
    ),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "expected"), ROUTES)
def test_routes(client, method, path, body, status, expected):
    found, content = client.ask(method, path, body)
    answer = json.loads(content)
    assert (found, answer) == (status, {"error": expected} if isinstance(expected, str) else expected)


def test_classify_names_the_outputs_that_a_signature_must_have(client):
    status, content = client.ask("POST", "/v1/models/plain:classify", EXAMPLES)
    message = json.loads(content)["error"]
    assert status == 400
    assert message.startswith(
        'Expected classification signature outputs to contain at least one of "classes" or "scores". Signature was: '
    )
    assert 'method_name: "tensorflow/serving/predict"' in message


def test_metadata_is_the_signatures_as_the_graph_has_them(client):
    status, content = client.ask("GET", "/v1/models/plain/metadata")
    answer = json.loads(content)
    assert status == 200
    assert answer["model_spec"] == {"name": "plain", "signature_name": "", "version": "1"}
    found = answer["metadata"]["signature_def"]["signature_def"]
    assert set(found) == {"__saved_model_init_op", "serving_default", "several"}
    assert found["several"]["inputs"]["numbers"] == {
        "dtype": "DT_FLOAT",
        "tensor_shape": {
            "dim": [{"size": "-1", "name": ""}, {"size": "3", "name": ""}],
            "unknown_rank": False,
        },
        "name": "several_numbers:0",
    }
    assert found["several"]["method_name"] == "tensorflow/serving/predict"


def test_bytes_that_are_not_utf8_pass_through(client):
    """RapidJSON validates no encoding: neither the request's nor the answer's."""
    status, content = client.ask("POST", PREDICT, b'{"instances": ["caf\xe9", {"b64": "//4="}]}')
    assert (status, content) == (200, b'{"predictions": ["<caf\xe9>", "<\xff\xfe>"]}')
    status, content = client.ask("POST", PREDICT, b'{"inputs": "\xe9"}')
    assert status == 400
    status, content = client.ask("POST", PREDICT, b'{"instances": [], "\xe9": 1}')
    assert status == 400
    assert b'\\"\xe9\\": 1' in content


def test_a_byte_order_mark_and_an_escaped_pair_are_read(client):
    assert client.predict(b'\xef\xbb\xbf{"inputs": ["\\ud83d\\ude00\\\\ud800"]}') == {
        "outputs": ["<😀\\ud800>"]
    }


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_lacks_are_read_and_written(client, value):
    body = json.dumps(several()).replace("2.5", value)
    answer = client.predict(body.encode())
    assert [repr(row["sums"]) for row in answer["predictions"]] == [repr(float(value))] * 2


def test_float32_has_the_digits_that_it_needs(client):
    """WriteDecimal: six where they give the number back, nine otherwise."""
    body = {
        "signature_name": "several",
        "instances": [{**ROW, "numbers": [x, 0, 0]} for x in (0.1, 1 / 3, 1e-8)],
    }
    status, content = client.ask("POST", PREDICT, body)
    assert status == 200
    assert re.findall(rb'"sums": ([^,]+)', content) == [b"0.1", b"0.333333343", b"1e-08"]


@pytest.mark.parametrize("depth", [300, 900, 990, 100_000])
def test_deep_nesting_is_refused(client, depth):
    for body in (
        b'{"inputs": ' + b"[" * depth + b"]" * depth + b"}",
        b'{"a": ' * depth + b"1" + b"}" * depth,
    ):
        status, content = client.ask("POST", PREDICT, body)
        assert (status, set(json.loads(content))) == (400, {"error"})


def test_a_packed_body_is_unpacked(client):
    body = gzip.compress(json.dumps(ROWS).encode())
    assert client.ask("POST", PREDICT, body, {"Content-Encoding": "gzip"})[0] == 200
    for damaged in (body[:-9], b"x"):
        status, content = client.ask("POST", PREDICT, damaged, {"Content-Encoding": "gzip"})
        assert status == 400
        assert json.loads(content) == {"error": "JSON Parse error: The document is empty"}


def test_other_paths_are_not_found(client):
    status, content = client.ask("GET", "/nothing")
    assert status == 404
    assert b"<H1>Not Found</H1>" in content
