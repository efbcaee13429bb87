"""What stands around texts: around the tokens of a source, and around the messages of a conversation."""

import collections
import dataclasses
import re

import numpy as np
import tensorflow as tf

# Stands for the token of the source's language in `SourceForm.before` and `SourceForm.after`.
LANGUAGE = -1


@dataclasses.dataclass(frozen=True)
class SourceForm:
    """The token ids of a source: `before`, those of its text, `after`.

    Args:
        before, after: Tuples of integers; `LANGUAGE` stands for the token of the source's language.
        text_prefix: String that every text begins with, the name of the task for instance, as T5 was trained with.

    Example:

    ```python
    form = SourceForm(after=(3,), text_prefix="translate English to German: ")
    ```
    """

    before: tuple = ()
    after: tuple = ()
    text_prefix: str = ""

    def __post_init__(self):
        for name in ("before", "after"):  # lists, if they come from JSON
            object.__setattr__(self, name, tuple(map(int, getattr(self, name))))
        if not isinstance(self.text_prefix, str):
            raise ValueError(f"`text_prefix` must be a string. Received: text_prefix={self.text_prefix!r}.")

    @property
    def num_special(self):
        """How many tokens stand around a text's."""
        return len(self.before) + len(self.after)

    def num_added(self, tokenizer):
        """How many tokens the source of an empty text has."""
        if not self.text_prefix:
            return self.num_special
        [prefix] = tokenizer.encode([self.text_prefix])
        return self.num_special + len(prefix)

    def token_ids(self, tokenizer, texts, max_sequence_length, language_ids=None):
        """The ids of sources, of which the text is cut if they are too long.

        Args:
            tokenizer: The tokenizer of the source.
            texts: Strings (B,).
            max_sequence_length: Integer, the most ids of a source.
            language_ids: int32 (B,), the token of each source's language, if the form has one.

        Returns:
            Ragged ids (B, None), and booleans (B,): which were cut.
        """
        if self.text_prefix:
            texts = tf.strings.join([self.text_prefix, texts])
        whole = tokenizer.tokenize(texts)
        room = max_sequence_length - self.num_special
        before = self._in_each_row(self.before, whole, language_ids)
        after = self._in_each_row(self.after, whole, language_ids)
        token_ids = tf.concat([before, whole[:, :room], after], axis=1)
        return token_ids, whole.row_lengths() > room

    def _in_each_row(self, ids, whole, language_ids):
        """`before` or `after` as a tensor (B, number of ids), the language's token of each source in its place."""
        rows = tf.tile(tf.constant([ids], whole.dtype, [1, len(ids)]), [whole.nrows(), 1])
        if LANGUAGE not in ids:
            return rows
        language = tf.cast(language_ids, whole.dtype)[:, tf.newaxis]
        return tf.where(rows == LANGUAGE, language, rows)


class Languages(collections.namedtuple("Languages", ["ids", "source", "target", "target_is_start"])):
    """The languages that a translator knows.

    ids: dict from names to the ids of their tokens.
    source, target: the names of the defaults, or None where there is none.
    target_is_start: whether a translation begins with its language in place of START, as in the first mBART.

    Example:

    ```python
    languages = Languages({"en": 7, "de": 8}, source="en", target="de", target_is_start=False)
    ids = languages.rows("target", ["en", "de"], num_texts=2)
    ```
    """

    __slots__ = ()

    def rows(self, side, names, num_texts):
        """The id of each text's language, int32 (B,), or None if there is none.

        Args:
            side: "source" or "target".
            names: A name, a list of names, or None for the default.
            num_texts: Integer B.

        Raises:
            ValueError: for an unknown name, or another number of names than texts.
        """
        if names is None:
            names = getattr(self, side)
        if names is None:
            return None
        names = [names] * num_texts if isinstance(names, str) else list(names)
        unknown = sorted({str(name) for name in names} - set(self.ids))
        if unknown:
            raise ValueError(
                f"`{side}_language` must be among {_shown(self.ids)}. Received: {side}_language={unknown[0]!r}."
            )
        if len(names) != num_texts:
            raise ValueError(
                f"`{side}_language` must be one for all texts or one for each. Received: {len(names)} of them for "
                f"{num_texts} texts."
            )
        return np.array([self.ids[name] for name in names], "int32")

    def ids_of(self, side, names):
        """In a graph: the ids int32 (B,) of names, strings (B,), and which are unknown; "" is the default.

        An unknown name is taken for the default; without a default the id is -1.
        """
        known = tf.constant(list(self.ids))
        ids = tf.constant([*self.ids.values(), self.default(side)], tf.int32)
        is_name = names[:, tf.newaxis] == known
        is_known = tf.reduce_any(is_name, axis=1)
        index = tf.where(is_known, tf.argmax(is_name, axis=1, output_type=tf.int32), len(self.ids))
        return tf.gather(ids, index), ~is_known & (names != "")

    def default(self, side):
        """The id of a side's default language, -1 if there is none."""
        return self.ids.get(getattr(self, side), -1)


