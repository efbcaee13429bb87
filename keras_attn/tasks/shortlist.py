"""The target tokens that can come for a source: a lexical table and the most frequent tokens."""

import collections
import pathlib

import keras
import numpy as np
import tensorflow as tf

from keras_attn.checks import check_positive
from keras_attn.files import replaced_file
from keras_attn.generation import FEWEST_LISTED, ListedTokens
from keras_attn.tasks.batches import bucket_of, few_lengths
from keras_attn.tasks.given_translations import word_numbers

_SEPARATORS = ("\t", " ", "\n")


class Shortlist:
    """For each source token the target tokens it may lead to, and those that may come anywhere.

    The translations of a source are searched among the tokens of its list alone: the output projection is computed for the
    lists of a batch together, and each row is kept to its own, so that batch-mates change nothing. What is not on a list
    cannot be written.

    A file has a line for each source token, a tab and its target tokens, between spaces; the line without a source token has
    those that may come anywhere. It is CTranslate2's vocabulary mapping.

    Args:
        anywhere: List of integers, target tokens.
        by_source: Dict from a source token's id to a list of target tokens.

    Example:

    ```python
    shortlist = Shortlist([3, 4, 5], {7: [8, 9]})
    ```

    Reference: [Jean et al., 2015](https://arxiv.org/abs/1412.2007), section 3.2, for candidates by a lexical table.
    """

    def __init__(self, anywhere, by_source):
        self.anywhere = [int(token_id) for token_id in anywhere]
        self.by_source = {int(source): list(map(int, targets)) for source, targets in by_source.items()}

    @classmethod
    def load(cls, file, source_tokenizer, target_tokenizer):
        """Reads a file that `save` wrote, or another vocabulary mapping of single source tokens.

        Raises:
            ValueError: if a line has no tab, or a token is not in the vocabulary; the message has its number.
        """
        source_ids = _ids(source_tokenizer)
        target_ids = _ids(target_tokenizer)
        anywhere = []
        by_source = {}
        for number, line in enumerate(pathlib.Path(file).read_text("utf-8").split("\n")[:-1], start=1):
            source, tab, targets = line.partition("\t")
            targets = [token for token in targets.split(" ") if token]
            is_known = all(token in target_ids for token in targets) and (not source or source in source_ids)
            if not tab or not is_known:
                raise ValueError(
                    f"{file}, line {number}, must be a source token, a tab and target tokens, all of this translator's "
                    f"vocabularies. Received: {line[:80]!r}."
                )
            listed = [target_ids[token] for token in targets]
            if source:
                by_source[source_ids[source]] = listed
            else:
                anywhere = listed
        return cls(anywhere, by_source)

    def save(self, file, source_tokenizer, target_tokenizer):
        """Writes the file of the class's description.

        Raises:
            ValueError: if a token has a space or a tab in it, which the file cannot hold.
        """
        sources = _strings(source_tokenizer)
        targets = _strings(target_tokenizer)
        lists = [("", self.anywhere)]
        for source, listed in sorted(self.by_source.items()):
            lists.append((sources[source], listed))
        lines = [f"{source}\t{' '.join(targets[i] for i in listed)}\n" for source, listed in lists]
        with replaced_file(file) as aside:
            aside.write_text("".join(lines), encoding="utf-8")

    def check(self, source_size, target_size, end_token_id):
        """Raises ValueError if an id is outside of its vocabulary, or END is not among `anywhere`."""
        targets = set(self.anywhere).union(*self.by_source.values())
        for name, ids, size in (("source", self.by_source, source_size), ("target", targets, target_size)):
            wrong = [token_id for token_id in ids if not 0 <= token_id < size]
            if wrong:
                raise ValueError(
                    f"The {name} tokens of a shortlist must be in [0, {size}). Received: {wrong[0]}."
                )
        if end_token_id not in self.anywhere:
            raise ValueError(
                f"The tokens that may come anywhere must have END, {end_token_id}. Received: {self.anywhere[:20]}."
            )

    def listed_tokens(self, source_ids, source_size, target_size, more=None, to_buckets=False):
        """`ListedTokens` for a batch, in a graph.

        Args:
            source_ids: int32 (B, S), negative where there is no token.
            source_size, target_size: Integers, the sizes of the vocabularies.
            more: int32 (B, P), further tokens of each row, negative for none; or None.
            to_buckets: Boolean, whether other tokens fill the list up to one of few lengths, each of which XLA compiles.
        """
        lists = [self.by_source.get(source, []) for source in range(source_size)]
        lengths = np.array(list(map(len, lists)), np.int32)
        values = tf.constant([token_id for listed in lists for token_id in listed], tf.int32)
        splits = tf.constant(np.concatenate([[0], np.cumsum(lengths)]), tf.int32)
        table = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
        token_places = tf.where(source_ids >= 0)
        candidates = tf.gather(table, tf.gather_nd(source_ids, token_places))
        rows = tf.repeat(tf.cast(token_places[:, 0], tf.int32), candidates.row_lengths())
        places = [tf.stack([rows, candidates.values], axis=1)]
        if more is not None:
            more_places = tf.where(more >= 0)
            rows = tf.cast(more_places[:, 0], tf.int32)
            places.append(tf.stack([rows, tf.gather_nd(more, more_places)], axis=1))
        places = tf.concat(places, axis=0)
        anywhere = np.isin(np.arange(target_size), self.anywhere)
        shape = [tf.shape(source_ids)[0], target_size]
        is_own = (tf.scatter_nd(places, tf.ones_like(places[:, 0]), shape) > 0) | tf.constant(anywhere)
        is_listed = tf.reduce_any(is_own, axis=0) | (tf.range(target_size) < FEWEST_LISTED)
        if to_buckets:
            is_other = tf.logical_not(is_listed)
            count = target_size - tf.reduce_sum(tf.cast(is_other, tf.int32))
            room = bucket_of(count, _list_lengths(target_size)) - count
            is_listed |= is_other & (tf.cumsum(tf.cast(is_other, tf.int32)) <= room)
        token_ids = tf.cast(tf.where(is_listed)[:, 0], tf.int32)
        return ListedTokens(token_ids, tf.gather(is_own, token_ids, axis=1), target_size)


