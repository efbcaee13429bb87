"""Numbers that summarise attention. `scores` are one layer's, (B, N, T, S); `maps` are several layers', an `AttentionMaps`."""

import collections.abc

import numpy as np

from keras_attn.checks import check_pair, check_positive
from keras_attn.ops import partition_windows
from keras_attn.plots.head_kinds import head_kinds as kinds_of_heads


def mean_of_heads(scores):
    """The mean over the heads: (B, N, T, S) in, float32 (B, T, S) out.

    Args:
        scores: Array (B, N, T, S).

    Raises:
        ValueError: if they are the maps of several layers.

    Example:

    ```python
    scores = np.random.default_rng(0).dirichlet(np.ones(5), (2, 3, 5))  # (2, 3, 5, 5)
    means = mean_of_heads(scores)  # (2, 5, 5)
    ```
    """
    return _floats(scores).mean(axis=-3)


def entropy(scores, normalized=False):
    """The entropy of every row of scores, in nats: (B, N, T, S) in, float32 (B, N, T) out.

    0 is a row that attends to one key, and log(S) one that attends to all keys equally. A row without a key, such
    as a pad's, is NaN.

    Args:
        scores: Array (B, N, T, S).
        normalized: Boolean, whether it is divided by the log of the number of keys with a score above 0, so that it is
            in [0, 1]. A row with one such key is NaN then.

    Raises:
        ValueError: if they are the maps of several layers.

    Example:

    ```python
    entropy(np.full((1, 1, 1, 4), 0.25))  # 1.386
    ```
    """
    scores = _floats(scores)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = scores / scores.sum(axis=-1, keepdims=True)
        zero_or_nan = np.where(np.isnan(shares), np.nan, 0)
        terms = np.where(shares > 0, shares * np.log(shares), zero_or_nan)
        nats = -terms.sum(axis=-1)
        if normalized:
            nats = nats / np.log((scores > 0).sum(axis=-1))
    return nats


def rollout(maps, residual=0.5):
    """How much of each input position arrives at each position of the last layer, if values only mixed by attention.

    The mean of each layer's heads is joined with the residual connection, and the layers are multiplied. For a model
    with a class token, the row of that token, `rollout(maps)[:, 0]`, is what the classifier looked at.

    Args:
        maps: List of arrays (B, N, T, T), or of means (B, T, T), from the first layer to the last; or an `AttentionMaps`.
        residual: Float in [0, 1], the residual connection's share.

    Returns:
        Float32 (B, T, T): from row to column. The rows sum to 1.

    Raises:
        ValueError: if there is no map, or the maps are not of self-attention over one length. `windows_in_place` puts the
            windows of a Swin Transformer in place; the layers of one of its stages have one length.

    Example:

    ```python
    model = keras_attn.models.EncoderTransformer.from_sizes(100, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    with capture_attention(model) as maps:
        model(np.array([[5, 6, 7, 3]]))
    first_token = rollout(maps)[:, 0]  # (1, 4)
    ```

    Reference: [Abnar and Zuidema, 2020](https://arxiv.org/abs/2005.00928), section 3 (attention rollout).
    """
    product = None
    for scores in _square_maps(_by_key(maps, ranks=(3, 4))):
        if scores.ndim == 4:
            scores = mean_of_heads(scores)
        mixed = residual * np.eye(scores.shape[-1], dtype="float32") + (1 - residual) * scores
        with np.errstate(invalid="ignore"):
            # A pad's row may be empty: it keeps what the residual connection brings.
            mixed = np.nan_to_num(mixed / mixed.sum(axis=-1, keepdims=True))
        product = mixed if product is None else mixed @ product
    return product


