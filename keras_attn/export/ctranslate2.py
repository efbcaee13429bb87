"""A trained encoder-decoder model as a folder that CTranslate2 loads."""

import pathlib

import keras
import numpy as np

from keras_attn.files import replaced_folder
from keras_attn.models import Seq2SeqTransformer, plain_options
from keras_attn.ops import sinusoidal_encoding

MODEL_FILE = "model.bin"
# Our activations, and CTranslate2's names of the same functions.
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "tanh": "Tanh", "sigmoid": "Sigmoid"}
# CTranslate2 cuts a source at 1024 tokens by default; a sine table of that size costs nothing.
_MIN_POSITIONS = 1024
# Added to the logit of the pad token: low enough for a probability of 0, in float16 too.
_NEVER = -1e4


def export_ctranslate2(
    folder, model, source_tokenizer, target_tokenizer, quantization=None, vocabulary_mapping=None
):
    """Writes a model and its tokenizers as a CTranslate2 model, replacing an older one in `folder`.

    CTranslate2 takes and returns token strings: those of `tokenizer.token_strings`, without START and END,
    which it adds. The tokenizers are saved next to the model, in `source_tokenizer` and `target_tokenizer`.

    Features that CTranslate2 cannot compute are rejected before anything is written: activations other than
    relu, gelu (exact), silu, tanh and sigmoid; LoRA that is not merged; quantised weights (CTranslate2
    quantises float weights itself: see `quantization`).

    Args:
        folder: Path; the folder is built under a temporary name and then renamed.
        model: `Seq2SeqTransformer`.
        source_tokenizer, target_tokenizer: Tokenizers of `keras_attn.text`.
        quantization: `"int8"`, `"int8_float32"`, `"int8_float16"`, `"int8_bfloat16"`, `"int16"`, `"float16"`,
            `"bfloat16"` or `"float32"`: how the weights are stored, and the default precision of computation.
            None is float32.
        vocabulary_mapping: Path of a file of target tokens for source tokens, which CTranslate2 uses with
            `use_vmap=True`, or None.

    Returns:
        `pathlib.Path` of `folder`.

    Raises:
        ValueError: if CTranslate2 does not support the model or the quantization, or `folder` holds something
            else.
        ImportError: if CTranslate2 is not installed.

    Example:

    ```python
    translator = keras_attn.Translator.load("runs/dates/translator")
    export_ctranslate2(
        "engines/dates", translator.model, translator.source_tokenizer, translator.target_tokenizer, "int8"
    )
    ```

    Reference: [Klein et al., 2020](https://aclanthology.org/2020.amta-research.9);
    https://opennmt.net/CTranslate2.
    """
    spec = _spec(model)
    _set_vocabularies(spec, source_tokenizer, target_tokenizer)
    if vocabulary_mapping is not None:
        spec.register_vocabulary_mapping(str(vocabulary_mapping))
    spec.validate()
    spec.optimize(quantization=quantization)
    with replaced_folder(folder, MODEL_FILE, "CTranslate2 model") as built:
        spec.save(str(built))
        source_tokenizer.save(built / "source_tokenizer")
        target_tokenizer.save(built / "target_tokenizer")
    return pathlib.Path(folder)


def _spec(model):
    """CTranslate2's specification of the model, with all its weights."""
    specs = _import_specs()
    if not isinstance(model, Seq2SeqTransformer):
        raise ValueError(f"`model` must be a Seq2SeqTransformer. Received: {type(model).__name__}.")
    form = _form(model)
    is_rotary = form.position_encoding == "rotary"
    options = {
        "num_heads": form.num_heads,
        "pre_norm": form.normalize_first,
        "activation": specs.common_spec.Activation[_ACTIVATIONS[form.activation]],
        "ffn_glu": form.gated,
        "rms_norm": form.normalization == "rms_norm",
    }
    if is_rotary:
        options |= {"rotary_dim": 0, "rotary_interleave": False}  # 0 means all features of a head
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(len(model.encoder_blocks), **options),
        specs.TransformerDecoderSpec(
            len(model.decoder_blocks),
            # As in `Translator.align`: the mean over the heads.
            alignment_layer=model.alignment_layer,
            alignment_heads=form.num_heads,
            **options,
        ),
    )
    weights = _Weights(model)
    encoder = spec.encoder
    decoder = spec.decoder
    _set_embedding(encoder, encoder.embeddings[0], model.source_embedding, model, form, weights)
    _set_embedding(decoder, decoder.embeddings, model.target_embedding, model, form, weights)
    if is_rotary:
        del encoder.position_encodings  # The encoder's specification has it in any case.
    _set_blocks(encoder, model.encoder_blocks, model.encoder_norm, form, weights)
    _set_blocks(decoder, model.decoder_blocks, model.decoder_norm, form, weights)
    _set_output(decoder.projection, model, weights)
    weights.check_all_taken()
    spec.config.layer_norm_epsilon = form.layer_norm_epsilon
    return spec


def _form(model):
    try:
        form = plain_options(model)
    except ValueError as error:
        raise ValueError(f"CTranslate2 computes plain Transformers only. {error}") from error
    if form.activation not in _ACTIVATIONS:
        raise ValueError(
            f"CTranslate2 has no such `activation`; it has {', '.join(_ACTIVATIONS)}. "
            f"Received: activation={form.activation!r}."
        )
    return form


def _import_specs():
    try:
        from ctranslate2.specs import transformer_spec
    except ImportError as error:
        raise ImportError('This export needs CTranslate2: pip install "keras_attn[ctranslate2]".') from error
    return transformer_spec


