"""Learning-rate schedules of the papers, counted in optimizer updates."""

import math
import numbers

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_attn")
class NoamSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The schedule of "Attention Is All You Need": a linear rise, then an inverse square root.

    The paper counts updates from 1, Keras calls a schedule with `optimizer.iterations`, which is 0 at the
    first update. `schedule(i)` is therefore the rate of update `i + 1`: no update has the rate 0, and the
    peak `(hidden_dim * warmup_steps) ** -0.5` falls on update `warmup_steps`. The rate is computed in
    float32 whatever the dtype of the step.

    With `gradient_accumulation_steps=k` Keras hands a schedule its count of batches instead of its count
    of updates, so the warm-up then lasts `warmup_steps` batches.

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
        self.hidden_dim = _positive_integer("hidden_dim", hidden_dim)
        self.warmup_steps = _positive_integer("warmup_steps", warmup_steps)

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

    With `gradient_accumulation_steps=k` Keras hands a schedule its count of batches instead of its count
    of updates, so the warm-up then lasts `warmup_steps` batches.

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
        if not (_is_real(learning_rate) and 0 < learning_rate < math.inf):
            raise ValueError(
                f"`learning_rate` must be a positive finite number. Received: learning_rate={learning_rate!r}."
            )
        if not (_is_real(initial_learning_rate) and 0 <= initial_learning_rate <= learning_rate):
            raise ValueError(
                "`initial_learning_rate` must be a number between 0 and `learning_rate`. Received: "
                f"initial_learning_rate={initial_learning_rate!r}, learning_rate={learning_rate!r}."
            )
        self.learning_rate = float(learning_rate)
        self.warmup_steps = _positive_integer("warmup_steps", warmup_steps)
        self.initial_learning_rate = float(initial_learning_rate)

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


def _update_number(step):
    # Cast before adding: float16 cannot count past 2048, and an int32 step overflows at its largest value.
    return ops.convert_to_tensor(step, dtype="float32") + 1.0


def _positive_integer(name, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value!r}.")
    return int(value)


def _is_real(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
