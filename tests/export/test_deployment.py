"""What `keras-attn deploy` writes, read by what reads it: Compose's schema, TF Serving's messages, YAML, bash and curl."""

import base64
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from helpers_markdown import code_blocks
from helpers_serving import running

import keras_attn_cli
from keras_attn.export import (
    read_batching_parameters,
    read_warmup_requests,
    run_saved_model,
    write_deployment,
    write_warmup_requests,
    write_xla_buckets,
)

yaml = pytest.importorskip("yaml", reason="pip install pyyaml")

ROOT = pathlib.Path(__file__).parents[2]
DATES = ROOT / "saved_models" / "dates" / "1"
# Of tensorflow_model_server, from tensorflow_serving/model_servers/main.cc (read on 2026-11-20).
FLAGS = """
    model_config_file model_config_file_poll_wait_seconds allow_version_labels_for_unavailable_models
    enable_batching batching_parameters_file enable_per_model_batching_parameters monitoring_config_file
    xla_cpu_compilation_enabled
""".split()

NAMES = ["dates", "my model", "it's", 'the "best" $HOME', "Übersetzer 翻訳", "a|b{c}", "100%"]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def add_version(folder, number=1):
    """Puts the graph of the repository's export there, without its weights."""
    version = pathlib.Path(folder, str(number))
    version.mkdir(parents=True)
    (version / "assets.extra").mkdir()
    for name in ("saved_model.pb", "assets.extra/task.json", "assets.extra/tf_serving_warmup_requests"):
        (version / name).symlink_to(DATES / name)
    return version


def written(output="deploy"):
    """The files of a deployment: those that are YAML as values, the others as text."""
    files = {path.name: path.read_text("utf-8") for path in pathlib.Path(output).iterdir() if path.is_file()}
    return types.SimpleNamespace(
        compose=yaml.safe_load(files["docker-compose.yml"]),
        prometheus=yaml.safe_load(files["prometheus.yml"]),
        models=files["models.config"],
        monitoring=files["monitoring.config"],
        readme=files["README.md"],
    )


def mounts(files):
    """{target: source} of the models' mounts, as Compose puts them into effect."""
    volumes = files.compose["services"]["serving"]["volumes"]
    assert all(volume["read_only"] for volume in volumes)
    found = {}
    for volume in volumes:
        assert "$" not in f"{volume['target']} {volume['source']}".replace(
            "$$", ""
        )  # a variable of Compose's
        found[volume["target"].replace("$$", "$")] = volume["source"].replace("$$", "$")
    assert found.pop("/config") == "."
    return found


def flags(files):
    words = files.compose["services"]["serving"]["command"]
    return dict(word.removeprefix("--").split("=") for word in words)


def server_config(files):
    protos = pytest.importorskip(
        "tensorflow_serving.config.model_server_config_pb2", reason="pip install tensorflow-serving-api"
    )
    return text_format.Parse(files.models, protos.ModelServerConfig()).model_config_list.config


def requests_in(readme):
    """(model's address, body) of each request that the README sends with curl."""
    for block in code_blocks(readme):
        for line in block.code.splitlines():
            if line.startswith("curl -d"):
                _, _, body, url = shlex.split(line)
                if body.startswith("@"):
                    body = pathlib.Path("deploy", body[1:]).read_text("utf-8")
                yield url, json.loads(body)


def test_compose_reads_its_file(workplace):
    schemas = pytest.importorskip("check_jsonschema.builtin_schemas", reason="pip install check-jsonschema")
    import jsonschema

    for name in NAMES:
        add_version(f"models/{name}")
    write_deployment(["models"])
    validator = jsonschema.validators.validator_for(schemas.get_builtin_schema("vendor.compose-spec"))
    validator(schemas.get_builtin_schema("vendor.compose-spec")).validate(written().compose)


def test_the_server_reads_its_configuration(workplace):
    for name in NAMES:
        add_version(f"models/{name}")
    write_deployment(["models"])
    files = written()
    assert {model.name for model in server_config(files)} == set(NAMES)
    found = mounts(files)
    for model in server_config(files):
        assert model.base_path == f"/models/{model.name}"
        assert model.model_platform == "tensorflow"
        assert model.model_version_policy.latest.num_versions == 1
        assert pathlib.Path("deploy", found[model.base_path]).samefile(f"models/{model.name}")
    uncommented = re.sub(
        r"^( +)model_version_policy .*\n", "", files.models.replace("    # Two", "# Two"), flags=re.M
    ).replace("    # ", "    ")
    labelled = server_config(types.SimpleNamespace(models=uncommented))
    assert len(labelled) == len(NAMES)
    for model in labelled:
        assert list(model.model_version_policy.specific.versions) == [1, 2]
        assert dict(model.version_labels) == {"stable": 1, "canary": 2}


