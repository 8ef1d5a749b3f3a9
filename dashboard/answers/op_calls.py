"""Calls of one op: which kernels carry it out, and where its longest calls lie on the timeline."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from ..engine import DataTable, TableColumn, Unit, clock_of, op_work_of

if TYPE_CHECKING:
    from ..engine import Selection, TableSet

MOST_LISTED = 20
LONGEST = 4
"""Calls that are offered on the timeline; one a rank at most, so that a slow rank does not hide the others."""
KERNEL_COLUMNS = (
    TableColumn("kernel"),
    TableColumn("calls", Unit.COUNT),
    TableColumn("time", Unit.NS),
    TableColumn("longest", Unit.NS),
)


@dataclass(frozen=True, slots=True)
class OpCall:
    """One piece of device work of an op, in common time."""

    rank: int
    event: int
    step: int
    kernel: str
    start_ns: int
    dur_ns: int


@dataclass(frozen=True, slots=True)
class OpCalls:
    """The kernels of an op over all ranks and steps, by time; and the longest call of the slowest ranks."""

    kernels: DataTable
    longest: tuple[OpCall, ...]


def calls_of_op(tables: TableSet, selection: Selection, label: str) -> OpCalls | None:
    """Find the calls of an op by its label, "name" or "name shapes"; None where no rank has any."""
    durations_of: dict[str, list[np.ndarray]] = {}
    longest: list[OpCall] = []
    for rank in tables.ranks:
        if (selection.ranks is not None and rank not in selection.ranks) or not tables.has_device_work(rank):
            continue
        work = op_work_of(tables, rank, selection)
        is_op = np.array([label in {kind.name, f"{kind.name} {kind.dims}"} for kind in work.kinds] + [False])
        rows = np.flatnonzero(is_op[work.kind])  # a kind of -1 (no op is known) reads the False at the end
        if not len(rows):
            continue
        for code in np.unique(work.name[rows]).tolist():
            durations_of.setdefault(work.names[code], []).append(work.dur_ns[rows[work.name[rows] == code]])
        top = int(rows[work.dur_ns[rows].argmax()])
        event, step, dur = (int(column[top]) for column in (work.event, work.step, work.dur_ns))
        start = int(clock_of(tables).align(rank, work.start_ns[top]))
        longest.append(OpCall(rank, event, step, work.names[work.name[top]], start, dur))
    if not longest:
        return None
    joined = {name: np.concatenate(parts) for name, parts in durations_of.items()}
    cells = [(name, len(dur), int(dur.sum()), int(dur.max())) for name, dur in joined.items()]
    cells.sort(key=lambda row: (-row[2], row[0]))
    kernels = DataTable("", KERNEL_COLUMNS, tuple(cells[:MOST_LISTED]), more=max(0, len(cells) - MOST_LISTED))
    longest.sort(key=attrgetter("dur_ns"), reverse=True)
    return OpCalls(kernels, tuple(longest[:LONGEST]))
