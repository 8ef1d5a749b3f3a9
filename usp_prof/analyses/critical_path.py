"""Which work on which rank bounds the step, and how much could the rest be longer?

The way through the run that nothing could shorten but its own work: over all ranks, through compute, idle time and
launches, and from rank to rank through collectives and sends. A rank off the way has slack: the time in which it
stood still for others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses.measures import arrivals, partition
from usp_prof.analyses.measures.partition import Cause
from usp_prof.analyses.result import frame, in_order, spread
from usp_prof.columns.intervals import by_priority, union
from usp_prof.columns.rows import per_code
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import Better, Metric, Unit, Value, Values
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.tables import calls as call_table
from usp_prof.tables import clock

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from usp_prof.analyses.measures.partition import Partition
    from usp_prof.columns.intervals import Intervals
    from usp_prof.tables.clock import Clock
    from usp_prof.tables.table_set import TableSet

    Int = NDArray[np.int64]


# The walk: from the last end back to the begin.
#
# On one rank, work follows work, so the path stays there until it comes to a communication that was still being
# waited for when it ended. Its last member's arrival bounds it: the path goes on at that moment on that rank. So the
# walk takes one step for each change of rank and none for the work between.


@dataclass(frozen=True, slots=True)
class Piece:
    """The way lies on one rank from `begin_ns` to `end_ns` of the common clock; `through` names what led away."""

    rank: int
    begin_ns: int
    end_ns: int
    through: str


@dataclass(frozen=True, slots=True, eq=False)
class _Exits:
    """Where the way leaves a rank: communication waited for at its end, by end; `arrival` is the last member's."""

    end: Int
    arrival: Int
    to: Int
    axis: NDArray[np.object_]


def walk(tables: TableSet, rank: int, begin_ns: int, end_ns: int) -> tuple[Piece, ...]:
    """Walk from the end on a rank back to the begin; pieces come in order of time."""
    exits = tables.memo("exits", lambda: _exits(tables))
    here, now, pieces, through = rank, end_ns, [], ""
    while now > begin_ns:
        leave = exits.get(here)
        place = int(np.searchsorted(leave.end, now, side="right")) - 1 if leave is not None else -1
        while leave is not None and place >= 0 and leave.arrival[place] >= now:
            place -= 1
        if leave is None or place < 0 or leave.arrival[place] <= begin_ns:
            pieces.append(Piece(here, begin_ns, now, through))
            break
        pieces.append(Piece(here, int(leave.arrival[place]), now, through))
        through = str(leave.axis[place])
        now, here = int(leave.arrival[place]), int(leave.to[place])
    return tuple(reversed(pieces))


def _exits(tables: TableSet) -> dict[int, _Exits]:
    calls, parts = call_table.of(tables).columns(), call_table.of(tables).part_columns()
    if not len(calls):
        return {}
    clocks, count = clock.of(tables), len(calls)
    of_call, rank = parts["call"], parts["rank"]
    start, end = (np.zeros(len(of_call), np.int64) for _ in range(2))
    open_end = np.zeros(len(of_call), bool)
    for r in np.unique(rank).tolist():
        mine = np.flatnonzero(rank == r)
        collectives = tables.columns("collectives", r)
        begun = collectives["start_ns"][parts["part"][mine]]
        over = begun + collectives["dur_ns"][parts["part"][mine]]
        start[mine], end[mine] = clocks.align(r, begun), clocks.align(r, over)
        open_end[mine] = ~partition.sets_of(tables, r).compute.holds(over - 1)
    last = per_code(of_call, start, np.maximum, count)
    order = np.lexsort((start, of_call))
    late = rank[order[np.searchsorted(of_call[order], np.arange(count), side="right") - 1]]
    # A posted send that outlasts its receive, or that waits for its receiver, holds nobody up by itself.
    leaves = calls["complete"][of_call] & open_end & (parts["wait_ns"] > 0) & (late[of_call] != rank)
    leaves &= ~_sends(tables, rank, parts["part"])
    found = {}
    for r in np.unique(rank[leaves]).tolist():
        rows = np.flatnonzero(leaves & (rank == r))
        rows = rows[np.lexsort((last[of_call[rows]], end[rows]))]
        found[r] = _Exits(end[rows], last[of_call[rows]], late[of_call[rows]], calls["axis"][of_call[rows]])
    return found


