"""The optimizer and the schedule of a recipe."""

import keras
from keras import ops

from keras_attn.training import (
    Adam,
    AdamW,
    InverseSquareRootSchedule,
    NoamSchedule,
    PerUpdateSchedule,
    WarmupCosineSchedule,
    WarmupLinearSchedule,
)


def make_optimizer(recipe, hidden_dim, total_updates):
    """The optimizer of a recipe.

    Args:
        recipe: A `Recipe`.
        hidden_dim: Integer, the model width, which the Noam schedule depends on.
        total_updates: Integer, the number of updates of the whole training. The cosine and the linear
            schedule end there.

    Returns:
        `keras.optimizers.Optimizer`.
    """
    steps = recipe.gradient_accumulation_steps
    total_updates = max(total_updates, recipe.warmup_steps + 1)
    schedule = PacedSchedule(_SCHEDULES[recipe.schedule](recipe, hidden_dim, total_updates))
    options = {
        "learning_rate": schedule if steps == 1 else PerUpdateSchedule(schedule, steps),
        "beta_1": recipe.beta_1,
        "beta_2": recipe.beta_2,
        "epsilon": recipe.epsilon,
        "global_clipnorm": recipe.global_clipnorm,
        "gradient_accumulation_steps": None if steps == 1 else steps,
    }
    if recipe.ema_momentum is not None:
        # Keras averages after every batch, those without an update included.
        options |= {"use_ema": True, "ema_momentum": recipe.ema_momentum ** (1 / steps)}
    if recipe.optimizer == "adam":
        optimizer = Adam(**options)
    else:
        optimizer = AdamW(weight_decay=recipe.weight_decay, **options)
        # As in the papers, biases and the parameters of normalisation do not decay.
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    # One of the optimizer's variables, so that it is in every state, and JAX' steps read what was assigned.
    optimizer.pace = schedule.pace
    return optimizer


class PacedSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that can go on faster from some update on, so that it is complete when training must be shorter than planned.

    `pace`, a variable, is (`update`, `position`, `speed`): from `update` on, the rate is that of the schedule at
    `position + (step - update) * speed`. At first these are 0, 0 and 1, which changes nothing.

    Args:
        schedule: `keras.optimizers.schedules.LearningRateSchedule` that counts updates.
    """

    def __init__(self, schedule):
        self.schedule = schedule
        self.pace = keras.Variable([0.0, 0.0, 1.0], dtype="float32", trainable=False, name="pace")

    def __call__(self, step):
        update, position, speed = ops.unstack(ops.convert_to_tensor(self.pace), 3)
        return self.schedule(position + (ops.cast(step, "float32") - update) * speed)

    def get_config(self):
        return {"schedule": keras.saving.serialize_keras_object(self.schedule)}


_SCHEDULES = {
    "inverse_square_root": lambda recipe, hidden_dim, total_updates: InverseSquareRootSchedule(
        recipe.learning_rate, recipe.warmup_steps
    ),
    "noam": lambda recipe, hidden_dim, total_updates: NoamSchedule(hidden_dim, recipe.warmup_steps),
    "cosine": lambda recipe, hidden_dim, total_updates: WarmupCosineSchedule(
        recipe.learning_rate, recipe.warmup_steps, total_updates
    ),
    "linear": lambda recipe, hidden_dim, total_updates: WarmupLinearSchedule(
        recipe.learning_rate, recipe.warmup_steps, total_updates
    ),
    "constant": lambda recipe, hidden_dim, total_updates: WarmupLinearSchedule(
        recipe.learning_rate, recipe.warmup_steps, total_updates, final_learning_rate=recipe.learning_rate
    ),
}
