"""Which changes can be made to a run? Each edit is one function from graph to graph, listed in `EDITS`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.tables import clock
from usp_prof.whatif.graph import EdgeKind, Edges, Graph, NodeKind
from usp_prof.whatif.links import as_peers, calls_of
from usp_prof.whatif.peers import slowness

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.model.edit import Edit
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.graph import Flags, Ints

LOADS_DATA = re.compile(r"dataloader|data_loader|^train::input\b", re.IGNORECASE)
"""Annotations and ops in which the host fetches the next batch."""

GRAPH_GAP_NS = 1_000
"""Between kernels of a CUDA graph about a microsecond passes."""

PAUSE_NS = 2_000_000
"""A pause of the host shorter than this is not told from ordinary work."""
PAUSE_RATIO = 20.0
"""A pause is so many times the 99th percentile of the rank's ordinary think times."""


@dataclass(frozen=True, slots=True)
class EditKind:
    """One kind of edit: how it is made, and a sentence with an example for the help."""

    name: str
    example: str
    doc: str
    apply: Callable[[Graph, Edit, TableSet], Graph]


def compute_faster(graph: Graph, edit: Edit, tables: TableSet) -> Graph:  # noqa: ARG001 - all edits are called alike
    """Let compute take 1/value of its time; keys: rank, name (part of the activity's name)."""
    factor = _positive(edit)
    rows = graph.nodes.kind == NodeKind.COMPUTE
    if edit.place("rank"):
        rows &= graph.nodes.rank == int(edit.number("rank"))
    if edit.place("name"):
        named = np.array([edit.place("name") in name for name in graph.names] + [False])
        rows &= named[graph.nodes.name]
    return graph.with_changes(duration=_scaled(graph.duration, rows, factor))


def rank_as_peers(graph: Graph, edit: Edit, tables: TableSet) -> Graph:
    """Let a rank (or `all` slower ones) compute as fast as the median of its peers, and think as fast."""
    found = slowness(tables, graph)
    wanted = [rank for rank, each in found.items() if each.ratio > 1] if edit.value in ("all", "") else [_rank(edit)]
    for rank in wanted:
        if rank not in found:
            raise UsageError(f"rank {rank} has no peers to be compared with", hint=f"one of {sorted(found)}")
    duration = graph.duration
    for rank in wanted:
        rows = (graph.nodes.rank == rank) & (graph.nodes.kind == NodeKind.COMPUTE)
        duration = _scaled(duration, rows, found[rank].ratio)
    return graph.with_changes(duration=duration)


def comm_faster(graph: Graph, edit: Edit, tables: TableSet) -> Graph:  # noqa: ARG001
    """Let transfers take 1/value of their time; keys: axis. Waiting for late members stays."""
    return _faster(graph, graph.on_axis(edit.place("axis")), _positive(edit))


def link_as_peers(graph: Graph, edit: Edit, tables: TableSet) -> Graph:
    """Let a group's transfers (or those of `all` slower groups) be as fast as other groups' of the same operation."""
    return graph.with_changes(transfer=as_peers(graph, tables, edit.value))


def comm_hidden(graph: Graph, edit: Edit, tables: TableSet) -> Graph:  # noqa: ARG001
    """Let nothing but the next step wait for communication; keys: axis. What compute cannot cover stays exposed."""
    rows = graph.on_axis(edit.place("axis"))
    edges = graph.edges
    return graph.with_changes(edges=edges.take(~((edges.kind == EdgeKind.WAIT) & rows[edges.source])))


def comm_removed(graph: Graph, edit: Edit, tables: TableSet) -> Graph:  # noqa: ARG001
    """Take communication out: no transfer, no waiting for each other; keys: axis."""
    rows = graph.on_axis(edit.place("axis"))
    return graph.with_changes(duration=np.where(rows, 0, graph.duration), tied=graph.tied & ~rows)


