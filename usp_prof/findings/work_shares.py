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
SHARING_AXES = (Axis.EP, Axis.CP)
"""The axes over which work can be shared unevenly by design."""
BEST_SHARE = 0.1
"""Share of the work in which a rank compares best: a slow rank is slower there, too."""
LEAST_EQUAL_WORK = 0.05
"""Minimum share of a usual rank's work in kernels of equal work. In our paced trainer's experts they have 8%."""
EQUAL_WORK = 1.03
"""Ranks do the same work in a kernel if their times differ by at most this factor."""


@dataclass(frozen=True, slots=True)
class LargestShare:
    """A rank with more than its share: its work relative to the group's mean, over all steps, and the evidence."""

    rank: int
    ratio: float
    spot: PlainMap


def largest_share(tables: TableSet, axis: str) -> LargestShare | None:
    """Return the rank with the largest share of its group's work on an axis unless it is slow in all work; memoized."""
    return tables.memo(("largest share of work", axis), lambda: _largest_share(tables, graph_of(tables), axis))


def has_more_work(tables: TableSet, rank: int) -> bool:
    """Return whether a rank has more work than the others in a group that shares work."""
    largest = (largest_share(tables, axis) for axis in SHARING_AXES)
    return any(share is not None and share.rank == rank and share.ratio >= UNEVEN for share in largest)


def _largest_share(tables: TableSet, graph: Graph, axis: str) -> LargestShare | None:
    ratios_of_rank: dict[int, list[float]] = {}
    for group in shares(graph, axis):
        work = group.work.sum(axis=1)
        for rank, ratio in zip(group.ranks, (work / max(work.mean(), 1.0)).tolist(), strict=True):
            ratios_of_rank.setdefault(rank, []).append(ratio)
    if not ratios_of_rank:
        return None
    median_ratio = {rank: float(np.median(ratios)) for rank, ratios in ratios_of_rank.items()}
    rank = max(median_ratio, key=lambda rank: (median_ratio[rank], -rank))
    if is_slow_in_all_work(tables, graph, rank, median_ratio[rank]):
        return None
    is_own_compute = (graph.nodes.rank == rank) & (graph.nodes.kind == NodeKind.COMPUTE)
    return LargestShare(rank, median_ratio[rank], longest(graph, is_own_compute))


def is_slow_in_all_work(tables: TableSet, graph: Graph, rank: int, ratio: float) -> bool:
    """Return whether a rank that takes `ratio` times as long as its peers is slow, and does not have more work.

    A slow rank takes longer even in the tenth of its work where it compares best, by at least half as much as in all
    work. Kernels are compared with all ranks of the same pipeline stage, because all ranks of a group may be slow, such
    as those of one node. Parts of a sequence decide the time of nearly all kernels, so the work between the group's
    calls is compared as well. If the rank is in no group that shares work, a slow rank and one with more work look the
    same, and it counts as slow.
    """
    groups = {axis: [group for group in shares(graph, axis) if rank in group.ranks] for axis in SHARING_AXES}
    if not any(groups.values()):
        return True
    peers = next(peers for peers in peer_groups(tables, graph) if rank in peers)
    least_ratio = _ratio_of_best_kernels(tables, graph, peers, rank)
    between_calls = [_ratio_of_best_tenth(group.work, group.ranks.index(rank)) for group in groups[Axis.CP]]
    if between_calls:
        least_ratio = min(least_ratio, float(np.median(between_calls)))
    return least_ratio >= 1 + (ratio - 1) / 2


def _ratio_of_best_kernels(tables: TableSet, graph: Graph, ranks: tuple[int, ...], rank: int) -> float:
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
    row_of_rank = np.searchsorted(np.array(ranks), nodes.rank[rows])
    # One row per rank, one column per kernel.
    work, runs = np.zeros((2, len(ranks), int(kernel.max()) + 1))
    np.add.at(work, (row_of_rank, kernel), nodes.duration[rows])
    np.add.at(runs, (row_of_rank, kernel), 1)
    own_row = ranks.index(rank)
    work = work[:, runs[own_row] == np.median(runs, axis=0)]
    has_equal_work = _has_equal_work(work)
    if work[own_row, has_equal_work].sum() >= LEAST_EQUAL_WORK * np.median(work.sum(axis=1)):
        work = work[:, has_equal_work]
    return _ratio_of_best_tenth(work, own_row)


def _has_equal_work(work: Floats) -> Flags:
    """Mark the columns in which the faster half of the rows agree, so that load does not decide the time."""
    in_order = np.sort(work, axis=0)
    least, usual = in_order[0], in_order[(len(work) - 1) // 2]
    return np.asarray((least > 0) & (usual <= EQUAL_WORK * least))


def _ratio_of_best_tenth(work: Floats, row: int) -> float:
    """Return the ratio of one row to the lower median row in the columns where it is least, a tenth of that row's sum.

    With the lower median, a slow half of the rows is compared with the other half.
    """
    usual = np.sort(work, axis=0)[(len(work) - 1) // 2]
    has_work = usual > 0
    if not has_work.any():
        return 1.0
    ratio, weight = work[row, has_work] / usual[has_work], usual[has_work]
    order = np.argsort(ratio, kind="stable")
    last = np.searchsorted(np.cumsum(weight[order]), BEST_SHARE * weight.sum())
    return float(ratio[order][min(int(last), len(order) - 1)])
