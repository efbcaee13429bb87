"""From named graph functions to what serves them: a SavedModel version folder, and a run of it as a server would."""

from keras_attn.export.saved_model import export_saved_model, string_vector
from keras_attn.export.saved_model_runner import run_saved_model
from keras_attn.export.verification import Check, verify_saved_model

__all__ = ["Check", "export_saved_model", "run_saved_model", "string_vector", "verify_saved_model"]
