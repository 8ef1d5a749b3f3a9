"""A stored table: columns of a Parquet file, each read when asked for. Most questions need three out of twenty."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from usp_prof.model.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_SHORT = 1 << 12
"""Rows of a table whose columns are all read at once."""


class StoredTable:
    """A table in a Parquet file, which is open only while it is read: a run of many ranks has thousands of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: dict[str, pa.ChunkedArray] = {}

    @cached_property
    def num_rows(self) -> int:
        """Count the rows."""
        return int(self._footer.num_rows)

    @cached_property
    def schema(self) -> pa.Schema:
        """Say the columns' names and types."""
        return self._footer.schema.to_arrow_schema()

    def column(self, name: str) -> pa.ChunkedArray:
        """Read one column; of a short table all, for to open it costs more than to read it."""
        if name not in self._read:
            if self.num_rows <= _SHORT:
                self.hold(self.whole())
            else:
                self._read[name] = self._one(self.schema.get_field_index(name))
        return self._read[name]

    def _one(self, place: int) -> pa.ChunkedArray:
        """Read the column at a place: tables are flat, so that a field is a column of the file."""
        with self._opened() as file, self._believed():
            # `file.read` hands even one column over to another thread, and waits for it
            return file.reader.read_column(place)

    def hold(self, whole: pa.Table) -> None:
        """Take the table as it was written or read: nothing of it is read again."""
        self.num_rows, self.schema = whole.num_rows, whole.schema
        self._read.update(zip(whole.column_names, whole.columns, strict=True))

    def whole(self) -> pa.Table:
        """Read all columns."""
        with self._opened() as file, self._believed():
            return file.read(use_threads=False)

    @cached_property
    def _footer(self) -> pq.FileMetaData:
        try:
            return pq.read_metadata(self._path)
        except FileNotFoundError:
            raise self._gone() from None

    def _opened(self) -> pq.ParquetFile:
        footer = self._footer
        try:
            return pq.ParquetFile(self._path, metadata=footer)
        except FileNotFoundError:
            raise self._gone() from None

    @contextmanager
    def _believed(self) -> Iterator[None]:
        """Refuse what was damaged after the entry was opened and checked."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"the stored table {self._path} is damaged: {error}", hint="open the run again") from None

    def _gone(self) -> InputError:
        return InputError(
            f"the stored table {self._path} is gone: the cache was cleared while the run was open",
            hint="open the run again; another folder for the cache is chosen with --cache-dir",
        )
