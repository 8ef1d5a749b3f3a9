"""Host times: graphs in which hosts need as much time of their own as their peers' hosts.

The target of each piece of a step (see `peer_steps`) is the median time of the peers. The medians of a step are scaled
to add up to the median step, because occasional hiccups of the peers hit different pieces. Excess time of a piece is
removed from its longest think times first, so pauses go before ordinary work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from usp_prof.columns.arrays import Floats, Ints
from usp_prof.model.errors import UsageError
from usp_prof.model.printable import first_few
from usp_prof.replay.graph import Graph
from usp_prof.replay.host_gaps import holds_thought, think_times
from usp_prof.replay.peers import peer_groups
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.extra_waits import without_extra_waits
from usp_prof.whatif.host_steps import host_steps, own_times, without_hosts
from usp_prof.whatif.lead import with_usual_lead
from usp_prof.whatif.peer_steps import HostSteps, PeerStep, adding_up, peer_steps, repaired
from usp_prof.whatif.time_shares import times_of_nodes


def with_equal_hosts(graph: Graph, tables: TableSet, ranks: Iterable[int]) -> Graph:
    """Return the graph with each piece of the given ranks' steps as long as the median of all peers.

    Raises if the host of such a rank was not recorded, because its delays are then unknown.
    """
    _need_hosts(tables, ranks := tuple(ranks))
    hosts, own = host_steps(graph, tables), own_times(graph)
    target = own.copy()
    for group in peer_groups(tables, graph):
        for step in [] if set(ranks).isdisjoint(group) else peer_steps(hosts, group):
            usual_ns = _of_all(step.took_ns)
            for rank in set(ranks).intersection(step.judged):
                _set_target(target, step, rank, usual_ns)
    return _with_hosts(graph, tables, hosts, target, set(ranks))


def with_repaired_hosts(graph: Graph, tables: TableSet, ranks: Iterable[int]) -> Graph:
    """Return the graph with slower hosts of the given ranks made as fast as the median of their peers over all steps.

    Unusually long pieces are shortened even if the host needs less time than its peers elsewhere (see `repaired`).
    """
    _need_hosts(tables, ranks := tuple(ranks))
    hosts, own = host_steps(graph, tables), own_times(graph)
    target = own.copy()
    for group in peer_groups(tables, graph):
        steps = [] if set(ranks).isdisjoint(group) else list(peer_steps(hosts, group))
        for step, rank, should_ns in repaired(steps, ranks) if steps else ():
            _set_target(target, step, rank, should_ns)
    return _with_hosts(graph, tables, hosts, target, set(ranks))


def _with_hosts(graph: Graph, tables: TableSet, hosts: HostSteps, target: Ints, ranks: set[int]) -> Graph:
    """Return the graph with these own times, and hosts that start and wait as those of their peers do."""
    changed = _with_own_times(graph, own_times(graph), target)
    return with_usual_lead(without_extra_waits(changed, tables, hosts, ranks), tables, hosts, ranks)


def _of_all(took_ns: Floats) -> Floats:
    """Return the lower median of all peers; with two peers, the one that pauses must not count."""
    middle = (len(took_ns) - 1) // 2
    return adding_up(np.sort(took_ns, axis=0)[middle], float(np.sort(took_ns.sum(axis=1))[middle]))


def _set_target(target: Ints, step: PeerStep, rank: int, should_take_ns: Floats) -> None:
    place = step.ranks.index(rank)
    host, piece = step.of_rank[place], step.pieces[place]
    target[host.rows] = times_of_nodes(host.own_ns, piece, should_take_ns)


def _need_hosts(tables: TableSet, ranks: Iterable[int]) -> None:
    """Raise if only device activity was recorded for any of the ranks."""
    bare = without_hosts(tables, [rank for rank in ranks if rank in tables.ranks])
    if bare:
        raise UsageError(
            f"only device activity was recorded on rank {first_few(bare, 8, ', ...')}, so its host time is unknown",
            hint="record CPU activities too, or see the late ranks in `usp-prof analyze --section stragglers`",
        )


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