def _sends(tables: TableSet, rank: Int, part: Int) -> NDArray[np.bool_]:
    found = np.zeros(len(rank), bool)
    for r in np.unique(rank).tolist():
        mine = rank == r
        found[mine] = tables.columns("collectives", r).matches("op", "send")[part[mine]]
    return found


PATH_TIME = Metric(
    "critical_path_time", Unit.NS, Better.NEITHER, "On the critical path",
    "Time of the way that bounds the run, by rank and by part (compute, comm:axis, memcpy, idle:cause), over the "
    "selected steps.",
    ("rank", "part"),
)  # fmt: skip
PATH_FRACTION = Metric(
    "critical_path_fraction", Unit.FRACTION, Better.NEITHER, "Share of the critical path",
    "The same as a share of the way.",
    ("rank", "part"),
)  # fmt: skip
SLACK = Metric(
    "slack", Unit.NS, Better.NEITHER, "Slack",
    "Time in a rank's step in which it stands still for others: what it could take longer without being waited for.",
    ("rank", "step"),
)  # fmt: skip
METRICS = (PATH_TIME, PATH_FRACTION, SLACK)
_NAMES = 20


@dataclass(frozen=True, slots=True)
class Share:
    """How much of the way lies on one rank in one part of the partition."""

    rank: int
    part: str
    ns: int


@dataclass(frozen=True, slots=True)
class Bounding:
    """A compute kernel or op on the way: total time of its runs there."""

    rank: int
    name: str
    ns: int


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPathResult:
    """The way as pieces in order of time, its parts, the work that bounds, and the slack of each rank's steps."""

    pieces: tuple[Piece, ...]
    shares: tuple[Share, ...]
    bounding: tuple[Bounding, ...]
    parts: Partition
    slack_ns: tuple[int, ...]
    notes: tuple[HealthRow, ...] = ()

    @property
    def length_ns(self) -> int:
        """The length of the way."""
        return sum([piece.end_ns - piece.begin_ns for piece in self.pieces])

    def values(self) -> Values:
        """Give the metric values, sorted by dimension."""
        if not self.pieces:
            return Values()
        length_ns = self.length_ns
        found = [Value(PATH_TIME, length_ns)]
        ranks = sorted({share.rank for share in self.shares})
        names = list(dict.fromkeys(share.part for share in self.shares))
        sums: list[tuple[dict[str, int | str], int]]
        sums = [({"rank": r}, sum(s.ns for s in self.shares if s.rank == r)) for r in ranks]
        sums += [({"part": n}, sum(s.ns for s in self.shares if s.part == n)) for n in names]
        sums += [({"rank": s.rank, "part": s.part}, s.ns) for s in self.shares]
        for dims, ns in sums:
            found += [Value(PATH_TIME, ns, dims), Value(PATH_FRACTION, ns / length_ns, dims)]
        slack = np.array(self.slack_ns, np.int64)
        return in_order(found + spread(SLACK, self.parts.rank, self.parts.step, slack))

    def to_pandas(self) -> pd.DataFrame:
        """Give one row for each rank and part."""
        return frame({name: [getattr(share, name) for share in self.shares] for name in Share.__dataclass_fields__})


