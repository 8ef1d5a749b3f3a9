"""Forks: a child of a process that was profiled can end.

Kineto has a thread that polls its configuration, from the first profile on. Fork copies no threads, and when the child
ends, the destructor of Kineto's loader waits for the one that is not there, for ever (torch 2.11 to 2.13, with
`torch.profiler` alone as well). A child therefore leaves the way children of `multiprocessing` do, without the
destructors of loaded libraries, once Python has run its own exit handlers and flushed its files.
"""

from __future__ import annotations

import ctypes
import os

_guarded = False


def let_children_end() -> None:
    """Guard all children that this process forks from now on; call it before the first profile."""
    global _guarded  # noqa: PLW0603 - a handler of forks is registered for good
    if not _guarded and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_leave_early)
        _guarded = True


def _leave_early() -> None:
    """Let the C library call `_exit` with the exit status, before the handlers that were registered until now."""
    library = ctypes.CDLL(None)
    if hasattr(library, "on_exit"):  # glibc
        library.on_exit(library._exit, None)  # noqa: SLF001 - the function of C, no private name
