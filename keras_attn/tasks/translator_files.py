"""The folder of a saved translator: JSON, tokenizer files and a safetensors file, which contain no code."""

import re

from keras_attn.files import replaced_folder
from keras_attn.models import RNNSeq2Seq, Seq2SeqTransformer
from keras_attn.tasks.task_files import (
    check_options,
    config_file_of,
    folder_of,
    model_description,
    model_of,
    options_of,
    read_model,
    reading_config,
    write_parts,
)
from keras_attn.text import load_tokenizer

# Keras' description of any model whose class is registered.
_FORMAT = 2
# Version 0.1 described a model by its class and its sizes. Its embeddings and its position encodings were
# separate.
_FORMAT_OF_SIZES = 1
_MODELS = {"Seq2SeqTransformer": Seq2SeqTransformer.from_sizes, "RNNSeq2Seq": RNNSeq2Seq}
_RENAMED = {
    r"^token_embedding/": "source_embedding/token_embedding/",
    r"^(source|target)_embedding/": r"\1_embedding/token_embedding/",
    r"^encoder_position_encoding/": "source_embedding/position_encoding/",
    r"^decoder_position_encoding/": "target_embedding/position_encoding/",
}


def write_translator(translator, folder):
    """Implements `Translator.save`."""
    description, config_file = model_description(translator), config_file_of(type(translator))
    with replaced_folder(folder, config_file, translator.name) as built:
        shared = translator.target_tokenizer is translator.source_tokenizer
        config = {
            "format": _FORMAT,
            "model": description,
            "shared_tokenizer": shared,
            "options": options_of(translator),
        }
        write_parts(built, config_file, config, translator.model)
        translator.source_tokenizer.save(built / "source_tokenizer")
        if not shared:
            translator.target_tokenizer.save(built / "target_tokenizer")


def read_translator(task_class, folder):
    """The model, the two tokenizers and the options in a folder: the arguments of `Translator`."""
    folder = folder_of(folder, task_class)
    config = _read_config(folder, task_class)
    is_old = config["format"] == _FORMAT_OF_SIZES and config.get("model_class") != "RNNSeq2Seq"
    model = read_model(
        folder,
        config_file_of(task_class),
        config,
        lambda: _model_from(config, task_class),
        _new_name if is_old else str,
    )
    source_tokenizer = load_tokenizer(folder / "source_tokenizer")
    shared = config["shared_tokenizer"]
    target_tokenizer = source_tokenizer if shared else load_tokenizer(folder / "target_tokenizer")
    return model, source_tokenizer, target_tokenizer, config["options"]


def _model_from(config, task_class):
    if config["format"] == _FORMAT_OF_SIZES:
        return _MODELS[config.get("model_class", "Seq2SeqTransformer")](**config["model"])
    return model_of(config["model"], task_class.mixin)


def _new_name(name):
    """The current name of a weight, given its name in version 0.1."""
    for pattern, new in _RENAMED.items():
        if re.match(pattern, name):
            return re.sub(pattern, new, name)
    return name


def _read_config(folder, task_class):
    with reading_config(folder, task_class) as config:
        if config["format"] not in (_FORMAT_OF_SIZES, _FORMAT):
            raise ValueError(f"it has format {config['format']!r}, this version reads formats 1 and 2")
        more = {"shared_tokenizer": config["shared_tokenizer"]}
        if config["format"] == _FORMAT_OF_SIZES:
            more |= config["model"]
        check_options(task_class, config["options"], more)
    return config