def compute(tables: TableSet, selection: Selection = EVERYTHING) -> CriticalPathResult:
    """Walk the selected steps (of all ranks: the way goes where it goes)."""
    parts = partition.of_run(tables, Selection(None, selection.first_step, selection.last_step))
    clocks, notes = clock.of(tables), _notes(tables)
    slack = np.zeros(len(parts.rank), np.int64)
    for rank in np.unique(parts.rank).tolist():
        mine = np.flatnonzero(parts.rank == rank)
        slack[mine] = arrivals.stalls(tables, rank).within(parts.start[mine], parts.end[mine])
    if not len(parts.rank):
        return CriticalPathResult((), (), (), parts, (), tuple(notes))
    begin, end = (clocks.align_rows(parts.rank, when) for when in (parts.start, parts.end))
    tied = _largest_component(clocks, parts)
    last = int(parts.rank[tied][np.argmax(end[tied])])
    pieces = walk(tables, last, int(begin[tied].min()), int(end[tied].max()))
    on_path = _on_path(tables, pieces)
    shares = tuple(s for rank in sorted(on_path) for s in _shares(tables, rank, on_path[rank]))
    bounding = [b for rank in sorted(on_path) for b in _bounding(tables, rank, on_path[rank])]
    heaviest = tuple(sorted(bounding, key=lambda b: (-b.ns, b.rank, b.name))[:_NAMES])
    return CriticalPathResult(pieces, shares, heaviest, parts, tuple(slack.tolist()), tuple(notes))


def _largest_component(clocks: Clock, parts: Partition) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    component = clocks.component_rows(parts.rank)
    return np.flatnonzero(component == np.argmax(np.bincount(component)))


def _on_path(tables: TableSet, pieces: tuple[Piece, ...]) -> dict[int, Intervals]:
    """Give each rank's time on the way, on its own clock."""
    clocks = clock.of(tables)
    found = {}
    for rank in sorted({piece.rank for piece in pieces}):
        mine = [piece for piece in pieces if piece.rank == rank]
        begin, end = ([getattr(piece, name) for piece in mine] for name in ("begin_ns", "end_ns"))
        found[rank] = union(clocks.local(rank, begin), clocks.local(rank, end))
    return found


def _shares(tables: TableSet, rank: int, on_path: Intervals) -> list[Share]:
    """Divide a rank's time on the way by the same priorities as the breakdown."""
    sets = partition.sets_of(tables, rank)
    named = {"compute": sets.compute}
    named |= {f"comm:{axis}": waited for axis, waited in sorted(sets.waited.items())}
    named |= {"memcpy": sets.copies, f"idle:{Cause.BUBBLE}": sets.bubble}
    named |= {f"idle:{cause}": sets.host[cause] for cause in (Cause.INPUT, Cause.SYNC, Cause.HOST)}
    owned = by_priority(list(named.values())).cut(on_path.start, on_path.end, len(named)).sum(axis=0).tolist()
    rest = on_path.length - sum(owned)
    return [
        Share(rank, part, ns) for part, ns in [*zip(named, owned, strict=True), (f"idle:{Cause.OTHER}", rest)] if ns
    ]


def _bounding(tables: TableSet, rank: int, on_path: Intervals) -> list[Bounding]:
    activities = tables.columns("activities", rank)
    computes = activities.matches("kind", "compute")
    codes, names = activities.codes("name")
    start = activities["start_ns"][computes]
    inside = on_path.within(start, start + activities["dur_ns"][computes])
    sums = np.bincount(codes[computes], weights=inside, minlength=len(names)).astype(np.int64)
    return [Bounding(rank, names[code], int(sums[code])) for code in np.flatnonzero(sums).tolist()]


def _notes(tables: TableSet) -> list[HealthRow]:
    if len(tables.ranks) < 2:
        detail = "one rank was read: the way cannot lead to others, waiting for them counts as communication"
        return [HealthRow("one_rank", Severity.INFO, detail=detail)]
    if clock.of(tables).components > 1:
        detail = "clocks that nothing ties: the way is that of the largest part of the run that is tied"
        return [HealthRow("clocks_untied", Severity.ERROR, detail=detail)]
    return []
