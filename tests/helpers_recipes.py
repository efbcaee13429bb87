"""Recipes of runs that end in a moment."""

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
