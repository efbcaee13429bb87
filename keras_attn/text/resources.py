"""Helpers for tokenizers: optional packages, and files in a tokenizer's folder."""

import hashlib
import importlib
from pathlib import Path

TENSORFLOW_TEXT = "tensorflow-text>=2.20.1,!=2.21.0"


def import_package(module, requirement, needed_by):
    """The module, or an ImportError with the pip command."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f'{needed_by} needs {module}. Install it: pip install "{requirement}". '
            "Where it has no wheel, ByteTokenizer needs TensorFlow alone."
        ) from error


def write_file(folder, name, content):
    """Writes bytes to a file and returns their SHA-256, for `read_file` to compare with."""
    (Path(folder) / name).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def read_file(folder, name, sha256):
    """The bytes of a file that `write_file` wrote, or an error if it is missing, truncated or different."""
    path = Path(folder) / name
    if not path.is_file():
        raise FileNotFoundError(f"`folder` must hold {name}. Received: folder={str(folder)!r}.")
    content = path.read_bytes()
    # A protocol buffer that was truncated at a field boundary still parses, with fewer pieces; so does a list
    # of words.
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(
            f"{path} is damaged or belongs to another tokenizer: its SHA-256 is not the one in "
            "tokenizer.json. Copy the whole folder again."
        )
    return content
