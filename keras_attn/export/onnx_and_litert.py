"""Graph functions of token ids as ONNX models or as one LiteRT (TensorFlow Lite) model, with tokenizers next to them."""

import pathlib
import re
import tempfile

import numpy as np
import tensorflow as tf

from keras_attn.export.saved_model import export_saved_model
from keras_attn.files import replaced_folder
from keras_attn.ops import clamping_scope

# onnxruntime has supported it since 2023; these graphs need no newer operators.
_OPSET = 18
_LITERT_FILE = "model.tflite"


def export_onnx(folder, functions, tokenizers):
    """Writes each graph function as a separate ONNX model, with tokenizers next to them.

    The graphs use only ONNX's float32 and integer operations; batch size and lengths are dynamic. ONNX has no
    text operations, so the tokenizers are saved separately.

    Args:
        folder: Path; the folder is built under a temporary name and then renamed. It replaces an older
            export.
        functions: Dict from names to pairs of a function and the list of its `tf.TensorSpec`s, as in
            `export_saved_model`. The file is `name.onnx`.
        tokenizers: Dict from names of folders to tokenizers of `keras_attn.text`.

    Returns:
        `pathlib.Path` of `folder`.

    Raises:
        ValueError: if a function has an operation that ONNX lacks, or `folder` holds something else.
        ImportError: if onnx or tf2onnx is not installed.

    Example:

    ```python
    spec = tf.TensorSpec([None, None], "float32", name="x")
    export_onnx("engines/double", {"double": (lambda x: {"y": 2.0 * x}, [spec])}, {})
    ```

    Reference: https://github.com/onnx/tensorflow-onnx.
    """
    models = {f"{name}.onnx": _convert(name, *function) for name, function in functions.items()}
    with replaced_folder(folder, next(iter(models)), "ONNX models of this kind") as built:
        for name, model in models.items():
            (built / name).write_bytes(model)
        _save_tokenizers(tokenizers, built)
    return pathlib.Path(folder)


def export_litert(folder, functions, models, tokenizers):
    """Writes graph functions as signatures of one LiteRT model, `model.tflite`, with tokenizers next to it.

    Only LiteRT's own operations are used, none of TensorFlow's through the flex delegate; batch size and
    lengths are dynamic.

    Args:
        folder: Path; the folder is built under a temporary name and then renamed. It replaces an older
            export.
        functions: Dict from names of signatures to pairs of a function and the list of its `tf.TensorSpec`s,
            as in `export_saved_model`.
        models: Keras models whose variables the functions use.
        tokenizers: Dict from names of folders to tokenizers of `keras_attn.text`.

    Returns:
        `pathlib.Path` of `folder`.

    Raises:
        ValueError: if `folder` holds something else, or LiteRT cannot express an operation.

    Example:

    ```python
    spec = tf.TensorSpec([None, None], "float32", name="x")
    export_litert("engines/twice", {"double": (lambda x: {"y": 2.0 * x}, [spec])}, [], {})
    ```

    Reference: https://ai.google.dev/edge/litert.
    """
    with tempfile.TemporaryDirectory() as aside:
        saved_model = export_saved_model(aside, functions, models)
        converter = tf.lite.TFLiteConverter.from_saved_model(str(saved_model), signature_keys=list(functions))
        converted = _converted(converter)
    with replaced_folder(folder, _LITERT_FILE, "LiteRT model") as built:
        (built / _LITERT_FILE).write_bytes(converted)
        _save_tokenizers(tokenizers, built)
    return pathlib.Path(folder)


def _converted(converter):
    try:
        return converter.convert()
    except Exception as error:
        if type(error).__name__ != "ConverterError":  # TensorFlow has no public name for it
            raise
        operations = sorted(set(re.findall(r"tf\.\w+", str(error))))
        raise ValueError(
            f"LiteRT cannot express this model: it lacks {', '.join(operations) or 'an operation'}. Export a SavedModel, or "
            "for another engine (docs/other_engines.md says which)."
        ) from error


def _save_tokenizers(tokenizers, folder):
    for name, tokenizer in tokenizers.items():
        tokenizer.save(folder / name)


def _convert(name, function, specs):
    try:
        import onnx
        import tf2onnx
    except ImportError as error:
        raise ImportError('This export needs onnx and tf2onnx: pip install "keras_attn[onnx]".') from error
    traced = tf.function(function, input_signature=specs, autograph=False)
    with clamping_scope():
        model, _ = tf2onnx.convert.from_function(
            traced, input_signature=specs, opset=_OPSET, custom_op_handlers={"Erfc": (_one_minus_erf, [])}
        )
    try:
        # tf2onnx leaves operations that it cannot convert in the graph, and logs a message.
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise ValueError(f"ONNX cannot express {name!r}: {error}") from error
    return model.SerializeToString()


def _one_minus_erf(graph, node, name, _):
    """Replaces Erfc, which ONNX lacks. Keras on TensorFlow uses it for the exact gelu."""
    dtypes = [graph.get_dtype(node.output[0])]
    shapes = [graph.get_shape(node.output[0])]
    erf = graph.make_node("Erf", node.input, dtypes=dtypes, shapes=shapes)
    one = graph.make_const(f"{name}_one", np.ones((), "float32"))
    graph.remove_node(node.name)
    inputs = [one.output[0], erf.output[0]]
    graph.make_node("Sub", inputs, name=name, outputs=node.output, dtypes=dtypes, shapes=shapes)
