import dataclasses

import numpy as np
import tensorflow as tf

from keras_attn.files import read_json
from keras_attn.generation import DecodingOptions
from keras_attn.huggingface import load_model, read_tokenizer
from keras_attn.models import CausalGeneration
from keras_attn.tasks.attention_maps import (
    DECODER_OUTPUTS,
    STEP_OUTPUTS,
    beam_rows,
    best_tokens,
    check_same_tokens,
    continuation_maps,
    continued_log_probs,
    single_answer,
    special_tokens,
)
from keras_attn.tasks.batches import (
    NO_TOKEN,
    Buckets,
    continuations,
    for_model,
    padded,
    run_in_batches,
    warn_of_cuts,
)
from keras_attn.tasks.generative_task import GenerativeTask, answer_columns
from keras_attn.tasks.saved_tasks import json_options
from keras_attn.tasks.search_functions import (
    BEAM_OPTIONS,
    DRAWN_BEGINNINGS,
    DRAWN_SCORES,
    N_BEST,
    OPTION_INPUTS,
    SAMPLING_OPTIONS,
    SEARCHED_BEGINNINGS,
    STATUSES,
    GeneratorFunctions,
    attention_lengths,
)
from keras_attn.tasks.signatures import TEXT, UNKNOWN_CHARACTERS, Input, Signature
from keras_attn.tasks.task import PageLabels, as_given, check_vocabulary, only_text
from keras_attn.tasks.text_forms import ChatTemplate, known_template
from keras_attn.tasks.writer_checkpoints import Decoding, set_max_sequence_length, with_end
from keras_attn.text import as_utf8

_STATUS = {
    "status": '"ok", or the deviations from the request, joined by commas: `prompt_repaired` (invalid UTF-8), '
    "`prompt_truncated` (its beginning is left out), `unfinished` (no END within `max_length` or the model's longest "
    "sequence), `unknown_characters_9_of_12` (of 12 characters, 9 are not in the training data), `top_p_clamped` and the like"
}
# The most new tokens of a checkpoint without `max_new_tokens` in generation_config.json. Their windows may have 100,000 tokens.
_MAX_LENGTH = 256


