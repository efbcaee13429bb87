import dataclasses

import numpy as np
import tensorflow as tf
from keras import ops

from keras_attn.generation import DecodingOptions
from keras_attn.models import Seq2SeqGeneration
from keras_attn.tasks.alignment import word_alignment
from keras_attn.tasks.attention_signature import ATTENTION_LENGTH
from keras_attn.tasks.batches import warn_of_cuts
from keras_attn.tasks.buckets import BATCH_SIZES
from keras_attn.tasks.generative_task import GenerativeTask, columns_of
from keras_attn.tasks.model_export import export_model
from keras_attn.tasks.search_graphs import found_in_batch
from keras_attn.tasks.shortlist import checked_shortlist, sizes_of
from keras_attn.tasks.showing import (
    attention_answer,
    beside,
    check_same_tokens,
    compared_tasks,
    explore_translation,
    translation_maps,
)
from keras_attn.tasks.signatures import Signatures, XlaSignatures
from keras_attn.tasks.source_form import SourceForm
from keras_attn.tasks.task import as_given, check_vocabulary
from keras_attn.tasks.task_files import reading
from keras_attn.tasks.teacher_forcing import alignment, of_pairs, token_log_probs
from keras_attn.tasks.token_ids import NO_TOKEN, for_model, to_texts
from keras_attn.tasks.translations import translate_batch, trimmed
from keras_attn.tasks.translator_files import read_translator, write_translator
from keras_attn.text import as_utf8


