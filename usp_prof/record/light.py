"""Light mode: steps and marks that the recorder itself writes into a trace of device activity.

With CPU activity off the profiler takes no time from the host for each op, but it drops annotations too. So the
recorder notes them: name, thread, begin and end, on the clock that a trace counts by (nanoseconds since 1970). At
export they become events as Kineto writes annotations, and whatever reads the trace finds steps and marks as ever.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING

from torch.profiler import record_function

if TYPE_CHECKING:
    from collections.abc import Iterator


class Notes:
    """The steps and marks of one window."""

    __slots__ = ("_noted",)

    def __init__(self) -> None:
        self._noted: list[tuple[str, int, int, int]] = []  # name, thread, begin and end in ns; in order of their ends

    def add(self, name: str, thread: int, begin_ns: int, end_ns: int) -> None:
        """Note a stretch that is over."""
        self._noted.append((name, thread, begin_ns, end_ns))

    def events(self, base_ns: int) -> Iterator[str]:
        """Give each as an event of a trace whose times count from `base_ns`, in microseconds."""
        process = os.getpid()
        for name, thread, begin_ns, end_ns in self._noted:
            where = {"ph": "X", "cat": "user_annotation", "name": name, "pid": process, "tid": thread}
            yield json.dumps({**where, "ts": (begin_ns - base_ns) / 1e3, "dur": (end_ns - begin_ns) / 1e3, "args": {}})


class Annotation:
    """A named stretch, noted when it ends; stands in for `record_function`."""

    __slots__ = ("_began_ns", "_name", "_notes")

    def __init__(self, name: str, notes: Notes) -> None:
        self._name = name
        self._notes = notes
        self._began_ns = 0

    def __enter__(self) -> None:
        self._began_ns = time.time_ns()

    def __exit__(self, *_: object) -> None:
        self._notes.add(self._name, threading.get_native_id(), self._began_ns, time.time_ns())


_open: Notes | None = None


def begin() -> Notes:
    """Let steps and marks be noted from now on; there is one window at a time, as there is one profiler."""
    global _open  # noqa: PLW0603 - marks are made anywhere in the program
    _open = Notes()
    return _open


def end() -> None:
    """Leave steps and marks to the profiler again."""
    global _open  # noqa: PLW0603
    _open = None


def annotation(name: str) -> Annotation | record_function:
    """Name a stretch of the program: in our own notes in light mode, else to the profiler."""
    return record_function(name) if _open is None else Annotation(name, _open)
