"""Hidden waits: of compute behind a communication, inside ranges of gloo, and of launches before a full queue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import group_codes, lookup, rows_by_code, rows_of, sorted_by
from usp_prof.replay.graph import NEVER, EdgeKind, NodeKind
from usp_prof.tables.communication.posts import asked_late

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.columns.table import Columns
    from usp_prof.replay.build import RankNodes
    from usp_prof.replay.graph import Edges, Graph, Nodes


# Compute behind a communication: it may have waited although its own launch came later still.
#
# Compute that is launched behind a communication waits for it, or runs beside it (as with gradients):
#   1. Where lane and launch were over before the communication ended, the times tell which of the two.
#   2. Where they were later (the host was blocked, or late), it waits if those of the same axis and kernel do.
# Such a wait did not bind; it does once the host is no longer late.

USUALLY = 0.9
"""So many of the communications of a kind must be waited for by the compute behind them, where the times tell."""


def hidden_waits(n: RankNodes, explained_at: Ints, launched_at: Ints) -> tuple[Ints, Ints]:
    """Give the communications whose waits are hidden, and the compute behind each, as node numbers of the rank."""
    is_launched = launched_at > NEVER
    compute = sorted_by(launched_at, np.flatnonzero(is_launched & (n.kind == NodeKind.COMPUTE)))
    # Pairs: each communication, and the first compute that is launched behind it.
    calls = np.flatnonzero(is_launched & (n.kind == NodeKind.COMMUNICATION))
    place = np.searchsorted(launched_at[compute], launched_at[calls], side="right")
    has_compute = place < len(compute)
    calls, behind = calls[has_compute], compute[place[has_compute]]
    # Where lane and launch were over before the communication ended, its own times tell whether the compute waited.
    is_free = explained_at[behind] < n.end[calls]
    begins_after = n.start[behind] >= n.end[calls]
    kind = group_codes(n.axis[0][calls], n.name[0][calls])
    waiting_share = np.bincount(kind, is_free & begins_after) / np.maximum(np.bincount(kind, is_free), 1)
    is_hidden = ~is_free & begins_after & (waiting_share[kind] >= USUALLY)
    return calls[is_hidden], behind[is_hidden]


# Transfers of gloo: how long a posted transfer lasts, whose range ends only when somebody asks.
#
# A posted send or receive (gloo) that ends right when the rank's own compute ends was done before: the compute is what
# its range waited for. So it is with one that ends right after another one: waits are asked for in turn, and the first
# was what was waited for. Its transfer is then taken to be as short as those of its axis that were waited for in
# earnest, and nothing waits for it; otherwise a rank's own compute would come back as network time that no edit can
# shorten.

OPENED_NS = 1_000_000
OPENED_SHARE = 0.1
"""The profiler opens a posted part's range up to so long after the post; on busy cores by a share of what it lasts."""


def with_asked_posts(graph: Graph) -> Graph:
    """Shorten the posted transfers that were only asked for late.

    1. Ranges that seem to end just before the other side begins are tied to it (`_tied_although_early`).
    2. Of parts waited for in turn, what waited for a later one waits for the first (`_waiting_for_the_first`).
    3. Parts that were asked for late get the transfer of those that were waited for in earnest, and end with it.
    4. Nothing waits for them any more: their wait edges go, and what waited follows its lane or its post again.
    """
    if not _posted(graph).any():
        return graph
    recorded_end = graph.nodes.end
    graph = _tied_although_early(graph)
    is_asked_late, first_of_turn = _asked(graph, recorded_end)
    if not is_asked_late.any():
        return graph
    nodes = graph.nodes
    edges = _waiting_for_the_first(graph, is_asked_late, first_of_turn)
    earnest = _earnest(graph, is_asked_late)
    transfer = np.where(is_asked_late, np.minimum(graph.transfer, earnest), graph.transfer)
    last_begun = nodes.end - graph.transfer
    end = np.where(is_asked_late, np.maximum(nodes.start, last_begun + transfer), nodes.end)
    is_gone = (edges.kind == EdgeKind.WAIT) & is_asked_late[edges.source]
    freed = np.unique(edges.target[is_gone])
    kept = _reissued(edges.take(~is_gone), nodes, freed)
    # Freed nodes that no edge holds until they begin keep the time since their lane's node before as think time.
    gap = graph.gap.copy()
    goes_on = (freed > 0) & (nodes.lane[freed] == nodes.lane[freed - 1])
    inner = freed[goes_on]
    inner = inner[_reached(kept, nodes)[inner] < nodes.start[inner]]
    gap[inner] = nodes.start[inner] - nodes.end[inner - 1]
    duration = end - nodes.start
    return replace(
        graph,
        nodes=replace(nodes, duration=duration),
        gap=gap,
        edges=kept,
        duration=np.where(is_asked_late, duration, graph.duration),
        transfer=transfer,
    )


