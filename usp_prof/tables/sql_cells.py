"""Cells of SQL results: numbers, booleans and texts unchanged, other types as the text that DuckDB writes.

Arrow or Python lose parts of rare types, or fail on them: the zone of a TIMETZ, the nanoseconds of a TIME_NS, a
UHUGEINT beyond 127 bits, dates beyond the year 9999. DuckDB's own text, `CAST(... AS VARCHAR)`, is complete.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pyarrow as pa

_PLAIN = frozenset({
    "boolean", "tinyint", "smallint", "integer", "bigint", "hugeint", "utinyint", "usmallint", "uinteger", "ubigint",
    "float", "double", "decimal", "varchar", "null", "sqlnull",
})  # fmt: skip
"""Types, as named by `DuckDBPyType.id`, whose values pass through Arrow unchanged and are plain in every format."""
_LOST_IN_ARROW = frozenset({
    "uhugeint", "bignum", "varint", "bit", "time with time zone", "union", "variant", "geometry",
})  # fmt: skip
"""Types that Arrow lacks: a UHUGEINT becomes -1, a TIMETZ loses its zone, others become DuckDB's bytes."""


class Cells(StrEnum):
    """Form of the values of a result."""

    TYPED = "typed"
    """Arrow types if they exist, for Parquet and programs."""
    PLAIN = "plain"
    """Numbers, booleans, texts, and lists and structs of these, for JSON, CSV and grids."""
    TEXT = "text"
    """Lists and structs as texts too, for people."""


def answer_of(relation: Any, rows: int | None, cells: Cells, *, is_explain: bool) -> pa.Table:  # noqa: ANN401 - DuckDB's
    """Return the first rows of a relation as Arrow; a plan is shown as it is."""
    if is_explain:
        return relation.to_arrow_table()
    first = relation if rows is None else relation.limit(rows)
    targets = [_target(kind, cells) for kind in relation.types]
    if targets != list(relation.types):
        casts = (f"CAST(#{number} AS {target})" for number, target in enumerate(targets, 1))
        first = first.project(", ".join(casts))  # the columns lose their names
    return first.to_arrow_table().rename_columns(relation.columns)


def _target(kind: Any, cells: Cells) -> Any:  # noqa: ANN401 - DuckDB types
    """Return the type to which a column is cast: its own, text, or one that contains text."""
    import duckdb  # noqa: PLC0415 - slow to import, and needed only for SQL

    if kind.id in _PLAIN:
        return kind
    if kind.id not in _NESTED[cells]:
        is_lost = cells is not Cells.TYPED or kind.id in _LOST_IN_ARROW
        return duckdb.type("VARCHAR") if is_lost else kind
    names = [name for name, _ in kind.children]
    if len(set(names)) < len(names):  # `row(1, 2)`: a dict would keep only the last field
        return duckdb.type("VARCHAR")
    # The second child of an array is its size.
    inner = {name: _target(child, cells) if hasattr(child, "id") else child for name, child in kind.children}
    if list(inner.items()) == list(kind.children):
        return kind
    if kind.id == "struct":
        return duckdb.struct_type(inner)
    return duckdb.map_type(inner["key"], inner["value"]) if kind.id == "map" else duckdb.list_type(inner["child"])


_NESTED = {
    Cells.TYPED: frozenset({"list", "array", "struct", "map"}),
    Cells.PLAIN: frozenset({"list", "array", "struct"}),
    Cells.TEXT: frozenset[str](),
}
"""Types that stay, with other values inside."""
