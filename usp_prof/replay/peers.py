"""Which ranks do the same work, and how does each rank's compute compare with its peers'?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.order import numbered
from usp_prof.replay.graph import NodeKind

if TYPE_CHECKING:
    from usp_prof.replay.graph import Flags, Graph, Ints
    from usp_prof.tables.table_set import TableSet

ALIKE = 0.02
"""Without coordinates, ranks whose numbers of compute activities differ by less than this do the same work."""


@dataclass(frozen=True, slots=True)
class Slowness:
    """A rank's compute per step against the median of its peers (itself not counted); 1.0 is as fast as they are."""

    rank: int
    peers: tuple[int, ...]
    compute_ns: float
    peers_ns: float

    @property
    def ratio(self) -> float:
        """How many times as long its compute takes."""
        return self.compute_ns / self.peers_ns if self.peers_ns else 1.0


def slowness(tables: TableSet, graph: Graph) -> dict[int, Slowness]:
    """Compare every rank that has peers; the median over steps of compute for the same work."""
    compute = {rank: compute_per_step(graph, rank) for rank in tables.ranks}
    found = {}
    for group in peer_groups(tables, graph):
        for rank in group:
            others = tuple(other for other in group if other != rank)
            if others and compute[rank]:
                reference = float(np.median([compute[other] for other in others]))
                found[rank] = Slowness(rank, others, compute[rank], reference)
    return found


def slowness_by_step(found: Slowness, graph: Graph) -> dict[int, float]:
    """Give in each step how many times as long a rank's compute takes as its peers' in that step in the median."""
    own, others = compute_by_step(graph, found.rank), [compute_by_step(graph, rank) for rank in found.peers]
    ratio = {}
    for step, time in own.items():
        usual = [other[step] for other in others if step in other]
        if usual and np.median(usual) > 0:
            ratio[step] = time / float(np.median(usual))
    return ratio


def peer_groups(tables: TableSet, graph: Graph) -> list[tuple[int, ...]]:
    """Group the ranks that do the same work: of one pipeline stage, as the manifest or the work itself says."""
    places = tables.manifest.coordinates if tables.manifest else {}
    if all(str(rank) in places for rank in tables.ranks):
        stages: dict[int, list[int]] = {}
        for rank in tables.ranks:
            stages.setdefault(places[str(rank)].get("pp", 0), []).append(rank)
        return [tuple(ranks) for _, ranks in sorted(stages.items())]
    computes = _computes(graph)
    number = {rank: int(computes[graph.nodes.of_rank(rank)].sum()) for rank in tables.ranks}
    groups: list[list[int]] = []
    for rank in sorted(number, key=lambda rank: (number[rank], rank)):
        if groups and number[rank] - number[groups[-1][0]] <= ALIKE * number[rank]:
            groups[-1].append(rank)
        else:
            groups.append([rank])
    return [tuple(sorted(group)) for group in groups]


def compute_per_step(graph: Graph, rank: int) -> float:
    """Give the median over steps of a rank's compute, in ns."""
    times = compute_by_step(graph, rank)
    return float(np.median(list(times.values()))) if times else 0.0


def compute_by_step(graph: Graph, rank: int) -> dict[int, int]:
    """Give a rank's compute in each step, in ns."""
    mine = graph.nodes.of_rank(rank)
    mine = mine[(graph.nodes.kind[mine] == NodeKind.COMPUTE) & (graph.nodes.step[mine] >= 0)]
    if not len(mine):
        return {}
    steps, step = numbered(graph.nodes.step[mine])
    sums: Ints = np.bincount(step, weights=graph.duration[mine]).astype(np.int64)
    return dict(zip(steps.tolist(), sums.tolist(), strict=True))


def _computes(graph: Graph) -> Flags:
    return np.asarray(graph.nodes.kind == NodeKind.COMPUTE)
