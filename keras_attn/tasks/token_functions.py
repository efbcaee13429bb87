"""Graph functions of token ids, for engines without text operations."""

import tensorflow as tf

from keras_attn.models import float32_copy
from keras_attn.ops import compiled_scope


def float32_model(model):
    """The model itself, or a float32 copy of it if it computes in lower precision."""
    return model if model.compute_dtype == "float32" else float32_copy(model)


def token_functions(model, start_token_id, end_token_id, max_length, unwritable_token_ids=()):
    """{name: (function, specs)}.

    `logits`: int32 `encoder_token_ids` (B, S) and `decoder_token_ids` (B, T), the latter beginning with START
    -> float32 `logits` (B, T, V). `greedy`: `encoder_token_ids` -> int32 `token_ids` (B, max_length), the
    answers of greedy search, END included, then pads.
    """

    def logits(encoder_token_ids, decoder_token_ids):
        inputs = {"encoder_token_ids": encoder_token_ids, "decoder_token_ids": decoder_token_ids}
        return {"logits": model(inputs)}

    def greedy(encoder_token_ids):
        with compiled_scope():  # one plain loop, which graph converters support
            token_ids = model.generate(
                encoder_token_ids,
                start_token_id,
                end_token_id,
                max_length=max_length,
                unwritable_token_ids=unwritable_token_ids,
            )
        return {"token_ids": token_ids}

    source, target = (
        tf.TensorSpec([None, None], tf.int32, name=f"{side}_token_ids") for side in ("encoder", "decoder")
    )
    return {"logits": (logits, [source, target]), "greedy": (greedy, [source])}
