import typing

import keras
import numpy as np
from keras import ops

from keras_attn.checks import choose
from keras_attn.inspection.backends import as_array, gradients
from keras_attn.inspection.call_modes import MODES
from keras_attn.inspection.mask_report import Leak, MaskReport, leak_pairs
from keras_attn.inspection.mask_rules import Declarations, check_inputs
from keras_attn.inspection.perturbed_model import PerturbedModel, is_mask

# Changes are three standard deviations of the vectors that are changed.
_NOISE = 3.0
# Changes below this share of the largest output, or gradient, do not count. In right models, what is masked is exactly 0.
_TOLERANCE = 1e-6
# The most positions in a call with several copies of the rows.
_MOST_POSITIONS = 2**14
_ALL_INPUTS = "all inputs"
_ROWS_MIX = "Rows mix, so that the other leaks may come from other rows."


def check_masks(model, inputs, padding=None, causal=None, segments=None, modes=("eager",)):
    """Finds which position of a model's inputs reaches which position of its outputs, and judges what is declared.

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
    if isinstance(modes, str):
        modes = (modes,)
    modes = tuple(modes)
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


class _Variant(typing.NamedTuple):
    """One way to change the inputs: `inputs` by name in place of the given ones, and a change for each point of the model.

    None stands for no change.
    """

    inputs: dict | None = None
    changes: list | None = None


class _Check:
    """Changes a model's inputs in each mode and collects what depends on what."""

    def __init__(self, perturbed, declared):
        self.perturbed = perturbed
        self.declared = declared
        self.batch_size = declared.batch_size
        self.outputs = {name: tuple(x.shape) for name, x in perturbed.named_outputs().items() if len(x.shape)}
        self.rng = np.random.default_rng(0)
        self.noise = []
        for point in perturbed.points:
            noise = self.rng.normal(size=point.shape).astype("float32")
            self.noise.append(noise * _NOISE * point.scale)
        # Inputs whose vectors can be changed at each position.
        names = [point.name for point in perturbed.points if len(point.shape) > 2]
        self.positional = list(dict.fromkeys(names))
        # Inputs whose ids at pads can be changed, since the model is told the mask.
        self.with_explicit_mask = self._inputs_with_explicit_mask()
        # What is collected.
        self.leaks = {}
        self.reach = {}
        self.nan_spreads = []
        self.notes = []
        self._check_outputs()
        self._check_inputs()

    def _inputs_with_explicit_mask(self):
        names = set()
        for name, mask in self.declared.padding.items():
            for other, array in self.perturbed.inputs.items():
                is_candidate = other != name and array.shape == mask.shape and is_mask(array)
                if is_candidate and (array.astype(bool) == mask).all():
                    names.add(name)
        return names

    def _check_outputs(self):
        lengths = {output: self._length(output) for output in self.outputs}
        for name in self.declared.causal:
            if self.declared.lengths[name] not in lengths.values():
                raise ValueError(
                    f"`causal` names {name!r} of {self.declared.lengths[name]} positions, but no output has as many: "
                    f"(B, T, ...). The outputs' shapes are {self.outputs}."
                )
        for name in self.declared.segments:
            if all(self.declared.segments_of(length) is None for length in lengths.values()):
                raise ValueError(
                    "`segments` needs an output with the positions of an input whose segments are given. "
                    f"Received: segments of {name!r}; the outputs' shapes are {self.outputs}."
                )
        for output, shape in list(self.outputs.items()):
            if shape[0] != self.batch_size:
                self.notes.append(f"{output!r} of shape {shape} is not judged: it has no rows of the batch.")
                del self.outputs[output]
        if self.batch_size == 1:
            self.notes.append("Whether rows mix is not checked: there is one row.")

    def _check_inputs(self):
        inputs = self.perturbed.inputs
        padding = self.declared.padding
        for name in self.declared.names:
            if name in self.positional:
                continue
            if inputs[name].dtype.kind not in "iu" or inputs[name].ndim != 2:
                raise ValueError(
                    f"{name!r} cannot be changed position by position: it must be floats (B, T, ...) or integers (B, T). "
                    f"Received: {inputs[name].dtype} of shape {inputs[name].shape}."
                )
            has_padding = name in padding and not padding[name].all()
            if has_padding and name not in self.with_explicit_mask:
                raise ValueError(
                    f"The padding of {name!r} cannot be checked: no layer embeds these ids, and another id at a pad may "
                    "no longer be a pad. Give the model its mask as an input, or check the model after its embedding."
                )
        changeable = {point.name for point in self.perturbed.points}.union(self.declared.names)
        for name, array in inputs.items():
            if name not in changeable and not is_mask(array):
                self.notes.append(f"{name!r} is not changed: it is neither float nor embedded by a layer.")

    def _length(self, output):
        """The number of an output's positions, or None for an output without positions."""
        shape = self.outputs[output]
        return shape[1] if len(shape) > 2 else None

    # The runs of one mode.

    def run(self, mode, compiler):
        self.mode = mode
        self._forward = compiler(self.perturbed.forward)
        self._gradients = compiler(self._gradients_of_product)
        self.num_copies = self._most_copies()
        self._run_unchanged()
        if self._rows_mix():
            if _ROWS_MIX not in self.notes:
                self.notes.append(_ROWS_MIX)
            self.num_copies = 1
            self._run_unchanged()
        self._change_vectors()
        self._change_ids()
        self._put_nan_in_padding()
        self._take_gradients()

    def _most_copies(self):
        """How many changes are tried in one call, each in its own copy of the rows."""
        inputs = getattr(self.perturbed.model, "inputs", None) or []
        if any(x.shape and x.shape[0] is not None for x in inputs):
            return 1
        longest = max(self.batch_size, *self.declared.lengths.values())
        return max(1, min(longest, _MOST_POSITIONS // (self.batch_size * longest)))

    def _run_unchanged(self):
        """Keeps the outputs without a change, and refuses those that are not finite, or not the same twice."""
        self.unchanged = self._outputs_of([_Variant()])
        not_finite = []
        for output, y in self.unchanged.items():
            length = self._length(output)
            values = y[0] if length is None else y[0][self.declared.real(length)]
            if not np.isfinite(values).all():
                not_finite.append(output)
        if not_finite:
            raise ValueError(
                f"In the mode {self.mode!r} the outputs {not_finite} hold NaN or Inf before any change."
            )
        again = self._outputs_of([_Variant()])
        random = [output for output, y in self.unchanged.items() if differs(y[0], again[output][0]).any()]
        if random:
            raise ValueError(
                f"In the mode {self.mode!r} two calls with the same inputs give other outputs {random}: the model draws random "
                "numbers that no `keras.random.SeedGenerator` of its layers begins. What comes of a change cannot be told."
            )

    def _rows_mix(self):
        """Changes one row at a time. The others must not change."""
        if self.batch_size == 1:
            return False
        rows = np.eye(self.batch_size, dtype=bool)
        variants = [_Variant(changes=self._noise_at(row)) for row in rows]
        mix = False
        for output, changed in self._changed_outputs(variants).items():  # (rows, B, T)
            matrix = np.moveaxis(changed, 0, -1) & ~rows[:, None]
            self._note("batch", _ALL_INPUTS, output, matrix, "forward")
            mix = mix or matrix.any()
        return mix

    def _change_vectors(self):
        for name in self.positional:
            positions = np.eye(self.declared.lengths[name], dtype=bool)
            variants = [_Variant(changes=self._noise_at(position[None], name)) for position in positions]
            self._judge_variants(name, variants, "forward")

    def _change_ids(self):
        for name, array in self.perturbed.inputs.items():
            if array.dtype.kind not in "iu" or array.ndim != 2 or name not in self.declared.names:
                continue
            is_real = self.declared.padding.get(name, np.ones(array.shape, bool))
            if name in self.declared.segments:
                is_real = is_real & (self.declared.segments[name] != 0)
            other_ids = self._other_ids(array, is_real)
            # Another id at a pad might no longer be a pad, unless the model is told the mask.
            may_change = is_real | (name in self.with_explicit_mask)
            variants = []
            for position in np.eye(array.shape[1], dtype=bool):
                ids = np.where(may_change & position, other_ids, array)
                variants.append(_Variant(inputs={name: ids}))
            self._judge_variants(name, variants, "ids")

    def _judge_variants(self, name, variants, method):
        """Judges variants that change each position of an input in turn."""
        for output, changed in self._changed_outputs(variants).items():  # (S, B, T)
            self._judge(output, name, np.moveaxis(changed, 0, -1), method)

    def _other_ids(self, array, is_real):
        """Another id for each position, of those that stand at real positions."""
        ids = np.unique(array[is_real])
        if len(ids) < 2:
            return array
        numbers = np.searchsorted(ids, np.where(is_real, array, ids[0]))
        steps = self.rng.integers(1, len(ids), array.shape)
        return ids[(numbers + steps) % len(ids)].astype(array.dtype)

    def _put_nan_in_padding(self):
        for name in self.positional:
            mask = self.declared.padding.get(name)
            if mask is None or mask.all():
                continue
            noise = self._noise_at(~mask, name)
            changes = [np.where(change != 0, np.float32("nan"), change) for change in noise]
            for output, changed in self._changed_outputs([_Variant(changes=changes)]).items():
                reaches = (changed[0] & self.declared.real(self._length(output))).any()
                if reaches and (output, name) not in self.nan_spreads:
                    self.nan_spreads.append((output, name))

    def _take_gradients(self):
        if not self.perturbed.points:
            return
        for output, shape in self.outputs.items():
            direction = self.rng.normal(size=shape).astype("float32")
            positions = np.eye(self._size(output), dtype=bool)[:, None]  # (T, 1, T)
            directions = [direction * _broadcast(position, len(shape)) for position in positions]
            sizes_by_position = self._gradient_sizes(output, directions)
            for name in self.positional:
                sizes = np.stack([sizes[name] for sizes in sizes_by_position], axis=1)  # (B, T, S)
                self._judge(output, name, _counts(sizes), "gradient")
            if self.batch_size > 1:
                self._take_row_gradients(output, direction)

    def _take_row_gradients(self, output, direction):
        rows = np.eye(self.batch_size, dtype=bool)
        directions = [direction * _broadcast(row, direction.ndim) for row in rows]
        sizes = []  # (row of the output, row of the input)
        for sizes_by_input in self._gradient_sizes(output, directions):
            sizes.append(np.max([size.max(axis=1) for size in sizes_by_input.values()], axis=0))
        matrix = np.zeros((self.batch_size, self._size(output), self.batch_size), bool)
        # All positions were asked at once: the leak is noted at the first.
        matrix[:, 0] = _counts(np.stack(sizes)) & ~rows
        self._note("batch", _ALL_INPUTS, output, matrix, "gradient")

    def _gradient_sizes(self, output, directions):
        """The largest gradient of an output times each direction, at each position of the inputs: a list of {name: (B, S)}."""
        sizes_by_direction = []
        for start in range(0, len(directions), self.num_copies):
            part = directions[start : start + self.num_copies]
            missing = [np.zeros_like(part[0])] * (self.num_copies - len(part))
            rows = np.concatenate(part + missing)
            output_directions = []
            for name, shape in self.outputs.items():
                zeros = np.zeros((len(rows), *shape[1:]), "float32")
                output_directions.append(ops.convert_to_tensor(rows if name == output else zeros))
            self.perturbed.restore()
            inputs, changes = self._as_tensors([_Variant()])
            sizes = {}  # by input, (copies, B, S)
            for point, gradient in zip(
                self.perturbed.points, self._gradients(inputs, changes, output_directions)
            ):
                size = np.abs(as_array(gradient).astype("float32"))
                size = size.reshape(self.num_copies, self.batch_size, point.shape[1], -1).max(axis=-1)
                sizes[point.name] = np.maximum(sizes.get(point.name, 0), size)
            for number in range(len(part)):
                sizes_by_direction.append({name: size[number] for name, size in sizes.items()})
        return sizes_by_direction

    def _gradients_of_product(self, inputs, changes, directions):
        def product(*changes):
            outputs = self._judged(self.perturbed.forward(inputs, changes))
            total = 0.0
            for y, direction in zip(outputs, directions):
                total = total + ops.sum(ops.cast(y, "float32") * direction)
            return total, None

        return gradients(product, changes)[0]

    # Calls with variants.

    def _noise_at(self, places, name=None):
        """Changes for each point: noise at `places` (B or 1) or (B or 1, T), for the points of one input or of all."""
        changes = []
        for point, noise in zip(self.perturbed.points, self.noise):
            if name in (None, point.name):
                changes.append(noise * _broadcast(places, noise.ndim))
            else:
                changes.append(np.zeros_like(noise))
        return changes

    def _outputs_of(self, variants):
        """The outputs of at most `num_copies` variants, float32 (copies, B, ...) by name."""
        self.perturbed.restore()
        inputs, changes = self._as_tensors(variants)
        outputs = {}
        for (name, shape), y in zip(self.outputs.items(), self._judged(self._forward(inputs, changes))):
            outputs[name] = as_array(y).astype("float32").reshape(self.num_copies, *shape)
        return outputs

    def _judged(self, outputs):
        """Those of the model's outputs that are judged."""
        return [y for name, y in zip(self.perturbed.named_outputs(), outputs) if name in self.outputs]

    def _as_tensors(self, variants):
        """Input tensors by name and a list of changes, of `num_copies` variants one after the other."""
        variants = variants + [_Variant()] * (self.num_copies - len(variants))
        inputs = {}
        for name, array in self.perturbed.inputs.items():
            if array.ndim and len(array) == self.batch_size:
                array = np.concatenate([(variant.inputs or {}).get(name, array) for variant in variants])
            inputs[name] = ops.convert_to_tensor(array)
        no_changes = self.perturbed.no_changes()
        changes_by_variant = []
        for variant in variants:
            changes_by_variant.append(no_changes if variant.changes is None else variant.changes)
        changes = [np.concatenate(parts) for parts in zip(*changes_by_variant, strict=True)]
        return inputs, [ops.convert_to_tensor(change) for change in changes]

    def _changed_outputs(self, variants):
        """Which positions of each output a variant changes: booleans (variants, B, T); T is 1 without positions."""
        changed_parts = {output: [] for output in self.outputs}
        for start in range(0, len(variants), self.num_copies):
            part = variants[start : start + self.num_copies]
            for output, y in self._outputs_of(part).items():
                changed = differs(self.unchanged[output], y)
                changed = changed.reshape(self.num_copies, self.batch_size, self._size(output), -1)
                changed_parts[output].append(changed.any(axis=-1)[: len(part)])
        return {output: np.concatenate(parts) for output, parts in changed_parts.items()}

    def _size(self, output):
        return self._length(output) or 1

    # Judgements.

    def _judge(self, output, name, reached, method):
        """Notes what reaches an output (B, T, S), and what of that is forbidden."""
        pair = (output, name)
        self.reach[pair] = self.reach.get(pair, False) | reached.any(axis=0)
        for kind, forbidden in self.declared.forbidden(self._length(output), name).items():
            self._note(kind, name, output, reached & forbidden, method)

    def _note(self, kind, name, output, matrix, method):
        """Notes a leak where the matrix (B, T, S) is True."""
        if not matrix.any():
            return
        pairs = leak_pairs(matrix, self._length(output) is not None)
        leak = self.leaks.setdefault((kind, name, output), Leak(kind, name, output, [], pairs))
        leak.found_by.append((self.mode, method))
        if leak.layer is None and method != "gradient":
            leak.layer = self._first_layer(kind, name, pairs[0])

    def _first_layer(self, kind, name, pair):
        """The path of the first layer whose outputs change where they must not, though its inputs do not."""
        row, _, source = pair
        if kind == "batch":
            changes = self._noise_at(np.arange(self.batch_size) == source)
        else:
            changes = self._noise_at(np.arange(self.declared.lengths[name])[None] == source, name)
        if not any(np.any(change) for change in changes):
            return None
        self.perturbed.restore()
        records = self.perturbed.recorded(self.perturbed.inputs, self.perturbed.no_changes())
        self.perturbed.restore()
        changed_records = self.perturbed.recorded(self.perturbed.inputs, changes)

        def leaks(tensors, changed_tensors):
            pairs = zip(tensors, changed_tensors)
            return any(self._is_dirty(x, changed, kind, name, row, source) for x, changed in pairs)

        for record, changed_record in zip(records, changed_records):
            path, inputs, outputs = record
            _, changed_inputs, changed_outputs = changed_record
            if leaks(outputs, changed_outputs) and not leaks(inputs, changed_inputs):
                return path
        return None

    def _is_dirty(self, x, changed, kind, name, row, source):
        """Whether a tensor inside the model changed in `row` where it must not."""
        if x.ndim < 2 or x.shape != changed.shape or x.shape[0] != self.batch_size:
            return False
        is_changed = differs(x, changed)[row]
        if kind == "batch":
            return bool(is_changed.any())
        length = x.shape[1] if x.ndim > 2 else None
        if length is not None and length not in self.declared.lengths.values():
            return False
        clean = self.declared.clean(kind, name, row, source, length)
        if clean is None:
            return False
        return bool((is_changed.reshape(len(clean), -1).any(axis=-1) & clean).any())

    def report(self):
        return MaskReport(list(self.leaks.values()), self.reach, self.nan_spreads, self.notes)


def differs(x, other):
    """Where two arrays differ by more than the tolerance times the largest value of the first."""
    x = x.astype("float32")
    other = other.astype("float32")
    largest = np.max(np.abs(x), where=np.isfinite(x), initial=0)
    with np.errstate(invalid="ignore"):
        is_close = np.abs(x - other) <= _TOLERANCE * largest
    return ~((x == other) | is_close | (np.isnan(x) & np.isnan(other)))


def _counts(sizes):
    """Which gradients are more than rounding."""
    return sizes > _TOLERANCE * max(sizes.max(), 1e-30)


def _broadcast(places, rank):
    """Booleans of the first axes as float32, with axes of size 1 up to the rank."""
    return places.reshape(places.shape + (1,) * (rank - places.ndim)).astype("float32")
