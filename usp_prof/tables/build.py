"""Table building: Arrow schemas, and columns checked against their schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from usp_prof.columns.arrow import array_of, coded, index_of
from usp_prof.model.schema import Column, Kind, Schema

_TYPES = {
    Kind.INT: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.TEXT: pa.dictionary(pa.int32(), pa.string()),
    Kind.FLAG: pa.bool_(),
}
_NUMBERS: dict[Kind, type] = {Kind.INT: int, Kind.FLOAT: float, Kind.FLAG: bool}
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
    arrays = [
        _without_nulls(column.kind, _array(column, columns.get(column.name, _ABSENT[column.kind]), rows))
        for column in schema.columns
    ]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(schema))


def table_from_rows(schema: Schema, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Build a small table from rows; columns that a row leaves out are missing."""
    row_list: Sequence[Mapping[str, Any]] = list(rows)
    columns = {c.name: [row.get(c.name, _ABSENT[c.kind]) for row in row_list] for c in schema.columns}
    return table(schema, columns, len(row_list))


def empty(schema: Schema) -> pa.Table:
    """Build the table without rows."""
    return pa.Table.from_batches([], schema=arrow_schema(schema))


def _unchecked(kind: Kind, value: Any) -> pa.Array | None:  # noqa: ANN401 - any value that Arrow accepts
    """Convert plain columns to Arrow without `pa.array`, which would import pandas."""
    if isinstance(value, list) and all(type(item) is _NUMBERS.get(kind, type(item)) for item in value):
        value = _array_of_list(kind, value)
    element = value.dtype.kind if isinstance(value, np.ndarray) and value.ndim == 1 else ""
    if kind is Kind.INT and element == "i":
        return index_of(value)
    if kind is Kind.FLAG and element == "b":
        return array_of(value)
    if kind is Kind.FLOAT and element == "f":
        return array_of(value.astype(float, copy=False))
    if kind is Kind.TEXT and element == "O":
        texts = value.tolist()
        distinct = dict.fromkeys(texts)
        if all(isinstance(text, str) for text in distinct):
            place = dict(zip(distinct, range(len(distinct)), strict=True))
            codes = np.fromiter(map(place.__getitem__, texts), np.int32, len(texts))
            return coded(codes, list(distinct))
    return None


def _array_of_list(kind: Kind, value: list[Any]) -> Any:  # noqa: ANN401 - the list itself if it cannot be an array
    """Build an array from a list of values; numbers beyond 64 bits stay in the list."""
    try:
        return np.array(value, {Kind.INT: np.int64, Kind.FLOAT: np.float64, Kind.FLAG: bool, Kind.TEXT: object}[kind])
    except OverflowError:
        return value


def _without_nulls(kind: Kind, array: pa.Array) -> pa.Array:
    """Replace nulls by the missing value."""
    if not array.null_count:
        return array
    if kind is Kind.TEXT:
        return array.dictionary_decode().fill_null(_ABSENT[kind]).dictionary_encode()
    return array.fill_null(_ABSENT[kind])


def _array(column: Column, value: Any, rows: int) -> pa.Array:  # noqa: ANN401 - any value that Arrow accepts
    kind = _TYPES[column.kind]
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    if isinstance(value, pa.Array):
        return value.cast(kind) if value.type != kind else value
    if not hasattr(value, "__len__") or isinstance(value, str):
        if column.kind is Kind.TEXT:
            return coded(np.zeros(rows, np.int32), [value])
        value = np.full(rows, value)
    if (plain := _unchecked(column.kind, value)) is not None:
        return plain
    if column.kind is Kind.TEXT:
        return pa.array(value, pa.string()).dictionary_encode().cast(kind)
    try:
        return pa.array(value, kind)
    except (OverflowError, pa.ArrowTypeError):  # a damaged number (beyond 64 bits, a boolean) becomes the missing value
        return pa.array([int(item) if -(2**63) <= int(item) < 2**63 else -1 for item in value], kind)
