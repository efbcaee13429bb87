"""Learning-rate schedules of the papers, counted in optimizer updates."""

import math
import numbers

import keras
from keras import ops

from keras_attn.checks import check_positive


@keras.saving.register_keras_serializable(package="keras_attn")
class NoamSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The schedule of "Attention Is All You Need": a linear rise, then an inverse square root.

    The paper counts updates from 1; Keras calls a schedule with `optimizer.iterations`, which is 0 at the
    first update. `schedule(i)` is therefore the rate of update `i + 1`: no update has the rate 0, and the
    peak `(hidden_dim * warmup_steps) ** -0.5` falls on update `warmup_steps`. The rate is computed in float32
    whatever the dtype of the step.

    With `gradient_accumulation_steps=k`, Keras calls a schedule with the number of batches instead of the
    number of updates: wrap it in `PerUpdateSchedule`.

    Args:
        hidden_dim: Positive integer, the model width.
        warmup_steps: Positive integer, the number of updates over which the rate rises.

    Call arguments:
        step: Integer or scalar tensor, the number of updates already applied.

    Returns:
        Scalar float32 tensor, the learning rate of the next update.

    Raises:
        ValueError: If `hidden_dim` or `warmup_steps` is not a positive integer.

    Example:

    ```python
    schedule = NoamSchedule(hidden_dim=512)
    optimizer = keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9)
    ```

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 5.3.
    """

    def __init__(self, hidden_dim, warmup_steps=4000):
        self.hidden_dim = check_positive("hidden_dim", hidden_dim)
        self.warmup_steps = check_positive("warmup_steps", warmup_steps)

    def __call__(self, step):
        update = _update_number(step)
        rise = update * self.warmup_steps**-1.5
        return self.hidden_dim**-0.5 * ops.minimum(ops.rsqrt(update), rise)

    def get_config(self):
        return {"hidden_dim": self.hidden_dim, "warmup_steps": self.warmup_steps}


@keras.saving.register_keras_serializable(package="keras_attn")
class InverseSquareRootSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """fairseq's `inverse_sqrt`: a linear rise to a chosen peak, then an inverse square root.

    Unlike `NoamSchedule` the peak is an argument and does not depend on the model width. `schedule(i)` is
    the rate of update `i + 1`, so that update `warmup_steps` has exactly the rate `learning_rate`; fairseq
    starts at `initial_learning_rate` itself and reaches its peak one update later.

    With `gradient_accumulation_steps=k`, Keras calls a schedule with the number of batches instead of the
    number of updates: wrap it in `PerUpdateSchedule`.

    Args:
        learning_rate: Positive float, the peak.
        warmup_steps: Positive integer, the number of updates over which the rate rises.
        initial_learning_rate: Float in `[0, learning_rate]`, where the rise starts.

    Call arguments:
        step: Integer or scalar tensor, the number of updates already applied.

    Returns:
        Scalar float32 tensor, the learning rate of the next update.

    Raises:
        ValueError: If an argument is outside the range named above.

    Example:

    ```python
    schedule = InverseSquareRootSchedule(learning_rate=0.005, warmup_steps=2000)
    optimizer = keras.optimizers.Adam(schedule, beta_2=0.98)
    ```

    Reference: [Ott et al., 2019](https://arxiv.org/abs/1904.01038), fairseq's
    `optim/lr_scheduler/inverse_square_root_schedule.py`.
    """

    def __init__(self, learning_rate, warmup_steps=4000, initial_learning_rate=1e-7):
        self.learning_rate = _positive_rate("learning_rate", learning_rate)
        self.initial_learning_rate = _rate_up_to(
            "initial_learning_rate", initial_learning_rate, self.learning_rate
        )
        self.warmup_steps = check_positive("warmup_steps", warmup_steps)

    def __call__(self, step):
        update = _update_number(step)
        progress = update / self.warmup_steps
        # Written as a weighted mean, which gives the peak exactly where progress is 1.
        rise = self.initial_learning_rate * (1 - progress) + self.learning_rate * progress
        fall = self.learning_rate * ops.rsqrt(progress)
        return ops.where(progress < 1, rise, fall)

    def get_config(self):
        return {
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
            "initial_learning_rate": self.initial_learning_rate,
        }


class _WarmupThenFall(keras.optimizers.schedules.LearningRateSchedule):
    """A linear rise to a peak, then a fall to the end of training. A subclass defines the fall's shape."""

    def __init__(self, learning_rate, warmup_steps, total_steps, final_learning_rate=0.0):
        self.learning_rate = _positive_rate("learning_rate", learning_rate)
        self.warmup_steps = check_positive("warmup_steps", warmup_steps)
        self.total_steps = check_positive("total_steps", total_steps)
        if self.total_steps <= self.warmup_steps:
            raise ValueError(
                "`total_steps` must be greater than `warmup_steps`, which it counts too. "
                f"Received: total_steps={total_steps}, warmup_steps={warmup_steps}."
            )
        self.final_learning_rate = _rate_up_to("final_learning_rate", final_learning_rate, self.learning_rate)

    def _share(self, progress):
        """The remaining share of the fall: 1 at `progress` 0, and 0 at `progress` 1."""
        raise NotImplementedError

    def __call__(self, step):
        update = _update_number(step)
        progress = (update - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        share = self._share(ops.clip(progress, 0.0, 1.0))
        fall = self.learning_rate * share + self.final_learning_rate * (1 - share)
        return ops.where(update < self.warmup_steps, self.learning_rate * (update / self.warmup_steps), fall)

    def get_config(self):
        return {
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
            "final_learning_rate": self.final_learning_rate,
        }


@keras.saving.register_keras_serializable(package="keras_attn")
class WarmupCosineSchedule(_WarmupThenFall):
    """A linear rise to a chosen peak, then half a cosine down, for training of a length known beforehand.

    Updates are counted as in `NoamSchedule`: `schedule(i)` is the rate of update `i + 1`, update
    `warmup_steps` has exactly the rate `learning_rate`, and update `total_steps` and all later ones have the
    rate `final_learning_rate`. Keras' `CosineDecay` counts its `decay_steps` from the end of the warm-up, and
    its update 1 has the rate 0.

    Args:
        learning_rate: Positive float, the peak.
        warmup_steps: Positive integer, the number of updates over which the rate rises from 0.
        total_steps: Integer greater than `warmup_steps`, the updates of the whole training.
        final_learning_rate: Float in `[0, learning_rate]`.

    Call arguments, returned rate and errors: as in `InverseSquareRootSchedule`.

    Example:

    ```python
    schedule = WarmupCosineSchedule(learning_rate=0.001, warmup_steps=100, total_steps=2000)
    optimizer = keras.optimizers.AdamW(schedule, beta_2=0.99)
    ```

    Reference: [Loshchilov and Hutter, 2017](https://arxiv.org/abs/1608.03983), equation 5, without restarts.
    """

    def _share(self, progress):
        return (1 + ops.cos(math.pi * progress)) / 2


@keras.saving.register_keras_serializable(package="keras_attn")
class WarmupLinearSchedule(_WarmupThenFall):
    """A linear rise to a chosen peak, then a straight line down, for training of a length known beforehand.

    Updates are counted as in `WarmupCosineSchedule`.

    Args, call arguments, returned rate and errors: as in `WarmupCosineSchedule`.

    Example:

    ```python
    schedule = WarmupLinearSchedule(learning_rate=5e-5, warmup_steps=100, total_steps=2000)
    optimizer = keras.optimizers.AdamW(schedule)
    ```

    Reference: [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), appendix A.2.
    """

    def _share(self, progress):
        return 1 - progress


@keras.saving.register_keras_serializable(package="keras_attn")
class PerUpdateSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Makes a schedule count updates when gradients are accumulated over several batches.

    With `gradient_accumulation_steps=k`, Keras calls an optimizer's schedule with the number of batches, so a
    warm-up of 4,000 steps would end after 4,000 / k updates. Here all k batches of an update have that
    update's rate.

    Args:
        schedule: `keras.optimizers.schedules.LearningRateSchedule`.
        gradient_accumulation_steps: Positive integer, the optimizer's value.

    Call arguments:
        step: Integer or scalar tensor, the number of batches already seen.

    Returns:
        Scalar float32 tensor, the learning rate.

    Raises:
        ValueError: If `gradient_accumulation_steps` is not a positive integer.

    Example:

    ```python
    schedule = PerUpdateSchedule(NoamSchedule(hidden_dim=512), gradient_accumulation_steps=8)
    optimizer = keras.optimizers.Adam(schedule, beta_2=0.98, gradient_accumulation_steps=8)
    ```
    """

    def __init__(self, schedule, gradient_accumulation_steps):
        self.schedule = schedule
        self.gradient_accumulation_steps = check_positive(
            "gradient_accumulation_steps", gradient_accumulation_steps
        )

    def __call__(self, step):
        return self.schedule(ops.floor_divide(step, self.gradient_accumulation_steps))

    def get_config(self):
        return {
            "schedule": keras.saving.serialize_keras_object(self.schedule),
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
        }

    @classmethod
    def from_config(cls, config):
        schedule = keras.saving.deserialize_keras_object(config["schedule"])
        return cls(schedule, config["gradient_accumulation_steps"])


def _update_number(step):
    # Cast before adding: float16 cannot count past 2048, and an int32 step overflows at its largest value.
    return ops.convert_to_tensor(step, dtype="float32") + 1.0


def _positive_rate(name, value):
    if not (_is_real(value) and 0 < value < math.inf):
        raise ValueError(f"`{name}` must be a positive finite number. Received: {name}={value!r}.")
    return float(value)


def _rate_up_to(name, value, learning_rate):
    if not (_is_real(value) and 0 <= value <= learning_rate):
        raise ValueError(
            f"`{name}` must be a number between 0 and `learning_rate`. "
            f"Received: {name}={value!r}, learning_rate={learning_rate!r}."
        )
    return float(value)


def _is_real(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
