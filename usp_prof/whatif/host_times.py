"""Host times: how long each rank's host takes for what its peers' hosts do as well, and the run with that made alike.

A host's own time is its think time before each call (pauses, the data loader, launches that come late) and the calls
themselves; waits for the device or for other ranks are none. Hosts of peers are compared step by step:
    1. Each host's nodes of a step are cut into pieces that all peers have: one a launch where all launch the same work
       in the same order, else one a communication, else the whole step.
    2. A piece should take what it takes the peers in the median. The medians of a step are then scaled so that they
       add up to the median of the whole steps: a host hiccups now and then, and its peers do so in other pieces.
    3. What a piece takes too long is taken out of its longest think times first: pauses go before ordinary work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import numbered, rows_by_code
from usp_prof.model.errors import UsageError
from usp_prof.model.printable import first_few
from usp_prof.replay.graph import EdgeKind, NodeKind
from usp_prof.replay.host_gaps import holds_thought, hosts_seen, posts, think_times, thinks
from usp_prof.replay.peers import peer_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from usp_prof.columns.arrays import Flags, Floats, Ints
    from usp_prof.replay.graph import Graph
    from usp_prof.tables.table_set import TableSet

    Usual = Callable[[Floats, Ints], Floats]
    """Gives from own times (one row a peer, one column a piece) what the peers at some places should take."""


@dataclass(frozen=True, slots=True, eq=False)
class _HostStep:
    """What one host does in one step: its nodes in order, their own times, and what each puts on the device."""

    rows: Ints
    own_ns: Ints
    label: Ints
    """Kind and axis of what the node starts; -1 where it starts nothing."""
    communicates: Flags
    """The node starts communication."""


def with_usual_hosts(graph: Graph, tables: TableSet, ranks: Iterable[int], usual: Usual) -> Graph:
    """Give the graph with the hosts of some ranks as fast as `usual` says for each piece of their steps.

    Raises where the host of such a rank was not recorded: what it kept the others waiting for is then not known.
    """
    _need_hosts(tables, ranks := tuple(ranks))
    wanted, hosts, own = set(ranks), _host_steps(graph, tables), own_times(graph)
    target = own.copy()
    for group in peer_groups(tables, graph):
        if wanted.isdisjoint(group):
            continue
        for host_step_of_rank in _compared(hosts, group):
            peers = list(host_step_of_rank.values())
            pieces = _pieces(peers)
            count = 1 + max(int(piece[-1]) for piece in pieces)
            # Peers by pieces: what each took.
            taken = np.array(
                [np.bincount(piece, peer.own_ns, count) for peer, piece in zip(peers, pieces, strict=True)]
            )
            places = np.flatnonzero([rank in wanted for rank in host_step_of_rank])
            for place, should_take in zip(places.tolist(), usual(taken, places), strict=True):
                target[peers[place].rows] = _shared_out(peers[place].own_ns, pieces[place], should_take)
    return _with_own_times(graph, own, target)


def without_hosts(tables: TableSet, ranks: Iterable[int]) -> list[int]:
    """Give those ranks of which device activity alone was recorded."""
    return [
        rank
        for rank in ranks
        if len(tables.columns("kernels", rank))
        and not len(tables.columns("launches", rank))
        and not len(tables.columns("ops", rank))
    ]


def _need_hosts(tables: TableSet, ranks: Iterable[int]) -> None:
    """Refuse ranks of which device activity alone was recorded."""
    bare = without_hosts(tables, [rank for rank in ranks if rank in tables.ranks])
    if bare:
        raise UsageError(
            f"device activity alone was recorded on rank {first_few(bare, 8, ', ...')}: "
            "what its host did in between is not known",
            hint="record CPU activities too, or read `usp-prof analyze --section stragglers` for who arrives last",
        )


def of_others(totals: Floats, places: Ints) -> Floats:
    """Give for each place what the other peers take in the median."""
    others = [np.delete(totals, place, axis=0) for place in places.tolist()]
    return np.array([_adding_up(np.median(rest, axis=0), float(np.median(rest.sum(axis=1)))) for rest in others])


def of_all(totals: Floats, places: Ints) -> Floats:
    """Give what all peers take in the median: of an even number the lower, as one of two that pauses is no measure."""
    middle = (len(totals) - 1) // 2
    usual = _adding_up(np.sort(totals, axis=0)[middle], float(np.sort(totals.sum(axis=1))[middle]))
    return np.broadcast_to(usual, (len(places), len(usual)))


def own_times(graph: Graph) -> Ints:
    """Give each node's own host time: the thinking before it, and the call itself; 0 for work of the device."""
    return graph.memo(
        "own host times",
        lambda: think_times(graph) + np.where(graph.nodes.kind == NodeKind.HOST, graph.duration, 0),
    )


def host_slowness(graph: Graph) -> dict[int, float]:
    """Compare the hosts: time between their launches (the median of each) over the median of the other ranks'."""
    is_call = graph.nodes.kind == NodeKind.HOST
    usual = {}
    for rank in np.unique(graph.nodes.rank[is_call]).tolist():
        rows = graph.nodes.of_rank(rank)
        rows = rows[is_call[rows]]
        times = np.maximum(graph.gap[rows], 0) + graph.duration[rows]
        if len(times) > 1:
            usual[rank] = float(np.median(times))
    found = {}
    for rank, own in usual.items():
        others = [time for other, time in usual.items() if other != rank]
        if others and np.median(others) > 0:
            found[rank] = own / float(np.median(others))
    return found


