"""Long texts outside of memory: written to an unnamed file and memory-mapped, so pages can be released at any time.

Arguments are two thirds of a trace, and only a few are needed at a time. Above a size limit they go to a temporary file
and are mapped back. The mapping behaves like memory; `release_pages` frees the touched pages after each part of work.
If no file can be written, the text stays in memory.
"""

from __future__ import annotations

import gc
import io
import mmap
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pyarrow as pa

MOST_IN_MEMORY = 64 << 20
"""Bytes kept in memory before a file is started."""

_ADVICE: int | None = getattr(mmap, "MADV_DONTNEED", None)
_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def release_pages() -> None:
    """Release the memory of all mapped texts (they stay readable) and the unused memory that Arrow holds."""
    pool = pa.default_memory_pool()
    if pool.backend_name != "system":
        pool.release_unused()
    if _ADVICE is not None:
        for mapping in list(_mapped):
            mapping.madvise(_ADVICE)


class LongText:
    """Text that grows at its end: in memory, and above a limit in an unnamed file."""

    __slots__ = ("_file", "_held", "_may_spill", "_size")

    def __init__(self) -> None:
        self._held = io.BytesIO()
        self._file: IO[bytes] | None = None
        self._may_spill = True
        self._size = 0

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self._size

    def add(self, text: bytes) -> None:
        """Append text."""
        if self._file is None and self._may_spill and self._size + len(text) > MOST_IN_MEMORY:
            self._spill()
        if self._file is None or not self._append(self._file, text):
            self._held.write(text)
        self._size += len(text)

    def buffer(self) -> pa.Buffer:
        """Return the complete text; nothing can be added afterwards."""
        if self._file is not None:
            try:
                mapping = mmap.mmap(self._file.fileno(), self._size, access=mmap.ACCESS_READ)
            except OSError:
                self._take_back(self._file)
            else:
                self._file.close()
                _mapped.add(mapping)
                return pa.py_buffer(mapping)
        return pa.py_buffer(self._held.getbuffer())

    def _spill(self) -> None:
        """Move the text to a file; if none can be written, keep it in memory from then on."""
        try:
            file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `buffer`
        except OSError:
            self._may_spill = False
            return
        text, self._held = self._held.getbuffer(), io.BytesIO()
        if self._append(file, text):
            self._file = file
        else:
            self._held.write(text)

    def _append(self, file: IO[bytes], text: bytes | memoryview) -> bool:
        """Append to the file; if that fails, take its text back."""
        left = memoryview(text)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            self._take_back(file)
            return False
        return True

    def _take_back(self, file: IO[bytes]) -> None:
        """Keep the text of a file in memory from then on."""
        with file:
            file.seek(0)
            if self._file is not None:
                self._held.write(file.read(self._size))
        self._file, self._may_spill = None, False


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
