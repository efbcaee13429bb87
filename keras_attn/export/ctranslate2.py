"""A trained encoder-decoder model as a folder that CTranslate2 loads."""

import pathlib

import keras
import numpy as np

from keras_attn.files import replaced_folder
from keras_attn.models import Seq2SeqTransformer
from keras_attn.ops import sinusoidal_encoding

MODEL_FILE = "model.bin"
# Our activations, and CTranslate2's names of the same functions.
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "tanh": "Tanh", "sigmoid": "Sigmoid"}
# CTranslate2 cuts a source at 1024 tokens by default; sines for so many cost nothing.
_MIN_POSITIONS = 1024
# Added to the logit of the pad: far enough from all others for a probability of 0 in float16 too.
_NEVER = -1e4


def export_ctranslate2(folder, model, source_tokenizer, target_tokenizer, quantization=None):
    """Writes a model and its tokenizers as a CTranslate2 model, replacing an older one in `folder`.

    CTranslate2 takes and returns token strings: those of `tokenizer.token_strings`, without START and END, which it
    adds. The tokenizers are saved beside the model, in `source_tokenizer` and `target_tokenizer`.

    What a model of this class can have and CTranslate2 cannot compute is refused before anything is written:
    activations other than relu, gelu (exact), silu, tanh and sigmoid; LoRA that is not merged; quantised weights
    (CTranslate2 quantises float weights itself: see `quantization`).

    Args:
        folder: Path; it is built aside and renamed into place.
        model: `Seq2SeqTransformer`.
        source_tokenizer, target_tokenizer: Tokenizers of `keras_attn.text`.
        quantization: `"int8"`, `"int8_float32"`, `"int8_float16"`, `"int8_bfloat16"`, `"int16"`, `"float16"`,
            `"bfloat16"` or `"float32"`: how the weights are stored, and computed with by default. None is
            float32.

    Returns:
        `pathlib.Path` of `folder`.

    Raises:
        ValueError: if CTranslate2 has no such model or quantization, or `folder` holds something else.
        ImportError: if CTranslate2 is not installed.

    Example:

    ```python
    translator = keras_attn.Translator.load("runs/dates/translator")
    export_ctranslate2(
        "engines/dates", translator.model, translator.source_tokenizer, translator.target_tokenizer, "int8"
    )
    ```

    Reference: [Klein et al., 2020](https://aclanthology.org/2020.amta-research.9); https://opennmt.net/CTranslate2.
    """
    spec = _spec(model)
    _set_vocabularies(spec, source_tokenizer, target_tokenizer)
    spec.validate()
    spec.optimize(quantization=quantization)
    with replaced_folder(folder, MODEL_FILE, "CTranslate2 model") as built:
        spec.save(str(built))
        source_tokenizer.save(built / "source_tokenizer")
        target_tokenizer.save(built / "target_tokenizer")
    return pathlib.Path(folder)


def _spec(model):
    """CTranslate2's description of the model, with all of its weights in it."""
    specs = _import_specs()
    if not isinstance(model, Seq2SeqTransformer):
        raise ValueError(f"`model` must be a Seq2SeqTransformer. Received: {type(model).__name__}.")
    options = {
        "num_heads": model.num_heads,
        "pre_norm": model.normalize_first,
        "activation": _activation(model, specs),
        "ffn_glu": model.gated,
        "rms_norm": model.normalization == "rms_norm",
    }
    if model.position_encoding == "rotary":
        options |= {"rotary_dim": 0, "rotary_interleave": False}  # 0 is all features of a head
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(model.num_encoder_layers, **options),
        specs.TransformerDecoderSpec(
            model.num_decoder_layers,
            # As `Translator.align`: the mean over the heads.
            alignment_layer=model.alignment_layer,
            alignment_heads=model.num_heads,
            **options,
        ),
    )
    weights = _Weights(model)
    _set_stack(spec.encoder, "encoder", spec.encoder.embeddings[0], model.source_embedding, model, weights)
    _set_stack(spec.decoder, "decoder", spec.decoder.embeddings, model.target_embedding, model, weights)
    _set_output(spec.decoder.projection, model, weights)
    weights.check_that_all_were_taken()
    spec.config.layer_norm_epsilon = model.layer_norm_epsilon
    return spec


def _import_specs():
    try:
        from ctranslate2.specs import transformer_spec
    except ImportError as error:
        raise ImportError('This export needs CTranslate2: pip install "keras_attn[ctranslate2]".') from error
    return transformer_spec


def _activation(model, specs):
    name = keras.activations.serialize(model.activation)
    if name not in _ACTIVATIONS:
        raise ValueError(
            f"CTranslate2 has no such `activation`; it has {', '.join(_ACTIVATIONS)}. Received: activation={name!r}."
        )
    return specs.common_spec.Activation[_ACTIVATIONS[name]]


class _Weights:
    """Float32 arrays by path, without the model's own name; it knows which nobody asked for."""

    def __init__(self, model):
        self._variables = {weight.path.partition("/")[2]: weight for weight in model.weights}
        self._left = set(self._variables)

    def __contains__(self, path):
        return path in self._variables

    def __getitem__(self, path):
        self._left.discard(path)
        return keras.ops.convert_to_numpy(self._variables[path].value).astype("float32")

    def check_that_all_were_taken(self):
        if self._left:
            raise ValueError(
                "CTranslate2 has no place for weights of this model. Merge LoRA first (a model saved as `.keras` and "
                "loaded again has it merged), and export the float model rather than a quantised one. "
                f"Received: {', '.join(sorted(self._left)[:4])}{', ...' if len(self._left) > 4 else ''}."
            )


