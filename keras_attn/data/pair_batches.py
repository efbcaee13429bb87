"""Turns text pairs into an endless, seeded sequence of batches of token ids for `model.fit`."""

import dataclasses
import functools

import keras
import numpy as np
import tensorflow as tf

from keras_attn.checks import check_positive, check_rate
from keras_attn.data.batch_plan import batch_by_tokens, checked_boundaries, find_bucket, pack_by_tokens
from keras_attn.data.seeded_batches import SeededBatches
from keras_attn.data.text_pairs import TextPairs
from keras_attn.data.token_pairs import PairForm, RaggedIds, row_lengths, sample_pairs, tokenize_once
from keras_attn.terminal import counted

BUCKET_BOUNDARIES = (8, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256)

_LINES_IN_REPORT = 10
_SAMPLING = 2  # in seeds: what random numbers are for, 0 and 1 being the drawing and the order of pairs


@dataclasses.dataclass(frozen=True, eq=False)
class EpochTokens:
    """The token ids of an epoch.

    Args:
        sources, targets: `RaggedIds`, as in `TokenPairs`.
    """

    sources: RaggedIds
    targets: RaggedIds

    @functools.cached_property
    def lengths(self):
        """Integers (N, 2), the positions that the sides of each pair take."""
        # A target has START and END: the decoder reads START and predicts END.
        return np.stack([row_lengths(self.sources), row_lengths(self.targets) - 1], axis=1)


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
    """The batch, or batches, of one optimizer update.

    Args:
        pairs: Integer array, the indices of its pairs.
        rows: Integer array, ascending, the row of each pair.
        num_rows: Integer, the number of rows, including rows without a pair.
        source_length, target_length: Integers, the positions of a row.
        num_tokens: Integer, the label tokens: END counts, pads do not.
        num_real: Integer, the positions on both sides that are not pads.
        tokens: `EpochTokens`, of its epoch.
    """

    pairs: np.ndarray
    rows: np.ndarray
    num_rows: int
    source_length: int
    target_length: int
    num_tokens: int
    num_real: int
    tokens: EpochTokens

    @property
    def num_positions(self):
        """The positions on both sides, pads included."""
        return self.num_rows * (self.source_length + self.target_length)


