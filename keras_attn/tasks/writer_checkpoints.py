"""Checkpoints of models that write texts: what generation_config.json says, and the arguments of `Translator`."""

import dataclasses
import re

from keras_attn import opennmt
from keras_attn.files import read_json
from keras_attn.generation import DecodingOptions
from keras_attn.huggingface import load_model, read_tokenizer
from keras_attn.huggingface.generation_fields import GENERATION_FILE, GENERATOR, check_generation_fields
from keras_attn.models.base_model import checked_max_sequence_length
from keras_attn.tasks.text_forms import LANGUAGE, Languages, SourceForm

_NEUTRAL = {"min_length": 0, "no_repeat_ngram_size": 0, "repetition_penalty": 1, "renormalize": False}
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


@dataclasses.dataclass(frozen=True)
class Decoding:
    """The fields of a checkpoint's generation_config.json, or of its config.json where there is no such file.

    Args:
        fields: Dict.
        model_fields: Dict, config.json, whose ids of tokens hold where `fields` have none.
        task: "Translator" or "TextGenerator".

    Example:

    ```python
    decoding = Decoding.read("opus-mt-en-de", {"eos_token_id": 0}, "Translator")
    decoding.end_token_ids  # [0]
    ```
    """

    fields: dict
    model_fields: dict
    task: str

    @classmethod
    def read(cls, folder, config, task, ignored_fields=(), purpose=None):
        """From a folder.

        Args:
            folder: `pathlib.Path`.
            config: Dict, its config.json.
            task: "Translator" or "TextGenerator".
            ignored_fields: Names of fields without which the search goes on.
            purpose: Name in `task_specific_params` of config.json, whose fields replace those of the file; or None.

        Raises:
            ValueError: if a field would change the answers and is not obeyed, or there is no such purpose.
        """
        path = folder / GENERATION_FILE
        own = read_json(path) if path.is_file() else None
        fields = dict(config if own is None else own)
        if purpose is not None:
            params = fields_of_purpose(config, purpose)
            fields |= {name: value for name, value in params.items() if name != "prefix"}  # of sources
            own = fields if own is not None else None
        check_generation_fields(own, fields, task, ignored_fields)
        fields = {name: value for name, value in fields.items() if name not in ignored_fields}
        # As `GenerationConfig` does it with fields that come from a config.json.
        is_of_model = own is None or fields.get("_from_model_config")
        if is_of_model and fields.get("force_bos_token_to_be_generated"):
            fields["forced_bos_token_id"] = fields.get("bos_token_id")
        return cls(fields, config, task)

    def get(self, name, default=None):
        """A field that is there and not null."""
        value = self.fields.get(name)
        if value is None and name in _TOKENS:
            value = self.model_fields.get(name)
        return default if value is None else value

    def token_id(self, name, fields=None):
        """The id of one token, or None; of these fields, or of all."""
        value = self.get(name) if fields is None else fields.get(name)
        if isinstance(value, list) and value and len(set(map(str, value))) == 1:
            value = value[0]
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self._wrong(name, "an id")
        return value

    @property
    def start_token_id(self):
        """The id of the token before an answer of a model with an encoder.

        Raises:
            ValueError: if neither file names one.
        """
        for fields in (self.fields, self.model_fields):
            for name in ("decoder_start_token_id", "bos_token_id"):
                if fields.get(name) is not None:
                    return self.token_id(name, fields)
        raise ValueError("A checkpoint must name its decoder_start_token_id or bos_token_id. Received none.")

    @property
    def end_token_ids(self):
        """The ids that end an answer; the first is the best known."""
        value = self.get("eos_token_id", [])
        if not isinstance(value, list):
            value = [value]
        if not all(isinstance(token_id, int) for token_id in value):
            raise self._wrong("eos_token_id", "an id or a list of ids")
        return value

    def search(self, given, default, longest):
        """The arguments of a task: what is given, else what the files say.

        Args:
            given: Dict with `num_beams`, `length_penalty`, `max_length`; None stands for nothing given.
            default: Integer, `max_length` where the files say nothing.
            longest: Integer, the largest `max_length`.
        """
        max_length = self.get("max_new_tokens")
        if max_length is None and self.task != GENERATOR and self.get("max_length") is not None:
            max_length = max(1, self.get("max_length") - 1)  # theirs counts START
        if max_length is None:
            max_length = default
        arguments = {
            "num_beams": self.get("num_beams", 1),
            "length_penalty": float(self.get("length_penalty", 1.0)),
            "max_length": min(max_length, longest),
        }
        return arguments | {name: value for name, value in given.items() if value is not None}

    def options(self, end_token_id, **more):
        """`DecodingOptions` of the task.

        Args:
            end_token_id: Integer, END; the other ids that end an answer become stop tokens.
            **more: Options in place of what the files say; None for none.
        """
        stops = [token_id for token_id in self.end_token_ids if token_id != end_token_id]
        stopping = self.get("early_stopping")
        options = {
            "min_length": self._min_length(),
            "no_repeat_ngram_size": self.get("no_repeat_ngram_size"),
            "repetition_penalty": self.get("repetition_penalty"),
            "renormalize": self.get("renormalize_logits"),
            "last_token_id": self.token_id("forced_eos_token_id"),
            "stop_token_ids": stops or None,
            "suppressed_token_ids": self._suppressed() or None,
            "suppressed_first_token_ids": self.get("begin_suppress_tokens") or None,
            "exact_stopping": True if stopping == "never" else None,
            "early_stopping": True if stopping is True else None,
        }
        options |= more
        return DecodingOptions(
            **{
                name: value
                for name, value in options.items()
                if value is not None and value != _NEUTRAL.get(name)
            }
        )

    def _min_length(self):
        """The fewest tokens of an answer, END included, or None."""
        if self.get("min_new_tokens"):
            return self.get("min_new_tokens") + 1  # theirs does not count END
        # Theirs counts START, and ours END. That of a language model counts the prompt, and is refused.
        return None if self.task == GENERATOR else self.get("min_length")

    def _suppressed(self):
        # A bad word that is END alone is none there.
        words = {word[0] for word in self.get("bad_words_ids", [])} - set(self.end_token_ids)
        return sorted({*self.get("suppress_tokens", []), *words})

    def _wrong(self, name, wanted):
        return ValueError(
            f"`{name}` of {GENERATION_FILE} must be {wanted}. Received: {name}={self.get(name)!r}."
        )


