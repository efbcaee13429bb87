"""Writes the table of a recipe's settings into docs/training.md, from their declarations in keras_attn/runs/recipe_fields.py.

python docs/make_settings.py           # writes the table
python docs/make_settings.py --check   # says whether it is up to date
"""

import argparse
import dataclasses
import itertools
import pathlib
import sys

from keras_attn.runs.recipe_fields import RecipeFields, is_optional, values_in_words

PAGE = pathlib.Path(__file__).resolve().parent / "training.md"
HEAD = "| setting | values | default | what it is | also set by |\n|---|---|---|---|---|\n"


def table():
    """The table, a row for each field in the order of their declaration."""
    return HEAD + "".join(map(row, dataclasses.fields(RecipeFields)))


def row(field):
    declared = field.metadata["setting"]
    cells = [
        f"`{field.name}`",
        values_in_words(field).removesuffix(", or None"),
        default(field),
        declared.help,
        ", ".join(setters(field)),
    ]
    return f"| {' | '.join(cells)} |\n"


def default(field):
    """The default as TOML has it; nothing where there is none."""
    if (is_optional(field) and field.default is None) or field.default in ((), dataclasses.MISSING):
        return ""
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    if isinstance(field.default, tuple):
        return f"`{list(field.default)}`"
    if isinstance(field.default, str):
        return f'`"{field.default}"`'
    return f"`{field.default!r}`"


def setters(field):
    """What else than a recipe's author sets a field: a list of words."""
    declared = field.metadata["setting"]
    words = []
    if declared.commands:
        words.append(f"`{declared.flag or '--' + field.name.replace('_', '-')}`")
    if declared.fitted:
        words.append("the data")
    if declared.planned:
        words.append("`minutes`")
    return words


def page(text):
    """The text of the page with the table in the place of its table."""
    before, _, rest = text.partition(HEAD)
    lines = rest.splitlines(keepends=True)
    after = itertools.dropwhile(lambda line: line.startswith("|"), lines)
    return before + table() + "".join(after)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    written = PAGE.read_text(encoding="utf-8")
    if not options.check:
        PAGE.write_text(page(written), encoding="utf-8")
    elif page(written) != written:
        sys.exit(f"{PAGE.name} is not what the declarations say: python docs/make_settings.py")
