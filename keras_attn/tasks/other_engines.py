"""The model of a translator for other engines: tokens in, tokens out, without text operations."""

import pathlib
import tempfile

import tensorflow as tf

from keras_attn.export import export_ctranslate2, export_litert, export_onnx
from keras_attn.huggingface import save_translator
from keras_attn.models import float32_copy, has_lora, quantization_of
from keras_attn.ops import compiled_scope

FORMATS = ("ctranslate2", "onnx", "litert", "huggingface")


def export_for_engine(translator, folder, format, quantization):
    """Implements `export_model` of a translator."""
    source = translator.source_tokenizer
    target = translator.target_tokenizer
    _check_plain(translator, format)
    if format == "ctranslate2":
        with tempfile.TemporaryDirectory() as aside:
            mapping = None if translator.shortlist is None else pathlib.Path(aside) / "vmap.txt"
            if mapping:
                translator.shortlist.save(mapping, source, target)
            return export_ctranslate2(folder, translator.model, source, target, quantization, mapping)
    if format == "huggingface":
        return save_translator(
            folder,
            translator.model,
            source,
            target,
            translator.max_length,
            translator.num_beams,
            translator.length_penalty,
            translator.unwritable_token_ids,
            translator.start_token_id,
        )
    model = float32_model(translator.model)
    functions = token_functions(
        model,
        translator.start_token_id,
        target.end_token_id,
        translator.max_length,
        translator.unwritable_token_ids,
    )
    tokenizers = {"source_tokenizer": source, "target_tokenizer": target}
    if format == "onnx":
        return export_onnx(folder, functions, tokenizers)
    return export_litert(folder, functions, [model], tokenizers)


def _check_plain(translator, format):
    """Refuses what the files of an engine do not hold, and their user would have to know."""
    form = translator.source_form
    given = {
        "languages": translator.languages is not None,
        "tokens or a text before every source": bool(form.before or form.text_prefix),
        "default options": bool(translator.options.given()),
        "int8 weights": quantization_of(translator.model) == "int8",
        "LoRA that is not merged": has_lora(translator.model),
    }
    if format == "ctranslate2":
        given["a START that is not the tokenizer's"] = (
            translator.start_token_id != translator.target_tokenizer.start_token_id
        )
    else:
        given["a shortlist"] = translator.shortlist is not None
    found = [name for name, is_given in given.items() if is_given]
    if found:
        raise ValueError(
            f"A translator for {format} must be without {', '.join(given)}. Received: {', '.join(found)}."
        )


def float32_model(model):
    """The model itself, or a float32 copy of it if it computes in lower precision."""
    return model if model.compute_dtype == "float32" else float32_copy(model)


def token_functions(model, start_token_id, end_token_id, max_length, unwritable_token_ids=()):
    """{name: (function, specs)}.

    `logits`: int32 `encoder_token_ids` (B, S) and `decoder_token_ids` (B, T), the latter beginning with START
    -> float32 `logits` (B, T, V). `greedy`: `encoder_token_ids` -> int32 `token_ids` (B, max_length), the
    answers of greedy search, END included, then pads.
    """

    def logits(encoder_token_ids, decoder_token_ids):
        inputs = {"encoder_token_ids": encoder_token_ids, "decoder_token_ids": decoder_token_ids}
        return {"logits": model(inputs)}

    def greedy(encoder_token_ids):
        with compiled_scope():  # one plain loop, which graph converters support
            token_ids = model.generate(
                encoder_token_ids,
                start_token_id,
                end_token_id,
                max_length=max_length,
                unwritable_token_ids=unwritable_token_ids,
            )
        return {"token_ids": token_ids}

    source = tf.TensorSpec([None, None], tf.int32, name="encoder_token_ids")
    target = tf.TensorSpec([None, None], tf.int32, name="decoder_token_ids")
    return {"logits": (logits, [source, target]), "greedy": (greedy, [source])}
