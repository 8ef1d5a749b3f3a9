"""Balance edits: equal work for the members of a group (experts, parts of a sequence, lengths), or for all peers.

Between two calls of a group, its members should do equal work. If they do not, each gets the mean, so the total stays
the same. The work of the entire recording is compared (with `per=step`, of each step separately), and only differences
beyond noise are evened out. Pipeline stages have different work, so micro-batches are compared instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.rows import first_rows, group_codes, lowest_reached, middles, rows_by_code, sorted_by
from usp_prof.model.errors import UsageError
from usp_prof.model.topology import DATA_AXES, Axis
from usp_prof.replay.graph import Graph, NodeKind
from usp_prof.replay.node_work import work_of
from usp_prof.replay.peers import peer_groups
from usp_prof.whatif.edits.kind import EditKind, Request
from usp_prof.whatif.edits.where import on_axis
from usp_prof.whatif.fitted_times import network_of
from usp_prof.whatif.host_times import with_equal_hosts

UNEVEN = 1.05
"""Work between two calls is uneven if the maximum exceeds the mean by this factor; noise of short work is lower."""

UNEVEN_NOW = 1.02
"""The same factor if each step is compared separately."""


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """One group's compute in one step, cut into pieces by the group's calls."""

    ranks: tuple[int, ...]
    work: Floats
    """Time in ns, members by pieces."""
    rows: tuple[Ints, ...]
    """Each member's compute nodes, sorted by start."""
    piece: tuple[Ints, ...]
    """The piece of each of these nodes."""


def even_work(graph: Graph, request: Request) -> Graph:
    """Share work evenly among the ranks of each group of an axis; keys: per (`per=step`).

    The value is the axis. Work is evened out between the group's calls. `pp` evens out the micro-batches of a step in
    each stage, over all replicas.
    """
    axis = request.edit.value
    if axis == Axis.PP:
        return _even_micro_batches(graph, request)
    if not axis:
        raise UsageError(f"edit {request.edit}: an axis is missing", hint="even_work=cp, ep, dp or pp")
    is_by_step = request.edit.place("per") == "step"
    least = UNEVEN_NOW if is_by_step else UNEVEN
    duration = graph.duration.copy()
    for steps in _compared_steps(shares(graph, axis), is_by_step=is_by_step):
        # Members by pieces: time of each in the median step, and the target for all of them.
        usual = np.median([step.work for step in steps], axis=0)
        mean = usual.mean(axis=0)
        is_uneven = usual.max(axis=0) > least * mean
        factor = np.where(is_uneven & (usual > mean), mean / np.maximum(usual, 1), 1.0)
        added = np.where(is_uneven, np.maximum(mean - usual, 0), 0.0)  # almost no work cannot be scaled
        if request.cautious:
            factor, added = (1 + 9 * factor) / 10, added * 0.9
        for step in steps:
            for member, (rows, piece) in enumerate(zip(step.rows, step.piece, strict=True)):
                duration[rows] = np.rint(graph.duration[rows] * factor[member][piece]).astype(np.int64)
                _add(duration, rows, piece, added[member])
    return graph.with_changes(duration=duration)


def _compared_steps(all_steps: list[Shares], *, is_by_step: bool) -> list[list[Shares]]:
    """Return the steps grouped by number of calls, or each step separately if `is_by_step`."""
    if is_by_step:
        return [[step] for step in all_steps]
    steps: dict[tuple[tuple[int, ...], int], list[Shares]] = {}
    for step in all_steps:
        steps.setdefault((step.ranks, step.work.shape[1]), []).append(step)
    return list(steps.values())


def _even_micro_batches(graph: Graph, request: Request) -> Graph:
    """Return the graph with uneven actions at the mean of their kind, stage and step over all replicas."""
    work, nodes = work_of(request.tables), graph.nodes
    rows = np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & (nodes.step >= 0) & (work.micro_batch >= 0))
    if not len(rows):
        return graph
    is_replicated = np.any([graph.on_axis(axis) for axis in DATA_AXES], axis=0)
    pipeline = _first_connected(graph, np.flatnonzero(is_replicated & (nodes.call >= 0)))[nodes.rank[rows]]
    # Actions that should take the same time: same kind, stage and step in any replica and micro-batch.
    peer_group = group_codes(pipeline, work.stage[rows], work.kind[rows], nodes.step[rows])
    action = group_codes(peer_group, nodes.rank[rows], work.micro_batch[rows])
    compute_ns = np.bincount(action, graph.duration[rows])
    peer_group_of_action = peer_group[first_rows(action)]
    mean = np.bincount(peer_group_of_action, compute_ns) / np.bincount(peer_group_of_action)
    longest = np.zeros(len(mean))
    np.maximum.at(longest, peer_group_of_action, compute_ns)
    is_uneven = (longest > UNEVEN_NOW * mean)[peer_group_of_action]
    factor = np.where(is_uneven, mean[peer_group_of_action] / np.maximum(compute_ns, 1), 1.0)
    if request.cautious:
        factor = (1 + 9 * factor) / 10
    duration = graph.duration.copy()
    duration[rows] = np.rint(graph.duration[rows] * factor[action]).astype(np.int64)
    return graph.with_changes(duration=duration)


