"""The whole attention layer once more: float64 NumPy, one pair of a query and a key at a time where that is clearer.

The oracle calls nothing of the library. A layer is described by plain values, `arguments`: the constructor arguments of
`MultiHeadAttention`, with `rotary_embedding` as a dict of `RotaryEmbedding`'s own and `position_bias` as a pair of
"alibi", "t5" or "shaw" and a dict of its arguments.
"""

import math

import numpy as np

from keras_attn import layers

# The defaults of `keras.layers.LayerNormalization` and `keras.layers.RMSNormalization`.
EPSILON = {"layer_norm": 1e-3, "rms_norm": 1e-6}


SLOTS = {"alibi": layers.AlibiBias, "t5": layers.RelativePositionBias, "shaw": layers.RelativePositionKeys}


def make_attention(arguments, **overrides):
    """The layer that `arguments` describe."""
    arguments = {**arguments, **overrides}
    dtype = {"dtype": arguments["dtype"]} if "dtype" in arguments else {}
    if arguments.get("rotary_embedding") is not None:
        arguments["rotary_embedding"] = layers.RotaryEmbedding(**arguments["rotary_embedding"], **dtype)
    if arguments.get("position_bias") is not None:
        kind, options = arguments["position_bias"]
        arguments["position_bias"] = SLOTS[kind](**options, **dtype, name=kind)
    return layers.MultiHeadAttention(**arguments)


def with_random_weights(layer, query, value, key=None, seed=5):
    """The layer, built for inputs of these shapes: zero biases and unit scales would hide a misplaced one."""
    layer.build(query.shape, value.shape, None if key is None else key.shape)
    layer.built = True
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(0, 0.5, weight.shape) for weight in layer.weights])
    return layer


def set_seed(layer, seed):
    """Makes the layer's next draw of a dropout seed this one."""
    if layer._seed_generator is not None:
        layer._seed_generator.state.assign(np.array(seed))


def weight_names(layer, weights):
    """The paths of weights within the layer ("query/kernel")."""
    names = [weight.path.removeprefix(f"{layer.name}/") for weight in weights]
    assert len(set(names)) == len(names)
    return names


def named_weights(layer):
    """The weights of a built layer in float64, by their names."""
    return {
        name: array.astype("float64")
        for name, array in zip(weight_names(layer, layer.weights), layer.get_weights())
    }


def attention_oracle(weights, arguments, call, seed=None):
    """What `MultiHeadAttention` answers.

    Args:
        weights: Dict of arrays, as `named_weights` gives it.
        arguments: Dict, see above.
        call: Dict of call arguments, NumPy arrays and options.
        seed: Pair of integers, the seed of the dropout, or None for no dropout.

    Returns:
        The output and the attention scores, in the layer's shapes.
    """
    if call["query"].ndim == 3:
        return attention_over_one_axis(weights, arguments, call, seed)
    return attention_over_axes(weights, arguments, call, seed)


# --- images: attended axes become the one axis, the others batch axes ---


def attention_over_axes(weights, arguments, call, seed):
    """Inputs (B, A1, A2, D)."""
    axes = arguments.get("attention_axes") or (1, 2)
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    shape = call["query"].shape
    kept = [axis for axis in (1, 2) if axis not in axes]
    order = [0, *kept, *axes]

    def rows(x):
        """(B, A1, A2, ...) -> (B kept, attended, ...)."""
        x = np.transpose(x, [*order, *range(3, x.ndim)])
        return x.reshape(-1, math.prod(x.shape[len(kept) + 1 : 3]), *x.shape[3:])

    sequences = {
        "query",
        "value",
        "key",
        "query_mask",
        "value_mask",
        "key_mask",
        "segment_ids",
        "prefix_mask",
    }
    flat = {name: rows(x) if name in sequences else x for name, x in call.items()}
    if "attention_mask" in call:
        mask = call["attention_mask"]
        length = math.prod(shape[axis] for axis in axes)
        mask = mask.reshape(*mask.shape[: mask.ndim - 2 * len(axes)], length, length)
        if mask.ndim == 3:
            mask = np.repeat(mask, math.prod(shape[axis] for axis in kept), axis=0)
        flat["attention_mask"] = mask
    flat.setdefault("positions", np.arange(flat["query"].shape[1]))  # tokens of images are not counted
    output, scores = attention_over_one_axis(weights, arguments, flat, seed)
    output = output.reshape(*[shape[axis] for axis in order], *output.shape[2:])
    output = np.transpose(output, [*np.argsort(order), *range(3, output.ndim)])
    lead, lengths = [shape[axis] for axis in (0, *kept)], [shape[axis] for axis in axes]
    return output, scores.reshape(*lead, scores.shape[1], *lengths, *lengths)


