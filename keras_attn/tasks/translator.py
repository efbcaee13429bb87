import collections
import dataclasses
import json
import math
import pathlib
import re
import threading

import keras
import numpy as np
import tensorflow as tf

from keras_attn.checks import check_positive
from keras_attn.export import export_saved_model
from keras_attn.files import replaced_folder, restored_folder
from keras_attn.generation import DecodingOptions, Hypotheses
from keras_attn.models import (
    RNNSeq2Seq,
    Seq2SeqTransformer,
    assign_weights,
    read_weights,
    save_weights,
)
from keras_attn.tasks.alignment import word_alignment
from keras_attn.tasks.batches import of_batches, padded
from keras_attn.tasks.buckets import compiled_with_jax, compiled_with_xla
from keras_attn.tasks.bundle import Bundle
from keras_attn.tasks.model_export import export_model
from keras_attn.tasks.signatures import Signatures, XlaSignatures
from keras_attn.tasks.streaming import stream_text
from keras_attn.tasks.token_ids import to_texts, with_end
from keras_attn.text import as_utf8, load_tokenizer

_CONFIG_FILE = "translator.json"
_WEIGHTS_FILE = "model.safetensors"
_FORMAT = 2
# Format 1 described a model by its sizes; its parts and their weights had these names.
_MODELS = {"Seq2SeqTransformer": Seq2SeqTransformer.from_sizes, "RNNSeq2Seq": RNNSeq2Seq}
_RENAMED = (
    ("^token_embedding/", "source_embedding/token_embedding/"),
    ("^(source|target)_embedding/", r"\1_embedding/token_embedding/"),
    ("^encoder_position_encoding/", "source_embedding/position_encoding/"),
    ("^decoder_position_encoding/", "target_embedding/position_encoding/"),
)

AttentionMap = collections.namedtuple("AttentionMap", ["source_tokens", "target_tokens", "attention_scores"])
AttentionMap.__doc__ = """Where a translation looked.

source_tokens: list of S strings, END included.
target_tokens: list of T strings, END included if the translation has one.
attention_scores: float32 array (L, N, T, S): decoder layer, head, target token, source token.
"""


