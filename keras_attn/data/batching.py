"""From text pairs to batches of token ids for `model.fit`."""

import dataclasses
import itertools

import numpy as np
import tensorflow as tf

BUCKET_BOUNDARIES = (8, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256)

_TEXTS_PER_TOKENIZER_CALL = 4096
_LINES_IN_REPORT = 10


@dataclasses.dataclass(frozen=True)
class TranslationBatches:
    """Batches of token ids for training, and what became of the pairs they were made from.

    Args:
        dataset: `tf.data.Dataset` of `({"encoder_token_ids": (B, S), "decoder_token_ids": (B, T)}, labels)` with
            labels of shape (B, T), all int32. One iteration is one epoch; `len(dataset)` is its number of batches.
        num_pairs: Number of pairs in an epoch.
        num_tokens: Number of label tokens in an epoch: END counts, pads do not.
        padding_share: Share of the positions of `encoder_token_ids` and `labels`, from 0 to 1, that are pads.
        over_long: 1-based line numbers of the pairs that were left out because one of their sides, with its special
            tokens, is longer than `max_sequence_length`.
        max_sequence_length: Number of tokens of the longest side that is kept.
    """

    dataset: tf.data.Dataset
    num_pairs: int
    num_tokens: int
    padding_share: float
    over_long: tuple[int, ...]
    max_sequence_length: int

    def report(self):
        """Says in a line or two what an epoch holds and which pairs were left out."""
        text = (
            f"Pairs: {self.num_pairs:,}, batches: {len(self.dataset):,}, target tokens: {self.num_tokens:,}, "
            f"padding: {self.padding_share:.1%} of the positions."
        )
        if not self.over_long:
            return text
        lines = ", ".join(map(str, self.over_long[:_LINES_IN_REPORT]))
        rest = len(self.over_long) - _LINES_IN_REPORT
        return (
            f"{text} Pairs longer than {self.max_sequence_length} tokens, left out: {len(self.over_long):,}, "
            f"from line {lines}{f' and {rest:,} more' if rest > 0 else ''}."
        )


def translation_batches(
    pairs,
    source_tokenizer,
    target_tokenizer,
    max_tokens=2048,
    max_sequence_length=256,
    bucket_boundaries=BUCKET_BOUNDARIES,
    shuffle=True,
    seed=0,
):
    """Tokenizes text pairs once and batches them for teacher forcing.

    The encoder reads the source and END; the decoder reads START and the target, and is to predict the target and
    END. Every pair is in exactly one batch of an epoch. KerasHub leaves this to each user's `tf.data` code, where
    pairs are commonly cut to one fixed length; here nothing is cut, and what is too long is left out and named.

    Args:
        pairs: `TextPairs`.
        source_tokenizer: A tokenizer of `keras_attn.text`.
        target_tokenizer: The same or another one.
        max_tokens: Largest number of positions, pads included, of either side of a batch (see `batch_by_tokens`).
        max_sequence_length: Largest number of tokens of either side of a pair, special tokens included.
        bucket_boundaries: Lengths to pad to, ascending. Those from `max_sequence_length` on are replaced by it.
        shuffle: Whether the pairs come in a new random order each epoch (see `batch_by_tokens`).
        seed: Integer. The same seed, and the same global `tf.random` seed, gives the same sequence of epochs.

    Returns:
        `TranslationBatches`.

    Raises:
        ValueError: If no pair is left, if a tokenizer returns an id outside its vocabulary or the id of the padding,
            or if `max_tokens`, `max_sequence_length` or `bucket_boundaries` is not as described.

    Example:

    ```python
    from keras_attn.data import date_pairs, translation_batches
    from keras_attn.text import ByteTokenizer

    tokenizer = ByteTokenizer()
    batches = translation_batches(date_pairs("validation"), tokenizer, tokenizer, max_tokens=1024)
    print(batches.report())
    inputs, labels = next(iter(batches.dataset))
    assert inputs["decoder_token_ids"].shape == labels.shape
    ```

    Reference:
        - Vaswani et al., 2017, "Attention Is All You Need" (arXiv:1706.03762), section 5.1: pairs "were batched
          together by approximate sequence length".
    """
    boundaries = _boundaries_up_to(bucket_boundaries, max_sequence_length)
    sources, targets = _token_ids_of_pairs(pairs, source_tokenizer, target_tokenizer)
    inputs = {"encoder_token_ids": sources, "decoder_token_ids": targets[:, :-1]}
    labels = targets[:, 1:]
    lengths = np.stack([sources.row_lengths().numpy(), labels.row_lengths().numpy()])
    fits = (lengths <= max_sequence_length).all(axis=0)
    if not fits.any():
        raise ValueError(
            f"No pair is left to train on: each of the {len(pairs)} pairs has a side of more than "
            "`max_sequence_length` tokens, special tokens included. "
            f"Received: max_sequence_length={max_sequence_length}."
        )
    kept = tf.nest.map_structure(lambda side: tf.ragged.boolean_mask(side, fits), (inputs, labels))
    num_positions = 2 * np.take(boundaries, _bucket_of_rows(kept, boundaries)).sum()
    return TranslationBatches(
        dataset=batch_by_tokens(kept, max_tokens, boundaries, shuffle=shuffle, seed=seed),
        num_pairs=int(fits.sum()),
        num_tokens=int(lengths[1, fits].sum()),
        padding_share=float(1 - lengths[:, fits].sum() / num_positions),
        over_long=tuple((np.flatnonzero(~fits) + 1).tolist()),
        max_sequence_length=max_sequence_length,
    )


