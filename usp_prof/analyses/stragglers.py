"""Stragglers: which ranks keep others waiting, why, and what that costs the job.

HTA names the rank with the most communication time, but that rank is a victim. The straggler of a call arrives last
and therefore waits least. A rank's cost is the lateness that it causes itself (see `arrivals.py`), on the axis where
this is largest. Two equally slow ranks cost nothing each, because fixing only one of them saves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from usp_prof.analyses.measures import arrivals, lateness, partition
from usp_prof.analyses.measures.arrivals import Arrivals
from usp_prof.analyses.measures.lateness import Peers, Why
from usp_prof.analyses.measures.partition import Cause, Partition
from usp_prof.analyses.result import Listing, Result, fields_of, in_order, spread
from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.rows import distinct, lookup, numbered, rows_of
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import Better, Metric, Unit, Value, Values
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.model.topology import Axis
from usp_prof.tables import calls as call_table
from usp_prof.tables import clock
from usp_prof.tables.table_set import TableSet

SLOWDOWN = Metric(
    "slowdown", Unit.RATIO, Better.LOWER, "Compute slowdown",
    "Compute per step divided by the median of the rank's peers (same stage). Per rank: median over steps; "
    "without a rank: the largest.",
    ("rank", "step"),
)  # fmt: skip
OWN_TIME_SLOWDOWN = Metric(
    "own_time_slowdown", Unit.RATIO, Better.LOWER, "Step vs. peers' own time",
    "Step divided by the peers' mean own time (everything except waiting for other ranks) plus their bubbles. "
    "Hosts stay unchanged, so this is not a prediction; see `job_slowdown`.",
    ("step",),
)  # fmt: skip
LATE_FRACTION = Metric(
    "late_fraction", Unit.FRACTION, Better.LOWER, "Last to arrive",
    "Share of an axis' calls in which the rank arrives last. Ties within the clock residual count for no rank."
    " Broadcasts and scatters are excluded, because they wait for one rank's data.",
    ("rank", "axis"),
)  # fmt: skip
STRAGGLER_COST = Metric(
    "straggler_cost", Unit.NS, Better.LOWER, "Cost of being late",
    "Lateness that a rank causes itself, on the axis where it is largest. Without a rank: the largest rank's "
    "mean.",
    ("rank", "step"),
)  # fmt: skip
METRICS = (SLOWDOWN, OWN_TIME_SLOWDOWN, LATE_FRACTION, STRAGGLER_COST)

_LEAST_COST_FRACTION = 0.02
"""Costs below this share of the step are noise."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late one rank arrives on one axis."""

    rank: int
    axis: str
    calls: int
    late: int
    late_by_ns: int
    """Sum of the time by which it was last."""
    own_ns: int
    """The part of it that the rank caused itself."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """A rank that costs the job time: `cost_ns` per step (mean over all steps), and the affected steps."""

    rank: int
    axis: str
    why: Why
    cost_ns: float
    slowdown: float
    steps: tuple[int, ...]
    persistent: bool
    evidence: Mapping[str, int]
    """Own time in these steps in excess of the peers' median, by part."""


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """How slow and late each rank is per step; one entry per (rank, step) of the partition."""

    slow: Floats
    excess: Ints
    cost: Ints
    axis: NDArray[np.object_]
    """The axis on which it is late."""


