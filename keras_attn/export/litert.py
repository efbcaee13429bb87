"""Graph functions of token ids as one LiteRT (TensorFlow Lite) model."""

import pathlib
import tempfile

import tensorflow as tf

from keras_attn.export.saved_model import export_saved_model
from keras_attn.files import replaced_folder

LITERT_FILE = "model.tflite"


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
        ValueError: if `folder` holds something else. Operations that LiteRT cannot express raise TensorFlow's
            `ConverterError`.

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
        converted = converter.convert()
    with replaced_folder(folder, LITERT_FILE, "LiteRT model") as built:
        (built / LITERT_FILE).write_bytes(converted)
        for name, tokenizer in tokenizers.items():
            tokenizer.save(built / name)
    return pathlib.Path(folder)
