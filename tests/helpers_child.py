"""New processes that load what a test saved: one with Keras, one with TensorFlow alone. Each serves many tests."""

import contextlib
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import traceback

import numpy as np


class Children:
    """Starts the processes when one is first needed; call it to have a folder loaded and run."""

    def __init__(self):
        self._process = None

    def __call__(self, kind, folder, num_cases):
        """Lists the outputs of what lies in `folder` for each of `inputs_<i>.npz`.

        Args:
            kind: `"weights"`, `"keras"` or `"saved_model"`.
            folder: Path.
            num_cases: Integer.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        print(json.dumps([kind, str(folder), num_cases]), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        assert answer == "done", answer
        return [read_arrays(folder / f"{kind}_outputs_{i}.npz") for i in range(num_cases)]

    def close(self):
        if self._process is not None:
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait()


def read_arrays(path):
    with np.load(path) as arrays:
        return [arrays[name] for name in arrays.files]


def keras_loader():
    import keras
    from helpers_layers import flat_arrays, tensors

    import keras_attn  # noqa: F401 -- registers the layers

    def load(kind, folder):
        if kind == "keras":
            model = keras.saving.load_model(folder / "model.keras")
        else:
            model = keras.models.model_from_json((folder / "model.json").read_text())
            model.load_weights(folder / "model.weights.h5")
        return lambda arrays: flat_arrays(model(tensors(arrays)))

    return load


def tensorflow_loader():
    import tensorflow as tf

    def load(kind, folder):
        model = tf.saved_model.load(folder / kind)
        assert "keras_attn" not in sys.modules

        def call(arrays):
            outputs = model.serve({name: tf.constant(x) for name, x in arrays.items()})
            return [np.asarray(x) for x in tf.nest.flatten(outputs)]

        return call

    return load


def outcome(load, kind, folder, num_cases):
    """Loads and runs; "done", or what went wrong."""
    folder = pathlib.Path(folder)
    try:
        call = load(kind, folder)
        for i in range(num_cases):
            with np.load(folder / f"inputs_{i}.npz") as arrays:
                outputs = call(dict(arrays))
            np.savez(folder / f"{kind}_outputs_{i}.npz", *outputs)
        return "done"
    except Exception:
        return traceback.format_exc()


def serve_keras(connection, of_parent):
    of_parent.close()  # so that the end of the parent ends this process
    load = None
    with contextlib.suppress(EOFError):
        while request := connection.recv():
            load = load or keras_loader()
            connection.send(outcome(load, *request))


def main():
    # Only answers go to stdout; what libraries print goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow":
        import tensorflow  # noqa: F401 -- once for both processes: it takes seconds
    connection, of_keras = multiprocessing.Pipe()
    keras_process = multiprocessing.get_context("fork").Process(
        target=serve_keras, args=(of_keras, connection)
    )
    keras_process.start()
    of_keras.close()
    load = None
    for line in sys.stdin:
        kind, *rest = json.loads(line)
        if kind == "saved_model":
            load = load or tensorflow_loader()
            answer = outcome(load, kind, *rest)
        else:
            connection.send([kind, *rest])
            answer = connection.recv()
        print(json.dumps(answer), file=answers, flush=True)
    connection.send(None)
    keras_process.join()


if __name__ == "__main__":
    main()
