"""Pages on which the attention of a served model is explored: made by the task that it is an export of, or of its own answers."""

import base64
import collections
import hashlib
import html
import threading

from keras_attn.plots import explore_answer
from keras_attn.serve.errors import FAILED_PRECONDITION, NOT_FOUND, RequestError
from keras_attn.tasks import load_task
from keras_attn.tasks.export_cache import content_of

SIGNATURE = "attention"
_KEPT_IMAGES = 8
# The page brings its own policy for what may run in it. The server's own page shows it in a frame.
HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_HOW_TO = (
    "{} is an export without a signature `attention`. Export it again with one, `keras-attn export TASK FOLDER --attention`, "
    "or serve the run or the saved task itself."
)


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
                task = load_task(self._folder, **self._options)
                if content_of(self._folder) != self._content:
                    raise RequestError(
                        "The folder of the model was changed since the server started. Start it again.",
                        FAILED_PRECONDITION,
                    )
                self._task = task
            _check_content(self._task.name, content, self._task.takes == "images")
            if pair is not None and "pair" not in self._task.show_options:
                raise RequestError(f"A {self._task.name} reads one text. Received: a pair too.")
            try:
                return self._task.show(content, **({} if pair is None else {"pair": pair})).html
            except ValueError as error:
                raise RequestError(str(error)) from error


class ExportPages:
    """Makes pages of what the signature `attention` of an export answers.

    Args:
        name: String, the model's name.
        signature: `SignatureDef` of `attention`, or None if the export has none.
        ask: Function of a signature's name and its inputs to its outputs, as `ModelProcess.run`.
    """

    def __init__(self, name, signature, ask):
        self._name, self._signature, self._ask = name, signature, ask

    def page(self, content, pair=None):
        """As `TaskPages.page`."""
        if self._signature is None:
            raise RequestError(_HOW_TO.format(self._name))
        names = list(self._signature.inputs)
        _check_content(self._name, content, "image" in self._signature.outputs)
        # Further inputs are the second text, or options, for which an empty string is the default.
        second = next((name for name in ("contexts", "pairs") if name in names), None)
        if (pair is None) != (second is None):
            reads = "one text" if second is None else f"two texts, `inputs` and `{second}`"
            raise RequestError(
                f"{self._name} reads {reads}. Received: {'one text' if pair is None else 'a pair'}."
            )
        is_text = isinstance(content, str)
        asked = content if is_text else {"b64": base64.b64encode(content).decode("ascii")}
        inputs = {name: [""] for name in names} | {"inputs": [asked]}
        if second is not None:
            inputs[second] = [pair]
        answer = {name: value[0] for name, value in self._ask(SIGNATURE, inputs).items()}
        try:
            return explore_answer(answer, title=content if is_text else self._name).html
        except ValueError as error:
            raise RequestError(str(error)) from error


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
            while len(self._images) > _KEPT_IMAGES:
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


def _check_content(name, content, reads_images):
    if isinstance(content, bytes) != reads_images:
        wanted, received = ("images", "a text") if reads_images else ("texts", "an image")
        raise RequestError(f"{name} reads {wanted}. Received: {received}.")


def refusal(message):
    """A page that says why there is none, for a frame or a window."""
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>No attention</title><p>{html.escape(message)}</p></html>\n"
    )
