"""Balance edits: members of a group do the same work (experts, parts of a sequence, lengths), or all peers do.

Between two calls of their group its members do work that should be alike. Where it is not, each gets the mean: what is
done stays the same in sum. Work of the whole recording is compared (`per=step`: of each step by itself), and only where
it differs by more than noise does. A pipeline's stages have different work; there micro-batches are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import first_rows, group_codes
from usp_prof.model.errors import UsageError
from usp_prof.model.topology import Axis
from usp_prof.replay.graph import NodeKind
from usp_prof.replay.node_work import work_of
from usp_prof.replay.peers import peer_groups
from usp_prof.whatif.edits.kind import EditKind, Request
from usp_prof.whatif.fitted_times import network_of, on_axis
from usp_prof.whatif.host_times import of_all, with_usual_hosts

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Flags, Floats, Ints
    from usp_prof.replay.graph import Graph


REPLICATED = (Axis.DP, Axis.DP_SHARD, Axis.DP_REPLICATE)
"""The axes whose ranks do the same with other data."""
UNEVEN = 1.05
"""Work between two calls differs when the most is so many times the mean: noise of short work is below that."""

UNEVEN_NOW = 1.02
"""The same where each step is looked at by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """One group's compute in one step: `work[member, piece]` in ns, pieces lying between the group's calls."""

    ranks: tuple[int, ...]
    step: int
    work: Floats
    rows: tuple[Ints, ...]
    """Each member's compute nodes, by begin."""
    piece: tuple[Ints, ...]
    """The piece of each of these nodes."""

    @property
    def ratio(self) -> float:
        """Work of the member with the most over the mean."""
        sums = self.work.sum(axis=1)
        return float(sums.max() / sums.mean()) if sums.any() else 1.0


def even_work(graph: Graph, request: Request) -> Graph:
    """Let the members of each group of an axis (the value) do equal work between its calls; keys: per (`per=step`).

    Of `pp`: let the micro-batches of a step do equal work in each stage, those of its replicas included.
    """
    if request.edit.value == Axis.PP:
        return _even_micro_batches(graph, request)
    axis, duration = request.edit.value, graph.duration.copy()
    if not axis:
        raise UsageError(f"edit {request.edit}: of which axis?", hint="even_work=cp, ep, dp or pp")
    found = shares(graph, axis)
    each_step = request.edit.place("per") == "step"
    least = UNEVEN_NOW if each_step else UNEVEN
    for same in _together(found, each_step=each_step):
        usual = np.median([each.work for each in same], axis=0)
        mean = usual.mean(axis=0)
        uneven = usual.max(axis=0) > least * mean
        factor = np.where(uneven & (usual > mean), mean / np.maximum(usual, 1), 1.0)
        more = np.where(uneven, np.maximum(mean - usual, 0), 0.0)  # added, since next to nothing cannot be scaled
        if request.cautious:
            factor, more = (1 + 9 * factor) / 10, more * 0.9
        for each in same:
            for place, (rows, piece) in enumerate(zip(each.rows, each.piece, strict=True)):
                duration[rows] = np.rint(graph.duration[rows] * factor[place][piece]).astype(np.int64)
                _add(duration, rows, piece, more[place])
    return graph.with_changes(duration=duration)


def _even_micro_batches(graph: Graph, request: Request) -> Graph:
    """Let each action take the mean of its kind, stage and step over all replicas, where they differ beyond noise."""
    work, nodes = work_of(request.tables), graph.nodes
    rows = np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & (nodes.step >= 0) & (work.micro_batch >= 0))
    if not len(rows):
        return graph
    replicas = _replicas(graph)[nodes.rank[rows]]
    alike = group_codes(replicas, work.stage[rows], work.kind[rows], nodes.step[rows])
    action = group_codes(alike, nodes.rank[rows], work.micro_batch[rows])
    taken = np.bincount(action, graph.duration[rows])
    alike_of_action = alike[first_rows(action)]
    mean = np.bincount(alike_of_action, taken) / np.bincount(alike_of_action)
    longest = np.zeros(len(mean))
    np.maximum.at(longest, alike_of_action, taken)
    uneven = (longest > UNEVEN_NOW * mean)[alike_of_action]
    factor = np.where(uneven, mean[alike_of_action] / np.maximum(taken, 1), 1.0)
    if request.cautious:
        factor = (1 + 9 * factor) / 10
    duration = graph.duration.copy()
    duration[rows] = np.rint(graph.duration[rows] * factor[action]).astype(np.int64)
    return graph.with_changes(duration=duration)