def fields_of_purpose(config, purpose):
    """What `task_specific_params` of a config.json says for a purpose, a dict.

    Raises:
        ValueError: if it has no such purpose.
    """
    known = config.get("task_specific_params") or {}
    if purpose not in known:
        raise ValueError(
            f"`purpose` must be in task_specific_params of config.json: {sorted(known) or 'there are none'}. "
            f"Received: purpose={purpose!r}."
        )
    return known[purpose]


def set_max_sequence_length(model, max_sequence_length=None):
    """Sets the longest sequence of a model, unless None is given, and returns what it is.

    Raises:
        ValueError: if the model has fewer positions in a table.
    """
    if max_sequence_length is not None:
        names = ("embedding", "source_embedding", "target_embedding")
        embeddings = [getattr(model, name) for name in names if hasattr(model, name)]
        model.max_sequence_length = checked_max_sequence_length(max_sequence_length, *embeddings)
    return model.max_sequence_length


def with_end(tokenizer, end_token_ids):
    """The tokenizer, whose END is one of these ids: its own, if it is among them, else the first.

    Raises:
        ValueError: if neither the files of the model nor those of the tokenizer name an END.
    """
    own = tokenizer.end_token_id
    if own in end_token_ids or (own is not None and not end_token_ids):
        return tokenizer
    if not end_token_ids:
        raise ValueError("A checkpoint must name the token that ends a text: eos_token_id. Received none.")
    [end] = tokenizer.token_strings(end_token_ids[:1])
    roles = {role: token for role, token in tokenizer.special_tokens.items() if role != "sep_token"}
    return tokenizer.with_special_tokens({**roles, "eos_token": end})


# How the tokens of languages are written: by mBART, by NLLB and by M2M-100.
_LANGUAGE = re.compile(r"([a-z]{2,3}_[A-Z]{2}|[a-z]{3}_[A-Z][a-z]{3}|__[a-z]{2,3}__)")
# Of a translation, where the files say nothing.
_MAX_LENGTH = 512
_MULTILINGUAL = ("mbart", "m2m_100")
# What OpenNMT-tf's `--auto_config` gives a Transformer, and its default.
_OPENNMT_NUM_BEAMS = 4
_OPENNMT_MAX_LENGTH = 250