def batch_by_tokens(sequences, max_tokens, bucket_boundaries=BUCKET_BOUNDARIES, shuffle=True, seed=0):
    """Batches sequences of similar length, as many rows a batch as the token budget allows.

    Each row goes to the smallest bucket that holds its longest component, and every component is padded with 0 to
    the boundary of the bucket. Shapes are thus few and fixed: XLA compiles once for each. No row is lost or doubled;
    the last batch of a bucket may be smaller. `tf.data.Dataset.bucket_by_sequence_length` does the same for a stream
    of elements; with all rows in memory, batches are cut out whole, at a tenth of its work, and their number is
    known, which is where Keras' progress bar ends.

    Args:
        sequences: Any structure of `tf.RaggedTensor`s of shape (number of rows, None) with equally many rows.
        max_tokens: Largest number of positions, pads included, of any component of a batch. A bucket whose boundary
            is greater gets batches of one row.
        bucket_boundaries: Lengths to pad to, ascending.
        shuffle: Whether the rows come in a new random order each epoch, and the batches of the buckets mixed.
            Otherwise every epoch is the same: bucket after bucket, rows in their order.
        seed: Integer. The same seed, and the same global `tf.random` seed, gives the same sequence of epochs.

    Returns:
        `tf.data.Dataset` of the same structure and dtypes, every component of shape (B, boundary).

    Raises:
        ValueError: If `max_tokens` is not positive, if the boundaries are not positive and ascending, or if a row is
            longer than the last of them.

    Example:

    ```python
    import tensorflow as tf
    from keras_attn.data import batch_by_tokens

    token_ids = tf.ragged.constant([[5, 6], [7], [8, 9, 5, 6, 7]], dtype="int32")
    batches = batch_by_tokens(token_ids, max_tokens=8, bucket_boundaries=(4, 8))
    assert sorted(tuple(batch.shape) for batch in batches) == [(1, 8), (2, 4)]
    ```
    """
    boundaries = _checked_boundaries(bucket_boundaries)
    rows_a_batch = _rows_a_batch(max_tokens, boundaries)
    bucket_of_rows = _bucket_of_rows(sequences, boundaries)
    buckets, batch_counts = [], []
    for bucket in np.unique(bucket_of_rows):
        rows = tf.data.Dataset.from_tensor_slices(np.flatnonzero(bucket_of_rows == bucket))
        if shuffle:
            rows = rows.shuffle(len(rows), seed=seed, reshuffle_each_iteration=True)
        batches = rows.batch(rows_a_batch[bucket])
        buckets.append(batches.map(_padded_rows(sequences, boundaries[bucket])))
        batch_counts.append(len(batches))
    # Which bucket each batch of an epoch is taken from.
    choices = tf.data.Dataset.from_tensor_slices(np.repeat(np.arange(len(buckets)), batch_counts))
    if shuffle:
        choices = choices.shuffle(len(choices), seed=seed, reshuffle_each_iteration=True)
    dataset = tf.data.Dataset.choose_from_datasets(buckets, choices)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(sum(batch_counts)))
    return dataset.prefetch(tf.data.AUTOTUNE)


