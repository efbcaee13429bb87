"""OpenNMT-tf's Transformer: its sizes from the shapes of its variables, and where each variable is."""

from keras import ops

from keras_attn.layers import (
    DecoderBlock,
    EncoderBlock,
    MultiHeadAttention,
    SequenceEmbedding,
    SinusoidalPositionEncoding,
    TokenEmbedding,
)
from keras_attn.layers.layer_slots import global_policy
from keras_attn.layers.normalization import LayerNormalization
from keras_attn.models import Seq2SeqTransformer
from keras_attn.models.checkpoint_names import (
    At,
    ReportRow,
    check_whole,
    measured_model,
    places,
    report_line,
)
from keras_attn.models.weight_names import named_weights
from keras_attn.opennmt.checkpoint import Checkpoint
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


def load_model(folder, num_heads=None, model_type=None, checkpoint=None, dtype=None, *, report=False):
    """The `Seq2SeqTransformer` of an OpenNMT-tf folder.

    Sizes are those of the variables. Every variable of the model is filled, and every tensor of the checkpoint is used or
    known not to be needed (the optimizer's, counters); otherwise nothing is returned.

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
            say(report_line(row))
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
        self.is_shared = self.file.tensor(_SOURCE) == self.file.tensor(_TARGET)
        self.is_tied = self.file.tensor(f"{_OUTPUT}/kernel") in (None, self.file.tensor(_TARGET))
        self.max_sequence_length = max(_LONGEST, int(settings.param("maximum_decoding_length", 250)))
        shapes = measured_model(self._make).shapes
        self._places = places(shapes, self._names(), "{}/{}".format)
        self.report = self._checked_report()

    def filled(self, dtype):
        """The model with all its weights."""
        with global_policy(dtype):
            model = self._make()
        variables = named_weights(model)
        for place in self._places:
            array = self.file.read_weights(self.file.tensor(place.tensor))
            variables[place.variable].assign(ops.reshape(array, place.shape))
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
        names = self.file.children(f"model/{side}/layers")
        return next(i for i in range(len(names) + 1) if str(i) not in names)

    def _names(self):
        """Table of names, see `models/checkpoint_names.py`; their matrices are (inputs, outputs), as ours are."""
        names = {
            "source_embedding/token/embeddings": _SOURCE,
            "target_embedding/token/embeddings": _TARGET,
            "{embedding}/token/reverse_embeddings": f"{_OUTPUT}/kernel",
            "{embedding}/token/output_bias": f"{_OUTPUT}/bias",
            "{side}_norm": "model/{side}/layer_norm",
        }
        norm = "input_layer_norm" if self.normalize_first else "output_layer_norm"
        for side, sublayers in _SUBLAYERS.items():
            block = f"{side}_block_{{i}}"
            layer = f"model/{side}/layers/{{i}}"
            for slot, theirs in sublayers.items():
                for part, their_part in _ATTENTION.items():
                    names[f"{block}/{slot}/{part}"] = f"{layer}/{theirs}/layer/{their_part}"
                names[f"{block}/{slot}_residual/norm"] = f"{layer}/{theirs}/{norm}"
            names[f"{block}/feed_forward/intermediate"] = f"{layer}/ffn/layer/inner"
            names[f"{block}/feed_forward/output"] = f"{layer}/ffn/layer/outer"
            names[f"{block}/feed_forward_residual/norm"] = f"{layer}/ffn/{norm}"
        return {ours: At(theirs, transposed=False) for ours, theirs in names.items()}

    def _checked_report(self):
        """List of `ReportRow`s; every tensor is used or not needed, and every variable has one, of its shape."""
        tensors = {place.tensor: self.file.tensor(place.tensor) for place in self._places}
        unused = {name: self.file.reason(name) for name in self.file.shapes if name not in tensors.values()}
        check_whole(
            self.file.prefix,
            [path for path, name in tensors.items() if name is None],
            [name for name, reason in unused.items() if reason is None],
        )
        rows = []
        for place in self._places:
            name = tensors[place.tensor]
            received = self.file.shapes[name]
            if received != place.tensor_shape:
                raise ValueError(
                    f"{place.tensor} in {self.file.prefix} must have shape {place.tensor_shape} by the others. "
                    f"Received: shape {received}."
                )
            rows.append(ReportRow(name, place.variable, received, ""))
        return rows + [ReportRow(name, None, self.file.shapes[name], why) for name, why in unused.items()]

    def _make(self):
        output = {"tie_weights": self.is_tied, "use_output_bias": self.output_bias}
        if self.is_shared:
            source_token = target_token = self._token(self.source_vocabulary_size, **output)
        else:
            source_token = self._token(self.source_vocabulary_size)
            target_token = self._token(self.target_vocabulary_size, **output)
        return Seq2SeqTransformer(
            self._embedding("source", source_token),
            self._embedding("target", target_token),
            [self._block(EncoderBlock, "encoder", i) for i in range(self.num_layers["encoder"])],
            [self._block(DecoderBlock, "decoder", i) for i in range(self.num_layers["decoder"])],
            self._last_norm("encoder"),
            self._last_norm("decoder"),
            max_sequence_length=self.max_sequence_length,
            pad_token_id=0,
        )

    def _token(self, vocabulary_size, **output):
        return TokenEmbedding(vocabulary_size, self.hidden_dim, name="token", **output)

    def _embedding(self, side, token):
        half = self.hidden_dim // 2  # the longest wavelength is that of the last pair, as in fairseq
        position = SinusoidalPositionEncoding(
            10000 ** (half / (half - 1)), interleaved=False, first_position=1, name="position"
        )
        return SequenceEmbedding(token, position, name=f"{side}_embedding")

    def _block(self, block_class, side, i):
        key_dim = self.hidden_dim // self.num_heads
        attention = {
            slot: MultiHeadAttention(self.num_heads, key_dim, use_bias=self.attention_bias, name=slot)
            for slot in _SUBLAYERS[side]
        }
        return block_class(
            self.intermediate_dim,
            activation=self.activation,
            normalize_first=self.normalize_first,
            norm=LayerNormalization(epsilon=_EPSILON),
            name=f"{side}_block_{i}",
            **attention,
        )

    def _last_norm(self, side):
        if not self.normalize_first:
            return None
        return LayerNormalization(epsilon=_EPSILON, name=f"{side}_norm")
