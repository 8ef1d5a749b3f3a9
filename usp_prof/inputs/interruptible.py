"""Waiting for the answer of another thread in such a way that Ctrl-C ends it."""

from __future__ import annotations

from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

_TURN_S = 0.2


def interruptible_result(answer: Future[T]) -> T:
    """Wait for an answer in short turns, so that Ctrl-C interrupts it.

    The system may give the signal to any thread, but only the main thread raises KeyboardInterrupt, when it next runs.
    """
    while not wait([answer], _TURN_S).done:
        pass
    return answer.result()
