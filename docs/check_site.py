"""Walks the built site: counts its pages, cells and pictures, and follows every link inside it.

    python docs/check_site.py docs/_build

It ends with 1 if a link leads nowhere, a page loads anything from elsewhere, or a cell that draws shows no picture.
"""

import argparse
import ast
import dataclasses
import html.parser
import json
import pathlib
import sys
import urllib.parse


@dataclasses.dataclass
class Cell:
    """An executed cell: its code, and what it shows."""

    code: str = ""
    has_output: bool = False
    num_pictures: int = 0


class Page(html.parser.HTMLParser):
    """What a page links to, what it loads, the names that links to it can use, and its executed cells."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], {"", "top"}
        self.cells = []
        self._open_divs = []  # the classes of each
        self.feed(text)

    def _inside(self, name):
        return any(name in classes for classes in self._open_divs)

    def handle_data(self, data):
        if self._inside("cell_input"):
            self.cells[-1].code += data

    def handle_endtag(self, tag):
        if tag == "div" and self._open_divs:
            self._open_divs.pop()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        if tag == "div":
            classes = (attributes.get("class") or "").split()
            self._open_divs.append(classes)
            if "cell" in classes:
                self.cells.append(Cell())
            if "cell_output" in classes:
                self.cells[-1].has_output = True
        elif tag in ("img", "iframe", "svg") and self._inside("cell_output"):
            self.cells[-1].num_pictures += 1
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"] or "")
        elif tag == "link" and attributes.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(attributes["href"])
        elif attributes.get("src"):
            self.loaded.append(attributes["src"])


def read_site(folder):
    """The pages of a built site, by their paths."""
    return {
        path.relative_to(folder).as_posix(): Page(path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.html"))
    }


def broken_links(folder, pages):
    """(page, link) of all links inside the site that lead nowhere, and of all that a page loads from elsewhere."""
    broken = []
    for name, page in pages.items():
        for link in [*page.links, *page.loaded]:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    broken.append((name, link))
                continue
            target = folder / name
            if parts.path:
                target = target.parent / urllib.parse.unquote(parts.path)
            target = pathlib.Path(*target.parts).resolve()
            inside = target.is_relative_to(folder.resolve())
            if not inside or not target.is_file():
                broken.append((name, link))
            elif target.suffix == ".html":
                other = pages[target.relative_to(folder.resolve()).as_posix()]
                if urllib.parse.unquote(parts.fragment) not in other.anchors:
                    broken.append((name, link))
    return broken


def cells_without_pictures(pages):
    """(page, first line of code) of the cells that draw and show no picture."""
    return [
        (name, cell.code.strip().partition("\n")[0])
        for name, page in pages.items()
        for cell in drawing_cells(page)
        if not cell.num_pictures
    ]


def drawing_cells(page):
    """The cells of a page that call `plt.show`, a `plot_...`, or a function that the page defines with one of these."""
    drawing_names = set()
    found = []
    for cell in page.cells:
        statements = ast.parse(cell.code).body
        functions = [node for node in statements if isinstance(node, ast.FunctionDef)]
        drawing_names |= {node.name for node in functions if _draws(node, drawing_names)}
        if any(_draws(node, drawing_names) for node in statements if node not in functions):
            found.append(cell)
    return found


def _draws(statement, drawing_names):
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute) and function.attr == "show":
                return True
            if isinstance(function, ast.Name) and function.id in drawing_names:
                return True
            if getattr(function, "attr", getattr(function, "id", "")).startswith("plot_"):
                return True
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="where the site was built")
    folder = parser.parse_args().folder
    pages = read_site(folder)
    if not pages:
        sys.exit(f"There is no page in {folder}. Build the site: python -m sphinx docs {folder}")
    broken = broken_links(folder, pages)
    for page, link in broken:
        print(f"{page}: {link}")
    without_pictures = cells_without_pictures(pages)
    for page, code in without_pictures:
        print(f"{page}: no picture is shown by the cell that begins: {code}")
    cells = [cell for page in pages.values() for cell in page.cells]
    figures = {
        "pages": len(pages),
        "executed cells": len(cells),
        "cells with outputs": sum(cell.has_output for cell in cells),
        "cells that draw": sum(len(drawing_cells(page)) for page in pages.values()),
        "pictures of cells": sum(cell.num_pictures for cell in cells),
        "links": sum(len(page.links) for page in pages.values()),
        "broken internal links": len(broken),
    }
    print(json.dumps(figures))
    sys.exit(bool(broken or without_pictures))


if __name__ == "__main__":
    main()