def shares(graph: Graph, axis: str) -> list[Shares]:
    """Return the work of each group of an axis in each step, if all members make the same number of calls; memoized."""
    return graph.memo(("shares of work", str(axis)), lambda: _shares(graph, axis))


def _shares(graph: Graph, axis: str) -> list[Shares]:
    parts = np.flatnonzero(graph.on_axis(axis) & (graph.nodes.call >= 0))
    of_steps: list[Shares] = []
    computes = _compute_of_steps(graph) if len(parts) else {}
    for members in rows_by_code(_first_connected(graph, parts)).values():
        if len(members) < 2:
            continue
        calls = parts[np.isin(graph.nodes.rank[parts], members)]
        for step in np.unique(graph.nodes.step[calls]).tolist():
            if step >= 0:
                of_steps += _of_step(graph, tuple(members.tolist()), calls[graph.nodes.step[calls] == step], computes)
    return of_steps


def _compute_of_steps(graph: Graph) -> dict[int, Ints]:
    """Return the compute nodes of each rank and step, sorted by start; see `_cell` for the keys."""
    nodes = graph.nodes
    rows = sorted_by(nodes.start, np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & (nodes.step >= 0)))
    return {
        cell: rows[places] for cell, places in rows_by_code(_cell(graph, nodes.rank[rows], nodes.step[rows])).items()
    }


def _cell(graph: Graph, rank: Ints, step: Ints) -> Ints:
    """Return one number per rank and step."""
    return rank * (int(graph.nodes.step.max(initial=0)) + 1) + step


def _first_connected(graph: Graph, parts: Ints) -> Ints:
    """Return for each rank the first rank that calls connect it with, directly or through others (a ring).

    Calls of ranks 0 and 2, and of 2 and 3, return 0, 1, 0, 0: rank 1 is not connected.
    """
    order = np.argsort(graph.nodes.call[parts], kind="stable")
    call, rank = graph.nodes.call[parts][order], graph.nodes.rank[parts][order]
    same_call = call[1:] == call[:-1]
    ranks = np.arange(int(graph.nodes.rank.max(initial=-1)) + 1)
    return lowest_reached(rank[:-1][same_call], rank[1:][same_call], ranks)


def _of_step(graph: Graph, ranks: tuple[int, ...], calls: Ints, computes: Mapping[int, Ints]) -> list[Shares]:
    """Return the work of a group between its calls of one step; none if its members make different numbers of calls."""
    nodes = graph.nodes
    start, rank_of_call = nodes.start[calls], nodes.rank[calls]
    borders = [np.sort(start[rank_of_call == rank]) for rank in ranks]
    if len({len(border) for border in borders}) > 1:
        return []
    pieces = len(borders[0]) + 1
    rows, piece, work = [], [], []
    for cell, border in zip(_cell(graph, np.array(ranks), nodes.step[calls[:1]]).tolist(), borders, strict=True):
        of_rank = computes.get(cell, calls[:0])
        rows.append(of_rank)
        piece.append(np.searchsorted(border, nodes.start[of_rank], side="right"))
        work.append(np.bincount(piece[-1], graph.duration[of_rank], pieces))
    return [Shares(ranks, np.array(work), tuple(rows), tuple(piece))]


def _add(duration: Ints, rows: Ints, piece: Ints, added: Floats) -> None:
    """Add work to pieces in `duration`: to the last compute of each piece, or to the next one if it has none."""
    wanted = np.flatnonzero(added)  # pieces
    if len(rows):
        after = np.searchsorted(piece, wanted, side="right")
        inside = (after > 0) & (piece[np.maximum(after, 1) - 1] == wanted)
        node = np.where(inside, after - 1, np.minimum(after, len(rows) - 1))
        np.add.at(duration, rows[node], np.rint(added[wanted]).astype(np.int64))


EDITS = (EditKind("even_work", "even_work=ep", ("per",), even_work, modelled=True),)


# Ideal edit: compute at its peers' mean, transfers and hosts at the median, as in the straggler study (OSDI'25).
#
# Peers are ranks of one pipeline stage in all steps and micro-batches. Their work is compared op by op, so slower
# ranks, steps and micro-batches are reduced to the mean.

KINDS = ("F", "B", "I", "W")