def _waiting_for_the_first(graph: Graph, is_asked_late: Flags, first_of_turn: Ints) -> Edges:
    """Let what waited for a part that was asked for late wait for the first of its turn, if that was in earnest."""
    edges, end = graph.edges, graph.nodes.end
    first = first_of_turn[edges.source]
    turns = is_asked_late[edges.source] & ~is_asked_late[first]
    lag = np.where(turns, edges.lag + end[edges.source] - end[first], edges.lag)
    return replace(edges, source=np.where(turns, first, edges.source), lag=lag)


def _reissued(edges: Edges, nodes: Nodes, freed: Ints) -> Edges:
    """Let posts that need not wait any more (`freed`) follow the compute before them as they did."""
    is_issue = (edges.kind == EdgeKind.ISSUE) & np.isin(edges.target, freed)
    is_reached = _reached(edges, nodes)[edges.target] >= nodes.start[edges.target]
    arrived = np.where(edges.at_end, nodes.end[edges.source], nodes.start[edges.source])
    since_arrived = nodes.start[edges.target] - arrived
    return replace(edges, lag=np.where(is_issue & ~is_reached, since_arrived, edges.lag))


def _tied_although_early(graph: Graph) -> Graph:
    """Tie the posted parts that seem to end just before the other side begins: ranges open a little after the post."""
    nodes = graph.nodes
    opens_after = np.maximum(OPENED_NS, (OPENED_SHARE * nodes.duration).astype(np.int64))
    is_early = _posted(graph) & ~graph.tied & (nodes.call >= 0)
    is_early &= (graph.transfer < 0) & (graph.transfer >= -opens_after)
    if not is_early.any():
        return graph
    # By node: how much longer it lasts, so that it ends when the other side begins.
    shift = np.where(is_early, -graph.transfer, 0)
    edges = graph.edges
    lag = edges.lag - np.where(edges.at_end, shift[edges.source], 0)
    return replace(
        graph,
        nodes=replace(nodes, duration=nodes.duration + shift),
        edges=replace(edges, lag=lag),
        duration=graph.duration + shift,
        transfer=np.where(is_early, 0, graph.transfer),
        tied=graph.tied | is_early,
    )


def _posted(graph: Graph) -> Flags:
    """Mark the sends and receives that a host without a device posted: each has a lane of its own."""
    nodes = graph.nodes
    is_posted = (nodes.kind == NodeKind.COMMUNICATION) & ~nodes.of_ranks_with(nodes.kind == NodeKind.HOST)
    if is_posted.any():
        nodes_of_lane = np.bincount(nodes.lane)
        is_posted &= nodes_of_lane[nodes.lane] == 1
    return np.asarray(is_posted)


def _asked(graph: Graph, recorded_end: Ints) -> tuple[Flags, Ints]:
    """Mark the posted parts that end right after the rank's own compute, or after another part waited for in turn.

    Gives also, by node, the part that was waited for first in its turn; the node itself where there is no turn.
    """
    nodes = graph.nodes
    is_asked_late = np.zeros(len(nodes), dtype=bool)
    first_of_turn = np.arange(len(nodes))
    is_posted = _posted(graph) & graph.tied
    for rank in np.unique(nodes.rank[is_posted]).tolist():
        of_rank = nodes.of_rank(rank)
        parts = of_rank[is_posted[of_rank]]
        compute = of_rank[nodes.kind[of_rank] == NodeKind.COMPUTE]
        if not len(compute):
            continue
        # `heads` are places in `parts`.
        is_late, heads = asked_late(
            nodes.start[parts], recorded_end[parts], recorded_end[compute], nodes.duration[parts]
        )
        is_asked_late[parts] = is_late
        first_of_turn[parts] = parts[heads]
    return is_asked_late, first_of_turn


def _earnest(graph: Graph, is_asked_late: Flags) -> Ints:
    """Give for each node the median transfer of its axis' parts that were waited for; 0 where there are none."""
    axis = graph.nodes.axis
    earnest = np.zeros(len(graph.nodes), np.int64)
    for code in np.unique(axis[is_asked_late]).tolist():
        on_axis = axis == code
        was_waited_for = on_axis & graph.tied & ~is_asked_late
        earnest[on_axis] = int(np.median(graph.transfer[was_waited_for])) if was_waited_for.any() else 0
    return earnest


