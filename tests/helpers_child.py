"""New processes that load what a test saved: one with Keras, one with TensorFlow alone. Each serves many tests."""

import json
import os
import pathlib
import subprocess
import sys
import traceback

import numpy as np


class Children:
    """Starts each process when it is first needed; call it to have a folder loaded and run."""

    def __init__(self):
        self._processes = {}

    def __call__(self, kind, folder, num_cases):
        """Lists the outputs of what lies in `folder` for each of `inputs_<i>.npz`.

        Args:
            kind: `"weights"`, `"keras"` or `"saved_model"`.
            folder: Path.
            num_cases: Integer.
        """
        engine = "tensorflow" if kind == "saved_model" else "keras"
        if engine not in self._processes:
            self._processes[engine] = subprocess.Popen(
                [sys.executable, __file__, engine], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        process = self._processes[engine]
        print(json.dumps([kind, str(folder), num_cases]), file=process.stdin, flush=True)
        answer = json.loads(process.stdout.readline())
        assert answer == "done", answer
        return [read_arrays(folder / f"{kind}_outputs_{i}.npz") for i in range(num_cases)]

    def close(self):
        for process in self._processes.values():
            process.stdin.close()
            process.stdout.close()
            process.wait()


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


def main(engine):
    # Only answers go to stdout; what libraries print goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    load = {"keras": keras_loader, "tensorflow": tensorflow_loader}[engine]()
    for line in sys.stdin:
        kind, folder, num_cases = json.loads(line)
        folder = pathlib.Path(folder)
        try:
            call = load(kind, folder)
            for i in range(num_cases):
                with np.load(folder / f"inputs_{i}.npz") as arrays:
                    outputs = call(dict(arrays))
                np.savez(folder / f"{kind}_outputs_{i}.npz", *outputs)
            answer = "done"
        except Exception:
            answer = traceback.format_exc()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