def _bucket_of_rows(sequences, boundaries):
    components = tf.nest.flatten(sequences)
    lengths = np.max([component.row_lengths().numpy() for component in components], axis=0)
    if not lengths.size or lengths.max() > boundaries[-1]:
        raise ValueError(
            "`sequences` must have rows, none of them longer than the last of `bucket_boundaries`. Received: "
            f"{lengths.size} rows of at most {lengths.max(initial=0)} tokens, bucket_boundaries={tuple(boundaries)}."
        )
    return np.searchsorted(boundaries, lengths)


def _padded_rows(sequences, length):
    def batch(rows):
        return tf.nest.map_structure(
            lambda component: tf.gather(component, rows).to_tensor(shape=[None, length]), sequences
        )

    return batch


def _rows_a_batch(max_tokens, boundaries):
    if max_tokens < 1:
        raise ValueError(
            f"`max_tokens` must be a positive number of tokens. Received: max_tokens={max_tokens}."
        )
    return [max(1, max_tokens // boundary) for boundary in boundaries]


def _checked_boundaries(boundaries):
    boundaries = list(boundaries)
    ascending = all(low < high for low, high in itertools.pairwise(boundaries))
    if not boundaries or boundaries[0] < 1 or not ascending:
        raise ValueError(
            "`bucket_boundaries` must be lengths in tokens, positive and ascending, at least one. "
            f"Received: bucket_boundaries={tuple(boundaries)}."
        )
    return boundaries


def _boundaries_up_to(boundaries, max_sequence_length):
    if max_sequence_length < 1:
        raise ValueError(
            "`max_sequence_length` must be a positive number of tokens. "
            f"Received: max_sequence_length={max_sequence_length}."
        )
    kept = [boundary for boundary in _checked_boundaries(boundaries) if boundary < max_sequence_length]
    return [*kept, max_sequence_length]


def _token_ids_of_pairs(pairs, source_tokenizer, target_tokenizer):
    """Returns the sources with END and the targets with START and END, two ragged tensors of int32."""
    sources = _token_ids(pairs.sources, source_tokenizer, "source")
    targets = _token_ids(pairs.targets, target_tokenizer, "target")

    def column(token_id):
        return tf.fill([len(pairs), 1], tf.constant(token_id, tf.int32))

    return (
        tf.concat([sources, column(source_tokenizer.end_token_id)], axis=1),
        tf.concat(
            [column(target_tokenizer.start_token_id), targets, column(target_tokenizer.end_token_id)], axis=1
        ),
    )


def _token_ids(texts, tokenizer, side):
    # In chunks, because inside a tokenizer a text is held several times over. An empty list is one empty chunk.
    starts = range(0, max(1, len(texts)), _TEXTS_PER_TOKENIZER_CALL)
    chunks = [tf.constant(texts[start : start + _TEXTS_PER_TOKENIZER_CALL], tf.string) for start in starts]
    token_ids = tf.concat([tokenizer.tokenize(chunk) for chunk in chunks], axis=0)
    ids = token_ids.flat_values.numpy()
    wrong = np.flatnonzero((ids < 1) | (ids >= tokenizer.vocabulary_size))
    if wrong.size:
        line = int(token_ids.value_rowids()[wrong[0]]) + 1
        raise ValueError(
            f"The {side} tokenizer's ids must be from 1, 0 being the padding, to `vocabulary_size` - 1. "
            f"Received: id {ids[wrong[0]]} in line {line}, vocabulary_size={tokenizer.vocabulary_size}."
        )
    return token_ids
