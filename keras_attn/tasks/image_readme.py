"""The README of an export that takes images, with example files beside it that its requests send."""

import json

from keras_attn.tasks.model_readme import cut, model_readme, rows, url


def image_readme(bundle, folder):
    """The text of the README of a `Bundle`; the examples are written to `folder`."""
    names = []
    for number, content in enumerate(bundle.examples):
        ending = "png" if content.startswith(b"\x89PNG") else "jpg"
        names.append(f"example_{number}.{ending}")
        (folder / names[-1]).write_bytes(content)
    return model_readme(bundle, _requests(bundle, names), _in_python(bundle, names[0]))


def _requests(bundle, names):
    shown = [name for name in bundle.signatures.all() if name in bundle.signatures.shown]
    requests = "\n\n".join(_request(bundle, name, names) for name in shown)
    return f"""
## Requests over REST

An image is sent in base64, `{{"b64": "..."}}`. `serving_default` has one input and one output, so `instances` and
`predictions` are plain lists; a signature with several outputs gives an object for each image. In this folder:

{requests}
"""


def _request(bundle, signature_name, names):
    names = names[: bundle.signatures.shown[signature_name]]
    inputs = bundle.inputs(signature_name, bundle.examples[: len(names)])
    predictions = {"predictions": cut(rows(bundle.ask(signature_name, inputs)))}
    name = "" if signature_name == "serving_default" else f'"signature_name": "{signature_name}", '
    instances = ", ".join(f"""{{"b64": "'$(base64 {file} | tr -d '\\n')'"}}""" for file in names)
    return f"""
```bash
echo '{{{name}"instances": [{instances}]}}' | curl -d @- {url(bundle)}
```

```json
{json.dumps(predictions, ensure_ascii=False)}
```
""".strip()


def _in_python(bundle, name):
    inputs = bundle.inputs("serving_default", bundle.examples[:1])
    predictions = rows(bundle.ask("serving_default", inputs))
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
with urllib.request.urlopen("{url(bundle)}", body) as reply:
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
