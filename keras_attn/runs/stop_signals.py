"""Ctrl-C and SIGTERM while a model trains: a stop between two updates, with the state saved."""

import signal
import threading


class StopTraining(BaseException):
    """Ends `fit` between two updates, after the state was saved. No error: nothing but the run may catch it."""


class StopSignals:
    """Within a `with` block, Ctrl-C and SIGTERM ask for a stop in place of ending the process at any point.

    A second Ctrl-C raises `KeyboardInterrupt` at once. Signals reach the main thread only: in another thread, the block
    changes nothing.

    Args:
        enabled: Whether it changes anything. Several processes that train together must all stop after the same update,
            and a signal reaches each of them at another moment.

    Attributes:
        received: The number of the signal, or None.
    """

    def __init__(self, enabled=True):
        self.enabled = enabled
        self.received = None
        self._handlers = {}

    def __enter__(self):
        if self.enabled and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exception):
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number, frame):
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
