"""Which work on which rank bounds the step, and how much could the rest be longer?

The way through the run that nothing could shorten but its own work: over all ranks, through compute, idle time and
launches, and from rank to rank through collectives and sends. A rank off the way has slack: the time in which it
stood still for others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.algebra.intervals import union
from usp_prof.algebra.sweep import by_priority
from usp_prof.analyses import _arrivals, _partition, _path
from usp_prof.analyses._frame import frame
from usp_prof.analyses._idle import Cause
from usp_prof.analyses._spread import in_order, spread
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import Better, Metric, Unit, Value
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.tables import clock

if TYPE_CHECKING:
    import pandas as pd

    from usp_prof.algebra.intervals import Intervals
    from usp_prof.analyses._partition import Partition
    from usp_prof.analyses._path import Piece
    from usp_prof.tables.clock import Clock
    from usp_prof.tables.table_set import TableSet

PATH_TIME = Metric(
    "critical_path_time",
    Unit.NS,
    Better.NEITHER,
    "On the critical path",
    "Time of the way that bounds the run, by rank and by part (compute, comm:axis, memcpy, idle:cause), over the "
    "selected steps.",
    ("rank", "part"),
)
PATH_FRACTION = Metric(
    "critical_path_fraction",
    Unit.FRACTION,
    Better.NEITHER,
    "Share of the critical path",
    "The same as a share of the way.",
    ("rank", "part"),
)
SLACK = Metric(
    "slack",
    Unit.NS,
    Better.NEITHER,
    "Slack",
    "Time in a rank's step in which it stands still for others: what it could take longer without being waited for.",
    ("rank", "step"),
)
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

    def values(self) -> list[Value]:
        """Give the metric values, sorted by dimension."""
        if not self.pieces:
            return []
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
    parts = _partition.of_run(tables, Selection(None, selection.first_step, selection.last_step))
    clocks, notes = clock.of(tables), _notes(tables)
    slack = np.zeros(len(parts.rank), np.int64)
    for rank in np.unique(parts.rank).tolist():
        mine = np.flatnonzero(parts.rank == rank)
        slack[mine] = _arrivals.stalls(tables, rank).within(parts.start[mine], parts.end[mine])
    if not len(parts.rank):
        return CriticalPathResult((), (), (), parts, (), tuple(notes))
    begin, end = (clocks.align_rows(parts.rank, when) for when in (parts.start, parts.end))
    tied = _largest_component(clocks, parts)
    last = int(parts.rank[tied][np.argmax(end[tied])])
    pieces = _path.walk(tables, last, int(begin[tied].min()), int(end[tied].max()))
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
    sets = _partition.sets_of(tables, rank)
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
