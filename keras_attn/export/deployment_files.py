"""The text of the files of `write_deployment`.

References: tensorflow_serving/model_servers/main.cc (flags), model_server_config.proto, session_bundle_config.proto,
monitoring_config.proto; https://github.com/compose-spec/compose-spec.
"""

import json
import shlex
import urllib.parse

COMPOSE_FILE = "docker-compose.yml"
README_FILE = "README.md"
METRICS_PATH = "/monitoring/prometheus/metrics"

# The newest that was published when this was written. The README says what is not known of it.
_SERVING_IMAGE = "tensorflow/serving:2.20.0"
_PROMETHEUS_IMAGE = "prom/prometheus:v3.5.0"
_REST = "http://localhost:8501"
# A longer request is a file of its own.
_LONGEST_BODY = 2000

_COMPOSE = """\
# TF Serving with {names}, and a Prometheus that collects its metrics. From this folder:
#   docker compose up --detach --wait
name: {project}
services:
  serving:
    image: {serving_image}
    command:
      # Read again each minute: to roll back, edit models.config.
      - --model_config_file=/config/models.config
      - --model_config_file_poll_wait_seconds=60
      - --allow_version_labels_for_unavailable_models=true
      # Requests are merged as batching_params.pbtxt in each version's folder says.
      - --enable_batching=true
      - --batching_parameters_file=/config/batching.config
      - --enable_per_model_batching_parameters=true
      - --monitoring_config_file=/config/monitoring.config
{xla}    ports:
      # This machine alone can ask: the server has no password. Take 127.0.0.1: away to let others in.
      - "127.0.0.1:8500:8500" # gRPC
      - "127.0.0.1:8501:8501" # REST and metrics
    volumes:
      - type: bind
        source: .
        target: /config
        read_only: true
{mounts}    healthcheck:
      # The image has bash, and no curl.
      test:
        - CMD
        - bash
        - -c
        - |
          for model in {quoted_names}; do
            exec 3<>/dev/tcp/127.0.0.1/8501 || exit 1
            printf 'GET /v1/models/%s HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' "$$model" >&3
            grep -q '"AVAILABLE"' <&3 || exit 1
          done
      interval: 10s
      timeout: 10s
      retries: 3
      start_period: 10m # loading and warming up
    restart: unless-stopped

  prometheus:
    image: {prometheus_image}
    command:
      - --config.file=/etc/prometheus/prometheus.yml
      - --storage.tsdb.path=/prometheus
    ports:
      - "127.0.0.1:9090:9090"
    volumes:
      - type: bind
        source: ./prometheus.yml
        target: /etc/prometheus/prometheus.yml
        read_only: true
      - type: volume
        source: metrics
        target: /prometheus
    depends_on:
      - serving
    restart: unless-stopped

volumes:
  metrics:
"""

_XLA = """\
      # For what was exported with --xla.
      - --xla_cpu_compilation_enabled=true
"""

_MOUNT = """\
      - type: bind
        source: {source}
        target: {target}
        read_only: true
        bind:
          create_host_path: false # a path that is not there is an error
"""

_MODEL = """\
  config {{
    name: {name}
    base_path: {base_path}
    model_platform: "tensorflow"
    model_version_policy {{ {policy} }}
    # Two versions at once, and a label for each, which clients ask for with /v1/models/{quoted}/labels/stable:predict:
    # model_version_policy {{ specific {{ versions: {older} versions: {newer} }} }}
    # version_labels {{ key: "stable" value: {older} }}
    # version_labels {{ key: "canary" value: {newer} }}
  }}
"""

_BATCHING = """\
# The threads that run merged requests, for all models and versions together. How requests are merged is in
# batching_params.pbtxt of each version's folder; a version without that file is served without batching.
thread_pool_name { value: "model_server_batch_threads" }
# As many threads as the machine has cores, unless you say another number:
# num_batch_threads { value: 4 }
"""

_MONITORING = f"""\
# Turns on TF Serving's metrics, at {_REST}{METRICS_PATH}
prometheus_config {{
  enable: true
  path: "{METRICS_PATH}"
}}
"""

_PROMETHEUS = f"""\
global:
  scrape_interval: 15s

scrape_configs:
  - job_name: tensorflow-serving
    metrics_path: {METRICS_PATH} # as in monitoring.config
    static_configs:
      - targets: ["serving:8501"] # the REST port of the service in {COMPOSE_FILE}
"""

_PURPOSES = {
    COMPOSE_FILE: "starts TF Serving and Prometheus",
    "models.config": "which models the server has, and which versions of them",
    "batching.config": "how many threads run merged requests",
    "monitoring.config": "turns the server's metrics on",
    "prometheus.yml": "where Prometheus finds the metrics",
    README_FILE: "how to start, ask, watch and roll back",
}