def relevance(maps, gradients, encoder=None, decoder=None, cross=None):
    """How relevant each input position is for one output, by the attention scores and their gradients.

    For self-attention alone, an encoder, a language model or a vision transformer, leave the last three arguments out: all
    maps form one stack. For an encoder and a decoder name the three kinds of layers.

    Args:
        maps, gradients: `AttentionMaps` of one call, see `attention_gradients`; or lists of arrays (B, N, T, S) in the order of
            the layers.
        encoder, decoder, cross: Lists of keys of `maps` (of indices of lists): the self-attention of the encoder, that of the
            decoder, and cross-attention, each from the first layer to the last.

    Returns:
        Float32 (B, T, T) for one stack: the relevance of the column for the row. With `cross`, (B, T, S): the relevance of the
        source position S for the decoder's position T.

    Raises:
        ValueError: if `maps` and `gradients` do not match or are of windows, or some of the three kinds are not named.

    Example:

    ```python
    model = keras_attn.models.EncoderTransformer.from_sizes(100, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    maps, gradients = attention_gradients(model, np.array([[5, 6, 7, 3]]), target=lambda y: y[:, 0, 7])
    first_token = relevance(maps, gradients)[:, 0]  # (1, 4)
    ```

    Reference: [Chefer et al., 2021](https://arxiv.org/abs/2103.15679), section 3, equations 5 to 10.
    """
    weighted = _gradient_weighted(maps, gradients)
    if cross is None:
        if encoder is not None or decoder is not None:
            raise ValueError(
                "`encoder` and `decoder` need `cross`: without cross-attention there is one stack."
            )
        return _self_relevance(weighted)
    if encoder is None or decoder is None or len(decoder) != len(cross):
        raise ValueError(
            "`encoder`, `decoder` and `cross` must be given together, with as many decoder layers as cross layers. "
            f"Received: encoder={encoder}, decoder={decoder}, cross={cross}."
        )
    source = _normalized_relevance(_self_relevance({key: weighted[key] for key in encoder}))
    target = np.eye(weighted[cross[0]].shape[-2], dtype="float32")
    between = np.zeros_like(weighted[cross[0]])
    for self_key, cross_key in zip(decoder, cross):
        own = weighted[self_key]
        across = weighted[cross_key]
        target = target + own @ target  # equation 6
        between = between + own @ between  # equation 7
        weights = np.swapaxes(_normalized_relevance(target), -1, -2)
        between = between + weights @ across @ source  # equation 10
    return between


def _gradient_weighted(maps, gradients):
    """The mean over the heads of the positive part of scores times gradient (equation 5), by key."""
    maps = _by_key(maps)
    gradients = _by_key(gradients)
    if list(maps) != list(gradients) or any(maps[key].shape != gradients[key].shape for key in maps):
        raise ValueError(
            "`maps` and `gradients` must be of the same layers and shapes, as `attention_gradients` returns them. "
            f"Received: maps of {list(maps)}, gradients of {list(gradients)}."
        )
    return {key: np.maximum(scores * gradients[key], 0).mean(axis=-3) for key, scores in maps.items()}


def _self_relevance(weighted):
    """Equation 6, from the identity on."""
    layers = _square_maps(weighted)
    relevance = np.eye(layers[0].shape[-1], dtype="float32")
    for layer in layers:
        relevance = relevance + layer @ relevance
    return relevance


def _normalized_relevance(relevance):
    """Equations 8 and 9: the part added to the identity, with rows that sum to 1, plus the identity."""
    identity = np.eye(relevance.shape[-1], dtype="float32")
    added = relevance - identity
    sums = added.sum(axis=-1, keepdims=True)
    return np.divide(added, sums, out=np.zeros_like(added), where=sums > 0) + identity


def word_scores(scores, query_words=None, key_words=None):
    """Scores between words from scores between tokens: summed over a word's keys, averaged over its queries.

    A row still says how a word's attention is divided (Clark et al., 2019, section 4.1).

    Args:
        scores: Array (..., T, S).
        query_words, key_words: The index of each token's word, or None for a token outside words, whose row or column is
            left out. None in place of the list leaves that side as tokens.

    Returns:
        Float32 (..., T', S').

    Raises:
        ValueError: if a list does not have one item for each token, or leaves out an index, or the scores are the maps of
            several layers.

    Example:

    ```python
    scores = np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.3, 0.3, 0.4]])
    word_scores(scores, [0, 1, 1], [0, 1, 1])  # [[0.5, 0.5], [0.2, 0.8]]
    ```

    Reference: [Clark et al., 2019](https://arxiv.org/abs/1906.04341), section 4.1.
    """
    scores = _floats(scores)
    if query_words is not None:
        members = _members("query_words", query_words, scores.shape[-2])
        scores = (members / members.sum(axis=-1, keepdims=True)) @ scores
    if key_words is not None:
        scores = scores @ _members("key_words", key_words, scores.shape[-1]).T
    return scores


