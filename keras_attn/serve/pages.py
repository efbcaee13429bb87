"""What a browser gets: the files of the page at `/`, and pages on which the attention of a served model is explored."""

import base64
import collections
import hashlib
import html
import pathlib
import threading

from keras_attn import plots
from keras_attn.serve.errors import FAILED_PRECONDITION, NOT_FOUND, RequestError
from keras_attn.tasks import load_task
from keras_attn.tasks.export_cache import content_of

_FOLDER = pathlib.Path(__file__).resolve().parent
# Those that the page shares with the explorer stand beside the explorer.
_SHARED_FILES = ("base.css", "dom.js", "words.js")
_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
# A script that came in with the text of a user or a model would have nowhere to run and nobody to tell.
HEADERS = [
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-cache"),
]
# The explorer brings its own policy for what may run in it. The server's own page shows it in a frame.
ATTENTION_HEADERS = [
    ("Content-Security-Policy", "frame-ancestors 'self'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
]
_MOST_IMAGES = 8
_HOW_TO = (
    "{} is an export without a signature `attention`. Export it again with one, `keras-attn export TASK FOLDER --attention`, "
    "or serve the run or the saved task itself."
)


def page_files():
    """Reads the files of the page.

    Returns:
        Dict from the path of a URL to a pair: content type, and the file's bytes. `/` is the page itself.

    Example:

    ```
    content_type, body = page_files()["/"]
    ```
    """
    paths = [path for path in sorted(_FOLDER.iterdir()) if path.suffix in _CONTENT_TYPES]
    paths += [pathlib.Path(plots.__file__).with_name(name) for name in _SHARED_FILES]
    files = {f"/page/{path.name}": (_CONTENT_TYPES[path.suffix], path.read_bytes()) for path in paths}
    files["/"] = files.pop("/page/page.html")
    return files


class TaskPages:
    """Makes pages of a task, which is loaded when the first is asked for.

    Args:
        folder: Path of the saved task.
        content: String, the checksum of what it held when it was exported, see `keras_attn.tasks.export_cache.content_of`.
        options: Dict of the options that the task is loaded with; or None.
    """

    def __init__(self, folder, content, options=None):
        self._folder = folder
        self._content = content
        self._options = options or {}
        self._task = None
        # A page takes all processors, so a second one waits.
        self._lock = threading.Lock()

    def page(self, content, pair=None):
        """The page of a text, a string, or of an image, the bytes of its file.

        Args:
            content: String or bytes.
            pair: String, the second text of a model that reads two, of a question its context; or None.

        Raises:
            RequestError: if this cannot be shown, or the folder does not hold any more what is served.
        """
        with self._lock:
            if self._task is None:
                self._task = self._loaded()
            task = self._task
            _check_content(task.name, content, task.takes == "images")
            options = {}
            if pair is not None:
                if "pair" not in task.show_options:
                    raise RequestError(f"A {task.name} reads one text. Received: a pair too.")
                options["pair"] = pair
            try:
                return task.show(content, **options).html
            except ValueError as error:
                raise RequestError(str(error)) from error

    def _loaded(self):
        task = load_task(self._folder, **self._options)
        if content_of(self._folder) != self._content:
            raise RequestError(
                "The folder of the model was changed since the server started. Start it again.",
                FAILED_PRECONDITION,
            )
        return task


class ExportPages:
    """Makes pages of what the signature of an export answers that tells the attention.

    Args:
        name: String, the model's name.
        declaration: Dict, what the export declares, see `keras_attn.export.read_task_declaration`; or None.
        ask: Function of a signature's name and its inputs to its outputs, as `ModelProcess.run`.
    """

    def __init__(self, name, declaration, ask):
        self._name = name
        self._signature_name = declaration and declaration["attention"]
        self._inputs = {}
        if self._signature_name is not None:
            self._inputs = declaration["signatures"][self._signature_name]["inputs"]
        self._ask = ask

    def page(self, content, pair=None):
        """As `TaskPages.page`."""
        if self._signature_name is None:
            raise RequestError(_HOW_TO.format(self._name))
        widgets = {name: (input["widget"] or {}).get("kind") for name, input in self._inputs.items()}
        _check_content(self._name, content, "image" in widgets.values())
        self._check_pair(widgets, pair)
        given = {"second_text": pair}
        if isinstance(content, str):
            title = content
            given["text"] = content
        else:
            title = self._name
            given["image"] = {"b64": base64.b64encode(content).decode("ascii")}
        request = {}
        for name, kind in widgets.items():
            value = given[kind] if kind in given else self._inputs[name]["neutral"]
            request[name] = [value]
        outputs = self._ask(self._signature_name, request)
        answer = {name: values[0] for name, values in outputs.items()}
        try:
            return plots.explore_answer(answer, title=title).html
        except ValueError as error:
            raise RequestError(str(error)) from error

    def _check_pair(self, widgets, pair):
        second = next((name for name, kind in widgets.items() if kind == "second_text"), None)
        if second is None and pair is not None:
            raise RequestError(f"{self._name} reads one text. Received: a pair.")
        if second is not None and pair is None:
            raise RequestError(f"{self._name} reads two texts, `inputs` and `{second}`. Received: one text.")


class SentImages:
    """The last images that the page has sent, by a name of their bytes, so that an address can name one."""

    def __init__(self):
        self._images = collections.OrderedDict()
        self._lock = threading.Lock()

    def keep(self, content):
        """The name of an image, bytes, which is kept until so many others have come."""
        name = hashlib.sha256(content).hexdigest()
        with self._lock:
            self._images[name] = content
            self._images.move_to_end(name)
            while len(self._images) > _MOST_IMAGES:
                self._images.popitem(last=False)
        return name

    def find(self, name):
        """The bytes of an image.

        Raises:
            RequestError: if it is not kept.
        """
        with self._lock:
            if name not in self._images:
                raise RequestError(
                    "The server does not have this image any more. Choose it again.", NOT_FOUND
                )
            return self._images[name]


def refusal(message):
    """A page that says why there is none, for a frame or a window."""
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>No attention</title><p>{html.escape(message)}</p></html>\n"
    )


def _check_content(name, content, reads_images):
    if reads_images and isinstance(content, str):
        raise RequestError(f"{name} reads images. Received: a text.")
    if not reads_images and isinstance(content, bytes):
        raise RequestError(f"{name} reads texts. Received: an image.")