def checked_shortlist(translator, shortlist):
    """A `Shortlist`, or that in a file, for a translator.

    Raises:
        ValueError: if it does not fit the vocabularies, or the translator cannot use one.
    """
    if not hasattr(translator.model, "output_projection"):
        raise ValueError(
            "A shortlist needs a model with `output_projection`, as Seq2SeqTransformer has. "
            f"Received: {type(translator.model).__name__}."
        )
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "A shortlist needs the TensorFlow backend, whose graphs find the tokens of a batch. "
            f"Received: backend {keras.backend.backend()}."
        )
    if not isinstance(shortlist, Shortlist):
        shortlist = Shortlist.load(shortlist, translator.source_tokenizer, translator.target_tokenizer)
    shortlist.check(*vocabulary_sizes(translator.model), translator.target_tokenizer.end_token_id)
    return shortlist


def _list_lengths(size):
    """The few lengths of lists for XLA, the last of which is the whole vocabulary."""
    return [length for length in few_lengths(size) if FEWEST_LISTED <= length < size] + [size]


def vocabulary_sizes(model):
    """The sizes of the source's and of the target's vocabulary."""
    return model.vocabulary_size, model.target_vocabulary_size or model.vocabulary_size


def make_shortlist(translator, links, sources, targets, num_anywhere=100, num_of_source=50):
    """A `Shortlist` from word alignments of training pairs.

    Every token of a source word is counted with every token of the target words that it is linked to. Of shared vocabularies,
    each token may also lead to itself: names and numbers are copied.

    Args:
        translator: `Translator`.
        links: Iterable with, for each pair, pairs of integers (source word, target word); words are what white space parts.
        sources, targets: Lists of strings.
        num_anywhere: Integer, how many of the most frequent target tokens may come anywhere; single bytes of the vocabulary
            and END are added.
        num_of_source: Integer, the most target tokens of a source token, those that it is linked to most often.

    Raises:
        ValueError: if there are more or fewer links than pairs, or a link is to a word that is not there.

    Example:

    ```python
    translator = keras_attn.Translator.load("runs/dates/translator")
    sources, targets = ["4th of July 2016", "2 May 1999"], ["2016-07-04", "1999-05-02"]
    links = [alignment.links for alignment in translator.align(sources, targets)]
    shortlist = keras_attn.tasks.make_shortlist(translator, links, sources, targets)
    quick = translator.replaced(shortlist=shortlist)
    ```
    """
    check_positive("num_anywhere", num_anywhere)
    check_positive("num_of_source", num_of_source)
    frequent = collections.Counter()
    together = collections.defaultdict(collections.Counter)
    pairs = zip(_words(translator.source_tokenizer, sources), _words(translator.target_tokenizer, targets))
    for number, ((source, target), pair_links) in enumerate(zip(pairs, links, strict=True), start=1):
        frequent.update(token_id for word in target for token_id in word)
        for one, other in pair_links:
            if not (0 <= one < len(source) and 0 <= other < len(target)):
                raise ValueError(
                    f"Pair {number} has {len(source)} and {len(target)} words. Received: a link {one}-{other}."
                )
            for token_id in source[one]:
                together[token_id].update(target[other])
    tokenizer = translator.target_tokenizer
    anywhere = {token_id for token_id, _ in frequent.most_common(num_anywhere)}
    strings = tokenizer.token_strings(range(tokenizer.vocabulary_size))
    anywhere |= {i for i, piece in enumerate(strings) if _is_byte(piece)} | {tokenizer.end_token_id}
    by_source = {
        source: {token_id for token_id, _ in counts.most_common(num_of_source)}
        for source, counts in together.items()
    }
    if translator.source_tokenizer is tokenizer:
        for source in set(range(tokenizer.vocabulary_size)) - set(tokenizer.special_token_ids):
            by_source.setdefault(source, set()).add(source)
    rare = {source: sorted(listed - anywhere) for source, listed in by_source.items()}
    return Shortlist(sorted(anywhere), {source: listed for source, listed in rare.items() if listed})


