"""Host gaps: think times before nodes, data loading, and pauses of a rank's host.

The *think time* before a node is the part of the preceding gap that the host spends on its own work: Python between two
launches, the data loader, or an occasional pause (garbage collection, a checkpoint, another process on its core).
"""

from __future__ import annotations

import re

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.intervals import Intervals, time_of, union
from usp_prof.columns.rows import numbered
from usp_prof.columns.table import Columns
from usp_prof.replay.graph import EdgeKind, Edges, Graph, NodeKind
from usp_prof.replay.rank_clocks import RankClocks, rank_clocks
from usp_prof.tables.table_set import TableSet

LOADS_DATA = re.compile(r"dataloader|data_loader|^train::input\b", re.IGNORECASE)
"""Annotations and ops in which the host fetches the next batch."""

TAKES_MEMORY = re.compile(r"^(cuda|hip|cu)(Malloc|Free|MemAlloc|MemFree|MemCreate|MemMap|MemUnmap)(Async)?(_v\d)?$")
"""Calls that allocate or free device memory, which the caching allocator makes when its cache is exhausted."""

_HOLD_THOUGHT = np.array([kind in (EdgeKind.WAIT, EdgeKind.ISSUE, EdgeKind.SYNC) for kind in EdgeKind])

PAUSE_NS = 2_000_000
"""A shorter pause of the host cannot be distinguished from ordinary work."""
SLICE_NS = 50_000_000
"""Time slice: CPU ranks share cores and wait up to this long for one, so several such waits per step are not pauses."""
PAUSES_A_STEP = 10
"""Assumed number of pauses per step, left out of the ordinary think times of short recordings."""
PAUSE_RATIO = 20.0
"""A pause is at least this multiple of the 99th percentile of the rank's ordinary think times."""
STANDS_OUT = 3.0
"""Think times that are at least this multiple of all shorter ones are pauses, even if ordinary ones are long. On 15
recorded GPU runs, such steps between unexplained think times of hosts without a fault were up to 2.74."""


def pauses(graph: Graph, tables: TableSet) -> Ints:
    """Return the nodes before which the host paused, memoized; waiting for data is not a pause."""
    key = ("pauses", id(tables))
    return graph.memo(key, lambda: (tables, _pauses(graph, tables)))[1]  # a reference keeps the id in the key valid


def _pauses(graph: Graph, tables: TableSet) -> Ints:
    """Return the nodes before which the host paused, rank by rank.

    1. A rank's ordinary think time is its 99th percentile, or that of the median rank if that is less.
    2. A pause is a think time of at least PAUSE_NS and PAUSE_RATIO times the ordinary one, not counting data loading
       and memory allocation. With a device, think times that stand out from all others are pauses, too.
    3. A CPU rank waits for its turn on a core. If that happens more than once per step, only longer waits are pauses.
    """
    nodes, clocks, think = graph.nodes, rank_clocks(tables), think_times(graph)
    # By rank: its nodes with think time before them.
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
        # A host that always pauses stands out from other ranks. On a CPU, ranks may differ in what they wait for.
        ordinary = min(usual, float(np.median(list(usual_ns.values())))) if has_device else usual
        rows = thinking[rank]
        paused = think[rows]
        for busy in (loading(tables, rank), allocating(tables.columns("launches", rank))):
            host_time = _on_common_clock(busy, clocks, rank)
            paused = paused - host_time.within(nodes.start[rows] - think[rows], nodes.start[rows])
        steps = len(numbered(nodes.step[rows])[0])
        least = max(PAUSE_NS, PAUSE_RATIO * ordinary)
        if has_device:
            least = min(least, _outstanding(paused, steps))
        elif (paused > least).sum() > steps:
            least = max(SLICE_NS, PAUSE_RATIO * usual)
        pauses_by_rank.append(rows[paused > least])
    return np.concatenate(pauses_by_rank)


def _usual(graph: Graph, think: Ints, rows: Ints) -> float:
    """Return the 99th percentile of a rank's think times; with few of them, leave out each step's longest instead."""
    steps = len(numbered(graph.nodes.step[rows])[0])
    longest = (PAUSES_A_STEP if graph.nodes.of_host[rows].any() else 3) * steps
    return float(np.quantile(think[rows], min(0.99, max(0.5, 1 - longest / len(rows)))))


