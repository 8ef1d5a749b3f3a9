"""What may be done with a process that is ours? Its memory is held as suits us, and copies of it read for it.

Columns are made and dropped all the time. Left alone, glibc gives their pages back to the system and takes them again,
and NumPy asks for huge pages, for which a busy system has to move others out of the way: together a tenth of a report.
A process that is not ours (a notebook, a trainer, somebody's server) is left as it is.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # as <malloc.h> numbers them
_MALLOC = {_MMAP_THRESHOLD: 1 << 27, _TRIM_THRESHOLD: 1 << 30, _TOP_PAD: 1 << 24}
ENVIRONMENT = {
    "NUMPY_MADVISE_HUGEPAGE": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""What NumPy and Arrow read when they are imported: no huge pages, and no threads, of which nothing here makes use."""
_THREADS = Path("/proc/self/task")
_A_MOMENT = 0.02
"""Seconds in which a thread that was just joined is gone."""
_ours: set[int] = set()


def make_ours() -> None:
    """Have this process keep freed memory up to a gigabyte, but for single pieces above 128 MB (glibc alone can).

    To be called before NumPy and Arrow are imported.
    """
    _ours.add(os.getpid())
    for name, setting in ENVIRONMENT.items():
        os.environ.setdefault(name, setting)
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # no libc at hand, or one without it
        return
    for option, value in _MALLOC.items():
        set_option(option, value)


def may_be_copied() -> bool:
    """Say whether a copy of this process (`os.fork`) can do work: it is ours, and no other thread may hold a lock.

    Where threads cannot be counted, which is everywhere but on Linux, it cannot.
    """
    until = time.monotonic() + _A_MOMENT
    while os.getpid() in _ours and threading.active_count() == 1:
        try:
            threads = len(list(_THREADS.iterdir()))
        except OSError:
            return False
        if threads == 1 or time.monotonic() > until:
            return threads == 1
        time.sleep(_A_MOMENT / 20)
    return False