def bucketed(graph: Graph, edit: Edit, tables: TableSet) -> Graph:
    """Let small collectives of an axis (value: bytes) move at the bandwidth that its large ones reach; keys: axis."""
    rows = graph.on_axis(edit.place("axis")) & graph.tied
    size = _bytes(graph, tables)
    limit = edit.number(default=1e6)
    known = rows & (size > 0) & (graph.transfer > 0)
    large = known & (size >= limit)
    small = known & (size < limit)
    if not large.any() or not small.any():
        return graph
    rate = float(np.median(size[large] / graph.transfer[large]))
    ideal = np.minimum((size / rate).astype(np.int64), graph.transfer)
    return graph.with_changes(transfer=np.where(small, ideal, graph.transfer))


def no_launch_gaps(graph: Graph, edit: Edit, tables: TableSet) -> Graph:  # noqa: ARG001 - all are called alike
    """Let the device run without waiting for launches, as CUDA graphs do; the host's waits and pauses stay."""
    device = np.isin(graph.nodes.kind, (NodeKind.COMPUTE, NodeKind.COPY))
    first = np.ones(len(device), dtype=bool)
    first[1:] = graph.nodes.lane[1:] != graph.nodes.lane[:-1]
    begins = np.zeros(len(device), dtype=bool)  # a graph is launched after the host has waited, loaded or paused
    begins[pauses(graph, tables)] = True
    begins |= _loads(graph, tables) | np.roll(graph.nodes.kind == NodeKind.RETURN, 1)
    kept = ~((graph.edges.kind == EdgeKind.LAUNCH) & (device & ~first)[graph.edges.target])
    kept |= begins[graph.edges.source]
    gap = np.where(device, np.minimum(graph.gap, GRAPH_GAP_NS), graph.gap)
    return graph.with_changes(gap=gap, edges=graph.edges.take(kept))


def no_input_wait(graph: Graph, edit: Edit, tables: TableSet) -> Graph:  # noqa: ARG001
    """Let the next batch always be there: what the host spends in the data loader takes no time."""
    gap, duration = graph.gap.copy(), graph.duration.copy()
    clocks = clock.of(tables)
    before = _before(graph)
    for rank in tables.ranks:
        begin, end = (clocks.align(rank, when) for when in _loading(tables, rank))
        if not len(begin):
            continue
        rows = np.flatnonzero(_thinks(graph) & (graph.nodes.rank == rank))
        covered = _overlap(begin, end, before[rows], graph.nodes.start[rows])
        gap[rows] -= np.minimum(covered, np.maximum(gap[rows], 0))
        covered = _overlap(begin, end, graph.nodes.start[rows], graph.nodes.end[rows])
        duration[rows] -= np.minimum(covered, duration[rows])
    edges = graph.edges
    lag = edges.lag.copy()
    late = np.flatnonzero(_thinks(graph)[edges.target] & (edges.kind != EdgeKind.LAUNCH) & (lag > 0))
    moved = np.array([lag[late]]).ravel()
    for rank in tables.ranks:
        begin, end = (clocks.align(rank, when) for when in _loading(tables, rank))
        mine = graph.nodes.rank[edges.target[late]] == rank
        if len(begin) and mine.any():
            till = graph.nodes.start[edges.target[late[mine]]]
            moved[mine] -= np.minimum(_overlap(begin, end, till - lag[late[mine]], till), moved[mine])
    lag[late] = moved
    return graph.with_changes(
        gap=gap, duration=duration, edges=Edges(edges.source, edges.at_end, edges.target, lag, edges.kind)
    )


def no_pauses(graph: Graph, edit: Edit, tables: TableSet) -> Graph:  # noqa: ARG001
    """Take out pauses of the host (garbage collection, preemption): think times far beyond the rank's ordinary ones."""
    paused = np.zeros(len(graph.nodes), dtype=bool)
    paused[pauses(graph, tables)] = True
    edges = graph.edges
    lag = np.where(paused[edges.target] & _holds_thought(edges), 0, edges.lag)
    return graph.with_changes(
        gap=np.where(paused, np.minimum(graph.gap, 0), graph.gap),
        edges=Edges(edges.source, edges.at_end, edges.target, lag, edges.kind),
    )


