"""The backend's fused attention kernel: when it can be used, and the function that calls it."""

import dataclasses
import functools

import keras
from keras import ops

from keras_attn.ops.masks import MaskRule


def fused_attention(query, key, value, is_causal=False, scale=None):
    """The output of `dot_product_attention` from the backend's fused kernel (flash attention on a GPU).

    Use it only if `fused_attention_obstacle` returns None.

    Args:
        query: Float tensor (B, N, T, H).
        key, value: Float tensors (B, K, S, H).
        is_causal: Boolean; needs T = S.
        scale: As in `dot_product_attention`.

    Returns:
        The output (B, N, T, H), in the dtype of `query`.

    Example:

    ```python
    query = key = value = keras.random.normal((2, 3, 5, 8))
    output = fused_attention(query, key, value, is_causal=True)
    ```

    Reference: [Dao et al., 2022](https://arxiv.org/abs/2205.14135).
    """
    group = query.shape[-3] // key.shape[-3]
    if group > 1:
        key, value = ops.repeat(key, group, axis=-3), ops.repeat(value, group, axis=-3)
    heads_last = (ops.swapaxes(x, -2, -3) for x in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output = ops.dot_product_attention(*heads_last, scale=scale, is_causal=is_causal)
    return ops.swapaxes(output, -2, -3)


def fused_attention_obstacle(
    query, key, value, mask=None, bias=None, soft_cap=None, sink_logits=None, dropout=None
):
    """Why the fused kernel would not give the results of `dot_product_attention`, in words, or None.

    Kernels differ in the output of a query without keys, and they spread NaN from masked keys. So the only
    mask that they get is the causal mask of a whole sequence: there every query sees a key, and every key is
    seen by a query.
    """
    rest = MaskRule() if mask is None else mask
    is_whole = rest.offset == 0 and None is not query.shape[-2] == key.shape[-2]
    if rest.causal and is_whole and rest.prefix_mask is None:
        rest = dataclasses.replace(rest, causal=False)
    obstacles = {
        "the TensorFlow backend": keras.backend.backend() == "tensorflow",
        "a mask other than the causal one of a whole sequence": rest.block() is not None,
        "a position bias": bias is not None,
        "a soft cap of the logits": soft_cap is not None,
        "sink logits": sink_logits is not None,
        "dropout of the scores": dropout is not None,
        "values of another size than the keys": key.shape[-1] != value.shape[-1],
        "inputs with more axes than (B, T, D)": len(query.shape) != 4,
    }
    return next((obstacle for obstacle, is_there in obstacles.items() if is_there), None)


@functools.cache
def has_fused_kernel():
    """Whether the backend has a fused kernel on this machine that is faster than the formula."""
    if keras.backend.backend() == "torch":
        return True
    devices = [] if keras.backend.backend() == "tensorflow" else keras.distribution.list_devices()
    return any(not device.startswith("cpu") for device in devices)
