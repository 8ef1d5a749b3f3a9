"""Context parallelism: how evenly the sequence is split, and what the ring's exchanges cost.

With a causal mask, contiguous parts of a sequence are uneven: the last rank sees all keys, the first only its own.
Imbalance is the slowest rank's compute over the mean of its context-parallel group. Ring steps show where it waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from usp_prof.analyses.measures.op_work import of_rank
from usp_prof.analyses.measures.ranges import axis_groups, host_marks, marked, step_count
from usp_prof.analyses.result import Listing, Result, fields_of, in_order, means_over_ranks, per_rank
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import FROM_ONE, Better, Metric, Unit, Value, Values
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.model.topology import Axis
from usp_prof.tables.table_set import TableSet

CP_IMBALANCE = Metric(
    "cp_imbalance", Unit.RATIO, Better.LOWER, "Sequence imbalance",
    "Compute of the slowest rank of a context-parallel group divided by the group's mean; 1 is even.", (),
    within=FROM_ONE,
)  # fmt: skip
CP_TIME = Metric(
    "cp_time", Unit.NS, Better.LOWER, "Exchange time",
    "Time per step of one kind of exchange: ring_wait, ring_send_recv, all_gather_kv or ulysses_a2a.",
    ("exchange", "rank"),
)  # fmt: skip
RING_WAIT = Metric(
    "ring_wait_time", Unit.NS, Better.LOWER, "Wait by ring step",
    "Mean time for which a ring step waits for its exchange, by number of the ring step.", ("ring_step", "rank"),
)  # fmt: skip
METRICS = (CP_IMBALANCE, CP_TIME, RING_WAIT)

_EXCHANGES = ("ring_wait", "ring_send_recv", "all_gather_kv", "ulysses_a2a")


@dataclass(frozen=True, slots=True)
class RankCompute:
    """One rank's compute per step, and the number of its group."""

    rank: int
    group: int
    compute_ns: float


@dataclass(frozen=True, slots=True)
class CpResult(Result):
    """Compute per rank, exchange times per step by (kind, rank), and mean waits by ring step and rank."""

    ranks: tuple[RankCompute, ...]
    times: dict[tuple[str, int], float]
    ring_waits: dict[tuple[int, int], float]
    """Mean wait by (ring step, rank)."""
    notes: tuple[HealthRow, ...] = ()

    @property
    def imbalance(self) -> float:
        """Slowest rank's compute over the mean, for the most uneven group; NaN without groups."""
        of_groups = []
        for group in sorted({row.group for row in self.ranks}):
            times = [row.compute_ns for row in self.ranks if row.group == group]
            if sum(times):
                of_groups.append(max(times) * len(times) / sum(times))
        return max(of_groups, default=float("nan"))

    def by_ring_step(self) -> dict[int, float]:
        """Return the mean wait of each ring step over the ranks that take it."""
        return means_over_ranks(self.ring_waits)

    def values(self) -> Values:
        """Return the metric values, sorted by dimension."""
        values = per_rank(CP_TIME, "exchange", self.times) + per_rank(RING_WAIT, "ring_step", self.ring_waits)
        if np.isfinite(self.imbalance):
            values.append(Value(CP_IMBALANCE, self.imbalance))
        return in_order(values)

    def listing(self) -> Listing:
        """Return one row per rank of a context-parallel group."""
        columns = fields_of(self.ranks, RankCompute)
        for kind in sorted({kind for kind, _ in self.times}):
            columns[f"{kind}_ns"] = [self.times.get((kind, row.rank), float("nan")) for row in self.ranks]
        return columns


def compute(tables: TableSet, selection: Selection = EVERYTHING) -> CpResult:
    """Analyze the context-parallel groups of the selected ranks and steps."""
    ranks = selection.ranks_among(tables.ranks)
    groups = axis_groups(tables, Axis.CP, ranks)
    if not groups:
        return CpResult((), {}, {})
    rows = [
        RankCompute(
            rank,
            number,
            int(of_rank(tables, rank, selection).dur_ns.sum()) / step_count(tables, rank, selection),
        )
        for number, members in enumerate(groups)
        for rank in members
    ]
    times: dict[tuple[str, int], float] = {}
    waits: dict[tuple[int, int], list[int]] = {}
    is_marked = False
    for rank in sorted({row.rank for row in rows}):
        is_marked = is_marked or bool(len(host_marks(tables, rank, selection, "cp").name))
        marks = marked(tables, rank, selection, "cp")
        for kind in _EXCHANGES:
            of_kind = marks.of_kinds(kind)
            if len(of_kind.name):
                times[kind, rank] = int(of_kind.dur_ns.sum()) / step_count(tables, rank, selection)
        ring = marks.of_kinds("ring_wait")
        for place, length in zip(ring.number("step").tolist(), ring.dur_ns.tolist(), strict=True):
            waits.setdefault((place, rank), []).append(length)
    mean_waits = {place: float(np.mean(lengths)) for place, lengths in sorted(waits.items()) if place[0] >= 0}
    return CpResult(tuple(rows), times, mean_waits, () if is_marked else (_NO_MARKS,))


_NO_MARKS = HealthRow(
    "no_cp_marks", Severity.INFO,
    detail="exchanges of the sequence are not marked, so the time by ring step is unknown; mark cp::ring_wait step=N",
)  # fmt: skip
