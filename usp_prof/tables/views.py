"""What can stand for a table without being read or copied as a whole? Anything that gives its columns one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from usp_prof.readers.arrays import index_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray


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


class Stacked:
    """The tables of several ranks, one below the other."""

    def __init__(self, views: Sequence[View]) -> None:
        self._views = views
        self.num_rows = sum(view.num_rows for view in views)
        self.schema: pa.Schema = views[0].schema

    def column(self, name: str) -> pa.ChunkedArray:
        """Give one column of all of them."""
        chunks = [chunk for view in self._views for chunk in view.column(name).chunks]
        return pa.chunked_array(chunks, self.schema.field(name).type)

    def whole(self) -> pa.Table:
        """Give all columns of all of them."""
        return pa.concat_tables([table_of(view) for view in self._views]).unify_dictionaries()