def _set_stack(spec, side, embedding_spec, embedding, model, weights):
    embedding_spec.weight = weights[f"{embedding.name}/embeddings"]
    spec.scale_embeddings = embedding.scale
    if model.position_encoding == "rotary":
        if side == "encoder":
            del spec.position_encodings  # in the encoder's specification even so
    else:
        spec.position_encodings.encodings = _positions(side, model, weights)
    if model.normalize_first:
        _set_norm(spec.layer_norm, f"{side}_norm", weights)
    for i, layer in enumerate(spec.layer):
        _set_block(layer, f"{side}_block_{i}", weights)


def _positions(side, model, weights):
    if model.position_encoding == "learned":
        return weights[f"{side}_position_encoding/embeddings"]
    # Given as a table, since CTranslate2's own sines start at position 1 and stand in the first half of the channels.
    positions = np.arange(max(model.max_sequence_length, _MIN_POSITIONS))
    return keras.ops.convert_to_numpy(sinusoidal_encoding(positions, model.hidden_dim))


def _set_block(spec, name, weights):
    self_attention, cross_attention = f"{name}/self_attention", f"{name}/cross_attention"
    _set_norm(spec.self_attention.layer_norm, f"{self_attention}_residual/norm", weights)
    _set_linear(
        spec.self_attention.linear[0],
        [f"{self_attention}/query", f"{self_attention}/key", f"{self_attention}/value"],
        weights,
    )
    _set_linear(spec.self_attention.linear[1], [f"{self_attention}/attention_output"], weights)
    if hasattr(spec, "attention"):
        _set_norm(spec.attention.layer_norm, f"{cross_attention}_residual/norm", weights)
        _set_linear(spec.attention.linear[0], [f"{cross_attention}/query"], weights)
        _set_linear(spec.attention.linear[1], [f"{cross_attention}/key", f"{cross_attention}/value"], weights)
        _set_linear(spec.attention.linear[2], [f"{cross_attention}/attention_output"], weights)
    _set_feed_forward(spec.ffn, f"{name}/feed_forward", weights)


def _set_feed_forward(spec, name, weights):
    _set_norm(spec.layer_norm, f"{name}_residual/norm", weights)
    gated = hasattr(spec, "linear_0_noact")
    _set_linear(spec.linear_0, [f"{name}/gate" if gated else f"{name}/intermediate"], weights)
    if gated:
        _set_linear(spec.linear_0_noact, [f"{name}/intermediate"], weights)
    _set_linear(spec.linear_1, [f"{name}/output"], weights)


def _set_norm(spec, name, weights):
    if hasattr(spec, "beta"):
        spec.gamma, spec.beta = weights[f"{name}/gamma"], weights[f"{name}/beta"]
    else:
        spec.gamma = weights[f"{name}/scale"]


def _set_linear(spec, names, weights):
    """One product of several projections of the same inputs: rows are outputs, heads one after the other."""
    kernels, biases = zip(*((weights[f"{name}/kernel"], weights[f"{name}/bias"]) for name in names))
    spec.weight = np.concatenate([kernel.reshape(-1, bias.size).T for kernel, bias in zip(kernels, biases)])
    spec.bias = np.concatenate([bias.ravel() for bias in biases])


def _set_output(spec, model, weights):
    name = model.target_embedding.name
    spec.weight = (
        weights[f"{name}/embeddings"] if model.tie_output else weights[f"{name}/reverse_embeddings"].T
    )
    # Our search never chooses the pad; CTranslate2 does not know that it is one.
    spec.bias = np.where(np.arange(len(spec.weight)) == model.pad_token_id, np.float32(_NEVER), np.float32(0))


def _set_vocabularies(spec, source_tokenizer, target_tokenizer):
    source_tokens, target_tokens = map(_tokens, (source_tokenizer, target_tokenizer))
    end, target_end = (
        source_tokens[source_tokenizer.end_token_id],
        target_tokens[target_tokenizer.end_token_id],
    )
    if end != target_end:
        raise ValueError(
            "CTranslate2 has one name for the END of both sides. "
            f"Received: {end!r} of the source tokenizer, {target_end!r} of the target tokenizer."
        )
    spec.register_source_vocabulary(source_tokens)
    spec.register_target_vocabulary(target_tokens)
    # A tokenizer that can spell everything has no unknown token, but CTranslate2 needs one.
    unknown = source_tokenizer.unknown_token_id
    spec.config.unk_token = source_tokens[source_tokenizer.pad_token_id if unknown is None else unknown]
    spec.config.bos_token = spec.config.decoder_start_token = target_tokens[target_tokenizer.start_token_id]
    spec.config.eos_token = end
    spec.config.add_source_eos = True


def _tokens(tokenizer):
    tokens = tokenizer.token_strings(range(tokenizer.vocabulary_size))
    if len(set(tokens)) < len(tokens):
        raise ValueError("CTranslate2 knows tokens by their strings: no two of a vocabulary may be the same.")
    return tokens
