"""Ranks of processes: the ranks that a file states, and the part of one rank as if it had its own file.

A process belongs to the rank in its name or label ("rank 3: python", as usp-prof and Perfetto users write it), or to
the rank in the arguments of its events ("rank": 3, as TraceLens writes it). Processes without a rank belong to none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from usp_prof import limits
from usp_prof.columns.arrays import Flags
from usp_prof.columns.arrow import index_of
from usp_prof.columns.rows import first_rows
from usp_prof.columns.table import Columns
from usp_prof.inputs.remote import Location
from usp_prof.inputs.source import Source
from usp_prof.inputs.trace_record import TraceRecord
from usp_prof.model.health import HealthRow, Severity

_STATED = r"\brank[ _-]?0*(\d{1,9})\b"
_NAMED = re.compile(_STATED, re.IGNORECASE)
_LABEL = rb'"(?:name|labels)":\s*"[^"]{0,80}?(?i:\brank[ _-]?)0*(\d{1,9})\b[^"]*"'
_IN_FILE = re.compile(
    rb'"process_(?:name|labels)"[^{}]*"args":\s*\{\s*' + _LABEL
    + rb'|"args":\s*\{\s*' + _LABEL + rb'\s*\}[^{}]*"process_(?:name|labels)"'
    + rb'|"args":\s*\{[^{}]*"rank":\s*(\d{1,9})\b'
)  # fmt: skip
"""Text of a process that states its rank, before or after its arguments, or of an event that states one."""
_OVERLAP = 4096
"""Bytes of a block that are searched again with the next one."""


def states_ranks(head: bytes) -> bool:
    """Return whether the first text of a file states ranks of processes."""
    return _IN_FILE.search(head) is not None


def ranks_in(path: Location) -> tuple[int, ...]:
    """Return the ranks that a file states for its processes; reads the file to its end."""
    ranks: set[int] = set()
    tail = b""
    for block in Source(path).blocks():
        text = tail + block
        ranks.update(int(next(filter(None, match.groups()))) for match in _IN_FILE.finditer(text))
        tail = text[-_OVERLAP:]
    return tuple(sorted(rank for rank in ranks if limits.RANK.holds(rank)))


def part_of_rank(record: TraceRecord, rank: int) -> TraceRecord:
    """Return the part of one rank; a trace of one rank is returned unchanged."""
    rank_of = _rank_of_process(record)
    ranks = set(rank_of.values())
    if len(ranks) < 2 or rank not in ranks:
        return record
    is_of_rank = _has_rank(Columns(record.events), rank_of, rank)
    mask = pa.array(is_of_rank)
    events = record.events.filter(mask)
    place = events.schema.get_field_index("event")
    events = events.set_column(place, "event", pa.array(np.arange(events.num_rows)))
    detail = f"the file contains {len(ranks)} ranks; this rank has the events of its processes"
    return replace(
        record,
        events=events,
        inputs=record.inputs.select(is_of_rank),
        launches=record.launches.select(is_of_rank),
        sequence=record.sequence[is_of_rank],
        threads=record.threads.filter(pa.array(_has_rank(Columns(record.threads), rank_of, rank))),
        metadata=_metadata(record.metadata, rank),
        health=(*record.health, HealthRow("merged_trace", Severity.INFO, rank, detail=detail)),
    )


def _rank_of_process(record: TraceRecord) -> dict[str, int]:
    """Return the rank of each process that states one."""
    events, threads = Columns(record.events), Columns(record.threads)
    rank_of: dict[str, int] = {}
    # One event per process: either the arguments of all its events state the rank, or none do.
    rows = first_rows(events.narrow_codes("process")[0]) if len(events) else np.zeros(0, np.int64)
    stated = pc.extract_regex(
        record.events["args"].take(index_of(rows)).cast(pa.string()), r'"rank":\s*(?P<rank>\d{1,9})\b'
    )
    for row, captured in zip(rows.tolist(), stated.to_pylist(), strict=True):
        if captured is not None:
            rank_of[str(events["process"][row])] = int(captured["rank"])
    for process, *labels in zip(
        *(threads[name] for name in ("process", "process_name", "process_labels")), strict=True
    ):
        for label in labels:
            if match := _NAMED.search(str(label)):
                rank_of[str(process)] = int(match[1])
    return rank_of


def _has_rank(columns: Columns, rank_of: Mapping[str, int], rank: int) -> Flags:
    """Return a mask of the rows whose process belongs to the rank."""
    code, names = columns.narrow_codes("process")
    return np.asarray(np.array([*(rank_of.get(name) == rank for name in names), False])[code], bool)


def _metadata(fields: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Replace the rank in the head, which the merged trace took from one of its files."""
    info = fields.get("distributedInfo")
    return {**fields, "distributedInfo": {**info, "rank": rank}} if isinstance(info, dict) else dict(fields)
