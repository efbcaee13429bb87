"""A translator from a checkpoint's folder."""

import re

from keras_attn.files import read_json
from keras_attn.huggingface import load_model, read_tokenizer
from keras_attn.tasks.checkpoint_decoding import (
    Decoding,
    fields_of_purpose,
    set_max_sequence_length,
    with_end,
)
from keras_attn.tasks.languages import Languages
from keras_attn.tasks.source_form import LANGUAGE, SourceForm
from keras_attn.tasks.translator import Translator

# How the tokens of languages are written: by mBART, by NLLB and by M2M-100.
_LANGUAGE = re.compile(r"([a-z]{2,3}_[A-Z]{2}|[a-z]{3}_[A-Z][a-z]{3}|__[a-z]{2,3}__)")
# Of a translation, where the files say nothing.
_MAX_LENGTH = 512
_MULTILINGUAL = ("mbart", "m2m_100")


def translator(
    folder,
    config,
    max_length=None,
    num_beams=None,
    length_penalty=None,
    source_language=None,
    target_language=None,
    text_prefix=None,
    purpose=None,
    jit_compile=False,
    dtype=None,
    ignored_fields=(),
    max_sequence_length=None,
):
    """The `Translator` of a marian, t5, mt5, bart, mbart, pegasus or m2m_100 (NLLB) checkpoint.

    Args:
        folder: `pathlib.Path`.
        config: Dict, config.json.
        max_length, num_beams, length_penalty: As in `Translator`; by default what generation_config.json says.
        source_language, target_language: Names of the default languages of a multilingual model.
        text_prefix: String that is put before every text, "summarize: " for instance.
        purpose: Name in `task_specific_params` of config.json, "translation_en_to_de" for instance: what it says, the
            prefix of texts among it, replaces what generation_config.json says.
        jit_compile: As in `Translator`.
        dtype, ignored_fields: As in `keras_attn.huggingface.load_model`; fields of generation_config.json may be ignored
            too.
        max_sequence_length: Integer, the most tokens of a source and of a translation, at most the number of positions
            where these are in a table. Defaults to it, or where positions are computed, to 4,096.

    Raises:
        FileNotFoundError, ValueError: as `load_model` and `read_tokenizer`, for a language or purpose that the checkpoint
            does not have, or for fields of generation_config.json that would change the answers and are not obeyed.
    """
    decoding = Decoding.read(folder, config, "Translator", ignored_fields, purpose)
    if purpose is not None and text_prefix is None:
        text_prefix = fields_of_purpose(config, purpose).get("prefix", "")
    tokenizer_config = _tokenizer_config(folder)
    options = {"source_language": source_language, "ignored_fields": ignored_fields}
    source, target = _tokenizers(folder, options, decoding)
    start = decoding.start_token_id
    form, languages = _form(source, config, tokenizer_config, source_language, target_language)
    form = SourceForm(*form, text_prefix or "")
    first = decoding.token_id("forced_bos_token_id")
    if languages is not None and languages.target is not None:
        if languages.target_is_start:
            start = languages.ids[languages.target]
        else:
            first = languages.ids[languages.target]
    model = load_model(folder, dtype=dtype, ignored_fields=ignored_fields)
    longest = set_max_sequence_length(model, max_sequence_length)
    given = {"max_length": max_length, "num_beams": num_beams, "length_penalty": length_penalty}
    return Translator(
        model,
        source,
        target,
        options=decoding.options(target.end_token_id, first_token_id=first),
        start_token_id=start,
        source_form=form,
        languages=languages,
        jit_compile=jit_compile,
        **decoding.search(given, min(_MAX_LENGTH, longest), longest),
    )


def _tokenizer_config(folder):
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}


def _tokenizers(folder, options, decoding):
    """The tokenizers of sources and of targets: one object, but for Marian's."""
    source = read_tokenizer(folder, **options)
    shared = with_end(source, decoding.end_token_ids)
    if not (folder / "target.spm").is_file():
        return shared, shared
    target = read_tokenizer(folder, side="target", **options)
    return shared, shared if target.description == source.description else with_end(
        target, decoding.end_token_ids
    )


def _form(tokenizer, config, tokenizer_config, source_language, target_language):
    """What stands before and after a source, and the `Languages`, or None."""
    around = tokenizer.around
    names = _languages(tokenizer) if config.get("model_type") in _MULTILINGUAL else {}
    given = {"source_language": source_language, "target_language": target_language}
    for name, value in given.items():
        if value is not None and value not in names:
            known = ", ".join(sorted(names)) or "none"
            raise ValueError(
                f"`{name}` must be a language of the checkpoint: {known}. Received: {name}={value!r}."
            )
    if not names:
        return around, None
    in_template = [name for name, token_id in names.items() if token_id in (*around[0], *around[1])]
    form = tuple(tuple(LANGUAGE if i in names.values() else i for i in ids) for ids in around)
    target = target_language or _known(tokenizer_config.get("tgt_lang"), names)
    # The first mBART begins a translation with its language; the others put START before that.
    target_is_start = LANGUAGE in form[1]
    if target is None and target_is_start:
        start = config.get("decoder_start_token_id")
        target = next((name for name, token_id in names.items() if token_id == start), None)
    return form, Languages(names, next(iter(in_template), None), target, target_is_start)


def _languages(tokenizer):
    """{name: id} of the tokens of languages."""
    tokens = [tokenizer.token_strings([i])[0] for i in tokenizer.special_token_ids]
    return {token.strip("_"): tokenizer.token_id(token) for token in tokens if _LANGUAGE.fullmatch(token)}


def _known(language, names):
    language = language.strip("_") if isinstance(language, str) else None
    return language if language in names else None
