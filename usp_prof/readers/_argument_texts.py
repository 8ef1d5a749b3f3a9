"""How are the arguments of events kept? As one long text and its offsets, most of it outside of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from usp_prof.readers._numbers import Numbers
from usp_prof.readers.mapped import LongText

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec
    from numpy.typing import NDArray

CHUNK = 1 << 30
"""Bytes after which a new array is begun: its offsets are 32 bits wide."""


class ArgumentTexts:
    """A column of texts of which hardly two are alike."""

    __slots__ = ("_done", "_sizes", "_text")

    def __init__(self) -> None:
        self._text = LongText()
        self._sizes = Numbers(np.int32)
        self._done: list[pa.Array] = []

    def add(self, texts: Sequence[msgspec.Raw]) -> NDArray[np.int32]:
        """Append a piece; gives the size of each text."""
        sizes = np.fromiter(map(len, texts), np.int32, len(texts))
        self._text.add(b"".join(texts))
        self._sizes.add(sizes)
        if len(self._text) >= CHUNK:
            self._close()
        return sizes

    def array(self) -> pa.ChunkedArray:
        """Give the column; nothing can be added afterwards."""
        self._close()
        return pa.chunked_array(self._done, pa.string())

    def _close(self) -> None:
        sizes = self._sizes.array()
        offsets = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        self._done.append(pa.StringArray.from_buffers(len(sizes), pa.py_buffer(offsets), self._text.buffer()))
        self._text, self._sizes = LongText(), Numbers(np.int32)