class Translator:
    """A model and its two tokenizers: strings in, strings out; in Python, in a folder, and in TF Serving.

    Args:
        model: A `Seq2SeqTransformer` or `RNNSeq2Seq`.
        source_tokenizer, target_tokenizer: Tokenizers of `keras_attn.text`; one object for both is saved once.
        num_beams: Integer, the default of calls and of the export; 1 is greedy search.
        length_penalty: Float, likewise.
        max_length: Integer, the most tokens of a translation, END included. Defaults to the model's
            `max_sequence_length`. Sources longer than `max_sequence_length` are truncated to it.
        jit_compile: Boolean, whether decoding is compiled with XLA in Python: faster steps, but each new shape
            compiles for seconds, so batches are padded to few shapes. The export never is.

    Raises:
        ValueError: if the vocabularies of model and tokenizers differ.

    Example:

    ```python
    translator = keras_attn.Translator.load("runs/dates/translator")
    translator("4th of July 2016")  # "2016-07-04"
    texts, scores = translator(["4. Juli 2016", "le 4 juillet 2016"], return_scores=True)
    ```
    """

    def __init__(
        self,
        model,
        source_tokenizer,
        target_tokenizer,
        num_beams=4,
        length_penalty=1.0,
        max_length=None,
        jit_compile=False,
    ):
        _check_vocabulary("source", source_tokenizer, model.vocabulary_size)
        _check_vocabulary("target", target_tokenizer, model.target_vocabulary_size or model.vocabulary_size)
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.num_beams = num_beams
        self.length_penalty = length_penalty
        self.max_length = model.max_sequence_length if max_length is None else max_length
        self.jit_compile = jit_compile
        self._functions = {}
        self._functions_lock = threading.Lock()

    def __call__(
        self,
        texts,
        num_beams=None,
        length_penalty=None,
        max_length=None,
        num_return_sequences=None,
        return_scores=False,
        return_attention_scores=False,
        options=None,
        target_prefix=None,
        batch_size=64,
        num_workers=None,
    ):
        """Translates a string or a list of strings; the answer has the shape of the question.

        Args:
            texts: String, or list of strings. Invalid text is repaired; an empty text translates to "".
            num_beams, length_penalty, max_length: As in the constructor, whose values are the defaults.
            num_return_sequences: Integer n, at most `num_beams`: each answer is then a list of n translations, best
                first (fewer where the search found fewer). Of sampling, n draws.
            return_scores: Boolean, whether scores, log-probability / length ** length_penalty, are returned too.
            return_attention_scores: Boolean, whether the `AttentionMap` of each best translation is returned too.
            options: `keras_attn.generation.DecodingOptions`, each with one value for all texts or one a text. With one
                of sampling (`temperature`, `top_p`, `seed`, ...) translations are drawn.
            target_prefix: String, or a string for each text, with which its translation begins, in whole tokens.
            batch_size: Integer, sentences translated at once; texts of similar length go together.
            num_workers: Integer, batches translated at the same time, by threads. Defaults to the number of
                processors, or 1 with a GPU.

        Returns:
            The translations; with scores or attention maps, a tuple of them in this order.

        Raises:
            ValueError: for an option out of range, or with another number of values than there are texts.
        """
        single = isinstance(texts, str | bytes)
        num_answers = num_return_sequences or (1 if return_scores else None)
        search = self.search_options(num_beams, length_penalty, max_length, num_answers)
        token_ids = self._source_token_ids(as_utf8(texts)).to_list()
        options = self._with_prefix(options, target_prefix, len(token_ids))

        def translate(rows):
            batch = [token_ids[row] for row in rows], options.of_rows(rows, len(token_ids))
            return self._translate_batch(*batch, search, return_attention_scores)

        answers = of_batches(translate, token_ids, batch_size, num_workers)
        columns = [[answer.texts if num_return_sequences else answer.texts[0] for answer in answers]]
        if return_scores:
            columns.append(
                [answer.scores if num_return_sequences else answer.scores[0] for answer in answers]
            )
        if return_attention_scores:
            columns.append([answer.attention_map for answer in answers])
        if single:
            columns = [column[0] for column in columns]
        return columns[0] if len(columns) == 1 else tuple(columns)

    def stream(self, text, max_length=None):
        """Translates one text greedily and gives the translation piece by piece, while it is decoded.

        Args:
            text: String.
            max_length: Integer, as in the constructor.

        Returns:
            A generator of strings, none of them empty, which together are the translation with `num_beams=1`.

        Raises:
            ValueError: if `max_length` is not positive, or greater than `max_sequence_length`.

        Example:

        ```python
        translator = keras_attn.Translator.load("runs/dates/translator")
        for piece in translator.stream("4th of July 2016"):
            print(piece, end="", flush=True)
        ```
        """
        max_length = self.max_length if max_length is None else max_length
        if not isinstance(text, str | bytes):
            raise ValueError(f"`text` must be a string. Received: {type(text).__name__}.")
        if check_positive("max_length", max_length) > self.model.max_sequence_length:
            raise ValueError(
                f"`max_length` must be in [1, {self.model.max_sequence_length}]. Received: max_length={max_length}."
            )
        return stream_text(self, text, max_length)

    def score(self, sources, targets, length_penalty=None, batch_size=64, return_token_scores=False):
        """How probable the model finds given translations.

        Args:
            sources, targets: Two strings, or two lists of strings of the same length.
            length_penalty: Float, as in the constructor.
            batch_size: Integer.
            return_token_scores: Boolean, whether the scores of the tokens are returned too.

        Returns:
            log-probability / length ** length_penalty of each target, END counted: the scale of the scores that a
            call returns. A float, or a list of floats. With `return_token_scores`, a tuple of that and, for each
            target, of a list of pairs (token, log-probability), END included.

        Raises:
            ValueError: if the lists differ in length, or a target has more than `max_sequence_length` tokens.

        Example:

        ```python
        translator = keras_attn.Translator.load("runs/dates/translator")
        score, tokens = translator.score("4th of July 2016", "2016-07-04", return_token_scores=True)
        least_sure = min(tokens, key=lambda token: token[1])
        ```
        """
        single = isinstance(sources, str | bytes)
        if single != isinstance(targets, str | bytes):
            raise ValueError("`sources` and `targets` must be two strings or two lists of strings.")
        source_ids = self._source_token_ids(as_utf8(sources)).to_list()
        target_ids = [
            [*ids, self.target_tokenizer.end_token_id]
            for ids in self.target_tokenizer.encode(as_utf8(targets))
        ]
        self._check_targets(source_ids, target_ids)
        length_penalty = self.length_penalty if length_penalty is None else length_penalty
        log_probs = self._of_pairs(
            "token_log_probs", self.token_log_probs, source_ids, target_ids, batch_size
        )
        scores, token_scores = [], []
        for ids, of_tokens in zip(target_ids, log_probs):
            of_tokens = of_tokens[: len(ids)].tolist()
            scores.append(sum(of_tokens) / len(ids) ** length_penalty)
            if return_token_scores:
                token_scores.append(list(zip(self.target_tokenizer.token_strings(ids), of_tokens)))
        columns = [scores, token_scores] if return_token_scores else [scores]
        if single:
            columns = [column[0] for column in columns]
        return columns[0] if len(columns) == 1 else tuple(columns)

    def align(self, sources, targets=None, batch_size=64):
        """Which words of a text and of its translation belong together, by where the decoder looked.

        Each target token is linked to the source token that it looked at most, by the mean over the heads of the last
        layer but one.

        Args:
            sources: String, or list of strings.
            targets: String, or list of as many. Defaults to the translations.
            batch_size: Integer.

        Returns:
            A `WordAlignment` for each source: words with their places in the texts, and pairs of them.

        Raises:
            ValueError: if the lists differ in length, or a target has more than `max_sequence_length` tokens.

        Example:

        ```python
        translator = keras_attn.Translator.load("runs/dates/translator")
        alignment = translator.align("4th of July 2016", "2016-07-04")
        ```

        Reference: [Garg et al., 2019](https://arxiv.org/abs/1909.02074), section 4.1.
        """
        single = isinstance(sources, str | bytes)
        sources = [text.decode() for text in as_utf8(sources)]
        targets = self(sources) if targets is None else [text.decode() for text in as_utf8(targets)]
        (source_ids, source_spans), (target_ids, target_spans) = (
            _with_spans(tokenizer, texts)
            for tokenizer, texts in ((self.source_tokenizer, sources), (self.target_tokenizer, targets))
        )
        source_ids = [[*ids[:-1][: self.model.max_sequence_length - 1], ids[-1]] for ids in source_ids]
        self._check_targets(source_ids, target_ids)
        looked_at = self._of_pairs("alignment", self.alignment, source_ids, target_ids, batch_size)
        alignments = [
            word_alignment(*texts_and_spans, places.tolist())
            for *texts_and_spans, places in zip(sources, targets, source_spans, target_spans, looked_at)
        ]
        return alignments[0] if single else alignments

    def save(self, folder):
        """Writes the model, the tokenizers and the options to `folder`, replacing an older translator there.

        The folder is built aside and renamed into place. It holds JSON, a sentencepiece model and a safetensors
        file: nothing that could carry code.

        Raises:
            ValueError: if `folder` holds something else than a translator.
        """
        with replaced_folder(folder, _CONFIG_FILE, "translator") as built:
            self._write(built)

    @classmethod
    def load(cls, folder):
        """Reads the translator that `save` wrote; it never runs code from the folder.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: if one is damaged, or the weights do not fit the configuration.
        """
        folder = restored_folder(folder)
        config = _read_config(folder)
        try:
            model, renamed = _model_of(config)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{folder / _CONFIG_FILE} describes no model: {error}") from error
        arrays = {renamed(name): array for name, array in read_weights(folder / _WEIGHTS_FILE).items()}
        assign_weights(model, arrays, folder / _WEIGHTS_FILE)
        source_tokenizer = load_tokenizer(folder / "source_tokenizer")
        shared = config["shared_tokenizer"]
        target_tokenizer = source_tokenizer if shared else load_tokenizer(folder / "target_tokenizer")
        return cls(model, source_tokenizer, target_tokenizer, **config["options"])

    def export(self, folder, examples=None, xla=False, batch_sizes=(1, 4, 16, 64), lengths=None):
        """Writes the next version of a SavedModel that takes strings and returns strings, for TF Serving.

        Signatures, all batch-major, tokenizers inside, with this translator's options as defaults:

        - `serving_default`: `inputs` string (B,) -> `outputs` string (B,), and nothing else.
        - `translate_n_best`: `inputs` string (B,) -> `outputs` string and `scores` float32 (B, num_beams), best first
          (where the search found fewer, "" and -1e30).
        - `translate`: beam search with options for each text. `inputs`; `target_prefix` string, "" for none;
          `num_beams`, `max_length` int32, 0 for the default, which is the most there can be; `length_penalty`
          float32; `min_length`, `no_repeat_ngram_size` int32, 0 for none; `repetition_penalty` float32, 1 for none;
          `stop_token_ids`, `suppressed_token_ids` int32 (B, 8), -1 for none -> `outputs` and `scores` as of
          `translate_n_best`; `status` string (B,);
          `source_tokens` string (B, S), `target_tokens` string (B, T) and `alignment` int32 (B, T) of the best: the
          source token that each target token looked at most, -1 past the end.
        - `sample`: one translation drawn for each text. `inputs`; `target_prefix`; `max_length`; `temperature`
          float32, 0 for the best token; `top_k` int32, 0 for all; `top_p` float32, 1 for all; `min_p` float32, 0 for
          all; `seed` int32 -> `outputs` string, `scores` float32 and `status` string (B,).
        - `score`: `inputs` and `targets` string (B,) -> `scores` float32 (B,), `token_scores` float32 and `tokens`
          string (B, T), `status`.
        - `encode`: `inputs` string (B,) -> `outputs` float32 (B, D), the mean of the encoder's output; `status`.

        A `status` is "ok", or names what was not as asked, joined by commas: `source_repaired` (invalid UTF-8),
        `source_truncated`, `unfinished` (no END within `max_length`), `top_p_clamped` and the like.

        Beside the graph stand `assets.extra/tf_serving_warmup_requests`, a request to each signature, which the server
        answers before it calls the version available; `batching_params.pbtxt` for
        `--enable_per_model_batching_parameters`; and a `README.md` with requests, their answers and the limits.

        With `xla=True` it is another model, for a folder of its own: `serving_default` alone, its model part compiled
        with XLA, which the server must be allowed (`--xla_cpu_compilation_enabled`). Batches are padded inside the
        graph, so that there are no other shapes than those of `batch_sizes` and `lengths`, each of which is warmed up.

        Args:
            folder: Path of the served model, for example `saved_models/dates`. Its name is the model's.
            examples: List of texts such as the model will be asked, for the warm-up and the README.
            xla: Boolean, whether to export what XLA compiles.
            batch_sizes: With `xla`, rising integers; larger batches are cut into several of the last.
            lengths: With `xla`, rising integers, tokens of a source with END, the last being the model's
                `max_sequence_length`. Defaults to the powers of two from 16.

        Returns:
            `pathlib.Path` of the new version folder, `folder`/1 or the next integer.

        Raises:
            ValueError: if `examples`, `batch_sizes` or `lengths` are not what they must be.
        """

        _check_backend()
        signatures = XlaSignatures(self, batch_sizes, lengths) if xla else Signatures(self)
        bundle = Bundle(signatures, pathlib.Path(folder).resolve().name, examples)
        return export_saved_model(
            folder,
            signatures.all(),
            models=[self.model],
            resources=[self.source_tokenizer, self.target_tokenizer],
            add_files=bundle.write,
        )

    def export_model(self, folder, format, quantization=None):
        """Writes the model for another engine: tokens in, tokens out, with the tokenizers beside it.

        - `"ctranslate2"`: see `keras_attn.export.export_ctranslate2`.
        - `"onnx"`: `logits.onnx` and `greedy.onnx`; `"litert"`: `model.tflite` with these two signatures. `logits`
          takes int32 `encoder_token_ids` (B, S) and `decoder_token_ids` (B, T) and returns float32 `logits`
          (B, T, V). `greedy` takes `encoder_token_ids` and returns int32 `token_ids` (B, max_length): greedy search,
          END included, then pads. Both compute in float32.

        Args:
            folder: Path of the folder to write; it replaces an older export there.
            format: `"ctranslate2"`, `"onnx"` or `"litert"`.
            quantization: How CTranslate2 stores the weights and computes, `"int8"` for instance; no other format
                has it.

        Returns:
            `pathlib.Path` of the folder.

        Raises:
            ValueError: for an unknown format, a quantization that the format has not, and a model that the engine
                cannot compute.
            ImportError: if a package that writes the format is not installed; the message names it.
        """
        return export_model(self, folder, format, quantization)

    def search_options(self, num_beams=None, length_penalty=None, max_length=None, num_return_sequences=1):
        """The arguments of a search, those not given being this translator's."""
        length_penalty = self.length_penalty if length_penalty is None else length_penalty
        if not math.isfinite(length_penalty):
            raise ValueError(f"`length_penalty` must be finite. Received: length_penalty={length_penalty}.")
        return {
            "num_beams": self.num_beams if num_beams is None else num_beams,
            "length_penalty": float(length_penalty),
            "max_length": self.max_length if max_length is None else max_length,
            "num_return_sequences": num_return_sequences,
        }

    def _source_token_ids(self, texts):
        """Strings (B,) -> ragged ids (B, None): truncated to `max_sequence_length` with END at the end."""
        return with_end(self.source_tokenizer, texts, self.model.max_sequence_length)[0]

    def _with_prefix(self, options, target_prefix, num_texts):
        options = DecodingOptions() if options is None else options
        if target_prefix is None:
            return options
        if options.prefix_token_ids is not None:
            raise ValueError("`target_prefix` is the text of `options.prefix_token_ids`: give one of them.")
        prefixes = self.target_tokenizer.encode(as_utf8(target_prefix))
        if isinstance(target_prefix, str | bytes):
            prefixes = prefixes * num_texts
        width = max(map(len, prefixes), default=0)
        width = width and 1 << (width - 1).bit_length()  # every width is a graph of its own: few of them
        prefixes = [[*ids, *[-1] * (width - len(ids))] for ids in prefixes]
        return dataclasses.replace(options, prefix_token_ids=prefixes) if width else options

    def generate(self, token_ids, options, compiler=None):
        """Ids (B, S) -> `Hypotheses` with ids (B, n, L) and scores (B, n).

        Where `num_return_sequences` is None, n is 1, and there are no scores, which greedy search need not reckon then.
        """
        found = self.model.generate(
            token_ids,
            start_token_id=self.target_tokenizer.start_token_id,
            end_token_id=self.target_tokenizer.end_token_id,
            compiler=compiler,
            **options,
        )
        return Hypotheses(found[:, None], None) if options["num_return_sequences"] is None else found

    def _translate_batch(self, source_ids, options, search, return_attention_scores):
        """Lists of source ids, and a dict of arrays with the options of each -> an `_Answer` for each."""
        inputs = padded(source_ids, to_buckets=self.jit_compile or keras.backend.backend() == "jax")
        more = inputs.shape[0] - len(source_ids)  # rows that only fill the bucket
        options = {
            name: np.pad(x, [(0, more), *[(0, 0)] * (x.ndim - 1)], "edge") for name, x in options.items()
        }
        token_ids, scores = self._search_graph(search, options)(inputs, options)
        token_ids = np.asarray(token_ids)[: len(source_ids)]
        scores = np.zeros(token_ids.shape[:2]) if scores is None else np.asarray(scores)[: len(source_ids)]
        used = np.any(token_ids != self.model.pad_token_id, axis=(0, 1))
        token_ids = token_ids[:, :, : np.max(np.flatnonzero(used), initial=0) + 1]
        texts = self._texts(token_ids).numpy()
        maps = [None] * len(source_ids)
        if return_attention_scores:
            maps = self._attention_maps(source_ids, self._trimmed(token_ids[:, 0]))
        answers = []
        for ids, row_texts, row_scores, attention_map in zip(source_ids, texts, scores, maps):
            if len(ids) == 1:  # END alone: no text, whatever the search made of it
                answers.append(
                    _Answer([""], [0.0], _empty_map(self.model) if return_attention_scores else None)
                )
                continue
            found = np.isfinite(row_scores)
            found[0] = True  # where the options leave no answer: "", as impossible as it is
            texts_found = [text.decode("utf-8") for text in row_texts[found]]
            answers.append(_Answer(texts_found, row_scores[found].tolist(), attention_map))
        return answers

    def _texts(self, token_ids):
        """Ids (B, n, L) -> strings (B, n), in a graph: eager, that is dozens of calls from Python."""
        to_texts_graph = self.graph_of(
            "texts",
            lambda token_ids: to_texts(self.target_tokenizer, token_ids),
            [tf.TensorSpec([None, None, None], tf.int32)],
        )
        return to_texts_graph(tf.constant(token_ids))

    def _search_graph(self, search, options):
        """One graph for each search and each set of options: their values, lengths and batch sizes are data in it.

        XLA compiles parts of it for each shape that comes. On JAX, all of it.
        """
        if keras.backend.backend() == "jax":
            return self._jax_search(search, options)
        spec = tf.TensorSpec([None, None], tf.int32)
        of_options = {name: tf.TensorSpec([None, *x.shape[1:]], x.dtype, name) for name, x in options.items()}
        return self.graph_of(
            (*search.values(), *of_options.values()),
            lambda token_ids, given: self.generate(
                token_ids,
                {**search, "options": DecodingOptions(**given)},
                compiled_with_xla if self.jit_compile else None,
            ),
            [spec, of_options],
        )

    def _jax_search(self, search, options):
        key = (*search.values(), *options)
        with self._functions_lock:
            if key not in self._functions:
                self._functions[key] = compiled_with_jax(
                    self.model,
                    lambda token_ids, given: self.generate(
                        token_ids, {**search, "options": DecodingOptions(**given)}
                    ),
                )
        return self._functions[key]

    def _trimmed(self, token_ids):
        """Ids (B, L) -> lists of ids up to END, which they keep, or to the first pad."""
        end, pad = self.target_tokenizer.end_token_id, self.model.pad_token_id
        rows = []
        for row in np.asarray(token_ids).tolist():
            stops = [row.index(end) + 1] if end in row else []
            stops += [row.index(pad)] if pad in row else []
            rows.append(row[: min(stops, default=len(row))])
        return rows

    def _attention_maps(self, source_ids, target_ids):
        scores = self._cross_attention(padded(source_ids), padded(target_ids)).numpy()
        return [
            AttentionMap(
                self.source_tokenizer.token_strings(source),
                self.target_tokenizer.token_strings(target),
                row_scores[:, :, : len(target), : len(source)],
            )
            for source, target, row_scores in zip(source_ids, target_ids, scores)
        ]

    def _teacher_forced(self, source_ids, target_ids):
        """Logits (B, T, V) of `target_ids`, and the cross-attention scores (B, L, N, T, S) behind them."""
        start = tf.fill(
            [tf.shape(target_ids)[0], 1], tf.constant(self.target_tokenizer.start_token_id, tf.int32)
        )
        source_mask, target_mask = (
            tf.not_equal(ids, self.model.pad_token_id) for ids in (source_ids, target_ids)
        )
        logits, scores = self.model.decode(
            tf.concat([start, target_ids[:, :-1]], axis=1),
            self.model.encode(source_ids, source_mask),
            source_mask,
            # The token that is read where a real one is to be written is real, START too if it is the pad.
            target_mask,
            return_attention_scores=True,
        )
        return logits, tf.stack(scores, axis=1)

    def _cross_attention(self, source_ids, target_ids):
        return self._graph("cross_attention", lambda *ids: self._teacher_forced(*ids)[1])(
            source_ids, target_ids
        )

    def token_log_probs(self, source_ids, target_ids):
        """The log-probability (B, T) of each of `target_ids`, 0 at pads."""
        logits, _ = self._teacher_forced(source_ids, target_ids)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(target_ids, logits)
        return tf.where(target_ids == self.model.pad_token_id, 0.0, -losses)

    def alignment(self, source_ids, target_ids):
        """The place in a source of what each token of a target looked at most, int32 (B, T).

        By the mean over the heads of the last layer but one, which aligns words best (Garg et al., 2019,
        https://arxiv.org/abs/1909.02074, section 4.1).
        """
        _, scores = self._teacher_forced(source_ids, target_ids)
        of_layer = scores[:, self.model.alignment_layer]
        return tf.argmax(tf.reduce_mean(of_layer, axis=1), axis=-1, output_type=tf.int32)

    def _of_pairs(self, name, function, source_ids, target_ids, batch_size):
        """What a function of ids (B, S) and (B, T) gives for each pair, an array with the padding of its batch."""
        graph = self._graph(name, function)

        def of_batch(rows):
            return graph(*(padded([ids[row] for row in rows]) for ids in (source_ids, target_ids))).numpy()

        return of_batches(of_batch, target_ids, batch_size)

    def _graph(self, name, function):
        spec = tf.TensorSpec([None, None], tf.int32)
        return self.graph_of(name, function, [spec, spec])

    def graph_of(self, key, function, input_signature):
        """The graph of a key, traced when it is first wanted: once, and one at a time.

        Threads that trace at the same time hand Python's lock to and fro at every op, and take many times as long.
        """
        if key not in self._functions:
            if key != "texts":
                _check_backend()
            with self._functions_lock:
                if key not in self._functions:
                    graph = tf.function(function, input_signature, autograph=False)
                    self._functions[key] = graph.get_concrete_function()
        return self._functions[key]

    def _check_targets(self, source_ids, target_ids):
        if len(source_ids) != len(target_ids):
            raise ValueError(
                "`sources` and `targets` must have the same length. "
                f"Received: {len(source_ids)} sources, {len(target_ids)} targets."
            )
        longest = max(map(len, target_ids), default=0)
        if longest > self.model.max_sequence_length:
            raise ValueError(
                f"A target has {longest} tokens, END included; `max_sequence_length` of the model is "
                f"{self.model.max_sequence_length}. Leave it out or shorten it."
            )

    def _write(self, folder):
        shared = self.target_tokenizer is self.source_tokenizer
        options = {name: getattr(self, name) for name in _OPTIONS}
        config = {
            "format": _FORMAT,
            "model": keras.saving.serialize_keras_object(self.model),
            "shared_tokenizer": shared,
            "options": options,
        }
        (folder / _CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_weights(self.model, folder / _WEIGHTS_FILE)
        self.source_tokenizer.save(folder / "source_tokenizer")
        if not shared:
            self.target_tokenizer.save(folder / "target_tokenizer")


_OPTIONS = ("num_beams", "length_penalty", "max_length", "jit_compile")

_Answer = collections.namedtuple("_Answer", ["texts", "scores", "attention_map"])


def _check_backend():
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "On Keras' JAX backend a translator translates, and is saved; scores, alignments, attention maps, streams "
            "and exports need KERAS_BACKEND=tensorflow: load the saved translator there."
        )


