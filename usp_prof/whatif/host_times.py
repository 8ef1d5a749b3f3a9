"""Host times: comparison of each rank's host with its peers' hosts, and graphs with equal host times.

A host's own time is its think time before each call (pauses, data loading, late launches) plus the calls themselves.
Waits for the device or for other ranks do not count. Hosts of peers are compared step by step:
    1. Each host's step is cut into pieces that all peers have: one per launch if all launch the same work in the same
       order, otherwise one per communication, otherwise the entire step.
    2. The target of a piece is the median time of the peers. The medians of a step are scaled to add up to the median
       step, because occasional hiccups of the peers hit different pieces.
    3. Excess time of a piece is removed from its longest think times first, so pauses go before ordinary work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import first_of_run, last_of_run, numbered, rows_by_code
from usp_prof.model.errors import UsageError
from usp_prof.model.printable import first_few
from usp_prof.replay.graph import NEVER, EdgeKind, NodeKind
from usp_prof.replay.host_gaps import holds_thought, hosts_seen, posts, think_times, thinks
from usp_prof.replay.peers import peer_groups, share_of_excess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from usp_prof.columns.arrays import Flags, Floats, Ints
    from usp_prof.replay.graph import Graph
    from usp_prof.tables.table_set import TableSet

    Usual = Callable[[Floats, Ints], Floats]
    """Function from own times (one row per peer, one column per piece) and peer indexes to their target times."""


@dataclass(frozen=True, slots=True, eq=False)
class _HostStep:
    """One host's work in one step: its nodes in order, their own times, and the work that each starts."""

    rows: Ints
    own_ns: Ints
    label: Ints
    """Kind and axis of the work that the node starts; -1 if it starts nothing."""
    communicates: Flags
    """Whether the node starts communication."""


def with_usual_hosts(graph: Graph, tables: TableSet, ranks: Iterable[int], usual: Usual) -> Graph:
    """Return the graph with host times from `usual` for each piece of the given ranks' steps.

    Raises if the host of such a rank was not recorded, because its delays are then unknown.
    """
    _need_hosts(tables, ranks := tuple(ranks))
    hosts, own = _host_steps(graph, tables), own_times(graph)
    target = _usual_times(graph, tables, hosts, own, set(ranks), usual)
    return _with_usual_lead(_with_own_times(graph, own, target), tables, hosts, set(ranks))


def with_repaired_hosts(graph: Graph, tables: TableSet, ranks: Iterable[int]) -> Graph:
    """Return the graph with slower hosts of the given ranks made as fast as the median of their peers over all steps.

    Where a host needs less time than its peers, it is unchanged, and so are hosts that need less over all steps.
    """
    _need_hosts(tables, ranks := tuple(ranks))
    hosts, own = _host_steps(graph, tables), own_times(graph)
    target = _usual_times(graph, tables, hosts, own, set(ranks), of_others)
    for rank in ranks:
        rows = np.concatenate([step.rows for step in hosts.get(rank, {}).values()] or [np.zeros(0, np.int64)])
        excess_ns = (own[rows] - target[rows]).astype(float)
        target[rows] = np.rint(own[rows] - share_of_excess(excess_ns) * excess_ns).astype(np.int64)
    return _with_usual_lead(_with_own_times(graph, own, target), tables, hosts, set(ranks))


def _usual_times(
    graph: Graph, tables: TableSet, hosts: dict[int, dict[int, _HostStep]], own: Ints, wanted: set[int], usual: Usual
) -> Ints:
    """Return the own time of each node, with target times from `usual` for the hosts of the wanted ranks."""
    target = own.copy()
    for group in peer_groups(tables, graph):
        if wanted.isdisjoint(group):
            continue
        for host_step_of_rank in _compared(hosts, group):
            peers = list(host_step_of_rank.values())
            pieces = _pieces(peers)
            count = 1 + max(int(piece[-1]) for piece in pieces)
            # Time taken: one row per peer, one column per piece.
            took = np.array([np.bincount(piece, peer.own_ns, count) for peer, piece in zip(peers, pieces, strict=True)])
            places = np.flatnonzero([rank in wanted for rank in host_step_of_rank])
            for place, should_take in zip(places.tolist(), usual(took, places), strict=True):
                target[peers[place].rows] = _shared_out(peers[place].own_ns, pieces[place], should_take)
    return target


