"""Writes llms.txt (https://llmstxt.org): what the site holds, as a list that a language model can read."""

import pathlib

from site_parts.pages import CHAPTERS


def _write(app, error):
    if error or app.builder.format != "html":
        return
    titles = app.env.titles
    toctree = app.env.toctree_includes
    lines = [
        f"# {app.config.project}",
        "",
        "> Attention layers for Keras 3 on TensorFlow, and the whole road from text to a served model: layers,",
        "> models made of parts, training, beam search, and SavedModels that take strings and return strings.",
    ]
    listed = set()
    for chapter, pages in _chapters(app).items():
        lines += ["", f"## {chapter}", ""]
        for page in pages:
            lines.append(f"- [{titles[page].astext()}]({page}.html)")
            listed.add(page)
            for below in toctree.get(page, ()):
                lines.append(f"- [{titles[below].astext()}]({below}.html)")
    (pathlib.Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _chapters(app):
    pages = app.env.toctree_includes[app.config.root_doc]
    return {"Pages": pages} if not CHAPTERS else _by_chapter(pages)


def _by_chapter(pages):
    chapters = {}
    for page in pages:
        chapter = next(
            (
                name
                for name, patterns in CHAPTERS.items()
                if any(page == p or (p.endswith("*") and page.startswith(p[:-1])) for p in patterns)
            ),
            "More",
        )
        chapters.setdefault(chapter, []).append(page)
    return chapters


def setup(app):
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True}
