"""OpenNMT-tf's Transformer: its sizes from the shapes of its variables, and where each variable is."""

import keras
from keras import ops

from keras_attn.layers import (
    DecoderBlock,
    EncoderBlock,
    MultiHeadAttention,
    SequenceEmbedding,
    SinusoidalPositionEncoding,
    TokenEmbedding,
)
from keras_attn.layers.normalization import LayerNormalization
from keras_attn.models import Seq2SeqTransformer
from keras_attn.models.weight_names import named_weights
from keras_attn.opennmt.checkpoint import Checkpoint, ReportRow
from keras_attn.opennmt.settings import Settings
from keras_attn.terminal import say

_SOURCE = "model/examples_inputter/features_inputter/embedding"
_TARGET = "model/examples_inputter/labels_inputter/embedding"
_OUTPUT = "model/decoder/output_layer"
_ATTENTION = {
    "query": "linear_queries",
    "key": "linear_keys",
    "value": "linear_values",
    "attention_output": "linear_output",
}
_SUBLAYERS = {
    "encoder": {"self_attention": "self_attention"},
    "decoder": {"self_attention": "self_attention", "cross_attention": "attention/0"},
}
_EPSILON = 1e-3  # of LayerNormalization in tf.keras, which theirs is
_LONGEST = 1024  # sines have no end, but a model of ours has a longest sequence


def load_model(folder, num_heads=None, model_type=None, checkpoint=None, dtype=None, report=False):
    """The `Seq2SeqTransformer` of an OpenNMT-tf folder.

    Sizes are those of the variables. Every variable of the model is filled, and every tensor of the checkpoint is used or
    known to be of no use (the optimizer's, counters); otherwise nothing is returned.

    Args:
        folder: Path of what OpenNMT-tf calls `model_dir`, with the YAML file of its training, or of its `avg`.
        num_heads: Integer. Defaults to that of the model's type, or the one in model_description.py, which is never run.
        model_type: Name in OpenNMT-tf's catalog, "TransformerBig" for instance, if the folder does not say it.
        checkpoint: Name in the folder, "ckpt-5000" or "avg". Defaults to the newest.
        dtype: Dtype policy of the model. Defaults to the global one.
        report: Boolean, whether a row for each tensor is printed, see `read_report`.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the model is none of the Transformers that are known, relative positions for instance, the number of
            heads cannot be told, a file is damaged, or a tensor is missing, of another shape, not finite, or unknown.

    Example:

    ```python
    model = load_model("run-en-de", checkpoint="avg")
    ```

    Reference: OpenNMT-tf 2.32, opennmt/models/transformer.py and opennmt/layers/transformer.py.
    """
    plan = _Plan(Settings.read(folder, model_type), checkpoint, num_heads)
    if report:
        for row in plan.report:
            say(f"{row.tensor} -> {row.variable or '(not used)'} {row.shape} {row.note}".rstrip())
    return plan.filled(dtype)


def read_report(folder, num_heads=None, model_type=None, checkpoint=None):
    """What `load_model` would do with each tensor, as a list of `ReportRow`s.

    Args:
        folder, num_heads, model_type, checkpoint: As in `load_model`.

    Raises:
        FileNotFoundError, ValueError: as `load_model`, for all that names and shapes show.
    """
    return _Plan(Settings.read(folder, model_type), checkpoint, num_heads).report