def _with_usual_lead(graph: Graph, tables: TableSet, hosts: dict[int, dict[int, _HostStep]], wanted: set[int]) -> Graph:
    """Return the graph with late hosts starting the recording when their median peer does.

    A host may already run ahead of its device when the recording starts. This lead is measured in the first step that
    all peers recorded: when the own time before the host's first node started. A device whose recording
    opens with this step is busy with earlier work until then, so it starts the step no earlier than its peers' devices.
    """
    think, earliest = think_times(graph), graph.earliest.copy()
    for group in peer_groups(tables, graph):
        present = [rank for rank in group if hosts.get(rank)]
        if len(present) < 2 or wanted.isdisjoint(present):
            continue
        common = set.intersection(*(set(hosts[rank]) for rank in present))
        if not common:
            continue
        first = {rank: hosts[rank][min(common)].rows[0] for rank in present}
        began = {rank: int(graph.nodes.start[row] - think[row]) for rank, row in first.items()}
        for rank in wanted.intersection(present):
            late_by = began[rank] - float(np.median([when for other, when in began.items() if other != rank]))
            opens = graph.nodes.of_rank(rank)
            opens = opens[graph.nodes.first_of_lane[opens] & thinks(graph)[opens] & (earliest[opens] > NEVER)]
            if late_by > 0:
                earliest[opens] -= round(late_by)
                _keep_busy(graph, earliest, rank, [other for other in present if other != rank], min(common))
    return graph.with_changes(earliest=earliest)


def _keep_busy(graph: Graph, earliest: Ints, rank: int, peers: list[int], step: int) -> None:
    """Let a rank's first recorded device work start no earlier than its median peer's first work of the step."""
    nodes = graph.nodes
    in_step = ~nodes.of_host & (nodes.step == step) & graph.measured
    begun = [nodes.start[rows].min() for peer in peers if len(rows := np.flatnonzero(in_step & (nodes.rank == peer)))]
    opens = np.flatnonzero(in_step & (nodes.rank == rank) & nodes.first_of_lane & (graph.earliest <= NEVER))
    if begun and len(opens):
        earliest[opens] = np.minimum(nodes.start[opens], round(float(np.median(begun))))


def without_hosts(tables: TableSet, ranks: Iterable[int]) -> list[int]:
    """Return the given ranks for which only device activity was recorded."""
    return [
        rank
        for rank in ranks
        if len(tables.columns("kernels", rank))
        and not len(tables.columns("launches", rank))
        and not len(tables.columns("ops", rank))
    ]


def _need_hosts(tables: TableSet, ranks: Iterable[int]) -> None:
    """Raise if only device activity was recorded for any of the ranks."""
    bare = without_hosts(tables, [rank for rank in ranks if rank in tables.ranks])
    if bare:
        raise UsageError(
            f"only device activity was recorded on rank {first_few(bare, 8, ', ...')}, so its host time is unknown",
            hint="record CPU activities too, or see the late ranks in `usp-prof analyze --section stragglers`",
        )


def of_others(totals: Floats, places: Ints) -> Floats:
    """Return for each of the peers at `places` the median of the other peers."""
    rests = [np.delete(totals, place, axis=0) for place in places.tolist()]
    return np.array([_adding_up(np.median(rest, axis=0), float(np.median(rest.sum(axis=1)))) for rest in rests])


def of_all(totals: Floats, places: Ints) -> Floats:
    """Return the lower median of all peers; with two peers, the one that pauses must not count."""
    middle = (len(totals) - 1) // 2
    usual = _adding_up(np.sort(totals, axis=0)[middle], float(np.sort(totals.sum(axis=1))[middle]))
    return np.broadcast_to(usual, (len(places), len(usual)))


def own_times(graph: Graph) -> Ints:
    """Return each node's own host time: think time before it plus the call itself; 0 for device work."""
    return graph.memo(
        "own host times",
        lambda: think_times(graph) + np.where(graph.nodes.kind == NodeKind.HOST, graph.duration, 0),
    )


def host_slowness(graph: Graph) -> dict[int, float]:
    """Return by rank its median time between launches divided by the median of the other ranks."""
    is_call = graph.nodes.kind == NodeKind.HOST
    median_ns = {}
    for rank in np.unique(graph.nodes.rank[is_call]).tolist():
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


def _with_own_times(graph: Graph, own: Ints, target: Ints) -> Graph:
    """Return the graph with other own times of hosts: the think time is changed first, then the call.

    think time 7, call 3 (own 10); target 2       think time 0, call 2
    """
    change = np.flatnonzero(target != own)
    if not len(change):
        return graph
    think = think_times(graph)
    wanted = think.copy()
    wanted[change] = np.maximum(think[change] + target[change] - own[change], 0)
    # The call is shortened only if no think time is left.
    duration = graph.duration.copy()
    duration[change] = np.minimum(duration[change], np.where(wanted[change] > 0, duration[change], target[change]))
    is_shorter, is_longer = wanted < think, wanted > think
    # Think time is in the lag of edges that end a wait, and in the gap after the previous node of the lane.
    edges, more = graph.edges, wanted - think
    holds, target_of_edge = holds_thought(edges), edges.target
    arrived = np.where(edges.at_end, graph.nodes.end[edges.source], graph.nodes.start[edges.source])
    binds = holds & (arrived + edges.lag == graph.nodes.start[target_of_edge])
    lag = np.where(holds & is_shorter[target_of_edge], np.minimum(edges.lag, wanted[target_of_edge]), edges.lag)
    lag = np.where(binds & is_longer[target_of_edge], lag + more[target_of_edge], lag)
    # Additional think time is added to the edge that bound the node, or to the gap if no edge did.
    is_bound = np.zeros(len(think), dtype=bool)
    is_bound[target_of_edge[binds]] = True
    gap = np.where(is_shorter, np.minimum(graph.gap, wanted), graph.gap)
    gap = np.where(is_longer & ~is_bound & ~graph.nodes.first_of_lane, gap + more, gap)
    return graph.with_changes(gap=gap, duration=duration, edges=replace(edges, lag=lag))


