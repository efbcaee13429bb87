"""Chat templates as data: what stands before and after each message. Known templates are recognised, none is run."""

import dataclasses
import re


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
        before, (first, *rest) = "", messages
        if self.system is not None and first[0] == "system":
            before, messages = self.system[0] + first[1] + self.system[1], rest
        parts = [self._filled(self.before, tokens)]
        for number, (role, content) in enumerate(messages):
            wanted = ("user", "assistant")[number % 2]
            if role not in self.roles or (self.alternates and role != wanted):
                known = f"here: {wanted}" if self.alternates else f"among {', '.join(self.roles)}"
                raise ValueError(f"The role of message {number} must be {known}. Received: role={role!r}.")
            content = before + content
            start, stop = (self._filled(text, tokens) for text in self.roles[role])
            parts += [start, content.strip() if self.trims else content, stop]
            before = ""
        return "".join([*parts, self._filled(self.answer, tokens)])

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
_OF_MISTRAL = (
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
    _OF_MISTRAL.replace("ANSWER", ""): _MISTRAL,
    _OF_MISTRAL.replace("ANSWER", "+ ' ' "): _MISTRAL_1,
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
