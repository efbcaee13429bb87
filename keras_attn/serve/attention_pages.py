"""Pages on which the attention of a served model is explored: made by the task that it is an export of, or of its own answers."""

import html
import inspect
import threading

from keras_attn.plots import explore_answer
from keras_attn.serve.errors import RequestError
from keras_attn.tasks import load_task

SIGNATURE = "attention"
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
    """

    def __init__(self, folder):
        self._folder = folder
        self._task = None
        # A page takes all processors, so a second one waits.
        self._lock = threading.Lock()

    def page(self, text, pair=None):
        """The page of a text, a string; `pair` is its second text, of a question its context.

        Raises:
            RequestError: if the text cannot be shown.
        """
        with self._lock:
            if self._task is None:
                self._task = load_task(self._folder)
            if pair is not None and "pair" not in inspect.signature(self._task.show).parameters:
                raise RequestError(f"A {self._task.name} reads one text. Received: a pair too.")
            try:
                return self._task.show(text, **({} if pair is None else {"pair": pair})).html
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

    def page(self, text, pair=None):
        """As `TaskPages.page`."""
        if self._signature is None:
            raise RequestError(_HOW_TO.format(self._name))
        names = list(self._signature.inputs)
        # Further inputs are the second text, or options, for which an empty string is the default.
        second = next((name for name in ("contexts", "pairs") if name in names), None)
        if (pair is None) != (second is None):
            reads = "one text" if second is None else f"two texts, `inputs` and `{second}`"
            raise RequestError(
                f"{self._name} reads {reads}. Received: {'one text' if pair is None else 'a pair'}."
            )
        inputs = {name: [""] for name in names} | {"inputs": [text]}
        if second is not None:
            inputs[second] = [pair]
        answer = {name: value[0] for name, value in self._ask(SIGNATURE, inputs).items()}
        try:
            return explore_answer(answer, title=text).html
        except ValueError as error:
            raise RequestError(str(error)) from error


def refusal(message):
    """A page that says why there is none, for a frame or a window."""
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>No attention</title><p>{html.escape(message)}</p></html>\n"
    )