@dataclass(frozen=True, slots=True, eq=False)
class StragglersResult(Result):
    """Lateness per rank and axis, slowdown per rank and step, and the culprits, costliest first."""

    lateness: tuple[Lateness, ...]
    culprits: tuple[Culprit, ...]
    rank: Ints
    step: Ints
    slowdown: Floats
    cost_ns: Ints
    own_time_slowdown: Mapping[int, float]
    notes: tuple[HealthRow, ...] = ()

    def rank_slowdown(self, rank: int) -> float:
        """Return a rank's median slowdown over steps, or NaN without peers."""
        by_step = self.slowdown[self.rank == rank]
        measured = by_step[~np.isnan(by_step)]
        return float(np.median(measured)) if len(measured) else float("nan")

    def values(self) -> Values:
        """Return the metric values, sorted by dimension."""
        per_rank = [(rank, self.rank_slowdown(rank)) for rank in np.unique(self.rank).tolist()]
        slowdowns = [(rank, figure) for rank, figure in per_rank if not np.isnan(figure)]
        values = [Value(SLOWDOWN, max(figure for _, figure in slowdowns))] if slowdowns else []
        values += [Value(SLOWDOWN, figure, {"rank": rank}) for rank, figure in slowdowns]
        for rank, step, figure in zip(self.rank.tolist(), self.step.tolist(), self.slowdown.tolist(), strict=True):
            if not np.isnan(figure):
                values.append(Value(SLOWDOWN, figure, {"rank": rank, "step": step}))
        values += [Value(OWN_TIME_SLOWDOWN, figure, {"step": step}) for step, figure in self.own_time_slowdown.items()]
        if self.own_time_slowdown:
            values.append(Value(OWN_TIME_SLOWDOWN, float(np.median([*self.own_time_slowdown.values()]))))
        for late in self.lateness:
            values.append(Value(LATE_FRACTION, late.late / late.calls, {"rank": late.rank, "axis": late.axis}))
        costs = spread(STRAGGLER_COST, self.rank, self.step, self.cost_ns)
        if self.lateness and costs:
            values += costs[1:]  # without the mean: the job's cost is that of its costliest rank
            values.append(Value(STRAGGLER_COST, max(cost.value for cost in costs if set(cost.dims) == {"rank"})))
        return in_order(values)

    def listing(self) -> Listing:
        """Return one row per rank and axis as plain columns."""
        columns = fields_of(self.lateness, Lateness)
        return columns | {"slowdown": [self.rank_slowdown(late.rank) for late in self.lateness]}


def compute(tables: TableSet, selection: Selection = EVERYTHING) -> StragglersResult:
    """Find the stragglers of the selected steps. All ranks are compared; the selection picks the ranks that are shown.

    The result is empty if the ranks' steps do not contain the same work.
    """
    if tables.incomparable:
        nothing, unknown = np.zeros(0, np.int64), np.zeros(0)
        note = HealthRow("ranks_not_compared", Severity.ERROR, detail=f"stragglers are unknown: {tables.incomparable}")
        return StragglersResult((), (), nothing, nothing, unknown, nothing, {}, (note,))
    steps_only = Selection(None, selection.first_step, selection.last_step)
    parts = partition.divide_run(tables, steps_only)
    seen = arrivals.arrivals(tables)
    is_selected = np.isin(seen.step, parts.step)
    own, peers = lateness.own_time(tables, parts), lateness.peers_of(tables)
    excess = lateness.excess_by_row(own, peers)
    rows = _Rows(_slowdown(parts, peers), excess, *_cost(parts, seen, is_selected, excess))
    shown = np.isin(parts.rank, tables.ranks if selection.ranks is None else selection.ranks)
    late = _lateness(tables, seen, is_selected)
    if selection.ranks is not None:
        late = [row for row in late if row.rank in selection.ranks]
    return StragglersResult(
        tuple(late),
        _culprits(tables, parts.rank[shown], own, peers, rows),
        parts.rank[shown],
        parts.step[shown],
        rows.slow[shown],
        rows.cost[shown],
        _own_time_slowdown(own, peers),
        tuple(sorted(_notes(tables, seen, is_selected, peers))),
    )


def late_in_messages(tables: TableSet, peers: Peers) -> tuple[Culprit, ...]:
    """Return the ranks that may hold up others in sends and receives, the worst first.

    Lateness is only measured in collectives. In a ring or pipeline, a rank that needs more time of its own than its
    peers may delay its neighbors, and these delay theirs. Its cost is at most that time.
    """
    matched = call_table.match_calls(tables)
    if tables.incomparable or not matched.is_pair.any():
        return ()
    parts = partition.divide_run(tables, EVERYTHING)
    own = lateness.own_time(tables, parts)
    excess = np.maximum(lateness.excess_by_row(own, peers), 0)
    axes = matched.columns().take(matched.is_pair)["axis"].tolist()
    axis = np.full(len(excess), max(sorted(set(axes)), key=axes.count), object)
    rows = _Rows(_slowdown(parts, peers), excess, excess, axis)
    return _culprits(tables, parts.rank, own, peers, rows)


def _slowdown(parts: Partition, peers: Peers) -> Floats:
    peer_median = lateness.peer_medians(parts, peers, parts.compute)
    is_comparable = peer_median > 0  # False also if the median is NaN because the rank has no peers
    return np.where(is_comparable, parts.compute / np.where(is_comparable, peer_median, 1.0), np.nan)


