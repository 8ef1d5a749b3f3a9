"""A stored table: columns of a Parquet file, each read when asked for. Most questions need three out of twenty."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from usp_prof.model.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


_SMALL = 1 << 16
"""Bytes of a table, as encoded, whose columns are all read at once: to open its file costs as much as four columns."""
_SCHEMAS: dict[str, pa.Schema] = {}
"""By file name the schema that was read last: those of all ranks are one object."""


class StoredTable:
    """A table in a Parquet file, which is open only while it is read: a run of many ranks has thousands of them.

    Of the file only size and schema are kept. What Parquet keeps of an open file takes as much memory as the columns of
    a small table.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: dict[str, pa.ChunkedArray] = {}
        self._rows = -1
        """-1: the file was not opened yet."""
        self._schema: pa.Schema | None = None
        self._bytes = 0
        """Of all columns, as encoded in the file."""

    @property
    def num_rows(self) -> int:
        """Count the rows."""
        if self._rows < 0:
            self._look()
        return self._rows

    @property
    def schema(self) -> pa.Schema:
        """Say the columns' names and types."""
        if self._schema is None:
            self._look()
        return self._schema

    def column(self, name: str) -> pa.ChunkedArray:
        """Read one column; of a small table all."""
        if name not in self._read:
            if self._is_small:
                self.hold(self.whole())
            else:
                self._read[name] = self._one(self.schema.get_field_index(name))
        return self._read[name]

    @property
    def _is_small(self) -> bool:
        if self._rows < 0:
            self._look()
        return self._bytes <= _SMALL

    def _one(self, place: int) -> pa.ChunkedArray:
        """Read the column at a place: tables are flat, so that a field is a column of the file."""
        with self._opened() as file:
            # `file.read` hands even one column over to another thread, and waits for it
            return file.reader.read_column(place)

    def hold(self, whole: pa.Table) -> None:
        """Take the table as it was written or read: nothing of it is read again."""
        self._rows, self._schema, self._bytes = whole.num_rows, self._shared(whole.schema), whole.nbytes
        self._read.update(zip(whole.column_names, whole.columns, strict=True))

    def whole(self) -> pa.Table:
        """Read all columns."""
        with self._opened() as file:
            return file.read(use_threads=False)

    def only(self, names: Sequence[str]) -> pa.Table:
        """Read some columns and keep none: of many ranks, those of one at a time."""
        with self._opened() as file:
            return file.read(columns=list(names), use_threads=False)

    def _look(self) -> None:
        with self._opened() as file:
            about = file.metadata
            self._rows = int(about.num_rows)
            self._bytes = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
            self._schema = self._shared(file.schema_arrow)

    def _shared(self, schema: pa.Schema) -> pa.Schema:
        known = _SCHEMAS.setdefault(self._path.name, schema)
        return known if known.equals(schema, check_metadata=True) else schema

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        """Open the file; refuse one that is gone, and what was damaged after the entry was opened and checked."""
        try:
            with pq.ParquetFile(self._path) as file:
                yield file
        except FileNotFoundError:
            raise self._gone() from None
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"the stored table {self._path} is damaged: {error}", hint="open the run again") from None

    def _gone(self) -> InputError:
        return InputError(
            f"the stored table {self._path} is gone: the cache was cleared while the run was open",
            hint="open the run again; another folder for the cache is chosen with --cache-dir",
        )
