"""Host gaps: think times before nodes, data loading, and pauses of a rank's host.

The *think time* before a node is the part of the gap before it that the host spends on its own: Python between two
launches, the data loader, now and then a pause (garbage collection, a checkpoint, another process on its core).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.intervals import Intervals, time_of, union
from usp_prof.columns.rows import numbered
from usp_prof.replay.graph import EdgeKind, NodeKind
from usp_prof.replay.rank_clocks import rank_clocks

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.columns.table import Columns
    from usp_prof.replay.graph import Edges, Graph
    from usp_prof.replay.rank_clocks import RankClocks
    from usp_prof.tables.table_set import TableSet

LOADS_DATA = re.compile(r"dataloader|data_loader|^train::input\b", re.IGNORECASE)
"""Annotations and ops in which the host fetches the next batch."""

TAKES_MEMORY = re.compile(r"^(cuda|hip|cu)(Malloc|Free|MemAlloc|MemFree|MemCreate|MemMap|MemUnmap)(Async)?(_v\d)?$")
"""Calls that take or give back the device's memory, which the caching allocator makes when it has none left."""

_HOLD_THOUGHT = np.array([kind in (EdgeKind.WAIT, EdgeKind.ISSUE, EdgeKind.SYNC) for kind in EdgeKind])

PAUSE_NS = 2_000_000
"""A pause of the host shorter than this is not told from ordinary work."""
SLICE_NS = 50_000_000
"""A rank without a device shares its cores, and waits up to so long for its turn: several such a step are no pauses."""
PAUSES_A_STEP = 10
"""In short recordings so many pauses in each step are among the largest hundredth of the think times already."""
PAUSE_RATIO = 20.0
"""A pause is so many times the 99th percentile of the rank's ordinary think times."""


def pauses(graph: Graph, tables: TableSet) -> Ints:
    """Find the nodes before which the host paused, once; waiting for data is no pause."""
    key = ("pauses", id(tables))
    return graph.memo(key, lambda: (tables, _pauses(graph, tables)))[1]  # holds on to what the key names


def _pauses(graph: Graph, tables: TableSet) -> Ints:
    """Find the nodes before which the host paused, rank by rank.

    1. A rank's ordinary think time is its 99th percentile, or that of the median rank where that is less.
    2. A pause is a think time of at least PAUSE_NS and PAUSE_RATIO times that, without data loading and without
       calls that take memory.
    3. On a CPU a rank waits for its turn on a core: with more than one such a step, only longer ones are pauses.
    """
    nodes, clocks, think = graph.nodes, rank_clocks(tables), think_times(graph)
    # By rank: its nodes with think time before them, and the usual one.
    thinking = {}
    for rank, is_seen in hosts_seen(graph, tables).items():
        rows = nodes.of_rank(rank)
        rows = rows[think[rows] > 0]
        if is_seen and len(rows):
            thinking[rank] = rows
    usual_ns = {rank: _usual(graph, think, rows) for rank, rows in thinking.items()}
    pauses_by_rank = [np.zeros(0, np.int64)]
    for rank, usual in usual_ns.items():
        has_device = bool(nodes.of_host[thinking[rank]].any())
        # A host that pauses all the time is told from the others; on a CPU ranks may differ in what they wait for.
        ordinary = min(usual, float(np.median(list(usual_ns.values())))) if has_device else usual
        least = max(PAUSE_NS, PAUSE_RATIO * ordinary)
        rows = thinking[rank]
        rows = rows[think[rows] > least]
        paused = think[rows]
        for busy in (loading(tables, rank), allocating(tables.columns("launches", rank))):
            host_time = _on_common_clock(busy, clocks, rank)
            paused = paused - host_time.within(nodes.start[rows] - think[rows], nodes.start[rows])
        steps = len(numbered(nodes.step[thinking[rank]])[0])
        if not has_device and (paused > least).sum() > steps:
            least = max(SLICE_NS, PAUSE_RATIO * usual)
        pauses_by_rank.append(rows[paused > least])
    return np.concatenate(pauses_by_rank)


def _usual(graph: Graph, think: Ints, rows: Ints) -> float:
    """Give the 99th percentile of a rank's think times; of few, what is left without the longest of each step."""
    steps = len(numbered(graph.nodes.step[rows])[0])
    longest = (PAUSES_A_STEP if graph.nodes.of_host[rows].any() else 3) * steps
    return float(np.quantile(think[rows], min(0.99, max(0.5, 1 - longest / len(rows)))))


