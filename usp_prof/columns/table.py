"""Columns: a table's columns as NumPy arrays, each read when it is first asked for, and views that stand for tables.

A view gives its columns one by one, so that a table can be narrowed (`Chosen`) or changed (`Replaced`) without being
read as a whole. `stacked` joins columns of several ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from usp_prof.columns.arrow import array_of, coded, index_of, numbers_of
from usp_prof.columns.rows import lookup
from usp_prof.model.errors import unknown_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from usp_prof.columns.arrays import Flags, Ints


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


_ALL = np.zeros(0, np.int64)


class Columns:
    """The columns of one table of one rank. Integers are int64, flags bool, texts dictionary-coded until asked for."""

    __slots__ = ("_arrays", "_codes", "_parent", "_rows", "_view")

    def __init__(self, view: View) -> None:
        self._view = view
        self._arrays: dict[str, NDArray[Any]] = {}
        self._codes: dict[str, tuple[NDArray[Any], list[str]]] = {}
        self._parent: Columns | None = None
        self._rows: NDArray[Any] = _ALL

    def __len__(self) -> int:
        """Count the rows."""
        return self._view.num_rows

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Give one column; texts come as an array of str objects."""
        if name not in self._arrays:
            self._arrays[name] = self._array(name)
        return self._arrays[name]

    def codes(self, name: str) -> tuple[Ints, list[str]]:
        """Give a text column as codes and the distinct texts, to group and classify without touching every row."""
        codes, values = self.narrow_codes(name)
        return codes.astype(np.int64), list(values)

    def narrow_codes(self, name: str) -> tuple[NDArray[Any], list[str]]:
        """Give the same with codes as narrow as they are kept, of which no copy is made."""
        if name not in self._codes:
            self._codes[name] = self._code(name)
        return self._codes[name]

    def matches(self, name: str, *wanted: str) -> Flags:
        """Say for each row whether a text column is one of the wanted texts."""
        return self.satisfies(name, lambda text: text in wanted)

    def satisfies(self, name: str, accepts: Callable[[str], object]) -> Flags:
        """Say for each row whether its text is accepted, as by a pattern's `search`; each distinct text once."""
        return self.by_text(name, lambda text: bool(accepts(text)), missing=False)

    def by_text(self, name: str, meaning: Callable[[str], Any], *, missing: str | float) -> NDArray[Any]:
        """Give each row what its text means, asked once for each distinct text; `missing` tells the type if none is."""
        codes, texts = self.narrow_codes(name)
        return lookup([meaning(text) for text in texts], codes, missing=missing)

    def take(self, rows: NDArray[Any]) -> Columns:
        """Keep the rows of a mask or of an index array."""
        index = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        taken = Columns(Chosen(self._view, index))
        taken._parent, taken._rows = self, index
        return taken

    @property
    def arrow(self) -> pa.Table:
        """The table itself."""
        return table_of(self._view)

    def _array(self, name: str) -> NDArray[Any]:
        kind = self._kind(name)
        if _is_text(kind):
            codes, values = self.narrow_codes(name)
            return np.asarray(lookup(values, codes, missing=""))
        if self._parent is not None and not len(self):
            return np.zeros(0, kind.to_pandas_dtype())  # nothing is read for no rows
        if self._parent is not None:
            return self._parent[name].take(self._rows)  # read and converted once for all choices from one table
        return numbers_of(self._view.column(name))

    def _code(self, name: str) -> tuple[NDArray[Any], list[str]]:
        kind = self._kind(name)
        if self._parent is not None and not len(self):
            return np.zeros(0, np.int32), []
        if self._parent is None or not pa.types.is_dictionary(kind):
            return _coded(self._view.column(name))
        codes, values = self._parent.narrow_codes(name)
        return codes.take(self._rows), values

    def _kind(self, name: str) -> pa.DataType:
        place = self._view.schema.get_field_index(name)
        if place < 0:
            raise unknown_name("column", name, self._view.schema.names)
        return self._view.schema.field(place).type


_NONE_KNOWN: Mapping[str, Sequence[str]] = {}


def stacked(
    tables: Iterable[Columns], fields: Sequence[pa.Field], rows: int, known: Mapping[str, Sequence[str]] = _NONE_KNOWN
) -> pa.Table:
    """Put some columns of several tables below each other; `rows` is how many they have together.

    The tables are taken one by one, and nothing of one is held when the next is asked for: of a thousand ranks no more
    is in memory than these columns and one rank's table. Texts come coded; those of a column that are `known` come
    first.
    """
    arrays: dict[str, NDArray[Any]] = {}
    # By text column the code of each text, in the order in which they come up first.
    code_of: dict[str, dict[str, int]] = {
        field.name: {text: code for code, text in enumerate(known.get(field.name, ()))}
        for field in fields
        if _is_text(field.type)
    }
    begin = 0
    for table in tables:
        end = begin + len(table)
        for field in fields:
            name = field.name
            if name in code_of:
                codes, texts = table.narrow_codes(name)
                new_code = [code_of[name].setdefault(text, len(code_of[name])) for text in texts]
                values = lookup(new_code, codes, missing=-1).astype(np.int32)
            else:
                values = table[name]
            if name not in arrays:
                arrays[name] = np.empty(rows, values.dtype)
            arrays[name][begin:end] = values
        begin = end
    made = [
        coded(arrays[field.name], list(code_of[field.name])) if field.name in code_of else array_of(arrays[field.name])
        for field in fields
    ]
    return pa.table(made, names=[field.name for field in fields])


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
