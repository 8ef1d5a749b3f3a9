"""How does a reader make a table of a schema? Columns in order, texts dictionary-coded, what is missing as absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from usp_prof.model.schema import Column, Kind, Schema
from usp_prof.readers.arrays import array_of
from usp_prof.readers.parted import Parted

if TYPE_CHECKING:
    from collections.abc import Mapping

_CODED = pa.dictionary(pa.int32(), pa.string())
PLAIN_TEXT = frozenset({"args"})
"""Texts of which hardly two are alike are kept plain: a dictionary would only cost."""


def to_table(schema: Schema, columns: Mapping[str, Any], rows: int) -> pa.Table:
    """Make a table; an integer column that is not given is -1 (absent). Integers are as wide as they are given."""
    arrays = [_array(column, columns.get(column.name), rows) for column in schema.columns]
    return pa.Table.from_arrays(arrays, names=list(schema.names))


def widened(schema: Schema, table: pa.Table, rank: int) -> Parted:
    """Give a table that a reader made as its schema has it: integers 64 bits wide, no nulls, the rank in its column."""
    names, place = {column.name: column.kind for column in schema.columns}, schema.names.index("rank")
    types = (pa.int64() if names[field.name] is Kind.INT else field.type for field in table.schema)
    wide = pa.schema([pa.field(*told, nullable=False) for told in zip(table.schema.names, types, strict=True)])

    def make(begin: int, end: int) -> pa.Table:
        part = table.slice(begin, end - begin)
        ranks = array_of(np.full(part.num_rows, rank, np.int64))
        return part.set_column(place, "rank", ranks).cast(wide)

    return Parted(wide, table.num_rows, make)


def _array(column: Column, value: Any, rows: int) -> Any:  # noqa: ANN401 - an array or chunked array
    if value is None:
        return array_of(np.full(rows, -1, np.int8))
    if column.kind is Kind.TEXT and column.name not in PLAIN_TEXT:
        return value if pa.types.is_dictionary(value.type) else value.dictionary_encode().cast(_CODED)
    return array_of(value) if isinstance(value, np.ndarray) else value
