import collections

import tensorflow as tf

from keras_attn.checks import check_positive
from keras_attn.models import EncoderWithHead
from keras_attn.tasks.encoder_task import STATUS, EncoderFunctions, EncoderTask
from keras_attn.tasks.signatures import Signature
from keras_attn.tasks.task import PageLabels

Fill = collections.namedtuple("Fill", ["token", "score", "text"])
Fill.__doc__ = """What may stand in the place of a mask.

token: String, the token as text.
score: Float, its probability.
text: String, the whole text with this token, and with the best token in the place of each other mask.
"""


class FillMaskFunctions(EncoderFunctions):
    """The graph functions of a `FillMask`."""

    def example_inputs(self, signature_name, examples, ask):
        """The texts, with a mask at the end of those that have none."""
        mask = self.task.mask_token
        return {"inputs": [text if mask in text else f"{text} {mask}" for text in examples]}

    def serving_default(self, inputs):
        """Each text with its masks filled."""
        return {"outputs": self.task_answers(inputs)["outputs"]}

    def fill(self, inputs):
        """The best tokens for each mask."""
        return self.task_answers(inputs)

    def limits(self):
        return [
            *super().limits(),
            f"A mask is written {self.task.mask_token}; the {self.task.top_k} best tokens for each are given.",
        ]