def pauses(graph: Graph, tables: TableSet) -> Ints:
    """Find the nodes before which the host paused; waiting for data is no pause."""
    found = []
    clocks, think = clock.of(tables), think_times(graph)
    for rank in tables.ranks:
        rows = np.flatnonzero((graph.nodes.rank == rank) & (think > 0))
        if not len(rows):
            continue
        begin, end = (clocks.align(rank, when) for when in _loading(tables, rank))
        loads = _overlap(begin, end, graph.nodes.start[rows] - think[rows], graph.nodes.start[rows])
        # In short recordings a pause in each step is among the largest hundredth already.
        steps = len(np.unique(graph.nodes.step[rows]))
        usual = float(np.quantile(think[rows], min(0.99, max(0.5, 1 - 3 * steps / len(rows)))))
        limit = max(PAUSE_NS, PAUSE_RATIO * usual)
        found.append(rows[think[rows] - loads > limit])
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def think_times(graph: Graph) -> Ints:
    """Give the host's think time before each node: after its lane's node before, or after what it had waited for."""
    thinks, edges = _thinks(graph), graph.edges
    think = np.where(thinks, np.maximum(graph.gap, 0), 0)
    rows = np.flatnonzero(_holds_thought(edges) & (thinks[edges.target] | _posts(graph)[edges.target]))
    arrived = np.where(edges.at_end[rows], graph.nodes.end[edges.source[rows]], graph.nodes.start[edges.source[rows]])
    bound = arrived + edges.lag[rows] == graph.nodes.start[edges.target[rows]]
    np.maximum.at(think, edges.target[rows[bound]], edges.lag[rows[bound]])
    return np.asarray(think)


def _loads(graph: Graph, tables: TableSet) -> Flags:
    """Mark the nodes before which the host was in the data loader."""
    found = np.zeros(len(graph.nodes), dtype=bool)
    clocks, think = clock.of(tables), think_times(graph)
    for rank in tables.ranks:
        begin, end = (clocks.align(rank, when) for when in _loading(tables, rank))
        rows = np.flatnonzero((graph.nodes.rank == rank) & (think > 0))
        found[rows] = _overlap(begin, end, graph.nodes.start[rows] - think[rows], graph.nodes.start[rows]) > 0
    return found


def _holds_thought(edges: Edges) -> Flags:
    return np.isin(edges.kind, (EdgeKind.WAIT, EdgeKind.ISSUE, EdgeKind.SYNC))


def _posts(graph: Graph) -> Flags:
    """Mark communication that a host posts by itself: that of ranks without a device."""
    with_host = np.unique(graph.nodes.rank[graph.nodes.kind == NodeKind.HOST])
    talks = graph.nodes.kind == NodeKind.COMMUNICATION
    return np.asarray(talks & ~np.isin(graph.nodes.rank, with_host))


EDITS: tuple[EditKind, ...] = (
    EditKind("compute_faster", "compute_faster=1.5,rank=3", compute_faster.__doc__ or "", compute_faster),
    EditKind("rank_as_peers", "rank_as_peers=7", rank_as_peers.__doc__ or "", rank_as_peers),
    EditKind("link_as_peers", "link_as_peers=all", link_as_peers.__doc__ or "", link_as_peers),
    EditKind("comm_faster", "comm_faster=2,axis=dp", comm_faster.__doc__ or "", comm_faster),
    EditKind("comm_hidden", "comm_hidden,axis=dp", comm_hidden.__doc__ or "", comm_hidden),
    EditKind("comm_removed", "comm_removed,axis=tp", comm_removed.__doc__ or "", comm_removed),
    EditKind("bucketed", "bucketed=1e6,axis=dp", bucketed.__doc__ or "", bucketed),
    EditKind("no_launch_gaps", "no_launch_gaps", no_launch_gaps.__doc__ or "", no_launch_gaps),
    EditKind("no_input_wait", "no_input_wait", no_input_wait.__doc__ or "", no_input_wait),
    EditKind("no_pauses", "no_pauses", no_pauses.__doc__ or "", no_pauses),
)
"""The edits of the graph. Another schedule is no edit of the graph but of the order of actions: `schedule.py`."""


