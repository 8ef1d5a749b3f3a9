"""How is a rank's trace written again, so that it can be read like the first? Processes and threads as they were."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from usp_prof.export.chrome import joined
from usp_prof.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from usp_prof.tables.table_set import TableSet

_NUMBER = re.compile(r"-?\d{1,15}\Z")
_NOT_WRITTEN = ("traceEvents", "baseTimeNanoseconds")


def write_rank(tables: TableSet, rank: int, path: Path, metadata: Mapping[str, Any]) -> int:
    """Write one rank's events with the top-level fields of its file, packed with gzip; gives how many they are."""
    table = tables.arrow("events", [rank])
    start = table["start_ns"].to_numpy()
    zero = int(start.min()) if len(start) else 0
    head = {name: value for name, value in metadata.items() if name not in _NOT_WRITTEN}
    fields = "".join(f"{json.dumps(name)}:{json.dumps(value)},\n" for name, value in head.items())
    parts = [*_names(tables, rank), *_events(table, zero).to_pylist()]
    text = f'{{{fields}"baseTimeNanoseconds":{zero},\n"traceEvents":[\n{joined(parts)}\n]}}\n'
    try:
        with gzip.GzipFile(path, "wb", compresslevel=5, mtime=0) as out:
            out.write(text.encode())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", hint="choose another folder with -o") from None
    return int(table.num_rows)


def _events(table: pa.Table, zero: int) -> pa.Array:
    args = table["args"].combine_chunks() if table.num_rows else pa.array([], pa.string())
    duration = table["dur_ns"].to_numpy()
    length = pc.binary_join_element_wise(',"dur":', _microseconds(np.maximum(duration, 0)), "")
    parts = [
        '{"ph":', _literal(table, "phase"), ',"cat":', _literal(table, "category"), ',"name":', _literal(table, "name"),
        ',"pid":', _literal(table, "process"), ',"tid":', _literal(table, "thread"),
        ',"ts":', _microseconds(table["start_ns"].to_numpy() - zero), pc.if_else(pa.array(duration >= 0), length, ""),
        ',"args":', pc.if_else(pc.equal(args, ""), "{}", args), "}",
    ]  # fmt: skip
    return pc.binary_join_element_wise(*parts, "")


def _literal(table: pa.Table, name: str) -> pa.Array:
    """Set a text as JSON: process and thread numbers as numbers, all else as strings."""
    column = table[name].combine_chunks()
    column = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
    if isinstance(column, pa.ChunkedArray):
        column = pa.array([], pa.string()).dictionary_encode()
    texts = column.dictionary.to_pylist()
    bare = name in ("process", "thread")
    set_ = [text if bare and _NUMBER.match(text) else json.dumps(text) for text in texts]
    return pa.array(set_, pa.string()).take(column.indices)


def _microseconds(ns: np.ndarray) -> pa.Array:
    whole, rest = np.divmod(ns, 1000)
    numbers = (pa.array(each).cast(pa.string()) for each in (whole, rest))
    first, second = numbers
    return pc.binary_join_element_wise(first, pc.utf8_lpad(second, 3, "0"), ".")


def _names(tables: TableSet, rank: int) -> list[str]:
    """Write what processes and threads are called."""
    found: list[str] = []
    for row in tables.arrow("threads", [rank]).to_pylist():
        place = {"pid": _key(row["process"]), "tid": _key(row["thread"])}
        for kind, key, value in (
            ("process_name", "name", row["process_name"]),
            ("process_labels", "labels", row["process_labels"]),
            ("thread_name", "name", row["thread_name"]),
        ):
            if value:
                found.append(json.dumps({"ph": "M", "name": kind, "ts": 0, **place, "args": {key: value}}))
        if row["sort_index"] >= 0:
            kind = "thread_sort_index"
            found.append(
                json.dumps({"ph": "M", "name": kind, "ts": 0, **place, "args": {"sort_index": row["sort_index"]}})
            )
    return found


def _key(text: str) -> int | str:
    return int(text) if _NUMBER.match(text) else text
