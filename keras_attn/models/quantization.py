"""Models whose weights are stored, and multiplied, in fewer bits."""

import copy
import warnings

import keras

from keras_attn.checks import choose
from keras_attn.compat.keras import all_layers
from keras_attn.layers.lora_and_quantization import forget_compiled
from keras_attn.models.lora import has_lora
from keras_attn.models.model_copies import check_comes_back, copy_with_policies, stored_mode


def quantize(model, mode):
    """Stores a model's matrices in fewer bits, in place, and multiplies them so.

    - `"bfloat16"`: embeddings, projections and feed-forward networks are stored in bfloat16, and their products computed
      in it; softmax, norms, caches and logits stay as they are.
    - `"int8"`: as Keras' `model.quantize("int8")`. A matrix has a scale for each column, and what it is multiplied by one
      for each row.

    A model is saved quantised only if its configuration says which layers are. If a class of yours in one of its slots makes
    layers, it does not: saving then raises. Save the model before, and quantise it again after it is loaded; exports take it.

    Args:
        model: A model of this library that is neither quantised nor has LoRA.
        mode: String.

    Raises:
        ValueError: for another mode, such a model, one without a layer that has this mode, or int8 of a model that computes
            in float16 or has a `TimeDistributed`.

    Example:

    ```python
    from keras_attn.models import quantize

    model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    quantize(model, "int8")
    ```
    """
    choose("mode", mode, QUANTIZATIONS)
    if not isinstance(model, keras.Model):
        raise ValueError(f"Only a keras.Model can be quantised. Received: {type(model).__name__}.")
    present = quantization_of(model)
    if present is not None:
        raise ValueError(f"The model is quantised already. Received: mode={mode!r}, a model in {present}.")
    if has_lora(model):
        raise ValueError(
            "A model with LoRA is not quantised. Quantise what `keras_attn.models.merge_lora(model)` returns."
        )
    if mode == "int8" and model.compute_dtype == "float16":
        raise ValueError(
            "A model that computes in float16 is not quantised to int8. Quantise what "
            "`keras_attn.models.float32_copy(model)` returns, as `quantized_copy` and exports do."
        )
    if mode == "int8" and any(isinstance(layer, keras.layers.TimeDistributed) for layer in all_layers(model)):
        raise ValueError(
            "Keras multiplies wrongly in int8 inside TimeDistributed. Its layer alone does the same: Dense takes any number "
            "of axes."
        )
    QUANTIZATIONS[mode](model)
    if quantization_of(model) is None:
        raise ValueError(
            f"The model has no layer that can be stored in {mode}. Received: {type(model).__name__}."
        )


def _to_int8(model):
    with warnings.catch_warnings():  # Keras warns of each layer that has no matrix
        warnings.simplefilter("ignore")
        model.quantize("int8")


def _to_bfloat16(model):
    for layer in all_layers(model):
        if hasattr(layer, "store_in_bfloat16"):
            layer.store_in_bfloat16()
    forget_compiled(model)


QUANTIZATIONS = {"bfloat16": _to_bfloat16, "int8": _to_int8}


def quantization_of(model):
    """The quantisation of a model: "int8", "bfloat16" or another mode of Keras; or None.

    Example:

    ```python
    from keras_attn.models import quantization_of

    model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    assert quantization_of(model) is None
    ```
    """
    if not isinstance(model, keras.Model):
        return None
    modes = [stored_mode(layer) for layer in all_layers(model)]
    keras_modes = [mode for mode in modes if mode not in (None, "bfloat16")]
    if keras_modes:
        return keras_modes[0]
    if "bfloat16" in modes and model.variable_dtype != "bfloat16":
        return "bfloat16"
    return None


def config_that_comes_back(model, config):
    """`config`, what `get_config` of a model returns.

    Raises:
        ValueError: if the model is quantised, and a model of this config would not be: a class of the user made the layers.
    """
    if quantization_of(model) is not None:
        check_comes_back(model, lambda: type(model).from_config(copy.deepcopy(config)))
    return config


def quantized_copy(model, mode):
    """A copy of a model, in float32 but for what `quantize` stores in fewer bits; the model stays as it is.

    Raises:
        ValueError: as `quantize` and `float32_copy`.

    Example:

    ```python
    from keras_attn.models import quantization_of, quantized_copy

    model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    assert quantization_of(quantized_copy(model, "int8")) == "int8"
    ```
    """
    choose("mode", mode, QUANTIZATIONS)
    if quantization_of(model) == mode:
        return model
    if not isinstance(model, keras.Model) or quantization_of(model) is not None or has_lora(model):
        quantize(model, mode)  # raises
    twin = float32_copy(model)
    quantize(twin, mode)
    return twin


def float32_copy(model):
    """A copy of a model that computes in float32.

    Raises:
        ValueError: if its configuration does not give its weights.

    Example:

    ```python
    from keras_attn.models import float32_copy

    model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", 100, dtype="mixed_bfloat16")
    assert float32_copy(model).compute_dtype == "float32"
    ```
    """
    return copy_with_policies(model, lambda name: "float32")