def _cost(parts: Partition, seen: Arrivals, is_selected: Flags, excess: Ints) -> tuple[Ints, NDArray[np.object_]]:
    """Return each (rank, step)'s own lateness on the axis where it is largest, and that axis.

    The rank's own time in excess of its peers' is an upper bound: lateness in a hidden call can be recovered later. A
    step lasts until the next one starts, so a late start of a step is excess of the step before.
    """
    cost, axis_of_row = np.zeros(len(parts.rank), np.int64), np.full(len(parts.rank), "", object)
    rows = np.flatnonzero(is_selected & ~seen.is_from_one_rank & (seen.late_rank >= 0))
    (ranks, place_of_rank), (steps, place_of_step) = numbered(parts.rank), numbered(parts.step)
    # Per call: the row of its late rank and step; -1 if the partition has none.
    late, step = rows_of(ranks, seen.late_rank[rows]), rows_of(steps, seen.step[rows])
    key = np.where((late >= 0) & (step >= 0), late * len(steps) + step, -1)
    cell = rows_of(place_of_rank * len(steps) + place_of_step, key)
    for axis, code in sorted(zip(seen.axes, range(len(seen.axes)), strict=True)):
        on = (seen.axis[rows] == code) & (cell >= 0)
        total = np.bincount(cell[on], seen.own_ns[rows][on], len(cost)).astype(np.int64)
        axis_of_row = np.where(total > cost, axis, axis_of_row)
        cost = np.maximum(cost, total)
    unused = np.maximum(excess - cost, 0)
    before = _rows_before(parts)
    bound = excess + np.where(before >= 0, unused[before], 0)
    return np.where(excess >= 0, np.minimum(cost, bound), cost), axis_of_row


def _rows_before(parts: Partition) -> Ints:
    """Return per (rank, step) the row of the same rank's previous step; -1 if it was not recorded."""
    order = np.lexsort((parts.step, parts.rank))
    before = np.full(len(order), -1, np.int64)
    follows = (np.diff(parts.rank[order]) == 0) & (np.diff(parts.step[order]) == 1)
    before[order[1:][follows]] = order[:-1][follows]
    return before


def _culprits(
    tables: TableSet, ranks: Ints, own: lateness.OwnTime, all_peers: Peers, rows: _Rows
) -> tuple[Culprit, ...]:
    """Return those of the ranks that cost the others notable time, costliest first."""
    culprits = (_culprit(tables, rank, own, all_peers, rows) for rank in np.unique(ranks).tolist())
    return tuple(sorted(filter(None, culprits), key=lambda culprit: (-culprit.cost_ns, culprit.rank)))


def _culprit(tables: TableSet, rank: int, own: lateness.OwnTime, all_peers: Peers, rows: _Rows) -> Culprit | None:
    """Return a rank's cost to the others and its cause, from the steps with a notable cost; `None` without any."""
    parts = own.parts
    of_rank = parts.rank == rank
    mean_cost, mean_step = float(rows.cost[of_rank].mean()), float(parts.wall[of_rank].mean())
    is_hit = of_rank & (rows.cost > _LEAST_COST_FRACTION * parts.wall)
    if not is_hit.any() or mean_cost <= _LEAST_COST_FRACTION * mean_step:
        return None
    steps, peers = parts.step[is_hit], all_peers.of_rank(rank)
    started_late = _rows_before(parts)[is_hit & (rows.excess >= 0) & (rows.cost > rows.excess)]
    spent_in = np.union1d(steps, parts.step[started_late])
    over = lateness.excess(own, rank, peers, spent_in) * (len(spent_in) / len(steps))
    slowdown = float(np.median(rows.slow[is_hit]))
    cause = lateness.why(over, float(rows.cost[is_hit].mean()), slowdown, lateness.work_ratio(own, rank, peers, steps))
    axes = rows.axis[is_hit].tolist()
    axis = lateness.slow_axis(tables, rank, peers, steps) if cause is Why.SLOW_LINK else ""
    return Culprit(
        rank,
        axis or max(sorted(set(axes)), key=axes.count),
        cause,
        mean_cost,
        slowdown,
        tuple(steps.tolist()),
        bool(is_hit.sum() * 2 > of_rank.sum()),
        lateness.describe(over),
    )


