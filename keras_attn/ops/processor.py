"""What the processor of this machine can do."""

import functools
import pathlib


@functools.cache
def processor_flags():
    """The names of the instruction sets that Linux lists: a frozenset of strings, empty on other systems.

    Example:

    ```python
    has_tiles = "amx_int8" in processor_flags()
    ```
    """
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    return frozenset(cpuinfo.read_text(encoding="utf-8").split() if cpuinfo.is_file() else ())