def _members(name, words, num_tokens):
    """Float32 (words, tokens), 1 where the token is of the word."""
    if len(words) != num_tokens:
        raise ValueError(
            f"`{name}` must have an item for each of {num_tokens} tokens. Received: {len(words)} items."
        )
    numbers = sorted({word for word in words if word is not None})
    if numbers != list(range(len(numbers))):
        raise ValueError(f"`{name}` must name words 0, 1, 2, ... or None. Received: {name}={list(words)}.")
    members = np.zeros((len(numbers), num_tokens), "float32")
    for token, word in enumerate(words):
        if word is not None:
            members[int(word), token] = 1
    return members


def head_kinds(maps, token_ids=None):
    """How much each head is of a known kind: scores in [0, 1], the mean share of attention that the kind's keys get.

    In self-attention kinds are `previous` (the token before), `next`, `first` (the first token), `own` (the token itself),
    `local` (at most two away, on either side) and, with `token_ids`, `induction`: the token after an earlier one that
    equals this token. In cross-attention they are `first` and `diagonal` (the query's place in the text, give or take a
    tenth of its length). `broad` is the row's entropy relative to that of an even row. Maps with as many queries as keys are taken for
    self-attention.

    A row with one key to choose from says nothing and is left out, such as a causal mask's first. So are pads, before or
    after the tokens: positions without attention, in their rows and their columns. Under a causal mask there is no `next`.

    Args:
        maps: Array (B, N, T, S) of one layer, or `AttentionMaps` or a dict of them.
        token_ids: Integers (B, T), for `induction`; see `repeated_tokens`.

    Returns:
        Dict from kinds to float32 (N,); of a mapping a dict from keys to such dicts. NaN if no row can tell.

    Raises:
        ValueError: if `token_ids` are not of the shape of the queries, or the maps are of windows, which `windows_in_place`
            puts in place.

    Example:

    ```python
    model = keras_attn.models.DecoderTransformer.from_sizes(100, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    token_ids = repeated_tokens(length=11, vocabulary_size=100)
    with capture_attention(model) as maps:
        model(token_ids)
    kinds = head_kinds(maps, token_ids)
    first_head = {kind: scores[0] for kind, scores in kinds[maps.paths[0]].items()}
    ```

    References: [Clark et al., 2019](https://arxiv.org/abs/1906.04341), section 3;
    [Voita et al., 2019](https://arxiv.org/abs/1905.09418), section 5;
    [Olsson et al., 2022](https://arxiv.org/abs/2209.11895), induction.
    """
    if isinstance(maps, collections.abc.Mapping):
        return {key: head_kinds(scores, token_ids) for key, scores in _by_key(maps).items()}
    scores = _by_key({"maps": maps})["maps"]
    batch_size, _, num_queries, num_keys = scores.shape
    if token_ids is not None and np.shape(token_ids) != (batch_size, num_queries):
        raise ValueError(
            f"`token_ids` must have the shape {(batch_size, num_queries)} of the queries. "
            f"Received: shape {np.shape(token_ids)}."
        )
    return kinds_of_heads(scores, num_queries == num_keys, token_ids)


