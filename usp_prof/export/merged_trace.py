"""Chrome traces: all ranks in one file for Perfetto, on one clock, or one file per rank as recorded."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import zstandard

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.export.chrome import event_texts, flow_texts, joined_fields, json_texts, place
from usp_prof.model.files import written
from usp_prof.model.selection import Selection
from usp_prof.tables import clock
from usp_prof.tables.matching.clocks import Clock
from usp_prof.tables.table_set import TableSet

_BETWEEN = ",\n"
_NUMBER = re.compile(r"-?\d{1,15}\Z")
_NOT_WRITTEN = ("traceEvents", "baseTimeNanoseconds")


def write_rank(tables: TableSet, rank: int, path: Path, metadata: Mapping[str, Any]) -> int:
    """Write one rank's events with the top-level fields of its file, gzip-compressed; return the number of events."""
    table = tables.arrow("events", [rank])
    start = table["start_ns"].to_numpy()
    zero = int(start.min()) if len(start) else 0
    head = {name: value for name, value in metadata.items() if name not in _NOT_WRITTEN}
    fields = "".join(f"{json.dumps(name)}:{json.dumps(value)},\n" for name, value in head.items())
    parts = [*_names(tables, rank), *_events(table, zero).to_pylist()]
    text = f'{{{fields}"baseTimeNanoseconds":{zero},\n"traceEvents":[\n{_BETWEEN.join(parts)}\n]}}\n'
    with _opened(path, "choose another folder with -o") as out:
        out.write(text.encode())
    return int(table.num_rows)


def _events(table: pa.Table, zero: int) -> pa.Array:
    """Return the events as JSON texts, with the processes and threads of their file."""
    texts = {name: json_texts(table, name, json.dumps) for name in ("phase", "category", "name")}
    place = {name: json_texts(table, name, _bare_number) for name in ("process", "thread")}
    return joined_fields(table, {**texts, **place}, table["start_ns"].to_numpy() - zero)


def _bare_number(text: str) -> str:
    """Return a process or thread as in the file: as a number if it is one."""
    return text if _NUMBER.match(text) else json.dumps(text)


def _names(tables: TableSet, rank: int) -> list[str]:
    """Return the events that name processes and threads."""
    lines: list[str] = []
    for row in tables.arrow("threads", [rank]).to_pylist():
        place = {"pid": _key(row["process"]), "tid": _key(row["thread"])}
        for kind, key, value in (
            ("process_name", "name", row["process_name"]),
            ("process_labels", "labels", row["process_labels"]),
            ("thread_name", "name", row["thread_name"]),
        ):
            if value:
                lines.append(json.dumps({"ph": "M", "name": kind, "ts": 0, **place, "args": {key: value}}))
        if row["sort_index"] >= 0:
            kind = "thread_sort_index"
            lines.append(
                json.dumps({"ph": "M", "name": kind, "ts": 0, **place, "args": {"sort_index": row["sort_index"]}})
            )
    return lines


def _key(text: str) -> int | str:
    return int(text) if _NUMBER.match(text) else text


_EVENT_COLUMNS = ("phase", "category", "name", "process", "thread", "start_ns", "dur_ns", "args")


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export."""

    ranks: int
    events: int
    aligned: bool
    """Whether the ranks' clocks could be aligned; else times are as recorded."""