def _replicas(graph: Graph) -> Ints:
    """Give each rank (as index) the first rank of its data-parallel replicas; itself where it has none."""
    first = np.arange(int(graph.nodes.rank.max(initial=-1)) + 1)
    for axis in REPLICATED:
        parts = np.flatnonzero(graph.on_axis(axis) & (graph.nodes.call >= 0))
        for ranks in _homes(graph.nodes.rank[parts], graph.nodes.call[parts]):
            first[np.isin(first, first[list(ranks)])] = first[ranks[0]]
    return first


def shares(graph: Graph, axis: str) -> list[Shares]:
    """Give the work of each group of an axis and each step, where all members make as many calls."""
    parts = np.flatnonzero(graph.on_axis(axis) & (graph.nodes.call >= 0))
    if not len(parts):
        return []
    homes = _homes(graph.nodes.rank[parts], graph.nodes.call[parts])
    found = []
    for ranks in homes:
        mine = parts[np.isin(graph.nodes.rank[parts], ranks)]
        for step in np.unique(graph.nodes.step[mine]).tolist():
            if step >= 0:
                found += _of_step(graph, ranks, mine, step)
    return found


def _homes(rank: Ints, call: Ints) -> list[tuple[int, ...]]:
    """Give the sets of ranks that calls bring together, directly or through others (a ring's neighbours)."""
    home = {each: each for each in np.unique(rank).tolist()}
    order = np.argsort(call, kind="stable")
    same = call[order][1:] == call[order][:-1]
    pairs = np.unique(np.stack([rank[order][:-1][same], rank[order][1:][same]]), axis=1)
    for one, other in pairs.T.tolist():
        kept, gone = sorted((home[one], home[other]))
        home = {each: kept if own == gone else own for each, own in home.items()}
    sets: dict[int, list[int]] = {}
    for each, own in home.items():
        sets.setdefault(own, []).append(each)
    return [tuple(sorted(ranks)) for _, ranks in sorted(sets.items()) if len(ranks) > 1]


def _of_step(graph: Graph, ranks: tuple[int, ...], parts: Ints, step: int) -> list[Shares]:
    nodes = graph.nodes
    borders = [np.sort(nodes.start[parts[(nodes.rank[parts] == rank) & (nodes.step[parts] == step)]]) for rank in ranks]
    if len({len(border) for border in borders}) > 1:
        return []
    computes = np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & (nodes.step == step))
    computes = computes[np.argsort(nodes.start[computes], kind="stable")]
    rows = tuple(computes[nodes.rank[computes] == rank] for rank in ranks)
    piece = tuple(
        np.searchsorted(border, nodes.start[mine], side="right") for border, mine in zip(borders, rows, strict=True)
    )
    work = np.array(
        [np.bincount(place, graph.duration[mine], len(borders[0]) + 1) for place, mine in zip(piece, rows, strict=True)]
    )
    return [Shares(ranks, step, work, rows, piece)]


def _together(found: list[Shares], *, each_step: bool) -> list[list[Shares]]:
    """Gather the steps of a group that made as many calls; each by itself where they are not to be compared."""
    if each_step:
        return [[each] for each in found]
    same: dict[tuple[tuple[int, ...], int], list[Shares]] = {}
    for each in found:
        same.setdefault((each.ranks, each.work.shape[1]), []).append(each)
    return list(same.values())


def _add(duration: Ints, rows: Ints, piece: Ints, more: Floats) -> None:
    """Give a member more work in some pieces: the last compute of each takes longer; the next one where it has none."""
    wanted = np.flatnonzero(more)
    if len(rows):
        after = np.searchsorted(piece, wanted, side="right")
        inside = (after > 0) & (piece[np.maximum(after, 1) - 1] == wanted)
        node = np.where(inside, after - 1, np.minimum(after, len(rows) - 1))
        np.add.at(duration, rows[node], np.rint(more[wanted]).astype(np.int64))


EDITS = (EditKind("even_work", "even_work=ep", ("per",), even_work, modelled=True),)


# Ideal edit: compute at its peers' mean, transfers and hosts at the median, after the straggler study (OSDI'25).
#
# Peers are ranks of one pipeline stage in all steps and micro-batches; what they do is compared op by op, so that a
# rank, a step or a micro-batch that takes longer is brought to the mean.

KINDS = ("F", "B", "I", "W")


