"""Peer comparison: ranks that do the same work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.columns.rows import distinct, first_rows, group_codes, numbered
from usp_prof.columns.table import Columns
from usp_prof.model.topology import Axis
from usp_prof.replay.graph import Graph, NodeKind
from usp_prof.tables import calls
from usp_prof.tables.parallelism.mesh import talking
from usp_prof.tables.table_set import TableSet

ALIKE = 0.02
"""Ranks without communication are peers if their numbers of compute activities differ by less than this share."""
MISSING, FEWEST_MISSING = 0.05, 2
"""Share and number of collectives that may be missing on one of two peers, since recordings are not aligned."""


@dataclass(frozen=True, slots=True)
class Slowness:
    """A rank's compute per step compared with the median of its peers, excluding itself."""

    rank: int
    peers: tuple[int, ...]
    compute_ns: float
    peers_ns: float

    @property
    def ratio(self) -> float:
        """Compute time divided by that of the peers; 1.0 if there are none."""
        return self.compute_ns / self.peers_ns if self.peers_ns else 1.0


def slowness(tables: TableSet, graph: Graph) -> dict[int, Slowness]:
    """Return the slowness of every rank that has peers, from the median compute per step."""
    compute = {rank: compute_per_step(graph, rank) for rank in tables.ranks}
    slowness_of_rank = {}
    for group in peer_groups(tables, graph):
        for rank in group:
            peers = tuple(other for other in group if other != rank)
            if peers and compute[rank]:
                usual = float(np.median([compute[peer] for peer in peers]))
                slowness_of_rank[rank] = Slowness(rank, peers, compute[rank], usual)
    return slowness_of_rank


def peer_groups(tables: TableSet, graph: Graph) -> list[tuple[int, ...]]:
    """Group the ranks with the same role: the same pipeline stage or, without a mesh, the same collectives."""
    places = tables.manifest.coordinates if tables.manifest else {}
    if all(str(rank) in places for rank in tables.ranks):
        stages: dict[int, list[int]] = {}
        for rank in tables.ranks:
            stages.setdefault(places[str(rank)].get("pp", 0), []).append(rank)
        return [tuple(ranks) for _, ranks in sorted(stages.items())]
    return tables.memo("peer groups", lambda: _same_collectives(tables, graph))


def _same_collectives(tables: TableSet, graph: Graph) -> list[tuple[int, ...]]:
    """Group the ranks that run the same collectives equally often and are not stages of one pipeline.

    The number of kernels is not a criterion, because libraries choose kernels by input. It is used only if no rank
    communicates: a group then contains ranks that run almost as many kernels as its first rank.
    """
    parts = {rank: tables.columns("collectives", rank) for rank in tables.ranks}
    transfers = {rank: own.take(~own.matches("axis", Axis.CP)) for rank, own in parts.items()}
    # Ranks that send to one another are stages of one pipeline, except in a ring.
    pipelines = [ranks for ranks in talking(transfers) if not _is_ring(ranks, transfers)]
    pipeline = {rank: place for place, ranks in enumerate(pipelines) for rank in ranks}
    calls_of_rank = {
        rank: _collectives_by_step(tables, rank, own, is_stage=rank in pipeline) for rank, own in parts.items()
    }
    if not any(counts for of_rank in calls_of_rank.values() for counts in of_rank.values()):
        return _same_number_of_kernels(tables, graph)
    groups: list[list[int]] = []
    for rank in tables.ranks:
        for group in groups:
            is_other_stage = rank in pipeline and any(pipeline.get(other) == pipeline[rank] for other in group)
            if not is_other_stage and _alike(calls_of_rank[rank], calls_of_rank[group[0]]):
                group.append(rank)
                break
        else:
            groups.append([rank])
    return [tuple(group) for group in groups]


def _is_ring(ranks: Sequence[int], transfers: Mapping[int, Columns]) -> bool:
    """Return whether each rank sends to the next one only and receives from the previous one only, in a circle.

    In a pipeline, gradients go back to the rank that sent. Two ranks are a ring if each kernel both sends and receives.
    """
    next_of_rank: dict[int, int] = {}
    for rank in ranks:
        own = transfers.get(rank)
        if own is None:
            return False
        is_send, is_receive = own.matches("op", "send"), own.matches("op", "recv")
        receivers, senders = (distinct(own["peer"][rows]).tolist() for rows in (is_send, is_receive))
        if len(receivers) != 1 or len(senders) != 1:
            return False
        if receivers == senders and not np.array_equal(own["event"][is_send], own["event"][is_receive]):
            return False
        next_of_rank[rank] = receivers[0]
    circle = [ranks[0]]
    while (following := next_of_rank.get(circle[-1], circle[0])) not in circle:
        circle.append(following)
    return following == circle[0] and len(circle) == len(ranks)


