"""Host gaps: think times before nodes, and data loading.

The *think time* before a node is the part of the preceding gap that the host spends on its own work: Python between two
launches, the data loader, or an occasional pause (garbage collection, a checkpoint, another process on its core).
"""

from __future__ import annotations

import re

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.intervals import Intervals, time_of, union
from usp_prof.columns.table import Columns
from usp_prof.model.selection import EVERYTHING
from usp_prof.replay.graph import EdgeKind, Edges, Graph, NodeKind
from usp_prof.replay.rank_clocks import RankClocks, rank_clocks
from usp_prof.tables.table_set import TableSet, memoized_of_rank

LOADS_DATA = re.compile(r"dataloader|data_loader|^train::input\b", re.IGNORECASE)
"""Annotations and ops in which the host fetches the next batch."""

TAKES_MEMORY = re.compile(r"^(cuda|hip|cu)(Malloc|Free|MemAlloc|MemFree|MemCreate|MemMap|MemUnmap)(Async)?(_v\d)?$")
"""Calls that allocate or free device memory, which the caching allocator makes when its cache is exhausted."""

_HOLD_THOUGHT = np.array([kind in (EdgeKind.WAIT, EdgeKind.ISSUE, EdgeKind.SYNC) for kind in EdgeKind])


def hosts_seen(graph: Graph, tables: TableSet) -> dict[int, bool]:
    """Return for each rank whether its trace shows the host's work; device work alone does not."""
    of_host = graph.nodes.of_host
    return {
        rank: bool(of_host[graph.nodes.of_rank(rank)].any()) or not tables.ran_on_gpu(rank) for rank in tables.ranks
    }


def allocating(launches: Columns) -> tuple[Ints, Ints]:
    """Return starts and ends of a rank's device memory allocations and frees, on the host's own clock."""
    memory_calls = time_of(launches, launches.satisfies("name", TAKES_MEMORY.search))
    return memory_calls.start, memory_calls.end


def on_common_clock(ranges: tuple[Ints, Ints], clocks: RankClocks, rank: int) -> Intervals:
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
        loader = on_common_clock(loading(tables, rank), clocks, rank)
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


@memoized_of_rank
def loading(tables: TableSet, rank: int) -> tuple[Ints, Ints]:
    """Return starts and ends of the times in which a rank's host is in the data loader, on its own clock."""
    marks, ops = tables.columns("annotations", rank), tables.columns("ops", rank)
    in_marks = time_of(marks, marks.satisfies("name", LOADS_DATA.search) & ~marks["on_device"])
    loader = in_marks | time_of(ops, ops.satisfies("name", LOADS_DATA.search))
    return loader.start, loader.end


def loading_per_step_ns(tables: TableSet, rank: int) -> float:
    """Return the mean time in ns per step that a rank's host spends in the data loader."""
    begin, end = loading(tables, rank)
    steps = tables.columns("steps", rank)
    counts = tables.selects(EVERYTHING, steps["step"])
    in_other_steps = overlap(begin, end, steps["host_start_ns"][~counts], steps["host_end_ns"][~counts])
    return float((end - begin).sum() - in_other_steps.sum()) / max(int(counts.sum()), 1)


def overlap(begin: Ints, end: Ints, low: Ints, high: Ints) -> Ints:
    """Return how much of each span low..high is covered by sorted intervals."""
    return np.maximum(Intervals(begin, end).within(low, high), 0)
