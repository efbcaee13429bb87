"""The task that translates: a call, scores, alignments and streams; saved folders, checkpoints, exports and pages.

The way of a call, `translator(texts)`:

- `_encode_sources`: strings to lists of ids, `SourceForm.token_ids` around what the tokenizer finds;
- `_answers` (generative_task.py): batches of similar lengths, and for each `_search_batch`, one graph that is kept;
- in this graph `run_search`: the `generate` of the model (models/generation.py), whose searches are in keras_attn/generation;
- `answer_texts`: ids back to strings, in another graph.
"""

import dataclasses
import re

import numpy as np
import tensorflow as tf
from keras import ops

from keras_attn import opennmt
from keras_attn.export import read_shortlist, write_shortlist
from keras_attn.generation import DecodingOptions
from keras_attn.models import RNNSeq2Seq, Seq2SeqGeneration, Seq2SeqTransformer
from keras_attn.tasks.attention_maps import (
    ATTENTION_LENGTH,
    CROSS_OUTPUTS,
    DECODER_OUTPUTS,
    ENCODER_OUTPUTS,
    STEP_OUTPUTS,
    beam_rows,
    best_tokens,
    check_same_tokens,
    single_answer,
    special_tokens,
    translation_maps,
)
from keras_attn.tasks.batches import (
    NO_TOKEN,
    Buckets,
    for_model,
    powers_of_two,
    to_texts,
    warn_of_cuts,
)
from keras_attn.tasks.generative_task import Answer, GenerativeTask, answer_columns
from keras_attn.tasks.given_translations import (
    alignment,
    attention_maps,
    empty_attention_map,
    run_on_pairs,
    token_log_probs,
    word_alignment,
)
from keras_attn.tasks.other_engines import FORMATS, export_for_engine
from keras_attn.tasks.saved_tasks import is_scalar, json_options
from keras_attn.tasks.search_functions import (
    BEAM_OPTIONS,
    DRAWN_BEGINNINGS,
    DRAWN_SCORES,
    N_BEST,
    OPTION_INPUTS,
    SAMPLING_OPTIONS,
    SEARCHED_BEGINNINGS,
    STATUSES,
    TranslatorFunctions,
)
from keras_attn.tasks.shortlist import Shortlist, checked_shortlist, vocabulary_sizes
from keras_attn.tasks.signatures import (
    TEXT,
    UNKNOWN_CHARACTERS,
    Input,
    Signature,
    second_text,
    text_box,
)
from keras_attn.tasks.task import PageLabels, as_given, check_vocabulary, only_text
from keras_attn.tasks.text_forms import Languages, SourceForm
from keras_attn.tasks.writer_checkpoints import checkpoint_parts, opennmt_parts
from keras_attn.text import as_utf8