def _collectives_by_step(tables: TableSet, rank: int, parts: Columns, *, is_stage: bool) -> dict[int, Counter[str]]:
    """Count a rank's collectives in each recorded step, without those that were launched before recording began.

    These belong to an earlier step. They end in the first recorded one on some ranks and before it on others.
    """
    kernels = tables.columns("kernels", rank)
    is_earlier = np.isin(parts["event"], kernels["event"][kernels["before_window"]])
    step = np.where(is_earlier, -1, parts["step"])
    return {
        number: _collectives(rank, parts.take(np.flatnonzero(step == number)), is_stage=is_stage)
        for number in tables.columns("steps", rank)["step"].tolist()
    }


def _collectives(rank: int, parts: Columns, *, is_stage: bool) -> Counter[str]:
    """Count a rank's collectives by operation and axis; sizes depend on data.

    In a pipeline, the direction of transfers matters too.
    """
    (op, ops), (axis, axes) = parts.codes("op"), parts.codes("axis")
    is_directed = (parts["peer"] >= 0) & ~parts.matches("axis", Axis.CP) & is_stage
    ahead = np.where(is_directed, np.sign(parts["peer"] - rank), 0)
    kind = group_codes(op, axis, ahead)
    rows = first_rows(kind).tolist() if len(kind) else []
    counts = np.bincount(kind).tolist() if len(kind) else []
    return Counter(
        {f"{ops[op[row]]} {axes[axis[row]]} {ahead[row]}": count for row, count in zip(rows, counts, strict=True)}
    )


def _alike(own: Mapping[int, Counter[str]], peers: Mapping[int, Counter[str]]) -> bool:
    """Return whether two ranks run the same collectives in their common steps, apart from a few missing in one trace.

    One of the traces may have begun later or ended earlier.
    """
    steps = own.keys() & peers.keys() or own.keys() | peers.keys()
    counts, peer_counts = (
        sum((of_rank.get(step, Counter()) for step in steps), Counter[str]()) for of_rank in (own, peers)
    )
    missing = (counts - peer_counts).total() + (peer_counts - counts).total()
    return missing <= max(FEWEST_MISSING, MISSING * max(counts.total(), peer_counts.total()))


def _same_number_of_kernels(tables: TableSet, graph: Graph) -> list[tuple[int, ...]]:
    computes = graph.nodes.kind == NodeKind.COMPUTE
    number = {rank: int(computes[graph.nodes.of_rank(rank)].sum()) for rank in tables.ranks}
    groups: list[list[int]] = []
    for rank in sorted(number, key=lambda rank: (number[rank], rank)):
        if groups and number[rank] - number[groups[-1][0]] <= ALIKE * number[rank]:
            groups[-1].append(rank)
        else:
            groups.append([rank])
    return [tuple(sorted(group)) for group in groups]


def compute_per_step(graph: Graph, rank: int) -> float:
    """Return the median over steps of a rank's compute, in ns."""
    times = compute_by_step(graph, rank)
    return float(np.median(list(times.values()))) if times else 0.0


def compute_by_step(graph: Graph, rank: int) -> dict[int, int]:
    """Return a rank's compute in each step, in ns."""
    rows = graph.nodes.of_rank(rank)
    rows = rows[(graph.nodes.kind[rows] == NodeKind.COMPUTE) & (graph.nodes.step[rows] >= 0)]
    if not len(rows):
        return {}
    steps, place = numbered(graph.nodes.step[rows])
    sums: Ints = np.bincount(place, weights=graph.duration[rows]).astype(np.int64)
    return dict(zip(steps.tolist(), sums.tolist(), strict=True))


def calls_of(tables: TableSet) -> Columns:
    """Return the calls that tie nodes of the graph, in the order of their numbers there."""
    matched = calls.match_calls(tables)
    return matched.columns().take(np.flatnonzero(matched.parts.of_each_call() > 1))
