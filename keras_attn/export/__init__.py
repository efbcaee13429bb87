"""Exports graph functions or a model for other engines, and runs an export as a server would."""

from keras_attn.export.ctranslate2 import export_ctranslate2
from keras_attn.export.deployment import Deployment, write_deployment
from keras_attn.export.onnx_and_litert import export_litert, export_onnx
from keras_attn.export.saved_model import export_saved_model, string_vector
from keras_attn.export.saved_model_process import run_saved_model, runner_command
from keras_attn.export.serving_files import (
    read_batching_parameters,
    read_quantization,
    read_shortlist,
    read_task_declaration,
    read_warmup_requests,
    read_xla_buckets,
    write_batching_parameters,
    write_quantization,
    write_shortlist,
    write_task_declaration,
    write_warmup_requests,
    write_xla_buckets,
)
from keras_attn.export.verification import TEXTS, Check, verify_saved_model

__all__ = [
    "TEXTS",
    "Check",
    "Deployment",
    "export_ctranslate2",
    "export_litert",
    "export_onnx",
    "export_saved_model",
    "read_batching_parameters",
    "read_quantization",
    "read_shortlist",
    "read_task_declaration",
    "read_warmup_requests",
    "read_xla_buckets",
    "run_saved_model",
    "runner_command",
    "string_vector",
    "verify_saved_model",
    "write_batching_parameters",
    "write_deployment",
    "write_quantization",
    "write_shortlist",
    "write_task_declaration",
    "write_warmup_requests",
    "write_xla_buckets",
]
