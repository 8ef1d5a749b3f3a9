"""Queries on the timeline: context of a slice, the next slice with a name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from usp_prof.columns.rows import lookup
from usp_prof.tables.calls import match_calls as calls_of
from usp_prof.tables.table_set import TableSet
from usp_prof.timeline.store import TimelineStore


@dataclass(frozen=True, slots=True)
class Place:
    """Position of a slice on the timeline; its time is relative to the run's origin."""

    rank: int
    row: int
    start_ns: int
    dur_ns: float
    event: int = -1


@dataclass(frozen=True, slots=True)
class Call:
    """Collective call that contains a slice."""

    op: str
    axis: str
    group: str
    sequence: int
    bytes: int
    late_rank: int
    parts: tuple[tuple[int, int], ...]
    """Rank and event of each member's part."""


def place(store: TimelineStore, rank: int, event: int) -> Place | None:
    """Return the position of a rank's event on the timeline, or None."""
    if rank not in store.ranks:
        return None
    line = store.ranks[rank]
    level = line.levels[0]
    matching_slices = np.flatnonzero(level.rest["event"] == event)
    if not len(matching_slices):
        return None
    return place_at(store, rank, int(matching_slices[0]))


def place_at(store: TimelineStore, rank: int, entry: int) -> Place:
    """Return the position of one of a rank's entries of the ground level."""
    line = store.ranks[rank]
    level = line.levels[0]
    row = int(np.searchsorted(level.offsets, entry, side="right")) - 1
    start_ns, rest = int(level.start[entry]) + line.shift_ns, level.rest[entry]
    return Place(rank, row, start_ns, float(rest["dur"]), int(rest["event"]))


def call_of(tables: TableSet, rank: int, event: int) -> Call | None:
    """Return the call that contains an event, or None."""
    collectives = tables.columns("collectives", rank)
    rows = np.flatnonzero(collectives["event"] == event)
    if not len(rows):
        return None
    matched = calls_of(tables)
    parts, table = matched.parts.of_rank(rank, "call", "part"), matched.columns()
    hit = np.flatnonzero(parts["part"] == collectives["part"][rows[0]])
    if not len(hit):
        return None
    number = int(parts["call"][hit[0]])
    events = tuple(
        (member, int(tables.columns("collectives", member)["event"][part]))
        for member, part in matched.parts.members_of(number)
    )
    at = int(np.flatnonzero(table["call"] == number)[0])
    return Call(
        str(table["op"][at]), str(table["axis"][at]), str(table["group"][at]), int(table["sequence"][at]),
        int(table["bytes"][at]), int(table["late_rank"][at]), events,
    )  # fmt: skip


def launch_of(tables: TableSet, rank: int, event: int) -> int | None:
    """Return the event of the host call that launched a kernel, or None."""
    kernels = tables.columns("kernels", rank)
    rows = np.flatnonzero(kernels["event"] == event)
    launch = int(kernels["launch_event"][rows[0]]) if len(rows) else -1
    return launch if launch >= 0 else None


def launched_by(tables: TableSet, rank: int, event: int) -> list[int]:
    """Return the events of the device work that a host call launched."""
    kernels = tables.columns("kernels", rank)
    return [int(device_event) for device_event in kernels["event"][kernels["launch_event"] == event]]


def op_of(tables: TableSet, rank: int, event: int) -> tuple[str, str] | None:
    """Return the CPU op that launched a kernel, and the shapes of its inputs (empty if not recorded)."""
    kernels = tables.columns("kernels", rank)
    rows = np.flatnonzero(kernels["event"] == event)
    if not len(rows) or kernels["op_event"][rows[0]] < 0:
        return None
    ops = tables.columns("ops", rank)
    op_rows = np.flatnonzero(ops["event"] == kernels["op_event"][rows[0]])
    return str(kernels["op"][rows[0]]), str(ops["input_dims"][op_rows[0]] or "") if len(op_rows) else ""


# Search: every slice with a matching name on the ranks shown, by start.


MOST_PATTERN = 120
"""Maximum length of a search pattern."""


@dataclass(frozen=True, slots=True)
class Matches:
    """All matching slices, sorted by start."""

    rank: NDArray[np.int64]
    row: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    dur_ns: NDArray[np.int64]
    event: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of slices."""
        return len(self.start_ns)

    def first(self, most: int) -> list[list[int]]:
        """Return the first slices as lists of rank, row, start, duration and event."""
        return self._rows(np.arange(len(self))[:most])

    def longest(self, most: int) -> list[list[int]]:
        """Return the longest slices, the longest first, in the form of `first`."""
        return self._rows(np.argsort(-self.dur_ns, kind="stable")[:most])

    def _rows(self, places: NDArray[np.int64]) -> list[list[int]]:
        columns = (self.rank, self.row, self.start_ns, self.dur_ns, self.event)
        return [list(row) for row in zip(*(column[places].tolist() for column in columns), strict=True)]


def matching(store: TimelineStore, pattern: str) -> frozenset[int] | None:
    """Return the numbers of the names that match a typed pattern, or None if it is not a valid regular expression.

    RE2 matches in time linear in the text, so no pattern can block the server.
    """
    try:
        hits = pc.match_substring_regex(pa.array(store.names, pa.string()), pattern, ignore_case=True)
    except pa.ArrowInvalid:
        return None
    return frozenset(np.flatnonzero(hits.to_numpy(zero_copy_only=False)).tolist())


def literal(name: str) -> str:
    """Return the pattern that matches only this name; a very long name is cut to its beginning."""
    pattern = re.sub(r"([][\\.^$*+?(){}|])", r"\\\1", name)
    return f"^{pattern}$" if len(pattern) < MOST_PATTERN - 1 else f"^{pattern[: MOST_PATTERN - 2].rstrip(chr(92))}"


def search(
    store: TimelineStore, wanted: Collection[int], ranks: Iterable[int], kinds: Collection[str] = ("device", "host")
) -> Matches:
    """Return every slice with a wanted name on some ranks, on rows of some kinds."""
    columns: list[list[NDArray[np.int64]]] = [[np.zeros(0, np.int64)] for _ in range(5)]
    for rank in ranks:
        line, hits = store.ranks[rank], store.entries_named(rank, set(wanted))
        level = line.levels[0]
        row = np.searchsorted(level.offsets, hits, side="right") - 1
        shown = lookup([line_row.kind in kinds for line_row in line.rows], row, missing=False)
        hits, row = hits[shown], row[shown]
        rest = level.rest[hits]
        parts = np.full(len(hits), rank), row, level.start[hits] + line.shift_ns, rest["dur"], rest["event"]
        for column, part in zip(columns, parts, strict=True):
            column.append(part.astype(np.int64))
    match_columns = [np.concatenate(column) for column in columns]
    order = np.argsort(match_columns[2], kind="stable")
    return Matches(*(column[order] for column in match_columns))
