"""What lies in a stored table? Its columns, each read when it is asked for: most questions need three out of twenty."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


class StoredTable:
    """A table in a Parquet file, which is open only while it is read: a run of many ranks has thousands of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: dict[str, pa.ChunkedArray] = {}

    @property
    def num_rows(self) -> int:
        """Count the rows."""
        return int(self._footer.num_rows)

    @cached_property
    def schema(self) -> pa.Schema:
        """Say the columns' names and types."""
        return self._footer.schema.to_arrow_schema()

    def column(self, name: str) -> pa.ChunkedArray:
        """Read one column."""
        if name not in self._read:
            with pq.ParquetFile(self._path, metadata=self._footer) as file:
                self._read[name] = file.read(columns=[name], use_threads=False).column(0)
        return self._read[name]

    def whole(self) -> pa.Table:
        """Read all columns."""
        with pq.ParquetFile(self._path, metadata=self._footer) as file:
            return file.read(use_threads=False)

    @cached_property
    def _footer(self) -> pq.FileMetaData:
        return pq.read_metadata(self._path)