class TextGenerator(GenerativeTask):
    """A language model and its tokenizer: a text in, its continuation out; in Python, in a folder, and in TF Serving.

    Every text, an empty one too, begins after one token, `start_token_id`; prompts and scores follow it. A prompt and
    its continuation together have at most `max_sequence_length` tokens, that one counted. A prompt that has no fewer
    keeps its end, so that there is room for `max_length` new tokens, or if that is more, for half of
    `max_sequence_length`; a warning says so.

    Args:
        model: A `DecoderTransformer`, or any model with the mixin `CausalGeneration`.
        tokenizer: A tokenizer of `keras_attn.text`. Tokens that stand for no text (START, pads, other control
            tokens) are never chosen, except END.
        num_beams: Integer, at most 1024, the default of calls and of the export; 1 is greedy search.
        length_penalty: Float, the default of calls and of the export.
        max_length: Integer, the largest number of new tokens, END included. Defaults to what `max_sequence_length`
            leaves.
        start_token_id: Integer, the token before the first one of a text. It should be one after which the model was
            trained to begin: START, which is the default, where there was one; END, where each document of the training
            text was ended by it; or that of a line break. -1 means none: a text begins with its own first token, and an
            empty prompt with START, or END where there is no START.
        jit_compile: Boolean, whether decoding is compiled with XLA in Python: faster steps, but each new
            shape takes seconds to compile, so batches are padded to few shapes. The export is not affected.
        options: `keras_attn.generation.DecodingOptions`, the defaults of calls and of the export, with one value for all
            texts: `stop_token_ids` and the like.
        chat_template: `keras_attn.tasks.ChatTemplate`, how the conversations of `chat` are written, or None.

    Raises:
        ValueError: if the model cannot generate, if its vocabulary differs from that of the tokenizer, or if a
            number is out of range.

    Example:

    ```python
    model = keras_attn.models.DecoderTransformer.from_sizes(259, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    generator = keras_attn.TextGenerator(model, keras_attn.text.ByteTokenizer(), max_length=8)
    continuation = generator("To be")
    texts, scores = generator(["To be", "Or not"], num_beams=2, num_return_sequences=2, return_scores=True)
    ```
    """

    name = "text generator"
    heads = ("ForCausalLM", "LMHeadModel")
    bodies = ("decoder",)
    mixin = CausalGeneration
    saved_options = (*GenerativeTask.saved_options, "start_token_id")
    signatures = {
        "serving_default": Signature(
            "the best continuation of each prompt",
            ["inputs"],
            {"outputs": "the continuation, without the prompt"},
            view="continuation",
            shown=2,
        ),
        "generate": Signature(
            "beam search with options for each prompt",
            ["inputs", *BEAM_OPTIONS],
            {**N_BEST, **_STATUS, "tokens": "the tokens of the best continuation"},
            view="continuation",
            shown=1,
            beginnings=SEARCHED_BEGINNINGS,
        ),
        "sample": Signature(
            "one continuation drawn for each prompt; the same seed draws the same, whatever the batch",
            ["inputs", *SAMPLING_OPTIONS],
            {"outputs": "the continuation, without the prompt", **DRAWN_SCORES, **_STATUS},
            view="continuation",
            beginnings=DRAWN_BEGINNINGS,
        ),
        "score": Signature(
            "how probable the model finds given texts",
            ["inputs"],
            {
                "scores": "the log-probability of the text, in nats, without END",
                "token_scores": "the log-probability of each token",
                "tokens": "the tokens",
                "status": '"ok", or joined by commas: `text_repaired` (invalid UTF-8), `text_truncated` (only its beginning is '
                "scored), `unknown_characters_9_of_12` (of 12 characters, 9 are not in the training data)",
            },
            shown=1,
        ),
    }
    signature_inputs = {
        "inputs": Input("the texts: prompts to continue, or texts to score", widget=TEXT),
        **OPTION_INPUTS,
    }
    served_functions = GeneratorFunctions
    export_description = "A language model that takes prompts and returns their continuations, for TF Serving: the tokenizer is inside."
    page_labels = PageLabels("Prompt", "Type how it begins", "Continuation")
    asked_signatures = ("generate",)
    statuses = {
        "prompt_truncated": "The prompt was too long. Its beginning was left out.",
        "prompt_repaired": "The prompt held bytes that are not UTF-8. They were replaced.",
        **UNKNOWN_CHARACTERS,
        **STATUSES,
    }
    show_options = ("num_beams", "max_length")
    needs_tensorflow = (
        "On Keras' JAX and PyTorch backends a text generator continues texts, and is saved; scores, streams and exports "
        "need KERAS_BACKEND=tensorflow: load the saved text generator there."
    )

    def __init__(
        self,
        model,
        tokenizer,
        num_beams=1,
        length_penalty=1.0,
        max_length=None,
        start_token_id=None,
        jit_compile=False,
        options=None,
        chat_template=None,
    ):
        super().__init__(
            model,
            {"tokenizer": tokenizer},
            tokenizer,
            num_beams,
            length_penalty,
            max_length,
            jit_compile,
            options,
        )
        if hasattr(model, "vocabulary_size"):
            check_vocabulary("tokenizer", tokenizer, model.vocabulary_size)
        total = model.max_sequence_length
        if total < 2 or self.max_length >= total:
            raise ValueError(
                "`max_length` must be less than `max_sequence_length` of the model, which counts the token before a text. "
                f"Received: max_length={self.max_length}, max_sequence_length={total}."
            )
        if start_token_id is None:
            start_token_id = tokenizer.start_token_id
        if not NO_TOKEN <= start_token_id < tokenizer.vocabulary_size:
            raise ValueError(
                f"`start_token_id` must be in [-1, {tokenizer.vocabulary_size}). Received: start_token_id={start_token_id}."
            )
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.start_token_id = int(start_token_id)

    @property
    def longest(self):
        """Integer, the most tokens that the model can write after the one before a text, END included."""
        return self.model.max_sequence_length - 1

    def __call__(
        self,
        texts,
        num_beams=None,
        length_penalty=None,
        max_length=None,
        num_return_sequences=None,
        return_scores=False,
        options=None,
        batch_size=64,
        num_workers=None,
    ):
        """Continues a string, or each of a list of strings.

        Args:
            texts: String, or list of strings, the prompts. Invalid text is repaired.
            num_beams, length_penalty, max_length: As in the constructor, whose values are the defaults.
            num_return_sequences: Integer n, at most `num_beams`: each answer is then a list of n
                continuations, best first (fewer if the search found fewer). With sampling, n draws.
            return_scores: Boolean, whether scores, log-probability / length ** length_penalty of the new tokens, are
                returned too.
            options: `keras_attn.generation.DecodingOptions`, each with one value for all texts or one per
                text. With a sampling option (`temperature`, `top_p`, `seed`, ...) continuations are drawn.
            batch_size: Integer, the number of texts continued at once; texts of similar length are batched
                together.
            num_workers: Integer, the number of batches continued at the same time, by threads. Defaults to
                the number of processors, or 1 with a GPU.

        Returns:
            The continuations, without the prompts; with scores, a tuple of them and the scores.

        Raises:
            ValueError: for an option out of range, or with another number of values than there are texts.
        """
        single = isinstance(texts, str | bytes)
        num_answers = num_return_sequences or None  # None: one answer without its score
        if num_answers is None and return_scores:
            num_answers = 1
        search = self.search_options(num_beams, length_penalty, max_length, num_answers)
        token_ids = self._prompts(texts, _limits(options, search["max_length"]))
        answers = self._answers(token_ids, search, options, batch_size, num_workers)
        return answer_columns(answers, num_return_sequences, return_scores, single)

    def chat(self, messages, num_beams=None, length_penalty=None, max_length=None, options=None):
        """The answer to a conversation.

        Args:
            messages: List of dicts with the strings `role` ("user", "assistant", or where the template has it "system")
                and `content`, the last of them a user's.
            num_beams, length_penalty, max_length, options: As in a call.

        Returns:
            A string.

        Raises:
            ValueError: if the generator has no chat template, or the conversation does not fit it.

        Example:

        ```python
        template = keras_attn.tasks.ChatTemplate({"user": ("Q: ", "\\n")}, answer="A: ")
        model = keras_attn.models.DecoderTransformer.from_sizes(259, 1, hidden_dim=8, num_heads=2, intermediate_dim=9)
        generator = keras_attn.TextGenerator(
            model, keras_attn.text.ByteTokenizer(), max_length=8, chat_template=template
        )
        answer = generator.chat([{"role": "user", "content": "Why?"}])
        ```
        """
        if self.chat_template is None:
            raise ValueError(
                "This text generator has no chat template: its checkpoint has none, or one that is not among the known "
                "(ChatML, Llama 2 and 3, Gemma, Mistral). Write the prompt yourself, or give a `chat_template`."
            )
        search = self.search_options(num_beams, length_penalty, max_length, None)
        roles = getattr(self.tokenizer, "special_tokens", {})
        tokens = {name: roles.get(f"{name}_token", "") for name in ("bos", "eos")}
        text = self.chat_template.text(messages, tokens)
        # The template has written START, where there is one.
        [token_ids] = self._prompts([text], _limits(options, search["max_length"]), has_start=False)
        [answer] = self._answers([token_ids], search, options)
        return answer.texts[0]

    def stream(self, text, max_length=None):
        """Continues one text greedily and yields the continuation piece by piece, while it is decoded.

        Args:
            text: String.
            max_length: Integer, as in the constructor.

        Returns:
            A generator of strings, none of them empty, which together are the continuation with `num_beams=1`.

        Raises:
            ValueError: if `max_length` is not positive, or not less than `max_sequence_length`.

        Example:

        ```python
        generator = keras_attn.TextGenerator.load("runs/play")
        for piece in generator.stream("To be"):
            print(piece, end="", flush=True)
        ```
        """

        def start(most):
            [token_ids] = self._prompts(text, most)
            return token_ids, min(most, self.model.max_sequence_length - len(token_ids))

        return self._stream(text, start, max_length)

    def score(self, texts, batch_size=64, return_token_scores=False):
        """The log-probability of texts: how likely the model is to begin with them.

        Args:
            texts: String, or list of strings.
            batch_size: Integer.
            return_token_scores: Boolean, whether the scores of the tokens are returned too.

        Returns:
            The sum of the log-probabilities of a text's tokens, in nats, without END; 0 for an empty text. A float, or a
            list of floats. With `return_token_scores`, a tuple of that and, for each text, a list of pairs (token,
            log-probability).

        Raises:
            ValueError: if a text has more than `max_sequence_length` tokens.

        Example:

        ```python
        generator = keras_attn.TextGenerator.load("runs/play")
        score, tokens = generator.score("To be, or not to be", return_token_scores=True)
        least_expected = min(tokens, key=lambda token: token[1])
        ```
        """
        single = isinstance(texts, str | bytes)
        token_ids = self.tokenizer.encode(as_utf8(texts))
        longest = max(map(len, token_ids), default=0)
        if longest > self.model.max_sequence_length:
            raise ValueError(
                f"A text has {longest} tokens; `max_sequence_length` of the model is "
                f"{self.model.max_sequence_length}. Leave it out or shorten it."
            )
        graph = self.graph_of("log_probs", self.log_probs, [tf.TensorSpec([None, None], tf.int32)])

        def answer(rows):
            # A batch of empty texts needs a column.
            return graph(padded([token_ids[row] or [NO_TOKEN] for row in rows])).numpy()

        padded_log_probs = run_in_batches(answer, token_ids, batch_size)
        log_probs = [row[: len(ids)].tolist() for ids, row in zip(token_ids, padded_log_probs)]
        columns = [list(map(sum, log_probs))]
        if return_token_scores:
            token_scores = []
            for ids, row in zip(token_ids, log_probs):
                token_scores.append(list(zip(self.tokenizer.token_strings(ids), row)))
            columns.append(token_scores)
        return as_given(columns, single)

    # Saved folders, checkpoints and exports.

    def more_to_save(self):
        more = {"decoding": json_options(self)}
        if self.chat_template is not None:
            more["chat_template"] = dataclasses.asdict(self.chat_template)
        return {name: value for name, value in more.items() if value}

    @classmethod
    def from_saved(cls, config, folder):
        template = config.get("chat_template")
        return {
            "options": DecodingOptions(**config.get("decoding", {})),
            "chat_template": template and ChatTemplate(**template),
        }

    @classmethod
    def read_checkpoint(
        cls,
        folder,
        max_length=None,
        num_beams=None,
        length_penalty=None,
        jit_compile=False,
        dtype=None,
        ignored_fields=(),
        max_sequence_length=None,
    ):
        """The `TextGenerator` of a gpt2, llama, mistral, qwen2, qwen3, gemma2 or gemma3_text checkpoint.

        Answers are searched for, greedily unless the files name a number of beams: `do_sample` is not followed.

        Args:
            folder: `pathlib.Path`.
            max_length, num_beams, length_penalty: As in `TextGenerator`; by default what generation_config.json says, and
                256 new tokens if it says nothing.
            jit_compile: As in `TextGenerator`.
            dtype, ignored_fields: As in `keras_attn.huggingface.load_model`; fields of generation_config.json may be
                ignored too.
            max_sequence_length: Integer, the most tokens of a prompt and its continuation, at most the number of positions
                where these are in a table. Defaults to what config.json says.

        Raises:
            FileNotFoundError, ValueError: as `load_model` and `read_tokenizer`, if the template of the tokenizer puts
                anything but one token before a text, or for fields of generation_config.json that would change the answers
                and are not obeyed.
        """
        config = read_json(folder / "config.json")
        decoding = Decoding.read(folder, config, "TextGenerator", ignored_fields)
        tokenizer = with_end(read_tokenizer(folder, ignored_fields=ignored_fields), decoding.end_token_ids)
        start = _start_token_id(tokenizer)
        model = load_model(folder, dtype=dtype, ignored_fields=ignored_fields)
        total = set_max_sequence_length(model, max_sequence_length)
        given = {"max_length": max_length, "num_beams": num_beams, "length_penalty": length_penalty}
        return cls(
            model,
            tokenizer,
            start_token_id=start,
            jit_compile=jit_compile,
            options=decoding.options(tokenizer.end_token_id),
            chat_template=known_template(_chat_template(folder)),
            **decoding.search(given, max(1, min(_MAX_LENGTH, total // 2)), total - 1),
        )

    def attention_signature(self):
        return Signature(
            "what every head looks at in a prompt and its best continuation",
            ["inputs"],
            {
                "outputs": "the continuation, without the prompt",
                **DECODER_OUTPUTS,
                **STEP_OUTPUTS,
                **_STATUS,
            },
        )

    def xla_buckets(self, batch_sizes, lengths):
        # A prompt leaves room for a new token.
        longest = self.model.max_sequence_length - 1
        meaning = "model's max_sequence_length - 1"
        return Buckets(batch_sizes, lengths, longest, meaning, frozen=self.model)

    # Pages of attention.

    def attended(self, content, others, num_beams=None, max_length=None):
        if not isinstance(content, str | bytes):
            raise ValueError(f"`text` must be one string. Received: {type(content).__name__}.")
        if num_beams is None:
            num_beams = self.num_beams
        search = self.search_options(num_beams, None, max_length, num_beams)
        [prompt] = self._prompts(content, search["max_length"])
        prompt_tokens = self.tokenizer.token_strings(prompt)
        for name, other in others.items():
            [other_prompt] = other._prompts(content, search["max_length"])
            check_same_tokens(name, prompt_tokens, self.tokenizer.token_strings(other_prompt))
        [answer] = self._answers([prompt], search)
        answers = list(zip(map(self._trimmed, answer.token_ids), answer.scores))
        token_ids = prompt + answers[0][0]
        compared = {name: continuation_maps(other, token_ids)[0] for name, other in others.items()}
        return {**self.explored(prompt, answers), "title": only_text(content)}, compared

    def explored(self, prompt, answers):
        """The arguments of `keras_attn.plots.explore` for the ids of a prompt, and pairs of ids and a score, the best first."""
        token_ids = prompt + answers[0][0]
        maps, tokens, logits = continuation_maps(self, token_ids)
        shown = {
            "maps": maps,
            "tokens": tokens,
            "steps": best_tokens(self.tokenizer, logits, [*token_ids[1:], None]),
            "special_tokens": special_tokens(self.tokenizer),
        }
        if len(answers) > 1:
            log_probs = continued_log_probs(self, prompt, answers)
            shown["beams"] = beam_rows(self.tokenizer, answers, log_probs)
        return shown

    def _attention_answers(self, texts):
        answers = []
        longest, num_new = attention_lengths(self)
        search = self.search_options(max_length=num_new)
        for text in texts:
            [prompt] = self.prompts(tf.constant([text]), num_new)[0].to_list()
            prompt = prompt[num_new - longest :]
            [answer] = self._answers([prompt], search)
            continued = self._trimmed(answer.token_ids[0])
            maps, tokens, _ = continuation_maps(self, prompt + continued, dtype="float32")
            answers.append(single_answer(maps, tokens))
        return {"inputs": list(texts)}, answers

    # Graphs.

    def prompts(self, texts, max_length, has_start=True):
        """Strings (B,) and the most new tokens of each, int (B,) -> ragged prompts (B, None), and which were cut."""
        token_ids = self.tokenizer.tokenize(texts)
        if has_start:
            token_ids = tf.concat([self._before(token_ids), token_ids], axis=1)
        total = self.model.max_sequence_length
        lengths = tf.cast(token_ids.row_lengths(), tf.int32)
        room = tf.clip_by_value(max_length, 1, total // 2)
        is_cut = lengths >= total
        kept = tf.where(is_cut, total - room, lengths)
        from_end = tf.ragged.range(lengths, 0, -1)  # the first token has the number of tokens, the last has 1
        is_kept = from_end <= tf.expand_dims(kept, 1)
        return tf.ragged.boolean_mask(token_ids, is_kept), is_cut

    def _before(self, token_ids):
        """Ragged ids (B, None): START of each text, or only of an empty one if texts have none."""
        if self.start_token_id != NO_TOKEN:
            return tf.fill([token_ids.nrows(), 1], tf.constant(self.start_token_id, token_ids.dtype))
        start = self.tokenizer.start_token_id
        if start is None:
            start = self.tokenizer.end_token_id
        is_empty = tf.cast(token_ids.row_lengths() == 0, tf.int64)
        ids = tf.fill([tf.reduce_sum(is_empty)], start)
        return tf.RaggedTensor.from_row_lengths(tf.cast(ids, token_ids.dtype), is_empty)

    def run_search(self, token_ids, search, compiler):
        """The result of the model's `generate` for prompts (B, P), with the arguments in the dict `search`."""
        return self.model.generate(**self._search_arguments(token_ids), compiler=compiler, **search)

    def stream_inputs(self, token_ids, max_length, limit, compiler):
        """`SearchInputs` for the continuation of prompts (B, P)."""
        arguments = self._search_arguments(token_ids)
        return self.model.search_inputs(**arguments, max_length=max_length, limit=limit, compiler=compiler)

    def _search_arguments(self, token_ids):
        """What every search for a continuation of prompts (B, P) is given."""
        token_ids, mask = for_model(token_ids)
        return {
            "prompt_token_ids": token_ids,
            "padding_mask": mask,
            "pad_token_id": NO_TOKEN,
            "end_token_id": self.tokenizer.end_token_id,
            "unwritable_token_ids": self.unwritable_token_ids,
            "max_total_length": self.model.max_sequence_length,
        }

    def log_probs(self, token_ids):
        """The log-probability (B, T) of each token of texts, 0 after the last, and at the first if nothing is before it."""
        known = tf.maximum(token_ids, 0)
        has_start = self.start_token_id != NO_TOKEN
        before = tf.fill([tf.shape(token_ids)[0], 1], self.start_token_id)
        read = tf.concat([before, known[:, :-1]], axis=1) if has_start else known
        logits = tf.cast(self.model.teacher_forced(read), tf.float32)
        if not has_start:
            logits = tf.concat([tf.zeros_like(logits[:, :1]), logits[:, :-1]], axis=1)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(known, logits)
        is_given = (token_ids == NO_TOKEN) | ((tf.range(tf.shape(token_ids)[1]) == 0) & (not has_start))
        return tf.where(is_given, 0.0, -losses)

    def answer_texts(self, prompt_ids, token_ids):
        """Lists of ids of prompts, and ids (B, n, L) after them -> strings (B, n), without the prompts."""
        graph = self.graph_of(
            ("texts", self.tokenizer, self.start_token_id),
            self.continuations,
            [tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None, None], tf.int32)],
            depends_on_task=False,
        )
        return graph(padded(prompt_ids), tf.constant(token_ids))

    def continuations(self, prompts, token_ids):
        """Prompts (B, P), filled, and ids (B, n, L) after them -> strings (B, n), without the prompts."""
        # The token before a text is no part of it. If it is END, a tokenizer would read no further.
        is_start = (tf.range(tf.shape(prompts)[1]) == 0) & (prompts == self.start_token_id)
        return continuations(self.tokenizer, tf.where(is_start, NO_TOKEN, prompts), token_ids)

    def _prompts(self, texts, max_length, has_start=True):
        """Strings, and the most new tokens, an integer or one for each -> lists of ids."""
        texts = as_utf8(texts)
        limits = np.broadcast_to(np.asarray(max_length, "int32"), [len(texts)])
        texts = tf.constant(texts, tf.string, [len(texts)])
        token_ids, is_cut = self.prompts(texts, tf.constant(limits), has_start)
        limit = (
            f"of {self.model.max_sequence_length} tokens or more the end is read, with room for the answer"
        )
        warn_of_cuts(int(np.sum(is_cut)), len(limits), limit)
        return token_ids.to_list()


def _limits(options, max_length):
    """The most new tokens: an integer, or one for each prompt if the options have such."""
    if options is None or options.max_length is None:
        return max_length
    return np.minimum(np.asarray(options.max_length), max_length)


def _chat_template(folder):
    """The template of conversations, or None."""
    path = folder / "chat_template.jinja"  # where newer files have it
    if path.is_file() and path.stat().st_size < 10**6:
        return path.read_text(encoding="utf-8")
    path = folder / "tokenizer_config.json"
    return read_json(path).get("chat_template") if path.is_file() else None


def _start_token_id(tokenizer):
    """The token before every text, or `NO_TOKEN`."""
    before, after = tokenizer.around
    if len(before) > 1 or after:
        raise ValueError(
            "The tokenizer of a language model may put one token before a text, and none after it. "
            f"Received: {len(before)} before, {len(after)} after."
        )
    return before[0] if before else NO_TOKEN
