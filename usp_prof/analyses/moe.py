"""Mixture of experts: how evenly tokens spread over the experts, and what dispatch and combine cost.

Imbalance is the fullest rank's tokens over the mean of its group, weighted by tokens: how much longer the experts'
part takes than with even loads. Tokens come from the recorder's `ep::load` marks, or else from the sizes of uneven
all-to-alls. If the marks count tokens per expert (`experts=12,4`), experts are reported separately. The ranks of a
group hold equally many experts each, in rank order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from usp_prof.analyses.measures.ranges import axis_groups, host_marks, marked, step_count
from usp_prof.analyses.result import Listing, Result, in_order, per_rank
from usp_prof.columns.arrays import Floats
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import FROM_ONE, Better, Metric, Unit, Value, Values
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.model.topology import Axis
from usp_prof.tables import shares
from usp_prof.tables.table_set import TableSet

MOE_IMBALANCE = Metric(
    "moe_imbalance", Unit.RATIO, Better.LOWER, "Expert imbalance",
    "Tokens of the fullest rank of an expert group divided by the group's mean, weighted by tokens; 1 is even.",
    ("step",),
    within=FROM_ONE,
)  # fmt: skip
MOE_TOKENS = Metric(
    "moe_tokens", Unit.COUNT, Better.NEITHER, "Tokens at experts",
    "Tokens per step that arrive at a rank's experts.",
    ("rank",),
)  # fmt: skip
MOE_TIME = Metric(
    "moe_time", Unit.NS, Better.LOWER, "Routing time",
    "Time per step of one phase: dispatch, experts, combine, counts or all_to_all. Without a rank: the mean "
    "over ranks.",
    ("phase", "rank"),
)  # fmt: skip
EXPERT_TOKENS = Metric(
    "expert_tokens", Unit.COUNT, Better.NEITHER, "Tokens per expert",
    "Tokens per step that are sent to an expert, over all of its copies.", ("expert",),
)  # fmt: skip
EXPERT_IMBALANCE = Metric(
    "expert_imbalance", Unit.RATIO, Better.LOWER, "Fullest expert",
    "Tokens of the fullest expert divided by the mean over experts; 1 is even.",
    within=FROM_ONE,
)  # fmt: skip
METRICS = (MOE_IMBALANCE, MOE_TOKENS, MOE_TIME, EXPERT_TOKENS, EXPERT_IMBALANCE)

_PHASES = {"dispatch_a2a": "dispatch", "combine_a2a": "combine", "counts_a2a": "counts", "load": "experts"}
_TIMED = ("dispatch", "experts", "combine", "counts")


@dataclass(frozen=True, slots=True)
class Load:
    """Tokens that arrived at the ranks of one group in one routing; `ranks` and `tokens` are parallel."""

    step: int
    occurrence: int
    ranks: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def imbalance(self) -> float:
        """Fullest rank's tokens over the mean; 1 is even."""
        return max(self.tokens) * len(self.tokens) / sum(self.tokens) if sum(self.tokens) else 1.0


@dataclass(frozen=True, slots=True)
class MoeResult(Result):
    """Loads of every routing, tokens per step by rank, and times per step by (phase, rank)."""

    loads: tuple[Load, ...]
    tokens: dict[int, float]
    times: dict[tuple[str, int], float]
    source: str
    notes: tuple[HealthRow, ...] = ()
    experts: dict[int, float] = field(default_factory=dict)
    """Tokens per step by expert, if the marks count them."""

    def values(self) -> Values:
        """Return the metric values, sorted by dimension."""
        values = [Value(MOE_TOKENS, count, {"rank": rank}) for rank, count in self.tokens.items()]
        values += per_rank(MOE_TIME, "phase", self.times)
        if self.loads:
            values.append(Value(MOE_IMBALANCE, _weighted(self.loads)))
        for step in sorted({load.step for load in self.loads}):
            of_step = tuple(load for load in self.loads if load.step == step)
            values.append(Value(MOE_IMBALANCE, _weighted(of_step), {"step": step}))
        values += [Value(EXPERT_TOKENS, count, {"expert": expert}) for expert, count in self.experts.items()]
        if tokens := sum(self.experts.values()):
            fullest_over_mean = max(self.experts.values()) * len(self.experts) / tokens
            values.append(Value(EXPERT_IMBALANCE, fullest_over_mean))
        return in_order(values)

    def listing(self) -> Listing:
        """Return one row per routing and rank."""
        rows = [(load, rank, count) for load in self.loads for rank, count in zip(load.ranks, load.tokens, strict=True)]
        return {
            "step": [load.step for load, _, _ in rows],
            "routing": [load.occurrence for load, _, _ in rows],
            "rank": [rank for _, rank, _ in rows],
            "tokens": [count for _, _, count in rows],
            "imbalance": [load.imbalance for load, _, _ in rows],
        }