class _Weights:
    """Float32 arrays of a model's variables; it keeps track of the unused ones."""

    def __init__(self, model):
        self._left = {id(variable): variable.path for variable in model.weights}

    def __getitem__(self, variable):
        self._left.pop(id(variable), None)
        # The kernel of a layer with LoRA is a sum, not a variable. Its matrices remain unused, which is an
        # error.
        return keras.ops.convert_to_numpy(variable).astype("float32")

    def check_all_taken(self):
        if self._left:
            paths = sorted(self._left.values())
            more = ", ..." if len(paths) > 4 else ""
            raise ValueError(
                "CTranslate2 does not support some weights of this model. Merge LoRA first (a model saved as `.keras` and "
                "loaded again has it merged), and export the float model rather than a quantised one. "
                f"Received: {', '.join(paths[:4])}{more}."
            )


def _set_embedding(spec, embedding_spec, embedding, model, form, weights):
    embedding_spec.weight = weights[embedding.token.embeddings]
    spec.scale_embeddings = embedding.token.scale
    if form.position_encoding == "learned":
        spec.position_encodings.encodings = weights[embedding.position.position_embeddings]
    if form.position_encoding == "sinusoidal":
        # Given as a table, because CTranslate2's own sines start at position 1 and fill the first half of the
        # channels.
        position = embedding.position
        num_positions = max(model.max_sequence_length, _MIN_POSITIONS)
        positions = np.arange(num_positions) + position.first_position
        table = sinusoidal_encoding(
            positions, model.hidden_dim, position.max_wavelength, position.interleaved
        )
        spec.position_encodings.encodings = keras.ops.convert_to_numpy(table)


def _set_blocks(spec, blocks, norm, form, weights):
    for block_spec, block in zip(spec.layer, blocks):
        _set_block(block_spec, block, weights)
    if form.normalize_first:
        _set_norm(spec.layer_norm, norm, weights)


def _set_block(spec, block, weights):
    norms = block.residual_norms
    attention = block.self_attention_layer
    _set_norm(spec.self_attention.layer_norm, norms[0], weights)
    projections = [attention.query_dense, attention.key_dense, attention.value_dense]
    _set_linear(spec.self_attention.linear[0], projections, weights)
    _set_linear(spec.self_attention.linear[1], [attention.output_dense], weights)
    if hasattr(spec, "attention"):
        attention = block.cross_attention_layer
        _set_norm(spec.attention.layer_norm, norms[1], weights)
        _set_linear(spec.attention.linear[0], [attention.query_dense], weights)
        _set_linear(spec.attention.linear[1], [attention.key_dense, attention.value_dense], weights)
        _set_linear(spec.attention.linear[2], [attention.output_dense], weights)
    _set_norm(spec.ffn.layer_norm, norms[-1], weights)
    _set_feed_forward(spec.ffn, block.feed_forward_layer, weights)


def _set_feed_forward(spec, layer, weights):
    if layer.gated:
        _set_linear(spec.linear_0, [layer.gate_dense], weights)
        _set_linear(spec.linear_0_noact, [layer.intermediate_dense], weights)
    else:
        _set_linear(spec.linear_0, [layer.intermediate_dense], weights)
    _set_linear(spec.linear_1, [layer.output_dense], weights)


def _set_norm(spec, norm, weights):
    if hasattr(spec, "beta"):
        spec.gamma = weights[norm.gamma]
        spec.beta = weights[norm.beta]
    else:
        spec.gamma = weights[norm.scale]


def _set_linear(spec, layers, weights):
    """Joins several projections of the same inputs in one matrix: rows are outputs, head by head."""
    matrices = []
    biases = []
    for layer in layers:
        bias = weights[layer.bias].ravel()
        matrices.append(weights[layer.kernel].reshape(-1, bias.size).T)
        biases.append(bias)
    spec.weight = np.concatenate(matrices)
    spec.bias = np.concatenate(biases)


def _set_output(spec, model, weights):
    token = model.target_embedding.token
    if token.tie_weights:
        spec.weight = weights[token.embeddings]
    else:
        spec.weight = weights[token.reverse_embeddings].T
    bias = weights[token.output_bias] if token.use_output_bias else np.float32(0)
    # Our search never chooses the pad token; CTranslate2 does not know which token that is.
    spec.bias = np.where(np.arange(len(spec.weight)) == model.pad_token_id, np.float32(_NEVER), bias)


def _set_vocabularies(spec, source_tokenizer, target_tokenizer):
    source_tokens = _tokens(source_tokenizer)
    target_tokens = _tokens(target_tokenizer)
    end = source_tokens[source_tokenizer.end_token_id]
    target_end = target_tokens[target_tokenizer.end_token_id]
    if end != target_end:
        raise ValueError(
            "CTranslate2 has one name for the END of both sides. "
            f"Received: {end!r} of the source tokenizer, {target_end!r} of the target tokenizer."
        )
    spec.register_source_vocabulary(source_tokens)
    spec.register_target_vocabulary(target_tokens)
    # A tokenizer that can spell everything has no unknown token, but CTranslate2 needs one.
    unknown_token_id = source_tokenizer.unknown_token_id
    if unknown_token_id is None:
        unknown_token_id = source_tokenizer.pad_token_id
    spec.config.unk_token = source_tokens[unknown_token_id]
    spec.config.bos_token = spec.config.decoder_start_token = target_tokens[target_tokenizer.start_token_id]
    spec.config.eos_token = end
    spec.config.add_source_eos = True


def _tokens(tokenizer):
    tokens = tokenizer.token_strings(range(tokenizer.vocabulary_size))
    if len(set(tokens)) < len(tokens):
        raise ValueError("CTranslate2 knows tokens by their strings: no two of a vocabulary may be the same.")
    return tokens
