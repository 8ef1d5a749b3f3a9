"""SIGTERM, SIGHUP and Ctrl-C while steps are recorded: the trace is written before the process ends.

Schedulers and torchrun end a job with SIGTERM, often when another rank has just died and this one is writing its trace.
A closed terminal sends SIGHUP. The writing is finished first, and the signal is delivered afterwards (`held_back`).
Without a handler, SIGTERM and SIGHUP would end the process immediately. While a session is open, `Termination` writes
the trace and then ends the process with the same signal. A handler of the program itself keeps priority.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

UNHANDLED: tuple[int, ...] = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
"""Signals that end a process and for which Python has no handler of its own; Windows has no SIGHUP."""
_ENDING: tuple[int, ...] = (*UNHANDLED, signal.SIGINT)
_writers = 0


def is_writing() -> bool:
    """Return whether a session of this process is currently writing a trace."""
    return _writers > 0


@contextmanager
def held_back() -> Iterator[None]:
    """Delay SIGTERM, SIGHUP and Ctrl-C until after the block, so that they do not interrupt the writing of a trace."""
    global _writers  # noqa: PLW0603 - read by watchdogs on other threads
    received: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    handlers: dict[int, Callable[[int, FrameType | None], object] | int] = {}
    if threading.current_thread() is threading.main_thread():  # only this thread may set handlers
        for number in _ENDING:
            handler = signal.getsignal(number)
            if handler is not None and handler is not signal.SIG_IGN:  # None: not set from Python
                handlers[number] = handler
                signal.signal(number, remember)
    _writers += 1
    try:
        yield
    finally:
        _writers -= 1
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(received):
            signal.raise_signal(number)


class Termination:
    """Handler of SIGTERM and SIGHUP that ends the recording first; installed only if the program has no handler."""

    def __init__(self, end_recording: Callable[[str], None]) -> None:
        """Take the function that ends the recording; it gets the signal's name."""
        self._end_recording = end_recording
        self._installed: list[int] = []

    def install(self) -> None:
        """Install the handler for each signal that would otherwise end the process immediately."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in UNHANDLED:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._end)
                self._installed.append(number)

    def remove(self) -> None:
        """Restore the default, unless the program has set another handler meanwhile."""
        if threading.current_thread() is threading.main_thread():
            for number in self._installed:
                if signal.getsignal(number) == self._end:
                    signal.signal(number, signal.SIG_DFL)
        self._installed.clear()

    def _end(self, number: int, _frame: FrameType | None) -> None:
        self._end_recording(signal.Signals(number).name)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # so that the scheduler gets the correct exit status
