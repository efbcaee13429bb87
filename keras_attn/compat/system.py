"""What the library uses of the operating system that Python does not offer."""

import ctypes
import errno
import os
import sys

# linux/fcntl.h and linux/fs.h
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}


def exchange_folders(one, other):
    """Swaps two folders in one step, by `renameat2` of the C library. Returns whether system and file system support that.

    Why: Python has no function that swaps two names. With `os.rename` alone there is a moment in which neither folder has the
    name that is read.
    Since: Linux 3.15 and glibc 2.28.
    If it goes: False; a folder is then replaced in two steps, the second of which a killed process may leave undone.

    Raises:
        OSError: if both support it and it failed.
    """
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))