def checkpoint_parts(
    folder,
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
    """Those of a marian, t5, mt5, bart, mbart, pegasus or m2m_100 (NLLB) checkpoint.

    Args:
        folder: `pathlib.Path`.
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
    config = read_json(folder / "config.json")
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
    return {
        "model": model,
        "source_tokenizer": source,
        "target_tokenizer": target,
        "options": decoding.options(target.end_token_id, first_token_id=first),
        "start_token_id": start,
        "source_form": form,
        "languages": languages,
        "jit_compile": jit_compile,
        **decoding.search(given, min(_MAX_LENGTH, longest), longest),
    }


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
    if target.description == source.description:
        return shared, shared
    return shared, with_end(target, decoding.end_token_ids)


def _form(tokenizer, config, tokenizer_config, source_language, target_language):
    """What stands before and after a source, and the `Languages`, or None."""
    around = tokenizer.around
    names = _language_ids(tokenizer) if config.get("model_type") in _MULTILINGUAL else {}
    given = {"source_language": source_language, "target_language": target_language}
    for name, value in given.items():
        if value is not None and value not in names:
            known = ", ".join(sorted(names)) or "none"
            raise ValueError(
                f"`{name}` must be a language of the checkpoint: {known}. Received: {name}={value!r}."
            )
    if not names:
        return around, None
    before, after = around
    in_template = [name for name, token_id in names.items() if token_id in (*before, *after)]
    language_ids = set(names.values())
    form = tuple(tuple(LANGUAGE if i in language_ids else i for i in ids) for ids in around)
    target = target_language or _known_language(tokenizer_config.get("tgt_lang"), names)
    # The first mBART begins a translation with its language; the others put START before that.
    target_is_start = LANGUAGE in form[1]
    if target is None and target_is_start:
        start = config.get("decoder_start_token_id")
        target = next((name for name, token_id in names.items() if token_id == start), None)
    return form, Languages(names, next(iter(in_template), None), target, target_is_start)


def _language_ids(tokenizer):
    """{name: id} of the tokens of languages."""
    tokens = tokenizer.token_strings(tokenizer.special_token_ids)
    return {token.strip("_"): tokenizer.token_id(token) for token in tokens if _LANGUAGE.fullmatch(token)}


def _known_language(language, names):
    language = language.strip("_") if isinstance(language, str) else None
    return language if language in names else None


def opennmt_parts(
    folder,
    max_length=None,
    num_beams=None,
    length_penalty=None,
    num_heads=None,
    model_type=None,
    checkpoint=None,
    dtype=None,
    ignored_fields=(),
):
    """Those of a Transformer of OpenNMT-tf 2.

    Its `params` in the YAML file are the defaults: `beam_width`, `maximum_decoding_length` and `minimum_decoding_length`. Their
    `length_penalty` is that of Wu et al. 2016, which is no default of a task: where the file has one, say what holds instead.

    Args:
        folder: Path of what OpenNMT-tf calls `model_dir`, with the YAML file and the vocabularies; or of its `avg`.
        max_length, num_beams: As in `Translator`.
        length_penalty: As in `Translator`, 0 by default. A call takes Wu's as `DecodingOptions(wu_length_penalty=0.6)`.
        num_heads, model_type, checkpoint, dtype: As in `keras_attn.opennmt.load_model`.
        ignored_fields: Names in `params` that are not followed, "coverage_penalty" for instance.

    Raises:
        FileNotFoundError, ValueError: as `load_model` and `read_tokenizer`, or for an option of a search that has no equal.
    """
    settings = opennmt.Settings.read(folder, model_type)
    settings.check_params(ignored_fields)
    wu = settings.param("length_penalty", 0)
    if wu and length_penalty is None:
        raise ValueError(
            f"`length_penalty` in `params` is that of Wu et al. 2016, which a translator does not have as its default. "
            f"Received: length_penalty={wu}. Give `length_penalty`, the power of its length that a score is divided by, 0 for "
            f"none; calls and the signature `translate` take `wu_length_penalty={wu}` too."
        )
    marks_start, marks_end = settings.source_marks()
    source = opennmt.read_tokenizer(settings, "source")
    target = source
    if not settings.has_one_tokenizer:
        target = opennmt.read_tokenizer(settings, "target")
    model = opennmt.load_model(folder, num_heads, model_type, checkpoint, dtype)
    sides = [
        ("source", source, model.vocabulary_size),
        ("target", target, model.target_vocabulary_size or model.vocabulary_size),
    ]
    for side, tokenizer, size in sides:
        if tokenizer.vocabulary_size != size:
            raise ValueError(
                f"The {side} vocabulary must have {size - 1} lines, one fewer than the rows of the embedding. "
                f"Received: {tokenizer.vocabulary_size - 1} lines."
            )
    options = {}
    if shortest := int(settings.param("minimum_decoding_length", 0)):
        options["min_length"] = shortest + 1  # END counts here
    search = {
        "num_beams": int(settings.param("beam_width", _OPENNMT_NUM_BEAMS)),
        "length_penalty": 0.0,
        "max_length": int(settings.param("maximum_decoding_length", _OPENNMT_MAX_LENGTH)),
    }
    given = {"max_length": max_length, "num_beams": num_beams, "length_penalty": length_penalty}
    search |= {name: value for name, value in given.items() if value is not None}
    return {
        "model": model,
        "source_tokenizer": source,
        "target_tokenizer": target,
        "options": DecodingOptions(**options),
        "source_form": SourceForm((source.start_token_id,) * marks_start, (source.end_token_id,) * marks_end),
        **search,
    }
