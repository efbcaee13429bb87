"""LoRA's matrices added to the kernels that they adapt: an ordinary model again."""

import keras
import numpy as np

from keras_attn.compat.keras import all_layers, stored_matrix
from keras_attn.models.copies import assign_by_names, is_of_lora, twin_of
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
    adapted = _adapted(model)
    if not adapted:
        raise ValueError("`merge_lora` needs a model with LoRA. Received: a model without.")
    if any(getattr(layer, "quantization_mode", None) for layer in adapted):
        raise ValueError("A quantised kernel has no room for LoRA's product. Merge before `quantize`.")
    merged = dict(map(_merged, adapted))
    values = {
        name: merged.get(id(variable), variable)
        for name, variable in named_weights(model).items()
        if not is_of_lora(variable)
    }
    twin = twin_of(model)
    assign_by_names(twin, values)
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
    return isinstance(model, keras.Model) and bool(_adapted(model))


def _adapted(model):
    return [layer for layer in all_layers(model) if getattr(layer, "lora_enabled", False)]


def _merged(layer):
    """The id of the variable that a layer's LoRA adapts, and its value with the product added."""
    is_embedding = hasattr(layer, "lora_embeddings_a")
    kernel = stored_matrix(layer)
    names = ("lora_embeddings_a", "lora_embeddings_b") if is_embedding else ("lora_kernel_a", "lora_kernel_b")
    a, b = (np.asarray(keras.ops.convert_to_numpy(getattr(layer, name)), "float64") for name in names)
    kernel_value = np.asarray(keras.ops.convert_to_numpy(kernel), "float64")
    return id(kernel), kernel_value + layer.lora_alpha / layer.lora_rank * (a @ b)