def _host_steps(graph: Graph, tables: TableSet) -> dict[int, dict[int, _HostStep]]:
    """Return the work of each host by rank and step; ranks whose host is not in the trace are left out."""
    own, label = own_times(graph), _labels(graph)
    communicates = label // (len(graph.axes) + 1) == NodeKind.COMMUNICATION
    # With a device, host calls count; on a CPU, compute and the communication it posts.
    counts = (thinks(graph) | posts(graph)) & graph.measured
    host_steps: dict[int, dict[int, _HostStep]] = {}
    for rank, is_seen in hosts_seen(graph, tables).items():
        rows = graph.nodes.of_rank(rank)
        rows = rows[counts[rows] & (graph.nodes.step[rows] >= 0)]
        if not is_seen or not len(rows):
            continue
        rows = rows[np.argsort(graph.nodes.start[rows], kind="stable")]
        steps, step = numbered(graph.nodes.step[rows])
        host_steps[rank] = {}
        for place, within in rows_by_code(step).items():
            in_step = rows[within]
            host_steps[rank][steps[place]] = _HostStep(in_step, own[in_step], label[in_step], communicates[in_step])
    return host_steps


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


def _compared(hosts: dict[int, dict[int, _HostStep]], group: tuple[int, ...]) -> Iterator[dict[int, _HostStep]]:
    """Yield for each step the work of the peers by rank; steps that only one of them has are left out."""
    present = [rank for rank in group if rank in hosts]
    for step in sorted({step for rank in present for step in hosts[rank]}):
        step_of_rank = {rank: hosts[rank][step] for rank in present if step in hosts[rank]}
        if len(step_of_rank) > 1:
            yield step_of_rank


def _pieces(steps: list[_HostStep]) -> list[Ints]:
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


def _adding_up(pieces: Floats, total: float) -> Floats:
    piece_sum = float(pieces.sum())
    return pieces * (total / piece_sum) if piece_sum > 0 else pieces


def _shared_out(own_ns: Ints, piece: Ints, should: Floats) -> Ints:
    """Return the target time of each node, given the target times of the pieces.

    A piece that takes too long has its peaks cut off at a common level. A piece that takes too little is stretched.

        nodes 5, 100, 5 should take 20      level 10: returns 5, 10, 5
        nodes 5, 15 should take 40          returns 10, 30
    """
    total = np.bincount(piece, own_ns, len(should))[piece]
    wanted = should[piece]
    # A piece without any time cannot be stretched: its longest node (the last of equal ones) gets all of it.
    stretched = np.where(total > 0, own_ns * (wanted / np.maximum(total, 1)), wanted * _is_longest(own_ns, piece))
    cut_off = np.minimum(own_ns, _levels(own_ns, piece, should)[piece])
    return np.rint(np.where(wanted < total, cut_off, stretched)).astype(np.int64)


def _is_longest(own_ns: Ints, piece: Ints) -> Flags:
    """Mark the longest node of each piece, or the last of equally long ones."""
    order = np.lexsort((own_ns, piece))
    is_longest = np.zeros(len(piece), bool)
    longest = order[last_of_run(piece[order])]
    is_longest[longest] = True
    return is_longest


def _levels(own_ns: Ints, piece: Ints, should: Floats) -> Floats:
    """Return the level of each piece at which cut-off nodes add up to its target time; 0 if nothing remains.

    With the nodes of a piece sorted from the shortest, the shorter nodes plus all others at the level add up to the
    target. Each node that reaches the level yields a bound, and the highest bound is the level.

        nodes 5, 5, 100 should take 20      bounds 20/3 (too high for 5), 15/2 (too high for 5), (20 - 10) / 1 = 10
    """
    order = np.lexsort((own_ns, piece))
    own, piece = own_ns[order], piece[order]
    first = np.flatnonzero(first_of_run(piece))
    count = np.diff(np.append(first, len(piece)))
    # By node: the sum of the shorter nodes of its piece, and the number of nodes that are at least as long.
    shorter = np.cumsum(own) - own
    shorter -= np.repeat(shorter[first], count)
    remaining = np.repeat(first + count, count) - np.arange(len(own))
    wanted = should[piece]
    reaches = shorter + remaining * own >= wanted
    level = np.zeros(len(should))
    np.maximum.at(level, piece[reaches], ((wanted - shorter) / remaining)[reaches])
    return level