def apply(graph: Graph, edit: Edit, tables: TableSet) -> Graph:
    """Make one edit."""
    known = {kind.name: kind for kind in EDITS}
    if edit.name not in known:
        raise unknown_name("edit", edit.name, [*known, "schedule"])
    return known[edit.name].apply(graph, edit, tables)


def _faster(graph: Graph, rows: Flags, factor: float) -> Graph:
    return graph.with_changes(
        duration=_scaled(graph.duration, rows & ~graph.tied, factor),
        transfer=_scaled(graph.transfer, rows & graph.tied, factor),
    )


def _scaled(values: Ints, rows: Flags, factor: float) -> Ints:
    return np.where(rows, np.rint(values / factor).astype(np.int64), values)


def _positive(edit: Edit) -> float:
    factor = edit.number()
    if factor <= 0:
        raise UsageError(f"edit {edit}: the factor must be more than 0", hint="2 means twice as fast")
    return factor


def _rank(edit: Edit) -> int:
    return int(edit.number())


def _thinks(graph: Graph) -> Flags:
    """Mark the nodes before which a host thinks: its calls, and on CPU traces the computing lane."""
    host = np.isin(graph.nodes.kind, (NodeKind.HOST, NodeKind.RETURN))
    with_host = np.unique(graph.nodes.rank[host])
    return np.asarray(host | ((graph.nodes.kind == NodeKind.COMPUTE) & ~np.isin(graph.nodes.rank, with_host)))


def _before(graph: Graph) -> Ints:
    """Give the end of each node's lane predecessor; its own start where it has none."""
    before = np.roll(graph.nodes.end, 1)
    first = np.ones(len(before), dtype=bool)
    first[1:] = graph.nodes.lane[1:] != graph.nodes.lane[:-1]
    return np.where(first, graph.nodes.start, np.minimum(before, graph.nodes.start))


def _loading(tables: TableSet, rank: int) -> tuple[Ints, Ints]:
    found = []
    for name in ("annotations", "ops"):
        table = tables.columns(name, rank)
        codes, texts = table.codes("name")
        hits = np.array([LOADS_DATA.search(text) is not None for text in texts] + [False])[codes]
        if name == "annotations":
            hits &= ~table["on_device"]
        found.append((table["start_ns"][hits], (table["start_ns"] + table["dur_ns"])[hits]))
    begin, end = (np.concatenate(column) for column in zip(*found, strict=True))
    return _union(begin, end)


def loading_ns(tables: TableSet, rank: int) -> int:
    """Measure how long a rank's host is inside the data loader, over the whole recording."""
    begin, end = _loading(tables, rank)
    return int((end - begin).sum())


def _union(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    if not len(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    head = np.append(True, begin[1:] > reach[:-1])
    last = np.append(np.flatnonzero(head)[1:] - 1, len(begin) - 1)
    return begin[head], np.asarray(reach[last])


def _overlap(begin: Ints, end: Ints, low: Ints, high: Ints) -> Ints:
    """Measure how much of each span low..high lies in a union of intervals."""
    if not len(begin):
        return np.zeros(len(low), np.int64)
    sums = np.append(0, np.cumsum(end - begin))

    def covered(when: Ints) -> Ints:
        place = np.searchsorted(begin, when, side="right")
        inside = np.where(place > 0, np.maximum(end[np.maximum(place, 1) - 1] - when, 0), 0)
        return np.asarray(sums[place] - inside)

    return np.asarray(np.maximum(covered(high) - covered(low), 0))


def _bytes(graph: Graph, tables: TableSet) -> Ints:
    """Give the bytes of each tied part's call."""
    return np.asarray(np.append(calls_of(tables)["bytes"], -1)[graph.nodes.call], np.int64)
