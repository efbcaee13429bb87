"""Run in a process of its own, with TensorFlow alone: the answers of SavedModels to outputs.npz.

    python run_saved_model.py FOLDER

FOLDER/logits and FOLDER/generate are the SavedModels; inputs_0.npz, inputs_1.npz, ... hold batches.
"""

import pathlib
import sys

import numpy as np
import tensorflow as tf


def main(folder):
    logits = tf.saved_model.load(str(folder / "logits")).signatures["serving_default"]
    generate = tf.saved_model.load(str(folder / "generate")).signatures["serving_default"]
    outputs = {}
    for path in folder.glob("inputs_*.npz"):
        batch = {name: tf.constant(ids) for name, ids in np.load(path).items()}
        (outputs[f"{path.stem}/logits"],) = logits(**batch).values()
        found = generate(encoder_token_ids=batch["encoder_token_ids"])
        outputs |= {f"{path.stem}/{name}": value for name, value in found.items()}
    assert "keras_attn" not in sys.modules
    np.savez(folder / "outputs.npz", **outputs)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
