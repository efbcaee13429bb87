import pathlib
import tempfile

from keras_attn.export import export_ctranslate2, export_litert, export_onnx
from keras_attn.huggingface import save_translator
from keras_attn.models import has_lora, quantization_of
from keras_attn.tasks.token_functions import float32_model, token_functions

FORMATS = ("ctranslate2", "onnx", "litert", "huggingface")


def export_model(translator, folder, format, quantization=None):
    """Implements `Translator.export_model`."""
    if format not in FORMATS:
        raise ValueError(f"`format` must be one of {', '.join(FORMATS)}. Received: format={format!r}.")
    if quantization is not None and format != "ctranslate2":
        raise ValueError(
            "`quantization` is for SavedModels and for the format ctranslate2. "
            f"Received: quantization={quantization!r}, format={format!r}."
        )
    source, target = translator.source_tokenizer, translator.target_tokenizer
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
    form, start = translator.source_form, translator.target_tokenizer.start_token_id
    given = {
        "languages": translator.languages is not None,
        "tokens or a text before every source": bool(form.before or form.text_prefix),
        "default options": bool(translator.options.given()),
        "int8 weights": quantization_of(translator.model) == "int8",
        "LoRA that is not merged": has_lora(translator.model),
    }
    if format == "ctranslate2":
        given["a START that is not the tokenizer's"] = translator.start_token_id != start
    else:
        given["a shortlist"] = translator.shortlist is not None
    if found := [name for name, is_given in given.items() if is_given]:
        raise ValueError(
            f"A translator for {format} must be without {', '.join(given)}. Received: {', '.join(found)}."
        )
