"""Host gaps: what a rank's host did between its calls. It thinks, loads data, and now and then pauses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import lookup, numbered
from usp_prof.replay.graph import EdgeKind, NodeKind
from usp_prof.tables import clock

if TYPE_CHECKING:
    from usp_prof.columns.table import Columns
    from usp_prof.replay.graph import Edges, Flags, Graph, Ints
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
    hosts, clocks, think = graph.nodes.of_host, clock.of(tables), think_times(graph)
    seen = [rank for rank, known in hosts_seen(graph, tables).items() if known]
    thoughts = {rank: (mine := graph.nodes.of_rank(rank))[think[mine] > 0] for rank in seen}
    usual = {rank: _usual(graph, think, rows) for rank, rows in thoughts.items() if len(rows)}
    found = []
    for rank, own in usual.items():
        rows, on_device = thoughts[rank], bool(hosts[thoughts[rank]].any())
        # A host that pauses all the time is told from the others; on a CPU ranks may differ in what they wait for.
        ordinary = min(own, float(np.median(list(usual.values())))) if on_device else own
        least = max(PAUSE_NS, PAUSE_RATIO * ordinary)
        rows = rows[think[rows] > least]
        paused = think[rows]
        for begin, end in (loading(tables, rank), allocating(tables.columns("launches", rank))):
            there = (clocks.align(rank, begin), clocks.align(rank, end))
            paused = paused - overlap(*there, graph.nodes.start[rows] - think[rows], graph.nodes.start[rows])
        if not on_device and (paused > least).sum() > len(numbered(graph.nodes.step[thoughts[rank]])[0]):
            least = max(SLICE_NS, PAUSE_RATIO * own)
        found.append(rows[paused > least])
    return np.concatenate(found) if found else np.zeros(0, np.int64)


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
    """Give when a rank's host takes or gives back device memory, on its own clock."""
    codes, names = launches.codes("name")
    hits = lookup([TAKES_MEMORY.search(name) is not None for name in names], codes, missing=False)
    begin = launches["start_ns"][hits]
    return _union(begin, begin + launches["dur_ns"][hits])


def think_times(graph: Graph) -> Ints:
    """Give the host's think time before each node: after its lane's node before, or after what it had waited for."""
    return graph.memo("think times", lambda: _think_times(graph))


def _think_times(graph: Graph) -> Ints:
    thinking, edges = thinks(graph), graph.edges
    think = np.where(thinking, np.maximum(graph.gap, 0), 0)
    rows = np.flatnonzero(holds_thought(edges) & (thinking[edges.target] | posts(graph)[edges.target]))
    arrived = np.where(edges.at_end[rows], graph.nodes.end[edges.source[rows]], graph.nodes.start[edges.source[rows]])
    bound = arrived + edges.lag[rows] == graph.nodes.start[edges.target[rows]]
    np.maximum.at(think, edges.target[rows[bound]], edges.lag[rows[bound]])
    return np.asarray(think)


def loads_data(graph: Graph, tables: TableSet) -> Flags:
    """Mark the nodes before which the host was in the data loader."""
    found = np.zeros(len(graph.nodes), dtype=bool)
    clocks, think = clock.of(tables), think_times(graph)
    for rank in tables.ranks:
        begin, end = (clocks.align(rank, when) for when in loading(tables, rank))
        begin, end = (when[end > begin] for when in (begin, end))
        if not len(begin):
            continue
        rows = graph.nodes.of_rank(rank)
        rows = rows[think[rows] > 0]
        start = graph.nodes.start[rows]
        last = np.searchsorted(begin, start, side="left") - 1
        found[rows] = (last >= 0) & (end[last] > start - think[rows])
    return found


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
    """Give when a rank's host is inside the data loader, on its own clock."""
    return tables.memo(("loading", rank), lambda: _loading(tables, rank))


def _loading(tables: TableSet, rank: int) -> tuple[Ints, Ints]:
    found = []
    for name in ("annotations", "ops"):
        table = tables.columns(name, rank)
        codes, texts = table.codes("name")
        hits = lookup([LOADS_DATA.search(text) is not None for text in texts], codes, missing=False)
        if name == "annotations":
            hits &= ~table["on_device"]
        found.append((table["start_ns"][hits], (table["start_ns"] + table["dur_ns"])[hits]))
    begin, end = (np.concatenate(column) for column in zip(*found, strict=True))
    return _union(begin, end)


def loading_ns(tables: TableSet, rank: int) -> int:
    """Measure how long a rank's host is inside the data loader, over the whole recording."""
    begin, end = loading(tables, rank)
    return int((end - begin).sum())


def _union(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    if not len(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    head = np.append(True, begin[1:] > reach[:-1])
    last = np.append(np.flatnonzero(head)[1:] - 1, len(begin) - 1)
    return begin[head], np.asarray(reach[last])


def overlap(begin: Ints, end: Ints, low: Ints, high: Ints) -> Ints:
    """Measure how much of each span low..high lies in a union of intervals."""
    if not len(begin):
        return np.zeros(len(low), np.int64)
    sums = np.append(0, np.cumsum(end - begin))

    def covered(when: Ints) -> Ints:
        place = np.searchsorted(begin, when, side="right")
        inside = np.where(place > 0, np.maximum(end[np.maximum(place, 1) - 1] - when, 0), 0)
        return np.asarray(sums[place] - inside)

    return np.asarray(np.maximum(covered(high) - covered(low), 0))
