"""Files next to the graph of an export: its declaration, warm-up requests, batching parameters, README."""

import datetime
import importlib.metadata
import json
import shlex
import urllib.parse

import numpy as np
import tensorflow as tf

from keras_attn import __version__
from keras_attn.compat.tensorflow import unoptimized_graphs
from keras_attn.export import (
    write_batching_parameters,
    write_quantization,
    write_task_declaration,
    write_warmup_requests,
    write_xla_buckets,
)
from keras_attn.models import quantization_of
from keras_attn.tasks.batches import untold_cuts

# Also the default batch size of a `Translator`.
MAX_BATCH_SIZE = 64
# Signatures whose best answers have scores.
_N_BEST = ("translate_n_best", "generate_n_best")


class ExportFiles:
    """The files next to the graph of one export.

    Args:
        functions: `SignatureFunctions`.
        model_name: String, the name under which the model will be served.
        examples: List of typical inputs, texts for instance. They are used as warm-up requests and shown in the
            README.

    Raises:
        ValueError: as `functions.examples`.
    """

    def __init__(self, functions, model_name, examples=None):
        self.functions = functions
        self.task = functions.task
        self.model_name = model_name
        self.examples = functions.examples(examples)
        self.buckets = functions.buckets
        self.max_batch_size = self.buckets.batch_sizes[-1] if self.buckets else MAX_BATCH_SIZE
        self.quantization = None  # of a quantised model: a dict with its mode, and the answers before
        self._graphs = None

    def write(self, folder, graphs):
        """Writes the files to `folder`; `graphs` are the concrete functions of the export by name."""
        self._graphs = graphs
        write_task_declaration(folder, self.declaration())
        write_warmup_requests(folder, self.model_name, self._warmup_requests())
        why_any_size = None
        if self.buckets:
            write_xla_buckets(folder, self.buckets.batch_sizes, self.buckets.lengths)
            why_any_size = "the graph itself fills batches up to the sizes that were compiled"
        if self.quantization is not None:
            write_quantization(folder, {**self.quantization, **self._answers_after()})
        self.task.write_export_files(folder)
        write_batching_parameters(folder, self.max_batch_size, why_any_size=why_any_size)
        (folder / "README.md").write_text(export_readme(self, folder), encoding="utf-8")

    def declaration(self):
        """What the export says of itself, for `write_task_declaration`: values that JSON can hold."""
        task = self.task
        names = self.functions.names
        declared = type(task).declaration()
        asked = [name for name in (*task.asked_signatures, "serving_default") if name in names]
        drawn = task.drawing_signature
        return {
            "format": 1,
            "task": type(task).__name__,
            "kind": declared.file_stem,
            "title": task.name,
            "article": task.article,
            "takes": task.takes,
            "labels": task.page_labels._asdict(),
            "ask": asked[0],
            "sample": drawn if drawn in names else None,
            "attention": "attention" if "attention" in names else None,
            "statuses": task.statuses,
            "signatures": {name: self._declared_signature(name) for name in names},
        }

    def inputs(self, signature_name, examples):
        """A request: the examples, what else is needed, and the neutral value of each option."""
        neutral = self.task.neutral_values()
        _, specs = self.functions.all()[signature_name]
        values = {spec.name: [neutral.get(spec.name)] * len(examples) for spec in specs}
        values |= self.functions.example_inputs(signature_name, examples, self.ask)
        return {spec.name: np.array(values[spec.name], spec.dtype.as_numpy_dtype) for spec in specs}

    def ask(self, signature_name, inputs):
        """Answers a request with the graph that is exported."""
        _, specs = self.functions.all()[signature_name]
        tensors = [tf.constant(inputs[spec.name], spec.dtype) for spec in specs]
        with unoptimized_graphs():
            answer = self._graphs[signature_name](*tensors)
        return {name: output.numpy() for name, output in answer.items()}

    def outputs(self, signature_name):
        """The specs of a signature's outputs by name."""
        return self._graphs[signature_name].structured_outputs

    def compare_answers_with(self, unquantized, quantization):
        """Notes the answers of the task before it was quantised, for the file that tells what quantisation changes."""
        self.quantization = {"quantization": quantization, **self._answers_before(unquantized)}

    def _declared_signature(self, name):
        signature = self.functions.table[name]
        neutral = self.task.neutral_values()
        inputs = {}
        for input_name in sorted(signature.inputs, key=list(self.task.signature_inputs).index):
            inputs[input_name] = {
                "meaning": self.task.signature_inputs[input_name].meaning,
                "widget": self.task.widget_of(input_name),
            }
            if input_name in neutral:
                inputs[input_name]["neutral"] = neutral[input_name]
        return {
            "meaning": signature.meaning,
            "view": signature.view,
            "beginnings": signature.beginnings,
            "inputs": inputs,
            "outputs": {output: {"meaning": signature.outputs[output]} for output in self.outputs(name)},
        }

    def _warmup_requests(self):
        if self.buckets:
            return list(self._requests_of_every_shape())
        return [(name, self.inputs(name, self.examples)) for name in self.functions.all()]

    def _requests_of_every_shape(self):
        shortest = 0
        for length in self.buckets.lengths:
            text = self._text_of_length(shortest + 1, length)
            shortest = length
            for batch_size in self.buckets.batch_sizes:
                yield "serving_default", self.inputs("serving_default", [text] * batch_size)

    def _text_of_length(self, shortest, longest):
        """The examples, repeated and cut to at least `shortest` tokens and at most `longest`, as the model reads them."""
        tokenizer = next(iter(self.task.tokenizers.values()))
        (token_ids,) = tokenizer.encode([" ".join(self.examples)])
        token_ids = token_ids * (longest // max(len(token_ids), 1) + 1)
        for size in range(longest, -1, -1):
            (text,) = tokenizer.decode([token_ids[:size]])
            # A decoded text may have other tokens when it is tokenized again, and the model may read more than them.
            if shortest <= self.functions.num_tokens(text) <= longest:
                return text
        raise ValueError(
            f"`examples` must be texts from which a text of {shortest} to {longest} tokens can be made, to warm up that "
            f"length. Received: examples={self.examples}."
        )

    def _answers_before(self, task):
        """A dict for JSON: the answers of the unquantised task to the examples, and their scores if it has them."""
        if task is None or quantization_of(task.model) is not None:
            return {}
        if hasattr(task, "search_options"):
            with untold_cuts():
                answers, scores = task(self.examples, return_scores=True)
            return {"examples": self.examples, "before": answers, "scores_before": scores}
        shown = [text if isinstance(text, str) else f"{len(text)} bytes" for text in self.examples]
        return {"examples": shown, "before": np.asarray(task.default_answers(self.examples)).tolist()}

    def _answers_after(self):
        """A dict for JSON: the answers of the exported graph to the examples, and their scores if a signature has them."""
        answers = self.ask("serving_default", self.inputs("serving_default", self.examples))["outputs"]
        if answers.dtype == object:
            texts = [text.decode("utf-8", "replace") for text in answers.ravel()]
            answers = np.array(texts).reshape(answers.shape)
        report = {"after": answers.tolist()}
        for name in _N_BEST:
            if name in self.functions.names:
                scores = self.ask(name, self.inputs(name, self.examples))["scores"]
                report["scores_after"] = scores[:, 0].tolist()
        return report


def export_readme(files, folder):
    """The text of the README of `ExportFiles`; example images are written to `folder`, for its requests to send."""
    parts = [_head(files)]
    if files.buckets:
        parts.append(_xla(files.buckets))
    if files.task.takes == "images":
        names = _write_images(files.examples, folder)
        parts += [_image_requests(files, names), _images_in_python(files, names[0])]
    else:
        parts += [_requests(files), _in_python(files)]
    parts += [_signatures(files), _limits(files), _origin(files)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _head(files):
    return f"""
# {files.model_name}

{files.task.export_description} The answers below are
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


def _requests(files):
    requests = "\n\n".join(_request(files, name) for name in _shown_signatures(files))
    return f"""
## Requests over REST

`serving_default` has one input and one output, so `instances` and `predictions` are plain lists. A signature with
several takes and gives an object for each text, and every input must be there: the options below have their neutral
values. Text that is not UTF-8 is sent as `{{"b64": "..."}}`.

{requests}
"""


def _request(files, signature_name):
    num_examples = files.functions.table[signature_name].shown
    inputs = files.inputs(signature_name, files.examples[:num_examples])
    body = {"instances": _rows(inputs)}
    if signature_name != "serving_default":
        body = {"signature_name": signature_name, **body}
    predictions = {"predictions": _cut(_rows(files.ask(signature_name, inputs)))}
    return f"""
```bash
curl -d {shlex.quote(json.dumps(body, ensure_ascii=False))} {_url(files)}
```

```json
{json.dumps(predictions, ensure_ascii=False)}
```
""".strip()


def _url(files):
    return f"http://localhost:8501/v1/models/{urllib.parse.quote(files.model_name)}:predict"


def _rows(named):
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


def _in_python(files):
    inputs = files.inputs("serving_default", files.examples[:1])
    outputs = files.ask("serving_default", inputs)["outputs"]
    predictions = _cut(_plain(outputs))
    arguments = ", ".join(f"{name}=tf.constant({_quoted(_plain(texts))})" for name, texts in inputs.items())
    values = 'answer["outputs"].numpy()'
    plain = f"[text.decode() for text in {values}]" if outputs.dtype.hasobject else f"{values}.tolist()"
    return f"""
## From Python

With the standard library, from a server:

```python
import json
import urllib.request

body = json.dumps({{"instances": {_quoted(_rows(inputs))}}}).encode()
with urllib.request.urlopen("{_url(files)}", body) as reply:
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


def _cut(value):
    """Nested values in which vectors end after three numbers: `[0.1, 0.2, 0.3, "..."]`."""
    if isinstance(value, dict):
        return {name: _cut(part) for name, part in value.items()}
    if not isinstance(value, list):
        return value
    is_vector = len(value) > 8 and all(isinstance(number, float) for number in value)
    return [*value[:3], "..."] if is_vector else [_cut(part) for part in value]


def _signatures(files):
    neutral = files.task.neutral_values()
    signatures = files.functions.all().items()
    described = "\n\n".join(_described(files, name, specs, neutral) for name, (_, specs) in signatures)
    return f"""
## Signatures

Every input and output has the batch B as its first axis, so that the server can merge requests. An option that is not
wanted is sent its neutral value.

{described}
"""


def _described(files, name, specs, neutral):
    signature = files.functions.table[name]
    inputs = "\n".join(
        f"| input `{spec.name}` | {spec.dtype.name} {_shape(spec)} | {_neutral(spec.name, neutral)} | "
        f"{files.task.signature_inputs[spec.name].meaning} |"
        for spec in specs
    )
    outputs = "\n".join(
        f"| output `{output}` | {spec.dtype.name} {_shape(spec)} | | {signature.outputs[output]} |"
        for output, spec in files.outputs(name).items()
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


def _limits(files):
    lines = list(files.functions.limits())
    lines.append(
        f"With the server's batching on, a request has at most {files.max_batch_size} {files.task.takes} "
        "(`batching_params.pbtxt`)."
    )
    lines += files.functions.option_limits()
    if not files.buckets:
        lines.append("XLA is not needed.")
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines)


def _origin(files):
    task = files.task
    model = task.model
    packages = ["keras", "tensorflow"]
    if task.tokenizers:
        packages.append("tensorflow-text")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    date = datetime.datetime.now(datetime.UTC).date()
    return f"""
## Where it comes from

`{type(task).__name__}.export` of keras_attn {__version__} wrote it on {date}, with {versions}. The model is a
{type(model).__name__} with {model.count_params():,} parameters.
"""


def _shown_signatures(files):
    return [name for name in files.functions.names if files.functions.table[name].shown]


def _write_images(images, folder):
    """Writes image files to a folder, and returns their names."""
    names = []
    for number, content in enumerate(images):
        ending = "png" if content.startswith(b"\x89PNG") else "jpg"
        name = f"example_{number}.{ending}"
        (folder / name).write_bytes(content)
        names.append(name)
    return names


def _image_requests(files, names):
    requests = "\n\n".join(_image_request(files, name, names) for name in _shown_signatures(files))
    return f"""
## Requests over REST

An image is sent in base64, `{{"b64": "..."}}`. `serving_default` has one input and one output, so `instances` and
`predictions` are plain lists; a signature with several outputs gives an object for each image. In this folder:

{requests}
"""


def _image_request(files, signature_name, names):
    names = names[: files.functions.table[signature_name].shown]
    inputs = files.inputs(signature_name, files.examples[: len(names)])
    predictions = {"predictions": _cut(_rows(files.ask(signature_name, inputs)))}
    name = "" if signature_name == "serving_default" else f'"signature_name": "{signature_name}", '
    instances = ", ".join(f"""{{"b64": "'$(base64 {file} | tr -d '\\n')'"}}""" for file in names)
    return f"""
```bash
echo '{{{name}"instances": [{instances}]}}' | curl -d @- {_url(files)}
```

```json
{json.dumps(predictions, ensure_ascii=False)}
```
""".strip()


def _images_in_python(files, name):
    inputs = files.inputs("serving_default", files.examples[:1])
    predictions = _rows(files.ask("serving_default", inputs))
    return f"""
## From Python

With the standard library, from a server:

```python
import base64
import json
import pathlib
import urllib.request

image = base64.b64encode(pathlib.Path("{name}").read_bytes()).decode()
body = json.dumps({{"instances": [{{"b64": image}}]}}).encode()
with urllib.request.urlopen("{_url(files)}", body) as reply:
    print(json.load(reply)["predictions"])  # {predictions!r}
```

In this folder, without a server:

```python
import tensorflow as tf

model = tf.saved_model.load(".")
answer = model.signatures["serving_default"](inputs=tf.constant([tf.io.read_file("{name}").numpy()]))
print([text.decode() for text in answer["outputs"].numpy()])  # {predictions!r}
```
"""
