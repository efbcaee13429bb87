"""Pages of the repository's files that pages link to, so that every link leads somewhere inside the site."""

import html
import pathlib

from site_parts.pages import is_picture, linked_files, site_address

_LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".json": "json",
    ".yml": "yaml",
    ".js": "javascript",
    ".html": "html",
}


def _collect(app):
    root = pathlib.Path(app.srcdir)
    paths = set()
    for page in sorted(app.project.docnames):
        source = root / f"{page}.md"
        if source.is_file():
            paths |= linked_files(source.read_text(encoding="utf-8"), page, root)
    for folder in [path for path in paths if (root / path).is_dir()]:
        paths |= {path.relative_to(root).as_posix() for path in _files_below(root / folder)}
    for path in sorted(paths):
        if (root / path).is_dir():
            yield f"{path}/index", {"title": path, "body": _folder(root, path)}, "page.html"
        elif is_picture(path):
            copy = pathlib.Path(app.outdir) / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((root / path).read_bytes())
        else:
            yield path, {"title": path, "body": _file(app, root / path, path)}, "page.html"
    # The site's own first address.
    start = pathlib.Path(app.outdir) / "index.html"
    start.write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>keras_attn</title>'
        '<meta http-equiv="refresh" content="0; url=docs/index.html">'
        '<a href="docs/index.html">keras_attn</a></html>\n',
        encoding="utf-8",
    )


def _files_below(folder):
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def _folder(root, path):
    rows = []
    for file in sorted(_files_below(root / path)):
        name = file.relative_to(root / path).as_posix()
        address = (
            name + ".html" if name.endswith(".md") else site_address(file.relative_to(root).as_posix(), root)
        )
        address = address if name.endswith(".md") else address.removeprefix(f"{path}/")
        rows.append(f'<li><a href="{html.escape(address)}"><code>{html.escape(name)}</code></a></li>')
    return f"<h1>{html.escape(path)}</h1><ul>{''.join(rows)}</ul>"


def _file(app, file, path):
    text = file.read_text(encoding="utf-8", errors="replace")
    language = _LANGUAGES.get(file.suffix, "none")
    code = app.builder.highlighter.highlight_block(text, language)
    return f"<h1>{html.escape(path)}</h1>{code}"


def setup(app):
    app.connect("html-collect-pages", _collect)
    return {"parallel_read_safe": True}