def _weighted(loads: tuple[Load, ...]) -> float:
    """Return the tokens of the fullest ranks over those of even loads, summed over routings."""
    even = sum(sum(load.tokens) / len(load.tokens) for load in loads)
    return sum(max(load.tokens) for load in loads) / even if even else 1.0


def compute(tables: TableSet, selection: Selection = EVERYTHING) -> MoeResult:
    """Analyze the routing of the selected ranks and steps."""
    ranks = selection.ranks_among(tables.ranks)
    of_ranks = shares.of_each_rank(tables, partial(_of_rank, selection=selection), ranks)
    seen = dict(zip(ranks, of_ranks, strict=True))
    arrived = {rank: of_rank.tokens for rank, of_rank in seen.items()}
    source = "marks"
    if not any(arrived.values()):
        arrived = {rank: of_rank.sent for rank, of_rank in seen.items()}
        source = "all-to-all sizes"
    groups = axis_groups(tables, Axis.EP, ranks) or [tuple(ranks)]
    loads = [load for group in groups for load in _loads(arrived, group)]
    tokens = {}
    if source == "marks":
        tokens = {
            rank: sum(count for _, count in arrivals) / step_count(tables, rank, selection)
            for rank, arrivals in arrived.items()
            if arrivals
        }
    times = {(phase, rank): time for rank, of_rank in seen.items() for phase, time in of_rank.times.items()}
    notes = [_NO_LOADS] if times and not loads and _has_experts(tables, ranks, times) else []
    experts = _experts({rank: of_rank.experts for rank, of_rank in seen.items()}, groups)
    return MoeResult(tuple(loads), tokens, times, source if loads else "", tuple(notes), experts)


@dataclass(frozen=True, slots=True)
class _OfRank:
    """Expert figures from one rank's trace."""

    tokens: list[tuple[int, int]]
    """Step and tokens of each marked routing, in order."""
    sent: list[tuple[int, int]]
    """Step and received bytes of each uneven all-to-all, used if nothing is marked."""
    experts: Floats
    """Tokens per step of each of its experts; empty if they are not counted."""
    times: dict[str, float]
    """Nanoseconds per step of each phase."""


def _of_rank(tables: TableSet, rank: int, selection: Selection) -> _OfRank:
    return _OfRank(
        _marked_tokens(tables, rank, selection),
        _sent_sizes(tables, rank, selection),
        _counted(tables, rank, selection),
        _times(tables, rank, selection),
    )


_NO_LOADS = HealthRow(
    "no_expert_loads", Severity.INFO,
    detail="tokens per expert are unknown; mark each expert's input with ep::load tokens=N",
)  # fmt: skip


def _has_experts(tables: TableSet, ranks: list[int], times: dict[tuple[str, int], float]) -> bool:
    """Return whether the expert axis was declared or its phases are marked. An inferred axis may be a different one."""
    is_declared = any(
        (groups.matches("axis", Axis.EP) & ~groups.matches("axis_source", "inferred", "none")).any()
        for groups in (tables.columns("groups", rank) for rank in ranks)
    )
    return is_declared or any(phase in _TIMED for phase, _ in times)


