import numpy as np
import tensorflow as tf

from keras_attn.generation import DecodingOptions
from keras_attn.models import CausalGeneration
from keras_attn.tasks.batches import of_batches, padded
from keras_attn.tasks.generative_task import GenerativeTask, columns_of
from keras_attn.tasks.generator_signatures import GeneratorSignatures
from keras_attn.tasks.search_graphs import found_in_batch
from keras_attn.tasks.task import as_given, check_vocabulary
from keras_attn.tasks.task_files import read_task, write_task
from keras_attn.tasks.token_ids import continuations
from keras_attn.text import as_utf8


class TextGenerator(GenerativeTask):
    """A language model and its tokenizer: a text in, its continuation out; in Python, in a folder, and in TF Serving.

    Every text, an empty one too, begins after one token, `start_token_id`; prompts and scores follow it. A prompt and
    its continuation together have at most `max_sequence_length` tokens, that one counted. A prompt that has no fewer
    keeps its end, so that there is room for `max_length` new tokens, or if that is more, for half of
    `max_sequence_length`.

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
            text was ended by it; or that of a line break.
        jit_compile: Boolean, whether decoding is compiled with XLA in Python: faster steps, but each new
            shape takes seconds to compile, so batches are padded to few shapes. The export is not affected.

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
        "On Keras' JAX backend a text generator continues texts, and is saved; scores, streams and exports need "
        "KERAS_BACKEND=tensorflow: load the saved text generator there."
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
    ):
        total = getattr(model, "max_sequence_length", None)
        super().__init__(
            model,
            {"tokenizer": tokenizer},
            tokenizer,
            num_beams,
            length_penalty,
            max_length,
            jit_compile,
            total and total - 1,
        )
        if hasattr(model, "vocabulary_size"):
            check_vocabulary("tokenizer", tokenizer, model.vocabulary_size)
        if total < 2 or self.max_length >= total:
            raise ValueError(
                "`max_length` must be less than `max_sequence_length` of the model, which counts the token before a text. "
                f"Received: max_length={self.max_length}, max_sequence_length={total}."
            )
        start_token_id = tokenizer.start_token_id if start_token_id is None else start_token_id
        if not 0 < start_token_id < tokenizer.vocabulary_size:
            raise ValueError(
                f"`start_token_id` must be in [1, {tokenizer.vocabulary_size}). Received: start_token_id={start_token_id}."
            )
        self.tokenizer = tokenizer
        self.start_token_id = int(start_token_id)

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

        def continue_batch(batch, of_batch):
            return found_in_batch(self, batch, of_batch, search)[1]

        answers = self._answers(token_ids, options, continue_batch, batch_size, num_workers)
        return columns_of(answers, num_return_sequences, return_scores, single)

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
            return graph(padded([token_ids[row] or [0] for row in rows])).numpy()

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

    def save(self, folder):
        """Writes the model, the tokenizer and the options to `folder`, replacing an older text generator there.

        The folder is built under a temporary name and then renamed. It holds JSON, the tokenizer's files and
        a safetensors file: nothing that could contain code. The class of a custom model must be registered
        with `keras.saving.register_keras_serializable`, also where it is loaded.

        Raises:
            ValueError: if `folder` holds anything other than a text generator, or the model is quantised or is
                not a `keras.Model`.
        """
        write_task(self, folder)

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

    def export(self, folder, examples=None, signatures=None):
        """Writes the next version of a SavedModel that takes strings and returns strings, for TF Serving.

        `keras_attn.tasks.GENERATOR_SIGNATURES` and the README next to the graph describe the signatures with all
        their inputs and outputs. Every input has the batch as its first axis, and this generator's options are the
        defaults. `serving_default` takes prompts and returns continuations, and nothing else; the others are
        `generate`, `sample` and `score`.

        A `status` is "ok", or names the deviations from the request, joined by commas: `prompt_repaired`
        (invalid UTF-8), `prompt_truncated`, `unfinished` (no END within `max_length`), `top_p_clamped` and
        the like.

        The files next to the graph are those of `Translator.export`.

        Args:
            folder: Path of the served model, for example `saved_models/play`. Its name is the model's name.
            examples: List of typical prompts, for the warm-up and the README.
            signatures: The names of the signatures to write beside `serving_default`; by default all.

        Returns:
            `pathlib.Path` of the new version folder, `folder`/1 or the next integer.

        Raises:
            ValueError: if `examples` or `signatures` are invalid.
        """
        self._check_backend()
        return self._export(folder, GeneratorSignatures(self, signatures), examples)

    def prompts(self, texts, max_length):
        """Strings (B,) and the most new tokens of each, int (B,) -> ragged prompts (B, None), and which were cut."""
        token_ids = self.tokenizer.tokenize(texts)
        start = tf.fill([token_ids.nrows(), 1], tf.constant(self.start_token_id, token_ids.dtype))
        token_ids = tf.concat([start, token_ids], axis=1)
        total = self.model.max_sequence_length
        lengths = tf.cast(token_ids.row_lengths(), tf.int32)
        room = tf.clip_by_value(max_length, 1, total // 2)
        is_cut = lengths >= total
        kept = tf.where(is_cut, total - room, lengths)
        from_end = tf.ragged.range(lengths, 0, -1)  # the first token has the number of tokens, the last has 1
        is_kept = from_end <= tf.expand_dims(kept, 1)
        return tf.ragged.boolean_mask(token_ids, is_kept), is_cut

    def found(self, token_ids, options, compiler):
        """The result of the model's `generate` for prompts (B, P); the options are those of `search_options`."""
        return self.model.generate(
            token_ids,
            end_token_id=self.tokenizer.end_token_id,
            unwritable_token_ids=self.unwritable_token_ids,
            max_total_length=self.model.max_sequence_length,
            compiler=compiler,
            **options,
        )

    def stream_inputs(self, token_ids, max_length, compiler):
        """`SearchInputs` for the continuation of prompts (B, P)."""
        return self.model.search_inputs(
            token_ids,
            end_token_id=self.tokenizer.end_token_id,
            unwritable_token_ids=self.unwritable_token_ids,
            max_length=max_length,
            max_total_length=self.model.max_sequence_length,
            compiler=compiler,
        )

    def log_probs(self, token_ids):
        """The log-probability (B, T) of each token of texts, 0 at pads."""
        start = tf.fill([tf.shape(token_ids)[0], 1], self.start_token_id)
        logits = self.model.teacher_forced(tf.concat([start, token_ids[:, :-1]], axis=1))
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(token_ids, tf.cast(logits, tf.float32))
        return tf.where(token_ids == self.model.pad_token_id, 0.0, -losses)

    def texts_of(self, prompt_ids, token_ids):
        """Lists of ids of prompts, and ids (B, n, L) after them -> strings (B, n), without the prompts."""
        graph = self.graph_of(
            "texts",
            self.continuations,
            [tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None, None], tf.int32)],
        )
        return graph(padded(prompt_ids), tf.constant(token_ids))

    def continuations(self, prompts, token_ids):
        """Prompts (B, P), padded, and ids (B, n, L) after them -> strings (B, n), without the prompts."""
        # The token before a text is no part of it. If it is END, a tokenizer would read no further.
        is_start = (tf.range(tf.shape(prompts)[1]) == 0) & (prompts == self.start_token_id)
        return continuations(self.tokenizer, tf.where(is_start, self.model.pad_token_id, prompts), token_ids)

    def _prompts(self, texts, max_length):
        """Strings, and the most new tokens, an integer or one for each -> lists of ids."""
        texts = as_utf8(texts)
        limits = np.broadcast_to(np.asarray(max_length, "int32"), [len(texts)])
        return self.prompts(tf.constant(texts, tf.string, [len(texts)]), tf.constant(limits))[0].to_list()

    def _limits(self, options, max_length):
        if options.max_length is None:
            return max_length
        return np.minimum(np.asarray(options.max_length), max_length)
