"""Critical path: the work that bounds the step, rank by rank, and the slack of all other work.

The path can only be shortened by shortening work on it. It passes over all ranks: through compute, idle time and
launches on a rank, and from rank to rank through collectives and sends. A rank off the path has slack: the time in
which it waits for other ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from usp_prof.analyses.measures import partition
from usp_prof.analyses.measures.partition import Cause, Partition
from usp_prof.analyses.result import Listing, Result, fields_of, in_order, spread
from usp_prof.columns.arrays import Ints
from usp_prof.columns.intervals import Intervals, by_priority, union
from usp_prof.columns.rows import lookup
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import Better, Metric, Unit, Value, Values
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.tables import calls as call_table
from usp_prof.tables import clock
from usp_prof.tables.table_set import TableSet, memoized_of_rank

# The walk: from the last end back to the begin.
#
# On one rank, work follows work. The path stays there until it reaches a communication that the rank was still waiting
# for when it ended. That communication is bounded by the arrival of its last participant, so the path continues on that
# participant's rank at that moment. The walk takes one step per change of rank, and none for the work in between.


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the path on one rank, in common-clock times; `through` is the axis by which the path leaves it."""

    rank: int
    begin_ns: int
    end_ns: int
    through: str


@dataclass(frozen=True, slots=True, eq=False)
class _Exits:
    """Points where the walk can leave a rank: communication that was waited for when it ended, sorted by end."""

    end: Ints
    arrival: Ints
    """Arrival of the last participant. All times are on the common clock."""
    to: NDArray[np.int32]
    """Rank of the last participant."""
    axis: NDArray[np.object_]


def walk(tables: TableSet, rank: int, begin_ns: int, end_ns: int) -> tuple[Piece, ...]:
    """Return the path from `begin_ns` to the end on `rank`, found by walking backward; pieces are in time order."""
    pieces: list[Piece] = []
    through = ""
    while end_ns > begin_ns:
        exits = _exits(tables, rank)
        # The last exit that ends by now and arrives before now.
        place = int(np.searchsorted(exits.end, end_ns, side="right")) - 1
        while place >= 0 and exits.arrival[place] >= end_ns:
            place -= 1
        if place < 0 or exits.arrival[place] <= begin_ns:
            pieces.append(Piece(rank, begin_ns, end_ns, through))
            break
        arrival_ns = int(exits.arrival[place])
        pieces.append(Piece(rank, arrival_ns, end_ns, through))
        through = str(exits.axis[place])
        rank, end_ns = int(exits.to[place]), arrival_ns
    return tuple(reversed(pieces))


@memoized_of_rank
def _exits(tables: TableSet, rank: int) -> _Exits:
    """Return a rank's exits: its parts of complete calls that waited for another rank and end without compute.

    Sends are left out: a posted send that outlasts its receive or waits for its receiver blocks no other work.
    """
    matched, clocks = call_table.match_calls(tables), clock.fit_clocks(tables)
    calls, collectives = matched.columns(), tables.columns("collectives", rank)
    parts = matched.parts.of_rank(rank, "call", "part", "wait_ns")
    is_send = collectives.matches("op", "send")[parts["part"]]
    has_waited = calls["complete"][parts["call"]] & (parts["wait_ns"] > 0) & ~is_send
    rows = np.flatnonzero(has_waited & (matched.last_rank[parts["call"]] != rank))
    call, part = parts["call"][rows], parts["part"][rows]
    local_end = collectives["start_ns"][part] + collectives["dur_ns"][part]
    end, arrival = clocks.align(rank, local_end), calls["last_ns"][call]
    # Sorted by end, then by the last arrival of their call.
    order = np.lexsort((call, arrival, end))
    order = order[~partition.sets_of(tables, rank).compute.holds(local_end[order] - 1)]
    codes, axes = calls.narrow_codes("axis")
    axis = lookup(axes, codes[call[order]], missing="")
    return _Exits(end[order], arrival[order], matched.last_rank[call[order]], axis)


PATH_TIME = Metric(
    "critical_path_time", Unit.NS, Better.NEITHER, "On the critical path",
    "Time on the critical path, which bounds the run, over the selected steps; by rank and part (compute, "
    "comm:axis, memcpy, idle:cause).",
    ("rank", "part"),
)  # fmt: skip
PATH_FRACTION = Metric(
    "critical_path_fraction", Unit.FRACTION, Better.NEITHER, "Share of the critical path",
    "Share of the critical path, by rank and part.",
    ("rank", "part"),
)  # fmt: skip
SLACK = Metric(
    "slack", Unit.NS, Better.NEITHER, "Slack",
    "Time per step in which a rank waits for others. It could take this much longer without delaying them.",
    ("rank", "step"),
)  # fmt: skip
METRICS = (PATH_TIME, PATH_FRACTION, SLACK)
_NAMES = 20


@dataclass(frozen=True, slots=True)
class Share:
    """Time of the path on one rank in one part of the partition."""

    rank: int
    part: str
    ns: int


