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
    from collections.abc import Iterator

    from numpy.typing import NDArray

_SQL = {Kind.INT: "BIGINT", Kind.FLOAT: "DOUBLE", Kind.FLAG: "BOOLEAN"}


@dataclass(frozen=True, slots=True)
class Field:
    """One argument: the column to make, the key as Kineto writes it (`$.` paths reach inside) and its type.

    Texts of which many are alike can be had `coded`: each distinct one is held once.
    """

    name: str
    key: str
    kind: Kind = Kind.INT
    coded: bool = False

    @property
    def path(self) -> str:
        """The JSON path."""
        return self.key if self.key.startswith("$") else f'$."{self.key}"'


_BATCH = 1 << 17
"""Fields that are read at once."""
_SPAN = 16 << 20
"""Bytes of arguments within which rows lie that are read at once."""


def read_arguments(args: pa.ChunkedArray, rows: NDArray[np.int64], fields: tuple[Field, ...]) -> dict[str, Any]:
    """Read fields; absent ones are -1, NaN, "" or False. Arguments that are no JSON object count as empty."""
    if not len(rows):
        return {f.name: _whole([_prepared(pa.chunked_array([], pa.string()), f)], f) for f in fields}
    order = None if (rows[1:] >= rows[:-1]).all() else np.argsort(rows, kind="stable")
    ordered = rows if order is None else rows[order]
    batches = []
    for chosen in _taken(args, ordered, len(fields)):
        read = _read(chosen, fields)
        batches.append([_prepared(read.column(place), field) for place, field in enumerate(fields)])
        del read, chosen
        let_go()
    named = {f.name: _whole([batch[place] for batch in batches], f) for place, f in enumerate(fields)}
    return named if order is None else _reordered(named, order)


def _taken(args: pa.ChunkedArray, rows: NDArray[np.int64], fields: int) -> Iterator[pa.Array]:
    """Give the arguments of ascending rows a batch at a time, each gathered from where few pages have to be touched."""
    gathered: list[pa.Array] = []
    for part in _parts(args, rows, fields):
        gathered.append(taken(args, part))
        if sum(map(len, gathered)) * fields >= _BATCH or sum(part.nbytes for part in gathered) >= _SPAN:
            yield pa.concat_arrays(gathered)
            gathered.clear()
        else:
            let_go()
    if gathered:
        yield pa.concat_arrays(gathered)


def _parts(args: pa.ChunkedArray, rows: NDArray[np.int64], fields: int) -> Iterator[NDArray[np.int64]]:
    """Cut ascending rows so that a part has few fields and lies close together: texts wait in a file (`mapped`)."""
    apart = max(int(_SPAN / max(args.nbytes / len(args), 1)), 1)
    for near in np.split(rows, np.flatnonzero(np.diff(rows // apart)) + 1):
        size = max(_BATCH // fields, 1)
        yield from (near[at : at + size] for at in range(0, len(near), size))


def _reordered(columns: dict[str, Any], order: NDArray[np.int64]) -> dict[str, Any]:
    """Put columns that were read in ascending order into the order that was asked for."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return {
        name: column[place] if isinstance(column, np.ndarray) else column.take(pa.array(place))
        for name, column in columns.items()
    }


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


def _prepared(found: pa.ChunkedArray, field: Field) -> Any:  # noqa: ANN401 - NumPy or Arrow by kind
    """Make of a batch what is kept of it until all are read.

    Numbers are copied: as long as one column of a batch of DuckDB's lives, the texts of all its columns do.
    """
    if field.kind is Kind.TEXT:
        texts = pc.fill_null(found.cast(pa.string()), "")
        return texts.dictionary_encode() if field.coded else texts
    if field.kind is Kind.FLAG:
        return pc.fill_null(found.cast(pa.bool_()), fill_value=False).to_numpy().copy()
    filled = pc.fill_null(found.cast(pa.float64() if field.kind is Kind.FLOAT else pa.int64()), -1)
    if field.kind is Kind.FLOAT:
        return np.where(pc.is_null(found).to_numpy(), np.nan, filled.to_numpy())
    return filled.to_numpy().copy()


def _whole(parts: list[Any], field: Field) -> Any:  # noqa: ANN401 - NumPy or Arrow by kind
    """Put the batches of a column together."""
    if field.kind is not Kind.TEXT:
        return np.concatenate(parts)
    column = pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)
    if not field.coded:
        return column
    whole = column.unify_dictionaries().combine_chunks()
    return whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