class _Plan:
    """A checkpoint, the sizes of its model, and which tensor goes where."""

    def __init__(self, settings, checkpoint, num_heads):
        self.file = Checkpoint(settings.prefix(checkpoint))
        settings.check_positions()
        self._refuse_others()
        self.source_vocabulary_size, self.hidden_dim = self.file.shape(_SOURCE, 2)
        self.target_vocabulary_size, _ = self.file.shape(_TARGET, 2)
        self.num_layers = {side: self._count(side) for side in _SUBLAYERS}
        self.intermediate_dim = self.file.shape("model/encoder/layers/0/ffn/layer/inner/kernel", 2)[1]
        self.activation = settings.activation
        self.num_heads = num_heads or settings.num_heads(self.hidden_dim)
        if self.hidden_dim % self.num_heads or self.hidden_dim % 2 or self.hidden_dim < 4:
            raise ValueError(
                f"The width of {self.file.prefix} must be even, at least 4 and divisible by the number of heads. "
                f"Received: hidden_dim={self.hidden_dim}, num_heads={self.num_heads}."
            )
        self.normalize_first = "layer_norm" in self.file.children("model/encoder")
        first = "model/encoder/layers/0/self_attention/layer/linear_queries/bias"
        self.attention_bias = self.file.tensor(first) is not None
        self.output_bias = self.file.tensor(f"{_OUTPUT}/bias") is not None
        self.shared = self.file.tensor(_SOURCE) == self.file.tensor(_TARGET)
        self.tied = self.file.tensor(f"{_OUTPUT}/kernel") in (None, self.file.tensor(_TARGET))
        self.max_sequence_length = max(_LONGEST, int(settings.param("maximum_decoding_length", 250)))
        self.rows = list(self._rows())
        self._check()

    def filled(self, dtype):
        """The model with all its weights."""
        before = keras.config.dtype_policy()
        try:
            keras.config.set_dtype_policy(dtype or before)
            model = self._make()
        finally:
            keras.config.set_dtype_policy(before)
        variables = named_weights(model)
        wanted = {ours for ours, _, _ in self.rows}
        assert wanted == set(variables), sorted(wanted ^ set(variables))
        for ours, path, _ in self.rows:
            array = self.file.read_weights(self.file.tensor(path))
            variables[ours].assign(ops.reshape(array, variables[ours].shape))
        return model

    def _refuse_others(self):
        encoder = "model/encoder/layers/0/self_attention"
        if not self.file.children(encoder) or not self.file.children("model/decoder/layers/0/attention/0"):
            parts = ", ".join(sorted(self.file.children("model"))) or "nothing"
            raise ValueError(
                f"{self.file.prefix} is not a Transformer of OpenNMT-tf from one source to one target, the only model that is "
                f"read. Its model holds: {parts}."
            )
        if "relative_position_keys" in self.file.children(f"{encoder}/layer"):
            raise ValueError(
                f"{self.file.prefix} has relative positions (Shaw et al., 2018; TransformerRelative), for which there is no "
                "layer here."
            )
        if self.file.tensor("model/encoder/position_encoder/embedding") is not None:
            raise ValueError(
                f"{self.file.prefix} has learned positions (PositionEmbedder), which are not read."
            )

    def _count(self, side):
        """The number of layers of one side."""
        names = set(self.file.children(f"model/{side}/layers"))
        count = next(i for i in range(len(names) + 1) if str(i) not in names)
        return count

    def _rows(self):
        """(our name, path, shape) of every variable."""
        width, wide = self.hidden_dim, self.intermediate_dim
        target = "source_embedding" if self.shared else "target_embedding"
        yield "source_embedding/token/embeddings", _SOURCE, (self.source_vocabulary_size, width)
        if not self.shared:
            yield "target_embedding/token/embeddings", _TARGET, (self.target_vocabulary_size, width)
        if not self.tied:
            shape = (width, self.target_vocabulary_size)
            yield f"{target}/token/reverse_embeddings", f"{_OUTPUT}/kernel", shape
        if self.output_bias:
            yield f"{target}/token/output_bias", f"{_OUTPUT}/bias", (self.target_vocabulary_size,)
        for side, sublayers in _SUBLAYERS.items():
            if self.normalize_first:
                yield from self._norm(f"{side}_norm", f"model/{side}/layer_norm")
            for i in range(self.num_layers[side]):
                block, layer = f"{side}_block_{i}", f"model/{side}/layers/{i}"
                for slot, theirs in sublayers.items():
                    for part, name in _ATTENTION.items():
                        places = f"{block}/{slot}/{part}", f"{layer}/{theirs}/layer/{name}"
                        yield from _dense(*places, width, width, self.attention_bias)
                    yield from self._residual_norm(f"{block}/{slot}", f"{layer}/{theirs}")
                ours, theirs = f"{block}/feed_forward", f"{layer}/ffn"
                yield from _dense(f"{ours}/intermediate", f"{theirs}/layer/inner", width, wide)
                yield from _dense(f"{ours}/output", f"{theirs}/layer/outer", wide, width)
                yield from self._residual_norm(ours, theirs)

    def _residual_norm(self, ours, theirs):
        order = "input" if self.normalize_first else "output"
        return self._norm(f"{ours}_residual/norm", f"{theirs}/{order}_layer_norm")

    def _norm(self, ours, theirs):
        return [(f"{ours}/{name}", f"{theirs}/{name}", (self.hidden_dim,)) for name in ("gamma", "beta")]

    def _check(self):
        """Every tensor is used or of no use, and every variable has one, of its shape."""
        found = {path: self.file.tensor(path) for _, path, _ in self.rows}
        missing = sorted(path for path, name in found.items() if name is None)
        used = {name for name in found.values() if name is not None}
        left = {name: self.file.reason(name) for name in self.file.shapes if name not in used}
        unknown = sorted(name for name, reason in left.items() if reason is None)
        if missing or unknown:
            raise ValueError(
                f"{self.file.prefix} does not hold exactly the weights of its model. "
                f"Missing: {_listed(missing)}. Not understood: {_listed(unknown)}."
            )
        self.report = []
        for ours, path, shape in self.rows:
            received = self.file.shapes[found[path]]
            if received != shape:
                raise ValueError(
                    f"{path} in {self.file.prefix} must have shape {shape} by the others. Received: shape {received}."
                )
            self.report.append(ReportRow(found[path], ours, shape, ""))
        self.report += [ReportRow(name, None, self.file.shapes[name], why) for name, why in left.items()]

    def _make(self):
        output = {"tie_weights": self.tied, "use_output_bias": self.output_bias}
        half = self.hidden_dim // 2  # the longest wavelength is that of the last pair, as in fairseq

        def token(size, **more):
            return TokenEmbedding(size, self.hidden_dim, name="token", **more)

        def embedding(side, tokens):
            position = SinusoidalPositionEncoding(
                10000 ** (half / (half - 1)), interleaved=False, first_position=1, name="position"
            )
            return SequenceEmbedding(tokens, position, name=f"{side}_embedding")

        def norm(name=None):
            return LayerNormalization(epsilon=_EPSILON, name=name)

        def block(side, i):
            attention = {
                slot: MultiHeadAttention(
                    self.num_heads,
                    self.hidden_dim // self.num_heads,
                    use_bias=self.attention_bias,
                    name=slot,
                )
                for slot in _SUBLAYERS[side]
            }
            return (EncoderBlock if side == "encoder" else DecoderBlock)(
                self.intermediate_dim,
                activation=self.activation,
                normalize_first=self.normalize_first,
                norm=norm(),
                name=f"{side}_block_{i}",
                **attention,
            )

        size = self.source_vocabulary_size
        source = token(size, **output) if self.shared else token(size)
        target = source if self.shared else token(self.target_vocabulary_size, **output)
        return Seq2SeqTransformer(
            embedding("source", source),
            embedding("target", target),
            *([block(side, i) for i in range(self.num_layers[side])] for side in _SUBLAYERS),
            *(norm(f"{side}_norm") if self.normalize_first else None for side in _SUBLAYERS),
            max_sequence_length=self.max_sequence_length,
            pad_token_id=0,
        )


def _dense(ours, theirs, inputs, outputs, has_bias=True):
    yield f"{ours}/kernel", f"{theirs}/kernel", (inputs, outputs)
    if has_bias:
        yield f"{ours}/bias", f"{theirs}/bias", (outputs,)


def _listed(names, most=20):
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more or "none"
