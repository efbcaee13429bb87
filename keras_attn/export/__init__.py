"""From named graph functions to what serves them: a SavedModel version folder, and a run of it as a server would."""

from keras_attn.export.saved_model import export_saved_model, string_vector
from keras_attn.export.saved_model_runner import run_saved_model
from keras_attn.export.serving_files import (
    read_batching_parameters,
    read_warmup_requests,
    read_xla_buckets,
    write_batching_parameters,
    write_warmup_requests,
    write_xla_buckets,
)
from keras_attn.export.verification import Check, verify_saved_model

__all__ = [
    "Check",
    "export_saved_model",
    "read_batching_parameters",
    "read_warmup_requests",
    "read_xla_buckets",
    "run_saved_model",
    "string_vector",
    "verify_saved_model",
    "write_batching_parameters",
    "write_warmup_requests",
    "write_xla_buckets",
]