_STATUS = {
    "status": '"ok", or the deviations from the request, joined by commas: `source_repaired` (invalid UTF-8), `source_truncated`, '
    "`unfinished` (no END within `max_length`), `unknown_characters_9_of_12` (of 12 characters of the text, 9 are not in the "
    "training data), `top_p_clamped` and the like"
}
# The longest source that XLA compiles unless more is asked for: attention takes memory with its square, and batches are large.
MOST_COMPILED = 1024
_SHORTLIST_FILE = "shortlist.txt"
# Version 0.1 described a model by its class and its sizes. Its embeddings and its position encodings were
# separate.
_FORMAT_OF_SIZES = 1
_MODELS_OF_SIZES = {"Seq2SeqTransformer": Seq2SeqTransformer.from_sizes, "RNNSeq2Seq": RNNSeq2Seq}
_RENAMED_WEIGHTS = {
    r"^token_embedding/": "source_embedding/token_embedding/",
    r"^(source|target)_embedding/": r"\1_embedding/token_embedding/",
    r"^encoder_position_encoding/": "source_embedding/position_encoding/",
    r"^decoder_position_encoding/": "target_embedding/position_encoding/",
}


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

    name = "translator"
    # T5's class once ended with WithLMHeadModel.
    heads = ("ForConditionalGeneration", "MTModel", "WithLMHeadModel")
    bodies = ("seq2seq",)
    checkpoint_formats = ("opennmt-tf",)
    mixin = Seq2SeqGeneration
    tokenizer_names = ("source_tokenizer", "target_tokenizer")
    saved_format = 2
    signatures = {
        "serving_default": Signature(
            "the best translation of each text",
            ["inputs"],
            {"outputs": "the translation"},
            view="answers",
            shown=2,
        ),
        "translate_n_best": Signature(
            "the best translations of each text", ["inputs"], N_BEST, view="answers"
        ),
        "translate": Signature(
            "beam search with options for each text",
            ["inputs", "target_prefix", *BEAM_OPTIONS],
            {
                **N_BEST,
                **_STATUS,
                "source_tokens": "the tokens of the text",
                "target_tokens": "those of the best translation",
                "alignment": "the number of the source token that each of them attended to most; -1 past the end",
            },
            view="answers",
            shown=1,
            beginnings=SEARCHED_BEGINNINGS,
        ),
        "sample": Signature(
            "one translation drawn for each text; the same seed draws the same, whatever the batch",
            ["inputs", "target_prefix", *SAMPLING_OPTIONS],
            {"outputs": "the translation", **DRAWN_SCORES, **_STATUS},
            view="answers",
            beginnings=DRAWN_BEGINNINGS,
        ),
        "score": Signature(
            "how probable the model finds given translations",
            ["inputs", "targets"],
            {
                "scores": "log-probability / length ^ length_penalty",
                "token_scores": "the log-probability of each token",
                "tokens": "the tokens, END included",
                **_STATUS,
            },
            shown=1,
        ),
        "encode": Signature(
            "a vector for each text",
            ["inputs"],
            {"outputs": "the mean of the encoder's output over the tokens, END aside", **_STATUS},
        ),
    }
    signature_inputs = {
        "inputs": Input("the texts to translate", widget=TEXT),
        "targets": Input(
            "their translations", widget=second_text("Translation", "What the text is translated to.")
        ),
        "given_targets": Input('the translations to look at; "" for the best that are found', neutral=""),
        "target_prefix": Input(
            'the text that a translation begins with; "" for none',
            neutral="",
            widget=text_box("Begin with", "The translation starts with these words."),
        ),
        **OPTION_INPUTS,
        "source_language": Input(
            'the language of the text; "" for the default',
            neutral="",
            widget=text_box("Source language", "Empty = the model's own."),
        ),
        "target_language": Input(
            'the language of the translation; "" for the default',
            neutral="",
            widget=text_box("Target language", "Empty = the model's own."),
        ),
    }
    served_functions = TranslatorFunctions
    export_description = (
        "A translator that takes strings and returns strings, for TF Serving: the tokenizers are inside."
    )
    export_formats = FORMATS
    page_labels = PageLabels("Text", "Type a text to translate", "Translation")
    asked_signatures = ("translate", "translate_n_best")
    statuses = {
        "source_truncated": "The text was too long and was cut.",
        "source_repaired": "The text held bytes that are not UTF-8. They were replaced.",
        "prefix_truncated": "The text to begin with was too long and was cut.",
        "prefix_repaired": "The text to begin with held bytes that are not UTF-8. They were replaced.",
        **UNKNOWN_CHARACTERS,
        **STATUSES,
    }
    show_options = ("target", "num_beams", "max_length", "source_language", "target_language")
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
        if start_token_id is None:
            start_token_id = target_tokenizer.start_token_id
        self.start_token_id = int(start_token_id)
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
        num_answers = num_return_sequences or None  # None: one answer without its score
        if num_answers is None and return_scores:
            num_answers = 1
        search = self.search_options(num_beams, length_penalty, max_length, num_answers)
        token_ids = self._encode_sources(texts, source_language)
        if target_prefix is not None:
            options = self._with_prefix(options, target_prefix, len(token_ids))
        if target_language is not None:
            options = self._with_target_language(options, target_language, len(token_ids))
        answers = self._answers(token_ids, search, options, batch_size, num_workers)
        for row, ids in enumerate(token_ids):
            if self._is_empty(ids):  # its translation is "", whatever the search has answered
                answers[row] = Answer([""], [0.0], np.full((1, 1), NO_TOKEN))
        more = []
        if return_attention_scores:
            more.append(self._attention_maps(token_ids, answers, batch_size))
        return answer_columns(answers, num_return_sequences, return_scores, single, more)

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

        def start(most):
            [token_ids] = self._encode_sources(text)
            return token_ids, 0 if self._is_empty(token_ids) else most

        return self._stream(text, start, max_length)

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
        source_ids = self._encode_sources(sources, source_language)
        target_ids = self.target_tokenizer.encode(as_utf8(targets))
        first = self._first_token_ids(target_language, len(target_ids))
        end = self.target_tokenizer.end_token_id
        target_ids = [[*before, *ids, end] for before, ids in zip(first, target_ids)]
        self._check_targets(source_ids, target_ids)
        if length_penalty is None:
            length_penalty = self.length_penalty
        padded_log_probs = run_on_pairs(self, token_log_probs, source_ids, target_ids, batch_size)
        scores = []
        token_scores = []
        for ids, log_probs in zip(target_ids, padded_log_probs):
            log_probs = log_probs[: len(ids)].tolist()
            scores.append(sum(log_probs) / len(ids) ** length_penalty)
            if return_token_scores:
                token_scores.append(list(zip(self.target_tokenizer.token_strings(ids), log_probs)))
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
        source_ids = self._encode_sources(sources)
        source_spans = self._source_spans(sources)
        first = self._first_token_ids(None, len(targets))
        target_ids, target_spans = _with_spans(self.target_tokenizer, targets, first)
        self._check_targets(source_ids, target_ids)
        source_tokens = run_on_pairs(self, alignment, source_ids, target_ids, batch_size)
        columns = zip(sources, targets, source_spans, target_spans, source_tokens)
        alignments = [word_alignment(*texts_and_spans, row.tolist()) for *texts_and_spans, row in columns]
        return alignments[0] if single else alignments

    # Saved folders, checkpoints and exports.

    def more_to_save(self):
        """What a translator does otherwise than those that are trained here."""
        conventions = {"options": json_options(self)}
        if self.start_token_id != self.target_tokenizer.start_token_id:
            conventions["start_token_id"] = self.start_token_id
        if self.source_form != SourceForm(after=(self.source_tokenizer.end_token_id,)):
            conventions["source_form"] = dataclasses.asdict(self.source_form)
        if self.languages is not None:
            conventions["languages"] = self.languages._asdict()
        conventions = {name: value for name, value in conventions.items() if value != {}}
        return {"conventions": conventions} if conventions else {}

    def write_more(self, folder):
        if self.shortlist is not None:
            self.shortlist.save(folder / _SHORTLIST_FILE, self.source_tokenizer, self.target_tokenizer)

    @classmethod
    def readable_formats(cls):
        return (_FORMAT_OF_SIZES, *super().readable_formats())

    @classmethod
    def from_saved(cls, config, folder):
        if config["format"] == _FORMAT_OF_SIZES and not all(map(is_scalar, config["model"].values())):
            raise ValueError("it holds something else than a model's sizes")
        arguments = _conventions(**config.get("conventions", {}))
        if (folder / _SHORTLIST_FILE).is_file():
            arguments["shortlist"] = folder / _SHORTLIST_FILE
        return arguments

    @classmethod
    def model_from_saved(cls, config):
        if config["format"] != _FORMAT_OF_SIZES:
            return super().model_from_saved(config)
        return _MODELS_OF_SIZES[config.get("model_class", "Seq2SeqTransformer")](**config["model"])

    @classmethod
    def weight_renaming(cls, config):
        is_old = config["format"] == _FORMAT_OF_SIZES and config.get("model_class") != "RNNSeq2Seq"
        return _current_weight_name if is_old else str

    @classmethod
    def read_checkpoint(cls, folder, **options):
        is_opennmt = not (folder / "config.json").is_file() and opennmt.holds_checkpoint(folder)
        parts = opennmt_parts if is_opennmt else checkpoint_parts
        return cls(**parts(folder, **options))

    def available_signatures(self):
        signatures = super().available_signatures()
        if not hasattr(self.model, "encode"):
            del signatures["encode"]
        if self.languages is not None:
            for name in ("translate", "sample"):
                signatures[name] = _with_languages(signatures[name])
        return signatures

    def attention_signature(self):
        outputs = {
            "outputs": "the translation",
            **ENCODER_OUTPUTS,
            **DECODER_OUTPUTS,
            **CROSS_OUTPUTS,
            **STEP_OUTPUTS,
            **_STATUS,
        }
        meaning = "what every head looks at while a text is translated"
        signature = Signature(meaning, ["inputs", "given_targets"], outputs)
        return signature if self.languages is None else _with_languages(signature)

    def xla_buckets(self, batch_sizes, lengths):
        longest = self.model.max_sequence_length
        if longest > MOST_COMPILED:
            lengths = powers_of_two(16, MOST_COMPILED) if lengths is None else list(lengths)
            is_within = bool(lengths) and MOST_COMPILED <= lengths[-1] <= longest
            if is_within:
                longest = lengths[-1]
        return Buckets(batch_sizes, lengths, longest, "model's max_sequence_length", frozen=self.model)

    def write_export_files(self, folder):
        if self.shortlist is not None:
            write_shortlist(folder, self.shortlist.anywhere, self.shortlist.by_source)

    def in_form_of(self, version_folder):
        shortlist = read_shortlist(version_folder)
        task = self
        if shortlist is not None:
            lists = Shortlist(shortlist["anywhere"], shortlist["of_source"])
            task = self.replaced(shortlist=lists)
        return super(Translator, task).in_form_of(version_folder)

    def _export_model(self, folder, format, quantization):
        return export_for_engine(self, folder, format, quantization)

    def _check_export(self, xla, signatures, attention, batch_sizes, lengths):
        super()._check_export(xla, signatures, attention, batch_sizes, lengths)
        if xla and self.shortlist is not None:
            raise ValueError(
                "A shortlist is for exports without `xla`, which needs lists of one length: leave out one of the two."
            )

    # Pages of attention.

    def attended(
        self,
        content,
        others,
        target=None,
        num_beams=None,
        max_length=None,
        source_language=None,
        target_language=None,
    ):
        if not isinstance(content, str | bytes):
            raise ValueError(f"`text` must be one string. Received: {type(content).__name__}.")
        [source_ids] = self._encode_sources(content, source_language)
        if self._is_empty(source_ids):
            raise ValueError("`text` must hold a token. Received an empty text.")
        source_tokens = self.source_tokenizer.token_strings(source_ids)
        for name, other in others.items():
            [other_ids] = other._encode_sources(content, source_language)
            check_same_tokens(name, source_tokens, self.source_tokenizer.token_strings(other_ids))
        if target is None:
            if num_beams is None:
                num_beams = self.num_beams
            search = self.search_options(num_beams, None, max_length, num_beams)
            options = self._with_target_language(DecodingOptions(), target_language, 1)
            [answer] = self._answers([source_ids], search, options)
            answers = list(zip(map(self._trimmed, answer.token_ids), answer.scores))
        else:
            [ids] = self.target_tokenizer.encode(as_utf8(target))
            [first] = self._first_token_ids(target_language, 1)
            answers = [([*first, *ids, self.target_tokenizer.end_token_id], 0.0)]
            self._check_targets([source_ids], [answers[0][0]])
        target_ids = answers[0][0]
        started = self._started_by(target_language)
        compared = {}
        for name, other in others.items():
            other._with_target_language(DecodingOptions(), target_language, 1)  # its check of the name
            other._check_targets([source_ids], [target_ids])
            other = other._started_by(target_language)
            [start, other_start] = self.target_tokenizer.token_strings(
                [started.start_token_id, other.start_token_id]
            )
            check_same_tokens(name, [start], [other_start])
            compared[name], *_ = translation_maps(other, source_ids, target_ids)
        return {**started.explored(source_ids, answers), "title": only_text(content)}, compared

    def explored(self, source_ids, answers):
        """The arguments of `keras_attn.plots.explore` for the ids of a text, and pairs of ids and a score, the best first."""
        target_ids = answers[0][0]
        maps, tokens, logits = translation_maps(self, source_ids, target_ids)
        shown = {
            "maps": maps,
            "tokens": tokens,
            "steps": best_tokens(self.target_tokenizer, logits, target_ids),
            "special_tokens": special_tokens(self.source_tokenizer) | special_tokens(self.target_tokenizer),
        }
        if len(answers) > 1:
            sources = [source_ids] * len(answers)
            targets = [ids for ids, _ in answers]
            log_probs = run_on_pairs(self, token_log_probs, sources, targets, len(answers))
            shown["beams"] = beam_rows(self.target_tokenizer, answers, log_probs)
        return shown

    def _attention_answers(self, texts):
        asked = []
        answers = []
        longest = min(ATTENTION_LENGTH, self.model.max_sequence_length)
        search = self.search_options(max_length=min(self.max_length, longest))
        for text in texts:
            [source_ids] = self.source_token_ids(tf.constant([text]), longest=longest)[0].to_list()
            if self._is_empty(source_ids):
                continue
            [translation] = self._answers([source_ids], search)
            target_ids = self._trimmed(translation.token_ids[0])
            maps, tokens, _ = translation_maps(self, source_ids, target_ids, dtype="float32")
            answer = single_answer(maps, tokens)
            answer["target_tokens"] = np.array(self.target_tokenizer.token_strings(target_ids))
            asked.append(text)
            answers.append(answer)
        inputs = {"inputs": asked}
        for name in self.attention_signature().inputs[1:]:
            inputs[name] = [""] * len(asked)
        return inputs, answers

    def _attention_maps(self, source_ids, answers, batch_size):
        """The `AttentionMap` of the best answer to each text."""
        rows = [row for row, ids in enumerate(source_ids) if not self._is_empty(ids)]
        sources = [source_ids[row] for row in rows]
        targets = [self._trimmed(answers[row].token_ids[0]) for row in rows]
        maps = [empty_attention_map(self.model)] * len(source_ids)
        for row, attention_map in zip(rows, attention_maps(self, sources, targets, batch_size)):
            maps[row] = attention_map
        return maps

    # Graphs.

    def run_search(self, token_ids, search, compiler):
        """The result of the model's `generate` for ids (B, S), with the arguments in the dict `search`."""
        start, options = self._start_token_ids(search["options"])
        search = {**search, "options": options}
        if self.shortlist is not None:
            search["listed_tokens"] = self.shortlist.listed_tokens(
                token_ids,
                *vocabulary_sizes(self.model),
                options.prefix_token_ids,
                to_buckets=compiler is not None,
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
            **search,
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

    def answer_texts(self, source_ids, token_ids):
        """Ids (B, n, L) -> strings (B, n), in a graph: eager mode would need dozens of calls from Python."""
        tokenizer = self.target_tokenizer
        graph = self.graph_of(
            ("texts", tokenizer),
            lambda token_ids: to_texts(tokenizer, token_ids),
            [tf.TensorSpec([None, None, None], tf.int32)],
            depends_on_task=False,
        )
        return graph(tf.constant(token_ids))

    def conventions(self):
        """The arguments of the constructor that say what stands around texts, and the options of every search: a dict."""
        names = ("options", "start_token_id", "source_form", "languages")
        return {name: getattr(self, name) for name in names}

    def source_token_ids(self, texts, language_ids=None, longest=None):
        """In a graph or not: strings (B,) -> ragged ids (B, None), and which were cut, booleans (B,).

        `language_ids` are int32 (B,), by default those of the default language; `longest` is the most ids of a source, by
        default the model's `max_sequence_length`.
        """
        if language_ids is None and self.languages is not None:
            language_ids = tf.fill(tf.shape(texts), self.languages.default("source"))
        longest = longest or self.model.max_sequence_length
        return self.source_form.token_ids(self.source_tokenizer, texts, longest, language_ids)

    def _start_token_ids(self, options):
        """The START of each row, or one of all, and the `DecodingOptions` that are left.

        Where START is the token of a row's language, that token comes before the answer, not as its first.
        """
        first = options.first_token_id
        if self.languages is None or not self.languages.target_is_start or first is None:
            return self.start_token_id, options
        start = ops.where(first < 0, self.start_token_id, first)
        return start, dataclasses.replace(options, first_token_id=None)

    def _encode_sources(self, texts, language=None):
        """The list of ids of each source of a call, with a warning where one is cut."""
        texts = as_utf8(texts)
        language_ids = self._language_ids("source", language, len(texts))
        token_ids, is_cut = self.source_token_ids(tf.constant(texts, tf.string, [len(texts)]), language_ids)
        limit = f"the first {self.model.max_sequence_length} tokens of a source are read"
        warn_of_cuts(int(np.sum(is_cut)), len(texts), limit)
        return token_ids.to_list()

    def _language_ids(self, side, language, num_texts):
        """The id of each text's language, int32 (B,), or None if there is none; `side` is "source" or "target"."""
        if self.languages is not None:
            return self.languages.rows(side, language, num_texts)
        if language is not None:
            raise ValueError(
                f"`{side}_language` is for multilingual translators. Received: {side}_language={language!r}."
            )
        return None

    def _with_target_language(self, options, language, num_texts):
        if language is None:
            return options
        ids = self._language_ids("target", language, num_texts)
        return dataclasses.replace(options or DecodingOptions(), first_token_id=ids)

    def _started_by(self, language):
        """This translator, or one with another START, where the token of a language is one."""
        if language is None or not self.languages.target_is_start:
            return self
        return self.replaced(start_token_id=self.languages.ids[language])

    def _first_token_ids(self, language, num_texts):
        """For each text, the tokens with which its translation begins and which have no probability: a list of one or none."""
        if language is not None and self.languages is not None and self.languages.target_is_start:
            raise ValueError(
                "This translator scores translations into its default language only: a language is its START. "
                f"Received: target_language={language!r}."
            )
        options = self._with_target_language(self.options, language, num_texts)
        if options.first_token_id is None:
            return [[]] * num_texts
        return [[int(first)] for first in np.broadcast_to(options.first_token_id, [num_texts])]

    def _is_empty(self, source_ids):
        """Whether the list of ids of a source is that of an empty text."""
        return len(source_ids) <= self.num_added_tokens

    def _with_prefix(self, options, target_prefix, num_texts):
        if options is None:
            options = DecodingOptions()
        if options.prefix_token_ids is not None:
            raise ValueError("`target_prefix` is the text of `options.prefix_token_ids`: give one of them.")
        prefixes = self.target_tokenizer.encode(as_utf8(target_prefix))
        if isinstance(target_prefix, str | bytes):
            prefixes = prefixes * num_texts
        width = max(map(len, prefixes), default=0)
        prefixes = [ids + [NO_TOKEN] * (width - len(ids)) for ids in prefixes]
        return dataclasses.replace(options, prefix_token_ids=prefixes) if width else options

    def _source_spans(self, texts):
        """Lists of the byte spans of sources' ids, up to those after a text."""
        if self.source_form.text_prefix:
            raise ValueError(
                "Words are not aligned where every text has a prefix. Received such a translator."
            )
        _, spans = _with_spans(self.source_tokenizer, texts, [self.source_form.before] * len(texts))
        return spans

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


def _with_languages(signature):
    """A signature of a multilingual translator, which takes the languages too."""
    inputs = [*signature.inputs, "source_language", "target_language"]
    return dataclasses.replace(signature, inputs=inputs)


def _conventions(options=None, start_token_id=None, source_form=None, languages=None):
    """The arguments of `Translator` that `more_to_save` wrote."""
    return {
        "options": DecodingOptions(**(options or {})),
        "start_token_id": None if start_token_id is None else int(start_token_id),
        "source_form": source_form and SourceForm(**source_form),
        "languages": languages and Languages(**languages),
    }


def _current_weight_name(name):
    """The current name of a weight, given its name in version 0.1."""
    for pattern, new in _RENAMED_WEIGHTS.items():
        if re.match(pattern, name):
            return re.sub(pattern, new, name)
    return name


def _with_spans(tokenizer, texts, first):
    """Lists of ids with END for each text, after those of `first`, and lists of the byte spans of all ids but END.

    A token of `first` has the span of a text's end, where there is nothing.
    """
    ids, starts, stops = (values.to_list() for values in tokenizer.tokenize_with_offsets(texts))
    token_ids = []
    spans = []
    for text, before, row_ids, row_starts, row_stops in zip(texts, first, ids, starts, stops):
        end = len(text.encode("utf-8"))
        token_ids.append([*before, *row_ids, tokenizer.end_token_id])
        spans.append([(end, end)] * len(before) + list(zip(row_starts, row_stops)))
    return token_ids, spans
