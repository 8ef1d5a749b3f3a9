"""What can stand for a table without being read or copied as a whole? Anything that gives its columns one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from numpy.typing import NDArray


_NUMBERS: dict[str, type[np.generic]] = {
    "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64, "double": np.float64,
}  # fmt: skip


class View(Protocol):
    """A table of which nothing is there yet but what was asked for; `pa.Table` passes for one, with `table_of`."""

    @property
    def num_rows(self) -> int:
        """Count the rows."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Say the columns' names and types."""
        ...

    def column(self, name: str) -> pa.ChunkedArray:
        """Give one column."""
        ...

    def whole(self) -> pa.Table:
        """Give all columns."""
        ...


def table_of(view: View) -> pa.Table:
    """Give all columns of a view as a table."""
    return view if isinstance(view, pa.Table) else view.whole()


class Chosen:
    """Some rows of a table."""

    def __init__(self, view: View, rows: NDArray[Any]) -> None:
        self._view = view
        self.rows = rows
        self.num_rows = len(rows)
        self.schema: pa.Schema = view.schema

    def column(self, name: str) -> pa.ChunkedArray:
        """Give one column of these rows."""
        return self._view.column(name).take(index_of(self.rows))

    def whole(self) -> pa.Table:
        """Give all columns of these rows."""
        return table_of(self._view).take(index_of(self.rows))


class Replaced:
    """A table with some of its columns made anew, when they are asked for."""

    def __init__(self, view: View, columns: Mapping[str, Callable[[], pa.Array]]) -> None:
        self._view = view
        self._columns = columns
        self._made: dict[str, pa.ChunkedArray] = {}
        self.num_rows: int = view.num_rows
        self.schema: pa.Schema = view.schema

    def column(self, name: str) -> pa.ChunkedArray:
        """Give one column, the new one where there is one."""
        if name not in self._columns:
            return self._view.column(name)
        if name not in self._made:
            self._made[name] = pa.chunked_array([self._columns[name]()])
        return self._made[name]

    def whole(self) -> pa.Table:
        """Give all columns."""
        table = table_of(self._view)
        for name in self._columns:
            place = table.column_names.index(name)
            table = table.set_column(place, table.schema.field(name), self.column(name))
        return table


def numbers_of(column: pa.ChunkedArray | pa.Array) -> NDArray[Any]:
    """Give a column of numbers to NumPy, without a copy where it can be; Arrow's `to_numpy` would load pandas first."""
    chunks = [chunk for chunk in column.chunks if len(chunk)] if isinstance(column, pa.ChunkedArray) else [column]
    kind = str(column.type)
    if not len(column) and kind in _NUMBERS:
        return np.zeros(0, _NUMBERS[kind])
    if column.null_count or not len(column) or (kind not in _NUMBERS and kind != "bool"):
        return np.asarray(
            column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
        )
    read = [_flags(chunk) if kind == "bool" else _numbers(chunk, _NUMBERS[kind]) for chunk in chunks]
    found = read[0] if len(read) == 1 else np.concatenate(read)
    found.setflags(write=False)
    return found


def _numbers(array: pa.Array, kind: type[np.generic]) -> NDArray[Any]:
    return np.frombuffer(array.buffers()[1], kind)[array.offset : array.offset + len(array)]


def _flags(array: pa.Array) -> NDArray[Any]:
    """Read flags, of which Arrow keeps eight in a byte."""
    packed = np.frombuffer(array.buffers()[1], np.uint8)
    return np.unpackbits(packed, count=array.offset + len(array), bitorder="little")[array.offset :].view(np.bool_)


def index_of(rows: NDArray[Any]) -> pa.Array:
    """Give row numbers to Arrow; `pa.array` would import pandas to see whether they are pandas'."""
    rows = np.ascontiguousarray(rows, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])


def codes_of(codes: NDArray[np.int32]) -> pa.Array:
    """Give the codes of a dictionary to Arrow."""
    return pa.Array.from_buffers(pa.int32(), len(codes), [None, pa.py_buffer(np.ascontiguousarray(codes))])


def texts_of(values: list[str]) -> pa.Array:
    """Give texts to Arrow, without pandas for the same reason."""
    told = [value.encode() for value in values]
    ends = np.zeros(len(told) + 1, np.int32)
    np.cumsum([len(text) for text in told], out=ends[1:])
    return pa.StringArray.from_buffers(len(told), pa.py_buffer(ends), pa.py_buffer(b"".join(told)))
