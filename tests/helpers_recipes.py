"""Recipes of runs that end in a moment, and runs that end before they begin."""

import collections

# The smallest model of a run.
TINY = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "hidden_dim": 8,
    "num_heads": 2,
    "intermediate_dim": 11,
}
Begun = collections.namedtuple("Begun", ["data", "folder", "recipe"])


def record_runs(monkeypatch):
    """A list to which a `Begun` is added in place of each run that would be trained."""
    begun = []

    class Run:
        def __init__(self, recipe, data, folder, *others, **start):
            begun.append(Begun(data, str(folder), recipe))

        def go(self):
            return None

    for name in ("TranslationRun", "LanguageModelRun", "DistillationRun"):
        monkeypatch.setattr(f"keras_attn.runs.settling.{name}", Run)
    return begun


# Of a run that begins with a translator.
SHORT = {
    "epochs": 2,
    "steps_per_epoch": 7,
    "max_tokens": 128,
    "bucket_boundaries": (8, 16),
    "learning_rate": 0.01,
    "warmup_steps": 3,
    "dtype": "float32",
    "num_beams": 1,
    "max_length": 7,
}
