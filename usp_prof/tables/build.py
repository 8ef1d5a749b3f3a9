"""Table building: Arrow schemas, and columns checked against their schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from usp_prof.columns.arrow import array_of, coded
from usp_prof.columns.rows import text_codes
from usp_prof.model.schema import Kind, Schema

_TYPES = {
    Kind.INT: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.TEXT: pa.dictionary(pa.int32(), pa.string()),
    Kind.FLAG: pa.bool_(),
}
_NUMBERS = {Kind.INT: np.int64, Kind.FLOAT: np.float64, Kind.FLAG: np.bool_}
_ABSENT: dict[Kind, Any] = {Kind.INT: -1, Kind.FLOAT: float("nan"), Kind.TEXT: "", Kind.FLAG: False}


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a table. Missing values have a code (`_ABSENT`): no column has nulls."""
    return pa.schema([pa.field(column.name, _TYPES[column.kind], nullable=False) for column in schema.columns])


def table(schema: Schema, columns: Mapping[str, Any], rows: int | None = None) -> pa.Table:
    """Build a table from arrays, scalars and missing columns (filled with the missing value), in schema order."""
    unknown = set(columns) - set(schema.names)
    if unknown:
        raise KeyError(f"table {schema.name} has no columns {sorted(unknown)}")
    if rows is None:
        rows = next((len(v) for v in columns.values() if hasattr(v, "__len__") and not isinstance(v, str)), 0)
    arrays = [_array(column.kind, columns.get(column.name, _ABSENT[column.kind]), rows) for column in schema.columns]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(schema))


def table_from_rows(schema: Schema, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Build a small table from rows; columns that a row leaves out are missing."""
    row_list: Sequence[Mapping[str, Any]] = list(rows)
    columns = {c.name: [row.get(c.name, _ABSENT[c.kind]) for row in row_list] for c in schema.columns}
    return table(schema, columns, len(row_list))


def empty(schema: Schema) -> pa.Table:
    """Build the table without rows."""
    return pa.Table.from_batches([], schema=arrow_schema(schema))


def _array(kind: Kind, value: Any, rows: int) -> pa.Array:  # noqa: ANN401 - a scalar, a list, a NumPy or an Arrow array
    """Convert a column to Arrow, without `pa.array`, which would import pandas; missing values have their code."""
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    if isinstance(value, pa.Array):
        return _without_nulls(kind, value if value.type == _TYPES[kind] else value.cast(_TYPES[kind]))
    if kind is Kind.TEXT:
        if isinstance(value, str):
            return coded(np.zeros(rows, np.int32), [value])
        return coded(*text_codes(_ABSENT[kind] if text is None else text for text in value))
    if not hasattr(value, "__len__"):
        value = np.full(rows, value)
    if not isinstance(value, np.ndarray):
        value = np.array([_number(kind, item) for item in value], _NUMBERS[kind])
    return array_of(value.astype(_NUMBERS[kind], casting="same_kind", copy=False))


def _number(kind: Kind, item: Any) -> Any:  # noqa: ANN401 - a number or None
    """Return a number that the column can hold: the missing value for none, and for integers beyond 64 bits."""
    if item is None or (kind is Kind.INT and not -(2**63) <= item < 2**63):
        return _ABSENT[kind]
    return item


def _without_nulls(kind: Kind, array: pa.Array) -> pa.Array:
    """Replace nulls by the missing value."""
    if not array.null_count:
        return array
    if kind is Kind.TEXT:
        return array.dictionary_decode().fill_null(_ABSENT[kind]).dictionary_encode()
    return array.fill_null(_ABSENT[kind])
