"""Writes graph functions to a version folder that TF Serving loads."""

import pathlib

import tensorflow as tf

from keras_attn.export.fingerprint import write_fingerprint
from keras_attn.files import folder_aside, remove_abandoned
from keras_attn.ops import clamping_scope
from keras_attn.terminal import stage


def export_saved_model(folder, signatures, models=(), resources=(), add_files=None):
    """Writes named graph functions as the next integer version under `folder`.

    The version is built under a temporary name and then renamed, so a server that watches `folder` never sees
    an incomplete one. Signatures are traced without XLA, which TF Serving disables by default.

    Args:
        folder: Path of the model, `saved_models/dates`; created if missing.
        signatures: Dict from signature names to pairs of a function and the list of its `tf.TensorSpec`s. The
            names of the specs name the inputs; the function returns a dict that names the outputs. The first
            signature should be `serving_default`.
        models: Keras models whose variables the functions use.
        resources: `tf.Module`s whose variables and files the functions use, tokenizers for instance.
        add_files: Function that writes more files to the version before it gets its final name. It is given
            the version's folder and a dict from the signatures' names to their concrete functions.

    Returns:
        `pathlib.Path` of the new version folder.

    Raises:
        ValueError: if a signature has an input without a name.

    Example:

    ```python
    double = lambda inputs: {"outputs": 2.0 * inputs}
    spec = tf.TensorSpec([None], "float32", name="inputs")
    version_folder = export_saved_model("saved_models/double", {"serving_default": (double, [spec])})
    ```
    """
    for name, (_, specs) in signatures.items():
        if any(spec.name is None for spec in specs):
            raise ValueError(f"Every input of signature {name!r} needs a name. Received: {specs}.")
    folder = pathlib.Path(folder)
    remove_abandoned(folder)
    with folder_aside(folder / "version") as built:
        # Not `keras.export.ExportArchive`, which stores every variable twice: as Keras' object and as
        # TensorFlow's.
        module = tf.Module()
        module.variables_of_models = [variable.value for model in models for variable in model.variables]
        module.resources = list(resources)
        functions = {}
        with clamping_scope():  # One bad row must not fail the others of a batch.
            for number, (name, (function, specs)) in enumerate(signatures.items()):
                stage(
                    f"tracing {name}, {number + 1} of {len(signatures)}",
                    done=0.1 + 0.5 * number / len(signatures),
                )
                traced = tf.function(function, input_signature=specs, autograph=False, jit_compile=False)
                # Traced once: the same trace is called and saved.
                functions[name] = traced.get_concrete_function()
        # Nobody trains an export: it needs no gradients of our own formulas, which would be traced here.
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        stage("saving the graph and the weights", done=0.6)
        tf.saved_model.save(module, str(built), signatures=functions, options=options)
        if add_files is not None:
            stage("answering examples, for the warm-up and the README", done=0.75)
            add_files(built, functions)
        write_fingerprint(built)
        return _move_into_place(built, folder)


def _move_into_place(built, folder):
    while True:
        versions = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
        version_folder = folder / str(max(versions, default=0) + 1)
        try:
            built.rename(version_folder)
            return version_folder
        except OSError:
            # Another export may have taken the number in the meantime; any other error goes to the caller.
            if not version_folder.exists():
                raise


def string_vector(name):
    """The spec of a batch of strings, (B,)."""
    return tf.TensorSpec([None], tf.string, name=name)