def test_the_files_agree_with_each_other(workplace):
    add_version("models/dates")
    write_deployment("models/dates")
    files = written()
    given = flags(files)
    assert set(given) <= set(FLAGS)
    assert given["enable_batching"] == given["enable_per_model_batching_parameters"] == "true"
    for name, value in given.items():
        if name.endswith("_file"):
            assert pathlib.Path("deploy", value.removeprefix("/config/")).is_file()
    [job] = files.prometheus["scrape_configs"]
    assert f'path: "{job["metrics_path"]}"' in files.monitoring
    [[target]] = [static["targets"] for static in job["static_configs"]]
    service, port = target.split(":")
    assert f"127.0.0.1:{port}:{port}" in files.compose["services"][service]["ports"]
    pathlib.Path("deploy/batching.config").rename("batching_params.pbtxt")
    assert set(read_batching_parameters(".")) == {"thread_pool_name"}


def test_every_signature_has_a_request_with_the_examples_of_the_export(workplace):
    add_version("models/dates")
    add_version("models/my model")
    write_deployment(["models/dates", "models/my model"])
    sent = list(requests_in(written().readme))
    warmup = dict(read_warmup_requests(DATES))
    for name in ("dates", "my%20model"):
        bodies = [body for url, body in sent if url == f"http://localhost:8501/v1/models/{name}:predict"]
        assert [body.get("signature_name", "serving_default") for body in bodies] == list(warmup)
        for body, inputs in zip(bodies, warmup.values(), strict=True):
            [row] = body["instances"]
            values = row if isinstance(row, dict) else {"inputs": row}
            assert set(values) == set(inputs)
            for input_name, value in values.items():
                expected = inputs[input_name][0]
                expected = expected.decode() if isinstance(expected, bytes) else expected.tolist()
                assert value == expected


def test_values_keep_the_digits_that_they_have(workplace):
    version = add_version("models/dates")
    (version / "assets.extra" / "tf_serving_warmup_requests").unlink()
    inputs = {
        "inputs": np.array(["ü", "x"]),
        "p": np.array([0.1, 1e-8], "float32"),
        "ids": np.full((2, 3), -1, "int32"),
        "seeds": np.array([2**40, 1]),
        "flags": np.array([[True, False], [True, True]]),
        "bytes": np.array([b"\xff", b""], object),
    }
    write_warmup_requests(version, "dates", [("translate", inputs)])
    write_deployment(["models/dates"])
    [row] = next(
        body["instances"]
        for _, body in requests_in(written().readme)
        if body.get("signature_name") == "translate"
    )
    assert row == {
        "inputs": "ü",
        "p": 0.1,
        "ids": [-1, -1, -1],
        "seeds": 2**40,
        "flags": [True, False],
        "bytes": {"b64": "/w=="},
    }


def test_a_long_request_is_a_file(workplace):
    version = add_version("models/an image's")
    (version / "assets.extra" / "tf_serving_warmup_requests").unlink()
    image = bytes(range(256)) * 17
    write_warmup_requests(version, "x", [("serving_default", {"inputs": np.array([image], object)})])
    write_deployment(["models/an image's"])
    bodies = [body for _, body in requests_in(written().readme) if "signature_name" not in body]
    assert bodies == [{"instances": [{"b64": base64.b64encode(image).decode()}]}]
    assert [path.name for path in pathlib.Path("deploy/requests").iterdir()] == [
        "an image's.serving_default.json"
    ]


def test_an_export_of_somebody_else_has_placeholders(workplace):
    version = add_version("models/dates")
    shutil.rmtree(version / "assets.extra")
    write_deployment(["models/dates"])
    readme = written().readme
    bodies = {
        body.get("signature_name", "serving_default"): body["instances"] for _, body in requests_in(readme)
    }
    assert bodies["serving_default"] == ["..."]
    [row] = bodies["translate"]
    assert (row["length_penalty"], row["num_beams"], row["stop_token_ids"]) == (0.0, 0, [0] * 8)
    assert "put values of your own" in readme