class Translator(GenerativeTask):
    """A model and its two tokenizers: strings in, strings out; in Python, in a folder, and in TF Serving.

    Args:
        model: A `Seq2SeqTransformer`, an `RNNSeq2Seq`, or any model with the mixin `Seq2SeqGeneration`.
        source_tokenizer, target_tokenizer: Tokenizers of `keras_attn.text`; one object for both is saved
            once. Tokens of the target that stand for no text (START, pads, other control tokens) are never
            chosen, except END. The unknown token is text.
        num_beams: Integer, at most 1024, the default of calls and of the export; 1 is greedy search.
        length_penalty: Float, the default of calls and of the export.
        max_length: Integer, the largest number of tokens of a translation, END included. Defaults to the
            model's `max_sequence_length`. Sources longer than `max_sequence_length` are truncated to it, with a warning.
        jit_compile: Boolean, whether decoding is compiled with XLA in Python: faster steps, but each new
            shape takes seconds to compile, so batches are padded to few shapes. The export is not affected.
        options: `keras_attn.generation.DecodingOptions`, the defaults of calls and of the export, with one value for all
            texts: `min_length`, `stop_token_ids` and the like.
        start_token_id: Integer, the token before a translation. Defaults to the target tokenizer's START.
        source_form: `keras_attn.tasks.SourceForm`, what stands around a source's tokens. Defaults to END after them.
        languages: `keras_attn.tasks.Languages` of a multilingual model, or None.
        shortlist: `keras_attn.tasks.Shortlist`, or a file of one: translations have the tokens that it lists for their
            source alone, and the output projection is computed for these; scores are of probabilities among them. Exports
            have it too. `score` and `align` know all tokens. None for all tokens.

    Raises:
        ValueError: if the model cannot generate, if its vocabularies differ from those of the tokenizers, or
            if a number is out of range.

    Example:

    ```python
    translator = keras_attn.Translator.load("runs/dates/translator")
    translator("4th of July 2016")  # "2016-07-04"
    texts, scores = translator(["4. Juli 2016", "le 4 juillet 2016"], return_scores=True)
    ```
    """

    name, mixin = "translator", Seq2SeqGeneration
    needs_tensorflow = (
        "On Keras' JAX and PyTorch backends a translator translates, and is saved; scores, alignments, attention maps, "
        "streams and exports need KERAS_BACKEND=tensorflow: load the saved translator there."
    )

    def __init__(
        self,
        model,
        source_tokenizer,
        target_tokenizer,
        num_beams=4,
        length_penalty=1.0,
        max_length=None,
        jit_compile=False,
        options=None,
        start_token_id=None,
        source_form=None,
        languages=None,
        shortlist=None,
    ):
        tokenizers = {"source_tokenizer": source_tokenizer, "target_tokenizer": target_tokenizer}
        super().__init__(
            model,
            tokenizers,
            target_tokenizer,
            num_beams,
            length_penalty,
            max_length,
            jit_compile,
            options,
        )
        check_vocabulary("source tokenizer", source_tokenizer, model.vocabulary_size)
        check_vocabulary(
            "target tokenizer", target_tokenizer, model.target_vocabulary_size or model.vocabulary_size
        )
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        start = target_tokenizer.start_token_id if start_token_id is None else start_token_id
        self.start_token_id = int(start)
        self.source_form = source_form or SourceForm(after=(source_tokenizer.end_token_id,))
        self.languages = languages
        self.num_added_tokens = self.source_form.num_added(source_tokenizer)
        self.shortlist = None if shortlist is None else checked_shortlist(self, shortlist)

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
        source_language=None,
        target_language=None,
    ):
        """Translates a string to a string, or a list of strings to a list.

        Args:
            texts: String, or list of strings. Invalid text is repaired; an empty text translates to "".
            num_beams, length_penalty, max_length: As in the constructor, whose values are the defaults.
            num_return_sequences: Integer n, at most `num_beams`: each answer is then a list of n
                translations, best first (fewer if the search found fewer). With sampling, n draws.
            return_scores: Boolean, whether scores, log-probability / length ** length_penalty, are returned
                too.
            return_attention_scores: Boolean, whether the `AttentionMap` of each best translation is returned
                too.
            options: `keras_attn.generation.DecodingOptions`, each with one value for all texts or one per
                text. With a sampling option (`temperature`, `top_p`, `seed`, ...) translations are drawn.
            target_prefix: String, or a string for each text, with which its translation begins, in whole
                tokens.
            batch_size: Integer, the number of sentences translated at once; texts of similar length are
                batched together. For thousands of texts and a small model, 256 is faster with `jit_compile`.
            num_workers: Integer, the number of batches translated at the same time, by threads. Defaults to
                the number of processors, or 1 with a GPU.
            source_language, target_language: Names, or a name for each text, in `languages` of a multilingual
                translator.

        Returns:
            The translations; with scores or attention maps, a tuple of them in this order.

        Raises:
            ValueError: for an option out of range, or with another number of values than there are texts.
        """
        single = isinstance(texts, str | bytes)
        num_answers = num_return_sequences or (1 if return_scores else None)
        search = self.search_options(num_beams, length_penalty, max_length, num_answers)
        token_ids = self._source_token_ids(as_utf8(texts), source_language).to_list()
        options = self._with_prefix(options, target_prefix, len(token_ids))
        options = self._with_target_language(options, target_language, len(token_ids))

        def translate(batch, of_batch):
            return translate_batch(self, batch, of_batch, search, return_attention_scores)

        answers = self._answers(token_ids, options, translate, batch_size, num_workers)
        maps = [[answer.attention_map for answer in answers]] if return_attention_scores else []
        return columns_of(answers, num_return_sequences, return_scores, single, maps)

    def stream(self, text, max_length=None):
        """Translates one text greedily and yields the translation piece by piece, while it is decoded.

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
        return self._stream(
            text,
            lambda most: self._stream_start(text, most),
            max_length,
            self.model.max_sequence_length,
        )

    def score(
        self,
        sources,
        targets,
        length_penalty=None,
        batch_size=64,
        return_token_scores=False,
        source_language=None,
        target_language=None,
    ):
        """Scores given translations by their probability.

        Args:
            sources, targets: Two strings, or two lists of strings of the same length.
            length_penalty: Float, as in the constructor.
            batch_size: Integer.
            return_token_scores: Boolean, whether the scores of the tokens are returned too.
            source_language, target_language: As in a call.

        Returns:
            log-probability / length ** length_penalty of each target, END included, like the scores that a
            call returns. A float, or a list of floats. With `return_token_scores`, a tuple of that and, for
            each target, a list of pairs (token, log-probability), END included.

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
        source_ids = self._source_token_ids(as_utf8(sources), source_language).to_list()
        target_ids = self.target_tokenizer.encode(as_utf8(targets))
        first = self._first_token_ids(target_language, len(target_ids))
        end = self.target_tokenizer.end_token_id
        target_ids = [[*before, *ids, end] for before, ids in zip(first, target_ids)]
        self._check_targets(source_ids, target_ids)
        length_penalty = self.length_penalty if length_penalty is None else length_penalty
        log_probs = of_pairs(self, token_log_probs, source_ids, target_ids, batch_size)
        scores, token_scores = [], []
        for ids, of_tokens in zip(target_ids, log_probs):
            of_tokens = of_tokens[: len(ids)].tolist()
            scores.append(sum(of_tokens) / len(ids) ** length_penalty)
            if return_token_scores:
                token_scores.append(list(zip(self.target_tokenizer.token_strings(ids), of_tokens)))
        columns = [scores, token_scores] if return_token_scores else [scores]
        return as_given(columns, single)

    def align(self, sources, targets=None, batch_size=64):
        """Aligns the words of texts and their translations by the decoder's attention.

        Each target token is linked to the source token with the most attention, by the mean over the heads of
        the last layer but one.

        Args:
            sources: String, or list of strings.
            targets: String, or list of the same length. Defaults to the translations.
            batch_size: Integer.

        Returns:
            A `WordAlignment` for each source: words with their positions in the texts, and pairs of them.

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
        source_ids = self._source_token_ids(as_utf8(sources)).to_list()
        source_spans = self._source_spans(sources)
        first = self._first_token_ids(None, len(targets))
        target_ids, target_spans = _with_spans(self.target_tokenizer, targets, first)
        self._check_targets(source_ids, target_ids)
        looked_at = of_pairs(self, alignment, source_ids, target_ids, batch_size)
        alignments = [
            word_alignment(*texts_and_spans, source_tokens.tolist())
            for *texts_and_spans, source_tokens in zip(
                sources, targets, source_spans, target_spans, looked_at
            )
        ]
        return alignments[0] if single else alignments

    def show(
        self,
        text,
        target=None,
        num_beams=None,
        max_length=None,
        source_language=None,
        target_language=None,
        title=None,
        path=None,
        compare=None,
        name="this",
    ):
        """A page on which a person explores what the model attends to while it translates a text.

        It shows the attention of the encoder, of the decoder and between them, layer by layer and head by head; for each
        step of the decoder the five best next tokens; and the answers of the beam search as a tree.

        Args:
            text: String.
            target: String, a translation to explore. Defaults to the best one that the search finds.
            num_beams, max_length: As in the constructor.
            source_language, target_language: As in a call.
            title: String above the page. Defaults to the text.
            path: Where to write the page, as `.html`.
            compare: Another translator of the same tokens, or a mapping from names to such, to show beside this one. All of
                them read the same source and the same target, this one's translation. By default it is "the other".
            name: String, the name of this translator beside those of `compare`.

        Returns:
            `keras_attn.plots.Explorer`: a notebook shows it, and `save` writes it.

        Raises:
            ValueError: if the text is empty, or it or `target` has more tokens than the model or the page can have, or
                `compare` has other tokens.

        Example:

        ```python
        translator = keras_attn.Translator.load("runs/dates/translator")
        explorer = translator.show("4th of July 2016")
        explorer.save("attention.html")
        ```
        """
        self._check_backend()
        if not isinstance(text, str | bytes):
            raise ValueError(f"`text` must be one string. Received: {type(text).__name__}.")
        others = compared_tasks(self, compare)
        [source_ids] = self._source_token_ids(as_utf8(text), source_language).to_list()
        if len(source_ids) <= self.num_added_tokens:
            raise ValueError("`text` must hold a token. Received an empty text.")
        for other_name, other in others.items():
            [of_other] = other._source_token_ids(as_utf8(text), source_language).to_list()
            check_same_tokens(other_name, *map(self.source_tokenizer.token_strings, (source_ids, of_other)))
        if target is None:
            num_beams = self.num_beams if num_beams is None else num_beams
            search = self.search_options(num_beams, None, max_length, num_beams)
            options = self._with_target_language(DecodingOptions(), target_language, 1)
            found, [answer] = found_in_batch(self, [source_ids], options.arrays_of([0], 1), search)
            answers = list(zip(trimmed(self, found[0]), answer.scores))
        else:
            [ids] = self.target_tokenizer.encode(as_utf8(target))
            [first] = self._first_token_ids(target_language, 1)
            answers = [([*first, *ids, self.target_tokenizer.end_token_id], 0.0)]
            self._check_targets([source_ids], [answers[0][0]])
        [title] = [title] if title is not None else [as_utf8(text)[0].decode()]
        started, compared = self._started_by(target_language), {}
        for other_name, other in others.items():
            other._with_target_language(DecodingOptions(), target_language, 1)  # its check of the name
            other._check_targets([source_ids], [answers[0][0]])
            other = other._started_by(target_language)
            starts = [[one.start_token_id] for one in (started, other)]
            check_same_tokens(other_name, *map(self.target_tokenizer.token_strings, starts))
            compared[other_name], *_ = translation_maps(other, source_ids, answers[0][0])
        return explore_translation(started, source_ids, answers, title, path, **beside(compared, name))

    def save(self, folder):
        """Writes the model, the tokenizers and the options to `folder`, replacing an older translator there.

        The folder is built under a temporary name and then renamed. It holds JSON, a sentencepiece model and
        a safetensors file: nothing that could contain code. LoRA is merged in what is written. The class of a custom
        model must be registered with `keras.saving.register_keras_serializable`, also where it is loaded.

        Raises:
            ValueError: if `folder` holds anything other than a translator, or the model is quantised to other than int8 or bfloat16 or is
                not a `keras.Model`.
        """
        write_translator(self, folder)

    @classmethod
    def load(cls, folder):
        """Reads the translator that `save` wrote; it never runs code from the folder.

        Args:
            folder: Path of the translator, or of the run that made it.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: if one is damaged, or the weights do not fit the configuration.
        """
        with reading(folder):
            *parts, options = read_translator(cls, folder)
            return cls(*parts, **options)

    def export(
        self,
        folder,
        examples=None,
        xla=False,
        batch_sizes=BATCH_SIZES,
        lengths=None,
        signatures=None,
        quantization=None,
        attention=False,
    ):
        """Writes the next version of a SavedModel that takes strings and returns strings, for TF Serving.

        `keras_attn.tasks.SIGNATURES` and the README next to the graph describe the signatures with all their
        inputs and outputs. Every input has the batch as its first axis, and this translator's options are the
        defaults. `serving_default` takes texts and returns translations, and nothing else; the others are
        `translate_n_best`, `translate`, `sample`, `score` and `encode`.

        A `status` is "ok", or names the deviations from the request, joined by commas: `source_repaired`
        (invalid UTF-8), `source_truncated`, `unfinished` (no END within `max_length`), `top_p_clamped` and
        the like.

        Next to the graph are `assets.extra/tf_serving_warmup_requests`, with a request to each signature,
        which the server runs before it makes the version available; `batching_params.pbtxt` for
        `--enable_per_model_batching_parameters`; and a `README.md` with requests, their answers and the
        limits.

        With `xla=True`, the export is a different model, which needs its own folder. It has only
        `serving_default`, with its model part compiled with XLA, which the server must enable
        (`--xla_cpu_compilation_enabled`). Batches are padded inside the graph, so only the shapes of
        `batch_sizes` and `lengths` occur, and each of them is warmed up.

        Args:
            folder: Path of the served model, for example `saved_models/dates`. Its name is the model's name.
            examples: List of typical texts to translate, for the warm-up and the README.
            xla: Boolean, whether to export a model that XLA compiles.
            batch_sizes: With `xla`, increasing integers; larger batches are split into batches of the last
                size.
            lengths: With `xla`, increasing integers, the number of tokens of a source with END. The last is
                the model's `max_sequence_length`, or if that is more, at least 1,024: a longer source is then cut to
                it. Defaults to the powers of two from 16, up to 1,024.
            signatures: Without `xla`, the names of the signatures to write beside `serving_default`; by default all.
            quantization: `"bfloat16"` or `"int8"`, how matrices are stored and multiplied; by default as in the model. int8
                without `xla` needs oneDNN's 8-bit products, here and where it is served.
            attention: Without `xla`, whether to write a signature `attention` too: the scores of every head for a text and
                its translation, which `keras_attn.plots.explore_answer` makes a page of.

        Returns:
            `pathlib.Path` of the new version folder, `folder`/1 or the next integer.

        Raises:
            ValueError: if `examples`, `batch_sizes`, `lengths`, `signatures` or `quantization` are invalid, or a model with
                LoRA is to be quantised, or for int8 without `xla` on a machine that cannot compute it, or the model has no
                attention that an export can give.
        """
        self._check_export(xla, signatures, attention, batch_sizes, lengths)
        if xla and self.shortlist is not None:
            raise ValueError(
                "A shortlist is for exports without `xla`, which needs lists of one length: leave out one of the two."
            )
        served = self.quantized(quantization, xla)
        chosen = (
            XlaSignatures(served, batch_sizes, lengths) if xla else Signatures(served, signatures, attention)
        )
        return served._export(folder, chosen, examples, unquantized=self)

    def _attention_answers(self, texts):
        asked, answers = [], []
        longest = min(ATTENTION_LENGTH, self.model.max_sequence_length)
        search = self.search_options(max_length=min(self.max_length, longest))
        for text in texts:
            [source_ids] = self.source_token_ids(tf.constant([text]), longest=longest)[0].to_list()
            if len(source_ids) <= self.num_added_tokens:
                continue
            found, _ = found_in_batch(self, [source_ids], DecodingOptions().arrays_of([0], 1), search)
            [target_ids] = trimmed(self, found[:, 0])
            maps, tokens, _ = translation_maps(self, source_ids, target_ids, dtype="float32")
            asked.append(text)
            written = np.array(self.target_tokenizer.token_strings(target_ids))
            answers.append({**attention_answer(maps, tokens), "target_tokens": written})
        names = ["given_targets", *(() if self.languages is None else ("source_language", "target_language"))]
        return {"inputs": asked, **{name: [""] * len(asked) for name in names}}, answers

    def export_model(self, folder, format, quantization=None):
        """Writes the model for another engine: tokens in, tokens out, with the tokenizers next to it.

        - `"ctranslate2"`: see `keras_attn.export.export_ctranslate2`.
        - `"onnx"`: `logits.onnx` and `greedy.onnx`; `"litert"`: `model.tflite` with these two signatures.
          `logits` takes int32 `encoder_token_ids` (B, S) and `decoder_token_ids` (B, T) and returns float32
          `logits` (B, T, V). `greedy` takes `encoder_token_ids` and returns int32 `token_ids` (B,
          max_length): greedy search, END included, then pads. Both compute in float32.

        - `"huggingface"`: what transformers' AutoModelForSeq2SeqLM and AutoTokenizer load, see
          `keras_attn.huggingface.save_translator`.

        Args:
            folder: Path of the folder to write; it replaces an older export there.
            format: `"ctranslate2"`, `"onnx"`, `"litert"` or `"huggingface"`.
            quantization: How CTranslate2 stores the weights and computes, for example `"int8"`; for no other
                format.

        Returns:
            `pathlib.Path` of the folder.

        Raises:
            ValueError: for an unknown format, a quantization that the format lacks, or a model that the
                engine cannot compute.
            ImportError: if a package that writes the format is not installed; the message names it.
        """
        return export_model(self, folder, format, quantization)

    def found(self, token_ids, options, compiler):
        """The result of the model's `generate` for ids (B, S); the options are those of `search_options`."""
        start, options = self._start_token_ids(options)
        if self.shortlist is not None:
            prefix = options["options"].prefix_token_ids
            options["listed"] = self.shortlist.listed(
                token_ids, *sizes_of(self.model), prefix, to_buckets=compiler is not None
            )
        token_ids, mask = for_model(token_ids)
        return self.model.generate(
            token_ids,
            start_token_id=start,
            end_token_id=self.target_tokenizer.end_token_id,
            unwritable_token_ids=self.unwritable_token_ids,
            compiler=compiler,
            encoder_padding_mask=mask,
            pad_token_id=NO_TOKEN,
            **options,
        )

    def stream_inputs(self, token_ids, max_length, limit, compiler):
        """`SearchInputs` for the translation of ids (B, S)."""
        if self.shortlist is not None:
            raise ValueError("A translator with a shortlist does not stream: load it without.")
        token_ids, mask = for_model(token_ids)
        return self.model.search_inputs(
            token_ids,
            start_token_id=self.start_token_id,
            end_token_id=self.target_tokenizer.end_token_id,
            unwritable_token_ids=self.unwritable_token_ids,
            max_length=max_length,
            limit=limit,
            compiler=compiler,
            encoder_padding_mask=mask,
            pad_token_id=NO_TOKEN,
        )

    def texts_of(self, source_ids, token_ids):
        """Ids (B, n, L) -> strings (B, n), in a graph: eager mode would need dozens of calls from Python."""
        tokenizer = self.target_tokenizer
        graph = self.graph_of(
            ("texts", tokenizer),
            lambda token_ids: to_texts(tokenizer, token_ids),
            [tf.TensorSpec([None, None, None], tf.int32)],
            of_task=False,
        )
        return graph(tf.constant(token_ids))

    def conventions(self):
        """The arguments of the constructor that say what stands around texts and what a search does beside them: a dict."""
        names = ("options", "start_token_id", "source_form", "languages")
        return {name: getattr(self, name) for name in names}

    def source_token_ids(self, texts, language_ids=None, longest=None):
        """Strings (B,) -> ragged ids (B, None) of at most `longest`, by default `max_sequence_length`, and booleans (B,):
        which were cut."""
        if language_ids is None and self.languages is not None:
            language_ids = tf.fill(tf.shape(texts), self.languages.default("source"))
        longest = longest or self.model.max_sequence_length
        return self.source_form.token_ids(self.source_tokenizer, texts, longest, language_ids)

    def _start_token_ids(self, options):
        """START, and the options; where START is the token of a row's language, it is no token of the answer."""
        first = options["options"].first_token_id
        if self.languages is None or not self.languages.target_is_start or first is None:
            return self.start_token_id, options
        decoding = dataclasses.replace(options["options"], first_token_id=None)
        return ops.where(first < 0, self.start_token_id, first), {**options, "options": decoding}

    def _source_token_ids(self, texts, language=None):
        self._check_languages(source_language=language)
        rows = None if self.languages is None else self.languages.rows("source", language, len(texts))
        token_ids, is_cut = self.source_token_ids(tf.constant(texts, tf.string, [len(texts)]), rows)
        limit = f"the first {self.model.max_sequence_length} tokens of a source are read"
        warn_of_cuts(int(np.sum(is_cut)), len(texts), limit)
        return token_ids

    def _check_languages(self, **names):
        for name, value in names.items():
            if value is not None and self.languages is None:
                raise ValueError(f"`{name}` is for multilingual translators. Received: {name}={value!r}.")

    def _with_target_language(self, options, language, num_texts):
        self._check_languages(target_language=language)
        if language is None:
            return options
        ids = self.languages.rows("target", language, num_texts)
        return dataclasses.replace(options, first_token_id=ids)

    def _started_by(self, language):
        """This translator, or one with another START, where the token of a language is one."""
        if language is None or not self.languages.target_is_start:
            return self
        return self.replaced(start_token_id=self.languages.ids[language])

    def _first_token_ids(self, language, num_texts):
        """For each text, the list of tokens that its translation begins with at no cost: one or none."""
        if language is not None and self.languages is not None and self.languages.target_is_start:
            raise ValueError(
                "This translator scores translations into its default language only: a language is its START. "
                f"Received: target_language={language!r}."
            )
        options = self._with_target_language(self.options, language, num_texts)
        if options.first_token_id is None:
            return [[]] * num_texts
        return [[int(first)] for first in np.broadcast_to(options.first_token_id, [num_texts])]

    def _stream_start(self, text, most):
        """The ids of a source, and the most tokens of its translation: none if it is END alone."""
        [token_ids] = self._source_token_ids(as_utf8(text)).to_list()
        return token_ids, most if len(token_ids) > self.num_added_tokens else 0

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
        prefixes = [[*ids, *[-1] * (width - len(ids))] for ids in prefixes]
        return dataclasses.replace(options, prefix_token_ids=prefixes) if width else options

    def _source_spans(self, texts):
        """Lists of the byte spans of sources' ids, up to those after a text."""
        if self.source_form.text_prefix:
            raise ValueError(
                "Words are not aligned where every text has a prefix. Received such a translator."
            )
        return _with_spans(self.source_tokenizer, texts, [self.source_form.before] * len(texts))[1]

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


def _with_spans(tokenizer, texts, first):
    """Lists of ids with END for each text, after those of `first`, and lists of the byte spans of all ids but END.

    A token of `first` has the span of a text's end, where there is nothing.
    """
    ids, starts, stops = (x.to_list() for x in tokenizer.tokenize_with_offsets(texts))
    ends = [len(text.encode("utf-8")) for text in texts]
    spans = [
        [*[(end, end)] * len(before), *zip(*row)] for before, end, *row in zip(first, ends, starts, stops)
    ]
    return [[*before, *row, tokenizer.end_token_id] for before, row in zip(first, ids)], spans
