"""Writes llms.txt (https://llmstxt.org): what the site holds, as a list that a language model can read."""

import pathlib
import re

from site_parts.pages import chapters


def _write(app, error):
    if error or app.builder.format != "html":
        return
    lines = [
        f"# {app.config.project}",
        "",
        "> Attention layers for Keras 3 on TensorFlow, and the whole road from text to a served model: layers,",
        "> models made of parts, training, beam search, and SavedModels that take strings and return strings.",
    ]
    for chapter, pages in chapters(app.project.docnames).items():
        lines += ["", f"## {chapter}", ""] if pages else []
        for page in pages:
            for listed in (page, *app.env.toctree_includes.get(page, ())):
                title = app.env.titles[listed].astext()
                summary = _summary(pathlib.Path(app.srcdir) / f"{listed}.md")
                lines.append(
                    f"- [{title}]({app.builder.get_target_uri(listed)})" + (f": {summary}" if summary else "")
                )
    (pathlib.Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _summary(source):
    """The first sentence of a page's first paragraph."""
    if not source.is_file():
        return ""
    paragraphs = source.read_text(encoding="utf-8").split("\n\n")
    words = " ".join(paragraphs[1].split()) if len(paragraphs) > 1 else ""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", words)
    return words.split(". ")[0].rstrip(".:") if words[:1].isalnum() or words[:1] == "`" else ""


def setup(app):
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True}
