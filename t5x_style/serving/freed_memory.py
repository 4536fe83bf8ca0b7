"""Memory that was freed, given back to the system.

glibc keeps pages of which a part is in use. Each version of a bundle that a server opened and
closed left 30 to 60 MiB of compiled programs there, which the next version did not fill again.
"""

import ctypes
import functools
import gc
from collections.abc import Callable


def give_back() -> None:
    """Collects what nothing refers to, and gives free pages back, where the C library can."""
    gc.collect()
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim; None with another C library."""
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # TypeError: Windows has no library None
        return None
    found.argtypes, found.restype = [ctypes.c_size_t], ctypes.c_int
    return found