def translation_batches(
    pairs,
    source_tokenizer,
    target_tokenizer,
    max_tokens=2048,
    max_sequence_length=256,
    bucket_boundaries=BUCKET_BOUNDARIES,
    packed_length=None,
    weights=None,
    shuffle=True,
    seed=0,
    token_folder=None,
    form=None,
    subword_sampling=0.0,
    **options,
):
    """Tokenizes text pairs once and batches them for teacher forcing.

    The encoder reads the source and END; the decoder reads START and the target, and learns to predict the
    target and END. Every pair is in exactly one batch of an epoch. KerasHub leaves this to each user's
    `tf.data` code, where pairs are commonly cut to one fixed length; here nothing is cut: pairs that are too
    long are left out and reported.

    Args:
        pairs: `TextPairs`, or a list of several.
        source_tokenizer: A tokenizer of `keras_attn.text`.
        target_tokenizer: The same or another one.
        max_tokens: Largest number of positions, pads included, of either side of an update (see
            `batch_by_tokens`).
        max_sequence_length: Largest number of tokens of either side of a pair, special tokens included.
        bucket_boundaries: Lengths to pad to, ascending; those of at least `max_sequence_length` are replaced
            by it. All batches of a bucket have the same shape, so XLA compiles once for each bucket; some
            rows may hold only pads. None pads every batch to its longest sentence on each side: fewer pads,
            but many shapes, which is faster if nothing is compiled per shape.
        packed_length: Integer; rows then have this length and hold several pairs each, with segment ids, and
            `bucket_boundaries` is ignored.
        weights: Floats, one for each of several `TextPairs`: how often each of its pairs occurs in an epoch,
            on average. With 0.5, every second epoch has the half that the previous epoch left out. Default:
            1.
        shuffle: Whether the pairs come in a new random order each epoch.
        seed: Integer. The same seed gives the same sequence of batches, on every machine.
        token_folder: Path of a folder for the token ids, so that the data may be larger than memory. The ids
            are written once: those of the same texts and tokenizers are used again, those of others are
            replaced. Only about 100 bytes per pair are then held in memory. None: the ids are held in memory.
        form: `PairForm`, what stands around the tokens of a pair, for a model that was not trained here; or None.
        subword_sampling: Float in [0, 1), the share of merges that BPE leaves out at random (BPE-dropout, 0.1 in the paper).
            With more than 0, each epoch has other segmentations of its texts, drawn from the seed and the number of the
            epoch. Where one is longer than `max_sequence_length`, the text's usual one is taken. Epochs then differ in
            their number of batches.
        **options: `num_micro_batches`, `num_devices`, `worker` and `sample_weights`, as in
            `TranslationBatches`.

    Returns:
        `TranslationBatches`.

    Raises:
        ValueError: If no pair is left, if a tokenizer returns an id outside its vocabulary or the id of the
            padding, or if another argument is not as described.

    Example:

    ```python
    from keras_attn.data import date_pairs, translation_batches
    from keras_attn.text import ByteTokenizer

    tokenizer = ByteTokenizer()
    batches = translation_batches(date_pairs("validation"), tokenizer, tokenizer, max_tokens=1024)
    print(batches.report())
    inputs, labels = next(iter(batches.dataset()))
    assert inputs["decoder_token_ids"].shape == labels.shape
    ```

    Reference:
        - Vaswani et al., 2017, "Attention Is All You Need" (arXiv:1706.03762), section 5.1: pairs
          "were batched together by approximate sequence length".
        - Provilkov et al., 2020 (arXiv:1910.13267), for `subword_sampling`
    """
    check_positive("max_sequence_length", max_sequence_length)
    check_rate("subword_sampling", subword_sampling)
    corpora = [pairs] if isinstance(pairs, TextPairs) else list(pairs)
    form = form or PairForm()
    tokenizers = (source_tokenizer, target_tokenizer)
    tokens = tokenize_once(corpora, *tokenizers, max_sequence_length, token_folder, form)
    if not sum(tokens.counts):
        raise ValueError(
            f"No pair is left to train on: each of the {sum(map(len, corpora))} pairs has a side of more than "
            "`max_sequence_length` tokens, special tokens included. "
            f"Received: max_sequence_length={max_sequence_length}."
        )
    if bucket_boundaries is not None:
        boundaries = checked_boundaries(bucket_boundaries)
        bucket_boundaries = [length for length in boundaries if length < max_sequence_length]
        bucket_boundaries.append(max_sequence_length)
    epoch_tokens = None
    if subword_sampling:
        samplers = [tokenizer.bpe_dropout() for tokenizer in tokenizers]
        longest = min(max_sequence_length, packed_length or max_sequence_length)

        def epoch_tokens(epoch):
            return sample_pairs(
                tokens, samplers, subword_sampling, (seed, _SAMPLING, epoch), longest, token_folder
            )

    return TranslationBatches(
        tokens,
        _distinct([corpus.name for corpus in corpora]),
        max_tokens,
        bucket_boundaries=bucket_boundaries,
        packed_length=packed_length,
        weights=weights,
        shuffle=shuffle,
        seed=seed,
        label_padding=form.label_padding,
        epoch_tokens=epoch_tokens,
        **options,
    )