def ideal(graph: Graph, request: Request) -> Graph:
    """Bring compute to its peers' mean, hosts and transfers to the median of theirs; keys: rank, stage, axis, kind."""
    edit = request.edit
    compute, talks = _chosen(graph, request)
    if not compute.any() and not talks.any():
        raise UsageError(
            f"edit {edit}: nothing in the run is meant by it", hint="ideal, or ideal,rank=3 or ideal,axis=dp"
        )
    duration = np.where(compute, _mean_of_peers(graph, request), graph.duration)
    transfer = np.where(talks, _median_transfer(graph, request), graph.transfer)
    return with_usual_hosts(
        graph.with_changes(duration=duration, transfer=transfer), request.tables, _hosts(graph, request), of_all
    )


def _hosts(graph: Graph, request: Request) -> list[int]:
    """Give the ranks whose hosts the keys mean: all without keys, none for an axis or a kind of action."""
    edit, ranks = request.edit, request.tables.ranks
    if edit.place("axis") or edit.place("kind"):
        return []
    if edit.place("rank"):
        return [int(edit.number("rank"))]
    if edit.place("stage"):
        stage = graph.spread(work_of(request.tables).stage, missing=-1)
        there = set(graph.nodes.rank[stage == int(edit.number("stage"))].tolist())
        return sorted(there)
    return list(ranks)


def _chosen(graph: Graph, request: Request) -> tuple[Flags, Flags]:
    """Mark the compute and the transfers that the keys mean; all of both without keys."""
    edit, work = request.edit, work_of(request.tables)
    measured = graph.measured
    compute = (graph.nodes.kind == NodeKind.COMPUTE) & (graph.nodes.step >= 0) & measured
    talks = graph.tied & measured & (graph.nodes.kind == NodeKind.COMMUNICATION)
    stage, kind = (graph.spread(each, missing=-1) for each in (work.stage, work.kind))
    if edit.place("axis"):
        return np.zeros_like(compute), np.asarray(talks & on_axis(graph, request, edit.place("axis")))
    if not edit.places:
        return compute, np.asarray(talks)
    if edit.place("rank"):
        compute &= graph.nodes.rank == int(edit.number("rank"))
    if edit.place("stage"):
        compute &= stage == int(edit.number("stage"))
    if edit.place("kind"):
        if edit.place("kind") not in KINDS:
            raise UsageError(f"edit {edit}: kinds of actions are {', '.join(KINDS)}", hint="ideal,kind=B")
        compute &= kind == KINDS.index(edit.place("kind"))
    return compute, np.zeros_like(talks)


def _mean_of_peers(graph: Graph, request: Request) -> Ints:
    """Give compute as long as its peers take for the same op on average, over ranks, steps and micro-batches."""
    work, nodes = work_of(request.tables), graph.nodes
    peers = np.full(max(request.tables.ranks, default=0) + 1, -1, np.int64)  # a rank may have no nodes
    for place, ranks in enumerate(peer_groups(request.tables, graph)):
        peers[list(ranks)] = place
    stage, kind, shape, number = (
        graph.spread(each, missing=-1) for each in (work.stage, work.kind, work.shape, work.micro_batch)
    )
    same = group_codes(peers[nodes.rank], stage, kind, shape, nodes.name, nodes.kind)
    cell = group_codes(same, nodes.rank, nodes.step, number)
    own = np.bincount(cell, graph.duration)
    of_cell = np.zeros(len(own), np.int64)
    of_cell[cell] = same
    mean = np.bincount(of_cell, own) / np.maximum(np.bincount(of_cell), 1)
    factor = (mean[of_cell] / np.maximum(own, 1))[cell]
    return np.asarray(np.rint(graph.duration * factor), np.int64)


def _median_transfer(graph: Graph, request: Request) -> Ints:
    """Give transfers as long as those of their axis, operation and size take in the median."""
    found, tied = network_of(request.tables), graph.tied
    op = found.spread(graph, found.op_code.astype(np.float64), -1.0).astype(np.int64)
    size = found.spread(graph, found.bytes.astype(np.float64), -1.0).astype(np.int64)
    kind = group_codes(graph.nodes.axis, op, size)
    order = np.lexsort((graph.transfer, kind))
    order = order[tied[order]]
    if not len(order):
        return graph.transfer
    first = np.append(True, kind[order][1:] != kind[order][:-1])
    begin = np.flatnonzero(first)
    count = np.diff(np.append(begin, len(order)))
    middle = (graph.transfer[order[begin + (count - 1) // 2]] + graph.transfer[order[begin + count // 2]]) // 2
    median = np.zeros(int(kind.max()) + 1, np.int64)
    median[kind[order[begin]]] = middle
    return np.where(tied, median[kind], graph.transfer)


IDEAL_EDITS = (EditKind("ideal", "ideal,rank=3", ("rank", "stage", "axis", "kind"), ideal),)
