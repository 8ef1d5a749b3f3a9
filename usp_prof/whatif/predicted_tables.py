"""Tables of a predicted run: the recorded tables with each event at its replayed time.

Work in the graph moves with its node. Events in between (ops, annotations, Python functions) are interpolated between
the host calls around them. If one call stays at 100 and the next moves from 200 to 300, an op that started at 150
starts at 200. Columns are moved when they are read, because most queries need few of them.
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
from usp_prof.replay.step_times import moved_steps
from usp_prof.tables import clock
from usp_prof.tables.table_set import TableSet

if TYPE_CHECKING:
    import pyarrow as pa

    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.columns.table import Columns, View
    from usp_prof.replay.graph import Graph, Timeline

_AS_THEY_ARE = ("threads", "groups", "health", "ranks", "device_waits")
_DEVICE_RANGES = ("gpu_user_annotation",)
_ON_DEVICE = ("device_start_ns", "device_end_ns")
_BOUNDS = ("start_ns", "end_ns")
_TIMES = ("start_ns", "end_ns", "dur_ns", "host_start_ns", "host_end_ns", *_ON_DEVICE)


def retimed(tables: TableSet, graph: Graph, timeline: Timeline) -> TableSet:
    """Return the tables of a run with the times of a replay."""
    sources = {rank: _MovedTables(tables, _Moves(tables, graph, timeline, rank)) for rank in tables.ranks}
    predicted = TableSet(
        sources,
        manifest=tables.manifest,
        health=tables.health,
        topology=tables.topology,
        assumptions=tables.assumptions,
        cut_steps=tables.cut_steps,
    )
    predicted.recorded = tables.recorded or tables
    clocks = clock.fit_clocks(tables)
    predicted.memo("clock", lambda: clocks)  # ends of calls move, clocks do not
    return predicted


class _Moves:
    """Changed times of one rank, on its own clock.

    Its nodes are those from the trace, and those that an edit inserted in their place.
    """

    def __init__(self, tables: TableSet, graph: Graph, timeline: Timeline, rank: int) -> None:
        self.rank = rank
        self._tables, self._graph, self._timeline = tables, graph, timeline
        nodes = graph.nodes
        row = nodes.of_rank(rank)
        is_measured = row < len(nodes) - graph.added
        # A node inserted by an edit may replace a measured one; it then has that node's event.
        has_event = events_of(graph)[row] >= 0
        has_trace_data = is_measured | has_event
        self._node: Ints = row[has_trace_data]
        """Rows of the graph's nodes; the flags below have one entry per row."""
        self._is_measured: Flags = is_measured[has_trace_data]
        self._has_event: Flags = has_event[has_trace_data]
        self._on_device: Flags = ~nodes.of_host[self._node]
        self.is_host = bool(self._on_device.all())
        """Whether the rank has no device, so that the host does its work."""
        is_compute = nodes.kind[self._node] == NodeKind.COMPUTE
        self._on_host: Flags = is_compute if self.is_host else ~self._on_device

    @cached_property
    def steps(self) -> dict[str, tuple[Ints, Ints]]:
        """Recorded and new boundaries of the steps, by column."""
        steps, clocks = self._tables.columns("steps", self.rank), rank_clocks(self._tables)
        work = self._node[self._on_device & self._is_measured]
        if not len(work):
            return {name: (steps[name], steps[name]) for name in _BOUNDS}
        begin, end = (clocks.align_device(self.rank, steps[name]) for name in _BOUNDS)
        moved = moved_steps(begin, end, work, self._graph, self._timeline)
        return {
            name: (steps[name], steps[name] + after - before)
            for name, before, after in zip(_BOUNDS, (begin, end), moved, strict=True)
        }

    def spans(self, event: Ints) -> tuple[Ints, Ints]:
        """Return new starts and durations of events; the duration of an instant stays -1."""
        events, nodes = self._tables.columns("events", self.rank), self._graph.nodes
        was_start, duration = events["start_ns"][event], events["dur_ns"][event]
        was_end = was_start + np.maximum(duration, 0)
        start, end = np.empty_like(was_start), np.empty_like(was_end)
        # 1. Events of a node move with it. A posted transfer's range ends when the rank calls wait, later than its
        #    node; this end moves by the same amount as the node's end.
        node = self._node_of_event[event]
        has_node = node >= 0
        node = node[has_node]
        start[has_node] = was_start[has_node] + self._timeline.start[node] - nodes.start[node]
        end[has_node] = was_end[has_node] + self._timeline.end[node] - nodes.end[node]
        # 2. Device ranges move with the device work around them, 3. all others with the host's.
        is_device_range = ~has_node & events.matches("category", *_DEVICE_RANGES)[event]
        is_of_host = ~has_node & ~is_device_range
        for chosen, move in ((is_device_range, self.work), (is_of_host, self.host)):
            start[chosen], end[chosen] = move(was_start[chosen]), move(was_end[chosen])
        return start, np.where(duration < 0, duration, np.maximum(end - start, 0))

    def host(self, when: Ints) -> Ints:
        """Return moved host times: with the calls around them and, without a device, also with step boundaries."""
        return _warped(when, *self._host_anchors) if len(when) else when

    def work(self, when: Ints) -> Ints:
        """Return moved device times."""
        return _warped(when, *self._work_anchors) if len(when) else when

    @cached_property
    def _node_of_event(self) -> Ints:
        """Node of each event; -1 for events that are not activities."""
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
        """Return recorded and new starts and ends of the chosen nodes."""
        node, nodes, clocks = self._node[chosen], self._graph.nodes, rank_clocks(self._tables)
        # Nodes are on the common clock, and the rank's tables on its own.
        of_host = nodes.of_host[node]
        start, end = (
            np.where(of_host, clocks.local_host(self.rank, was[node]), clocks.local_device(self.rank, was[node]))
            for was in (nodes.start, nodes.end)
        )
        new_start = start + self._timeline.start[node] - nodes.start[node]
        new_end = end + self._timeline.end[node] - nodes.end[node]
        return np.concatenate([start, end]), np.concatenate([new_start, new_end])


