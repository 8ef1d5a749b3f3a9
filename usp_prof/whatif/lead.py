"""Lead: how far a rank is ahead or late when the recording starts, and how a repair changes this.

A host may already run ahead of its device then. A rank that was late before starts its recording late, and its peers
wait for it in collectives of which its own part was not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import group_codes
from usp_prof.replay.graph import NEVER, Graph, NodeKind, Nodes
from usp_prof.replay.host_gaps import think_times, thinks
from usp_prof.replay.peers import calls_of, peer_groups
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.peer_steps import RankStep


def with_usual_lead(
    graph: Graph, tables: TableSet, hosts: Mapping[int, Mapping[int, RankStep]], wanted: set[int]
) -> Graph:
    """Return the graph with late hosts starting the recording when their median peer does.

    The lead is measured in the first step that all peers recorded: when the own time before the host's first node
    started. A device whose recording opens with this step is busy with earlier work until then, so it starts the step
    no earlier than its peers' devices. Work that was launched before the recording is late as well.
    """
    think, earliest, transfer = think_times(graph), graph.earliest.copy(), graph.transfer.copy()
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
            peers = [other for other in present if other != rank]
            late_by = round(began[rank] - float(np.median([began[peer] for peer in peers])))
            if late_by <= 0:
                continue
            opens = graph.nodes.of_rank(rank)
            opens = opens[graph.nodes.first_of_lane[opens] & thinks(graph)[opens] & (earliest[opens] > NEVER)]
            earliest[opens] -= late_by
            _shorten_waits(graph, tables, (earliest, transfer), rank, late_by)
            # Peers that no longer wait for other repaired ranks start earlier, too.
            saved_ns = np.bincount(graph.nodes.rank, graph.transfer - transfer, max(tables.ranks) + 1)
            _move_device(graph, earliest, rank, {peer: saved_ns[peer] for peer in peers}, min(common), late_by)
    return graph.with_changes(earliest=earliest, transfer=transfer)


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


def _shorten_waits(graph: Graph, tables: TableSet, times: tuple[Ints, Ints], rank: int, late_by: int) -> None:
    """Shorten the waits of peers for a rank whose recording had not begun, by at most its lateness.

    A call without this rank then takes as long as usual for its kind. A peer's first call on a stream may follow such a
    call that was not recorded; it starts with the peer's first recorded work at the earliest.
    """
    (earliest, transfer), nodes, calls = times, graph.nodes, calls_of(tables)
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
    talked = own[nodes.kind[own] == NodeKind.COMMUNICATION]
    queued = nodes.first_of_lane & (graph.earliest > NEVER) & nodes.of_ranks_with(nodes.of_host)
    queued &= (nodes.rank != rank) & (nodes.start <= nodes.start[talked].min(initial=np.iinfo(np.int64).max))
    opens = rows[queued[rows] & has_rank[nodes.call[rows]]]
    for row in opens.tolist():
        first = int(nodes.start[_rows(~nodes.of_host & graph.measured, nodes, int(nodes.rank[row]))].min())
        earliest[row] = max(first, earliest[row] - late_by)


def _rows(marks: Flags, nodes: Nodes, rank: int) -> Ints:
    return np.flatnonzero(marks & (nodes.rank == rank))