def _empty_map(model):
    return AttentionMap([], [], np.zeros((*model.cross_attention_shape, 0, 0), "float32"))


def _with_spans(tokenizer, texts):
    """Lists of ids with END for each text, and lists of the bytes that the others stand for."""
    ids, starts, stops = (x.to_list() for x in tokenizer.tokenize_with_offsets(texts))
    spans = [list(zip(*row)) for row in zip(starts, stops)]
    return [[*row, tokenizer.end_token_id] for row in ids], spans


def _check_vocabulary(side, tokenizer, vocabulary_size):
    if tokenizer.vocabulary_size != vocabulary_size:
        raise ValueError(
            f"The {side} tokenizer must have the model's vocabulary. Received: tokenizer with "
            f"{tokenizer.vocabulary_size} ids, model with {vocabulary_size}."
        )


def _read_config(folder):
    path = folder / _CONFIG_FILE
    if not path.is_file():
        raise FileNotFoundError(f"There is no translator in {folder}: it has no {_CONFIG_FILE}.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if config["format"] not in (1, _FORMAT):
            raise ValueError(f"it has format {config['format']!r}, this version reads up to format {_FORMAT}")
        sizes = config["model"] if config["format"] == 1 else {}
        values = {**sizes, **config["options"], "shared_tokenizer": config["shared_tokenizer"]}
        if not all(map(_is_scalar, values.values())) or set(config["options"]) != set(_OPTIONS):
            raise ValueError("it holds something else than a translator's options")
        return config
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error!r}.") from error


def _model_of(config):
    """The model that a translator's config describes, and a function from names of weights in its file to the model's."""
    if config["format"] != 1:
        return keras.saving.deserialize_keras_object(config["model"]), lambda name: name
    make = _MODELS[config.get("model_class", "Seq2SeqTransformer")]
    sizes = {name: value for name, value in config["model"].items() if name != "trainable"}

    def renamed(name):
        for pattern, new in _RENAMED if make is not RNNSeq2Seq else ():
            if re.match(pattern, name):
                return re.sub(pattern, new, name)
        return name

    return make(**sizes), renamed


def _is_scalar(value):
    return value is None or isinstance(value, bool | int | float | str)