def export(
    tables: TableSet,
    path: Path,
    selection: Selection,
    *,
    window_ns: tuple[int, int] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Exported:
    """Write ranks and steps of a run; `window_ns` keeps events that overlap a time span relative to the run's start."""
    ranks = tables.ranks if selection.ranks is None else selection.ranks
    clocks = clock.fit_clocks(tables)
    zero = beginning(tables, ranks)
    count = 0
    with _opened(path) as out:
        out.write(f'{{"schemaVersion":1,"displayTimeUnit":"ms","baseTimeNanoseconds":{zero},"traceEvents":[\n'.encode())
        separator = b""
        for done, rank in enumerate(ranks):
            spans = _spans(tables, clocks, rank, selection, zero, window_ns)
            for text, events in _rank_texts(tables, clocks, rank, spans, zero):
                if text:  # empty if a rank has no events in the range
                    out.write(separator + text.encode())
                    separator = _BETWEEN.encode()
                count += events
            if progress is not None:
                progress(done + 1, len(ranks), f"rank {rank}")
        out.write(b"\n]}\n")
    return Exported(len(ranks), count, clocks.components == 1)


def _rank_texts(tables: TableSet, clocks: Clock, rank: int, spans: Ints | None, zero: int) -> Iterator[tuple[str, int]]:
    events = tables.arrow("events", [rank]).select(_EVENT_COLUMNS)
    start = clocks.align(rank, events["start_ns"].to_numpy())
    rows = np.arange(events.num_rows)
    if spans is not None:
        end = start + np.maximum(events["dur_ns"].to_numpy(), 0)
        rows = np.flatnonzero(_overlaps(start, end, spans))
        events, start = events.take(pa.array(rows)), start[rows]
    sizes, places = tables.topology.axes, tables.topology.coordinates.get(rank, {})
    place_title = ", ".join(f"{axis} {at}" for axis, at in places.items() if sizes.get(axis, 0) > 1)
    title = f" ({place_title})" if place_title else ""
    placed_events = place(rank, title, events, tables.arrow("threads", [rank]), start)
    texts = event_texts(placed_events, zero).to_pylist()
    flows = flow_texts(rank, placed_events, _links(tables, rank, rows), zero)
    yield _BETWEEN.join([*placed_events.metadata, *texts, *flows]), len(texts)


def _links(tables: TableSet, rank: int, rows: Ints) -> Ints:
    """Return pairs of rows (launch, work) if both are written."""
    kernels = tables.columns("kernels", rank)
    launch, work = kernels["launch_event"], kernels["event"]
    at = np.stack([np.searchsorted(rows, launch), np.searchsorted(rows, work)], axis=1)
    inside = (at < len(rows)).all(axis=1) & (launch >= 0)
    at, launch, work = at[inside], launch[inside], work[inside]
    is_written = (rows[at[:, 0]] == launch) & (rows[at[:, 1]] == work)
    return np.asarray(at[is_written])


def _spans(
    tables: TableSet, clocks: Clock, rank: int, selection: Selection, zero: int, window: tuple[int, int] | None
) -> Ints | None:
    """Return the aligned spans to keep as rows of (begin, end); `None` keeps all."""
    spans = None
    if selection.first_step is not None or selection.last_step is not None:
        steps = tables.columns("steps", rank)
        is_selected = selection.takes_steps(steps["step"])
        low = np.minimum(steps["start_ns"], steps["host_start_ns"])[is_selected]
        high = np.maximum(steps["end_ns"], steps["host_end_ns"])[is_selected]
        spans = np.stack([clocks.align(rank, low), clocks.align(rank, high)], axis=1)
    if window is not None:
        low, high = zero + window[0], zero + window[1]
        spans = np.array([[low, high]]) if spans is None else np.clip(spans, low, high)
    return spans


def _overlaps(start: Ints, end: Ints, spans: Ints) -> Flags:
    out = np.zeros(len(start), bool)
    for low, high in spans.tolist():
        out |= (start < high) & (end >= low) & (high > low)
    return out


def beginning(tables: TableSet, ranks: Iterable[int]) -> int:
    """Return the start of the window's clock: the first event of these ranks, on the common clock."""
    clocks = clock.fit_clocks(tables)
    return min((_first(tables, clocks, rank) for rank in ranks), default=0)


def _first(tables: TableSet, clocks: Clock, rank: int) -> int:
    start = tables.arrow("events", [rank])["start_ns"].to_numpy()
    return int(clocks.align(rank, start).min()) if len(start) else np.iinfo(np.int64).max


@contextmanager
def _opened(path: Path, hint: str = "choose another file with -o") -> Iterator[BinaryIO]:
    """Open the file, compressed as its name says; remove it if writing fails."""
    with written(path, hint) as raw:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=5, mtime=0) as packed:
                yield packed  # type: ignore[misc] # a binary file for all we need
        elif path.suffix == ".zst":
            with zstandard.ZstdCompressor(level=3).stream_writer(raw, closefd=False) as packed:
                yield packed
        else:
            yield raw  # type: ignore[misc] # the same
