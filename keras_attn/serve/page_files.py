"""The files of the page at `/`, and the headers they are sent with."""

import pathlib

_FOLDER = pathlib.Path(__file__).resolve().parent

_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}

# A script that came in with the text of a user or a model would have nowhere to run and nobody to tell.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_files():
    """Reads the page.

    Returns:
        Dict from the path of a URL to a pair: content type, and the file's bytes. `/` is the page itself.

    Example:

    ```
    content_type, body = page_files()["/"]
    ```
    """
    files = {
        f"/page/{path.name}": (_CONTENT_TYPES[path.suffix], path.read_bytes())
        for path in sorted(_FOLDER.iterdir())
        if path.suffix in _CONTENT_TYPES
    }
    files["/"] = files.pop("/page/page.html")
    return files
