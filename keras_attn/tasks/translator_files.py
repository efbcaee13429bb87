"""The folder of a saved translator: JSON, tokenizer files and a safetensors file, which contain no code."""

import dataclasses
import re

from keras_attn.files import replaced_folder
from keras_attn.generation import DecodingOptions
from keras_attn.models import RNNSeq2Seq, Seq2SeqTransformer
from keras_attn.tasks.languages import Languages
from keras_attn.tasks.source_form import SourceForm
from keras_attn.tasks.task_files import (
    check_options,
    config_file_of,
    decoding_of,
    folder_of,
    model_description,
    model_of,
    options_of,
    read_model,
    reading_config,
    write_parts,
)
from keras_attn.text import load_tokenizer

_SHORTLIST = "shortlist.txt"
# Keras' description of any model whose class is registered.
_FORMAT = 2
_FORMAT_WITH_CONVENTIONS = 3  # of a checkpoint's: its languages, what stands around a source, ...
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
        if conventions := _conventions_of(translator):
            config |= {"format": _FORMAT_WITH_CONVENTIONS, "conventions": conventions}
        write_parts(built, config_file, config, translator.model)
        translator.source_tokenizer.save(built / "source_tokenizer")
        if not shared:
            translator.target_tokenizer.save(built / "target_tokenizer")
        if translator.shortlist is not None:
            translator.shortlist.save(
                built / _SHORTLIST, translator.source_tokenizer, translator.target_tokenizer
            )


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
    options = {**config["options"], **config["conventions"]}
    if (folder / _SHORTLIST).is_file():
        options["shortlist"] = folder / _SHORTLIST
    return model, source_tokenizer, target_tokenizer, options


def _conventions_of(translator):
    """What a translator does otherwise than those that are trained here: arguments of its class, for JSON."""
    languages, start = translator.languages, translator.target_tokenizer.start_token_id
    form = translator.source_form
    found = {
        "options": decoding_of(translator),
        "start_token_id": None if translator.start_token_id == start else translator.start_token_id,
        "source_form": None
        if form == SourceForm(after=(translator.source_tokenizer.end_token_id,))
        else dataclasses.asdict(form),
        "languages": None if languages is None else languages._asdict(),
    }
    return {name: value for name, value in found.items() if value not in (None, {})}


def _read_conventions(options=None, start_token_id=None, source_form=None, languages=None):
    """The arguments of `Translator` that `_conventions_of` wrote."""
    return {
        "options": DecodingOptions(**(options or {})),
        "start_token_id": None if start_token_id is None else int(start_token_id),
        "source_form": source_form and SourceForm(**source_form),
        "languages": languages and Languages(**languages),
    }


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
        if config["format"] not in (_FORMAT_OF_SIZES, _FORMAT, _FORMAT_WITH_CONVENTIONS):
            raise ValueError(f"it has format {config['format']!r}, this version reads formats 1, 2 and 3")
        more = {"shared_tokenizer": config["shared_tokenizer"]}
        if config["format"] == _FORMAT_OF_SIZES:
            more |= config["model"]
        check_options(task_class, config["options"], more)
        config["conventions"] = _read_conventions(**config.get("conventions", {}))
    return config
