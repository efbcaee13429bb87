"""The saved states of a run: written atomically and in the background; the last few are kept."""

import concurrent.futures
import json
import pathlib

from keras_attn.files import remove_unfinished
from keras_attn.models import read_metadata, read_weights, write_weights

_PROGRESS = "progress"


class Checkpoints:
    """Writes and reads the files `state-UPDATE.safetensors` of a folder.

    A write runs in a thread while training continues; the next write waits for it. The previous file is
    complete at all times, and is kept until the new one is complete.

    Args:
        folder: Path.
        num_kept: Integer, the number of newest states that are kept.
        log: Function of a string, called when a write begins and when it has ended.
    """

    def __init__(self, folder, num_kept=2, log=lambda text: None):
        self.folder = pathlib.Path(folder)
        self.num_kept = num_kept
        self.log = log
        self._writer = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._written = None

    def save(self, update, snapshot, progress):
        """Writes a state in the background, after the previous one is written.

        Args:
            update: Integer, the number of updates so far.
            snapshot: Function without arguments, called in the background, that returns a dict of NumPy
                arrays.
            progress: A value that JSON can hold.

        Raises:
            OSError: if the write before this one failed.
        """
        self.wait()
        self._written = self._writer.submit(self._write, update, snapshot, progress)

    def wait(self):
        """Waits until everything is written.

        Raises:
            OSError: if a write failed; the message names the last complete state.
        """
        written, self._written = self._written, None
        if written is None:
            return
        try:
            written.result()
        except OSError as error:
            raise OSError(f"{error} The last state is {self.newest() or 'none'}.") from error

    def newest(self):
        """The path of the last state, or None. Waits for a state that is being written."""
        if self._written is not None:
            concurrent.futures.wait([self._written])  # `wait` reports a failure
        paths = self._paths()
        return paths[-1] if paths else None

    def load(self, clean=True):
        """The last state that can be read, (arrays, progress), or None where there is none.

        A damaged file is logged, and the one before it is used.

        Args:
            clean: Whether the unfinished files of a killed process are removed.

        Raises:
            ValueError: if there are states, and all of them are damaged.
        """
        if clean:
            remove_unfinished(self.folder)
        paths = self._paths()
        for path in reversed(paths):
            try:
                return read_weights(path), json.loads(read_metadata(path)[_PROGRESS])
            except (ValueError, KeyError, RecursionError) as error:
                self.log(f"{path} cannot be used: {error}")
        if paths:
            raise ValueError(
                f"None of the {len(paths)} states in {self.folder} can be read. Train in another folder."
            )
        return None

    def _write(self, update, snapshot, progress):
        path = self.folder / f"state-{update:08d}.safetensors"
        self.log(f"saving {path.name}")
        write_weights(snapshot(), path, metadata={_PROGRESS: json.dumps(progress)})
        self.log(f"saved {path.name}")
        for older in self._paths()[: -self.num_kept]:
            older.unlink(missing_ok=True)

    def _paths(self):
        return sorted(self.folder.glob("state-*.safetensors"))
