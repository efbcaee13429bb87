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
        layer: Path of the first layer whose outputs show the leak and whose inputs do not. None if there is no such layer: the
            leak is in the model's own `call`, or only the gradient shows it.
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
        pairs = [self._pair_text(*pair) for pair in self.pairs[:_MOST_PAIRS]]
        num_more = len(self.pairs) - len(pairs)
        if num_more:
            pairs.append(f"and {num_more} more")
        pairs_text = "; ".join(pairs)
        return (
            f"{self.output!r} depends on {_KINDS[self.kind]} {self.input!r} (found by: {ways}). "
            f"It enters in {where}. {pairs_text[0].upper()}{pairs_text[1:]}."
        )

    def _pair_text(self, row, position, source):
        text = f"row {row}"
        if position is not None:
            text += f" position {position}"
        source_axis = "row" if self.kind == "batch" else "position"
        return f"{text} sees {source_axis} {source}"


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
        if not self.leaks:
            lines = ["No leak."]
        elif len(self.leaks) == 1:
            lines = ["1 leak"]
        else:
            lines = [f"{len(self.leaks)} leaks"]
        lines += [f"- {leak}" for leak in self.leaks]
        for output, source in self.nan_spreads:
            lines.append(f"NaN in the padding of {source!r} reaches real positions of {output!r}.")
        lines += self.notes
        lines += ["", self.table()]
        return "\n".join(lines)

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
                marks = "".join(".#"[int(reaches)] for reaches in row)
                lines.append(f"{name:>{width + 2}} {marks}")
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
        output, input = pairs[0]
        reach = self.reach[output, input]
        num_rows, num_columns = reach.shape
        columns = [str(column) for column in range(num_columns)]
        rows = [str(row) for row in range(num_rows)] if num_rows > 1 else [""]
        title = f"{output} depends on {input}"
        return plot_attention(reach.astype("float32"), columns, rows, title, path)


def leak_pairs(matrix, has_positions):
    """The pairs of a `Leak`: where a matrix (B, T, S) is True."""
    pairs = []
    for row, position, source in np.argwhere(matrix).tolist():
        pairs.append((row, position if has_positions else None, source))
    return pairs
