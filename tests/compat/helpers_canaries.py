"""Canaries: small tests of what keras_attn/compat uses, on plain Keras and TensorFlow."""

import ast
import contextlib
import importlib.metadata
import pathlib
import re

import keras_attn

PACKAGE = pathlib.Path(keras_attn.__file__).parent


class Canaries(dict):
    """{name of a function or constant of a compat module: the function that tests it}.

    Args:
        module: Module of keras_attn.compat.
        distribution: The package whose version a failure names, or None.
    """

    def __init__(self, module, distribution=None):
        super().__init__()
        self.path = pathlib.Path(module.__file__)
        self.distribution = distribution
        self.lines = _public_lines(self.path)

    def of(self, *names):
        """Decorator of the test of these names."""

        def register(test):
            self.update(dict.fromkeys(names, test))
            return test

        return register

    @contextlib.contextmanager
    def explained(self, name):
        """Says of whatever fails in the block which line of compat is broken, and what depends on it."""
        try:
            yield
        except Exception as error:
            version = f" {importlib.metadata.version(self.distribution)}" if self.distribution else ""
            place = self.path.relative_to(PACKAGE.parent)
            raise AssertionError(
                f"{place}:{self.lines[name]}: `{name}` does not hold with {self.distribution or 'this system'}{version} "
                f"({type(error).__name__}: {error}). It is used by {', '.join(users_of(name, self.path))}."
            ) from error


def _public_lines(path):
    """{public name: the line of its definition} of a module."""
    lines = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            lines[node.name] = node.lineno
        elif isinstance(node, ast.Assign):
            lines[node.targets[0].id] = node.lineno
    return {name: line for name, line in lines.items() if not name.startswith("_")}


def users_of(name, path):
    """The files of the library, without that at `path`, in which a name of compat stands."""
    files = [file for file in sorted(PACKAGE.rglob("*.py")) if file != path]
    is_used = re.compile(rf"\b{name}\b")
    return [
        file.relative_to(PACKAGE).as_posix()
        for file in files
        if "compat" in (text := file.read_text(encoding="utf-8")) and is_used.search(text)
    ]
