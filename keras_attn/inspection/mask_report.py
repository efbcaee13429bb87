"""The answer of `check_masks`."""

import dataclasses

import numpy as np

from keras_attn.plots import plot_attention

_KINDS = {
    "padding": "the padding of",
    "causal": "later positions of",
    "segments": "other segments of",
    "batch": "other rows of",
}
_MOST_PAIRS = 3


@dataclasses.dataclass
class Leak:
    """An output that depends on what it must not see.

    Attributes:
        kind: `"padding"`, `"causal"`, `"segments"` or `"batch"`.
        input, output: Strings, their names. `input` is `"all inputs"` for `"batch"`.
        found_by: List of pairs (mode, method); the methods are `"forward"` (the vectors were changed), `"ids"` (the
            integers were), and `"gradient"`.
        pairs: List of triples (row, output position, input position), of `"batch"` of triples (output's row, output
            position, input's row). The output position of an output without positions is None.
        layer: Path of the first layer that what leaks comes out of and does not go into. None if it is none of the layers: the model's own
            `call`, or a leak that only the gradient shows.
    """

    kind: str
    input: str
    output: str
    found_by: list
    pairs: list
    layer: str | None = None

    def __str__(self):
        ways = ", ".join(f"{mode} {method}" for mode, method in self.found_by)
        where = "none of the layers alone" if self.layer is None else repr(self.layer)
        shown = "; ".join(self._pair(*pair) for pair in self.pairs[:_MOST_PAIRS])
        more = len(self.pairs) - _MOST_PAIRS
        shown += f"; and {more} more" if more > 0 else ""
        return (
            f"{self.output!r} depends on {_KINDS[self.kind]} {self.input!r} (found by: {ways}). "
            f"It enters in {where}. {shown[0].upper()}{shown[1:]}."
        )

    def _pair(self, row, position, source):
        place = "" if position is None else f" position {position}"
        if self.kind == "batch":
            return f"row {row}{place} sees row {source}"
        return f"row {row}{place} sees position {source}"


@dataclasses.dataclass
class MaskReport:
    """What each output of a model depends on, and what it must not depend on and does. `check_masks` makes it.

    Attributes:
        leaks: List of `Leak`, empty for a right model.
        reach: Dict from pairs (output, input) to booleans (T, S), or (1, S) for an output without positions: whether a change at
            the input's position reaches the output's position, in any row, mode and method.
        nan_spreads: List of pairs (output, input): NaN in the input's padding reaches real positions of the output. In Keras'
            own attention it does, since 0 times NaN is NaN.
        notes: List of strings, what could not be checked, and why.

    Example:

    ```python
    model = keras_attn.models.DecoderTransformer.from_sizes(100, 1, hidden_dim=16, num_heads=2, intermediate_dim=32)
    token_ids = np.array([[5, 6, 7, 8], [9, 5, 0, 0]])
    report = check_masks(model, token_ids, padding={"inputs": token_ids != 0}, causal=["inputs"])
    report.raise_if_leaking()
    print(report.table())
    ```
    """

    leaks: list
    reach: dict
    nan_spreads: list
    notes: list

    def __str__(self):
        count = len(self.leaks)
        lines = ["No leak." if not count else "1 leak" if count == 1 else f"{count} leaks"]
        lines += [f"- {leak}" for leak in self.leaks]
        lines += [
            f"NaN in the padding of {source!r} reaches real positions of {output!r}."
            for output, source in self.nan_spreads
        ]
        return "\n".join([*lines, *self.notes, "", self.table()])

    def raise_if_leaking(self):
        """Raises AssertionError with the whole report if there is a leak: one line for a model's own tests."""
        if self.leaks:
            raise AssertionError(str(self))

    def table(self):
        """Which position reaches which, as text: a row for each output position, `#` where the input's position reaches it."""
        parts = []
        for (output, source), reach in self.reach.items():
            width = len(str(reach.shape[0] - 1))
            lines = [f"{output!r} (rows) depends on {source!r} (columns):"]
            for position, row in enumerate(reach):
                name = str(position) if len(reach) > 1 else " "
                lines.append(f"{name:>{width + 2}} " + "".join("#" if reaches else "." for reaches in row))
            parts.append("\n".join(lines))
        return "\n\n".join(parts)

    def plot(self, output=None, input=None, path=None):
        """A picture of `reach`: dark where the column's position reaches the row's.

        Args:
            output, input: Strings, the names. They default to the first pair.
            path: Where to save the figure, as `.png`, `.svg` or `.pdf`.

        Returns:
            A `matplotlib.figure.Figure`.

        Raises:
            ValueError: if there is no such pair.
        """
        pairs = [pair for pair in self.reach if output in (None, pair[0]) and input in (None, pair[1])]
        if not pairs:
            raise ValueError(
                f"`output` and `input` must name one of {list(self.reach)}. Received: output={output!r}, input={input!r}."
            )
        reach = self.reach[pairs[0]]
        rows, columns = (list(map(str, range(size))) for size in reach.shape)
        title = f"{pairs[0][0]} depends on {pairs[0][1]}"
        return plot_attention(reach.astype("float32"), columns, rows if len(rows) > 1 else [""], title, path)


def pairs_of(matrix, has_positions):
    """The places of True in (B, T, S), as the pairs of a `Leak`."""
    return [
        (int(row), int(position) if has_positions else None, int(source))
        for row, position, source in np.argwhere(matrix)
    ]
