"""Uneven work: the rank with more than an equal share of its group's, and whether it is slow in all that it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import group_codes
from usp_prof.findings.proof import longest
from usp_prof.model.topology import Axis
from usp_prof.replay.graph import NodeKind
from usp_prof.replay.node_work import work_of
from usp_prof.whatif.edits.balance import shares

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.model.finding import PlainMap
    from usp_prof.replay.graph import Graph
    from usp_prof.tables.table_set import TableSet

SHARED = (Axis.EP, Axis.CP)
"""The axes over which work can be shared unevenly by design."""
BEST = 0.1
"""A slow rank is slower in all that it does: the tenth in which it compares best shows it, too."""


@dataclass(frozen=True, slots=True)
class Uneven:
    """A rank with more than its share: its work over the group's mean, over all steps, and where that is seen."""

    rank: int
    ratio: float
    spot: PlainMap


def worst_of(tables: TableSet, graph: Graph, axis: str) -> Uneven | None:
    """Find the rank with the largest share of its group's work on an axis; not one that is slow everywhere."""
    sums: dict[int, list[float]] = {}
    for each in shares(graph, axis):
        work = each.work.sum(axis=1)
        for rank, own in zip(each.ranks, (work / max(work.mean(), 1.0)).tolist(), strict=True):
            sums.setdefault(rank, []).append(own)
    if not sums:
        return None
    ratio = {rank: float(np.median(found)) for rank, found in sums.items()}
    worst = max(ratio, key=lambda rank: (ratio[rank], -rank))
    if everywhere(tables, graph, worst) >= 1 + (ratio[worst] - 1) / 2:
        return None
    mine = (graph.nodes.rank == worst) & (graph.nodes.kind == NodeKind.COMPUTE)
    return Uneven(worst, ratio[worst], longest(graph, mine))


def everywhere(tables: TableSet, graph: Graph, rank: int) -> float:
    """Give how much longer a rank takes than its groups' median even in the tenth where it compares best.

    Its work is told apart by the calls of its groups between which it lies, and by op and shapes. Where it is in no
    group that shares work, it cannot be told from one that has more to do: infinity.
    """
    least = float("inf")
    for axis in SHARED:
        found = [each for each in shares(graph, axis) if rank in each.ranks]
        if found:
            pieces = [_best_tenth(each.work, each.ranks.index(rank)) for each in found]
            least = min(least, float(np.median(pieces)), _by_shape(tables, graph, found[0].ranks, rank))
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


def _best_tenth(work: NDArray[np.float64], place: int) -> float:
    """Give the ratio of one row to the median row in the columns where it is least, a tenth of the median's sum."""
    own, usual = work[place], np.median(work, axis=0)
    known = usual > 0
    if not known.any():
        return 1.0
    ratio, weight = own[known] / usual[known], usual[known]
    order = np.argsort(ratio, kind="stable")
    reached = np.searchsorted(np.cumsum(weight[order]), BEST * weight.sum())
    return float(ratio[order][min(int(reached), len(order) - 1)])
