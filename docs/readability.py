"""Measures how the pages read: how long their sentences are, their grade, and words that make a reader read twice.

    python docs/readability.py             # every page; ends with 1 if one is above its level
    python docs/readability.py README.md   # some pages, with their longest sentences

Only prose counts: code, tables, headings, pictures and addresses are left out, and `code` within a line is one word. Tables are
searched for hinges alone. The grade is the automated readability index, which textstat computes without a dictionary of syllables
(it would download that one).
"""

import argparse
import pathlib
import re
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("docs", "examples", "saved_models")
# Pages that are kept as they were, and pages that a program writes.
EXEMPT = ("docs/archive/", "docs/_build/", "saved_models/")
# No page is above these: its grade, the words of nine of ten sentences, and the words of the longest one. They are what the
# Learn pages have, which readers like.
LEVEL = {"grade": 8.5, "most words": 24, "longest": 33}
# Words on which a sentence turns twice; in German they are fine.
HINGES = re.compile(
    r"\b(of which|that of|those of|beside other work|of ours again|that it and its|where that is so|so that of)\b"
)
ABBREVIATIONS = re.compile(r"\b(al|e\.g|i\.e|vs|cf|Fig|No)\.(?=\s)")


class Figures(NamedTuple):
    """What was measured of one page. `longest` and `hinges` are lists of sentences."""

    num_sentences: int
    grade: float
    most_words: int
    longest: list
    hinges: list

    def above(self):
        """What is above its level, in words; an empty list if nothing is."""
        measured = {
            "grade": self.grade,
            "most words": self.most_words,
            "longest": num_words(self.longest[0]) if self.longest else 0,
        }
        found = [
            f"{name} {value:g}, at most {LEVEL[name]:g}"
            for name, value in measured.items()
            if value > LEVEL[name]
        ]
        return found + [f"reads twice: {sentence}" for sentence in self.hinges]


def pages():
    """The paths of all pages that are held to the level, from the root of the repository."""
    found = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    names = sorted(path.relative_to(ROOT).as_posix() for path in found)
    return [name for name in names if not name.startswith(EXEMPT)]


def prose(text):
    """The paragraphs and list items of a Markdown page, without what is no prose.

    Returns:
        A list of strings of one line each.
    """
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^( *)```.*?^\1```$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ *(\|.*|#+ .*| {4}.*|[-=]{3,})$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"``.+?``|`[^`]+`", "Code", text)
    text = re.sub(r"<!--.*?-->|<[^<>\n]+>", "", text, flags=re.DOTALL)
    text = re.sub(r"https?://\S+", "Address", text)
    text = re.sub(r"\*\*|__|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)|^> ?", "", text, flags=re.MULTILINE)
    parts = re.split(r"\n\s*\n|^ *(?:[-*]|\d+\.) ", text, flags=re.MULTILINE)
    return [" ".join(part.split()) for part in parts if part and part.strip()]


def sentences(text):
    """The sentences of a Markdown page."""
    found = []
    for paragraph in prose(text):
        whole = ABBREVIATIONS.sub(r"\1", paragraph)
        found += re.split(r"(?<=[.!?])[\"')]*\s+", whole)
    return [sentence for sentence in found if num_words(sentence) > 2]


def table_rows(text):
    """The rows of a page's tables: their cells have no sentences, but a reader reads them."""
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^ *\|.*", text, flags=re.MULTILINE)


def num_words(sentence):
    return len(re.findall(r"[^\s]*\w[^\s]*", sentence))


def measure(text):
    """The `Figures` of a Markdown page."""
    from textstat import automated_readability_index

    found = sentences(text)
    if not found:
        return Figures(0, 0.0, 0, [], [])
    # One end to each sentence, so that textstat counts these sentences and not the points in 3.15.1.
    plain = " ".join(re.sub(r"[.!?]", "", sentence) + "." for sentence in found)
    longest = sorted(found, key=num_words, reverse=True)
    return Figures(
        num_sentences=len(found),
        grade=automated_readability_index(plain),
        most_words=num_words(longest[min(-(-len(found) // 10), len(found) - 1)]),
        longest=longest,
        hinges=[words for words in [*found, *table_rows(text)] if HINGES.search(words)],
    )


def row(page, figures):
    longest = num_words(figures.longest[0]) if figures.longest else 0
    columns = f"{figures.num_sentences:6}{figures.grade:8.1f}{figures.most_words:8}{longest:9}"
    return f"{page:44}{columns}{len(figures.hinges):8}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", help="paths from the root of the repository (default: all)")
    chosen = parser.parse_args().pages
    print(f"{'page':44}{'sentences':>6}{'grade':>5}{'9 of 10':>8}{'longest':>9}{'hinges':>8}")
    failed = False
    for page in chosen or pages():
        figures = measure((ROOT / page).read_text(encoding="utf-8"))
        print(row(page, figures))
        above = figures.above()
        failed = failed or bool(above)
        for line in above:
            print(f"    {line}")
        if above or chosen:
            for sentence in figures.longest[:10]:
                print(f"    {num_words(sentence):3}  {sentence}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
