"""Conversion between NumPy and Arrow columns, without copies if possible and without pandas.

`pa.array` and `to_numpy` import pandas to check for pandas objects. That costs a fifth of the time for reading a large
trace, in each process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_NUMBERS: dict[str, type[np.generic]] = {
    "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64, "double": np.float64,
    "bool": np.bool_,
}  # fmt: skip
_TYPES = {
    np.dtype(np.int8): pa.int8(),
    np.dtype(np.int32): pa.int32(),
    np.dtype(np.int64): pa.int64(),
    np.dtype(np.float64): pa.float64(),
}


def numbers_of(column: pa.ChunkedArray | pa.Array) -> NDArray[Any]:
    """Return an Arrow column of numbers as a NumPy array, without a copy if possible."""
    is_chunked = isinstance(column, pa.ChunkedArray)
    kind = str(column.type)
    if not len(column) and kind in _NUMBERS:
        return np.zeros(0, _NUMBERS[kind])
    if column.null_count or not len(column) or kind not in _NUMBERS:
        return np.asarray(column.to_numpy() if is_chunked else column.to_numpy(zero_copy_only=False))
    chunks = [chunk for chunk in column.chunks if len(chunk)] if is_chunked else [column]
    read = [_flags(chunk) if kind == "bool" else _numbers(chunk, _NUMBERS[kind]) for chunk in chunks]
    values = read[0] if len(read) == 1 else np.concatenate(read)
    values.setflags(write=False)
    return values


def _numbers(array: pa.Array, kind: type[np.generic]) -> NDArray[Any]:
    return np.frombuffer(array.buffers()[1], kind)[array.offset : array.offset + len(array)]


def _flags(array: pa.Array) -> NDArray[Any]:
    """Return flags, of which Arrow stores eight per byte, as a NumPy array."""
    packed = np.frombuffer(array.buffers()[1], np.uint8)
    return np.unpackbits(packed, count=array.offset + len(array), bitorder="little")[array.offset :].view(np.bool_)


def array_of(values: NDArray[Any]) -> pa.Array:
    """Return numbers or flags as an Arrow array of the same type."""
    if values.dtype == np.bool_:
        packed = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(packed)])
    contiguous = np.ascontiguousarray(values)
    return pa.Array.from_buffers(_TYPES[values.dtype], len(values), [None, pa.py_buffer(contiguous)])


def index_of(rows: NDArray[Any]) -> pa.Array:
    """Return row numbers or integers of any width as an Arrow array of 64-bit integers."""
    return array_of(rows.astype(np.int64, copy=False))


def texts_of(values: Sequence[str | None]) -> pa.Array:
    """Return texts as an Arrow array; `None` is null."""
    encoded = [value.encode() if value else b"" for value in values]
    # Arrow stores all texts in one buffer: text i is the bytes ends[i] to ends[i + 1].
    ends = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=ends[1:])
    is_text = np.array([value is not None for value in values], bool)
    validity = None if is_text.all() else pa.py_buffer(np.packbits(is_text, bitorder="little"))
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)), validity)


def coded(codes: NDArray[Any], texts: Sequence[str]) -> pa.DictionaryArray:
    """Return texts as an Arrow dictionary array, by their codes."""
    return pa.DictionaryArray.from_arrays(array_of(codes.astype(np.int32, copy=False)), texts_of(texts))


# Tables that are too large to be in memory together with their inputs, built one part at a time.


AT_ONCE = 1 << 17
"""Rows in memory at once; a shorter table need not be built in parts."""


class Parted:
    """A table that is built in parts of rows `begin` to `end`, each time it is requested."""

    def __init__(self, schema: pa.Schema, num_rows: int, make: Callable[[int, int], pa.Table]) -> None:
        """Store the function that builds a part: `make(begin, end)`, with `schema`."""
        self.schema = schema
        self.num_rows = num_rows
        self._make = make

    def parts(self, rows: int) -> Iterator[pa.Table]:
        """Yield parts of this number of rows; one empty part without rows."""
        for begin in range(0, max(self.num_rows, 1), rows):
            yield self._make(begin, min(begin + rows, self.num_rows))

    def if_long(self) -> Parted | pa.Table:
        """Return the parts of a long table, or a short table in memory."""
        return self if self.num_rows > AT_ONCE else self.to_table()

    def to_table(self) -> pa.Table:
        """Return the table in memory."""
        return self._make(0, self.num_rows)

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column."""
        return self.to_table().column(name)