def _with_own_times(graph: Graph, own: Ints, target: Ints) -> Graph:
    """Give the graph with other own times of the hosts: what changes goes to the thinking, what is left to the call."""
    change = np.flatnonzero(target != own)
    if not len(change):
        return graph
    think = think_times(graph)
    wanted = think.copy()
    wanted[change] = np.maximum(think[change] + target[change] - own[change], 0)
    # What is still too long after all thinking is gone is the call's own length.
    duration = graph.duration.copy()
    duration[change] = np.minimum(duration[change], np.where(wanted[change] > 0, duration[change], target[change]))
    shorter, longer = wanted < think, wanted > think
    edges = graph.edges
    arrived = np.where(edges.at_end, graph.nodes.end[edges.source], graph.nodes.start[edges.source])
    binds = holds_thought(edges) & (arrived + edges.lag == graph.nodes.start[edges.target])
    lag = np.where(holds_thought(edges) & shorter[edges.target], np.minimum(edges.lag, wanted[edges.target]), edges.lag)
    lag = np.where(binds & longer[edges.target], lag + (wanted - think)[edges.target], lag)
    waits = np.zeros(len(think), dtype=bool)
    waits[edges.target[binds]] = True
    gap = np.where(shorter, np.minimum(graph.gap, wanted), graph.gap)
    gap = np.where(longer & ~waits & ~graph.nodes.first_of_lane, gap + wanted - think, gap)
    return graph.with_changes(gap=gap, duration=duration, edges=replace(edges, lag=lag))


def _host_steps(graph: Graph, tables: TableSet) -> dict[int, dict[int, _HostStep]]:
    """Give what each host does, by rank and step; ranks whose host is not in the trace are left out."""
    own, label = own_times(graph), _labels(graph)
    communicates = label // (len(graph.axes) + 1) == NodeKind.COMMUNICATION
    # On a device the host's calls count, on a CPU the compute and what it posts.
    counts = (thinks(graph) | posts(graph)) & graph.measured
    found: dict[int, dict[int, _HostStep]] = {}
    for rank, seen in hosts_seen(graph, tables).items():
        rows = graph.nodes.of_rank(rank)
        rows = rows[counts[rows] & (graph.nodes.step[rows] >= 0)]
        if not seen or not len(rows):
            continue
        rows = rows[np.argsort(graph.nodes.start[rows], kind="stable")]
        steps, step = numbered(graph.nodes.step[rows])
        found[rank] = {
            steps[place]: _HostStep(rows[at], own[rows[at]], label[rows[at]], communicates[rows[at]])
            for place, at in rows_by_code(step).items()
        }
    return found


def _labels(graph: Graph) -> Ints:
    """Say in a number for each node what kind of work it starts, and for communication on which axis; -1: none."""
    nodes = graph.nodes
    code = nodes.kind * (len(graph.axes) + 1) + nodes.axis + 1
    label = np.where(nodes.of_host, -1, code)
    launch = np.flatnonzero(graph.edges.kind == EdgeKind.LAUNCH)[::-1]  # a call's first piece of work is written last
    label[graph.edges.source[launch]] = code[graph.edges.target[launch]]
    return np.asarray(label)


def _compared(hosts: dict[int, dict[int, _HostStep]], group: tuple[int, ...]) -> Iterator[dict[int, _HostStep]]:
    """Give for each step what the peers do in it, by rank; steps that only one of them has are left out."""
    there = [rank for rank in group if rank in hosts]
    for step in sorted({step for rank in there for step in hosts[rank]}):
        found = {rank: hosts[rank][step] for rank in there if step in hosts[rank]}
        if len(found) > 1:
            yield found


def _pieces(steps: list[_HostStep]) -> list[Ints]:
    """Cut the peers' steps alike, as finely as they agree: gives the number of the piece that each node is in."""
    for closes in ([each.label >= 0 for each in steps], [each.communicates for each in steps]):
        kinds = [each.label[ends] for each, ends in zip(steps, closes, strict=True)]
        if all(np.array_equal(kinds[0], other) for other in kinds[1:]):
            return [_numbered_to(ends) for ends in closes]
    return [np.zeros(len(each.rows), np.int64) for each in steps]


def _numbered_to(closes: Flags) -> Ints:
    """Give each node the number of its piece: a piece ends with a node that closes it, the last one with the step."""
    return np.asarray(np.minimum(np.cumsum(closes) - closes, max(int(closes.sum()) - 1, 0)))


def _adding_up(pieces: Floats, total: float) -> Floats:
    whole = float(pieces.sum())
    return pieces * (total / whole) if whole > 0 else pieces


def _shared_out(own_ns: Ints, piece: Ints, should: Floats) -> Ints:
    """Give each node its part of what its piece should take.

    Of a piece that takes too long the peaks are cut off at one level; one that takes too little is stretched.
    """
    order = np.lexsort((own_ns, piece))
    own, piece = own_ns[order], piece[order]
    opens = np.append(True, piece[1:] != piece[:-1])
    first = np.maximum.accumulate(np.where(opens, np.arange(len(own)), 0))
    last = np.append(np.flatnonzero(opens)[1:], len(own))[np.cumsum(opens) - 1]  # the row behind the piece
    smaller = np.cumsum(own) - own
    smaller -= smaller[first]  # the sum of the piece's nodes that are smaller
    rest = last - np.arange(len(own))  # this node and the larger ones
    wanted = should[piece]
    total = np.bincount(piece, own, len(should))[piece]
    # The level is where the smaller nodes and the others at that level add up to what is wanted.
    level = (wanted - smaller) / rest
    cut = smaller + rest * own >= wanted
    highest = np.zeros(len(should))
    np.maximum.at(highest, piece[cut], level[cut])
    longer = np.where(total > 0, own * (wanted / np.maximum(total, 1)), wanted * (rest == 1))
    found = np.empty(len(own), np.int64)
    found[order] = np.rint(np.where(wanted < total, np.minimum(own, highest[piece]), longer))
    return found