_README = """\
# {title} with TF Serving

`keras-attn deploy` wrote this folder. Run the commands below in it.

| file | what it is for |
|---|---|
{files}

The models stay where they are and are mounted, read-only:

| model | folder | served |
|---|---|---|
{models}

Relative paths are relative to this folder: move it together with the models. A version's own folder has more files that the server
reads: `batching_params.pbtxt` says how requests are merged, and `assets.extra/tf_serving_warmup_requests` holds requests that run before
the version answers, so that no client waits for slow first answers.

## Start and stop

```bash
docker compose up --detach --wait
docker compose logs serving
docker compose down
```

The first command ends when every model answers. If it fails, the second says why.

The `docker` lines were not run where keras-attn was written. The image is {image}, the newest at that time, and your
TensorFlow may be newer: `keras-attn verify` runs an export in the TensorFlow that you have installed, not in this image. So ask the
server yourself before clients depend on it.

The ports are open to this machine alone, because TF Serving has no password and no encryption. Put a reverse proxy in front of it, or take
`127.0.0.1:` away in docker-compose.yml.
{xla}
## Ask over REST

{requests}

A failed request has an HTTP status of 400 or above, and the body `{{"error": "..."}}`. Text that is not UTF-8 is sent as `{{"b64": "..."}}`.

## Ask over gRPC

`pip install tensorflow-serving-api`, then:

```python
{grpc}
```

## Watch it

`curl {rest}{metrics}` shows the metrics. Prometheus, at http://localhost:9090, collects them:

| question | query |
|---|---|
| requests a second, by status | `sum by (model_name, status) (rate(:tensorflow:serving:request_count[5m]))` |
| 99th percentile of the latency, in microseconds | `histogram_quantile(0.99, sum by (le, model_name) (rate(:tensorflow:serving:request_latency_bucket[5m])))` |
| the wait for a batch, in microseconds | `histogram_quantile(0.99, sum by (le) (rate(:tensorflow:serving:batching_session:queuing_latency_bucket[5m])))` |

## A new version, and back

Export again into the model's folder. The server finds the higher number within a second, loads it, warms it up, and only then unloads
the older one. To check a version before it goes live, export it into another folder, and move it when the check has passed:

```bash
{staging}
```

`RUN` is the run, saved task or checkpoint. The folder `staging` must be on the same disk as the models, so that the server never finds
half a version.{pinned}

To roll back, move the new version's folder away, or name the older version in models.config, which is read each minute:
`model_version_policy {{ specific {{ versions: {version} }} }}`.

models.config also shows how to serve two versions at once, with a label for each. Moving a label back takes effect without loading anything.
"""

_PINNED_NOTE = " A pinned model stays at its versions: name the new one in models.config."

_XLA_NOTE = """
At least one model was exported for XLA. It compiles a few shapes while it starts, so starting takes longer.
"""


def contents(models, *, xla):
    """{name of a file: (its text, what it is for)} of a deployment.

    Args:
        models: List of `DeployedModel`s.
        xla: Boolean, whether the server may compile with XLA.
    """
    bodies = {}
    texts = {
        COMPOSE_FILE: _compose(models, xla),
        "models.config": _models_config(models),
        "batching.config": _BATCHING,
        "monitoring.config": _MONITORING,
        "prometheus.yml": _PROMETHEUS,
        README_FILE: _readme(models, xla, bodies),
    }
    files = {name: (text, _PURPOSES[name]) for name, text in texts.items()}
    files |= {name: (text, "a request that README.md sends") for name, text in bodies.items()}
    return files


def _compose(models, xla):
    names = [urllib.parse.quote(model.name, safe="") for model in models]
    return _COMPOSE.format(
        names=", ".join(model.name for model in models),
        project=_project_name(models),
        serving_image=_SERVING_IMAGE,
        prometheus_image=_PROMETHEUS_IMAGE,
        xla=_XLA if xla else "",
        mounts="".join(map(_mount, models)),
        quoted_names=" ".join(names),
    )


def _project_name(models):
    """Names the containers: with Compose's own choice, the folder's name, a second `deploy` would replace those of the first."""
    words = "-".join(["serve", *[model.name for model in models]]).lower()
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in words)[:60]


def _mount(model):
    target = f"/models/{model.name}"
    if model.is_version:
        target += "/1"
    return _MOUNT.format(source=_compose_text(model.source), target=_compose_text(target))


def _compose_text(text):
    """A string of docker-compose.yml, where `$` begins a variable."""
    return _quoted(text).replace("$", "$$")


def _quoted(text):
    """A string as YAML and the text format of Protocol Buffers take it, without control characters in it."""
    return json.dumps(text, ensure_ascii=False)


def _models_config(models):
    blocks = "".join(map(_model_config, models))
    return f"# The models, read again each minute.\nmodel_config_list {{\n{blocks}}}\n"


def _model_config(model):
    policy = "latest { num_versions: 1 }"
    if model.pinned:
        versions = " ".join(f"versions: {version}" for version in model.pinned)
        policy = f"specific {{ {versions} }}"
    newer = max(_version_number(model), 2)
    return _MODEL.format(
        name=_quoted(model.name),
        base_path=_quoted(f"/models/{model.name}"),
        policy=policy,
        quoted=urllib.parse.quote(model.name, safe=""),
        older=newer - 1,
        newer=newer,
    )


