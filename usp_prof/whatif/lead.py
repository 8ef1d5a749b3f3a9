"""Lead: how far a rank is ahead or late when the recording starts, and how a repair changes this.

A host may already run ahead of its device then. A rank that was late before starts its recording late, and its peers
wait for it in collectives of which its own part was not recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import distinct, group_codes, rows_by_code
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import LEFT_BY_CLOCKS_NS, NEVER, EdgeKind, Graph, NodeKind, Nodes
from usp_prof.replay.host_gaps import think_times, thinks
from usp_prof.replay.insertion import with_edges
from usp_prof.replay.peers import calls_of, peer_groups
from usp_prof.replay.step_times import StepTimes, share_saved, step_times, timeline_of, unedited
from usp_prof.replay.unexplained import shortened_before, unexplained_delays
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.host_steps import own_times
from usp_prof.whatif.peer_steps import HostSteps

NOTABLE_WAIT = 0.01
"""Waits from this share of the step on are included in errors; less hardly exceeds the minimum error."""


def with_usual_lead(graph: Graph, tables: TableSet, hosts: HostSteps, wanted: set[int]) -> Graph:
    """Return the graph with late hosts starting the recording when their median peer does.

    The device is busy with earlier work until then, so it starts the step no earlier than that of its median peer. Work
    that was launched before the recording is late as well.
    """
    earliest, transfer = graph.earliest.copy(), graph.transfer.copy()
    in_queue = np.zeros(len(graph.nodes), np.int64)
    opening: list[tuple[int, int]] = []
    for rank, peers, step, late_by in _late_hosts(graph, tables, hosts, wanted):
        opens = graph.nodes.of_rank(rank)
        opens = opens[graph.nodes.first_of_lane[opens] & thinks(graph)[opens] & (earliest[opens] > NEVER)]
        earliest[opens] -= late_by
        _shorten_waits(graph, tables, transfer, rank, late_by)
        in_queue = np.maximum(in_queue, _waits_in_queue(graph, tables, rank, late_by))
        # Peers that no longer wait for other repaired ranks start earlier, too.
        saved_ns = np.bincount(graph.nodes.rank, graph.transfer - transfer, max(tables.ranks) + 1)
        np.maximum.at(saved_ns, graph.nodes.rank, np.bincount(graph.nodes.lane, in_queue)[graph.nodes.lane])
        _move_device(graph, earliest, rank, {peer: saved_ns[peer] for peer in peers}, step, late_by)
        opening += _openings(graph, rank, peers, step)
    earliest -= np.where(graph.nodes.first_of_lane, in_queue, 0)
    edges = graph.edges
    if opening:
        source, target = np.array(opening, np.int64).T
        edges = with_edges(edges, source, target, at_end=np.zeros(len(source), bool), kind=EdgeKind.BOUNDARY)
    return shortened_before(graph.with_changes(earliest=earliest, transfer=transfer, edges=edges), in_queue)


def _late_hosts(
    graph: Graph, tables: TableSet, hosts: HostSteps, wanted: set[int]
) -> Iterator[tuple[int, list[int], int, int]]:
    """Yield the ranks whose host is late when the recording starts, their peers, the compared step and the lateness.

    Hosts are compared in the first step that all peers recorded, by when the own time before their first node started.
    """
    think = think_times(graph)
    for group in peer_groups(tables, graph):
        present = [rank for rank in group if hosts.get(rank)]
        common_steps = set.intersection(*(set(hosts[rank]) for rank in present)) if present else set()
        if len(present) < 2 or not common_steps:
            continue
        step = min(common_steps)
        first_node = {rank: hosts[rank][step].rows[0] for rank in present}
        started_at = {rank: int(graph.nodes.start[node] - think[node]) for rank, node in first_node.items()}
        for rank in wanted.intersection(present):
            peers = [other for other in present if other != rank]
            late_by = round(started_at[rank] - float(np.median([started_at[peer] for peer in peers])))
            if late_by > 0:
                yield rank, peers, step, late_by


def _openings(graph: Graph, rank: int, peers: Iterable[int], step: int) -> list[tuple[int, int]]:
    """Return the first device work of the median peer in a step with that of the rank, unless the rank's was first."""
    nodes = graph.nodes
    in_step = ~nodes.of_host & graph.measured & (nodes.step == step)
    rows_of_peers = [_rows(in_step, nodes, peer) for peer in peers]
    firsts = [rows[np.argmin(nodes.start[rows])] for rows in rows_of_peers if len(rows)]
    rows = _rows(in_step, nodes, rank)
    if not firsts or not len(rows):
        return []
    median_peer = sorted(firsts, key=lambda row: nodes.start[row])[(len(firsts) - 1) // 2]
    first = rows[np.argmin(nodes.start[rows])]
    was_first = nodes.start[first] < nodes.start[median_peer] - LEFT_BY_CLOCKS_NS
    return [] if was_first else [(int(median_peer), int(first))]


def gain_after_first_step(graph: Graph, tables: TableSet, gain: float) -> float:
    """Return the gain of an edited graph without the first step, if the step's start moved and it got longer on a rank.

    No repair makes a step longer. If it seems to, some ranks start the step too early. Otherwise return the `gain`.
    """
    if np.array_equal(graph.earliest, graph_of(tables).earliest):
        return gain
    times = step_times(tables, graph, timeline_of(tables, graph))
    is_first = times.step == min(times.step.tolist(), default=0)
    got_longer = times.replayed_ns > (1 + NOTABLE_WAIT) * times.measured_ns
    later = ~is_first & times.is_complete
    if not later.any() or not (is_first & got_longer).any():
        return gain
    return share_saved(float(times.measured_ns[later].sum()), float(times.replayed_ns[later].sum()))


def gain_without_lead(graph: Graph, tables: TableSet, replayed_ns: float) -> float:
    """Return the gain of an edited graph if no host were ahead of its device when the recording starts.

    A host that waits for a late rank runs ahead. Without the late rank, its device catches up in a few steps, which are
    shorter than all later ones: in the long run, a step takes at least as long as its host's own time.
    """
    before = unedited(tables)
    recorded_ns = before.mean_measured_ns
    recorded_host_ns = tables.memo("recorded host time per step", lambda: _host_ns(graph_of(tables), before))
    host_ns = _host_ns(graph, before) * min(1.0, recorded_ns / max(recorded_host_ns, 1.0))
    return share_saved(recorded_ns, max(replayed_ns, min(host_ns, recorded_ns)))


def _host_ns(graph: Graph, times: StepTimes) -> float:
    """Return the largest mean time of its own that a rank's host needs for a step."""
    nodes = graph.nodes
    steps = distinct(times.step[times.is_complete])
    rows = np.flatnonzero(nodes.of_host & np.isin(nodes.step, steps))
    own_ns = np.bincount(nodes.rank[rows], own_times(graph)[rows], minlength=1)
    return float(own_ns.max(initial=0.0)) / max(len(steps), 1)


def without_waits_in_queue(graph: Graph, tables: TableSet, ranks: Iterable[int], step_ns: float) -> Graph | None:
    """Return the graph, edited or not, in which nothing waits in a queue for one of these ranks or its own slow work.

    `None` if no such wait is a notable part of the step.
    """
    # Waits last until a rank communicates, so those for the last rank to communicate include the waits for all others.
    last = max(ranks, key=lambda rank: _first_communication(graph, rank), default=None)
    if last is None:
        return None
    waits = np.maximum(_waits_in_queue(graph, tables, last, include_own=True), 0)
    if waits.max(initial=0) < NOTABLE_WAIT * step_ns:
        return None
    opens = graph.nodes.first_of_lane & (waits > 0)
    earliest = np.where(opens, np.minimum(graph.earliest, graph.nodes.start - waits), graph.earliest)
    return shortened_before(graph.with_changes(earliest=earliest), waits)


def _waits_in_queue(
    graph: Graph, tables: TableSet, rank: int, late_by: int = np.iinfo(np.int64).max, *, include_own: bool = False
) -> Ints:
    """Return by node how long other ranks' streams waited for a rank before it communicates, at most its lateness.

    Work that was launched before the recording cannot wait for its launch. If the graph does not explain when it
    starts, it waited for communication of which no part was recorded; at first, since the rank's first recorded work.
    """
    nodes, edges, waits = graph.nodes, graph.edges, np.zeros(len(graph.nodes), np.int64)
    of_device = ~nodes.of_host & graph.measured
    # Device work that was launched before the recording, until the rank communicates.
    is_queued = of_device & nodes.of_ranks_with(nodes.of_host) & (include_own | (nodes.rank != rank))
    is_queued &= nodes.start <= _first_communication(graph, rank)
    is_queued[edges.target[edges.kind == EdgeKind.LAUNCH]] = False
    queued = np.flatnonzero(is_queued)
    # How long each piece waited. The first piece of a stream waited since its rank's first recorded work.
    unexplained = graph.spread(unexplained_delays(tables), missing=0)[queued]
    began = np.full(max(tables.ranks) + 1, np.iinfo(np.int64).max)
    np.minimum.at(began, nodes.rank[of_device], nodes.start[of_device])
    opens = nodes.first_of_lane[queued] & (graph.earliest[queued] > NEVER)
    unexplained = np.where(opens, nodes.start[queued] - began[nodes.rank[queued]], unexplained)
    # On each stream, the first waits count until they add up to the lateness.
    for of_lane in rows_by_code(nodes.lane[queued]).values():
        waited = np.minimum(np.cumsum(unexplained[of_lane]), late_by)
        waits[queued[of_lane]] = np.diff(waited, prepend=0)
    return waits


def _first_communication(graph: Graph, rank: int) -> int:
    """Return when a rank first communicates; the largest number if it never does."""
    rows = graph.nodes.of_rank(rank)
    talks = rows[(graph.nodes.kind[rows] == NodeKind.COMMUNICATION) & graph.measured[rows]]
    return int(graph.nodes.start[talks].min(initial=np.iinfo(np.int64).max))


def _move_device(
    graph: Graph, earliest: Ints, rank: int, saved_ns: Mapping[int, float], step: int, late_by: int
) -> None:
    """Let a rank's recorded device work start with its median peer's, if its host does.

    Work that was launched before the recording moves by as much as the device is late, at most by as much as the host.
    Other streams start no earlier than the median peer's first work of the step. `saved_ns` is how much earlier each
    peer starts because it no longer waits for this rank.
    """
    nodes, of_device = graph.nodes, ~graph.nodes.of_host & graph.measured
    opens, in_step = of_device & nodes.first_of_lane, of_device & (nodes.step == step)
    begun = {
        of_rank: int(nodes.start[rows].min())
        for of_rank in (rank, *saved_ns)
        if len(rows := _rows(in_step, nodes, of_rank))
    }
    of_peers = [begun[peer] - min(saved, late_by) for peer, saved in saved_ns.items() if peer in begun]
    if rank not in begun or not of_peers:
        return
    usual = round(float(np.median(of_peers)))
    launched = _rows(opens & in_step & (graph.earliest <= NEVER), nodes, rank)
    earliest[launched] = np.minimum(nodes.start[launched], usual)
    queued = _rows(opens & (graph.earliest > NEVER) & nodes.of_ranks_with(nodes.of_host), nodes, rank)
    earliest[queued] -= max(0, min(late_by, begun[rank] - usual))


def _shorten_waits(graph: Graph, tables: TableSet, transfer: Ints, rank: int, late_by: int) -> None:
    """Shorten the waits of peers for a rank whose recording had not begun, by at most its lateness.

    A call without this rank then takes as long as usual for its kind.
    """
    nodes, calls = graph.nodes, calls_of(tables)
    own = _rows(~nodes.of_host & graph.measured, nodes, rank)
    rows = np.flatnonzero(graph.tied & (nodes.call >= 0))
    if not len(own) or not len(rows):
        return
    group, groups = calls.codes("group")
    has_rank = np.array([str(rank) in text.rpartition("@")[2].split(",") for text in groups], dtype=bool)[group]
    lacks_rank = has_rank & ~calls["complete"]
    lacks_rank[nodes.call[own[nodes.call[own] >= 0]]] = False
    is_before = nodes.end[rows] <= nodes.start[own].min()
    kind = group_codes(calls.codes("axis")[0], calls.codes("op")[0], calls["bytes"])[nodes.call]
    for row in rows[lacks_rank[nodes.call[rows]] & is_before].tolist():
        alike = rows[(kind[rows] == kind[row]) & calls["complete"][nodes.call[rows]]]
        if len(alike):
            wait_ns = int(transfer[row]) - int(np.median(graph.transfer[alike]))
            transfer[row] -= max(0, min(wait_ns, late_by))


def _rows(marks: Flags, nodes: Nodes, rank: int) -> Ints:
    return np.flatnonzero(marks & (nodes.rank == rank))
