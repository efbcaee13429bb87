"""The configuration of TF Serving and Prometheus: what they read is well-formed, and the files agree with each other."""

import pathlib
import re

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from helpers_markdown import code_blocks

from keras_attn.export import write_deployment

SERVING = pathlib.Path(__file__).parents[2] / "examples" / "serving"
CONFIGURATION = (
    "docker-compose.yml",
    "models.config",
    "batching.config",
    "monitoring.config",
    "prometheus.yml",
)
README = (SERVING / "README.md").read_text(encoding="utf-8")
ROAD = (SERVING.parents[1] / "docs" / "serve.md").read_text(encoding="utf-8")

# Of tensorflow_model_server, from tensorflow_serving/model_servers/main.cc (read on 2026-11-20).
FLAGS = """
    model_config_file model_config_file_poll_wait_seconds allow_version_labels_for_unavailable_models
    enable_batching batching_parameters_file enable_per_model_batching_parameters monitoring_config_file
    xla_cpu_compilation_enabled
""".split()

# The part of model_server_config.proto and of the protos that it imports which is used here: message, fields with
# their numbers and types. Maps are lists of pairs.
MESSAGES = {
    "ModelServerConfig": {"model_config_list": (1, "ModelConfigList")},
    "ModelConfigList": {"config": (1, ["ModelConfig"])},
    "ModelConfig": {
        "name": (1, str),
        "base_path": (2, str),
        "model_platform": (4, str),
        "model_version_policy": (7, "VersionPolicy"),
        "version_labels": (8, ["Label"]),
    },
    "VersionPolicy": {"latest": (100, "Latest"), "all": (101, "All"), "specific": (102, "Specific")},
    "Latest": {"num_versions": (1, int)},
    "All": {},
    "Specific": {"versions": (1, [int])},
    "Label": {"key": (1, str), "value": (2, int)},
    "MonitoringConfig": {"prometheus_config": (1, "PrometheusConfig")},
    "PrometheusConfig": {"enable": (1, bool), "path": (2, str)},
}


@pytest.fixture(scope="module")
def messages():
    file = descriptor_pb2.FileDescriptorProto(
        name="test_serving.proto", package="test_serving", syntax="proto3"
    )
    for message_name, fields in MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for name, (number, kind) in fields.items():
            field = message.field.add(name=name, number=number, label=3 if isinstance(kind, list) else 1)
            (kind,) = kind if isinstance(kind, list) else [kind]
            if isinstance(kind, str):
                field.type, field.type_name = field.TYPE_MESSAGE, f".test_serving.{kind}"
            else:
                field.type = {str: field.TYPE_STRING, int: field.TYPE_INT64, bool: field.TYPE_BOOL}[kind]
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"test_serving.{name}"))
        for name in MESSAGES
    }


def parsed(messages, name, text):
    return text_format.Parse(text, messages[name]())


def test_they_are_what_deploy_writes_for_the_dates_model(tmp_path, monkeypatch):
    (tmp_path / "saved_models").symlink_to(SERVING.parents[1] / "saved_models")
    monkeypatch.chdir(tmp_path)
    files = write_deployment(["saved_models/dates"], "examples/serving").files
    assert set(files) > set(CONFIGURATION)
    for name in CONFIGURATION:
        path = pathlib.Path("examples", "serving", name)
        assert (SERVING / name).read_text("utf-8") == path.read_text("utf-8"), (
            "keras-attn deploy saved_models/dates --output examples/serving --overwrite"
        )


def test_the_road_shows_configurations_that_parse(messages):
    blocks = [block.code for block in code_blocks(ROAD) if "model_version_policy" in block.code]
    assert len(blocks) == 3
    models = [parsed(messages, "ModelServerConfig", code).model_config_list.config[0] for code in blocks]
    for model in models:
        assert (model.name, model.base_path) == ("dates", "/models/dates")
        labelled = {label.value for label in model.version_labels}
        assert labelled <= set(model.model_version_policy.specific.versions)
    assert [list(model.model_version_policy.specific.versions) for model in models] == [[1], [1, 2], [1, 2]]
    assert [{label.key: label.value for label in model.version_labels} for model in models[1:]] == [
        {"stable": 1, "canary": 2},
        {"stable": 2, "canary": 2},
    ]


def test_the_official_messages_read_them_too():
    message = "pip install --no-deps tensorflow-serving-api"
    protos = pytest.importorskip("tensorflow_serving.config.model_server_config_pb2", reason=message)
    texts = [block.code for block in code_blocks(ROAD) if "model_version_policy" in block.code]
    for text in [*texts, (SERVING / "models.config").read_text(encoding="utf-8")]:
        config = text_format.Parse(text, protos.ModelServerConfig())
        assert config.model_config_list.config[0].base_path == "/models/dates"


def test_the_readme_names_every_file():
    for path in SERVING.iterdir():
        if path.is_file() and path.name != "README.md":
            assert f"]({path.name})" in README, path.name


def test_flags_in_the_road_exist():
    flags = set(re.findall(r"--([a-z]+(?:_[a-z]+)+)", ROAD))
    assert flags
    assert flags <= set(FLAGS)