def test_a_version_that_is_named_is_pinned(workplace):
    for number in (1, 2, 10):
        add_version("models/dates", number)
    write_deployment(["models/dates"])
    assert "the newest version, now 10" in written().readme
    write_deployment(["models/dates/2"], "one")
    [model] = server_config(written("one"))
    assert list(model.model_version_policy.specific.versions) == [2]
    assert mounts(written("one")) == {"/models/dates": "../models/dates"}
    write_deployment(["models/dates/10", "models/dates/2"], "two")
    [model] = server_config(written("two"))
    assert list(model.model_version_policy.specific.versions) == [2, 10]
    os.chdir("models/dates/1")
    write_deployment(["."], "../../../here")
    [model] = server_config(written("../../../here"))
    assert (model.name, list(model.model_version_policy.specific.versions)) == ("dates", [1])
    assert mounts(written("../../../here")) == {"/models/dates": "../models/dates"}


def test_a_graph_without_a_version_is_mounted_as_one(workplace):
    add_version("models/mine").rename("plain")
    write_deployment(["plain"])
    assert mounts(written()) == {"/models/plain/1": "../plain"}
    [model] = server_config(written())
    assert model.base_path == "/models/plain"


def test_relative_paths_move_together_and_absolute_paths_stay(workplace):
    add_version("project/models/dates")
    os.chdir("project")
    write_deployment(["models/dates"], "deep/er")
    os.chdir("..")
    pathlib.Path("project").rename("moved")
    [source] = mounts(written("moved/deep/er")).values()
    assert source == "../../models/dates"
    assert pathlib.Path("moved/deep/er", source).samefile("moved/models/dates")
    write_deployment([workplace / "moved/models/dates"])
    assert list(mounts(written()).values()) == [f"{workplace}/moved/models/dates"]
    os.chdir("moved")
    write_deployment(["models/dates"], workplace / "elsewhere")
    assert list(mounts(written(workplace / "elsewhere")).values()) == [f"{workplace}/moved/models/dates"]
    write_deployment(["models/dates"], "models")
    assert list(mounts(written("models")).values()) == ["./dates"]


def test_a_model_for_xla_turns_the_flag_on(workplace):
    add_version("models/dates")
    write_xla_buckets(add_version("models/dates_xla"), [1, 3], [16])
    write_deployment(["models/dates"])
    assert "xla_cpu_compilation_enabled" not in flags(written())
    write_deployment(["models/dates"], xla=True, overwrite=True)
    assert flags(written())["xla_cpu_compilation_enabled"] == "true"
    assert set(flags(written())) == set(FLAGS)
    write_deployment(["models"], "both")
    assert flags(written("both"))["xla_cpu_compilation_enabled"] == "true"


def test_a_model_for_xla_shows_its_shortest_request(workplace):
    version = add_version("models/dates")
    (version / "assets.extra" / "tf_serving_warmup_requests").unlink()
    requests = [("serving_default", {"inputs": np.array(["ab" * size])}) for size in (1, 3, 5)]
    write_warmup_requests(version, "dates", requests)
    write_deployment(["models/dates"])
    [body] = [body for _, body in requests_in(written().readme) if "signature_name" not in body]
    assert body == {"instances": ["ab"]}


def test_two_deployments_have_containers_of_their_own(workplace):
    for name in ("dates", "Übersetzer 1.0", "x" * 99):
        add_version(f"models/{name}")
    names = set()
    for name in ("dates", "Übersetzer 1.0", "x" * 99):
        write_deployment([f"models/{name}"], name)
        names.add(written(name).compose["name"])
    assert len(names) == 3
    assert all(re.fullmatch("[a-z0-9][a-z0-9_-]{,62}", name) for name in names)


def test_other_users_can_read_the_files(workplace):
    add_version("models/dates")
    older = os.umask(0o077)
    try:
        files = write_deployment(["models/dates"]).files
    finally:
        os.umask(older)
    assert all(pathlib.Path("deploy", name).stat().st_mode & 0o004 for name in files)