def _reached(edges: Edges, nodes: Nodes) -> Ints:
    """Give when the last edge into each node was over, as measured."""
    reached = np.full(len(nodes), NEVER)
    arrived = np.where(edges.at_end, nodes.end[edges.source], nodes.start[edges.source]) + edges.lag
    np.maximum.at(reached, edges.target, arrived)
    return reached


# Full queues: launches that stood until the device took earlier work from their stream's queue.
#
# The driver's queue holds a limited number of launches. While it is full, a launch comes back only when some work of
# its stream has ended: the call seems slow, but it waits for the device, and with faster kernels it would not.

LONG_NS = 20_000
"""A launch takes a few microseconds; one that takes longer may have waited."""
QUICK_NS = 5_000
"""What a launch takes where all of a trace stood before a full queue."""
DEEP_SHARE, LEAST_DEPTH = 0.9, 16
"""A queue is full where about as many launches are pending as ever; one that never held 16 was never full."""
RESUMED_NS = 20_000
"""A launch that waited for room comes back so soon after work on its stream has ended."""
FEWEST = 8
"""So many launches of a stream must have waited: one or two that end beside a kernel do so by chance."""


def waited_for_room(launches: Columns, work: Columns) -> Flags:
    """Mark the calls that stood before a full queue.

    Stream by stream, in the order of launch:
      1. count what was pending when the call began: launched (also before the recording), but not begun on the device;
      2. the queue was full where that count is about the largest of the whole trace;
      3. of the calls made then, those count that are long and come back right after work of the stream has ended.
    """
    marked = np.zeros(len(launches), dtype=bool)
    if not (launches["kernels"] > 0).any():
        return marked
    launch = rows_of(launches["event"], work["launch_event"])  # by work: its row in launches; -1: not in the trace
    for unordered in rows_by_code(work.codes("lane")[0]).values():
        of_stream = sorted_by(work["start_ns"], unordered)
        # By call of this stream: its row in launches, and the first work that it started (a graph's starts many).
        rows, first = np.unique(launch[of_stream], return_index=True)
        rows, first = rows[rows >= 0], first[rows >= 0]
        if len(rows) < FEWEST:
            continue
        begun = np.sort(work["start_ns"][of_stream[first]])
        before = of_stream[: int(first.min())]  # launched before the recording began, and still in the queue then
        rows = sorted_by(launches["start_ns"], rows)
        called, taken = launches["start_ns"][rows], launches["dur_ns"][rows]
        # By call: launched before it, in the trace and before the trace began, less what had begun on the device.
        pending = np.arange(len(rows)) - np.searchsorted(begun, called)
        pending += len(before) - np.searchsorted(work["start_ns"][before], called)
        if pending.max() < LEAST_DEPTH:
            continue
        ended = np.sort(work["start_ns"][of_stream] + work["dur_ns"][of_stream])
        place = np.searchsorted(ended, called + taken, side="right") - 1
        last_end = lookup(ended, place, missing=-1)
        is_soon = (last_end > called) & (called + taken - last_end <= RESUMED_NS)
        is_deep = pending >= DEEP_SHARE * pending.max()
        waited = is_soon & is_deep & (taken > LONG_NS)
        if waited.sum() >= FEWEST:
            marked[rows[waited]] = True
    return marked


def usual_launch_ns(lengths: Ints) -> int:
    """Say what a launch takes itself, from those that did not wait for room."""
    quick = lengths[lengths <= LONG_NS]
    return int(np.median(quick)) if len(quick) else QUICK_NS


def freed_by(n: RankNodes) -> tuple[Ints, Ints]:
    """Give for each launch that waited for room the work that ended last on its stream before it came back."""
    admitted = np.flatnonzero(n.kind == NodeKind.ADMITTED)
    device = np.flatnonzero(n.of_device)
    if not len(admitted):
        return admitted, admitted
    # By event number of a call: the lane of what it launched. Work without a call (-1) writes into the last place.
    lane_of = np.full(int(max(n.event[admitted].max(), n.launch.max())) + 2, -1)
    lane_of[n.launch[device]] = n.lane[device]
    of_lane = rows_by_code(n.lane[device])
    source = np.full(len(admitted), -1)
    for lane, rows in rows_by_code(lane_of[n.event[admitted]]).items():
        if lane not in of_lane:
            continue
        by_end = sorted_by(n.end, device[of_lane[lane]])
        place = np.searchsorted(n.end[by_end], n.start[admitted[rows]], side="right") - 1
        source[rows] = lookup(by_end, place, missing=-1)
    is_known = source >= 0
    return source[is_known], admitted[is_known]
