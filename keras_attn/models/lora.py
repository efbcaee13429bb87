"""LoRA's matrices added to the kernels that they adapt: an ordinary model again."""

import keras
import numpy as np

from keras_attn.compat.keras import all_layers, stored_matrix
from keras_attn.models.model_copies import assign_by_name, is_lora_weight, make_twin
from keras_attn.models.weight_names import named_weights


def merge_lora(model):
    """A model without LoRA that gives the outputs of one with it: the products of matrices are in its kernels.

    Keras merges while it writes a file, in the dtype of the computation. Here they are added in the dtype of the weights,
    so that nothing is rounded to bfloat16. Save and export the merged model; what was frozen in `model` is equal to the bit.

    Args:
        model: A model of this library, or any `keras.Model` with `from_config`, after `enable_lora`. It stays as it is.

    Returns:
        A new model of the same class, without an optimizer, whose weights are all trainable.

    Raises:
        ValueError: if the model has no LoRA, is quantised, or its configuration does not give its weights.

    Example:

    ```python
    model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    model.enable_lora(rank=4)
    merged = keras_attn.models.merge_lora(model)
    assert merged.count_params() < model.count_params()
    ```

    Reference: [Hu et al., 2021](https://arxiv.org/abs/2106.09685), section 4.1, "No Additional Inference Latency".
    """
    adapted = _adapted_layers(model)
    if not adapted:
        raise ValueError("`merge_lora` needs a model with LoRA. Received: a model without.")
    if any(getattr(layer, "quantization_mode", None) for layer in adapted):
        raise ValueError("A quantised kernel has no room for LoRA's product. Merge before `quantize`.")
    merged = {id(stored_matrix(layer)): _merged_kernel(layer) for layer in adapted}
    values = {
        name: merged.get(id(variable), variable)
        for name, variable in named_weights(model).items()
        if not is_lora_weight(variable)
    }
    twin = make_twin(model)
    assign_by_name(twin, values)
    return twin


def has_lora(model):
    """Whether LoRA adapts any layer of a model.

    Example:

    ```python
    from keras_attn.models import has_lora

    model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    assert not has_lora(model)
    ```
    """
    return isinstance(model, keras.Model) and bool(_adapted_layers(model))


def _adapted_layers(model):
    return [layer for layer in all_layers(model) if getattr(layer, "lora_enabled", False)]


def _merged_kernel(layer):
    """The matrix that a layer's LoRA adapts, with the product added, float64."""
    kind = "embeddings" if hasattr(layer, "lora_embeddings_a") else "kernel"
    a = _float64(getattr(layer, f"lora_{kind}_a"))
    b = _float64(getattr(layer, f"lora_{kind}_b"))
    kernel_value = _float64(stored_matrix(layer))
    return kernel_value + layer.lora_alpha / layer.lora_rank * (a @ b)


def _float64(variable):
    return np.asarray(keras.ops.convert_to_numpy(variable), "float64")
