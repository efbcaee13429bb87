import functools
import operator

import keras
from keras import ops

from keras_attn.models.base_model import Transformer, layer_list
from keras_attn.models.generation import Seq2SeqGeneration
from keras_attn.models.quantization import quantization_of
from keras_attn.models.seq2seq_transformer import Seq2SeqCache, Seq2SeqTransformer
from keras_attn.ops import padding_mask

_SMALLEST = 2.0**-126  # the smallest float32 that is not flushed to zero


@keras.saving.register_keras_serializable(package="keras_attn")
class Ensemble(Seq2SeqGeneration, Transformer):
    """Several encoder-decoder Transformers that answer together, each token by the mean of their probabilities.

    It is called, decodes, is saved, exported and served like one of them; `Translator(Ensemble([...]), ...)` is a
    translator. The members may differ in all but their vocabularies. Each decoding step costs as much as those of all
    members. An ensemble is not trained: train its members.

    Args:
        members: List of `Seq2SeqTransformer`s with the same vocabulary sizes and the same `pad_token_id`.

    Call arguments:
        inputs: As in `Seq2SeqTransformer`.
        training: Boolean.

    Returns:
        The logarithm of the mean of the members' probabilities, float32 (B, T, V), at least -87.4. They are logits too:
        their softmax is that mean.

    Raises:
        ValueError: if `members` is empty, holds anything else, or the vocabularies, pads or quantisations of two members
            differ.

    Example:

    ```python
    sizes = {"hidden_dim": 16, "num_heads": 2, "intermediate_dim": 32}
    members = [keras_attn.models.Seq2SeqTransformer.from_sizes(100, 2, layers, **sizes) for layers in (1, 2)]
    model = keras_attn.models.Ensemble(members)
    token_ids = model.generate(np.array([[5, 6, 7, 3]]), start_token_id=2, end_token_id=3, num_beams=4, max_length=5)
    ```

    Reference: fairseq's `EnsembleModel` ([Ott et al., 2019](https://arxiv.org/abs/1904.01038)), whose
    `forward_decoder` takes the same mean.
    """

    _SLOTS = ("members",)
    _OPTIONS = ()

    def __init__(self, members, **kwargs):
        super().__init__(**kwargs)
        members = layer_list("members", members)
        _check_members(members)
        self._take_parts(members=members)
        self.built = True

    def build(self, input_shape=None):
        """Does nothing: the members are built when they are made."""

    @property
    def vocabulary_size(self):
        """Integer, of the source."""
        return self.members[0].vocabulary_size

    @property
    def target_vocabulary_size(self):
        """Integer V, of the target."""
        return self.members[0].target_vocabulary_size

    @property
    def pad_token_id(self):
        """Integer, the id of pads."""
        return self.members[0].pad_token_id

    @property
    def max_sequence_length(self):
        """Integer, the longest sequence that all members take."""
        return min(member.max_sequence_length for member in self.members)

    @property
    def hidden_dim(self):
        """Integer D, the widths of all members together."""
        return sum(member.hidden_dim for member in self.members)

    @property
    def cross_attention_shape(self):
        """The layers and heads of cross-attention, (L, N): as many layers as the shallowest member has, the last ones."""
        layers, heads = zip(*(member.cross_attention_shape for member in self.members))
        return min(layers), sum(heads)

    @property
    def alignment_layer(self):
        """The decoder layer whose cross-attention aligns words best, the last but one."""
        return max(self.cross_attention_shape[0] - 2, 0)

    def call(self, inputs, training=None):
        return _log_mean([member(inputs, training=training) for member in self.members])

    def compute_mask(self, inputs, previous_mask=None):
        return self._output_mask(inputs, "decoder_")

    def init_cache(self, encoder_token_ids, length, encoder_padding_mask=None):
        """Runs the encoders on ids (B, S): a `Seq2SeqCache` with the layers of all members, one member after the other."""
        if encoder_padding_mask is None:
            encoder_padding_mask = padding_mask(encoder_token_ids, self.pad_token_id)
        self_attention = ()
        cross_attention = ()
        for member in self.members:
            cache = member.init_cache(encoder_token_ids, length, encoder_padding_mask)
            self_attention += cache.self_attention
            cross_attention += cache.cross_attention
        return Seq2SeqCache(self_attention, cross_attention, encoder_padding_mask)

    def call_with_cache(
        self,
        decoder_token_ids,
        cache,
        cache_update_index,
        positions=None,
        decoder_attention_mask=None,
        return_attention_scores=False,
    ):
        """As `Seq2SeqTransformer.call_with_cache`, with a cache from this model's `init_cache`.

        Returns:
            Log-probabilities, float32 (B, T, V), and the new cache; then, if `return_attention_scores`, a list of (B, N,
            T, S) with the heads of all members, for as many of the last layers as each member has.
        """
        all_logits = []
        self_attention = ()
        all_scores = []
        for member, member_cache in zip(self.members, self._member_caches(cache)):
            logits, member_cache, *scores = member.call_with_cache(
                decoder_token_ids,
                member_cache,
                cache_update_index,
                positions,
                decoder_attention_mask,
                return_attention_scores,
            )
            all_logits.append(logits)
            self_attention += member_cache.self_attention
            all_scores += scores
        log_probs = _log_mean(all_logits)
        cache = cache._replace(self_attention=self_attention)
        if not return_attention_scores:
            return log_probs, cache
        num_layers = min(map(len, all_scores))
        last_layers = zip(*(scores[-num_layers:] for scores in all_scores))
        return log_probs, cache, [ops.concatenate(scores, axis=1) for scores in last_layers]

    def _member_caches(self, cache):
        first = 0
        for member in self.members:
            stop = first + len(member.decoder_blocks)
            yield cache._replace(
                self_attention=cache.self_attention[first:stop],
                cross_attention=cache.cross_attention[first:stop],
            )
            first = stop


def _log_mean(logits):
    """The logarithm of the mean of the probabilities in a list of logits (B, T, V).

    It adds probabilities, not their logarithms, because a step of decoding would then go through the logits several times
    more. Only a mean below float32's smallest number differs: it counts as that number, so its logarithm is finite.
    """
    probabilities = [ops.softmax(ops.cast(x, "float32"), axis=-1) for x in logits]
    mean = functools.reduce(operator.add, probabilities) / len(probabilities)
    return ops.log(ops.maximum(mean, _SMALLEST))


def _check_members(members):
    if not members or not all(isinstance(member, Seq2SeqTransformer) for member in members):
        kinds = ", ".join(type(member).__name__ for member in members) or "none"
        raise ValueError(f"`members` must be Seq2SeqTransformers, one or more. Received: {kinds}.")
    modes = [quantization_of(member) for member in members]
    if len(set(modes)) > 1:
        raise ValueError(
            "The members of an ensemble must be quantised alike, or not at all: quantise the ensemble. "
            f"Received: {modes}."
        )
    for name in ("vocabulary_size", "target_vocabulary_size", "pad_token_id"):
        values = [getattr(member, name) for member in members]
        if len(set(values)) > 1:
            raise ValueError(f"The members of an ensemble must have the same `{name}`. Received: {values}.")