def hosts_seen(graph: Graph, tables: TableSet) -> dict[int, bool]:
    """Say for each rank whether its trace shows what the host does: a device's work alone does not."""
    of_host = graph.nodes.of_host
    return {
        rank: bool(of_host[graph.nodes.of_rank(rank)].any()) or not len(tables.columns("kernels", rank))
        for rank in tables.ranks
    }


def allocating(launches: Columns) -> tuple[Ints, Ints]:
    """Give the begins and ends of when a rank's host takes or gives back device memory, on its own clock."""
    memory_calls = time_of(launches, launches.satisfies("name", TAKES_MEMORY.search))
    return memory_calls.start, memory_calls.end


def _on_common_clock(ranges: tuple[Ints, Ints], clocks: RankClocks, rank: int) -> Intervals:
    """Give begins and ends on a rank's own clock as intervals on the common one."""
    begin, end = ranges
    return union(clocks.align_host(rank, begin), clocks.align_host(rank, end))


def think_times(graph: Graph) -> Ints:
    """Give the host's think time before each node: after its lane's node before, or after what it had waited for."""
    return graph.memo("think times", lambda: _think_times(graph))


def _think_times(graph: Graph) -> Ints:
    nodes, is_thinking = graph.nodes, thinks(graph)
    think = np.where(is_thinking, np.maximum(graph.gap, 0), 0)
    # Of a node that waited, the lag of the edge that came last is the thinking since then.
    edges = graph.edges.take(holds_thought(graph.edges))
    edges = edges.take((is_thinking | posts(graph))[edges.target])
    arrived = np.where(edges.at_end, nodes.end[edges.source], nodes.start[edges.source])
    came_last = arrived + edges.lag == nodes.start[edges.target]
    np.maximum.at(think, edges.target[came_last], edges.lag[came_last])
    return np.asarray(think)


def loads_data(graph: Graph, tables: TableSet) -> Flags:
    """Mark the nodes before which the host was in the data loader."""
    is_after_loading = np.zeros(len(graph.nodes), dtype=bool)
    clocks, think = rank_clocks(tables), think_times(graph)
    for rank in tables.ranks:
        rows = graph.nodes.of_rank(rank)
        rows = rows[think[rows] > 0]
        start = graph.nodes.start[rows]
        loader = _on_common_clock(loading(tables, rank), clocks, rank)
        is_after_loading[rows] = loader.within(start - think[rows], start) > 0
    return is_after_loading


def holds_thought(edges: Edges) -> Flags:
    """Mark the edges whose lag holds the host's thinking."""
    return np.asarray(_HOLD_THOUGHT[edges.kind])


def posts(graph: Graph) -> Flags:
    """Mark communication that a host posts by itself: that of ranks without a device."""
    nodes = graph.nodes
    return nodes.memo("posts", lambda: (nodes.kind == NodeKind.COMMUNICATION) & ~nodes.of_ranks_with(nodes.of_host))


def thinks(graph: Graph) -> Flags:
    """Mark the nodes before which a host thinks: its calls, and on CPU traces the computing lane."""
    nodes = graph.nodes
    return nodes.memo(
        "thinks",
        lambda: nodes.of_host | ((nodes.kind == NodeKind.COMPUTE) & ~nodes.of_ranks_with(nodes.of_host)),
    )


def lane_before(graph: Graph) -> Ints:
    """Give the end of each node's lane predecessor; its own start where it has none."""
    nodes = graph.nodes
    return np.where(nodes.first_of_lane, nodes.start, np.minimum(np.roll(nodes.end, 1), nodes.start))


def loading(tables: TableSet, rank: int) -> tuple[Ints, Ints]:
    """Give the begins and ends of when a rank's host is inside the data loader, on its own clock."""
    return tables.memo_of_rank(rank, "loading", lambda: _loading(tables, rank))


def _loading(tables: TableSet, rank: int) -> tuple[Ints, Ints]:
    marks, ops = tables.columns("annotations", rank), tables.columns("ops", rank)
    in_marks = time_of(marks, marks.satisfies("name", LOADS_DATA.search) & ~marks["on_device"])
    loader = in_marks | time_of(ops, ops.satisfies("name", LOADS_DATA.search))
    return loader.start, loader.end


def loading_ns(tables: TableSet, rank: int) -> int:
    """Measure how long a rank's host is inside the data loader, over the whole recording."""
    begin, end = loading(tables, rank)
    return int((end - begin).sum())


def overlap(begin: Ints, end: Ints, low: Ints, high: Ints) -> Ints:
    """Measure how much of each span low..high lies in sorted intervals."""
    return np.maximum(Intervals(begin, end).within(low, high), 0)