def _version_number(model):
    if model.is_version:
        return 1
    return int(model.version_folder.name)


def _readme(models, xla, bodies):
    names = ", ".join(model.name for model in models)
    files = [
        f"| [{name}]({name}) | {purpose} |" for name, purpose in _PURPOSES.items() if name != README_FILE
    ]
    return _README.format(
        title=names,
        files="\n".join(files),
        models="\n".join(
            f"| {_cell(model.name)} | `{_cell(model.source)}` | {_served(model)} |" for model in models
        ),
        xla=_XLA_NOTE if xla else "",
        requests="\n\n".join(_requests(model, bodies) for model in models),
        grpc=_grpc(models[0]),
        rest=_REST,
        metrics=METRICS_PATH,
        version=_version_number(models[0]),
        image=_SERVING_IMAGE,
        staging=_staging(models),
        pinned=_PINNED_NOTE if any(model.pinned for model in models) else "",
    )


def _staging(models):
    """The commands that check a new version before it is served."""
    growing = [model for model in models if not model.is_version]
    if growing:
        (model, *_) = growing
        staging = f"staging/{model.name}"
        numbers = [int(path.name) for path in model.version_folder.parent.iterdir() if path.name.isdecimal()]
        target = f"{model.source}/{max(numbers) + 1}"
    else:
        staging = "staging/NAME"
        target = "MODELS/NAME/2"
    commands = [
        ["keras-attn", "export", "RUN", staging],
        ["keras-attn", "verify", staging, "--task", "RUN"],
        ["mv", f"{staging}/1", target],
    ]
    return "\n".join(map(shlex.join, commands))


def _cell(text):
    return text.replace("|", "\\|")


def _served(model):
    if model.is_version:
        return "as version 1"
    if model.pinned:
        return f"version {' and '.join(map(str, model.pinned))}"
    return f"the newest version, now {_version_number(model)}"


def _requests(model, bodies):
    declaration = model.declaration or {}
    title = ""
    if "article" in declaration:
        title = f"{declaration['article']} {declaration['title']}. "
    url = f"{_REST}/v1/models/{urllib.parse.quote(model.name, safe='')}"
    parts = [
        f"### {model.name}",
        f"{title}Its state, and its signatures with their inputs and outputs:",
        f"```bash\ncurl {url}\ncurl {url}/metadata\n```",
    ]
    for name, request in model.requests.items():
        parts.append(f"`{name}`{_meaning(request)}:")
        parts.append(f"```bash\n{_curl(model, name, request, f'{url}:predict', bodies)}\n```")
    if declaration.get("takes") == "images":
        parts.append("An image of your own:")
        parts.append(f"""```bash
echo '{{"instances": [{{"b64": "'$(base64 photo.jpg | tr -d '\\n')'"}}]}}' | curl -d @- {url}:predict
```""")
    if (model.version_folder / README_FILE).is_file():
        parts.append(
            "The README.md in the version's folder has the answers to the most common requests, all options and the limits."
        )
    return "\n\n".join(parts)


def _meaning(request):
    meaning = f", {request.meaning}" if request.meaning else ""
    return meaning if request.is_real else f"{meaning} (put values of your own in place of these)"


def _curl(model, signature_name, request, url, bodies):
    (first, *others) = request.inputs.values()
    row = request.inputs if others else first
    body = {"instances": [row]}
    if signature_name != "serving_default":
        body = {"signature_name": signature_name, **body}
    text = json.dumps(body, ensure_ascii=False)
    if len(text) <= _LONGEST_BODY:
        return f"curl -d {shlex.quote(text)} {url}"
    name = f"requests/{model.name}.{signature_name}.json"
    bodies[name] = f"{text}\n"
    return f"curl -d {shlex.quote(f'@{name}')} {url}"


def _grpc(model):
    name, request = next(iter(model.requests.items()))
    lines = [
        "import grpc",
        "import tensorflow as tf",
        "from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc",
        "",
        "request = predict_pb2.PredictRequest()",
        f"request.model_spec.name = {_quoted(model.name)}",
        f"request.model_spec.signature_name = {_quoted(name)}",
    ]
    for input_name, value in request.inputs.items():
        lines.append(
            f"request.inputs[{_quoted(input_name)}].CopyFrom(tf.make_tensor_proto([{_python(value)}]))"
        )
    lines += [
        'stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel("localhost:8500"))',
        "reply = stub.Predict(request, timeout=30)",
        "print({name: tf.make_ndarray(tensor) for name, tensor in reply.outputs.items()})",
    ]
    return "\n".join(lines)


def _python(value):
    """A value of a request as Python says it; bytes that are not UTF-8, an image for instance, as those of a file."""
    if isinstance(value, dict):
        return 'open("photo.jpg", "rb").read()'
    if isinstance(value, str):
        return _quoted(value)
    return repr(value)
