"""Tables of a predicted run: those of the recorded one, each event where the replay puts it.

Work that the graph holds moves as its node does. What lies between (ops, annotations, Python functions) moves with the
host's calls around it: between two of them, time is stretched evenly. With calls that move from 100 to 100 and from 200
to 300, an op that began at 150 begins at 200. A column is moved when it is asked for: most questions need few of them.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.arrow import index_of
from usp_prof.columns.rows import last_of_run
from usp_prof.columns.table import Replaced, table_of
from usp_prof.replay.graph import NodeKind, events_of
from usp_prof.replay.rank_clocks import rank_clocks
from usp_prof.replay.step_times import moved
from usp_prof.tables import clock
from usp_prof.tables.table_set import TableSet

if TYPE_CHECKING:
    import pyarrow as pa

    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.columns.table import Columns, View
    from usp_prof.replay.graph import Graph, Timeline

_AS_THEY_ARE = ("threads", "groups", "health", "ranks")
_DEVICE_RANGES = ("gpu_user_annotation",)
_ON_DEVICE = ("device_start_ns", "device_end_ns")
_TIMES = ("start_ns", "end_ns", "dur_ns", "host_start_ns", "host_end_ns", *_ON_DEVICE)


def retimed(tables: TableSet, graph: Graph, timeline: Timeline) -> TableSet:
    """Give the tables of a run as a replay of its graph would have it."""
    sources = {rank: _MovedTables(tables, _Moves(tables, graph, timeline, rank)) for rank in tables.ranks}
    predicted = TableSet(sources, manifest=tables.manifest, health=tables.health, topology=tables.topology)
    predicted.assumptions, predicted.recorded = tables.assumptions, tables.recorded or tables
    clocks = clock.of(tables)
    predicted.memo("clock", lambda: clocks)  # ends of calls move, clocks do not
    return predicted


class _Moves:
    """How the times of one rank move, on its own clock.

    Its nodes are those that a trace holds, and those that an edit put in their place.
    """

    def __init__(self, tables: TableSet, graph: Graph, timeline: Timeline, rank: int) -> None:
        self.rank = rank
        self._tables, self._graph, self._timeline = tables, graph, timeline
        nodes = graph.nodes
        row = nodes.of_rank(rank)
        is_measured = row < len(nodes) - graph.added
        # A node that an edit put in may stand for a measured one: then it has that one's event, which has none.
        has_event = events_of(graph)[row] >= 0
        kept = is_measured | has_event
        self._node: Ints = row[kept]
        """Rows of the graph's nodes; the flags below have an entry for each."""
        self._is_measured: Flags = is_measured[kept]
        self._has_event: Flags = has_event[kept]
        self._on_device: Flags = ~nodes.of_host[self._node]
        self.is_host = bool(self._on_device.all())
        """Whether the rank has no device: the host does its work."""
        is_compute = nodes.kind[self._node] == NodeKind.COMPUTE
        self._on_host: Flags = is_compute if self.is_host else ~self._on_device

    @cached_property
    def steps(self) -> dict[str, tuple[Ints, Ints]]:
        """Where the steps' bounds were, and where they are now."""
        steps, clocks = self._tables.columns("steps", self.rank), rank_clocks(self._tables)
        work = self._node[self._on_device & self._is_measured]
        bounds = {}
        for name in ("start_ns", "end_ns"):
            aligned = clocks.align_device(self.rank, steps[name])
            shift = moved(aligned, work, self._graph, self._timeline) - aligned if len(work) else np.zeros_like(aligned)
            bounds[name] = (steps[name], steps[name] + shift)
        return bounds

    def spans(self, event: Ints) -> tuple[Ints, Ints]:
        """Give when these events begin now, and how long they last; an instant (-1) stays one."""
        events, nodes = self._tables.columns("events", self.rank), self._graph.nodes
        was_start, duration = events["start_ns"][event], events["dur_ns"][event]
        was_end = was_start + np.maximum(duration, 0)
        start, end = np.empty_like(was_start), np.empty_like(was_end)
        # 1. Events of a node move as it does. A posted transfer's range ends when it is asked for, later than its
        #    node: that end moves by what the node's end moves.
        node = self._node_of_event[event]
        has_node = node >= 0
        node = node[has_node]
        start[has_node] = was_start[has_node] + self._timeline.start[node] - nodes.start[node]
        end[has_node] = was_end[has_node] + self._timeline.end[node] - nodes.end[node]
        # 2. Ranges on the device move with the device's work around them, 3. all others with the host's.
        is_device_range = ~has_node & events.matches("category", *_DEVICE_RANGES)[event]
        is_of_host = ~has_node & ~is_device_range
        for chosen, move in ((is_device_range, self.work), (is_of_host, self.host)):
            start[chosen], end[chosen] = move(was_start[chosen]), move(was_end[chosen])
        return start, np.where(duration < 0, duration, np.maximum(end - start, 0))

    def host(self, when: Ints) -> Ints:
        """Move moments of the host: with the calls around them, and with the steps' bounds where there is no device."""
        return _warped(when, *self._host_anchors) if len(when) else when

    def work(self, when: Ints) -> Ints:
        """Move moments of the device."""
        return _warped(when, *self._work_anchors) if len(when) else when

    @cached_property
    def _node_of_event(self) -> Ints:
        """Give each event's node; -1 for what is no activity."""
        node_of_event = np.full(len(self._tables.columns("events", self.rank)), -1, np.int64)
        node = self._node[self._on_device & self._has_event]
        node_of_event[events_of(self._graph)[node]] = node
        return node_of_event

    @cached_property
    def _host_anchors(self) -> tuple[Ints, Ints]:
        before, after = self._moments(self._on_host)
        if self.is_host:
            bounds = [self.steps[name] for name in ("start_ns", "end_ns")]
            before = np.concatenate([before, *(was for was, _ in bounds)])
            after = np.concatenate([after, *(now for _, now in bounds)])
        return _in_order(before, after)

    @cached_property
    def _work_anchors(self) -> tuple[Ints, Ints]:
        return _in_order(*self._moments(self._on_device & self._has_event))

    def _moments(self, chosen: Flags) -> tuple[Ints, Ints]:
        """Give the begins and ends of some of the rank's nodes, as they were and as they are now."""
        node, nodes, clocks = self._node[chosen], self._graph.nodes, rank_clocks(self._tables)
        # Nodes are on the common clock, the rank's tables on its own.
        of_host = nodes.of_host[node]
        start, end = (
            np.where(of_host, clocks.local_host(self.rank, was[node]), clocks.local_device(self.rank, was[node]))
            for was in (nodes.start, nodes.end)
        )
        new_start = start + self._timeline.start[node] - nodes.start[node]
        new_end = end + self._timeline.end[node] - nodes.end[node]
        return np.concatenate([start, end]), np.concatenate([new_start, new_end])