def repeated_tokens(length, vocabulary_size, batch_size=4, first_token_id=1, seed=0):
    """Random token ids, repeated once: int32 (batch_size, 2 length). On these, induction heads show.

    Args:
        length: Integer, of the part that is repeated.
        vocabulary_size: Integer; ids are from `first_token_id` up to it, each at most once in a part.
        batch_size, seed: Integers.
        first_token_id: Integer, above the ids of pads and specials.

    Raises:
        ValueError: if the vocabulary is smaller than `length`.

    Example:

    ```python
    token_ids = repeated_tokens(length=5, vocabulary_size=100, batch_size=2)  # (2, 10)
    ```
    """
    check_positive("length", length)
    if vocabulary_size - first_token_id < length:
        raise ValueError(
            "The vocabulary must have as many ids as the part is long. Received: "
            f"length={length}, vocabulary_size={vocabulary_size}, first_token_id={first_token_id}."
        )
    rng = np.random.default_rng(seed)
    ids = np.arange(first_token_id, vocabulary_size)
    part = np.stack([rng.permutation(ids)[:length] for _ in range(batch_size)])
    return np.tile(part, (1, 2)).astype("int32")


def windows_in_place(scores, height, width, window_size, shift_size=0):
    """The maps of `WindowAttention` as maps of the whole image: every pixel's attention to every pixel.

    Args:
        scores: Array (B, W, N, M, M) of W windows of M pixels.
        height, width: Integers, the size of the layer's input.
        window_size, shift_size: As of the layer.

    Returns:
        Float32 (B, N, height * width, height * width), pixels row by row; 0 between pixels of different windows. What a layer with
        `attend_to_padding` gives to padding is left out.

    Raises:
        ValueError: if the windows are not those of such an image.

    Example:

    ```python
    layer = keras_attn.layers.WindowAttention(num_heads=2, key_dim=8, window_size=4, shift_size=2)
    images = np.random.default_rng(0).normal(size=(1, 7, 6, 16)).astype("float32")
    layer(images)  # builds it
    with capture_attention(layer) as maps:
        layer(images)
    whole = windows_in_place(maps[layer.name], 7, 6, window_size=4, shift_size=2)  # (1, 2, 42, 42)
    ```
    """
    scores = _floats(scores)
    window_size = check_pair("window_size", window_size)
    shift_size = check_pair("shift_size", shift_size, lowest=0)
    numbers = 1 + np.arange(height * width).reshape(1, height, width, 1)
    # The number of each window's pixels, counted from 1; 0 is padding.
    pixels = np.asarray(partition_windows(numbers, window_size, shift_size))[0, ..., 0]
    num_windows, size = pixels.shape
    if scores.ndim != 5 or scores.shape[1] != num_windows or scores.shape[3:] != (size, size):
        raise ValueError(
            f"`scores` must have the shape (B, {num_windows}, N, {size}, {size}) for this image. "
            f"Received: shape {scores.shape}."
        )
    batch_size, _, num_heads = scores.shape[:3]
    num_pixels = 1 + height * width  # the first stands for padding
    whole = np.zeros((batch_size, num_heads, num_pixels, num_pixels), "float32")
    for window, window_pixels in enumerate(pixels):
        whole[:, :, window_pixels[:, None], window_pixels[None]] = scores[:, window]
    return whole[:, :, 1:, 1:]


def _by_key(maps, ranks=(4,)):
    """Float32 maps by path; those of a list by number.

    Raises:
        ValueError: if one has another rank, as windows have.
    """
    if not isinstance(maps, collections.abc.Mapping):
        maps = dict(enumerate(maps))
    maps = {key: _floats(scores) for key, scores in maps.items()}
    for key, scores in maps.items():
        if scores.ndim not in ranks:
            raise ValueError(
                "The map of a layer must have the shape (B, N, T, S). `windows_in_place` makes one of windows "
                f"(B, W, N, M, M). Received: {key!r} of shape {scores.shape}."
            )
    return maps


def _square_maps(maps):
    shapes = {key: scores.shape for key, scores in maps.items()}
    if len({size for shape in shapes.values() for size in shape[-2:]}) != 1:
        raise ValueError(
            "The maps must be of self-attention, all over the same positions. Choose layers of one length, for example with "
            f"`layers=` of `capture_attention`. Received maps of the shapes {shapes}."
        )
    return list(maps.values())


def _floats(scores):
    if isinstance(scores, collections.abc.Mapping):
        raise ValueError(
            f"`scores` must be those of one layer, `maps[path]`. Received: the maps of {list(scores)}."
        )
    return np.asarray(scores).astype("float32", copy=False)
