"""JSON as TF Serving's parser, RapidJSON, reads it: its error messages, and bytes that are not UTF-8 passed through.

In strings of Python, such bytes are surrogate escapes.

References: rapidjson/error/en.h and rapidjson/reader.h, at version 1.1.0.
"""

import json
import math
import re

from keras_attn.serve.errors import RequestError

# What Python's parser says: what RapidJSON says.
_MESSAGES = {
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Illegal trailing comma before end of object": "Missing a name for object member.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Extra data": "The document root must not be followed by other values.",
    "Unterminated string starting at": "Missing a closing quotation mark in string.",
    "Invalid \\escape": "Invalid escape character in string.",
    "Invalid \\uXXXX escape": "Incorrect hex digit after \\u escape in string.",
    "Invalid control character at": "Invalid encoding in string.",
}
_HALF_A_PAIR = "The surrogate pair in string is invalid."
_TOO_BIG = "Number too big to be stored in double."
_MESSAGES |= {message: message for message in (_HALF_A_PAIR, _TOO_BIG)}
TOO_DEEP = "JSON Parse error: The document is nested too deeply."
_DIGITS_OF_A_DOUBLE = 308
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


def parse(body):
    """The object in the bytes of a request.

    Raises:
        RequestError: if they are no JSON, or no object.
    """
    if not body:
        raise RequestError("JSON Parse error: The document is empty")
    text = body.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")

    def decimal(digits):
        number = float(digits)
        if math.isinf(number):
            raise json.JSONDecodeError(_TOO_BIG, text, text.find(digits))
        return number

    def integer(digits):
        return int(digits) if len(digits) <= _DIGITS_OF_A_DOUBLE else decimal(digits)

    try:
        document = json.loads(text, parse_float=decimal, parse_int=integer)
        _check_surrogates(text)
    except json.JSONDecodeError as error:
        offset = len(_encoded(text[: error.pos]))
        raise RequestError(f"JSON Parse error: {_message(error)} at offset: {offset}") from None
    except RecursionError:
        raise RequestError(TOO_DEEP) from None
    if not isinstance(document, dict):
        raise RequestError(f"JSON Value: {pretty(document)} Is not object")
    return document


def _message(error):
    if not error.doc.strip(" \t\r\n"):
        return "The document is empty."
    if error.msg == "Expecting ',' delimiter":
        if _is_in_object(error.doc[: error.pos]):
            return "Missing a comma or } after an object member."
        return "Missing a comma or ] after an array element."
    return _MESSAGES.get(error.msg, "Invalid value.")


def _is_in_object(text):
    """Whether the innermost bracket that is open at the end of `text` is one of an object."""
    brackets = []
    for token in re.findall(r'"(?:\\.|[^"\\])*"|[{}\[\]]', text):
        if token in "{[":
            brackets.append(token)
        elif token in "}]":
            brackets.pop()
    return brackets[-1:] == ["{"]


def _check_surrogates(text):
    """RapidJSON refuses an escaped half of a surrogate pair."""
    if "\\ud" not in text and "\\uD" not in text:
        return
    end_of_high = None
    for match in _ESCAPE.finditer(text):
        code = int(match[1], 16) if match[1] else 0
        is_high = 0xD800 <= code < 0xDC00
        is_low = 0xDC00 <= code < 0xE000
        follows_high = end_of_high == match.start()
        next_is_escape = text.startswith("\\u", match.end())
        if is_low != follows_high or (is_high and not next_is_escape):
            raise json.JSONDecodeError(_HALF_A_PAIR, text, match.start())
        end_of_high = match.end() if is_high else None


def pretty(value):
    """A value as messages show it."""
    return json.dumps(value, indent=4, ensure_ascii=False)


def encode(value, indent=None):
    """The bytes of a JSON answer; surrogate escapes become the bytes that they stand for."""
    return _encoded(json.dumps(value, indent=indent, ensure_ascii=False))


def _encoded(text):
    return text.encode("utf-8", "surrogateescape")
