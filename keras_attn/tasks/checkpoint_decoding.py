"""What a checkpoint's generation_config.json says: the tokens that begin and end answers, and the defaults of a search."""

import dataclasses

from keras_attn.files import read_json
from keras_attn.generation import DecodingOptions

FILE = "generation_config.json"
_NEUTRAL = {"min_length": 0, "no_repeat_ngram_size": 0, "repetition_penalty": 1.0}
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


@dataclasses.dataclass(frozen=True)
class Decoding:
    """The fields of a checkpoint's generation_config.json, or of its config.json where there is no such file.

    Args:
        fields: Dict.
        model_fields: Dict, config.json, whose ids of tokens hold where `fields` have none.

    Example:

    ```python
    decoding = Decoding.read("opus-mt-en-de", {"eos_token_id": 0})
    decoding.end_token_ids  # [0]
    ```
    """

    fields: dict
    model_fields: dict

    @classmethod
    def read(cls, folder, config):
        """From a folder (`pathlib.Path`) and its config.json."""
        path = folder / FILE
        return cls(read_json(path) if path.is_file() else config, config)

    def get(self, name, default=None):
        """A field that is there and not null."""
        value = self.fields.get(name)
        if value is None and name in _TOKENS:
            value = self.model_fields.get(name)
        return default if value is None else value

    def token_id(self, name):
        """The id of one token, or None."""
        value = self.get(name)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self._wrong(name, "an id")
        return value

    @property
    def end_token_ids(self):
        """The ids that end an answer; the first is the best known."""
        value = self.get("eos_token_id", [])
        value = value if isinstance(value, list) else [value]
        if not all(isinstance(token_id, int) for token_id in value):
            raise self._wrong("eos_token_id", "an id or a list of ids")
        return value

    def search(self, given, longest):
        """The arguments of a task: what is given, else what the files say.

        Args:
            given: Dict with `num_beams`, `length_penalty`, `max_length`; None stands for nothing given.
            longest: Integer, the largest `max_length`.
        """
        found = {
            "num_beams": self.get("num_beams", 1),
            "length_penalty": float(self.get("length_penalty", 1.0)),
            "max_length": min(self.get("max_new_tokens", longest), longest),
        }
        return found | {name: value for name, value in given.items() if value is not None}

    def options(self, end_token_id, **more):
        """`DecodingOptions` of the task.

        Args:
            end_token_id: Integer, END; the other ids that end an answer become stop tokens.
            **more: Options in place of what the files say; None for none.
        """
        stops = [token_id for token_id in self.end_token_ids if token_id != end_token_id]
        last = self.get("forced_eos_token_id")
        last = last[0] if isinstance(last, list) else last
        found = {
            # Theirs counts START, and ours END.
            "min_length": self.get("min_length"),
            "no_repeat_ngram_size": self.get("no_repeat_ngram_size"),
            "repetition_penalty": self.get("repetition_penalty"),
            "last_token_id": last,
            "stop_token_ids": stops or None,
            "suppressed_token_ids": self._suppressed() or None,
        }
        if self.get("min_new_tokens"):
            found["min_length"] = self.get("min_new_tokens") + 1
        found |= more
        return DecodingOptions(
            **{
                name: value
                for name, value in found.items()
                if value is not None and value != _NEUTRAL.get(name)
            }
        )

    def _suppressed(self):
        words = [*(self.get("bad_words_ids") or [])]
        if any(len(word) > 1 for word in words):
            raise self._wrong("bad_words_ids", "words of one token: no others are forbidden here")
        return sorted({*(self.get("suppress_tokens") or []), *(word[0] for word in words)})

    def _wrong(self, name, wanted):
        return ValueError(f"`{name}` of {FILE} must be {wanted}. Received: {name}={self.get(name)!r}.")


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
