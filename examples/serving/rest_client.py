"""Asks a TF Serving over REST, with Python's standard library alone.

```
python rest_client.py "4th of July 2016"
python rest_client.py --n-best "4th of July 2016" "3. Oktober 1990"
```
"""

import argparse
import base64
import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request


def as_instance(text):
    """A command line argument as the REST API takes it: text, or `{"b64": ...}` for bytes that are not UTF-8."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return {"b64": base64.b64encode(os.fsencode(text)).decode("ascii")}


def predict(server, model, signature_name, texts, timeout):
    """The `predictions` of one request: strings, or a dict a text where the signature has several outputs."""
    url = f"{server.rstrip('/')}/v1/models/{urllib.parse.quote(model, safe='')}:predict"
    body = {"signature_name": signature_name, "instances": [as_instance(text) for text in texts]}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return json.load(reply)["predictions"]
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{url} answered {error.code}: {server_message(error.read())}") from None
    except OSError as error:
        raise SystemExit(f"No answer from {url} ({error}). Is the server running?") from None
    except http.client.HTTPException:
        raise SystemExit(f"{url} does not answer in HTTP. Is this the server's REST port?") from None
    except (ValueError, KeyError, TypeError):
        raise SystemExit(f"{url} answered something that is not TF Serving's JSON.") from None


def server_message(body):
    """The message in an error reply; whatever came where it is not TF Serving that replied."""
    try:
        return json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()


def main():
    parser = argparse.ArgumentParser(
        description="Translates texts with a model served by TF Serving, over REST."
    )
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    parser.add_argument("--server", default="http://localhost:8501", help="(default: %(default)s)")
    parser.add_argument("--model", default="dates", help="name in models.config (default: %(default)s)")
    parser.add_argument("--n-best", action="store_true", help="print all candidates, each after its score")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds (default: %(default)s)")
    options = parser.parse_args()
    if not options.server.startswith(("http://", "https://")):
        parser.error(f"`--server` must start with http:// or https://. Received: {options.server}")

    signature_name = "translate_n_best" if options.n_best else "serving_default"
    predictions = predict(options.server, options.model, signature_name, options.texts, options.timeout)
    for text, prediction in zip(options.texts, predictions, strict=True):
        if not options.n_best:
            print(prediction)
            continue
        print(text)
        for candidate, score in zip(prediction["outputs"], prediction["scores"], strict=True):
            print(f"  {score:8.3f}  {candidate}")


if __name__ == "__main__":
    main()
