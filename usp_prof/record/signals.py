"""SIGTERM and Ctrl-C while steps are recorded: the trace is written before the process ends.

Schedulers and torchrun end a job with SIGTERM, often when another rank has just died and this one is writing its trace.
The writing is finished first, and the signal is delivered afterwards (`held_back`). Without a SIGTERM handler, the
process would die immediately. While a session is open, `Termination` writes the trace and then ends the process with
the same signal. A handler of the program itself keeps priority.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_ENDING: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT)
_writers = 0


def is_writing() -> bool:
    """Return whether a session of this process is currently writing a trace."""
    return _writers > 0


@contextmanager
def held_back() -> Iterator[None]:
    """Delay SIGTERM and Ctrl-C until after the block, so that they do not interrupt the writing of a trace."""
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
    """SIGTERM handler that ends the recording first; installed only if the program has no handler."""

    def __init__(self, end_recording: Callable[[], None]) -> None:
        self._end_recording = end_recording
        self._is_installed = False

    def install(self) -> None:
        """Install the handler if SIGTERM would otherwise end the process immediately."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._end)
            self._is_installed = True

    def remove(self) -> None:
        """Restore the default, unless the program has set another handler meanwhile."""
        is_main = threading.current_thread() is threading.main_thread()
        if self._is_installed and is_main and signal.getsignal(signal.SIGTERM) == self._end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._is_installed = False

    def _end(self, number: int, _frame: FrameType | None) -> None:
        self._end_recording()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # so that the scheduler gets the correct exit status