@dataclass(frozen=True, slots=True)
class Bounding:
    """A compute kernel or op on the path, with the total time of its runs there."""

    rank: int
    name: str
    ns: int


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPathResult(Result):
    """The path as pieces in time order, its parts, and the work that bounds it."""

    pieces: tuple[Piece, ...]
    shares: tuple[Share, ...]
    bounding: tuple[Bounding, ...]
    parts: Partition
    """Partition of all ranks' steps; its stalls are the slack."""
    notes: tuple[HealthRow, ...] = ()

    @property
    def length_ns(self) -> int:
        """Length of the path."""
        return sum([piece.end_ns - piece.begin_ns for piece in self.pieces])

    def values(self) -> Values:
        """Return the metric values, sorted by dimension."""
        if not self.pieces:
            return Values()
        length_ns = self.length_ns
        values = [Value(PATH_TIME, length_ns)]
        ranks = sorted({share.rank for share in self.shares})
        names = list(dict.fromkeys(share.part for share in self.shares))
        sums: list[tuple[dict[str, int | str], int]]
        sums = [({"rank": rank}, sum(share.ns for share in self.shares if share.rank == rank)) for rank in ranks]
        sums += [({"part": name}, sum(share.ns for share in self.shares if share.part == name)) for name in names]
        sums += [({"rank": share.rank, "part": share.part}, share.ns) for share in self.shares]
        for dims, ns in sums:
            values += [Value(PATH_TIME, ns, dims), Value(PATH_FRACTION, ns / length_ns, dims)]
        return in_order(values + spread(SLACK, self.parts.rank, self.parts.step, self.parts.stalled))

    def listing(self) -> Listing:
        """Return one row per rank and part."""
        return fields_of(self.shares, Share)


def compute(tables: TableSet, selection: Selection = EVERYTHING) -> CriticalPathResult:
    """Compute the critical path of the selected steps. It covers all ranks, whichever ranks are selected."""
    parts = partition.divide_run(tables, Selection(None, selection.first_step, selection.last_step))
    clocks, notes = clock.fit_clocks(tables), _notes(tables)
    if not len(parts.rank):
        return CriticalPathResult((), (), (), parts, tuple(notes))
    begin, end = (clocks.align(parts.rank, when) for when in (parts.start, parts.end))
    # The walk starts at the end of the last step, over the largest set of ranks whose clocks are tied to each other.
    component = clocks.component_rows(parts.rank)
    tied = np.flatnonzero(component == np.argmax(np.bincount(component)))
    last_row = tied[np.argmax(end[tied])]
    last_rank = int(parts.rank[last_row])
    pieces = walk(tables, last_rank, int(begin[tied].min()), int(end[tied].max()))
    on_path = _on_path(tables, pieces)
    shares = tuple(s for rank in sorted(on_path) for s in _shares(tables, rank, on_path[rank]))
    bounding = [
        Bounding(rank, name, ns)
        for rank in sorted(on_path)
        for name, ns in partition.compute_times(tables, rank, on_path[rank]).items()
    ]
    heaviest = tuple(sorted(bounding, key=lambda b: (-b.ns, b.rank, b.name))[:_NAMES])
    return CriticalPathResult(pieces, shares, heaviest, parts, tuple(notes))


def _on_path(tables: TableSet, pieces: tuple[Piece, ...]) -> dict[int, Intervals]:
    """Return each rank's time on the path, on its own clock."""
    clocks = clock.fit_clocks(tables)
    on_path = {}
    for rank in sorted({piece.rank for piece in pieces}):
        begin = [piece.begin_ns for piece in pieces if piece.rank == rank]
        end = [piece.end_ns for piece in pieces if piece.rank == rank]
        on_path[rank] = union(clocks.local(rank, begin), clocks.local(rank, end))
    return on_path


def _shares(tables: TableSet, rank: int, on_path: Intervals) -> list[Share]:
    """Return the parts of a rank's time on the path, divided with the same priorities as the breakdown."""
    sets = partition.sets_of(tables, rank)
    intervals = {"compute": sets.compute}
    intervals |= {f"comm:{axis}": exposed for axis, exposed in sorted(sets.exposed.items())}
    intervals |= {"memcpy": sets.copies, "unrecorded": sets.unrecorded, f"idle:{Cause.BUBBLE}": sets.bubble}
    intervals |= {f"idle:{cause}": sets.host[cause] for cause in (Cause.INPUT, Cause.SYNC, Cause.HOST)}
    owned = by_priority(list(intervals.values())).cut(on_path.start, on_path.end, len(intervals)).sum(axis=0).tolist()
    ns_of_part = dict(zip(intervals, owned, strict=True))
    ns_of_part[f"idle:{Cause.OTHER}"] = on_path.length - sum(owned)
    return [Share(rank, part, ns) for part, ns in ns_of_part.items() if ns]


def _notes(tables: TableSet) -> list[HealthRow]:
    if len(tables.ranks) < 2:
        detail = "one rank was read: the path cannot continue on others, and waiting for them counts as communication"
        return [HealthRow("one_rank", Severity.INFO, detail=detail)]
    if clock.fit_clocks(tables).components > 1:
        detail = "no collective connects some clocks; the path covers the largest part of the run with connected clocks"
        return [HealthRow("clocks_untied", Severity.ERROR, detail=detail)]
    return []
