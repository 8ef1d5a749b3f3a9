"""Shares of a group's work: the rank with the largest share over the recording, and whether that rank is slow instead.

A rank that takes longer by the same factor even in the work where it compares best does not have more work than its
peers: it is slow (`slow-rank`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Floats
from usp_prof.columns.rows import group_codes
from usp_prof.findings.proof import longest
from usp_prof.model.finding import PlainMap
from usp_prof.model.topology import Axis
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import Graph, NodeKind
from usp_prof.replay.node_work import work_of
from usp_prof.replay.peers import peer_groups
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edits.balance import shares

UNEVEN = 1.08
"""Work is uneven if one rank does this many times the mean work of its group."""
SHARED = (Axis.EP, Axis.CP)
"""The axes over which work can be shared unevenly by design."""
BEST = 0.1
"""Share of the work in which a rank compares best: a slow rank is slower there, too."""
UNSHARED = 0.05
"""Least share of a usual rank's work in kernels of equal work. In our paced trainer's experts they have 8%."""
AGREES = 1.03
"""Ranks do the same work in a kernel if their times differ by at most this factor."""


@dataclass(frozen=True, slots=True)
class Uneven:
    """A rank with more than its share: its work relative to the group's mean, over all steps, and the evidence."""

    rank: int
    ratio: float
    spot: PlainMap


def worst_of(tables: TableSet, axis: str) -> Uneven | None:
    """Return the rank with the largest share of its group's work on an axis unless it is slow in all work; memoized."""
    return tables.memo(("uneven work", axis), lambda: _worst_of(tables, graph_of(tables), axis))


def has_more_work(tables: TableSet, rank: int) -> bool:
    """Return whether a rank has more work than the others in a group that shares work."""
    most = (worst_of(tables, axis) for axis in SHARED)
    return any(worst is not None and worst.rank == rank and worst.ratio >= UNEVEN for worst in most)


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
    """Return how much longer a rank takes than its peers even in the tenth of its work where it compares best.

    Kernels are compared with all ranks of the same pipeline stage, because all ranks of a group may be slow, such as
    those of one node. Parts of a sequence decide the time of nearly all kernels, so the work between the group's calls
    is compared as well. If the rank is in no group that shares work, a slow rank and one with more work look the same:
    infinity.
    """
    groups = {axis: [group for group in shares(graph, axis) if rank in group.ranks] for axis in SHARED}
    if not any(groups.values()):
        return float("inf")
    between_calls = [_best_tenth(group.work, group.ranks.index(rank)) for group in groups[Axis.CP]]
    peers = next(peers for peers in peer_groups(tables, graph) if rank in peers)
    by_kernel = _by_kernel(tables, graph, peers, rank)
    return min(by_kernel, float(np.median(between_calls))) if between_calls else by_kernel


def _by_kernel(tables: TableSet, graph: Graph, ranks: tuple[int, ...], rank: int) -> float:
    """Return the ratio of a rank to the lower median of its peers in the kernels where it is least.

    The load of experts changes how long their kernels take, and that of sequences how often kernels run. Attention,
    norms and the optimizer have the same work on all ranks. A kernel is a name and its shapes.

        kernel       attention  norm  experts
        slow rank    1.3        1.3   1.1, with few tokens     returns 1.3
        full rank    1.0        1.0   1.6                      returns 1.0
    """
    nodes, shape = graph.nodes, work_of(tables).shape
    rows = np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & np.isin(nodes.rank, ranks) & graph.measured)
    if not len(rows):
        return 1.0
    kernel = group_codes(nodes.name[rows], shape[rows])
    place = np.searchsorted(np.array(ranks), nodes.rank[rows])
    work, runs = np.zeros((2, len(ranks), int(kernel.max()) + 1))
    np.add.at(work, (place, kernel), nodes.duration[rows])
    np.add.at(runs, (place, kernel), 1)
    own = ranks.index(rank)
    work = work[:, runs[own] == np.median(runs, axis=0)]
    is_same = _same_work(work)
    tells_enough = work[own, is_same].sum() >= UNSHARED * np.median(work.sum(axis=1))
    return _best_tenth(work[:, is_same] if tells_enough else work, own)


def _same_work(work: Floats) -> Flags:
    """Return the columns in which the faster half of the rows agree, so that load does not decide the time."""
    in_order = np.sort(work, axis=0)
    least, usual = in_order[0], in_order[(len(work) - 1) // 2]
    return np.asarray((least > 0) & (usual <= AGREES * least))


def _best_tenth(work: Floats, place: int) -> float:
    """Return the ratio of one row to the lower median row in the columns where it is least, a tenth of that row's sum.

    With the lower median, a slow half of the rows is compared with the other half.
    """
    own, usual = work[place], np.sort(work, axis=0)[(len(work) - 1) // 2]
    has_work = usual > 0
    if not has_work.any():
        return 1.0
    ratio, weight = own[has_work] / usual[has_work], usual[has_work]
    order = np.argsort(ratio, kind="stable")
    reached = np.searchsorted(np.cumsum(weight[order]), BEST * weight.sum())
    return float(ratio[order][min(int(reached), len(order) - 1)])
