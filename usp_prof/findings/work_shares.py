"""Shares of a group's work: the rank with the largest share over the recording, and whether that rank is slow instead.

A rank that takes longer by the same factor even in the work where it compares best does not have more work than its
group: it is slow (`slow-rank`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Floats
from usp_prof.columns.rows import group_codes
from usp_prof.findings.proof import longest
from usp_prof.model.finding import PlainMap
from usp_prof.model.topology import Axis
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import Graph, NodeKind
from usp_prof.replay.node_work import work_of
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edits.balance import shares

UNEVEN = 1.08
"""Work is uneven if one rank does this many times the mean work of its group."""
SHARED = (Axis.EP, Axis.CP)
"""The axes over which work can be shared unevenly by design."""
BEST = 0.1
"""Share of the work in which a rank compares best: a slow rank is slower there, too."""


@dataclass(frozen=True, slots=True)
class Uneven:
    """A rank with more than its share: its work relative to the group's mean, over all steps, and the evidence."""

    rank: int
    ratio: float
    spot: PlainMap


def worst_of(tables: TableSet, axis: str) -> Uneven | None:
    """Return the rank with the largest share of its group's work on an axis unless it is slow in all work; memoized."""
    return tables.memo(("uneven work", axis), lambda: _worst_of(tables, graph_of(tables), axis))


def _worst_of(tables: TableSet, graph: Graph, axis: str) -> Uneven | None:
    sums: dict[int, list[float]] = {}
    for group in shares(graph, axis):
        work = group.work.sum(axis=1)
        for rank, own in zip(group.ranks, (work / max(work.mean(), 1.0)).tolist(), strict=True):
            sums.setdefault(rank, []).append(own)
    if not sums:
        return None
    ratio = {rank: float(np.median(ratios)) for rank, ratios in sums.items()}
    worst = max(ratio, key=lambda rank: (ratio[rank], -rank))
    if everywhere(tables, graph, worst) >= 1 + (ratio[worst] - 1) / 2:
        return None
    is_worst_compute = (graph.nodes.rank == worst) & (graph.nodes.kind == NodeKind.COMPUTE)
    return Uneven(worst, ratio[worst], longest(graph, is_worst_compute))


def everywhere(tables: TableSet, graph: Graph, rank: int) -> float:
    """Return how much longer a rank takes than its groups' median even in the tenth where it compares best.

    Work is compared between the same calls of its groups, by op and shapes. If the rank is in no group that shares
    work, a slow rank and one with more work look the same: infinity.
    """
    least = float("inf")
    for axis in SHARED:
        groups = [group for group in shares(graph, axis) if rank in group.ranks]
        if groups:
            pieces = [_best_tenth(group.work, group.ranks.index(rank)) for group in groups]
            least = min(least, float(np.median(pieces)), _by_shape(tables, graph, groups[0].ranks, rank))
    return least


def _by_shape(tables: TableSet, graph: Graph, ranks: tuple[int, ...], rank: int) -> float:
    """Compare op by op: each kind is a name and its shapes."""
    nodes, shape = graph.nodes, work_of(tables).shape
    rows = np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & np.isin(nodes.rank, ranks) & graph.measured)
    if not len(rows):
        return 1.0
    kind = group_codes(nodes.name[rows], shape[rows])
    place = np.searchsorted(np.array(ranks), nodes.rank[rows])
    work = np.zeros((len(ranks), int(kind.max()) + 1))
    np.add.at(work, (place, kind), nodes.duration[rows])
    return _best_tenth(work, ranks.index(rank))


def _best_tenth(work: Floats, place: int) -> float:
    """Return the ratio of one row to the median row in the columns where it is least, a tenth of the median's sum."""
    own, median_work = work[place], np.median(work, axis=0)
    has_work = median_work > 0
    if not has_work.any():
        return 1.0
    ratio, weight = own[has_work] / median_work[has_work], median_work[has_work]
    order = np.argsort(ratio, kind="stable")
    reached = np.searchsorted(np.cumsum(weight[order]), BEST * weight.sum())
    return float(ratio[order][min(int(reached), len(order) - 1)])