def _marked_tokens(tables: TableSet, rank: int, selection: Selection) -> list[tuple[int, int]]:
    """Return (step, tokens) of each routing in order, from the recorder's marks."""
    loads = host_marks(tables, rank, selection, "ep").of_kinds("load")
    return [
        (step, count)
        for step, count in zip(loads.step.tolist(), loads.number("tokens").tolist(), strict=True)
        if count >= 0
    ]


def _experts(counted: dict[int, Floats], groups: list[tuple[int, ...]]) -> dict[int, float]:
    """Return each expert's tokens per step over all groups; empty if any member lacks matching counts."""
    sums: dict[int, float] = {}
    for group in groups:
        members = [counted[rank] for rank in group]
        if len({len(counts) for counts in members}) != 1 or not len(members[0]):
            return {}
        for expert, count in enumerate(np.concatenate(members).tolist()):
            sums[expert] = sums.get(expert, 0.0) + count
    return sums


def _counted(tables: TableSet, rank: int, selection: Selection) -> Floats:
    """Return the tokens per step of one rank's experts; empty if the marks do not count the same number of experts."""
    loads = host_marks(tables, rank, selection, "ep").of_kinds("load")
    counts = [[int(number) for number in text.split(",") if number.isdigit()] for text in loads.word("experts")]
    if not counts or not counts[0] or len({len(row) for row in counts}) != 1:
        return np.zeros(0)
    total: Floats = np.asarray(counts, np.float64).sum(axis=0)
    return total / step_count(tables, rank, selection)


def _sent_sizes(tables: TableSet, rank: int, selection: Selection) -> list[tuple[int, int]]:
    """Return (step, received bytes) of uneven forward all-to-alls of the `ep` axis; even ones are replies or counts."""
    parts = tables.columns("collectives", rank)
    uneven = (
        parts.matches("axis", Axis.EP) & parts.matches("op", "all_to_all") & (parts["in_bytes"] != parts["out_bytes"])
    )
    rows = parts.take(uneven & (parts["out_bytes"] >= 0) & ~parts.matches("phase", "backward"))
    rows = rows.take(tables.selects(selection, rows["step"]))
    return list(zip(rows["step"].tolist(), rows["out_bytes"].tolist(), strict=True))


def _loads(arrived: dict[int, list[tuple[int, int]]], group: tuple[int, ...]) -> list[Load]:
    """Return the group's loads: the n-th routing of a step on every rank is the same routing."""
    by_rank: list[dict[int, list[int]]] = []
    for rank in group:
        by_step: dict[int, list[int]] = {}
        for step, count in arrived.get(rank, []):
            by_step.setdefault(step, []).append(count)
        by_rank.append(by_step)
    shared = set.intersection(*(set(by_step) for by_step in by_rank)) if by_rank else set()
    return [
        Load(step, number, group, tokens)
        for step in sorted(shared)
        for number, tokens in enumerate(zip(*(by_step[step] for by_step in by_rank), strict=False))
    ]


def _times(tables: TableSet, rank: int, selection: Selection) -> dict[str, float]:
    """Return the time per step of the marked phases and of the expert axis' all-to-alls."""
    times = {}
    steps = step_count(tables, rank, selection)
    marks = marked(tables, rank, selection, "ep")
    phase = np.array([_PHASES.get(kind, kind) for kind in marks.kind], dtype=object)
    for name in _TIMED:
        if (phase == name).any():
            times[name] = int(marks.dur_ns[phase == name].sum()) / steps
    parts = tables.columns("collectives", rank)
    rows = parts.matches("axis", Axis.EP) & parts.matches("op", "all_to_all")
    inside = (parts["step"] >= 0) & tables.selects(selection, parts["step"])
    if (rows & inside).any():
        times["all_to_all"] = int(parts["dur_ns"][rows & inside].sum()) / steps
    return times