def _outstanding(paused: Ints, steps: int) -> float:
    """Return a limit below the few possible pauses that are much longer than all others, or infinity without any."""
    longest = -np.sort(-paused)[: PAUSES_A_STEP * steps + 1]
    stands_out = (longest[:-1] >= STANDS_OUT * longest[1:]) & (longest[:-1] > PAUSE_NS)
    return float(longest[1:][stands_out].max(initial=PAUSE_NS)) if stands_out.any() else float("inf")


def hosts_seen(graph: Graph, tables: TableSet) -> dict[int, bool]:
    """Return for each rank whether its trace shows the host's work; device work alone does not."""
    of_host = graph.nodes.of_host
    return {
        rank: bool(of_host[graph.nodes.of_rank(rank)].any()) or not len(tables.columns("kernels", rank))
        for rank in tables.ranks
    }


def allocating(launches: Columns) -> tuple[Ints, Ints]:
    """Return starts and ends of a rank's device memory allocations and frees, on the host's own clock."""
    memory_calls = time_of(launches, launches.satisfies("name", TAKES_MEMORY.search))
    return memory_calls.start, memory_calls.end


def _on_common_clock(ranges: tuple[Ints, Ints], clocks: RankClocks, rank: int) -> Intervals:
    """Return ranges on a rank's own clock as intervals on the common clock."""
    begin, end = ranges
    return union(clocks.align_host(rank, begin), clocks.align_host(rank, end))


def think_times(graph: Graph) -> Ints:
    """Return the think time before each node, since the previous node of its lane or since its last wait ended."""
    return graph.memo("think times", lambda: _think_times(graph))


def _think_times(graph: Graph) -> Ints:
    nodes, is_thinking = graph.nodes, thinks(graph)
    think = np.where(is_thinking, np.maximum(graph.gap, 0), 0)
    # If a node waited, its think time is the lag of the edge that came last.
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
    """Mark the edges whose lag contains think time of the host."""
    return np.asarray(_HOLD_THOUGHT[edges.kind])


def posts(graph: Graph) -> Flags:
    """Mark communication posted by a host without a device."""
    nodes = graph.nodes
    return nodes.memo("posts", lambda: (nodes.kind == NodeKind.COMMUNICATION) & ~nodes.of_ranks_with(nodes.of_host))


def thinks(graph: Graph) -> Flags:
    """Mark the nodes that can have think time before them: host calls, and compute on CPU traces."""
    nodes = graph.nodes
    return nodes.memo(
        "thinks",
        lambda: nodes.of_host | ((nodes.kind == NodeKind.COMPUTE) & ~nodes.of_ranks_with(nodes.of_host)),
    )


def lane_before(graph: Graph) -> Ints:
    """Return the end of the previous node of each node's lane, or the node's own start if there is none."""
    nodes = graph.nodes
    return np.where(nodes.first_of_lane, nodes.start, np.minimum(np.roll(nodes.end, 1), nodes.start))


def loading(tables: TableSet, rank: int) -> tuple[Ints, Ints]:
    """Return starts and ends of the times in which a rank's host is in the data loader, on its own clock."""
    return tables.memo_of_rank(rank, "loading", lambda: _loading(tables, rank))


def _loading(tables: TableSet, rank: int) -> tuple[Ints, Ints]:
    marks, ops = tables.columns("annotations", rank), tables.columns("ops", rank)
    in_marks = time_of(marks, marks.satisfies("name", LOADS_DATA.search) & ~marks["on_device"])
    loader = in_marks | time_of(ops, ops.satisfies("name", LOADS_DATA.search))
    return loader.start, loader.end


def loading_ns(tables: TableSet, rank: int) -> int:
    """Return the total time in ns that a rank's host spends in the data loader."""
    begin, end = loading(tables, rank)
    return int((end - begin).sum())


def overlap(begin: Ints, end: Ints, low: Ints, high: Ints) -> Ints:
    """Return how much of each span low..high is covered by sorted intervals."""
    return np.maximum(Intervals(begin, end).within(low, high), 0)
