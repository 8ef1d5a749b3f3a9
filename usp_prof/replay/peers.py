"""Peers: ranks that do the same work and groups that move the same bytes, each compared with the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import first_rows, group_codes, lookup, numbered
from usp_prof.model.topology import Axis
from usp_prof.replay.graph import NodeKind
from usp_prof.tables import calls
from usp_prof.tables.parallelism.mesh import talking

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Ints
    from usp_prof.columns.table import Columns
    from usp_prof.replay.graph import Graph
    from usp_prof.tables.table_set import TableSet


ALIKE = 0.02
"""Ranks that do not communicate, and whose numbers of compute activities differ by less than this, are peers."""
MISSING, FEWEST_MISSING = 0.05, 2
"""Share and number of collectives that one of two peers may lack: recordings begin and end at different moments."""


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
    slowness_of_rank = {}
    for group in peer_groups(tables, graph):
        for rank in group:
            others = tuple(other for other in group if other != rank)
            if others and compute[rank]:
                usual = float(np.median([compute[other] for other in others]))
                slowness_of_rank[rank] = Slowness(rank, others, compute[rank], usual)
    return slowness_of_rank


def slowness_by_step(slow: Slowness, graph: Graph) -> dict[int, float]:
    """Give in each step how many times as long a rank's compute takes as its peers' in that step in the median."""
    of_peers = [compute_by_step(graph, rank) for rank in slow.peers]
    ratio = {}
    for step, own_ns in compute_by_step(graph, slow.rank).items():
        peers_ns = [by_step[step] for by_step in of_peers if step in by_step]
        if peers_ns and np.median(peers_ns) > 0:
            ratio[step] = own_ns / float(np.median(peers_ns))
    return ratio


def peer_groups(tables: TableSet, graph: Graph) -> list[tuple[int, ...]]:
    """Group the ranks that have the same role: one pipeline stage in the mesh or, without one, the same collectives."""
    places = tables.manifest.coordinates if tables.manifest else {}
    if all(str(rank) in places for rank in tables.ranks):
        stages: dict[int, list[int]] = {}
        for rank in tables.ranks:
            stages.setdefault(places[str(rank)].get("pp", 0), []).append(rank)
        return [tuple(ranks) for _, ranks in sorted(stages.items())]
    return tables.memo("peer groups", lambda: _same_collectives(tables, graph))


def _same_collectives(tables: TableSet, graph: Graph) -> list[tuple[int, ...]]:
    """Group the ranks that run the same collectives equally often, and are not stages of one pipeline.

    How many kernels a rank runs is no criterion: libraries choose them by input. Where no rank communicates, it has to
    be: a group goes on while ranks run nearly as many as its first.
    """
    parts = {rank: tables.columns("collectives", rank) for rank in tables.ranks}
    calls_of_rank = {rank: _collectives(rank, own) for rank, own in parts.items()}
    if not any(calls_of_rank.values()):
        return _same_number_of_kernels(tables, graph)
    # Ranks that send to one another, but for a ring of context parallelism, are stages of one pipeline.
    transfers = {rank: own.take(~own.matches("axis", Axis.CP)) for rank, own in parts.items()}
    pipeline = {rank: place for place, ranks in enumerate(talking(transfers)) for rank in ranks}
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


def _collectives(rank: int, parts: Columns) -> Counter[str]:
    """Count a rank's collectives within steps by operation, axis and, of transfers, direction; sizes depend on data."""
    inside = parts.take(np.flatnonzero(parts["step"] >= 0))
    (op, ops), (axis, axes) = inside.codes("op"), inside.codes("axis")
    # In a pipeline it matters where a transfer goes; a ring has no ends.
    is_directed = (inside["peer"] >= 0) & ~inside.matches("axis", Axis.CP)
    ahead = np.where(is_directed, np.sign(inside["peer"] - rank), 0)
    kind = group_codes(op, axis, ahead)
    rows = first_rows(kind).tolist() if len(kind) else []
    counts = np.bincount(kind).tolist() if len(kind) else []
    return Counter(
        {f"{ops[op[row]]} {axes[axis[row]]} {ahead[row]}": count for row, count in zip(rows, counts, strict=True)}
    )


def _alike(one: Counter[str], other: Counter[str]) -> bool:
    """Return whether two ranks run the same collectives, but for a few that one recording lacks."""
    missing = (one - other).total() + (other - one).total()
    return missing <= max(FEWEST_MISSING, MISSING * max(one.total(), other.total()))


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
    """Give the median over steps of a rank's compute, in ns."""
    times = compute_by_step(graph, rank)
    return float(np.median(list(times.values()))) if times else 0.0


def compute_by_step(graph: Graph, rank: int) -> dict[int, int]:
    """Give a rank's compute in each step, in ns."""
    rows = graph.nodes.of_rank(rank)
    rows = rows[(graph.nodes.kind[rows] == NodeKind.COMPUTE) & (graph.nodes.step[rows] >= 0)]
    if not len(rows):
        return {}
    steps, place = numbered(graph.nodes.step[rows])
    sums: Ints = np.bincount(place, weights=graph.duration[rows]).astype(np.int64)
    return dict(zip(steps.tolist(), sums.tolist(), strict=True))


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
    matched = calls.of(tables)
    return matched.columns().take(np.flatnonzero(matched.parts.of_each_call() > 1))


def ratios(tables: TableSet) -> tuple[Columns, Ints, np.ndarray]:
    """Give the calls, the code of each call's group, and how its kind compares with that of other groups (1: alike).

    Of each kind of call (axis, operation, bytes) the median transfer of a group is set beside the median of the other
    groups' medians.
    """
    rows = calls_of(tables)
    ratio = np.ones(len(rows))
    if not len(rows):
        return rows, np.zeros(0, np.int64), ratio
    group, transfer_ns = rows.codes("group")[0], rows["transfer_ns"]
    kind = group_codes(rows.codes("axis")[0], rows.codes("op")[0], rows["bytes"], rows.codes("matched_by")[0])
    is_timed = (transfer_ns > 0) & ~rows.matches("matched_by", "p2p")
    for code in np.unique(kind[is_timed]).tolist():
        of_kind = is_timed & (kind == code)
        groups = np.unique(group[of_kind])
        if len(groups) < 2:
            continue
        medians = np.array([np.median(transfer_ns[of_kind & (group == one)]) for one in groups])
        for one, median in zip(groups.tolist(), medians.tolist(), strict=True):
            others = float(np.median(medians[groups != one]))
            ratio[of_kind & (group == one)] = median / others if others else 1.0
    return rows, group, ratio


def link_slowness(tables: TableSet) -> list[LinkSlowness]:
    """List the groups whose transfers take longer than other groups', by name."""
    rows, group, ratio = ratios(tables)
    texts = rows.codes("group")[1] if len(rows) else []
    links = []
    for code in np.unique(group[ratio != 1]).tolist():
        calls_of_group = np.flatnonzero((group == code) & (ratio != 1))
        transfer_ns, slower = rows["transfer_ns"][calls_of_group], ratio[calls_of_group]
        axis = str(rows["axis"][calls_of_group[0]])
        mean_ratio = float(np.average(slower, weights=transfer_ns))
        extra_ns = transfer_ns * (1 - 1 / slower)
        links.append(LinkSlowness(texts[code], axis, mean_ratio, len(calls_of_group), int(extra_ns.sum())))
    return sorted(links, key=lambda link: (-link.extra_ns, link.group))


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
