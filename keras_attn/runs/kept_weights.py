"""Which weights a run keeps at its end, and why."""

import dataclasses

SIGNIFICANT = 0.05


@dataclasses.dataclass(frozen=True)
class Kept:
    """What a run kept, and why.

    Args:
        weights: String, what was kept.
        reason: String, why.
        p_value: Float, of the paired test of the best epoch against the average; None where nothing was tested.
    """

    weights: str
    reason: str
    p_value: float | None = None

    def report(self):
        """A line to read."""
        return f"Kept: {self.weights}; {self.reason}."


def kept_weights(average, p_value):
    """The `Kept` of an average and a best epoch.

    Args:
        average: String, the name of the average.
        p_value: Float, of the paired test that the best epoch is better; None where it does not score better.
    """
    if p_value is None:
        return Kept(average, "the best epoch does not score better on validation")
    if p_value < SIGNIFICANT:
        return Kept(
            "best epoch",
            f"it is better on validation than the average (paired test, p = {p_value:.2g})",
            p_value,
        )
    return Kept(
        average,
        "the best epoch scores better on validation, but as the best of several; its lead may be chance (paired test, "
        f"p = {p_value:.2g})",
        p_value,
    )