def _lateness(tables: TableSet, seen: Arrivals, is_selected: Flags) -> list[Lateness]:
    is_blamable = is_selected & ~seen.is_from_one_rank
    axes = sorted({seen.axes[code] for code in distinct(seen.axis[is_blamable]).tolist()})
    place_of_code = [axes.index(name) if name in axes else -1 for name in seen.axes]
    # Per arrival: index of its axis, -1 if it is left out. `axis_of_call` is the same per call number.
    axis = np.where(is_blamable, lookup(place_of_code, seen.axis, missing=-1), -1)
    axis_of_call = lookup(axis, seen.row_of_call, missing=-1)
    ranks, parts = tables.ranks, call_table.match_calls(tables).parts
    # Per axis and rank: calls that it takes part in, calls in which it is last, and the times summed over the latter.
    member_of, last_in, late_by, own = (np.zeros((len(axes), len(ranks)), np.int64) for _ in range(4))
    for place, rank in enumerate(ranks):
        of_parts = axis_of_call[parts.of_rank(rank, "call")["call"]]
        member_of[:, place] = np.bincount(of_parts[of_parts >= 0], minlength=len(axes))
    blamed = np.flatnonzero((axis >= 0) & (seen.late_rank >= 0))
    cell = axis[blamed], np.searchsorted(ranks, seen.late_rank[blamed])
    for total, values in ((last_in, 1), (late_by, seen.late_by_ns[blamed]), (own, seen.own_ns[blamed])):
        np.add.at(total, cell, values)
    sums = member_of, last_in, late_by, own
    rows = [
        Lateness(ranks[place], axes[code], *(int(total[code, place]) for total in sums))
        for code, place in np.argwhere(member_of).tolist()
    ]
    return sorted(rows, key=lambda late: (late.axis, -late.own_ns, late.rank))


def _own_time_slowdown(own: lateness.OwnTime, peers: Peers) -> dict[int, float]:
    """Return each step's mean length over the own time plus bubble of the slowest stage (mean over its ranks)."""
    parts = own.parts
    bubble = np.take(parts.idle, partition.CAUSES.index(Cause.BUBBLE), axis=1)
    kind = peers.kinds(parts.rank)
    slowdown_of_step = {}
    for step in np.unique(parts.step).tolist():
        in_step = parts.step == step
        if in_step.sum() < 2:
            continue
        ideals = []
        for stage in np.unique(kind[in_step]).tolist():
            of_stage = in_step & (kind == stage)
            ideals.append(float((own.total[of_stage] + bubble[of_stage]).mean()))
        if max(ideals) > 0:
            slowdown_of_step[step] = float(parts.wall[in_step].mean()) / max(ideals)
    return slowdown_of_step


def _notes(tables: TableSet, seen: Arrivals, is_selected: Flags, peers: Peers) -> list[HealthRow]:
    notes = []
    if len(tables.ranks) < 2:
        notes.append(HealthRow("one_rank", Severity.INFO, detail="a single rank cannot be late"))
    elif not is_selected.any():
        detail = "no call has all of its participants, so the last rank to arrive is unknown"
        notes.append(HealthRow("arrivals_unknown", Severity.INFO, detail=detail))
    depends = int((is_selected & seen.is_from_one_rank & (seen.late_rank >= 0)).sum())
    if depends:
        detail = "broadcasts and scatters wait for one rank's data, so no rank is reported as late in them"
        notes.append(HealthRow("depends_on_one_rank", Severity.INFO, count=depends, detail=detail))
    matched = call_table.match_calls(tables)
    of_rings = int((matched.is_pair & matched.columns().matches("axis", str(Axis.CP))).sum())
    if of_rings:
        detail = (
            "lateness is measured in collectives; a rank that holds up its ring in sends and receives can cost more: "
            "see what its repair saves"
        )
        notes.append(HealthRow("rings_not_counted", Severity.INFO, count=of_rings, detail=detail))
    tied = int((is_selected & ~seen.is_from_one_rank & (seen.late_rank < 0)).sum())
    if tied:
        detail = "the last arrivals differ by less than the error of the clocks, so no rank is reported as late"
        notes.append(HealthRow("arrivals_tied", Severity.INFO, count=tied, detail=detail))
    n_without_peers = sum(len(ranks) == 1 for ranks in peers.ranks_of_kind)
    if n_without_peers and len(tables.ranks) > 1:
        detail = "no other rank does the same work, so the compute slowdown and its cause are unknown"
        notes.append(HealthRow("no_peers", Severity.INFO, count=n_without_peers, detail=detail))
    if clock.fit_clocks(tables).components > 1:
        detail = "no collective connects some clocks; calls across them are left out"
        notes.append(HealthRow("clocks_untied", Severity.ERROR, detail=detail))
    return notes
