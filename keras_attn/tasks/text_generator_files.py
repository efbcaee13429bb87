"""The folder of a saved text generator."""

import dataclasses

from keras_attn.files import replaced_folder
from keras_attn.generation import DecodingOptions
from keras_attn.models import CausalGeneration
from keras_attn.tasks.chat_templates import ChatTemplate
from keras_attn.tasks.task_files import (
    OPTIONS,
    check_options,
    decoding_of,
    inner_folder,
    model_description,
    model_of,
    options_of,
    read_model,
    reading_config,
    write_parts,
)
from keras_attn.text import load_tokenizer

_OPTIONS = (*OPTIONS, "start_token_id")
_CONFIG_FILE = "text_generator.json"
_FORMAT = 1
_FORMAT_OF_CHECKPOINTS = 2  # which has options of decoding, or a chat template, too


def holds_text_generator(folder):
    """Whether a folder is that of a text generator, or of a run that made one."""
    return (inner_folder(folder, "text_generator", _CONFIG_FILE) / _CONFIG_FILE).is_file()


def write_text_generator(generator, folder):
    """Implements `TextGenerator.save`."""
    description = model_description(generator)
    with replaced_folder(folder, _CONFIG_FILE, "text generator") as built:
        config = {"format": _FORMAT, "model": description, "options": options_of(generator, _OPTIONS)}
        more = {"decoding": decoding_of(generator), "chat_template": _described(generator.chat_template)}
        if more := {name: value for name, value in more.items() if value}:
            config |= {"format": _FORMAT_OF_CHECKPOINTS, **more}
        write_parts(built, _CONFIG_FILE, config, generator.model)
        generator.tokenizer.save(built / "tokenizer")


def read_text_generator(folder):
    """The model, the tokenizer and the options in a folder: the arguments of `TextGenerator`."""
    folder = inner_folder(folder, "text_generator", _CONFIG_FILE)
    with reading_config(folder, _CONFIG_FILE, "text generator") as config:
        if config["format"] not in (_FORMAT, _FORMAT_OF_CHECKPOINTS):
            raise ValueError(f"it has format {config['format']!r}, this version reads formats 1 and 2")
        check_options(config["options"], _OPTIONS, config["options"], "text generator")
        more = {
            "options": DecodingOptions(**config.get("decoding", {})),
            "chat_template": ChatTemplate(**config["chat_template"]) if "chat_template" in config else None,
        }
    model = read_model(folder, _CONFIG_FILE, config, lambda: model_of(config["model"], CausalGeneration))
    return model, load_tokenizer(folder / "tokenizer"), {**config["options"], **more}


def _described(chat_template):
    return None if chat_template is None else dataclasses.asdict(chat_template)
