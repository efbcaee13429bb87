import keras
import numpy as np
from keras import ops

from keras_attn.checks import choose
from keras_attn.inspection.backends import gradients
from keras_attn.inspection.call_modes import MODES
from keras_attn.inspection.mask_report import Leak, MaskReport, pairs_of
from keras_attn.inspection.mask_rules import Declarations, check_inputs
from keras_attn.inspection.perturbed_model import PerturbedModel, is_mask

# Changes are three standard deviations of the vectors that are changed.
_NOISE = 3.0
# A change below this share of the largest output, or gradient, is none. What is masked is exactly 0 in right models.
_TOLERANCE = 1e-6
# The most positions in a call with several copies of the rows.
_MOST_POSITIONS = 2**14
_ALL_INPUTS = "all inputs"
_ROWS_MIX = "Rows mix, so that the other leaks may come from other rows."


def check_masks(model, inputs, padding=None, causal=None, segments=None, modes=("eager",)):
    """Finds out which position of a model's inputs reaches which position of its outputs, and judges what is declared.

    The vectors at each input position are changed in turn (of integer inputs at the outputs of the layers that embed
    them), the integers themselves are changed where that does not change the mask, and gradients are taken. A real output position must
    not depend on padding, with `causal` not on later positions, with `segments` not on other segments, and never on
    another row of the batch. It works for any Keras model, in eager mode or compiled; the model is not changed.

    It takes about two calls and one gradient for each position, so a few short rows of different lengths are best. Weights must not be
    all 0, since what is multiplied by 0 does not leak.

    Args:
        model: Built `keras.Model` or layer.
        inputs: What it is called with: an array (B, T) or (B, T, ...), or a flat dict or list of them, which are given to a
            `call` of several arguments in turn. Two rows or more show whether rows mix.
        padding: Dict from input names to booleans (B, T), True at real positions. Inputs that are not named have the
            padding that Keras layers compute for them (`mask_zero`, `Masking`), if any. What is computed at pads is not judged. The one input
            of a model may be called `"inputs"`.
        causal: Name of an input, or a list of them: the output at position t sees their positions up to t alone.
        segments: Dict from input names to integers (B, T): packed sequences, which do not see each other. 0 is padding.
        modes: How the model is called, tuple of: `"eager"`, `"graph"`, `"xla"`; `"training"` (`training=True` with a fixed seed;
            batch normalisation stays as in inference); `"dropout"` (inference, where the attention layers of Keras have
            dropout configured); `"mixed_float16"`, `"mixed_bfloat16"`.

    Returns:
        `MaskReport`: its `leaks` are empty for a right model.

    Raises:
        ValueError: if the model is not built, names or shapes do not fit, or what is declared cannot be checked.

    Example:

    ```python
    token_ids = keras.Input((None,), dtype="int32", name="token_ids")
    x = keras.layers.Embedding(100, 16, mask_zero=True)(token_ids)
    x = keras.layers.MultiHeadAttention(num_heads=2, key_dim=8)(x, x, use_causal_mask=True)
    model = keras.Model(token_ids, x)
    inputs = np.array([[5, 6, 7, 8], [9, 5, 0, 0]])
    check_masks(model, inputs, causal=["token_ids"]).raise_if_leaking()
    ```
    """
    if not isinstance(model, keras.layers.Layer) or not model.built:
        raise ValueError(f"`model` must be a built `keras.Model` or layer. Received: {model!r}.")
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    for mode in modes:
        choose("modes", mode, MODES)
    check_inputs(inputs)
    perturbed = PerturbedModel(model, inputs)
    declared = Declarations(perturbed.inputs, padding, causal, segments, perturbed.implicit_masks)
    check = _Check(perturbed, declared)
    try:
        for mode in modes:
            with MODES[mode](perturbed) as compiler:
                check.run(mode, compiler)
    finally:
        perturbed.restore()
    return check.report()