def read_links(file):
    """The word alignments in a file in the Pharaoh format, `0-0 1-2`, as fast_align and eflomal write: lists of pairs.

    Raises:
        ValueError: for a line that is none; the message has its number.

    Example:

    ```python
    with open("links.txt", "w") as file:
        print("0-0 1-2", file=file)
    assert keras_attn.tasks.read_links("links.txt") == [[(0, 0), (1, 2)]]
    ```
    """
    links = []
    for number, line in enumerate(pathlib.Path(file).read_text("utf-8").splitlines(), start=1):
        try:
            pairs = [tuple(map(int, link.split("-"))) for link in line.split()]
            if any(len(pair) != 2 or min(pair) < 0 for pair in pairs):
                raise ValueError
        except ValueError:
            raise ValueError(
                f"{file}, line {number}, must have links as in `0-0 1-2`. Received: {line[:80]!r}."
            ) from None
        links.append(pairs)
    return links


def _words(tokenizer, texts):
    """For each text, lists of the ids of its words."""
    for first in range(0, len(texts), 1000):
        some = [str(text) for text in texts[first : first + 1000]]
        ids, starts, stops = (part.to_list() for part in tokenizer.tokenize_with_offsets(some))
        for text, text_ids, text_starts, text_stops in zip(some, ids, starts, stops):
            word_ids = [[] for _ in text.split()]
            numbers = word_numbers(text, list(zip(text_starts, text_stops)))
            for token_id, number in zip(text_ids, numbers):
                if number is not None:
                    word_ids[number].append(token_id)
            yield word_ids


def _is_byte(piece):
    return len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")


def _strings(tokenizer):
    strings = tokenizer.token_strings(range(tokenizer.vocabulary_size))
    wrong = [piece for piece in strings if any(separator in piece for separator in _SEPARATORS)]
    if wrong:
        raise ValueError(
            f"The file of a shortlist has spaces and tabs between tokens. Received: a token {wrong[0]!r}."
        )
    return strings


def _ids(tokenizer):
    return {piece: number for number, piece in enumerate(_strings(tokenizer))}
