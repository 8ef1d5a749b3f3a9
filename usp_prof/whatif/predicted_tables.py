"""Tables of a predicted run: those of the recorded one, each event where the replay puts it.

Work that the graph holds is moved exactly. What lies between (ops, annotations, Python functions) moves with the host's
calls around it: between two of them, time is stretched evenly. A column is moved when it is asked for: most questions
need few of them.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.arrow import index_of
from usp_prof.columns.table import Replaced, table_of
from usp_prof.replay.graph import NodeKind, events_of
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
    found = TableSet(sources, manifest=tables.manifest, health=tables.health, topology=tables.topology)
    found.assumptions, found.recorded = tables.assumptions, tables.recorded or tables
    clocks = clock.of(tables)
    found.memo("clock", lambda: clocks)  # ends of calls move, clocks do not
    return found


class _Moves:
    """How the times of one rank move, on its own clock."""

    def __init__(self, tables: TableSet, graph: Graph, timeline: Timeline, rank: int) -> None:
        self.rank = rank
        self._tables, self._graph, self._timeline = tables, graph, timeline
        rows = graph.nodes.of_rank(rank)
        is_measured = rows < len(graph.nodes) - graph.added
        # A node that an edit put in may stand for a measured one: then it has that one's event, which has none.
        has_event = events_of(graph)[rows] >= 0
        kept = is_measured | has_event
        self._rows = rows[kept]
        self._measured: Flags = is_measured[kept]
        self._placed: Flags = has_event[kept]
        kind = graph.nodes.kind[self._rows]
        self._device: Flags = ~graph.nodes.of_host[self._rows]
        self.is_host = bool(self._device.all())
        """Whether the rank has no device: the host does its work."""
        self._on_host = kind == NodeKind.COMPUTE if self.is_host else ~self._device

    @cached_property
    def steps(self) -> dict[str, tuple[Ints, Ints]]:
        """Where the steps' bounds were, and where they are now."""
        steps, clocks = self._tables.columns("steps", self.rank), clock.of(self._tables)
        work = self._rows[self._device & self._measured]
        found = {}
        for name in ("start_ns", "end_ns"):
            aligned = clocks.align(self.rank, steps[name])
            shift = moved(aligned, work, self._graph, self._timeline) - aligned if len(work) else np.zeros_like(aligned)
            found[name] = (steps[name], steps[name] + shift)
        return found

    def spans(self, row: Ints) -> tuple[Ints, Ints]:
        """Give when these events begin now, and how long they last."""
        events, nodes = self._tables.columns("events", self.rank), self._graph.nodes
        was, duration = events["start_ns"][row], events["dur_ns"][row]
        ends = was + np.maximum(duration, 0)
        node = self._node_of_event[row]
        held, start, end = node >= 0, np.empty_like(was), np.empty_like(was)
        # A posted transfer's range ends when it is asked for, later than its node: by what the node moves, it moves.
        node = node[held]
        start[held] = was[held] + self._timeline.start[node] - nodes.start[node]
        end[held] = ends[held] + self._timeline.end[node] - nodes.end[node]
        ranges = ~held & events.matches("category", *_DEVICE_RANGES)[row]
        for rows, move in ((ranges, self.work), (~held & ~ranges, self.host)):
            start[rows], end[rows] = move(was[rows]), move(ends[rows])
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
        found = np.full(len(self._tables.columns("events", self.rank)), -1, np.int64)
        rows = self._rows[self._device & self._placed]
        found[events_of(self._graph)[rows]] = rows
        return found

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
        return _in_order(*self._moments(self._device & self._placed))

    def _moments(self, chosen: Flags) -> tuple[Ints, Ints]:
        """Give the begins and ends of some of the rank's nodes, as they were and as they are now."""
        rows, nodes, clocks = self._rows[chosen], self._graph.nodes, clock.of(self._tables)
        pairs = ((nodes.start, self._timeline.start), (nodes.end, self._timeline.end))
        before = [clocks.local(self.rank, was[rows]) for was, _ in pairs]
        after = [own + now[rows] - was[rows] for own, (was, now) in zip(before, pairs, strict=True)]
        return np.concatenate(before), np.concatenate(after)


def _in_order(before: Ints, after: Ints) -> tuple[Ints, Ints]:
    """Put anchors in order, with no moment twice."""
    if not len(before):
        return before, after
    order = np.argsort(before, kind="stable")
    before, after = before[order], np.maximum.accumulate(after[order])
    last = np.append(before[1:] != before[:-1], True)
    return before[last], after[last]


def _warped(when: Ints, before: Ints, after: Ints) -> Ints:
    """Move moments with anchors: evenly between two, with the nearest beyond all."""
    if not len(before):
        return when.copy()
    place = np.clip(np.searchsorted(before, when, side="right") - 1, 0, len(before) - 1)
    upper = np.minimum(place + 1, len(before) - 1)
    span = before[upper] - before[place]
    inside = (when >= before[0]) & (when <= before[-1]) & (span > 0)
    share = np.where(inside, (when - before[place]) / np.maximum(span, 1), 0.0)
    between = after[place] + np.rint(share * (after[upper] - after[place])).astype(np.int64)
    return np.where(inside, between, after[place] + when - before[place])


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
        there = [key for key in _TIMES if key in view.schema.names]
        return Replaced(view, {key: partial(self._column, name, key) for key in there})

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
        row = np.where(table["event"] >= 0, table["event"], table["op_event"])
        known = row >= 0
        start, duration = table["start_ns"].copy(), table["dur_ns"].copy()
        start[~known] = self._moves.host(start[~known])
        start[known], duration[known] = self._moves.spans(row[known])
        return start, duration