class TranslationBatches(SeededBatches):
    """An endless sequence of batches of text pairs, each determined by the seed and its `BatchPosition`.

    A batch is `({"encoder_token_ids": (B, S), "decoder_token_ids": (B, T)}, labels)`, with labels of shape
    (B, T), all int32. The inputs also have `encoder_padding_mask` and `decoder_padding_mask`, boolean (0 and
    1 for several devices of TensorFlow), and with `packed_length` also `encoder_segment_ids` and
    `decoder_segment_ids`. With `sample_weights`, the weights are the third element.

    Args:
        tokens: `TokenPairs`, of `keras_attn.data.token_pairs`.
        names: List of strings, the names of the corpora in reports.
        max_tokens, bucket_boundaries, packed_length, weights, shuffle, seed: As in `translation_batches`.
        num_micro_batches, num_devices, worker: As in `SeededBatches`; a micro-batch has `max_tokens` /
            `num_micro_batches` positions.
        sample_weights: Boolean, whether batches have weights, float32 (B,), with which a summed loss,
            `LabelSmoothedCrossentropy(reduction="sum")`, is the mean over the real tokens of the whole
            update, however it is divided. Always on if an update is divided.
        label_padding: Integer, the label that marks padding.
        epoch_tokens: Function from the number of an epoch to its `TokenPairs`, the same pairs with other segmentations;
            or None, if all epochs have `tokens`.

    Attributes:
        num_pairs: Integer, the pairs in the first epoch.
        longest: Integer, the tokens of the longest side of a pair in `tokens`, END included.
        num_tokens: Integer, its label tokens: END counts, pads do not.
        padding_share: Float from 0 to 1, the share of pads among its positions on both sides.
        over_long: Dict by name of corpus: the 1-based lines of the pairs that were left out because one of
            their sides, with its special tokens, has more than `max_sequence_length` tokens.

    Example:

    ```python
    from keras_attn.data import TranslationBatches, date_pairs, translation_batches
    from keras_attn.text import ByteTokenizer

    tokenizer = ByteTokenizer()
    batches = translation_batches(date_pairs("validation"), tokenizer, tokenizer, max_tokens=1024)
    assert isinstance(batches, TranslationBatches)
    first_epoch = batches.dataset().take(len(batches))
    the_rest = batches.dataset((0, 5))  # from the sixth update on
    ```
    """

    def __init__(
        self,
        tokens,
        names,
        max_tokens,
        bucket_boundaries=None,
        packed_length=None,
        weights=None,
        shuffle=True,
        seed=0,
        num_micro_batches=1,
        num_devices=1,
        worker=(0, 1),
        sample_weights=False,
        label_padding=0,
        epoch_tokens=None,
    ):
        super().__init__(seed, num_micro_batches, num_devices, worker)
        # With several TensorFlow devices, Keras sums up the first batch to find its shapes, and booleans have
        # no sum.
        divided = num_devices > 1 and keras.backend.backend() == "tensorflow"
        self._mask_dtype = "int32" if divided else "bool"
        self._tokens = EpochTokens(tokens.sources, tokens.targets)
        self._epoch_tokens = epoch_tokens
        self._shares = _checked_weights(weights, len(tokens.counts))
        self._max_tokens = max_tokens
        self._boundaries = None if bucket_boundaries is None else checked_boundaries(bucket_boundaries)
        self._packed_length = packed_length
        self._shuffle = shuffle
        self._label_padding = label_padding
        self._sample_weights = sample_weights or num_micro_batches * num_devices * self._num_workers > 1
        self._first_pairs = np.concatenate([[0], np.cumsum(tokens.counts)])
        plan = self.plan(0)
        self.longest = int(self._tokens.lengths.max(initial=1))
        self.num_pairs = sum(len(update.pairs) for update in plan)
        self.num_tokens = sum(update.num_tokens for update in plan)
        num_real = sum(update.num_real for update in plan)
        num_positions = sum(update.num_positions for update in plan)
        self.padding_share = 1 - num_real / num_positions
        self.over_long = {name: lines for name, lines in zip(names, tokens.over_long) if lines}

    def report(self):
        """One or two lines about the size of an epoch and the pairs that were left out."""
        text = (
            f"Pairs: {self.num_pairs:,}, batches: {len(self):,}, target tokens: {self.num_tokens:,}, "
            f"padding: {self.padding_share:.1%} of the positions."
        )
        for name, lines in self.over_long.items():
            shown = ", ".join(map(str, lines[:_LINES_IN_REPORT]))
            if len(lines) > _LINES_IN_REPORT:
                shown += f" and {len(lines) - _LINES_IN_REPORT:,} more"
            text += f" Too long, and left out of {name}: {counted(len(lines), 'pair')}, line {shown}."
        return text

    def _make_plan(self, epoch):
        pairs = np.concatenate([self._draw(corpus, epoch) for corpus in range(len(self._shares))])
        generator = self._generator(1, epoch) if self._shuffle else None
        tokens = self._tokens
        if self._epoch_tokens is not None:
            sampled = self._epoch_tokens(epoch)
            tokens = EpochTokens(sampled.sources, sampled.targets)
        lengths = tokens.lengths[pairs]
        if self._packed_length:
            packed = [pairs[row] for row in pack_by_tokens(lengths, self._packed_length, generator)]
            row_lengths = np.full(len(packed), self._packed_length)
            batches = batch_by_tokens(row_lengths, self._max_tokens, [self._packed_length], generator)
            return [self._update([packed[row] for row in rows], tokens) for rows in batches]
        batches = batch_by_tokens(lengths, self._max_tokens, self._boundaries, generator)
        return [self._update(pairs[rows, np.newaxis], tokens) for rows in batches]

    def _update(self, rows, tokens):
        pairs = np.concatenate(rows)
        lengths = tokens.lengths[pairs]
        if self._packed_length:
            source_length = target_length = self._packed_length
        elif self._boundaries is not None:
            source_length = target_length = int(
                self._boundaries[find_bucket(lengths.max(), self._boundaries)]
            )
        else:
            source_length, target_length = lengths.max(axis=0).tolist()
        num_rows = len(rows)
        if self._boundaries is not None or self._packed_length:
            num_rows = max(num_rows, self._max_tokens // source_length)
        return Update(
            pairs,
            rows=np.repeat(np.arange(len(rows)), [len(row) for row in rows]),
            num_rows=self._whole_rows(num_rows),
            source_length=source_length,
            target_length=target_length,
            num_tokens=int(lengths[:, 1].sum()),
            num_real=int(lengths.sum()),
            tokens=tokens,
        )

    def _draw(self, corpus, epoch):
        """The pairs of a corpus in an epoch: `weight` times its size, from successive permutations."""
        first, last = self._first_pairs[corpus : corpus + 2].tolist()
        size = last - first
        share = self._shares[corpus]
        begin = round(epoch * share * size)
        end = round((epoch + 1) * share * size)
        if not self._shuffle:
            return first + np.arange(begin, end) % size
        drawn = [np.empty(0, np.int64)]
        while begin < end:
            number, offset = divmod(begin, size)
            permutation = self._generator(0, corpus, number).permutation(size)
            part = permutation[offset : offset + end - begin]
            drawn.append(first + part)
            begin += len(part)
        return np.concatenate(drawn)

    def _element_spec(self):
        ids = tf.TensorSpec((None, None), tf.int32)
        inputs = {}
        for side in ("encoder", "decoder"):
            inputs[f"{side}_token_ids"] = ids
            inputs[f"{side}_padding_mask"] = tf.TensorSpec((None, None), self._mask_dtype)
            if self._packed_length:
                inputs[f"{side}_segment_ids"] = ids
        if self._sample_weights:
            return inputs, ids, tf.TensorSpec((None,), tf.float32)
        return inputs, ids

    def _batch(self, update, number):
        """Micro-batch `number` of an update: every `stride`-th row, from this worker's first on."""
        stride = self._stride
        tokens = update.tokens
        mine = update.rows % stride == self._my_rows(number).start
        pairs = update.pairs[mine]
        rows = update.rows[mine] // stride
        num_rows = update.num_rows // stride
        source_shape = (num_rows, update.source_length)
        target_shape = (num_rows, update.target_length)
        source_lengths, target_lengths = tokens.lengths[pairs].T
        inputs = {
            "encoder_token_ids": _padded(tokens.sources, pairs, rows, source_shape),
            "decoder_token_ids": _padded(tokens.targets, pairs, rows, target_shape, without_last=1),
        }
        labels = _padded(tokens.targets, pairs, rows, target_shape, without_first=1)
        if self._label_padding:
            is_token = _place(np.ones(target_lengths.sum(), np.int32), target_lengths, rows, target_shape)
            labels = np.where(is_token > 0, labels, np.int32(self._label_padding))
        segments = np.arange(len(rows)) - np.searchsorted(rows, rows) + 1
        for side, lengths, shape in (
            ("encoder", source_lengths, source_shape),
            ("decoder", target_lengths, target_shape),
        ):
            segment_ids = _place(np.repeat(segments, lengths), lengths, rows, shape)
            inputs[f"{side}_padding_mask"] = (segment_ids > 0).astype(self._mask_dtype)
            if self._packed_length:
                inputs[f"{side}_segment_ids"] = segment_ids
        if self._sample_weights:
            return inputs, labels, self._weights(len(labels), update)
        return inputs, labels


def _padded(ragged, pairs, rows, shape, without_first=0, without_last=0):
    """The rows of ids with pads, int32 of this shape."""
    starts = ragged.row_splits[pairs] + without_first
    lengths = ragged.row_splits[pairs + 1] - without_last - starts
    ends = np.cumsum(lengths)
    indices = np.arange(lengths.sum()) + np.repeat(starts - (ends - lengths), lengths)
    return _place(ragged.values[indices], lengths, rows, shape)


def _place(values, lengths, rows, shape):
    """Puts the sequences, concatenated in `values`, into their rows, one after the other within a row."""
    before = np.cumsum(lengths) - lengths
    in_row = before - before[np.searchsorted(rows, rows)]
    placed = np.zeros(shape, np.int32)
    indices = np.arange(len(values)) + np.repeat(rows * shape[1] + in_row - before, lengths)
    placed.reshape(-1)[indices] = values
    return placed


def _checked_weights(weights, num_corpora):
    weights = [1.0] * num_corpora if weights is None else list(weights)
    if len(weights) != num_corpora or not all(weight > 0 for weight in weights):
        raise ValueError(
            "`weights` must be positive numbers, one for each of the `TextPairs`. "
            f"Received: weights={weights} for {num_corpora}."
        )
    return weights


def _distinct(names):
    return [name if names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(names)]