def ideal(graph: Graph, request: Request) -> Graph:
    """Make ranks perform like their peers: mean compute, median hosts and transfers; keys: rank, stage, axis, kind."""
    edit = request.edit
    compute, transfers = _chosen(graph, request)
    if not compute.any() and not transfers.any():
        raise UsageError(f"edit {edit}: it matches nothing in the run", hint="ideal, or ideal,rank=3 or ideal,axis=dp")
    duration = np.where(compute, _mean_of_peers(graph, request), graph.duration)
    transfer = np.where(transfers, _median_transfer(graph, request), graph.transfer)
    changed = graph.with_changes(duration=duration, transfer=transfer)
    return with_equal_hosts(changed, request.tables, _hosts(graph, request))


def _hosts(graph: Graph, request: Request) -> list[int]:
    """Return the ranks whose hosts the keys select: all without keys, none for an axis or a kind of action."""
    edit, ranks = request.edit, request.tables.ranks
    if edit.place("axis") or edit.place("kind"):
        return []
    if edit.place("rank"):
        return [int(edit.number("rank"))]
    if edit.place("stage"):
        stage = graph.spread(work_of(request.tables).stage, missing=-1)
        ranks_of_stage = set(graph.nodes.rank[stage == int(edit.number("stage"))].tolist())
        return sorted(ranks_of_stage)
    return list(ranks)


def _chosen(graph: Graph, request: Request) -> tuple[Flags, Flags]:
    """Mark the compute and transfers selected by the keys; all of both without keys."""
    edit, work = request.edit, work_of(request.tables)
    measured = graph.measured
    compute = (graph.nodes.kind == NodeKind.COMPUTE) & (graph.nodes.step >= 0) & measured
    transfers = graph.tied & measured & (graph.nodes.kind == NodeKind.COMMUNICATION)
    stage, kind = (graph.spread(of_work, missing=-1) for of_work in (work.stage, work.kind))
    if edit.place("axis"):
        return np.zeros_like(compute), np.asarray(transfers & on_axis(graph, request, edit.place("axis")))
    if not edit.places:
        return compute, np.asarray(transfers)
    if edit.place("rank"):
        compute &= graph.nodes.rank == int(edit.number("rank"))
    if edit.place("stage"):
        compute &= stage == int(edit.number("stage"))
    if edit.place("kind"):
        if edit.place("kind") not in KINDS:
            raise UsageError(f"edit {edit}: kinds of actions are {', '.join(KINDS)}", hint="ideal,kind=B")
        compute &= kind == KINDS.index(edit.place("kind"))
    return compute, np.zeros_like(transfers)


def _mean_of_peers(graph: Graph, request: Request) -> Ints:
    """Return durations with compute at the mean of its peers for the same op, over ranks, steps and micro-batches."""
    work, nodes = work_of(request.tables), graph.nodes
    peers = np.full(max(request.tables.ranks, default=0) + 1, -1, np.int64)  # a rank may have no nodes
    for place, ranks in enumerate(peer_groups(request.tables, graph)):
        peers[list(ranks)] = place
    rows = np.flatnonzero(nodes.kind == NodeKind.COMPUTE)
    stage, kind, shape, micro_batch = (
        graph.spread(of_work, missing=-1)[rows] for of_work in (work.stage, work.kind, work.shape, work.micro_batch)
    )
    rank, measured_ns = nodes.rank[rows], graph.duration[rows]
    # An op of one stage, kind of action and shape; a run of it is its work on one rank in one micro-batch.
    op = group_codes(peers[rank], stage, kind, shape, nodes.name[rows])
    run = group_codes(op, rank, nodes.step[rows], micro_batch)
    run_ns = np.bincount(run, measured_ns)
    op_of_run = np.zeros(len(run_ns), np.int64)
    op_of_run[run] = op
    mean_ns = np.bincount(op_of_run, run_ns) / np.maximum(np.bincount(op_of_run), 1)
    factor = mean_ns[op_of_run] / np.maximum(run_ns, 1)
    duration = graph.duration.copy()
    duration[rows] = np.rint(measured_ns * factor[run])
    return duration


def _median_transfer(graph: Graph, request: Request) -> Ints:
    """Return transfers at the median of their axis, operation and size."""
    network, rows = network_of(request.tables), np.flatnonzero(graph.tied)
    if not len(rows):
        return graph.transfer
    op = network.spread(graph, network.op_code.astype(np.float64), -1.0)[rows].astype(np.int64)
    size = network.spread(graph, network.bytes.astype(np.float64), -1.0)[rows].astype(np.int64)
    kind, transfer_ns = group_codes(graph.nodes.axis[rows], op, size), graph.transfer[rows]
    lower, upper = middles(kind, transfer_ns)
    transfer = graph.transfer.copy()
    transfer[rows] = ((lower + upper) // 2)[kind]
    return transfer


IDEAL_EDITS = (EditKind("ideal", "ideal,rank=3", ("rank", "stage", "axis", "kind"), ideal),)
