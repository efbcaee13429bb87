"""The README of an export: its requests, its answers and its limits."""

import datetime
import importlib.metadata
import json
import shlex
import urllib.parse

import numpy as np

from keras_attn import __version__


def model_readme(bundle, requests=None, in_python=None):
    """The text of the README of a `Bundle`; the parts about requests are for texts, unless others are given."""
    parts = [
        _head(bundle),
        _xla(bundle.buckets) if bundle.buckets else "",
        requests or _requests(bundle),
        in_python or _in_python(bundle),
        _signatures(bundle),
        _limits(bundle),
        _origin(bundle),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _head(bundle):
    return f"""
# {bundle.model_name}

{bundle.signatures.description} The answers below are
those that this export gave when it was written.
"""


def _xla(buckets):
    batch_sizes, lengths = (", ".join(map(str, sizes)) for sizes in (buckets.batch_sizes, buckets.lengths))
    return f"""
**This model must be compiled with XLA**, which a stock server has switched off: start it with
`--xla_cpu_compilation_enabled`. Batches are filled up to {batch_sizes} texts and to {lengths} tokens inside the graph,
larger batches are cut into several, and the warm-up file has a request for each of these
{len(buckets.batch_sizes) * len(buckets.lengths)} shapes, so that all of them are compiled before the server calls
the version available.
"""


def _requests(bundle):
    shown = [name for name in bundle.signatures.all() if name in bundle.signatures.shown]
    requests = "\n\n".join(_request(bundle, name) for name in shown)
    return f"""
## Requests over REST

`serving_default` has one input and one output, so `instances` and `predictions` are plain lists. A signature with
several takes and gives an object for each text, and every input must be there: the options below have their neutral
values. Text that is not UTF-8 is sent as `{{"b64": "..."}}`.

{requests}
"""


def _request(bundle, signature_name):
    inputs = bundle.inputs(signature_name, bundle.examples[: bundle.signatures.shown[signature_name]])
    body = {"instances": rows(inputs)}
    if signature_name != "serving_default":
        body = {"signature_name": signature_name, **body}
    predictions = {"predictions": cut(rows(bundle.ask(signature_name, inputs)))}
    return f"""
```bash
curl -d {shlex.quote(json.dumps(body, ensure_ascii=False))} {url(bundle)}
```

```json
{json.dumps(predictions, ensure_ascii=False)}
```
""".strip()


def url(bundle):
    return f"http://localhost:8501/v1/models/{urllib.parse.quote(bundle.model_name)}:predict"


def rows(named):
    """Arrays by name in REST form: an object for each text, or just the value if there is one array."""
    columns = [_plain(array) for array in named.values()]
    if len(columns) == 1:
        return columns[0]
    return [dict(zip(named, row)) for row in zip(*columns)]


def _plain(array):
    """Nested lists; text as str, and floats with the digits that float32 has."""
    if array.dtype.hasobject:
        array = np.vectorize(lambda text: text.decode() if isinstance(text, bytes) else text, [object])(array)
    elif array.dtype.kind == "f":
        array = np.vectorize(lambda value: float(f"{value:.6g}"), [float])(array)
    return array.tolist()


def _in_python(bundle):
    inputs = bundle.inputs("serving_default", bundle.examples[:1])
    outputs = bundle.ask("serving_default", inputs)["outputs"]
    predictions = cut(_plain(outputs))
    arguments = ", ".join(f"{name}=tf.constant({_quoted(_plain(texts))})" for name, texts in inputs.items())
    values = 'answer["outputs"].numpy()'
    plain = f"[text.decode() for text in {values}]" if outputs.dtype.hasobject else f"{values}.tolist()"
    return f"""
## From Python

With the standard library, from a server:

```python
import json
import urllib.request

body = json.dumps({{"instances": {_quoted(rows(inputs))}}}).encode()
with urllib.request.urlopen("{url(bundle)}", body) as reply:
    print(json.load(reply)["predictions"])  # {predictions!r}
```

In this folder, without a server:

```python
import tensorflow as tf
import tensorflow_text  # the ops of its tokenizers

model = tf.saved_model.load(".")
answer = model.signatures["serving_default"]({arguments})
print({plain})  # {predictions!r}
```
"""


def _quoted(value):
    """Strings in double quotes, as formatters of Python write them."""
    return json.dumps(value, ensure_ascii=False)


def cut(value):
    """Nested values in which vectors end after three numbers: `[0.1, 0.2, 0.3, "..."]`."""
    if isinstance(value, dict):
        return {name: cut(part) for name, part in value.items()}
    if not isinstance(value, list):
        return value
    is_vector = len(value) > 8 and all(isinstance(number, float) for number in value)
    return [*value[:3], "..."] if is_vector else [cut(part) for part in value]


def _signatures(bundle):
    signatures, neutral = bundle.signatures.all(), bundle.signatures.neutral_values()
    described = "\n\n".join(
        _described(bundle, name, specs, neutral) for name, (_, specs) in signatures.items()
    )
    return f"""
## Signatures

Every input and output has the batch B as its first axis, so that the server can merge requests. An option that is not
wanted is sent its neutral value.

{described}
"""


def _described(bundle, name, specs, neutral):
    signature = bundle.signatures.table[name]
    inputs = "\n".join(
        f"| input `{spec.name}` | {spec.dtype.name} {_shape(spec)} | {_neutral(spec.name, neutral)} | "
        f"{bundle.signatures.input_table[spec.name].meaning} |"
        for spec in specs
    )
    outputs = "\n".join(
        f"| output `{output}` | {spec.dtype.name} {_shape(spec)} | | {signature.outputs[output]} |"
        for output, spec in bundle.outputs(name).items()
    )
    return f"""
### `{name}`: {signature.meaning}

| name | dtype, shape | neutral value | meaning |
|---|---|---|---|
{inputs}
{outputs}
""".strip()


def _shape(spec):
    sizes = ["any" if size is None else str(size) for size in spec.shape[1:]]
    return f"({', '.join(['B', *sizes])}{'' if sizes else ','})"


def _neutral(name, neutral):
    return f"`{json.dumps(neutral[name])}`" if name in neutral else ""


def _limits(bundle):
    lines = [
        *bundle.signatures.limits(),
        f"With the server's batching on, a request has at most {bundle.max_batch_size} {bundle.signatures.takes} (`batching_params.pbtxt`).",
        *bundle.signatures.limits_of_options(),
        *([] if bundle.buckets else ["XLA is not needed."]),
    ]
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines)


def _origin(bundle):
    task = bundle.signatures.task
    model = task.model
    packages = ["keras", "tensorflow", *(["tensorflow-text"] if task.tokenizers else [])]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    date = datetime.datetime.now(datetime.UTC).date()
    return f"""
## Where it comes from

`{type(task).__name__}.export` of keras_attn {__version__} wrote it on {date}, with {versions}. The model is a
{type(model).__name__} with {model.count_params():,} parameters.
"""
