"""Long texts outside of memory: written to an unnamed file and memory-mapped, so pages can be released at any time.

Arguments are two thirds of a trace, and only a few are needed at a time. Above a size limit they go to a temporary file
and are mapped back. The mapping behaves like memory; `let_go` releases the touched pages after each part of the work.
If no file can be written, the text stays in memory.
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
"""Bytes kept in memory before a file is started."""

_PART = 1 << 20
_LONG = 1 << 16
"""Minimum size in bytes of a text that is written directly once a file exists."""
_ADVICE: int | None = getattr(mmap, "MADV_DONTNEED", None)
_NO_TEXT = np.empty(0, np.uint8)
_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def let_go() -> None:
    """Release the memory of all mapped texts (they stay readable) and the unused memory that Arrow holds."""
    pool = pa.default_memory_pool()
    if pool.backend_name != "system":
        pool.release_unused()
    if _ADVICE is not None:
        for mapping in list(_mapped):
            mapping.madvise(_ADVICE)


class LongText:
    """Text that grows at its end, in a preallocated buffer: only the written part uses memory."""

    __slots__ = ("_held", "_held_bytes", "_limit", "_spilt", "_spilt_bytes")

    def __init__(self) -> None:
        self._held, self._held_bytes = _NO_TEXT, 0
        self._limit: float = HELD
        self._spilt: IO[bytes] | None = None
        self._spilt_bytes = 0

    def __len__(self) -> int:
        """Return the number of bytes."""
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
        """Return the complete text; nothing can be added afterwards."""
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
        """Append text to the buffer in memory."""
        begin, end = self._held_bytes, self._held_bytes + len(text)
        if end > len(self._held):
            room = (HELD if self._spilt is None else 0) + _PART
            grown = np.empty(max(room, end, 2 * begin), np.uint8)
            grown[:begin] = self._held[:begin]
            self._held = grown
        self._held[begin:end] = np.frombuffer(text, np.uint8)
        self._held_bytes = end

    def _spill(self) -> None:
        """Move the buffered text to the file."""
        held, self._held, self._held_bytes = self._held[: self._held_bytes].data, _NO_TEXT, 0
        if not self._spill_text(held):
            self._hold(held)

    def _spill_text(self, text: bytes | memoryview) -> bool:
        """Append text to the file; if that fails, keep all text in memory from then on."""
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


# Garbage collection: not needed while many objects without reference cycles are created.


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable the garbage collector: it takes a third of the time of decoding events, a tenth for report values."""
    wanted = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if wanted:
            gc.enable()
