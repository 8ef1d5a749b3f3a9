"""How does a process of our own hold memory? What it frees serves what it asks for next.

Columns are made and dropped all the time. Left alone, glibc gives their pages back to the system and takes them again,
and NumPy asks for huge pages, for which a busy system has to move others out of the way: together a tenth of a report.
A process that is not ours is left as it is.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # as <malloc.h> numbers them
_SETTINGS = {_MMAP_THRESHOLD: 1 << 27, _TRIM_THRESHOLD: 1 << 30, _TOP_PAD: 1 << 24}
SMALL_PAGES = {"NUMPY_MADVISE_HUGEPAGE": "0"}
"""What NumPy reads when it is imported."""


def keep_freed() -> None:
    """Have this process keep freed memory up to a gigabyte, but for single pieces above 128 MB (glibc alone can).

    To be called before NumPy is imported.
    """
    for name, pages in SMALL_PAGES.items():
        os.environ.setdefault(name, pages)
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # no libc at hand, or one without it
        return
    for option, value in _SETTINGS.items():
        set_option(option, value)
