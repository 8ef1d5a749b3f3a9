"""Column of argument texts: one long text and its offsets, most of it outside of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from usp_prof.columns.arrow import array_of, index_of, numbers_of
from usp_prof.inputs.kineto.growing import Numbers
from usp_prof.inputs.memory import LongText, let_go

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 1 << 30
"""Bytes after which a new array is begun: its offsets are 32 bits wide."""


_ROWS = 1 << 16
"""Rows of which copies are made at once."""


class ArgumentTexts:
    """A column of texts of which hardly two are alike."""

    __slots__ = ("_done", "_sizes", "_text")

    def __init__(self) -> None:
        self._text = LongText()
        self._sizes = Numbers(np.int32)
        self._done: list[pa.Array] = []

    def add(self, joined: bytes, sizes: NDArray[np.int32] | NDArray[np.int64]) -> None:
        """Append a piece: its texts without anything between them, and the size of each."""
        self._text.add(joined)
        self._sizes.add(sizes)
        if len(self._text) >= CHUNK:
            self._close()

    def array(self) -> pa.ChunkedArray:
        """Give the column; nothing can be added afterwards."""
        self._close()
        return pa.chunked_array(self._done, pa.string())

    def _add_array(self, texts: pa.StringArray) -> None:
        if not len(texts):
            return
        _, offsets, data = texts.buffers()
        bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
        joined = data[int(bounds[0]) : int(bounds[-1])].to_pybytes() if data else b""
        self.add(joined, np.diff(bounds))

    def _close(self) -> None:
        sizes = self._sizes.array()
        offsets = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        self._done.append(pa.StringArray.from_buffers(len(sizes), pa.py_buffer(offsets), self._text.buffer()))
        self._text, self._sizes = LongText(), Numbers(np.int32)


def kept(texts: pa.ChunkedArray, keep: NDArray[np.bool_]) -> pa.ChunkedArray:
    """Leave texts out, part by part: no more than a part of them is ever copied in memory."""
    out, at = ArgumentTexts(), 0
    for chunk in texts.chunks:
        for begin in range(0, len(chunk), _ROWS):
            part = chunk.slice(begin, _ROWS)
            out._add_array(part.filter(array_of(keep[at : at + len(part)])))  # noqa: SLF001 - its own class
            at += len(part)
            let_go()
    return out.array()


def alike(texts: pa.ChunkedArray, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Compare texts row by row, part by part."""
    out = np.zeros(len(first), dtype=bool)
    for begin in range(0, len(first), _ROWS):
        part = slice(begin, begin + _ROWS)
        one, other = (taken(texts, rows[part]) for rows in (first, second))
        out[part] = numbers_of(pc.equal(one, other))
        let_go()
    return out


def taken(texts: pa.ChunkedArray, rows: NDArray[np.int64]) -> pa.Array:
    """Take rows chunk by chunk: Arrow's own way through many chunks is twenty times slower, joining them copies all."""
    if texts.num_chunks == 1:
        return texts.chunk(0).take(index_of(rows))
    ends = np.cumsum([len(chunk) for chunk in texts.chunks])
    which = np.searchsorted(ends, rows, side="right")
    parts, places = [], []
    for number, chunk in enumerate(texts.chunks):
        place = np.flatnonzero(which == number)
        parts.append(chunk.take(index_of(rows[place] - (ends[number] - len(chunk)))).cast(pa.large_string()))
        places.append(place)
    return pa.concat_arrays(parts).take(index_of(np.argsort(np.concatenate(places))))
