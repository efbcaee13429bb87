"""What a checkpoint's generation_config.json says: the tokens that begin and end answers, and the defaults of a search."""

import dataclasses

from keras_attn.files import read_json
from keras_attn.generation import DecodingOptions
from keras_attn.huggingface.generation_fields import (
    GENERATION_FILE,
    GENERATOR,
    check_generation_fields,
)
from keras_attn.models.base_model import checked_max_sequence_length

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
        value = value if isinstance(value, list) else [value]
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
        max_length = default if max_length is None else max_length
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
