"""Peers: ranks that do the same work and groups that move the same bytes, each compared with the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import group_codes, lookup, numbered
from usp_prof.replay.graph import NodeKind
from usp_prof.tables import calls

if TYPE_CHECKING:
    from usp_prof.columns.table import Columns
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


@dataclass(frozen=True, slots=True)
class LinkSlowness:
    """A group's transfers against the median of the other groups of its axis, for the same operations and bytes."""

    group: str
    axis: str
    ratio: float
    """Median over its kinds of calls of how many times as long a transfer takes."""
    calls: int
    extra_ns: int
    """What its transfers take longer in all."""


def calls_of(tables: TableSet) -> Columns:
    """Give the calls that tie nodes of a graph, in the order of their numbers there."""
    found = calls.of(tables)
    read = np.bincount(found.part_columns()["call"])
    return found.columns().take(np.flatnonzero(read > 1))


def ratios(tables: TableSet) -> tuple[Columns, Ints, np.ndarray]:
    """Give the calls, the code of each call's group, and how its kind compares with that of other groups (1: alike)."""
    rows = calls_of(tables)
    ratio = np.ones(len(rows))
    if not len(rows):
        return rows, np.zeros(0, np.int64), ratio
    group = rows.codes("group")[0]
    kind = group_codes(rows.codes("axis")[0], rows.codes("op")[0], rows["bytes"], rows.codes("matched_by")[0])
    timed = (rows["transfer_ns"] > 0) & ~rows.matches("matched_by", "p2p")
    for each in np.unique(kind[timed]).tolist():
        mine = timed & (kind == each)
        groups = np.unique(group[mine])
        if len(groups) < 2:
            continue
        medians = np.array([np.median(rows["transfer_ns"][mine & (group == g)]) for g in groups])
        for g, median in zip(groups.tolist(), medians.tolist(), strict=True):
            others = float(np.median(medians[groups != g]))
            ratio[mine & (group == g)] = median / others if others else 1.0
    return rows, group, ratio


def link_slowness(tables: TableSet) -> list[LinkSlowness]:
    """List the groups whose transfers take longer than other groups', by name."""
    rows, group, ratio = ratios(tables)
    texts = rows.codes("group")[1] if len(rows) else []
    found = []
    for code in np.unique(group[ratio != 1]).tolist():
        mine = (group == code) & (ratio != 1)
        extra = rows["transfer_ns"][mine] * (1 - 1 / ratio[mine])
        axis = str(rows["axis"][np.flatnonzero(mine)[0]])
        slower = float(np.average(ratio[mine], weights=rows["transfer_ns"][mine]))
        found.append(LinkSlowness(texts[code], axis, slower, int(mine.sum()), int(extra.sum())))
    return sorted(found, key=lambda each: (-each.extra_ns, each.group))


def group_word(group: str) -> str:
    """Write a group's key as an edit's word, in which commas have another meaning."""
    return group.replace(",", "+")


def as_peers(graph: Graph, tables: TableSet, wanted: str) -> Ints:
    """Give the transfers with the named group (or every slower one) as fast as the others."""
    rows, group, ratio = ratios(tables)
    texts = rows.codes("group")[1] if len(rows) else []
    is_wanted = lookup([wanted in ("all", "", group_word(text)) for text in texts], group, missing=False)
    # One factor a call; the last entry is for nodes of no call (-1).
    factor = np.append(np.where(is_wanted, np.maximum(ratio, 1.0), 1.0), 1.0)
    return np.asarray(np.rint(graph.transfer / factor[graph.nodes.call]), np.int64)
