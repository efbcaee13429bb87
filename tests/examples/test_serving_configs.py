"""The configuration of TF Serving and Prometheus: what they read is well-formed, and the files agree with each other."""

import pathlib
import re
import shutil

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from helpers_markdown import code_blocks

from keras_attn.export import read_batching_parameters

SERVING = pathlib.Path(__file__).parents[2] / "examples" / "serving"
README = (SERVING / "README.md").read_text(encoding="utf-8")

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


def read_yaml(name):
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    return yaml.safe_load((SERVING / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def services():
    compose = read_yaml("docker-compose.yml")
    assert set(compose) == {"services"}
    return compose["services"]


def test_the_server_is_started_with_flags_that_it_has(services):
    flags = dict(word.removeprefix("--").split("=") for word in services["serving"]["command"])
    assert set(flags) <= set(FLAGS)
    assert flags["enable_batching"] == flags["enable_per_model_batching_parameters"] == "true"
    for name, value in flags.items():
        if name.endswith("_file"):
            assert value.startswith("/config/")
            assert (SERVING / value.removeprefix("/config/")).is_file()


def test_the_volumes_are_folders_and_files_of_the_repository(services):
    mounted = {}
    for service in services.values():
        for volume in service["volumes"]:
            source, target, mode = volume.split(":")
            assert mode == "ro"
            assert (SERVING / source).exists()
            mounted[target] = (SERVING / source).resolve()
    assert mounted["/models"] == SERVING.parents[1] / "saved_models"
    assert mounted["/config"] == SERVING
    assert "--config.file=/etc/prometheus/prometheus.yml" in services["prometheus"]["command"]
    assert mounted["/etc/prometheus/prometheus.yml"] == SERVING / "prometheus.yml"


def test_prometheus_asks_where_the_server_answers(messages, services):
    (job,) = read_yaml("prometheus.yml")["scrape_configs"]
    config = parsed(messages, "MonitoringConfig", (SERVING / "monitoring.config").read_text(encoding="utf-8"))
    assert config.prometheus_config.enable
    assert job["metrics_path"] == config.prometheus_config.path
    ((target,),) = [static["targets"] for static in job["static_configs"]]
    service, port = target.split(":")
    assert f"{port}:{port}" in services[service]["ports"]


def test_the_common_batching_file_holds_the_threads_alone(tmp_path):
    shutil.copy(SERVING / "batching.config", tmp_path / "batching_params.pbtxt")
    parameters = read_batching_parameters(tmp_path)
    assert set(parameters) == {"num_batch_threads"}
    assert parameters["num_batch_threads"] >= 1


def test_models_config_is_a_list_of_models(messages):
    config = parsed(messages, "ModelServerConfig", (SERVING / "models.config").read_text(encoding="utf-8"))
    (model,) = config.model_config_list.config
    assert (model.name, model.base_path, model.model_platform) == ("dates", "/models/dates", "tensorflow")


def test_the_readme_shows_configurations_that_parse(messages):
    blocks = [block.code for block in code_blocks(README) if "model_version_policy" in block.code]
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
    texts = [block.code for block in code_blocks(README) if "model_version_policy" in block.code]
    for text in [*texts, (SERVING / "models.config").read_text(encoding="utf-8")]:
        config = text_format.Parse(text, protos.ModelServerConfig())
        assert config.model_config_list.config[0].base_path == "/models/dates"


def test_the_readme_names_every_file():
    for path in SERVING.iterdir():
        if path.is_file() and path.name != "README.md":
            assert f"]({path.name})" in README, path.name


def test_flags_in_the_readme_exist():
    flags = set(re.findall(r"--([a-z]+(?:_[a-z]+)+)", README))
    assert flags
    assert flags <= {*FLAGS, "file_system_poll_wait_seconds"}