# --- sequences (B, T, D) ---


def attention_over_one_axis(weights, arguments, call, seed):
    query, value = call["query"].astype("float64"), call["value"].astype("float64")
    key = call.get("key", call["value"]).astype("float64")
    query_positions, key_positions = both_positions(arguments, call, query.shape[:2], key.shape[:2])
    queries, keys = projected(weights, "query", query), projected(weights, "key", key)
    if arguments.get("query_key_norm"):
        queries = normalized(weights, "query_norm", arguments["query_key_norm"], queries)
        keys = normalized(weights, "key_norm", arguments["query_key_norm"], keys)
    if arguments.get("rotary_embedding") is not None:
        queries = rotated(queries, query_positions, arguments["rotary_embedding"])
        keys = rotated(keys, key_positions, arguments["rotary_embedding"])
    repeats = arguments["num_heads"] // (arguments.get("num_key_value_heads") or arguments["num_heads"])
    keys = np.repeat(keys, repeats, axis=2)
    values = np.repeat(projected(weights, "value", value), repeats, axis=2)
    scaled = queries / math.sqrt(arguments["key_dim"])
    logits = np.einsum("btnh,bsnh->bnts", scaled, keys)
    if arguments.get("logit_soft_cap"):
        logits = arguments["logit_soft_cap"] * np.tanh(logits / arguments["logit_soft_cap"])
    logits = logits + position_bias(weights, arguments, scaled, query_positions, key_positions)
    allowed = allowed_pairs(arguments, call, query_positions, key_positions, logits.shape)
    scores = softmax_over_allowed(logits, allowed, weights.get("sink_logits"))
    weighing = scores
    if seed is not None:
        weighing = scores * dropout_multiplier(arguments["dropout"], seed, scores.shape)
    output = np.einsum("bnts,bsnv->btnv", weighing, values)
    if arguments.get("use_gate"):
        output = output / (1 + np.exp(-projected(weights, "gate", query)))
    kernel = weights["attention_output/kernel"]
    return np.tensordot(output, kernel, 2) + weights.get("attention_output/bias", 0.0), scores


def both_positions(arguments, call, query_shape, key_shape):
    """(B, T) and (B, S): what is given, the keys' by default the queries', else 0, 1, 2, ...

    Sink tokens are the first real ones, so self-attention with them counts real tokens.
    """
    is_given = "positions" in call or "key_positions" in call
    if arguments.get("num_sink_tokens") and not is_given and query_shape == key_shape:
        counted = counted_positions(call, *key_shape)
        return counted, counted
    of_queries = call.get("positions", np.arange(query_shape[1]))
    of_keys = call.get("key_positions", call.get("positions", np.arange(key_shape[1])))
    return np.broadcast_to(of_queries, query_shape), np.broadcast_to(of_keys, key_shape)


def counted_positions(call, num_rows, length):
    """How many real tokens of its segment come before each token; a pad has the position of the token before it."""
    positions = np.zeros((num_rows, length), "int32")
    segments = call.get("segment_ids", np.ones((num_rows, length)))
    for b in range(num_rows):
        num_tokens = 0
        for t in range(length):
            if t and segments[b, t] != segments[b, t - 1]:
                num_tokens = 0
            is_masked = not (call.get("value_mask", ALL)[b, t] and call.get("key_mask", ALL)[b, t])
            if segments[b, t] != 0 and not is_masked:
                num_tokens += 1
            positions[b, t] = max(num_tokens - 1, 0)
    return positions


