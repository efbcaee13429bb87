"""Run in a process of its own: loads each model of a folder and writes what it answers to outputs.npz.

    python reload_models.py FOLDER

`*.keras` is loaded as it is; `*.weights.h5` goes into the model of the configuration in the `.json` beside it.
inputs.npz holds the batch; START, END and the options of `generate` are those of the tests.
"""

import json
import pathlib
import sys

import helpers_models
import keras
import numpy as np

import keras_attn


def answers(model, batch):
    found = {"predict": model.predict(batch, verbose=0)}
    if isinstance(model, keras_attn.models.Seq2SeqTransformer):
        ids = batch["encoder_token_ids"]
        found["greedy"] = helpers_models.generate(model, ids, max_length=3)
        found["beam_ids"], found["beam_scores"] = helpers_models.generate(
            model, ids, num_beams=3, num_return_sequences=3, max_length=3
        )
    return found


def load(path):
    if path.suffix == ".keras":
        return keras.saving.load_model(path)
    config = json.loads(path.with_name(path.name.replace(".weights.h5", ".json")).read_text())
    model = keras_attn.models.Seq2SeqTransformer.from_config(config)
    model.load_weights(path)
    return model


def main(folder):
    batch = dict(np.load(folder / "inputs.npz"))
    outputs = {}
    for path in [*folder.glob("*.keras"), *folder.glob("*.weights.h5")]:
        outputs |= {f"{path.name}/{name}": value for name, value in answers(load(path), batch).items()}
    np.savez(folder / "outputs.npz", **outputs)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
