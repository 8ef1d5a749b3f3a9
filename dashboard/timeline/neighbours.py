"""What belongs to a slice? The other members of its collective on all ranks, and the host call that launched it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.tables import calls

if TYPE_CHECKING:
    from dashboard.timeline.store import TimelineStore
    from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True)
class Place:
    """Where a slice lies on the timeline; its time counts from the run's origin."""

    rank: int
    row: int
    start_ns: int
    dur_ns: float

    def plain(self) -> dict[str, float]:
        """Give the place as the canvas takes it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Call:
    """The collective call that a slice is a part of."""

    op: str
    axis: str
    group: str
    sequence: int
    bytes: int
    late_rank: int
    parts: tuple[tuple[int, int], ...]
    """Rank and event of each member's part."""


def place(store: TimelineStore, rank: int, event: int) -> Place | None:
    """Find an event of a rank on the timeline."""
    if rank not in store.ranks:
        return None
    line = store.ranks[rank]
    level = line.levels[0]
    found = np.flatnonzero(level.rest["event"] == event)
    if not len(found):
        return None
    at = int(found[0])
    row = int(np.searchsorted(level.offsets, at, side="right")) - 1
    return Place(rank, row, int(level.start[at]) + line.shift_ns, float(level.rest["dur"][at]))


def call_of(tables: TableSet, rank: int, event: int) -> Call | None:
    """Find the call that an event is a part of."""
    mine = tables.columns("collectives", rank)
    rows = np.flatnonzero(mine["event"] == event)
    if not len(rows):
        return None
    matched = calls.of(tables)
    parts, table = matched.part_columns(), matched.columns()
    hit = np.flatnonzero((parts["rank"] == rank) & (parts["part"] == mine["part"][rows[0]]))
    if not len(hit):
        return None
    number = int(parts["call"][hit[0]])
    members = np.flatnonzero(parts["call"] == number)
    events = tuple(
        (int(member), int(tables.columns("collectives", int(member))["event"][part]))
        for member, part in zip(parts["rank"][members], parts["part"][members], strict=True)
    )
    at = int(np.flatnonzero(table["call"] == number)[0])
    return Call(
        str(table["op"][at]), str(table["axis"][at]), str(table["group"][at]), int(table["sequence"][at]),
        int(table["bytes"][at]), int(table["late_rank"][at]), events,
    )  # fmt: skip


def launch_of(tables: TableSet, rank: int, event: int) -> int | None:
    """Find the event of the host call that launched a kernel."""
    kernels = tables.columns("kernels", rank)
    rows = np.flatnonzero(kernels["event"] == event)
    launch = int(kernels["launch_event"][rows[0]]) if len(rows) else -1
    return launch if launch >= 0 else None


def op_of(tables: TableSet, rank: int, event: int) -> tuple[str, str] | None:
    """Give the CPU op that a kernel was launched in, and the shapes of its inputs (empty where none were recorded)."""
    kernels = tables.columns("kernels", rank)
    rows = np.flatnonzero(kernels["event"] == event)
    if not len(rows) or kernels["op_event"][rows[0]] < 0:
        return None
    ops = tables.columns("ops", rank)
    found = np.flatnonzero(ops["event"] == kernels["op_event"][rows[0]])
    return str(kernels["op"][rows[0]]), str(ops["input_dims"][found[0]] or "") if len(found) else ""
