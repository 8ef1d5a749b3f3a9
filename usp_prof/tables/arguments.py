"""What do an event's arguments say? Fields read out of the JSON text of many events at once."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from usp_prof.model.schema import Kind
from usp_prof.readers.argument_texts import taken
from usp_prof.readers.mapped import let_go

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SQL = {Kind.INT: "BIGINT", Kind.FLOAT: "DOUBLE", Kind.FLAG: "BOOLEAN"}


@dataclass(frozen=True, slots=True)
class Field:
    """One argument: the column to make, the key as Kineto writes it (`$.` paths reach inside) and its type."""

    name: str
    key: str
    kind: Kind = Kind.INT

    @property
    def path(self) -> str:
        """The JSON path."""
        return self.key if self.key.startswith("$") else f'$."{self.key}"'


_BATCH = 1 << 15


def read_arguments(args: pa.ChunkedArray, rows: NDArray[np.int64], fields: tuple[Field, ...]) -> dict[str, Any]:
    """Read fields; absent ones are -1, NaN, "" or False. Arguments that are no JSON object count as empty."""
    if not len(rows):
        return {f.name: _column(pa.nulls(0, pa.string()), f.kind) for f in fields}
    batches = []
    for at in range(0, len(rows), _BATCH):
        batches.append(_read(taken(args, rows[at : at + _BATCH]), fields))
        let_go()
    found = pa.concat_tables(batches)
    return {f.name: _column(found.column(place), f.kind) for place, f in enumerate(fields)}


def _read(chosen: pa.Array, fields: tuple[Field, ...]) -> pa.Table:
    """Read fields of so few arguments that copies of them weigh nothing."""
    texts = pa.table({"args": pc.if_else(pc.equal(chosen, ""), None, chosen)})
    paths = ", ".join("'" + f.path.replace("'", "''") + "'" for f in fields)
    picks = ", ".join(_pick(place, f) for place, f in enumerate(fields, 1))
    query = "SELECT {picks} FROM (SELECT json_extract_string({args}, [{paths}]) AS r FROM texts)"
    connection = _connection(os.getpid(), threading.get_ident())
    connection.register("texts", texts)
    try:
        return connection.sql(query.format(picks=picks, args="args", paths=paths)).to_arrow_table()
    except duckdb.InvalidInputException:  # some arguments are damaged: leave those out
        safe = "CASE WHEN json_valid(args) THEN args END"
        return connection.sql(query.format(picks=picks, args=safe, paths=paths)).to_arrow_table()
    finally:
        connection.unregister("texts")


@cache
def _connection(process: int, thread: int) -> duckdb.DuckDBPyConnection:  # noqa: ARG001 - one for each of them
    """Keep one connection for each thread of each process: opening one costs more than a small trace's queries.

    Ranks are built side by side in processes, so one thread of DuckDB's own is enough.
    """
    return duckdb.connect(config={"threads": 1})


def _pick(place: int, field: Field) -> str:
    if field.kind is Kind.TEXT:
        return f"r[{place}] AS c{place}"
    return f"TRY_CAST(r[{place}] AS {_SQL[field.kind]}) AS c{place}"


def _column(found: pa.ChunkedArray | pa.Array, kind: Kind) -> Any:  # noqa: ANN401 - NumPy or Arrow by kind
    if kind is Kind.TEXT:
        return pc.fill_null(found.cast(pa.string()), "")
    if kind is Kind.FLAG:
        return pc.fill_null(found.cast(pa.bool_()), fill_value=False).to_numpy(zero_copy_only=False)
    filled = pc.fill_null(found.cast(pa.float64() if kind is Kind.FLOAT else pa.int64()), -1)
    values = filled.to_numpy(zero_copy_only=False) if isinstance(filled, pa.Array) else filled.to_numpy()
    if kind is Kind.FLOAT:
        return np.where(pc.is_null(found).to_numpy(), np.nan, values) if len(values) else values
    return values
