"""Long texts outside of memory: written to an unnamed file and mapped; its pages can be let go at any time.

Arguments are two thirds of what a trace holds and are needed only a few at a time. Beyond a bound they go to a
temporary file and come back as a mapping: it looks like memory, and the pages that were touched are given back with
`let_go` when a part of the work is done. Where nothing can be written, the text stays in memory.
"""

from __future__ import annotations

import gc
import mmap
import tempfile
import weakref
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator


HELD = 64 << 20
"""Bytes that are held in memory before a file is begun."""

_PART = 1 << 20
_LONG = 1 << 16
"""Bytes of a piece of text that is worth a write of its own, where a file is begun."""
_ADVICE: int | None = getattr(mmap, "MADV_DONTNEED", None)
_NO_TEXT = np.empty(0, np.uint8)
_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def let_go() -> None:
    """Give back the memory of all mapped texts (they stay readable), and what Arrow holds without using it."""
    pool = pa.default_memory_pool()
    if pool.backend_name != "system":
        pool.release_unused()
    if _ADVICE is not None:
        for mapping in list(_mapped):
            mapping.madvise(_ADVICE)


class LongText:
    """Text that grows at its end, in room that is asked for at once: only what is written of it takes memory."""

    __slots__ = ("_held", "_held_bytes", "_limit", "_spilt", "_spilt_bytes")

    def __init__(self) -> None:
        self._held, self._held_bytes = _NO_TEXT, 0
        self._limit: float = HELD
        self._spilt: IO[bytes] | None = None
        self._spilt_bytes = 0

    def __len__(self) -> int:
        """Count the bytes."""
        return self._spilt_bytes + self._held_bytes

    def add(self, text: bytes) -> None:
        """Append text."""
        if len(text) >= _LONG and self._spilt is not None:
            self._spill()
            if self._spill_text(text):
                return
        self._hold(text)
        if self._held_bytes >= self._limit:
            self._spill()

    def buffer(self) -> pa.Buffer:
        """Give the whole text; nothing can be added afterwards."""
        if self._spilt is not None:
            self._spill()
        if self._spilt is not None:
            try:
                mapping = mmap.mmap(self._spilt.fileno(), self._spilt_bytes, access=mmap.ACCESS_READ)
            except OSError:
                self._take_back()
            else:
                self._spilt.close()
                _mapped.add(mapping)
                return pa.py_buffer(mapping)
        return pa.py_buffer(self._held[: self._held_bytes])

    def _hold(self, text: bytes | memoryview) -> None:
        """Append text to what is in memory."""
        begin, end = self._held_bytes, self._held_bytes + len(text)
        if end > len(self._held):
            room = (HELD if self._spilt is None else 0) + _PART
            grown = np.empty(max(room, end, 2 * begin), np.uint8)
            grown[:begin] = self._held[:begin]
            self._held = grown
        self._held[begin:end] = np.frombuffer(text, np.uint8)
        self._held_bytes = end

    def _spill(self) -> None:
        """Move what is held to the file."""
        held, self._held, self._held_bytes = self._held[: self._held_bytes].data, _NO_TEXT, 0
        if not self._spill_text(held):
            self._hold(held)

    def _spill_text(self, text: bytes | memoryview) -> bool:
        """Write text behind what is in the file; where that fails, hold on to everything from now on."""
        if self._limit == float("inf"):
            return False
        try:
            if self._spilt is None:
                self._spilt = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `buffer`
            self._write(self._spilt, text)
        except OSError:
            self._take_back()
            return False
        self._limit = _PART
        return True

    def _write(self, file: IO[bytes], text: bytes | memoryview) -> None:
        done = 0
        with memoryview(text) as view:
            while done < len(view):
                done += file.write(view[done : done + _PART])
        self._spilt_bytes += done

    def _take_back(self) -> None:
        if self._spilt is not None:
            with self._spilt as file:
                file.seek(0)
                self._hold(file.read(self._spilt_bytes))
        self._spilt, self._spilt_bytes, self._limit = None, 0, float("inf")


# Cycles: Python need not look for any while many objects are made that have none.


@contextmanager
def no_collection() -> Iterator[None]:
    """Hold the collector: looking among all events costs a third of their decode, among a report's values a tenth."""
    wanted = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if wanted:
            gc.enable()