def test_what_is_there_is_kept_unless_told(workplace):
    add_version("models/dates")
    add_version("models/mine")
    write_deployment(["models/dates"])
    write_deployment(["models/dates"])
    pathlib.Path("deploy/docker-compose.yml").write_text("mine")
    pathlib.Path("deploy/notes").write_text("mine too")
    with pytest.raises(
        FileExistsError, match=r"^deploy/docker-compose.yml would be replaced. Give --overwrite"
    ):
        write_deployment(["models/dates"])
    assert pathlib.Path("deploy/docker-compose.yml").read_text() == "mine"
    write_deployment(["models"], overwrite=True)
    assert "models/mine" in pathlib.Path("deploy/docker-compose.yml").read_text()
    assert pathlib.Path("deploy/notes").read_text() == "mine too"
    pathlib.Path("file").touch()
    with pytest.raises(OSError, match="file"):
        write_deployment(["models"], "file")


@pytest.mark.parametrize(
    ("marker", "kind", "name"),
    [
        ("mine/translator/translator.json", "run", "mine"),
        ("mine/text_embedder.json", "text embedder", "mine"),
        ("mine/config.json", "checkpoint", "mine"),
    ],
)
def test_what_is_not_exported_is_told_the_command(workplace, marker, kind, name):
    path = pathlib.Path(marker)
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    add_version("mine")  # a stranger's program: it is not served either
    with pytest.raises(FileNotFoundError) as raised:
        write_deployment(["mine"])
    assert str(raised.value) == (
        f"mine is no exported model: it holds {path.relative_to('mine')}, as a {kind} does. "
        f"Export it first: keras-attn export mine saved_models/{name}"
    )
    assert not pathlib.Path("deploy").exists()


def test_the_command_for_a_task_in_a_run_names_the_run(workplace):
    folder = pathlib.Path("runs/my run/translator")
    folder.mkdir(parents=True)
    (folder / "translator.json").write_text("{}")
    with pytest.raises(FileNotFoundError) as raised:
        write_deployment([folder])
    assert str(raised.value).endswith("keras-attn export 'runs/my run/translator' 'saved_models/my run'")


def test_the_readme_checks_a_new_version_before_it_is_served(workplace):
    add_version("models/mine")
    write_deployment(["models/mine"])
    readme = pathlib.Path("deploy/README.md").read_text("utf-8")
    move = "mv staging/mine/1 ../models/mine/2"
    lines = ["keras-attn export RUN staging/mine", "keras-attn verify staging/mine --task RUN", move]
    assert "\n".join(lines) in readme