class _Check:
    """Perturbs a model in each mode and collects what depends on what."""

    def __init__(self, perturbed, declared):
        self.perturbed, self.declared = perturbed, declared
        self.outputs = {name: tuple(x.shape) for name, x in perturbed.named_outputs().items() if len(x.shape)}
        self.rng = np.random.default_rng(0)
        self.noise = [
            self.rng.normal(size=point.shape).astype("float32") * _NOISE * point.scale
            for point in perturbed.points
        ]
        self.leaks, self.reach, self.nan_spreads, self.notes = {}, {}, [], []
        self.batch_size = declared.batch_size
        self.positional = list(
            dict.fromkeys(point.name for point in perturbed.points if len(point.shape) > 2)
        )
        self._check_outputs()
        self._check_inputs()

    def _check_outputs(self):
        for name in self.declared.causal:
            if not any(self._length(output) == self.declared.lengths[name] for output in self.outputs):
                raise ValueError(
                    f"`causal` names {name!r} of {self.declared.lengths[name]} positions, but no output has as many: "
                    f"(B, T, ...). The outputs' shapes are {self.outputs}."
                )
        for name in self.declared.segments:
            if all(self.declared.segments_of(self._length(output)) is None for output in self.outputs):
                raise ValueError(
                    "`segments` needs an output with the positions of an input whose segments are given. "
                    f"Received: segments of {name!r}; the outputs' shapes are {self.outputs}."
                )
        for output, shape in self.outputs.items():
            if shape[0] != self.batch_size:
                self.notes.append(f"{output!r} of shape {shape} is not judged: it has no rows of the batch.")
        self.outputs = {name: shape for name, shape in self.outputs.items() if shape[0] == self.batch_size}
        if self.batch_size == 1:
            self.notes.append("Whether rows mix is not checked: there is one row.")

    def _check_inputs(self):
        inputs, declared = self.perturbed.inputs, self.declared
        # The inputs whose ids at pads can be changed, since the model is told the mask.
        self.with_explicit_mask = {
            name
            for name, mask in declared.padding.items()
            for other, array in inputs.items()
            if other != name
            and array.shape == mask.shape
            and is_mask(array)
            and (array.astype(bool) == mask).all()
        }
        for name in declared.names:
            if name in self.positional:
                continue
            if inputs[name].dtype.kind not in "iu" or inputs[name].ndim != 2:
                raise ValueError(
                    f"{name!r} cannot be changed position by position: it must be floats (B, T, ...) or integers (B, T). "
                    f"Received: {inputs[name].dtype} of shape {inputs[name].shape}."
                )
            if (
                name in declared.padding
                and not declared.padding[name].all()
                and name not in self.with_explicit_mask
            ):
                raise ValueError(
                    f"The padding of {name!r} cannot be checked: no layer embeds these ids, and another id at a pad may "
                    "no longer be a pad. Give the model its mask as an input, or check the model after its embedding."
                )
        for name, array in inputs.items():
            if (
                name not in {point.name for point in self.perturbed.points}
                and name not in declared.names
                and not is_mask(array)
            ):
                self.notes.append(f"{name!r} is not changed: it is neither float nor embedded by a layer.")

    def _length(self, output):
        shape = self.outputs[output]
        return shape[1] if len(shape) > 2 else None

    # The runs of one mode.

    def run(self, mode, compiler):
        self.mode = mode
        self._forward = compiler(self.perturbed.forward)
        self._gradients = compiler(self._gradients_of)
        self.copies = self._num_copies()
        self._find_base()
        if self._rows_mix():
            if _ROWS_MIX not in self.notes:
                self.notes.append(_ROWS_MIX)
            self.copies = 1
            self._find_base()
        self._change_vectors()
        self._change_ids()
        self._put_nan_in_padding()
        self._take_gradients()

    def _num_copies(self):
        """How many changes are tried in one call, each in its own copy of the rows."""
        inputs = getattr(self.perturbed.model, "inputs", None) or []
        if any(x.shape and x.shape[0] is not None for x in inputs):
            return 1
        longest = max([*self.declared.lengths.values(), self.batch_size])
        return max(1, min(longest, _MOST_POSITIONS // (self.batch_size * longest)))

    def _find_base(self):
        self.base = self._outputs_of([(None, None)])
        wrong = [
            output
            for output, y in self.base.items()
            if not np.isfinite(
                y[0] if self._length(output) is None else y[0][self.declared.real(self._length(output))]
            ).all()
        ]
        if wrong:
            raise ValueError(
                f"In the mode {self.mode!r} the outputs {wrong} hold NaN or Inf before any change."
            )
        again = self._outputs_of([(None, None)])
        drawn = [output for output, y in self.base.items() if differs(y[0], again[output][0]).any()]
        if drawn:
            raise ValueError(
                f"In the mode {self.mode!r} two calls with the same inputs give other outputs {drawn}: the model draws random "
                "numbers that no `keras.random.SeedGenerator` of its layers begins. What comes of a change cannot be told."
            )

    def _rows_mix(self):
        """Changes one row at a time. The others must not change."""
        if self.batch_size == 1:
            return False
        rows = [np.arange(self.batch_size) == row for row in range(self.batch_size)]
        variants = [(None, [noise * _over(row, noise.ndim) for noise in self.noise]) for row in rows]
        mix = False
        for output, changed in self._changed(variants).items():  # (rows, B, T)
            matrix = np.moveaxis(changed, 0, -1) & ~np.eye(self.batch_size, dtype=bool)[:, None]
            self._note("batch", _ALL_INPUTS, output, matrix, "forward")
            mix = mix or matrix.any()
        return mix

    def _change_vectors(self):
        for name in self.positional:
            places = np.eye(self.declared.lengths[name], dtype=bool)
            variants = [(None, self._changes(name, place[None])) for place in places]
            self._judge_variants(name, variants, "forward")

    def _change_ids(self):
        for name, array in self.perturbed.inputs.items():
            if array.dtype.kind not in "iu" or array.ndim != 2 or name not in self.declared.names:
                continue
            mask = self.declared.padding.get(name, np.ones(array.shape, bool))
            if name in self.declared.segments:
                mask = mask & (self.declared.segments[name] != 0)
            others = self._other_ids(array, mask)
            # Another id at a pad might no longer be a pad, unless the model is told the mask.
            may_change = mask | (name in self.with_explicit_mask)
            variants = []
            for place in np.eye(array.shape[1], dtype=bool):
                variants.append(({name: np.where(may_change & place, others, array)}, None))
            self._judge_variants(name, variants, "ids")

    def _judge_variants(self, name, variants, method):
        """Judges changes of each position of an input in turn."""
        for output, changed in self._changed(variants).items():  # (S, B, T)
            self._judge(output, name, np.moveaxis(changed, 0, -1), method)

    def _other_ids(self, array, mask):
        """For each place another id, of those that stand at real positions."""
        ids = np.unique(array[mask])
        if len(ids) < 2:
            return array
        places = np.searchsorted(ids, np.where(mask, array, ids[0]))
        steps = self.rng.integers(1, len(ids), array.shape)
        return ids[(places + steps) % len(ids)].astype(array.dtype)

    def _put_nan_in_padding(self):
        for name in self.positional:
            mask = self.declared.padding.get(name)
            if mask is None or mask.all():
                continue
            changes = [
                np.where(change != 0, np.float32("nan"), change) for change in self._changes(name, ~mask)
            ]
            for output, changed in self._changed([(None, changes)]).items():
                reaches = (changed[0] & self.declared.real(self._length(output))).any()
                if reaches and (output, name) not in self.nan_spreads:
                    self.nan_spreads.append((output, name))

    def _take_gradients(self):
        if not self.perturbed.points:
            return
        for output, shape in self.outputs.items():
            direction = self.rng.normal(size=shape).astype("float32")
            places = np.eye(self._size(output), dtype=bool)[:, None]  # (T, 1, T)
            directions = [direction * _over(place, len(shape)) for place in places]
            by_position = self._gradient_sizes(output, directions)
            for name in self.positional:
                sizes = np.stack([sizes[name] for sizes in by_position], axis=1)  # (B, T, S)
                self._judge(output, name, sizes > _TOLERANCE * max(sizes.max(), 1e-30), "gradient")
            if self.batch_size > 1:
                self._take_gradients_of_rows(output, direction)

    def _take_gradients_of_rows(self, output, direction):
        rows = np.eye(self.batch_size, dtype=bool)
        by_row = self._gradient_sizes(output, [direction * _over(row, direction.ndim) for row in rows])
        # (row of the output, row of the input)
        sizes = np.stack([np.max([size.max(axis=1) for size in sizes.values()], axis=0) for sizes in by_row])
        matrix = np.zeros((self.batch_size, self._size(output), self.batch_size), bool)
        # Which position it is was not asked: it is noted at the first.
        matrix[:, 0] = (sizes > _TOLERANCE * max(sizes.max(), 1e-30)) & ~rows
        self._note("batch", _ALL_INPUTS, output, matrix, "gradient")

    def _gradient_sizes(self, output, directions):
        """For each direction of an output the largest gradient of their product at each position: dicts of (B, S)."""
        found = []
        for start in range(0, len(directions), self.copies):
            part = directions[start : start + self.copies]
            rows = np.concatenate([*part, *[np.zeros_like(part[0])] * (self.copies - len(part))])
            of_outputs = [
                rows if name == output else np.zeros((len(rows), *shape[1:]), "float32")
                for name, shape in self.outputs.items()
            ]
            self.perturbed.restore()
            tensors = self._as_tensors([(None, None)])
            gradients_found = self._gradients(*tensors, list(map(ops.convert_to_tensor, of_outputs)))
            sizes = {}
            for point, gradient in zip(self.perturbed.points, gradients_found):
                gradient = np.abs(np.asarray(ops.convert_to_numpy(gradient), "float32"))
                gradient = gradient.reshape(self.copies, self.batch_size, point.shape[1], -1).max(axis=-1)
                sizes[point.name] = np.maximum(sizes.get(point.name, 0), gradient)
            found += [{name: size[i] for name, size in sizes.items()} for i in range(len(part))]
        return found

    def _gradients_of(self, inputs, changes, directions):
        def product(*changes):
            outputs = self._of_rows(self.perturbed.forward(inputs, changes))
            products = [
                ops.sum(ops.cast(y, "float32") * direction) for y, direction in zip(outputs, directions)
            ]
            return sum(products[1:], products[0]), None

        return gradients(product, changes)[0]

    # Calls, and what they say. A variant is a pair: inputs by name in place of the given ones, and a change for each point.

    def _changes(self, name, places):
        """Noise for the points of an input, at `places` (B or 1, T) alone."""
        return [
            noise * _over(places, noise.ndim) if point.name == name else np.zeros_like(noise)
            for point, noise in zip(self.perturbed.points, self.noise)
        ]

    def _outputs_of(self, variants):
        """The outputs of at most `copies` variants, float32 (copies, B, ...) by name. What is missing is not changed."""
        self.perturbed.restore()
        outputs = self._of_rows(self._forward(*self._as_tensors(variants)))
        return {
            name: np.asarray(ops.convert_to_numpy(y))
            .astype("float32")
            .reshape(self.copies, *self.outputs[name])
            for name, y in zip(self.outputs, outputs)
        }

    def _of_rows(self, outputs):
        return [y for name, y in zip(self.perturbed.named_outputs(), outputs) if name in self.outputs]

    def _as_tensors(self, variants):
        """Input tensors by name and a list of changes, of `copies` variants one after the other."""
        variants = [*variants, *[(None, None)] * (self.copies - len(variants))]
        given, zeros = self.perturbed.inputs, self.perturbed.no_changes()
        inputs = {
            name: np.concatenate([{**given, **(own or {})}[name] for own, _ in variants])
            if array.ndim and len(array) == self.batch_size
            else array
            for name, array in given.items()
        }
        changes = [
            np.concatenate(parts)
            for parts in zip(*[zeros if own is None else own for _, own in variants], strict=True)
        ]
        return (
            {name: ops.convert_to_tensor(array) for name, array in inputs.items()},
            [ops.convert_to_tensor(change) for change in changes],
        )

    def _changed(self, variants):
        """For each output and variant whether its positions changed: booleans (variants, B, T); T is 1 without positions."""
        found = {output: [] for output in self.outputs}
        for start in range(0, len(variants), self.copies):
            part = variants[start : start + self.copies]
            for output, after in self._outputs_of(part).items():
                changed = differs(self.base[output], after)
                changed = changed.reshape(self.copies, self.batch_size, self._size(output), -1).any(axis=-1)
                found[output].append(changed[: len(part)])
        return {output: np.concatenate(parts) for output, parts in found.items()}

    def _size(self, output):
        return self._length(output) or 1

    def _judge(self, output, name, reached, method):
        """Notes what reaches an output (B, T, S), and what of that is forbidden."""
        pair = (output, name)
        self.reach[pair] = self.reach.get(pair, False) | reached.any(axis=0)
        for kind, forbidden in self.declared.forbidden(self._length(output), name).items():
            self._note(kind, name, output, reached & forbidden, method)

    def _note(self, kind, name, output, matrix, method):
        if not matrix.any():
            return
        pairs = pairs_of(matrix, self._length(output) is not None)
        leak = self.leaks.setdefault((kind, name, output), Leak(kind, name, output, [], pairs))
        leak.found_by.append((self.mode, method))
        if leak.layer is None and method != "gradient":
            leak.layer = self._first_layer(kind, name, pairs[0])

    def _first_layer(self, kind, name, pair):
        """The path of the first layer of which a change comes out that did not go in, where none may be."""
        row, _, source = pair
        if kind == "batch":
            here = np.arange(self.batch_size) == source
            changes = [noise * _over(here, noise.ndim) for noise in self.noise]
        else:
            changes = self._changes(name, np.arange(self.declared.lengths[name])[None] == source)
        if not any(np.any(change) for change in changes):
            return None
        runs = []
        for given in (self.perturbed.no_changes(), changes):
            self.perturbed.restore()
            runs.append(self.perturbed.recorded(self.perturbed.inputs, given))

        def leaks(before, after):
            return any(self._is_dirty(x, y, kind, name, row, source) for x, y in zip(before, after))

        for (path, into, out), (_, into_after, out_after) in zip(*runs):
            if leaks(out, out_after) and not leaks(into, into_after):
                return path
        return None

    def _is_dirty(self, before, after, kind, name, row, source):
        if before.ndim < 2 or before.shape != after.shape or before.shape[0] != self.batch_size:
            return False
        changed = differs(before, after)[row]
        if kind == "batch":
            return bool(changed.any())
        has_positions = before.ndim > 2
        if has_positions and before.shape[1] not in self.declared.lengths.values():
            return False
        clean = self.declared.clean(kind, name, row, source, before.shape[1] if has_positions else None)
        if clean is None:
            return False
        return bool((changed.reshape(len(clean), -1).any(axis=-1) & clean).any())

    def report(self):
        return MaskReport(list(self.leaks.values()), self.reach, self.nan_spreads, self.notes)


def differs(before, after):
    """Where two arrays are not equal, or not nearly so beside the largest value."""
    before, after = before.astype("float32"), after.astype("float32")
    finite = np.abs(before[np.isfinite(before)])
    allowed = _TOLERANCE * (finite.max() if finite.size else 0)
    with np.errstate(invalid="ignore"):
        same = (before == after) | (np.abs(before - after) <= allowed) | (np.isnan(before) & np.isnan(after))
    return ~same


def _over(places, rank):
    """Booleans of the first axes, with axes of size 1 to the given rank, as float32."""
    return places.reshape(places.shape + (1,) * (rank - places.ndim)).astype("float32")
