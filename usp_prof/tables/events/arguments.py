"""What do an event's arguments say? Fields read out of the JSON text of many events at once."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from usp_prof.columns.arrow import array_of, index_of, numbers_of, scalar_of, texts_of
from usp_prof.inputs.kineto.arguments import taken
from usp_prof.inputs.memory import let_go
from usp_prof.model.schema import Kind
from usp_prof.tables.events._plain_json import FEW, read_plainly
from usp_prof.tables.events._sound_arguments import ROWS, SoundArguments

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from duckdb import DuckDBPyConnection
    from numpy.typing import NDArray

    from usp_prof.tables.events.field import Field

_SQL = {Kind.INT: "BIGINT", Kind.FLOAT: "DOUBLE", Kind.FLAG: "BOOLEAN"}


_BATCH = 1 << 17
"""Fields that are read at once."""
_SPAN = 16 << 20
"""Bytes of arguments within which rows lie that are read at once."""


def read_arguments(args: pa.ChunkedArray, rows: NDArray[np.int64], fields: tuple[Field, ...]) -> dict[str, Any]:
    """Read fields; absent ones are -1, NaN, "" or False. Arguments that are no JSON object count as empty."""
    if not len(rows):
        nothing = texts_of([])
        return {f.name: _whole([_prepared(_typed(nothing, f), f)], f) for f in fields}
    order = None if (rows[1:] >= rows[:-1]).all() else np.argsort(rows, kind="stable")
    ordered = rows if order is None else rows[order]
    place = None if order is None else _places(order)
    named = _soundly(args, ordered, fields, place)
    if named is None:
        named = _carefully(args, ordered, fields)
        named = named if place is None else {name: _chosen(column, place) for name, column in named.items()}
    return named


def _places(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Say where each row went that was put into an order."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place


def _soundly(
    args: pa.ChunkedArray, rows: NDArray[np.int64], fields: tuple[Field, ...], place: NDArray[np.int64] | None
) -> dict[str, Any] | None:
    """Read fields of arguments that are written as they should be; `None` when some are not.

    They come in the order of the rows, or as `place` says.
    """
    sound = SoundArguments(fields)
    for near in _near(args, rows):
        for begin in range(0, len(near), ROWS):
            if not sound.read(taken(args, near[begin : begin + ROWS])):
                return None
        let_go()
    numbers, codes = sound.columns()
    if place is not None:
        numbers, codes = {name: column[place] for name, column in numbers.items()}, codes[place]
    if not sound.others:
        return numbers
    read = _read(texts_of([each.decode() for each in sound.combinations()]), sound.others)
    told = {field.name: _prepared(values, field) for values, field in zip(read, sound.others, strict=True)}
    return numbers | {name: _chosen(values, codes) for name, values in told.items()}


def _carefully(args: pa.ChunkedArray, rows: NDArray[np.int64], fields: tuple[Field, ...]) -> dict[str, Any]:
    """Read fields of arguments however they are written."""
    batches = []
    for chosen in _taken(args, rows, len(fields)):
        batches.append([_prepared(read, field) for read, field in zip(_read(chosen, fields), fields, strict=True)])
        del chosen
        let_go()
    return {f.name: _whole([batch[place] for batch in batches], f) for place, f in enumerate(fields)}


def _taken(args: pa.ChunkedArray, rows: NDArray[np.int64], fields: int) -> Iterator[pa.Array]:
    """Give the arguments of ascending rows a batch at a time, each gathered from where few pages have to be touched."""
    gathered: list[pa.Array] = []
    for part in _parts(args, rows, fields):
        gathered.append(taken(args, part))
        if sum(map(len, gathered)) * fields >= _BATCH or sum(part.nbytes for part in gathered) >= _SPAN:
            yield _joined(gathered)
            gathered.clear()
        else:
            let_go()
    if gathered:
        yield _joined(gathered)


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _parts(args: pa.ChunkedArray, rows: NDArray[np.int64], fields: int) -> Iterator[NDArray[np.int64]]:
    """Cut ascending rows so that a part has few fields and lies close together."""
    size = max(_BATCH // fields, 1)
    for near in _near(args, rows):
        yield from (near[at : at + size] for at in range(0, len(near), size))


def _near(args: pa.ChunkedArray, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Cut ascending rows into those that lie close together: texts may wait in a file (`mapped`)."""
    apart = max(int(_SPAN / max(args.nbytes / len(args), 1)), 1)
    return np.split(rows, np.flatnonzero(np.diff(rows // apart)) + 1)


def _chosen(column: Any, rows: NDArray[Any]) -> Any:  # noqa: ANN401 - NumPy or Arrow by kind
    """Give some rows of a column."""
    return column[rows] if isinstance(column, np.ndarray) else column.take(array_of(rows))


def _read(chosen: pa.Array, fields: Sequence[Field]) -> list[pa.Array]:
    """Read fields of so few arguments that copies of them weigh nothing; what is absent is null."""
    if len(chosen) <= FEW:
        plain = read_plainly(chosen.cast(pa.binary()).to_pylist(), [field.path for field in fields])
        if plain is not None:
            return [_typed(texts_of(texts), field) for texts, field in zip(plain, fields, strict=True)]
    return _read_any(chosen, fields)


def _read_any(chosen: pa.Array, fields: Sequence[Field]) -> list[pa.Array]:
    """Read fields of arguments that may be written in any way."""
    from duckdb import InvalidInputException  # noqa: PLC0415 - see `_plain_json`

    texts = pa.table({"args": pc.if_else(pc.equal(chosen, scalar_of("")), scalar_of("{}"), chosen)})
    paths = ", ".join("'" + f.path.replace("'", "''") + "'" for f in fields)
    with _registered(texts) as connection:
        try:
            found = _lists(connection, "args", paths)
        except InvalidInputException:  # some arguments are damaged: leave those out
            found = _lists(connection, "CASE WHEN json_valid(args) THEN args ELSE '{}' END", paths)
    flat = _joined([chunk.flatten() for chunk in found.chunks])
    rows = np.arange(len(chosen)) * len(fields)
    return [_typed(flat.take(index_of(rows + place)), field) for place, field in enumerate(fields)]


def _lists(connection: DuckDBPyConnection, args: str, paths: str) -> pa.ChunkedArray:
    """Give for each text the list of what stands at the paths: a column for each costs more to plan than to read."""
    query = f"SELECT json_extract_string({args}, [{paths}]) AS r FROM texts"  # noqa: S608 - our own fields
    return connection.sql(query).to_arrow_table().column("r")


def _typed(texts: pa.StringArray, field: Field) -> pa.Array:
    """Make of texts what the field is; what cannot be made is null."""
    if field.kind is Kind.TEXT:
        return texts
    try:
        return texts.cast({Kind.INT: pa.int64(), Kind.FLOAT: pa.float64(), Kind.FLAG: pa.bool_()}[field.kind])
    except pa.ArrowInvalid:  # some are written in another way, or no numbers at all
        with _registered(pa.table({"args": texts})) as connection:
            query = f"SELECT TRY_CAST(args AS {_SQL[field.kind]}) AS v FROM texts"  # noqa: S608 - our own types
            return connection.sql(query).to_arrow_table().column("v").combine_chunks()


@contextmanager
def _registered(texts: pa.Table) -> Iterator[DuckDBPyConnection]:
    connection = _connection(os.getpid(), threading.get_ident())
    connection.register("texts", texts)
    try:
        yield connection
    finally:
        connection.unregister("texts")


@cache
def _connection(process: int, thread: int) -> DuckDBPyConnection:  # noqa: ARG001 - one for each of them
    """Keep one connection for each thread of each process: opening one costs more than a small trace's queries.

    Ranks are built side by side in processes, so one thread of DuckDB's own is enough.
    """
    import duckdb  # noqa: PLC0415 - see `_plain_json`

    return duckdb.connect(config={"threads": 1})


def _prepared(found: pa.Array, field: Field) -> Any:  # noqa: ANN401 - NumPy or Arrow by kind
    """Make of a batch what is kept of it until all are read."""
    if field.kind is Kind.TEXT:
        texts = pc.fill_null(found, scalar_of(""))
        return texts.dictionary_encode() if field.coded else texts
    if field.kind is Kind.FLAG:
        return numbers_of(pc.fill_null(found, scalar_of(value=False)))
    if field.kind is Kind.FLOAT:
        return np.where(numbers_of(pc.is_null(found)), np.nan, numbers_of(pc.fill_null(found, scalar_of(0.0))))
    return numbers_of(pc.fill_null(found, scalar_of(-1)))


def _whole(parts: list[Any], field: Field) -> Any:  # noqa: ANN401 - NumPy or Arrow by kind
    """Put the batches of a column together."""
    if field.kind is not Kind.TEXT:
        return np.concatenate(parts)
    column = pa.chunked_array(parts)
    if not field.coded:
        return column
    whole = column.unify_dictionaries().combine_chunks()
    return whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
