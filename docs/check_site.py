"""Walks the built site: counts its pages and cells, and follows every link inside it.

    python docs/check_site.py docs/_build

It ends with 1 if a link leads nowhere or a page loads anything from elsewhere.
"""

import argparse
import html.parser
import json
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    """What a page links to, what it loads, and the names that links to it can use."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], {"", "top"}
        self.num_cells = self.num_outputs = 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        classes = (attributes.get("class") or "").split()
        self.num_cells += tag == "div" and "cell" in classes
        self.num_outputs += tag == "div" and "cell_output" in classes
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
    figures = {
        "pages": len(pages),
        "executed cells": sum(page.num_cells for page in pages.values()),
        "cells with outputs": sum(page.num_outputs for page in pages.values()),
        "links": sum(len(page.links) for page in pages.values()),
        "broken internal links": len(broken),
    }
    print(json.dumps(figures))
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
