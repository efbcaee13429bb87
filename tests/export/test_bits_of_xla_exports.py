"""What XLA compiles of an export has small weights as constants. It rounds as in Python, where they are variables.

In int8 this decides: where a float is rounded to another integer, a translation may be another one.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_seed import set_seed

from keras_attn.export import export_saved_model, run_saved_model
from keras_attn.models import Seq2SeqTransformer, quantized_copy
from keras_attn.ops import inference_scope
from keras_attn.tasks.batches import compiled_with_xla

SIZES = {
    "vocabulary_size": 131,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "hidden_dim": 52,
    "num_heads": 2,
    "intermediate_dim": 71,
    "max_sequence_length": 23,
}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("int8", {"normalize_first": True, "position_encoding": "rotary"}),
        *(
            pytest.param(*case, marks=pytest.mark.extended)
            for case in [
                ("bfloat16", {"normalize_first": True, "position_encoding": "rotary"}),
                ("int8", {"activation": "gelu"}),
                ("int8", {"normalization": "rms_norm", "gated": True, "activation": "silu"}),
                ("int8", {"position_encoding": "learned", "tie_output": False}),
            ]
        ),
    ],
)
def test_logits_are_those_of_python_to_the_last_bit(mode, options, tmp_path, rng):
    set_seed(3)
    model = Seq2SeqTransformer.from_sizes(**SIZES, **options)
    for weight in model.weights:
        weight.assign(np.asarray(weight) + 0.3 * rng.normal(size=weight.shape))
    model = quantized_copy(model, mode)
    inputs = {"sources": rng.integers(1, 131, (5, 13)), "targets": rng.integers(1, 131, (5, 7))}
    inputs["sources"][2, 8:] = 0

    def logits(sources, targets):
        return keras.ops.cast(model({"encoder_token_ids": sources, "decoder_token_ids": targets}), "float32")

    specs = [tf.TensorSpec(ids.shape, tf.int32, name) for name, ids in inputs.items()]
    with inference_scope():
        version = export_saved_model(
            tmp_path / "it",
            {"serving_default": (lambda *ids: {"logits": compiled_with_xla(logits, model)(*ids)}, specs)},
            models=[model],
        )
        in_python = compiled_with_xla(logits)(*(tf.constant(ids, tf.int32) for ids in inputs.values()))
    request = {"inputs": {name: ids.tolist() for name, ids in inputs.items()}}
    [answer] = run_saved_model(version, [request], timeout=300, xla=True)
    served = np.asarray(answer["outputs"]["logits"], "float32")
    assert np.ptp(served) > 1
    np.testing.assert_array_equal(served, in_python)
