"""Host steps: what each rank's host did in a step, cut into pieces that can be compared with its peers'.

A host's own time is its think time before each call (pauses, data loading, late launches) plus the calls themselves.
Waits for the device or for other ranks do not count. Each host's step is cut into pieces that all peers have: one per
launch if all launch the same work in the same order, otherwise one per communication, otherwise the entire step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import distinct, numbered, rows_by_code
from usp_prof.replay.graph import EdgeKind, NodeKind
from usp_prof.replay.host_gaps import hosts_seen, posts, think_times, thinks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from usp_prof.columns.arrays import Flags, Floats, Ints
    from usp_prof.replay.graph import Graph
    from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True, eq=False)
class HostStep:
    """One host's work in one step: its nodes in order, their own times, and the work that each starts."""

    rows: Ints
    own_ns: Ints
    label: Ints
    """Kind and axis of the work that the node starts; -1 if it starts nothing."""
    communicates: Flags
    """Whether the node starts communication."""


@dataclass(frozen=True, slots=True, eq=False)
class PeerStep:
    """One step of several peers, cut into pieces that all of them have."""

    ranks: list[int]
    hosts: list[HostStep]
    pieces: list[Ints]
    """By rank: the piece of each of its nodes."""
    took_ns: Floats
    """Own time: one row per rank, one column per piece."""


def own_times(graph: Graph) -> Ints:
    """Return each node's own host time: think time before it plus the call itself; 0 for device work."""
    return graph.memo(
        "own host times",
        lambda: think_times(graph) + np.where(graph.nodes.kind == NodeKind.HOST, graph.duration, 0),
    )


def host_steps(graph: Graph, tables: TableSet) -> dict[int, dict[int, HostStep]]:
    """Return the work of each host by rank and step; ranks whose host is not in the trace are left out."""
    own, label = own_times(graph), _labels(graph)
    communicates = label // (len(graph.axes) + 1) == NodeKind.COMMUNICATION
    # With a device, host calls count; on a CPU, compute and the communication it posts.
    counts = (thinks(graph) | posts(graph)) & graph.measured
    steps_of_rank: dict[int, dict[int, HostStep]] = {}
    for rank, is_seen in hosts_seen(graph, tables).items():
        rows = graph.nodes.of_rank(rank)
        rows = rows[counts[rows] & (graph.nodes.step[rows] >= 0)]
        if not is_seen or not len(rows):
            continue
        rows = rows[np.argsort(graph.nodes.start[rows], kind="stable")]
        steps, step = numbered(graph.nodes.step[rows])
        steps_of_rank[rank] = {}
        for place, within in rows_by_code(step).items():
            in_step = rows[within]
            steps_of_rank[rank][steps[place]] = HostStep(in_step, own[in_step], label[in_step], communicates[in_step])
    return steps_of_rank


def _labels(graph: Graph) -> Ints:
    """Return a code for the kind and axis of the work that each node starts; -1 if it starts nothing."""
    nodes = graph.nodes
    code = nodes.kind * (len(graph.axes) + 1) + nodes.axis + 1
    label = np.where(nodes.of_host, -1, code)
    launch = np.flatnonzero(graph.edges.kind == EdgeKind.LAUNCH)[
        ::-1
    ]  # reversed, so that a call's first activity is written last
    label[graph.edges.source[launch]] = code[graph.edges.target[launch]]
    return np.asarray(label)


def peer_steps(hosts: dict[int, dict[int, HostStep]], group: tuple[int, ...]) -> Iterator[PeerStep]:
    """Yield the steps of the peers, cut into pieces; steps that only one of them has are left out."""
    present = [rank for rank in group if rank in hosts]
    for step in sorted({step for rank in present for step in hosts[rank]}):
        step_of_rank = {rank: hosts[rank][step] for rank in present if step in hosts[rank]}
        if len(step_of_rank) > 1:
            steps = list(step_of_rank.values())
            pieces = _pieces(steps)
            count = 1 + max(int(piece[-1]) for piece in pieces)
            took = [np.bincount(piece, host.own_ns, count) for host, piece in zip(steps, pieces, strict=True)]
            yield PeerStep(list(step_of_rank), steps, pieces, np.array(took))


def _pieces(steps: list[HostStep]) -> list[Ints]:
    """Return the piece number of each node, with the peers' steps cut at the same points, as finely as they agree.

    Example with launches of compute `c` and communication `x`, and calls that start nothing `.`:

        peer 0   . c . x . c      pieces 0 0 1 1 2 2      both launch c x c
        peer 1   c . x c          pieces 0 1 1 2
    """
    by_launch = [step.label >= 0 for step in steps]
    by_communication = [step.communicates for step in steps]
    for closes in (by_launch, by_communication):
        # By peer: the work that its closing nodes start, in order.
        started = [step.label[is_last] for step, is_last in zip(steps, closes, strict=True)]
        if all(np.array_equal(started[0], other) for other in started[1:]):
            return [_numbered_to(is_last) for is_last in closes]
    return [np.zeros(len(step.rows), np.int64) for step in steps]


def _numbered_to(closes: Flags) -> Ints:
    """Return the piece number of each node; a piece ends with a closing node, the last piece with the step."""
    return np.asarray(np.minimum(np.cumsum(closes) - closes, max(int(closes.sum()) - 1, 0)))


def host_slowness(graph: Graph) -> dict[int, float]:
    """Return by rank its median time between launches divided by the median of the other ranks."""
    is_call = graph.nodes.kind == NodeKind.HOST
    median_ns = {}
    for rank in distinct(graph.nodes.rank[is_call]).tolist():
        rows = graph.nodes.of_rank(rank)
        rows = rows[is_call[rows]]
        between_launches = np.maximum(graph.gap[rows], 0) + graph.duration[rows]
        if len(between_launches) > 1:
            median_ns[rank] = float(np.median(between_launches))
    slowness = {}
    for rank, own in median_ns.items():
        peers_ns = [time for peer, time in median_ns.items() if peer != rank]
        if peers_ns and np.median(peers_ns) > 0:
            slowness[rank] = own / float(np.median(peers_ns))
    return slowness


def without_hosts(tables: TableSet, ranks: Iterable[int]) -> list[int]:
    """Return the given ranks for which only device activity was recorded."""
    return [
        rank
        for rank in ranks
        if len(tables.columns("kernels", rank))
        and not len(tables.columns("launches", rank))
        and not len(tables.columns("ops", rank))
    ]
