"""The optimizer and the schedule of a recipe."""

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
    schedule = _SCHEDULES[recipe.schedule](recipe, hidden_dim, max(total_updates, recipe.warmup_steps + 1))
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
        return Adam(**options)
    optimizer = AdamW(weight_decay=recipe.weight_decay, **options)
    # As in the papers, biases and the parameters of normalisation do not decay.
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer


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
