"""Turns the repository's Markdown into pages of the site: notebooks, links to files, the tables of contents."""

import os
import pathlib
import re

# The chapters of the site. A page that stands in none is put under "More", so that no page is lost.
CHAPTERS = {
    "Learn": ["docs/learn/*"],
    "Compose": ["docs/compose", "docs/models", "docs/attention"],
    "Train": ["docs/training", "docs/encoder_tasks"],
    "Serve": [
        "docs/decoding",
        "docs/serving",
        "examples/serving/README",
        "saved_models/README",
        "saved_models/dates/1/README",
        "docs/cost",
        "docs/other_engines",
    ],
    "Checkpoints": ["docs/checkpoints"],
    "Move here": ["docs/leaving_transformers_tf", "docs/move/*"],
    "Numbers": ["docs/numbers", "docs/results"],
    "Gallery": ["docs/gallery"],
    "Reference": ["docs/api/index"],
    "Project": ["README", "CHANGELOG"],
}
# Pages whose Python cells the build runs, in order, in a kernel of their own, and whose outputs it shows.
EXECUTED = ("docs/learn/", "docs/compose")
_FENCED = re.compile(r"^( *)```.*?^\1```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*)\]\(([^)\s]+)[^)]*\)")
_FRONT_MATTER = """---
file_format: mystnb
kernelspec:
  name: python3
  display_name: Python 3
---
"""


def is_executed(page):
    """Whether the build runs the page's Python. `page` is its path in the repository, with or without ".md"."""
    return page.startswith(EXECUTED)


def as_notebook(text):
    """A page of plain Markdown as a MyST notebook: each block of Python is a cell."""
    return _FRONT_MATTER + re.sub(
        r"^```python\n(.*?)^```$", r"```{code-cell} python3\n\1```", text, flags=re.DOTALL | re.MULTILINE
    )


def with_links_to_files(text, page, root):
    """The text with links to files that are no pages led to the site's pages of those files.

    Args:
        text: Markdown.
        page: The page's path in the repository, without its suffix.
        root: `pathlib.Path` of the repository.

    Returns:
        Markdown.
    """

    def replaced(link):
        picture, words, target = link.groups()
        path = repository_path(page, target)
        if picture or path is None or path.endswith(".md") or not (root / path).exists():
            return link[0]
        here = os.path.dirname(page)
        return f"[{words}](site:{os.path.relpath(site_address(path, root), here)})"

    parts, start = [], 0
    for code in _FENCED.finditer(text):
        parts += [_LINK.sub(replaced, text[start : code.start()]), code[0]]
        start = code.end()
    return "".join([*parts, _LINK.sub(replaced, text[start:])])


def linked_files(text, page, root):
    """The files and folders that a page links to and that are no pages, as paths in the repository."""
    found = set()
    for _, _, target in _LINK.findall(_FENCED.sub("", text)):
        path = repository_path(page, target)
        if path is not None and not path.endswith(".md") and (root / path).exists():
            found.add(path)
    return found


def repository_path(page, target):
    """Where a relative link leads, as a path in the repository, or None where it leads elsewhere."""
    path = target.partition("#")[0]
    if not path or re.match(r"[a-z]+:", target):
        return None
    path = os.path.normpath(os.path.join(os.path.dirname(page), path))
    return None if path.startswith("..") else pathlib.PurePath(path).as_posix()


def site_address(path, root):
    """The address in the site of a file or folder of the repository."""
    if (root / path).is_dir():
        return f"{path}/index.html"
    return path if is_picture(path) else f"{path}.html"


def is_picture(path):
    return path.endswith((".png", ".svg", ".gif", ".jpg", ".html"))


def contents(pages):
    """The tables of contents of the site's first page."""
    left = {page for page in pages if page != "docs/index" and not page.startswith("docs/api/")}
    chapters = {}
    for chapter, patterns in CHAPTERS.items():
        chosen = []
        for pattern in patterns:
            if pattern.startswith("docs/api/"):
                chosen.append(pattern)
            elif pattern.endswith("/*"):
                inside = sorted(page for page in left if page.startswith(pattern[:-1]))
                chosen += inside
            elif pattern in left:
                chosen.append(pattern)
        left -= set(chosen)
        chapters[chapter] = chosen
    chapters["More"] = sorted(left)
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {chapter}\n\n"
        + "".join(f"/{page}\n" for page in chosen)
        + "```\n"
        for chapter, chosen in chapters.items()
        if chosen
    )


def _read(app, page, source):
    root = pathlib.Path(app.srcdir)
    if not (root / f"{page}.md").is_file():
        return
    text = with_links_to_files(source[0], page, root)
    if is_executed(page):
        text = as_notebook(text)
    if page == app.config.root_doc:
        text += contents(app.project.docnames)
    source[0] = text


def setup(app):
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