def _shown(names, most=8):
    names = sorted(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """How a conversation is written as one text.

    Args:
        roles: Dict from a role, "user" for instance, to the texts before and after its messages.
        before: String at the very beginning.
        answer: String after the last message, where the model goes on.
        trims: Whether white space around a message is left out.
        alternates: Whether messages must be a user's and the assistant's in turn, the first a user's.
        system: The texts around a system message that is written into the first message of the user, or None if a system
            message has a role of its own, or is not possible.

    In all strings, `{bos}` and `{eos}` stand for the tokenizer's tokens.

    Example:

    ```python
    template = ChatTemplate({"user": ("Q: ", "\\n"), "assistant": ("A: ", "\\n")}, answer="A: ")
    template.text([{"role": "user", "content": "Why?"}], {})  # "Q: Why?\\nA: "
    ```
    """

    roles: dict
    before: str = ""
    answer: str = ""
    trims: bool = False
    alternates: bool = False
    system: tuple | None = None

    def text(self, messages, tokens):
        """The text of a conversation.

        Args:
            messages: List of dicts with the strings `role` and `content`.
            tokens: Dict with the texts of `bos` and `eos`.

        Raises:
            ValueError: for a message that is none, or a role that the template does not have there.
        """
        messages = [_message(message) for message in messages]
        if not messages:
            raise ValueError("`messages` must have a message. Received: none.")
        before = ""
        role, content = messages[0]
        if self.system is not None and role == "system":
            before = self.system[0] + content + self.system[1]
            messages = messages[1:]
        parts = [self._filled(self.before, tokens)]
        for number, (role, content) in enumerate(messages):
            wanted = ("user", "assistant")[number % 2]
            if role not in self.roles or (self.alternates and role != wanted):
                known = f"here: {wanted}" if self.alternates else f"among {', '.join(self.roles)}"
                raise ValueError(f"The role of message {number} must be {known}. Received: role={role!r}.")
            content = before + content
            if self.trims:
                content = content.strip()
            start, stop = self.roles[role]
            parts += [self._filled(start, tokens), content, self._filled(stop, tokens)]
            before = ""
        parts.append(self._filled(self.answer, tokens))
        return "".join(parts)

    def _filled(self, text, tokens):
        for name in ("bos", "eos"):
            if f"{{{name}}}" in text:
                text = text.replace(f"{{{name}}}", tokens.get(name, ""))
        return text


def _message(message):
    role = message.get("role") if isinstance(message, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(role, str) or not isinstance(content, str):
        raise ValueError(
            f"`messages` must be dicts with the strings `role` and `content`. Received: {message!r:.100}"
        )
    return role, content


_CHATML = ChatTemplate(
    {role: (f"<|im_start|>{role}\n", "<|im_end|>\n") for role in ("system", "user", "assistant")},
    answer="<|im_start|>assistant\n",
)
_LLAMA_3 = ChatTemplate(
    {
        role: (f"<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>")
        for role in ("system", "user", "assistant")
    },
    before="{bos}",
    answer="<|start_header_id|>assistant<|end_header_id|>\n\n",
    trims=True,
)
_LLAMA_2 = ChatTemplate(
    {"user": ("{bos}[INST] ", " [/INST]"), "assistant": (" ", " {eos}")},
    trims=True,
    alternates=True,
    system=("<<SYS>>\n", "\n<</SYS>>\n\n"),
)
_GEMMA = ChatTemplate(
    {
        "user": ("<start_of_turn>user\n", "<end_of_turn>\n"),
        "assistant": ("<start_of_turn>model\n", "<end_of_turn>\n"),
    },
    before="{bos}",
    answer="<start_of_turn>model\n",
    trims=True,
    alternates=True,
)
_MISTRAL = ChatTemplate(
    {"user": ("[INST] ", " [/INST]"), "assistant": ("", "{eos}")}, before="{bos}", alternates=True
)
_MISTRAL_1 = dataclasses.replace(_MISTRAL, roles={**_MISTRAL.roles, "assistant": ("", "{eos} ")})

_TURNS = (
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate "
    "user/assistant/user/assistant/...') }}{% endif %}"
)
_MISTRAL_TEXT = (
    "{{ bos_token }}{% for message in messages %}"
    + _TURNS
    + "{% if message['role'] == 'user' %}{{ '[INST] ' + "
    "message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token ANSWER}}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
# The templates as the files of the hub have them, by what they come to. White space between the parts does not matter.
_KNOWN = {
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}": _CHATML,
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% for message in "
    "messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}": _CHATML,
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}": _LLAMA_3,
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
    "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}"
    + _TURNS
    + "{% if loop.index0 == 0 and system_message != false %}{% set content = "
    "'<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = "
    "message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + "
    "' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}"
    "{% endfor %}": _LLAMA_2,
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    + _TURNS
    + "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}"
    "{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + "
    "'<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}": _GEMMA,
    _MISTRAL_TEXT.replace("ANSWER", ""): _MISTRAL,
    _MISTRAL_TEXT.replace("ANSWER", "+ ' ' "): _MISTRAL_1,
}


def _plain(template):
    """A template without the white space around its parts and operators, and with one kind of line break."""
    template = re.sub(
        r"\s*(\{%-?|-?%\}|\{\{-?|-?\}\}|[+|()])\s*", lambda match: match[1].replace("-", ""), template
    )
    return template.replace("\n", "\\n").strip()


_PLAIN = {_plain(template): chat for template, chat in _KNOWN.items()}


def known_template(template):
    """The `ChatTemplate` that a Jinja template of tokenizer_config.json comes to, or None if it is not one of the known.

    Args:
        template: String. It is compared with the templates of ChatML, Llama 2 and 3, Gemma and Mistral; nothing is run.

    Example:

    ```python
    known_template("{{ anything }}")  # None
    ```
    """
    return _PLAIN.get(_plain(template)) if isinstance(template, str) else None
