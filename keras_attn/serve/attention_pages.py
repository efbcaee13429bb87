"""Pages on which the attention of a served model is explored, for models that are exports of a task at hand."""

import threading

from keras_attn.serve.errors import RequestError
from keras_attn.tasks import load_task

# The page brings its own policy for what may run in it.
HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class AttentionPages:
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
            try:
                return self._task.show(text, **({} if pair is None else {"pair": pair})).html
            except ValueError as error:
                raise RequestError(str(error)) from error
