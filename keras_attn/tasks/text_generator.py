import dataclasses

import numpy as np
import tensorflow as tf

from keras_attn.generation import DecodingOptions
from keras_attn.models import CausalGeneration
from keras_attn.tasks.batches import of_batches, padded, warn_of_cuts
from keras_attn.tasks.buckets import BATCH_SIZES
from keras_attn.tasks.chat_templates import ChatTemplate
from keras_attn.tasks.generative_task import GenerativeTask, columns_of
from keras_attn.tasks.generator_signatures import (
    GeneratorSignatures,
    XlaGeneratorSignatures,
    attention_lengths,
)
from keras_attn.tasks.search_graphs import found_in_batch
from keras_attn.tasks.showing import (
    attention_answer,
    beside,
    check_same_tokens,
    compared_tasks,
    continuation_maps,
    explore_continuation,
)
from keras_attn.tasks.task import as_given, check_vocabulary
from keras_attn.tasks.task_files import decoding_of, read_task, write_task
from keras_attn.tasks.token_ids import NO_TOKEN, continuations, for_model
from keras_attn.tasks.translations import trimmed
from keras_attn.text import as_utf8


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

    name, mixin = "text generator", CausalGeneration
    saved_options = (*GenerativeTask.saved_options, "start_token_id")
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
        start_token_id = tokenizer.start_token_id if start_token_id is None else start_token_id
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
        num_answers = num_return_sequences or (1 if return_scores else None)
        search = self.search_options(num_beams, length_penalty, max_length, num_answers)
        options = DecodingOptions() if options is None else options
        token_ids = self._prompts(texts, self._limits(options, search["max_length"]))
        answers = self._continued(token_ids, search, options, batch_size, num_workers)
        return columns_of(answers, num_return_sequences, return_scores, single)

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
        options = DecodingOptions() if options is None else options
        roles = getattr(self.tokenizer, "special_tokens", {})
        text = self.chat_template.text(
            messages, {name: roles.get(f"{name}_token", "") for name in ("bos", "eos")}
        )
        # The template has written START, where there is one.
        token_ids = self._prompts([text], self._limits(options, search["max_length"]), has_start=False)
        [answer] = self._continued(token_ids, search, options, batch_size=1, num_workers=1)
        return answer.texts[0]

    def _continued(self, token_ids, search, options, batch_size, num_workers):
        def continue_batch(batch, of_batch):
            return found_in_batch(self, batch, of_batch, search)[1]

        return self._answers(token_ids, options, continue_batch, batch_size, num_workers)

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

        return self._stream(text, start, max_length, self.model.max_sequence_length - 1)

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

        def of_batch(rows):
            return graph(padded([token_ids[row] or [NO_TOKEN] for row in rows])).numpy()

        log_probs = [
            row[: len(ids)].tolist()
            for ids, row in zip(token_ids, of_batches(of_batch, token_ids, batch_size))
        ]
        columns = [[sum(of_tokens) for of_tokens in log_probs]]
        if return_token_scores:
            columns.append(
                [
                    list(zip(self.tokenizer.token_strings(ids), of_tokens))
                    for ids, of_tokens in zip(token_ids, log_probs)
                ]
            )
        return as_given(columns, single)

    def show(self, text, num_beams=None, max_length=None, title=None, path=None, compare=None, name="this"):
        """A page on which a person explores what the model attends to in a prompt and in its continuation.

        It shows the attention layer by layer and head by head, for each step the five best next tokens, and the answers of a
        beam search as a tree.

        Args:
            text: String, the prompt.
            num_beams, max_length: As in the constructor, whose values are the defaults.
            title: String above the page. Defaults to the prompt.
            path: Where to write the page, as `.html`.
            compare: Another text generator of the same tokens, or a mapping from names to such, to show beside this one. All
                of them read the prompt and this one's continuation. By default it is "the other".
            name: String, the name of this generator beside those of `compare`.

        Returns:
            `keras_attn.plots.Explorer`: a notebook shows it, and `save` writes it.

        Raises:
            ValueError: if the prompt and its continuation have more tokens than the page can have, or `compare` has other
                tokens.

        Example:

        ```python
        generator = keras_attn.TextGenerator.load("runs/play")
        explorer = generator.show("To be", max_length=8)
        ```
        """
        self._check_backend()
        if not isinstance(text, str | bytes):
            raise ValueError(f"`text` must be one string. Received: {type(text).__name__}.")
        others = compared_tasks(self, compare)
        num_beams = self.num_beams if num_beams is None else num_beams
        search = self.search_options(num_beams, None, max_length, num_beams)
        [prompt] = self._prompts(text, search["max_length"])
        for other_name, other in others.items():
            [of_other] = other._prompts(text, search["max_length"])
            check_same_tokens(other_name, *map(self.tokenizer.token_strings, (prompt, of_other)))
        found, [answer] = found_in_batch(self, [prompt], DecodingOptions().arrays_of([0], 1), search)
        answers = list(zip(trimmed(self, found[0]), answer.scores))
        [title] = [title] if title is not None else [as_utf8(text)[0].decode()]
        token_ids = [*prompt, *answers[0][0]]
        compared = {
            other_name: continuation_maps(other, token_ids)[0] for other_name, other in others.items()
        }
        return explore_continuation(self, prompt, answers, title, path, **beside(compared, name))

    def save(self, folder):
        """Writes the model, the tokenizer and the options to `folder`, replacing an older text generator there.

        The folder is built under a temporary name and then renamed. It holds JSON, the tokenizer's files and
        a safetensors file: nothing that could contain code. LoRA is merged in what is written. The class of a custom
        model must be registered with `keras.saving.register_keras_serializable`, also where it is loaded.

        Raises:
            ValueError: if `folder` holds anything other than a text generator, or the model is quantised to other than int8 or bfloat16 or is
                not a `keras.Model`.
        """
        write_task(self, folder)

    def more_to_save(self):
        template = self.chat_template and dataclasses.asdict(self.chat_template)
        more = {"decoding": decoding_of(self), "chat_template": template}
        return {name: value for name, value in more.items() if value}

    @classmethod
    def from_saved(cls, config):
        template = config.get("chat_template")
        return {
            "options": DecodingOptions(**config.get("decoding", {})),
            "chat_template": template and ChatTemplate(**template),
        }

    @classmethod
    def load(cls, folder):
        """Reads the text generator that `save` wrote; it never runs code from the folder.

        Args:
            folder: Path of the text generator, or of the run that made it.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: if one is damaged, or the weights do not fit the configuration.
        """
        return read_task(cls, folder)

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

        `keras_attn.tasks.GENERATOR_SIGNATURES` and the README next to the graph describe the signatures with all
        their inputs and outputs. Every input has the batch as its first axis, and this generator's options are the
        defaults. `serving_default` takes prompts and returns continuations, and nothing else; the others are
        `generate`, `sample` and `score`.

        A `status` is "ok", or names the deviations from the request, joined by commas: `prompt_repaired`
        (invalid UTF-8), `prompt_truncated`, `unfinished` (no END within `max_length`), `top_p_clamped` and
        the like.

        The files next to the graph are those of `Translator.export`.

        With `xla=True`, the export is a different model, which needs its own folder. It has only `serving_default`, with its
        model part compiled with XLA, which the server must enable (`--xla_cpu_compilation_enabled`). Batches are padded
        inside the graph, so only the shapes of `batch_sizes` and `lengths` occur, and each of them is warmed up.

        Args:
            folder: Path of the served model, for example `saved_models/play`. Its name is the model's name.
            examples: List of typical prompts, for the warm-up and the README.
            xla: Boolean, whether to export a model that XLA compiles.
            batch_sizes: With `xla`, increasing integers; larger batches are split into batches of the last size.
            lengths: With `xla`, increasing integers, the number of tokens of a prompt, with the one before every text. The
                last is the model's `max_sequence_length` - 1. Defaults to the powers of two from 16.
            signatures: Without `xla`, the names of the signatures to write beside `serving_default`; by default all.
            quantization: `"bfloat16"` or `"int8"`, as in `Translator.export`.
            attention: Without `xla`, whether to write a signature `attention` too: the scores of every head for a prompt and
                its continuation, which `keras_attn.plots.explore_answer` makes a page of.

        Returns:
            `pathlib.Path` of the new version folder, `folder`/1 or the next integer.

        Raises:
            ValueError: if `examples`, `batch_sizes`, `lengths`, `signatures` or `quantization` are invalid, or a model with
                LoRA is to be quantised, or for int8 without `xla` on a machine that cannot compute it, or the model has no
                attention that an export can give.
        """
        self._check_export(xla, signatures, attention, batch_sizes, lengths)
        served = self.quantized(quantization, xla)
        chosen = (
            XlaGeneratorSignatures(served, batch_sizes, lengths)
            if xla
            else GeneratorSignatures(served, signatures, attention)
        )
        return served._export(folder, chosen, examples, unquantized=self)

    def _attention_answers(self, texts):
        answers = []
        longest, num_new = attention_lengths(self)
        search = self.search_options(max_length=num_new)
        for text in texts:
            [prompt] = self.prompts(tf.constant([text]), num_new)[0].to_list()
            prompt = prompt[num_new - longest :]
            found, _ = found_in_batch(self, [prompt], DecodingOptions().arrays_of([0], 1), search)
            [continued] = trimmed(self, found[:, 0])
            maps, tokens, _ = continuation_maps(self, [*prompt, *continued], dtype="float32")
            answers.append(attention_answer(maps, tokens))
        return {"inputs": list(texts)}, answers

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
        starts = (self.tokenizer.start_token_id, self.tokenizer.end_token_id)
        is_empty = tf.cast(token_ids.row_lengths() == 0, tf.int64)
        ids = tf.fill([tf.reduce_sum(is_empty)], next(start for start in starts if start is not None))
        return tf.RaggedTensor.from_row_lengths(tf.cast(ids, token_ids.dtype), is_empty)

    def found(self, token_ids, options, compiler):
        """The result of the model's `generate` for prompts (B, P); the options are those of `search_options`."""
        return self.model.generate(**self._search_arguments(token_ids), compiler=compiler, **options)

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
        before = tf.fill([tf.shape(token_ids)[0], int(has_start)], self.start_token_id)
        logits = self.model.teacher_forced(tf.concat([before, known[:, :-1] if has_start else known], axis=1))
        logits = tf.cast(logits, tf.float32)
        if not has_start:
            logits = tf.concat([tf.zeros_like(logits[:, :1]), logits[:, :-1]], axis=1)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(known, logits)
        is_given = (token_ids == NO_TOKEN) | ((tf.range(tf.shape(token_ids)[1]) == 0) & (not has_start))
        return tf.where(is_given, 0.0, -losses)

    def texts_of(self, prompt_ids, token_ids):
        """Lists of ids of prompts, and ids (B, n, L) after them -> strings (B, n), without the prompts."""
        graph = self.graph_of(
            ("texts", self.tokenizer, self.start_token_id),
            self.continuations,
            [tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None, None], tf.int32)],
            of_task=False,
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

    def _limits(self, options, max_length):
        if options.max_length is None:
            return max_length
        return np.minimum(np.asarray(options.max_length), max_length)