def _in_order(before: Ints, after: Ints) -> tuple[Ints, Ints]:
    """Put anchors in order of where they were, with no moment twice; what comes later never moves before it."""
    if not len(before):
        return before, after
    order = np.argsort(before, kind="stable")
    before, after = before[order], np.maximum.accumulate(after[order])
    is_last = last_of_run(before)
    return before[is_last], after[is_last]


def _warped(when: Ints, before: Ints, after: Ints) -> Ints:
    """Move moments with anchors: evenly between two, with the nearest beyond all."""
    if not len(before):
        return when.copy()
    # Place of the anchor at or before each moment, and of the next one.
    lower = np.clip(np.searchsorted(before, when, side="right") - 1, 0, len(before) - 1)
    upper = np.minimum(lower + 1, len(before) - 1)
    span = before[upper] - before[lower]
    is_between = (when >= before[0]) & (when <= before[-1]) & (span > 0)
    share = np.where(is_between, (when - before[lower]) / np.maximum(span, 1), 0.0)
    between = after[lower] + np.rint(share * (after[upper] - after[lower])).astype(np.int64)
    return np.where(is_between, between, after[lower] + when - before[lower])


class _MovedTables:
    """One rank's tables, of which the columns with times are moved when they are asked for."""

    def __init__(self, tables: TableSet, moves: _Moves) -> None:
        self._tables, self._moves = tables, moves
        self._spans: dict[str, tuple[Ints, Ints]] = {}

    def table(self, name: str) -> pa.Table:
        """Give one table of this rank."""
        return table_of(self.view(name))

    def view(self, name: str) -> View:
        """Give the same, not moved before its columns are asked for."""
        view = self._tables.view(name, self._moves.rank)
        if name in _AS_THEY_ARE:
            return view
        moved_keys = [key for key in _TIMES if key in view.schema.names]
        return Replaced(view, {key: partial(self._column, name, key) for key in moved_keys})

    def let_go(self) -> None:
        """Forget the moved times."""
        self._spans.clear()

    def _column(self, name: str, key: str) -> pa.Array:
        return index_of(self._times(name, key))

    def _times(self, name: str, key: str) -> Ints:
        table, moves = self._tables.columns(name, self._moves.rank), self._moves
        if key in _ON_DEVICE:
            return (moves.host if moves.is_host else moves.work)(table[key])
        if name == "steps" and key in moves.steps:
            return moves.steps[key][1]
        if name == "steps":
            return moves.host(table[key])
        if name not in self._spans:
            self._spans[name] = self._spanned(name, table)
        return self._spans[name][key == "dur_ns"]

    def _spanned(self, name: str, table: Columns) -> tuple[Ints, Ints]:
        """Give when the rows of a table begin now and how long they last: as their events, or a part's op."""
        if name == "events":
            return self._moves.spans(np.arange(len(table)))
        if name != "collectives":
            return self._moves.spans(table["event"])
        event = np.where(table["event"] >= 0, table["event"], table["op_event"])
        has_event = event >= 0
        start, duration = table["start_ns"].copy(), table["dur_ns"].copy()
        start[~has_event] = self._moves.host(start[~has_event])
        start[has_event], duration[has_event] = self._moves.spans(event[has_event])
        return start, duration
