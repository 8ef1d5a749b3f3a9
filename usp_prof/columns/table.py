"""Columns of a table as NumPy arrays, each read on first access, and views of tables.

A view returns its columns one at a time, so that rows can be selected (`Columns.take`) or columns changed (`Replaced`)
without reading the whole table. `stacked` concatenates columns of several ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.arrow import array_of, coded, index_of, numbers_of
from usp_prof.columns.rows import lookup, stacked_codes
from usp_prof.model.errors import unknown_name


class View(Protocol):
    """A table whose columns are loaded on request; `pa.Table` is accepted too, with `table_of`."""

    @property
    def num_rows(self) -> int:
        """Return the number of rows."""

    @property
    def schema(self) -> pa.Schema:
        """Return names and types of the columns."""

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column."""

    def to_table(self) -> pa.Table:
        """Return all columns."""


def table_of(view: View) -> pa.Table:
    """Return all columns of a view as a table."""
    return view if isinstance(view, pa.Table) else view.to_table()


class Replaced:
    """A table with some columns computed on request."""

    def __init__(self, view: View, columns: Mapping[str, Callable[[], pa.Array]]) -> None:
        self._view = view
        self._columns = columns
        self._made: dict[str, pa.ChunkedArray] = {}
        self.num_rows: int = view.num_rows
        self.schema: pa.Schema = view.schema

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column, the computed one if there is one."""
        if name not in self._columns:
            return self._view.column(name)
        if name not in self._made:
            self._made[name] = pa.chunked_array([self._columns[name]()])
        return self._made[name]

    def to_table(self) -> pa.Table:
        """Return all columns."""
        table = table_of(self._view)
        for name in self._columns:
            place = table.column_names.index(name)
            table = table.set_column(place, table.schema.field(name), self.column(name))
        return table


_ALL = np.zeros(0, np.int64)


class Columns:
    """Columns of one table of one rank: int64 integers, bool flags, texts dictionary-coded until used."""

    __slots__ = ("_arrays", "_codes", "_parent", "_rows", "_view")

    def __init__(self, view: View) -> None:
        self._view = view
        self._arrays: dict[str, NDArray[Any]] = {}
        self._codes: dict[str, tuple[NDArray[Any], list[str]]] = {}
        self._parent: Columns | None = None
        self._rows: NDArray[Any] = _ALL

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._view.num_rows if self._parent is None else len(self._rows)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return one column; texts are an array of str objects."""
        if name not in self._arrays:
            self._arrays[name] = self._array(name)
        return self._arrays[name]

    def codes(self, name: str) -> tuple[Ints, list[str]]:
        """Return a text column as codes and distinct texts, to group and classify without touching every row."""
        codes, values = self.narrow_codes(name)
        return codes.astype(np.int64), list(values)

    def narrow_codes(self, name: str) -> tuple[NDArray[Any], list[str]]:
        """Return codes in their stored width, without a copy, and distinct texts."""
        if name not in self._codes:
            self._codes[name] = self._code(name)
        return self._codes[name]

    def matches(self, name: str, *wanted: str) -> Flags:
        """Return for each row whether a text column is one of the wanted texts."""
        return self.satisfies(name, lambda text: text in wanted)

    def satisfies(self, name: str, accepts: Callable[[str], object]) -> Flags:
        """Return for each row whether its text is accepted by a function such as a pattern's `search`."""
        return self.by_text(name, lambda text: bool(accepts(text)), missing=False)

    def by_text(self, name: str, meaning: Callable[[str], Any], *, missing: str | float) -> NDArray[Any]:
        """Return for each row the value of a function of its text; `missing` determines the type without texts."""
        codes, texts = self.narrow_codes(name)
        return lookup([meaning(text) for text in texts], codes, missing=missing)

    def has_texts(self, name: str) -> bool:
        """Return whether a column has texts."""
        return _is_text(self._kind(name))

    def take(self, rows: NDArray[Any]) -> Columns:
        """Return the rows of a mask or an index array."""
        index = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        chosen = Columns(self._view)
        chosen._parent, chosen._rows = self, index
        return chosen

    @property
    def arrow(self) -> pa.Table:
        """Arrow table."""
        return table_of(self._view) if self._parent is None else self._parent.arrow.take(index_of(self._rows))

    def _array(self, name: str) -> NDArray[Any]:
        kind = self._kind(name)
        if _is_text(kind):
            codes, values = self.narrow_codes(name)
            return np.asarray(lookup(values, codes, missing=""))
        if self._parent is not None and not len(self):
            return np.zeros(0, kind.to_pandas_dtype())  # no rows, no reading
        if self._parent is not None:
            return self._parent[name].take(self._rows)  # read and converted once for all selections from one table
        return numbers_of(self._view.column(name))

    def _code(self, name: str) -> tuple[NDArray[Any], list[str]]:
        kind = self._kind(name)
        if self._parent is not None and not len(self):
            return np.zeros(0, np.int32), []
        if self._parent is None or not pa.types.is_dictionary(kind):
            return _coded(self._column(name))
        codes, values = self._parent.narrow_codes(name)
        return codes.take(self._rows), values

    def _column(self, name: str) -> pa.ChunkedArray:
        if self._parent is None:
            return self._view.column(name)
        return self._parent._column(name).take(index_of(self._rows))  # noqa: SLF001 - same class

    def _kind(self, name: str) -> pa.DataType:
        place = self._view.schema.get_field_index(name)
        if place < 0:
            raise unknown_name("column", name, self._view.schema.names)
        return self._view.schema.field(place).type


def stacked(tables: Iterable[Columns], names: Sequence[str]) -> pa.Table:
    """Concatenate some columns of several tables, which are read one at a time.

    Texts are coded, in order of first appearance.
    """
    numbers: dict[str, list[NDArray[Any]]] = {}
    texts: dict[str, list[tuple[NDArray[Any], list[str]]]] = {}
    for table in tables:
        for name in names:
            if table.has_texts(name):
                texts.setdefault(name, []).append(table.narrow_codes(name))
            else:
                numbers.setdefault(name, []).append(table[name])
    return pa.table(
        {
            name: coded(*stacked_codes(texts[name])) if name in texts else array_of(np.concatenate(numbers[name]))
            for name in names
        }
    )


def _coded(chunked: pa.ChunkedArray) -> tuple[NDArray[Any], list[str]]:
    if not chunked.num_chunks:
        return np.zeros(0, np.int32), []
    if not pa.types.is_dictionary(chunked.type):
        chunked = chunked.dictionary_encode()
    single = chunked.num_chunks == 1
    combined = chunked.chunk(0) if single else chunked.unify_dictionaries().combine_chunks()
    values = combined.dictionary.to_pylist()
    codes = combined.indices
    if codes.null_count:
        codes, values = codes.fill_null(len(values)), [*values, ""]
    return numbers_of(codes), values


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