def test_folders_that_the_server_could_not_serve_are_refused(workplace):
    with pytest.raises(FileNotFoundError, match=r"^nothing does not exist. Check the path."):
        write_deployment(["nothing"])
    pathlib.Path("empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"^There is nothing to serve in empty: .* keras-attn export"):
        write_deployment(["empty"])
    for folder in ("a/mine", "b/mine", "a/x:y"):
        add_version(folder)
    with pytest.raises(
        ValueError, match=r"names. Received: 'mine' for ../a/mine, ../b/mine. Rename a folder"
    ):
        write_deployment(["a/mine", "b/mine"])
    pathlib.Path("yours").symlink_to("b/mine")
    assert write_deployment(["a/mine", "yours"]).models == ("mine", "yours")
    with pytest.raises(ValueError, match=r"must not contain a colon.* Received: 'x:y'"):
        write_deployment(["a/x:y"])
    add_version("a/x\ny")
    with pytest.raises(ValueError, match="without control characters"):
        write_deployment(["a/x\ny"])
    pathlib.Path("a/mine/2").mkdir()
    with pytest.raises(ValueError, match=r"a/mine/2 holds no saved_model.pb. Remove or rename"):
        write_deployment(["a/mine"])
    pathlib.Path("a/mine/2").rmdir()
    pathlib.Path("a/mine/2").symlink_to(workplace / "b/mine/1")
    with pytest.raises(
        ValueError, match=r"a/mine/2 is a link to .*/b/mine/1, where the server's container cannot"
    ):
        write_deployment(["a/mine"])


@pytest.mark.parametrize(
    "name", ["saved_model.pb", "assets.extra/task.json", "assets.extra/tf_serving_warmup_requests"]
)
def test_a_damaged_file_is_named(workplace, name):
    version = add_version("models/dates")
    (version / name).unlink()
    (version / name).write_bytes(b"\xff" * 31)
    with pytest.raises(ValueError, match=name):
        write_deployment(["models/dates"])


def test_the_command_says_what_it_wrote_and_what_comes_next(workplace, capsys):
    add_version("models/my model")
    assert keras_attn_cli.main(["deploy", "models/my model", "--output", "the server"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "the server: TF Serving with my model"
    assert {line.split()[0] for line in lines[1:-1]} == {
        path.name for path in pathlib.Path("the server").iterdir()
    }
    assert lines[-1] == "Next: docker compose -f 'the server/docker-compose.yml' up --detach --wait"
    assert keras_attn_cli.main(["deploy", "models"]) == 0
    assert keras_attn_cli.main(["deploy", "models", "--xla"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert keras_attn_cli.main(["deploy", "models", "--xla", "--overwrite"]) == 0


def test_the_command_needs_no_tensorflow(workplace):
    add_version("models/dates")
    code = """
import sys, keras_attn_cli
assert keras_attn_cli.main(["deploy", "models/dates"]) == 0
assert not {"keras", "tensorflow"} & set(sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


@pytest.fixture(scope="module")
def dates_server(tmp_path_factory):
    """(folder, port): a deployment of the repository's export, and a server that answers as TF Serving does."""
    folder = tmp_path_factory.mktemp("deployed")
    write_deployment([DATES.parent], folder / "deploy")
    with running([DATES.parent]) as (port, _):
        yield folder / "deploy", port


@pytest.mark.extended
def test_the_commands_of_the_readme_are_answered(dates_server):
    folder, port = dates_server
    answers = {}
    for block in code_blocks((folder / "README.md").read_text("utf-8")):
        for line in block.code.splitlines():
            if line.startswith("curl"):
                command = line.replace("localhost:8501", f"127.0.0.1:{port}")
                reply = subprocess.run(
                    ["bash", "-c", f"{command} --noproxy '*' --fail -s"], capture_output=True, check=True
                )
                answers[line] = json.loads(reply.stdout)
    assert len(answers) == 2 + len(read_warmup_requests(DATES))
    [translation] = [
        answer for line, answer in answers.items() if "-d" in line and "signature_name" not in line
    ]
    assert translation == {"predictions": ["2016-07-04"]}


@pytest.mark.extended
def test_the_health_check_tells_whether_every_model_answers(dates_server):
    folder, port = dates_server
    [*_, script] = yaml.safe_load((folder / "docker-compose.yml").read_text())["services"]["serving"][
        "healthcheck"
    ]["test"]
    script = script.replace("$$", "$").replace("8501", str(port))

    def code(script):
        return subprocess.run(["bash", "-c", script], capture_output=True, timeout=30).returncode

    assert code(script) == 0
    assert code(script.replace("in dates;", "in dates dates;")) == 0
    assert code(script.replace("in dates;", "in dates unknown;")) == 1
    assert code(script.replace("in dates;", "in unknown dates;")) == 1
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert code(script.replace(str(port), str(free.getsockname()[1]))) == 1


@pytest.mark.extended
def test_the_python_of_the_readme_asks_over_grpc(dates_server, capsys):
    grpc = pytest.importorskip("grpc", reason="pip install tensorflow-serving-api")
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    def predict(service, request, context):
        inputs = {name: tf.make_ndarray(tensor).tolist() for name, tensor in request.inputs.items()}
        asked = {name: [text.decode() for text in texts] for name, texts in inputs.items()}
        signature_name = request.model_spec.signature_name
        [answer] = run_saved_model(DATES, [{"signature": signature_name, "inputs": asked}])
        reply = predict_pb2.PredictResponse()
        for name, values in answer["outputs"].items():
            reply.outputs[name].CopyFrom(tf.make_tensor_proto(values))
        return reply

    service = type("Service", (prediction_service_pb2_grpc.PredictionServiceServicer,), {"Predict": predict})
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    readme = (dates_server[0] / "README.md").read_text("utf-8")
    [block] = [block for block in code_blocks(readme) if block.language == "python"]
    exec(block.code.replace("localhost:8500", f"127.0.0.1:{port}"), {})
    server.stop(None).wait()
    assert capsys.readouterr().out == "{'outputs': array([b'2016-07-04'], dtype=object)}\n"