def projected(weights, name, x):
    """(B, T, D) -> (B, T, N, H)."""
    return np.einsum("btd,dnh->btnh", x, weights[f"{name}/kernel"]) + weights.get(f"{name}/bias", 0.0)


def normalized(weights, name, kind, x):
    if kind == "layer_norm":
        centred = x - x.mean(-1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON[kind])
        return normal * weights[f"{name}/gamma"] + weights[f"{name}/beta"]
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON[kind]) * weights[f"{name}/scale"]


def rotated(x, positions, arguments):
    """Su et al. 2021, equation 34, pair by pair; "linear" scaling divides the angles, "llama3" only the slow ones."""
    size = arguments.get("rotary_dim") or x.shape[-1]
    answer = x.copy()
    for i in range(size // 2):
        frequency = scaled_frequency(
            arguments.get("max_wavelength", 10000) ** (-2 * i / size), arguments.get("scaling")
        )
        a, b = (2 * i, 2 * i + 1) if arguments.get("interleaved") else (i, i + size // 2)
        angle = (positions * frequency)[:, :, None]
        answer[..., a] = x[..., a] * np.cos(angle) - x[..., b] * np.sin(angle)
        answer[..., b] = x[..., b] * np.cos(angle) + x[..., a] * np.sin(angle)
    return answer


def scaled_frequency(frequency, scaling):
    if scaling is None:
        return frequency
    if scaling["type"] == "linear":
        return frequency / scaling["factor"]
    assert scaling["type"] == "llama3"
    wavelength = 2 * math.pi / frequency
    length, low, high = (
        scaling[name] for name in ("original_max_sequence_length", "low_freq_factor", "high_freq_factor")
    )
    if wavelength < length / high:
        return frequency
    if wavelength > length / low:
        return frequency / scaling["factor"]
    smooth = (length / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / scaling["factor"] + smooth * frequency


def position_bias(weights, arguments, scaled_queries, query_positions, key_positions):
    """(B, N, T, S), or 0 without one."""
    if arguments.get("position_bias") is None:
        return 0.0
    kind, options = arguments["position_bias"]
    relative = key_positions[:, None, :] - query_positions[:, :, None]  # (B, T, S)
    if kind == "alibi":
        slopes = slopes_of_alibi(arguments["num_heads"])
        return -slopes[None, :, None, None] * np.abs(relative)[:, None]
    if kind == "t5":
        bucket = np.vectorize(lambda distance: bucket_of_t5(int(distance), **options), otypes=[int])
        return np.moveaxis(weights["t5/embeddings"][bucket(relative)], -1, 1)
    assert kind == "shaw"
    largest = options["max_distance"]
    vectors = weights["shaw/embeddings"][np.clip(relative, -largest, largest) + largest]
    return np.einsum("btnh,btsh->bnts", scaled_queries, vectors)


def slopes_of_alibi(num_heads):
    """Press et al. 2022, section 3, and for other numbers of heads the authors' code."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-8 * (2 * i + 1) / (2 * power)) for i in range(power)]
    return np.array([*slopes, *between][:num_heads])


def bucket_of_t5(relative, num_buckets=32, max_distance=128, bidirectional=True):
    """Raffel et al. 2020, section 2.1, for one distance."""
    first = 0
    if bidirectional:
        num_buckets //= 2
        first = num_buckets if relative > 0 else 0
        distance = abs(relative)
    else:
        distance = max(-relative, 0)
    exact = num_buckets // 2
    if distance < exact:
        return first + distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    return first + min(exact + int(share * (num_buckets - exact)), num_buckets - 1)


def allowed_pairs(arguments, call, query_positions, key_positions, shape):
    """Booleans (B, N, T, S): every mask, one pair at a time but for those that are given pair by pair."""
    allowed = np.ones(shape, bool)
    for b, t, s in np.ndindex(shape[0], *shape[2:]):
        allowed[b, :, t, s] = pair_is_allowed(
            arguments, call, b, t, s, query_positions[b, t], key_positions[b, s]
        )
    if "attention_mask" in call:
        mask = call["attention_mask"].astype(bool)
        allowed &= mask[:, None] if mask.ndim == 3 else mask
    return allowed


def pair_is_allowed(arguments, call, b, t, s, query_position, key_position):
    distance = int(query_position) - int(key_position)
    if not call.get("query_mask", ALL)[b, t]:
        return False
    if not (call.get("value_mask", ALL)[b, s] and call.get("key_mask", ALL)[b, s]):
        return False
    if call.get("use_causal_mask") and distance < 0 and not call.get("prefix_mask", NONE)[b, s]:
        return False
    window = arguments.get("sliding_window")
    num_sinks = arguments.get("num_sink_tokens", 0)
    is_sink = num_sinks > 0 and key_position < num_sinks
    if window and abs(distance) >= window and not is_sink:
        return False
    if "segment_ids" in call:
        of_query, of_key = call["segment_ids"][b, t], call.get("key_segment_ids", call["segment_ids"])[b, s]
        return of_query == of_key != 0
    return True


class _Constant:
    """A mask with the same answer everywhere."""

    def __init__(self, answer):
        self.answer = answer

    def __getitem__(self, index):
        return self.answer


ALL, NONE = _Constant(True), _Constant(False)


def softmax_over_allowed(logits, allowed, sink_logits=None):
    """The scores of the allowed keys alone; without any they are 0."""
    scores = np.zeros(logits.shape)
    for b, n, t in np.ndindex(*logits.shape[:3]):
        seen = np.flatnonzero(allowed[b, n, t])
        if len(seen):
            row = logits[b, n, t, seen]
            row = row if sink_logits is None else np.append(row, sink_logits[n])
            weights = np.exp(row - row.max())
            scores[b, n, t, seen] = (weights / weights.sum())[: len(seen)]
    return scores


# --- dropout: a hash of the place of each score, in unsigned arithmetic modulo 2^32 ---


def dropout_multiplier(rate, seed, shape):
    """0 where a score is dropped, 1 / (1 - rate) where it stays, for scores (..., T, S)."""
    planes = np.arange(math.prod(shape[:-2]), dtype="uint64").reshape(*shape[:-2], 1, 1)
    rows = np.arange(shape[-2], dtype="uint64")[:, None]
    columns = np.arange(shape[-1], dtype="uint64")[None, :]
    first, second = (int(part) % 2**32 for part in seed)
    of_rows = mixed(mixed(mixed(planes) + first) + rows)
    of_columns = mixed(mixed(columns) + second)
    random = mixed(of_rows + of_columns)
    # The library compares signed integers: a half turn apart.
    uniform = ((random + 2**31) % 2**32) / 2**32
    return np.where(uniform >= math.floor(rate * 2**32) / 2**32, 1 / (1 - rate), 0.0)


def mixed(x):
    """Wellons' 32-bit hash "lowbias32" of integers modulo 2^32, in uint64 that never overflows unseen."""
    x = np.asarray(x, "uint64") % 2**32
    x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
    x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
    return x ^ (x >> 16)


# --- gradients: central differences of the formula above ---


def slope_of_oracle(weights, arguments, call, coefficients, directions, seed=None, step=1e-5):
    """The derivative of `sum(coefficients * output)` as weights and inputs move along `directions`.

    Args:
        directions: Dict of arrays, by the names of weights and of inputs in `call`.
    """

    def value(step):
        moved_weights = {
            name: x + step * directions[name] if name in directions else x for name, x in weights.items()
        }
        moved_call = {
            name: x + step * directions[name] if name in directions else x for name, x in call.items()
        }
        return np.sum(coefficients * attention_oracle(moved_weights, arguments, moved_call, seed)[0])

    return (value(step) - value(-step)) / (2 * step)
