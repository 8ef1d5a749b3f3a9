"""Ideal edit: compute at its peers' mean, transfers and hosts at the median.

After the straggler study (OSDI'25). Peers are ranks of one pipeline stage in all steps and micro-batches; what they do
is compared op by op, so that a rank, a step or a micro-batch that takes longer is brought to the mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import group_codes
from usp_prof.model.errors import UsageError
from usp_prof.replay.graph import NodeKind
from usp_prof.replay.node_work import work_of
from usp_prof.replay.peers import peer_groups
from usp_prof.whatif.edits.kind import EditKind, Request
from usp_prof.whatif.fitted_times import network_of, on_axis
from usp_prof.whatif.host_times import of_all, with_usual_hosts

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.replay.graph import Graph

KINDS = ("F", "B", "I", "W")


def ideal(graph: Graph, request: Request) -> Graph:
    """Bring compute to its peers' mean, hosts and transfers to the median of theirs; keys: rank, stage, axis, kind."""
    edit = request.edit
    compute, talks = _chosen(graph, request)
    if not compute.any() and not talks.any():
        raise UsageError(
            f"edit {edit}: nothing in the run is meant by it", hint="ideal, or ideal,rank=3 or ideal,axis=dp"
        )
    duration = np.where(compute, _mean(graph, request), graph.duration)
    transfer = np.where(talks, _median(graph, request), graph.transfer)
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


def _mean(graph: Graph, request: Request) -> Ints:
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


def _median(graph: Graph, request: Request) -> Ints:
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


EDITS = (EditKind("ideal", "ideal,rank=3", ("rank", "stage", "axis", "kind"), ideal),)