class FillMask(EncoderTask):
    """A masked language model and its tokenizer: a text with masks in, what may stand there out.

    Args:
        model: An `EncoderWithHead` with a logit of each token of the vocabulary for each token, as a
            `MaskedLanguageModelHead` gives: the head must read each token alone.
        tokenizer: A tokenizer of `keras_attn.text` that reads the mask in a text as one token.
        top_k: Integer, the most tokens for a mask.
        mask_token: String, the mask in texts. Defaults to the tokenizer's `special_tokens["mask_token"]`.
        max_length: Integer, the most tokens of a text, special tokens counted; what is longer is cut, with its masks.
            Defaults to what the model and the tokenizer allow.
        jit_compile: Boolean, whether the model is compiled with XLA in Python, for few shapes that batches are padded to. Each
            takes seconds to compile. The export is not affected.

    Raises:
        ValueError: if the tokenizer has no mask or does not read it as one token, its vocabulary is greater than the
            model's, or a number is out of range.

    Example:

    ```python
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "runs"]
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    description = {
        "model": {"type": "WordPiece", "vocab": {word: i for i, word in enumerate(words)}, "unk_token": "[UNK]"},
        "added_tokens": [{"id": 4, "content": "[MASK]", "special": True, **flags}],
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece"},
    }
    tokenizer = keras_attn.text.PipelineTokenizer(description, names)
    encoder = keras_attn.models.EncoderTransformer.from_sizes(8, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    head = keras_attn.layers.MaskedLanguageModelHead(encoder.embedding.token)
    fill_mask = keras_attn.FillMask(keras_attn.models.EncoderWithHead(encoder, head), tokenizer, top_k=3)
    [fills] = fill_mask("the [MASK] runs")
    print([(fill.token, fill.score, fill.text) for fill in fills])
    text = fill_mask.filled("the [MASK] runs")
    ```

    Reference: [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 3.1.
    """

    name = "mask filler"
    heads = ("ForMaskedLM",)
    mixin = EncoderWithHead
    saved_options = ("top_k", "mask_token", "max_length")
    signatures = {
        "serving_default": Signature(
            "each text with its masks filled",
            ["inputs"],
            {"outputs": "the text with the best token in the place of each mask"},
            view="text",
            shown=1,
        ),
        "fill": Signature(
            "the best tokens for each mask of each text",
            ["inputs"],
            {
                "outputs": "the text with the best token in the place of each mask",
                "tokens": 'the best tokens for each mask, best first; "" past the last mask',
                "scores": "their probabilities; 0 past the last mask",
                "texts": 'the text with each of them, and with the best in other places; "" past the last mask',
                **STATUS,
            },
            view="fills",
            shown=1,
        ),
    }
    served_functions = FillMaskFunctions
    export_description = (
        "A model that takes texts with masks and fills them, for TF Serving: the tokenizer is inside."
    )
    page_labels = PageLabels("Text", "Type a text with a mask", "Filled")
    asked_signatures = ("fill",)

    def __init__(self, model, tokenizer, top_k=5, mask_token=None, max_length=None, jit_compile=False):
        super().__init__(model, tokenizer, max_length, jit_compile)
        mask_token = mask_token or getattr(tokenizer, "special_tokens", {}).get("mask_token")
        ids = tokenizer.encode([mask_token])[0] if mask_token else []
        if len(ids) != 1:
            raise ValueError(
                "The tokenizer must read `mask_token` as one token. "
                f"Received: mask_token={mask_token!r}, whose ids are {ids}."
            )
        self.mask_token = mask_token
        [self._mask_token_id] = ids
        self.top_k = check_positive("top_k", top_k)
        if self.top_k > tokenizer.vocabulary_size:
            raise ValueError(
                f"`top_k` must be at most {tokenizer.vocabulary_size}, the tokenizer's ids. Received: top_k={top_k}."
            )

    def __call__(self, texts, batch_size=64, num_workers=None):
        """What may stand in the place of the masks of a string, or of each of a list of strings.

        Args:
            texts: String, or list of strings. Invalid text is repaired.
            batch_size: Integer, the number of texts in one batch; texts of similar length are batched together.
            num_workers: Integer, the number of batches at the same time, by threads. Defaults to the number of
                processors, or 1 with a GPU.

        Returns:
            For each mask of the text the list of its `top_k` best `Fill`s; for a list, such a list for each text. A text
            without a mask has an empty list.
        """
        answers = [_row_fills(row) for row in self.answer_rows([texts], batch_size, num_workers)]
        return answers[0] if isinstance(texts, str | bytes) else answers

    def filled(self, texts, batch_size=64):
        """The texts with the best token in the place of each mask, as the tokenizer writes tokens.

        Args:
            texts: String, or list of strings.
            batch_size: Integer, as in a call.

        Returns:
            A string, or a list of strings.
        """
        answers = [row["outputs"].decode("utf-8") for row in self.answer_rows([texts], batch_size, None)]
        return answers[0] if isinstance(texts, str | bytes) else answers

    def _default_answers(self, texts):
        return self.filled(texts)

    def answers(self, texts):
        """Strings (B,) -> the columns of `fill` (B, most masks, top_k), the texts filled, and whether a text was cut."""
        framed = self.framed(texts)
        inputs = self.model_inputs(framed)
        is_mask = (inputs["token_ids"] == self._mask_token_id) & inputs["padding_mask"]
        sequence = self.computed(
            lambda inputs: self.encoder.sequence_and_mask(inputs)[0], inputs, None, self.encoder.hidden_dim
        )
        # The head is large, so it reads the masks alone: each is a sequence of one token.
        masks = tf.boolean_mask(sequence, is_mask)[:, tf.newaxis]
        logits = self.model.head(masks)[:, 0, : self.tokenizer.vocabulary_size]
        scores, tokens = tf.math.top_k(tf.nn.softmax(tf.cast(logits, tf.float32)), self.top_k)
        # The best token in the place of each mask: as ragged ids, and for each candidate with that one changed.
        places = tf.where(framed.token_ids.values == self._mask_token_id)
        best = framed.token_ids.with_values(
            tf.tensor_scatter_nd_update(framed.token_ids.values, places, tokens[:, 0])
        )
        counts = tf.reduce_sum(tf.cast(is_mask, tf.int64), axis=1)
        rows = tf.repeat(tf.range(tf.size(counts)), counts)
        columns = {
            "tokens": (self._as_texts(tokens), ""),
            "scores": (scores, 0.0),
            "texts": (self._candidates(best, rows, places[:, 0], tokens), ""),
        }
        by_row = {
            name: tf.RaggedTensor.from_row_lengths(values, counts).to_tensor(default)
            for name, (values, default) in columns.items()
        }
        return {**by_row, "outputs": self.tokenizer.detokenize(best), "is_cut": framed.is_cut}

    def _as_texts(self, tokens):
        """Ids (N, k) -> the text of each, strings (N, k)."""
        texts = self.tokenizer.detokenize(tf.reshape(tokens, [-1, 1]))
        return tf.reshape(texts, tf.shape(tokens))

    def _candidates(self, best, rows, places, tokens):
        """The text of each candidate (N, k): the row of its mask with the candidate at its place.

        Args:
            best: Ragged ids (B, None).
            rows: Integers (N,), the row of each mask.
            places: Integers (N,), where in the values of `best` it stands.
            tokens: Ids (N, k).
        """
        rows = tf.repeat(rows, self.top_k)
        ids = tf.gather(best, rows)
        in_row = tf.repeat(places, self.top_k) - tf.gather(best.row_starts(), rows)
        changed = tf.tensor_scatter_nd_update(
            ids.values, (ids.row_starts() + in_row)[:, tf.newaxis], tf.reshape(tokens, [-1])
        )
        return tf.reshape(self.tokenizer.detokenize(ids.with_values(changed)), tf.shape(tokens))


def _row_fills(row):
    """For each mask of a row of `answers` the `Fill`s."""
    columns = [row[name].tolist() for name in ("tokens", "scores", "texts")]
    return [
        [
            Fill(token.decode("utf-8"), score, text.decode("utf-8"))
            for token, score, text in zip(*mask_columns)
        ]
        for mask_columns in zip(*columns)
        if any(mask_columns[1])
    ]
