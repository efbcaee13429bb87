"""The signature `attention` of exports: what every head looks at, for whoever asks for it.

An export has it if it is asked for, since its answers are large: they grow with the square of a text's tokens.
"""

import tensorflow as tf

from keras_attn.inspection import AttentionMaps
from keras_attn.inspection.capture import traced_attention
from keras_attn.tasks.showing import NUM_BEST
from keras_attn.tasks.token_ids import NO_TOKEN

# The most tokens of a text in an answer. A request must not take a server's memory.
ATTENTION_LENGTH = 128

_SCORES = "how much {} looks at {}: (layer, head, the one, the other); 0 past the end of a text"
_LAYERS = "the names of the layers, in the order of {}_attention"
ENCODER_OUTPUTS = {
    "encoder_tokens": 'the tokens that the encoder reads; "" past the end',
    "encoder_attention": _SCORES.format("each token of the encoder", "each"),
    "encoder_layers": _LAYERS.format("encoder"),
}
DECODER_OUTPUTS = {
    "decoder_tokens": 'the tokens that the decoder reads, that before the first included; "" past the end',
    "decoder_attention": _SCORES.format("each token of the decoder", "each"),
    "decoder_layers": _LAYERS.format("decoder"),
}
CROSS_OUTPUTS = {
    "cross_attention": _SCORES.format("each token of the decoder", "each of the encoder"),
    "cross_layers": _LAYERS.format("cross"),
}
STEP_OUTPUTS = {
    "target_tokens": 'the token that came after each of decoder_tokens; "" if none did',
    "token_scores": "the log-probability of each of target_tokens; 0 where there is none",
    "next_tokens": f'the {NUM_BEST} likeliest tokens after each of decoder_tokens, likeliest first; "" past the end',
    "next_probabilities": "their probabilities; 0 past the end",
}


def attention_limit(length):
    """A line about the size of answers, for the README of an export."""
    return (
        f"`attention` reads at most {length} tokens of a text, special tokens counted, and writes at most as many. Its "
        "answers are large: a layer has 4 bytes for each head and pair of tokens."
    )


class SeenAttention:
    """A graph function that also gives the attention scores of the model it calls.

    Args:
        model: Keras model or layer.
        function: Function of tensors that calls the model, eagerly or in a graph, and returns tensors.
        specs: List of `tf.TensorSpec`s of its inputs.
        example: Inputs of one row, NumPy arrays, from which is told what each layer looks at.
        choose: Function of the `AttentionMaps` of the example to {kind: {key: scores}}, those that the signature gives.

    Raises:
        ValueError: if the model has no attention layer, or layers of one kind have different numbers of heads.
    """

    def __init__(self, model, function, specs, example, choose):
        self._model, self._function = model, function
        self._graph = tf.function(self._traced, specs, autograph=False)
        self._paths = None
        try:
            with tf.init_scope():
                _, scores = self._graph(*map(tf.constant, example))
            self.layers = self._chosen([one.numpy() for one in scores], choose)
        except ValueError as error:
            raise ValueError(
                f"An export cannot give this model's attention. {error} Export without `attention`, and look by `show` or "
                "`keras_attn.capture_attention`."
            ) from error

    def __call__(self, *inputs):
        """What the function returns, and {kind: scores (B, L, N, T, S)}, float32."""
        results, scores = self._graph(*inputs)
        return results, {
            kind: tf.stack([tf.cast(scores[number], tf.float32) for number in numbers], axis=1)
            for kind, numbers in self._numbers.items()
        }

    def _traced(self, *inputs):
        graph = tf.compat.v1.get_default_graph()
        with traced_attention(self._model, lambda output: output.graph is graph) as seen:
            results = self._function(*inputs)
        self._paths = [path for path, _ in seen]
        return results, [scores for _, scores in seen]

    def _chosen(self, scores, choose):
        maps = AttentionMaps(zip(self._paths, scores))
        keys = list(maps)
        kinds = {
            kind: list(of_kind)
            for kind, of_kind in choose(maps).items()
            # Not those that were put together of several calls.
            if all(scores is maps[key] for key, scores in of_kind.items())
        }
        for of_kind in kinds.values():
            heads = {key: maps[key].shape[1] for key in of_kind}
            if len(set(heads.values())) > 1:
                raise ValueError(f"Its layers must have the same number of heads. Received: {heads}.")
        self._numbers = {kind: [keys.index(key) for key in of_kind] for kind, of_kind in kinds.items()}
        return kinds

    def outputs(self, scores, are_tokens):
        """The outputs of the signature for {kind: scores}: they are 0 where there is no token.

        Args:
            scores: As a call returns them.
            are_tokens: Dict from a kind to booleans (B, T) and (B, S): which queries and keys are tokens.
        """
        outputs = {}
        for kind, of_kind in scores.items():
            queries, keys = (tf.cast(is_token, tf.float32) for is_token in are_tokens[kind])
            is_pair = (
                queries[:, tf.newaxis, tf.newaxis, :, tf.newaxis]
                * keys[:, tf.newaxis, tf.newaxis, tf.newaxis]
            )
            outputs[f"{kind}_attention"] = of_kind * is_pair
            names = tf.constant([self.layers[kind]])
            outputs[f"{kind}_layers"] = tf.tile(names, [tf.shape(of_kind)[0], 1])
        return outputs


def steps(logits, is_token, target_ids, vocabulary_size, strings):
    """The outputs that tell of each step of a decoder.

    Args:
        logits: Floats (B, T, V).
        is_token: Booleans (B, T), where the decoder reads a token.
        target_ids: int32 (B, T), filled with `NO_TOKEN`: what came after each token.
        vocabulary_size: Integer, how many of V are tokens.
        strings: Function of ids to token strings, "" for `NO_TOKEN`.
    """
    log_probs = tf.nn.log_softmax(tf.cast(logits, tf.float32))
    of_targets = tf.gather(log_probs, tf.maximum(target_ids, 0), batch_dims=2)
    best, ids = tf.math.top_k(log_probs[..., :vocabulary_size], min(NUM_BEST, vocabulary_size))
    return {
        "target_tokens": strings(target_ids),
        "token_scores": tf.where(target_ids == NO_TOKEN, 0.0, of_targets),
        "next_tokens": tf.where(is_token[..., tf.newaxis], strings(ids), ""),
        "next_probabilities": tf.where(is_token[..., tf.newaxis], tf.exp(best), 0.0),
    }
