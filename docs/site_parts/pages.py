"""Turns the repository's Markdown into pages of the site: notebooks, links to files, the tables of contents."""

import fnmatch
import os
import pathlib
import re

# The chapters of the site, in the order of a person's questions. A page that stands in none is put under "More", so that
# no page is lost.
CHAPTERS = {
    "Learn attention": [
        "docs/learn/attention_by_hand",
        "docs/learn/masks",
        "docs/learn/positions",
        "docs/learn/caches",
        "docs/learn/beam_search",
        "docs/learn/*",
    ],
    "Build a model": [
        "docs/compose",
        "docs/attention",
        "docs/position_bias",
        "docs/time_series",
        "docs/recommenders",
        "docs/images",
        "docs/change_one_thing",
    ],
    "Train": [
        "docs/training",
        "docs/text_tasks",
        "docs/checkpoints",
        "docs/reload",
        "docs/when_a_run_is_bad",
    ],
    "Serve": ["docs/serve", "docs/local_server", "docs/decoding", "docs/cost", "docs/other_engines"],
    "See": ["docs/seeing"],
    "Come from": [
        "docs/move/tensorflow_tutorial",
        "docs/move/keras",
        "docs/move/keras_hub",
        "docs/move/transformers_tf",
        "docs/move/*",
    ],
    "Benchmarks": ["docs/benchmarks", "docs/results"],
    "Gallery": ["docs/gallery"],
    "Reference": ["docs/api/index"],
    "Project": ["README", "CONTRIBUTING", "CHANGELOG"],
    "Archive": ["docs/archive/*"],
}
# Entries of the sidebar that do not have the page's own title: that of README is the library's name.
SIDEBAR_NAMES = {"README": "README </README>"}
# Pages that other pages link to, and that the sidebar does not list.
UNLISTED = ("examples/*", "saved_models/*")
# Pages whose Python cells the build runs, in order, in a kernel of their own, and whose outputs it shows.
EXECUTED = ("docs/learn/", "docs/compose")
# A fenced block, a link, or code: what begins first counts, so that a link may hold code, and code a link.
_FENCE_LINK_OR_CODE = re.compile(
    r"^(?P<indent> *)```.*?^(?P=indent)```$"
    r"|(?P<picture>!?)\[(?P<words>(?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*)\]\((?P<target>[^)\s]+)[^)]*\)"
    r"|`[^`\n]*`",
    re.DOTALL | re.MULTILINE,
)
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


def is_unlisted(page):
    """Whether the sidebar leaves the page out. `page` is its path in the repository, without its suffix."""
    return any(fnmatch.fnmatch(page, pattern) for pattern in UNLISTED)


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

    def replaced(found):
        path = _linked_file(found, page, root)
        if path is None:
            return found[0]
        here = os.path.dirname(page)
        return f"[{found['words']}](site:{os.path.relpath(site_address(path, root), here)})"

    return _FENCE_LINK_OR_CODE.sub(replaced, text)


def linked_files(text, page, root):
    """The files and folders that a page links to and that are no pages, as paths in the repository."""
    paths = {_linked_file(found, page, root) for found in _FENCE_LINK_OR_CODE.finditer(text)}
    return paths - {None}


def _linked_file(found, page, root):
    if found["target"] is None or found["picture"]:
        return None
    path = repository_path(page, found["target"])
    return None if path is None or path.endswith(".md") or not (root / path).exists() else path


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


def chapters(pages):
    """The chapters of the site: a dict from the title of each to its pages."""
    left = sorted(page for page in pages if page != "docs/index" and not page.startswith("docs/api/"))
    found = {}
    for chapter, patterns in CHAPTERS.items():
        found[chapter] = chosen = []
        for pattern in patterns:
            chosen += ["docs/api/index"] if pattern == "docs/api/index" else fnmatch.filter(left, pattern)
            left = [page for page in left if page not in chosen]
    found["More"] = [page for page in left if not is_unlisted(page)]
    return found


def contents(pages):
    """The tables of contents of the site's first page."""
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {chapter}\n\n"
        + "".join(SIDEBAR_NAMES.get(page, f"/{page}") + "\n" for page in chosen)
        + "```\n"
        for chapter, chosen in chapters(pages).items()
        if chosen
    )


def _read(app, page, source):
    root = pathlib.Path(app.srcdir)
    if not (root / f"{page}.md").is_file():
        return
    text = with_links_to_files(source[0], page, root)
    if is_executed(page):
        text = as_notebook(text)
    if is_unlisted(page):
        text = "---\norphan: true\n---\n" + text
    if page == app.config.root_doc:
        text += contents(app.project.docnames)
    source[0] = text


def setup(app):
    app.connect("source-read", _read)
    # The first page lists all others, so a new page changes it.
    app.connect("env-get-outdated", lambda app, *_: [app.config.root_doc])
    return {"parallel_read_safe": True}
