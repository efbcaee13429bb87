"""What a Markdown text promises: its code, its commands and its links."""

import re
import shlex
from typing import NamedTuple


class Block(NamedTuple):
    """A fenced block of code."""

    language: str
    code: str
    line: int  # of the first line of code, counted from 1


def code_blocks(text):
    """Every fenced block; fences may be indented, as in a list, and so is then their code."""
    pattern = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
    for match in pattern.finditer(text):
        indent, language, code = match.groups()
        code = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        yield Block(language, code, line=text.count("\n", 0, match.start(3)) + 1)


def commands(code):
    """The simple commands of a piece of bash, each a list of words: no comments, redirections or settings."""
    for line in re.sub(r"\\\n", " ", code).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.wordchars += "$%@:,+="
        words = []
        for word in [*lexer, "&&"]:
            if set(word) <= set("&|;()"):
                if words:
                    yield _without_redirections_and_settings(words)
                words = []
            else:
                words.append(word)


def _without_redirections_and_settings(words):
    words = [
        word
        for before, word in zip(["", *words], words)
        if not (set(word) <= set("<>") or set(before) & set("<>"))
    ]
    while words and re.fullmatch(r"\w+=.*", words[0]):
        words = words[1:]
    return words


def links(text):
    """The targets of links and pictures outside code, without those of the web."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)[^)]*\)|(?:src|href)=\"([^\"]+)\"", text)
    return [a or b for a, b in targets if not re.match(r"(https?:|mailto:)", a or b)]


def anchors(text):
    """The names that GitHub gives to the headings."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for heading in re.findall(r"^#+ +(.*?)\s*$", text, flags=re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