def _in_order(before: Ints, after: Ints) -> tuple[Ints, Ints]:
    """Return anchors sorted by recorded time, without duplicates and with new times in the same order."""
    if not len(before):
        return before, after
    order = np.argsort(before, kind="stable")
    before, after = before[order], np.maximum.accumulate(after[order])
    is_last = last_of_run(before)
    return before[is_last], after[is_last]


def _warped(when: Ints, before: Ints, after: Ints) -> Ints:
    """Return times moved with the anchors: interpolated between two, shifted with the nearest one outside."""
    if not len(before):
        return when.copy()
    # Index of the anchor at or before each time, and of the next one.
    lower = np.clip(np.searchsorted(before, when, side="right") - 1, 0, len(before) - 1)
    upper = np.minimum(lower + 1, len(before) - 1)
    span = before[upper] - before[lower]
    is_between = (when >= before[0]) & (when <= before[-1]) & (span > 0)
    share = np.where(is_between, (when - before[lower]) / np.maximum(span, 1), 0.0)
    between = after[lower] + np.rint(share * (after[upper] - after[lower])).astype(np.int64)
    return np.where(is_between, between, after[lower] + when - before[lower])


class _MovedTables:
    """One rank's tables, whose time columns are moved when they are read."""

    def __init__(self, tables: TableSet, moves: _Moves) -> None:
        self._tables, self._moves = tables, moves
        self._spans: dict[str, tuple[Ints, Ints]] = {}

    def table(self, name: str) -> pa.Table:
        """Return one table of this rank."""
        return table_of(self.view(name))

    def view(self, name: str) -> View:
        """Return a view of the table whose time columns are moved when they are read."""
        view = self._tables.view(name, self._moves.rank)
        if name in _AS_THEY_ARE:
            return view
        moved_keys = [key for key in _TIMES if key in view.schema.names]
        return Replaced(view, {key: partial(self._column, name, key) for key in moved_keys})

    def release(self) -> None:
        """Drop the cached times."""
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
        """Return new starts and durations of a table's rows, from their events or, for parts without one, their ops."""
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
