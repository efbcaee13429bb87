"""Two hundred random combinations of what MultiHeadAttention can do, each on every path, and those that it refuses.

Every combination is drawn from a seed of its own and compared with the float64 oracle of `helpers_attention_oracle`.
The default run takes a share of them, `pytest -m slow` all.
"""

import pathlib
import re

import keras
import numpy as np
import pytest
from helpers_attention_oracle import (
    attention_oracle,
    make_attention,
    named_weights,
    set_seed,
    slope_of_oracle,
    weight_names,
    with_random_weights,
)
from helpers_layers import (
    BACKEND,
    assert_equal,
    compiled,
    flat_arrays,
    float64_enabled,
    gradients,
    run,
    split,
    tensors,
)
from keras import ops

import keras_attn
from keras_attn import layers
from keras_attn.ops import empty_cache

B, T, S, D, HEIGHT, WIDTH = 2, 5, 7, 11, 3, 5
NUM_COMBINATIONS = 200
SEED = (1706, 3762)


class Combination:
    """Constructor and call arguments that go together, in the plain form of `helpers_attention_oracle`."""

    def __init__(self, index):
        self.index = index
        self.rng = np.random.default_rng([2017, index])
        self.is_image = self._some(0.15)
        self.is_cross = not self.is_image and self._some(0.4)
        axes = self._one_of(1, 2, (1, 2), None) if self.is_image else None
        self.has_one_axis = not self.is_image or isinstance(axes, int)
        self.arguments = {"num_heads": self._one_of(3, 4, 6), "key_dim": self._one_of(6, 7)}
        if self.is_image:
            self.arguments["attention_axes"] = axes
        self._draw_projections()
        self._draw_scores()
        if self.has_one_axis:
            self._draw_positions()
        self.call = self._sequences()
        self._draw_masks()
        if self.has_one_axis:
            self._draw_order()
        if not self.is_image:
            self._draw_places()

    @property
    def options(self):
        return {"training": True} if "dropout" in self.arguments else {}

    @property
    def seed(self):
        return SEED if "dropout" in self.arguments else None

    def layer(self, **overrides):
        sequences = {name: self.call[name] for name in ("query", "value", "key") if name in self.call}
        return with_random_weights(make_attention(self.arguments, **overrides), **sequences, seed=self.index)

    def variants(self):
        """The names of everything that was drawn."""
        names = {name for name, value in {**self.arguments, **self.call}.items() if value is not None}
        rotary = self.arguments.get("rotary_embedding")
        if rotary is not None:
            names.add("rotary_interleaved" if rotary["interleaved"] else "rotary_half_split")
            names |= {f"rotary_{name}" for name in ("rotary_dim", "scaling") if name in rotary}
        if "position_bias" in self.arguments:
            names.add(self.arguments["position_bias"][0])
        if "query_key_norm" in self.arguments:
            names.add(self.arguments["query_key_norm"])
        if "attention_mask" in self.call:
            names.add(f"attention_mask_of_rank_{min(self.call['attention_mask'].ndim, 4)}")
        if self.arguments.get("num_key_value_heads") == 1:
            names.add("multi_query")
        return names | {f"{name}_rows_without_any" for name in self._empty_rows()}

    def _empty_rows(self):
        masks = {name: self.call.get(name) for name in ("query_mask", "value_mask")}
        return [
            name for name, mask in masks.items() if mask is not None and not mask.reshape(B, -1).any(1).all()
        ]

    def _some(self, share):
        return self.rng.random() < share

    def _one_of(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def _draw_projections(self):
        if self._some(0.5):
            self.arguments["value_dim"] = 3
        if self._some(0.3):
            self.arguments["use_bias"] = False
        if self._some(0.3):
            self.arguments["output_shape"] = self._one_of(13, (2, 3))
        if self._some(0.3):
            self.arguments["use_gate"] = True
        if self._some(0.5):
            divisors = [n for n in range(1, 6) if self.arguments["num_heads"] % n == 0]
            self.arguments["num_key_value_heads"] = self._one_of(*divisors)

    def _draw_scores(self):
        if self._some(0.4):
            self.arguments["query_key_norm"] = self._one_of("rms_norm", "layer_norm")
        if self._some(0.4):
            self.arguments["logit_soft_cap"] = self._one_of(0.7, 2.0)
        if self._some(0.4):
            self.arguments["use_sink_logits"] = True
        if self._some(0.4):
            self.arguments["dropout"] = 0.3

    def _draw_positions(self):
        if self._some(0.6):
            rotary = {"max_wavelength": 100.0, "interleaved": self._some(0.5)}
            if self.arguments["key_dim"] % 2 or self._some(0.3):
                rotary["rotary_dim"] = self._one_of(2, 4)
            if self._some(0.4):
                llama3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_sequence_length": 31}
                rotary["scaling"] = self._one_of(
                    {"type": "linear", "factor": 3.0}, {"type": "llama3", "factor": 2.0, **llama3}
                )
            self.arguments["rotary_embedding"] = rotary
        if self._some(0.7):
            self.arguments["position_bias"] = self._one_of(
                ("alibi", {}),
                ("t5", {"num_buckets": 8, "max_distance": 5}),
                ("t5", {"num_buckets": 5, "max_distance": 4, "bidirectional": False}),
                ("shaw", {"max_distance": 2}),
            )
        if self._some(0.4):
            self.arguments["sliding_window"] = self._one_of(1, 2, 3, 4)
            if self._some(0.5):
                self.arguments["num_sink_tokens"] = self._one_of(1, 2)

    def _sequences(self):
        axes = (HEIGHT, WIDTH) if self.is_image else (T,)
        query = self._floats(B, *axes, D)
        if not self.is_cross:
            return {"query": query, "value": query}
        sequences = {"query": query, "value": self._floats(B, S, D)}
        return {**sequences, "key": self._floats(B, S, D)} if self._some(0.4) else sequences

    def _floats(self, *shape):
        return self.rng.normal(size=shape).astype("float32")

    def _draw_masks(self):
        of_queries, of_keys = self.call["query"].shape[:-1], self.call["value"].shape[:-1]
        if self._some(0.5):
            self.call["query_mask"] = self._padding(of_queries)
        if self._some(0.5):
            self.call["value_mask"] = self._padding(of_keys)
        if self._some(0.15):
            self.call["key_mask"] = self._padding(of_keys)
        if self._some(0.5):
            self.call["attention_mask"] = self._pairs(of_queries[1:], of_keys[1:])

    def _padding(self, shape):
        """Left, right or random, and now and then a row that has nothing at all."""
        size = int(np.prod(shape[1:]))
        mask = np.arange(size) < self.rng.integers(1, size + 1, (B, 1))
        kind = self._one_of("left", "right", "random")
        mask = mask[:, ::-1] if kind == "left" else mask
        mask = self.rng.random((B, size)) < 0.7 if kind == "random" else mask.copy()
        if self._some(0.35):
            mask[self.rng.integers(B)] = False
        return mask.reshape(shape)

    def _pairs(self, of_queries, of_keys):
        axes = self.arguments.get("attention_axes")
        if isinstance(axes, int):
            of_queries, of_keys = of_queries[axes - 1 : axes], of_keys[axes - 1 : axes]
        lead = [(), (B,)] if self.is_image else [(), (B,), (B, self.arguments["num_heads"])]
        mask = self.rng.random((*self._one_of(*lead), *of_queries, *of_keys)) < 0.7
        return mask.astype(self._one_of("bool", "int32", "float32"))

    def _draw_order(self):
        if not self._some(0.55):
            return
        self.call["use_causal_mask"] = True
        if self._some(0.4):
            shape = self.call["value"].shape[:-1]
            self.call["prefix_mask"] = np.broadcast_to(
                (np.arange(shape[1]) < self.rng.integers(1, 4, (B, 1))).reshape(
                    B, shape[1], *[1] * len(shape[2:])
                ),
                shape,
            ).copy()

    def _draw_places(self):
        if self._some(0.35):
            self.call["segment_ids"], positions = self._packed(T)
            if self.is_cross:
                self.call["key_segment_ids"], self.call["key_positions"] = self._packed(S)
            if self.is_cross or self._some(0.7):
                self.call["positions"] = positions
        elif self._some(0.4):
            self.call["positions"] = self._left_padded(T)
            if self.is_cross:
                self.call["key_positions"] = self._left_padded(S)

    def _packed(self, length):
        """Segments 1 and 2 and then padding, and positions that start again in each."""
        ends = np.sort(self.rng.integers(1, length + 1, (B, 2)), axis=1)
        index = np.arange(length)
        segment_ids = np.where(index < ends[:, :1], 1, np.where(index < ends[:, 1:], 2, 0))
        positions = np.where(index < ends[:, :1], index, index - ends[:, :1])
        return segment_ids.astype("int32"), positions.astype("int32")

    def _left_padded(self, length):
        """Positions that count from the first real token on, by row or for all rows."""
        first = self.rng.integers(0, 3, self._one_of((B, 1), (1,)))
        return (np.arange(length) - first).astype("int32")


COMBINATIONS = [Combination(index) for index in range(NUM_COMBINATIONS)]


def combinations(every, of=COMBINATIONS):
    """One of `every` in the default run, fewer on other backends; all in the slow run."""
    step = every if BACKEND == "tensorflow" else 30 * every
    return [
        pytest.param(combination, id=str(combination.index), marks=pytest.mark.slow if i % step else ())
        for i, combination in enumerate(of)
    ]


def test_every_variant_is_in_at_least_20_combinations():
    counts = {}
    for combination in COMBINATIONS:
        for name in combination.variants():
            counts[name] = counts.get(name, 0) + 1
    wanted = """
        num_key_value_heads multi_query value_dim use_bias output_shape attention_axes use_gate
        dropout query_key_norm rms_norm layer_norm logit_soft_cap use_sink_logits sliding_window
        num_sink_tokens rotary_embedding rotary_interleaved rotary_half_split rotary_rotary_dim
        rotary_scaling position_bias alibi t5 shaw query_mask value_mask key_mask
        query_mask_rows_without_any value_mask_rows_without_any attention_mask_of_rank_2
        attention_mask_of_rank_3 attention_mask_of_rank_4 use_causal_mask prefix_mask segment_ids
        key_segment_ids positions key_positions key
    """.split()
    assert {name: counts.get(name, 0) for name in wanted if counts.get(name, 0) < 20} == {}


# --- every path gives the answer of the oracle ---


def in_blocks(monkeypatch, number):
    monkeypatch.setattr("keras_attn.ops.blockwise_attention._num_blocks", lambda *_: number)


def seeded_run(layer, combination, **options):
    set_seed(layer, SEED)
    return run(layer, combination.call, **combination.options, **options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("combination", combinations(every=30))
def test_dense_equals_blocks_equals_oracle(combination, monkeypatch):
    layer = combination.layer(memory_efficient=False)
    expected = attention_oracle(
        named_weights(layer), combination.arguments, combination.call, combination.seed
    )
    dense = seeded_run(layer, combination)
    assert_equal(dense, expected[:1])
    with_scores = seeded_run(layer, combination, return_attention_scores=True)
    assert_equal(with_scores, expected)
    assert_equal(with_scores[:1], dense, 0)
    layer = combination.layer(memory_efficient=True)
    assert_equal(seeded_run(layer, combination), expected[:1])
    in_blocks(monkeypatch, 3)
    assert_equal(seeded_run(layer, combination), expected[:1])


def seeded_gradients(layer, combination, coefficients, call):
    """By input, and by weight in the order of `trainable_variables`."""
    set_seed(layer, SEED)
    inputs = {**call, **combination.options}
    return gradients(layer, inputs, lambda y: y * ops.convert_to_tensor(coefficients, y.dtype))


def coefficients_for(layer, combination):
    shape = layer.compute_output_shape(combination.call["query"].shape, combination.call["value"].shape)
    return np.random.default_rng(13).normal(size=shape)


def is_mask(name):
    return name.endswith("_mask")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("combination", combinations(every=40))
def test_gradients_of_dense_and_blocks_are_equal(combination, monkeypatch):
    layer = combination.layer(memory_efficient=False)
    coefficients = coefficients_for(layer, combination)
    by_input, by_weight = seeded_gradients(layer, combination, coefficients, combination.call)
    layer = combination.layer(memory_efficient=True)
    for number in (1, 3):
        in_blocks(monkeypatch, number)
        actual_by_input, actual_by_weight = seeded_gradients(
            layer, combination, coefficients, combination.call
        )
        names = [name for name in by_input if not is_mask(name)]
        assert_equal([actual_by_input[name] for name in names], [by_input[name] for name in names])
        assert_equal(actual_by_weight, by_weight)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("memory_efficient", [False, True], ids=["dense", "blocks"])
@pytest.mark.parametrize("combination", combinations(every=40))
def test_gradients_are_the_slopes_of_the_oracle(combination, memory_efficient, monkeypatch):
    in_blocks(monkeypatch, 3)
    call = {
        name: x.astype("float64") if name in ("query", "value", "key") else x
        for name, x in combination.call.items()
    }
    with float64_enabled():
        layer = combination.layer(memory_efficient=memory_efficient, dtype="float64")
        coefficients = coefficients_for(layer, combination)
        by_input, by_weight = seeded_gradients(layer, combination, coefficients, call)
        weights = named_weights(layer)
    # Queries that are keys too: the layer was given them twice, as two inputs.
    found = {name: by_input[name] for name in ("query", "value", "key") if name in by_input}
    found |= dict(zip(weight_names(layer, layer.trainable_variables), by_weight))
    rng = np.random.default_rng(combination.index)
    for _ in range(3):
        directions = {name: rng.normal(size=gradient.shape) for name, gradient in found.items()}
        slope = slope_of_oracle(
            weights, combination.arguments, call, coefficients, directions, combination.seed
        )
        actual = sum(np.sum(gradient * directions[name]) for name, gradient in found.items())
        size = sum(np.abs(gradient * directions[name]).sum() for name, gradient in found.items())
        np.testing.assert_allclose(actual, slope, rtol=0, atol=1e-6 * max(1.0, size))


# --- compiled ---


@pytest.mark.extended
@pytest.mark.parametrize("combination", combinations(every=25, of=COMBINATIONS[::8]))
def test_graph_equals_xla_equals_eager(combination, monkeypatch):
    in_blocks(monkeypatch, 3)
    arrays, options = split(combination.call)
    for memory_efficient in (False, True):
        layer = combination.layer(memory_efficient=memory_efficient)
        # A function under `jax.jit` may not count the seeds that it draws.
        training = combination.options if BACKEND == "tensorflow" else {}
        set_seed(layer, SEED)
        expected = run(layer, combination.call, **training)
        for jit in (False, True):
            set_seed(layer, SEED)
            function = compiled(
                lambda arrays, layer=layer, given={**options, **training}: layer(**arrays, **given), jit
            )
            assert_equal(flat_arrays(function(tensors(arrays))), expected)


# --- half precision ---

# Of the largest magnitude. Logits of about 10 have an error of 10 / 256 in bfloat16, whose exponential is as much
# again of a score.
BOUNDS = {"mixed_bfloat16": 6e-2, "mixed_float16": 8e-3}


@pytest.mark.parametrize("combination", combinations(every=26, of=COMBINATIONS[1::4]))
def test_half_precision_is_within_its_bounds(combination):
    expected = None
    for policy, bound in BOUNDS.items():
        for memory_efficient in (False, True):
            layer = combination.layer(memory_efficient=memory_efficient, dtype=policy)
            if expected is None:
                weights = named_weights(layer)
                expected = attention_oracle(
                    weights, combination.arguments, combination.call, combination.seed
                )
            assert_equal(seeded_run(layer, combination), expected[:1], bound)


# --- in chunks through a cache ---


def is_decoder(combination):
    """Whether a cache can serve these constructor arguments; the pair masks and packing of the call are left out."""
    return not combination.is_image and combination.call.get("use_causal_mask", False)


def as_decoded(combination):
    """The call of a left-padded batch, all at once, and the first position of each row that is real."""
    rng = np.random.default_rng(combination.index)
    x = rng.normal(size=(B, S, D)).astype("float32")
    first = rng.integers(0, 4, (B, 1))
    mask = np.arange(S) >= first
    call = {"query": x, "value": x, "query_mask": mask, "value_mask": mask, "use_causal_mask": True}
    call["positions"] = (np.arange(S) - first).astype("int32")
    if "prefix_mask" in combination.call:
        call["prefix_mask"] = np.arange(S) < first + 2
    return call, mask, rng


@pytest.mark.sampled(2)
@pytest.mark.parametrize("combination", combinations(every=28, of=list(filter(is_decoder, COMBINATIONS))))
@pytest.mark.parametrize("memory_efficient", [False, True], ids=["dense", "blocks"])
def test_chunks_through_a_cache_equal_the_full_pass(combination, memory_efficient):
    call, mask, rng = as_decoded(combination)
    arguments = {**combination.arguments, "memory_efficient": memory_efficient}
    layer = with_random_weights(make_attention(arguments), call["query"], call["value"])
    expected = attention_oracle(named_weights(layer), arguments, call)[0]
    assert_equal([run(layer, call)[0][mask]], [expected[mask]])
    prefix = {}
    cache = layer.empty_cache(B, S)
    if "prefix_mask" in call:
        # A ring forgets the prefix, so it is refused: a cache longer than the ring is none.
        length = max(S, (arguments.get("sliding_window") or 0) + arguments.get("num_sink_tokens", 0) + 1)
        key_heads = arguments.get("num_key_value_heads") or arguments["num_heads"]
        cache = empty_cache(B, key_heads, length, arguments["key_dim"], arguments.get("value_dim"))
        prefix = {"prefix_mask": np.pad(call["prefix_mask"], [(0, 0), (0, length - S)])}
    elif "sliding_window" in arguments:
        assert cache[0].shape[2] == min(S, arguments["sliding_window"] + arguments.get("num_sink_tokens", 0))
    # A prefix is seen by its own first token already: the first chunk holds all of it.
    first_end = int(call["prefix_mask"].sum(1).max()) if prefix else 1
    outputs, index = [], 0
    while index < S:
        end = int(rng.integers(max(first_end, index + 1), S + 1))
        chunk = call["query"][:, index:end]
        output, cache = layer(
            chunk,
            chunk,
            use_causal_mask=True,
            cache=cache,
            cache_update_index=index,
            positions=call["positions"][:, index:end],
            **prefix,
        )
        outputs += flat_arrays(output)
        index = end
    assert_equal([np.concatenate(outputs, axis=1)[mask]], [expected[mask]])


# --- in a new process ---


def named(combination, name):
    return f"{name}_{combination.index}"


def model_of(combination):
    """A functional model of one combination, for the shapes that it was drawn with."""
    arrays, options = split(combination.call)
    inputs = {
        name: keras.Input(batch_shape=x.shape, dtype=str(x.dtype), name=named(combination, name))
        for name, x in arrays.items()
    }
    layer = combination.layer(name=named(combination, "attention"))
    return list(inputs.values()), layer(**inputs, **options)


def assert_round_trips(chosen, folder, child):
    """Configurations and weights of all in one file each; the same bits in the process that reads them."""
    inputs, outputs = zip(*map(model_of, chosen))
    model = keras.Model({x.name: x for some in inputs for x in some}, list(outputs))
    (folder / "model.json").write_text(model.to_json())
    model.save_weights(folder / "model.weights.h5")
    arrays = {named(c, name): x for c in chosen for name, x in split(c.call)[0].items()}
    np.savez(folder / "inputs_0.npz", **arrays)
    expected = [run(c.layer(), c.call)[0] for c in chosen]
    assert_equal(child("weights", folder, 1)[0], expected, 0)


@pytest.mark.extended
@pytest.mark.parametrize(
    "every", [20 if BACKEND == "tensorflow" else 100, pytest.param(1, marks=pytest.mark.slow)]
)
def test_configuration_and_weights_round_trip_in_a_new_process(every, tmp_path, child):
    assert_round_trips(COMBINATIONS[::every], tmp_path, child)


# --- what does not go together ---


def attention(**arguments):
    return layers.MultiHeadAttention(**{"num_heads": 4, "key_dim": 6, **arguments})


def ones(*shape, dtype="float32"):
    return np.ones(shape, dtype)


X, Y, IMAGE = ones(B, T, D), ones(B, S, D), ones(B, HEIGHT, WIDTH, D)
SELF, CROSS, OVER_IMAGE = {"query": X, "value": X}, {"query": X, "value": Y}, {"query": IMAGE, "value": IMAGE}
MASK, POSITIONS = ones(B, T, dtype="bool"), np.tile(np.arange(T, dtype="int32"), (B, 1))
NTK = {"type": "dynamic_ntk", "factor": 2.0, "original_max_sequence_length": 3}


def rotary_ntk():
    return attention(rotary_embedding=layers.RotaryEmbedding(scaling=NTK))


def into_a_cache(num_slots, **call):
    cache = empty_cache(B, 4, num_slots, 6)
    return {**SELF, "use_causal_mask": True, "cache": cache, "cache_update_index": 0, **call}


def into_a_ring(**call):
    return lambda: attention(sliding_window=3)(**into_a_cache(3, **call))


def fused_with_a_mask():
    attention(flash_attention=True)(**SELF, value_mask=MASK)


# The first two columns of the table in docs/attention.md, and what raises which message.
REFUSED = {
    ("`num_key_value_heads`", "a `num_heads` that it does not divide"): [
        (
            lambda: attention(num_key_value_heads=3),
            "`num_heads` must be divisible by `num_key_value_heads`. "
            "Received: num_heads=4, num_key_value_heads=3.",
        )
    ],
    ("`num_sink_tokens`", "no `sliding_window`"): [
        (lambda: attention(num_sink_tokens=2), "`num_sink_tokens` needs a `sliding_window`")
    ],
    ("`prefix_mask`", "no `use_causal_mask`"): [
        (lambda: attention()(**SELF, prefix_mask=MASK), "`prefix_mask` says what is seen in spite of")
    ],
    ("`key_segment_ids`", "no `segment_ids`"): [
        (
            lambda: attention()(**CROSS, key_segment_ids=ones(B, S, dtype="int32")),
            "`key_segment_ids` says which `segment_ids` see a key, so those must be given too.",
        )
    ],
    ("`segment_ids`", "keys of another length and no `key_segment_ids`"): [
        (
            lambda: attention()(**CROSS, segment_ids=ones(B, T, dtype="int32")),
            "`key_segment_ids` must have shape (2, 7).",
        )
    ],
    ("`positions`", "keys of another length and no `key_positions`"): [
        (
            lambda: attention(position_bias=layers.AlibiBias())(**CROSS, positions=POSITIONS),
            "`key_positions` must have shape (length,) or (batch, length), here with length 7. Received: "
            "key_positions of shape (2, 5). By default they are `positions`.",
        )
    ],
    ("`memory_efficient=True`", "`return_attention_scores=True`"): [
        (
            lambda: attention(memory_efficient=True)(**SELF, return_attention_scores=True),
            "`return_attention_scores` needs all T x S scores, which `memory_efficient=True` forbids.",
        )
    ],
    (
        "`flash_attention=True`",
        "the TensorFlow backend, or anything but the causal mask of a whole sequence",
    ): [(fused_with_a_mask, "`flash_attention")],
    (
        "several `attention_axes`",
        "`use_causal_mask`, `sliding_window`, `rotary_embedding`, `position_bias`",
    ): [
        (call, "need one axis to attend over. Received: attention_axes=(1, 2).")
        for call in (
            lambda: attention()(**OVER_IMAGE, use_causal_mask=True),
            lambda: attention(sliding_window=2)(**OVER_IMAGE),
            lambda: attention(rotary_embedding=layers.RotaryEmbedding())(**OVER_IMAGE),
            lambda: attention(position_bias=layers.AlibiBias())(**OVER_IMAGE),
        )
    ],
    ("inputs with more axes than (B, T, D)", "`cache`, `positions` or `key_positions` of each row"): [
        (
            lambda: attention(attention_axes=2)(**OVER_IMAGE, use_causal_mask=True, positions=POSITIONS),
            "`positions` must have one axis for inputs that are not of shape (B, T, D). "
            "Received: positions of shape (2, 5).",
        ),
        (
            lambda: attention(attention_axes=2)(**OVER_IMAGE, use_causal_mask=True, key_positions=POSITIONS),
            "`key_positions` must have one axis",
        ),
        (
            lambda: attention(attention_axes=2)(
                **OVER_IMAGE, cache=empty_cache(B, 4, 7, 6), cache_update_index=0
            ),
            "`cache` needs inputs of shape (B, T, D), with one axis to attend over.",
        ),
    ],
    ('`rotary_embedding` with `"dynamic_ntk"` scaling', "`cache`, `key_positions`"): [
        (call, 'A `rotary_embedding` with "dynamic_ntk" scaling rotates all of a sequence by its length')
        for call in (
            lambda: rotary_ntk()(**into_a_cache(7)),
            lambda: rotary_ntk()(**CROSS, key_positions=np.arange(S)),
        )
    ],
    (
        "a ring: a cache of no more slots than `sliding_window` and `num_sink_tokens`",
        "`value_mask`, `key_mask`, `attention_mask`, `prefix_mask`, `segment_ids`, `key_positions`",
    ): [
        (into_a_ring(**{name: value}), f"A cache of fewer slots than positions takes no `{name}`")
        for name, value in {
            "value_mask": MASK,
            "key_mask": MASK,
            "attention_mask": ones(T, T, dtype="bool"),
            "prefix_mask": MASK,
            "segment_ids": POSITIONS,
            "key_positions": POSITIONS,
        }.items()
    ],
}


@pytest.mark.parametrize("pair", REFUSED, ids=" with ".join)
def test_what_does_not_go_together_is_refused(pair):
    for call, message in REFUSED[pair]:
        with pytest.raises(ValueError, match=re.escape(message)):
            call()


def test_the_table_in_the_docs_is_what_is_tested():
    text = (pathlib.Path(keras_attn.__file__).parents[1] / "docs" / "attention.md").read_text("utf-8")
    section = text.split("## What does not go together\n")[1].split("\n## ")[0]
    rows = [line.strip("| \n").split(" | ") for line in section.splitlines() if line.startswith("|")][2:]
    assert [(row[0], row[1]) for row in rows] == list(REFUSED)
    assert all(len(row) == 3 and row[2] for row in rows)
