"""Which tables would the predicted run have? Those of the recorded one, with every event where the replay puts it.

Work that the graph holds is moved exactly. What lies between (ops, annotations, Python functions) moves with the host's
calls around it: between two of them, time is stretched evenly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from usp_prof.tables import clock
from usp_prof.tables.table_set import MemorySource, TableSet
from usp_prof.whatif.graph import NodeKind
from usp_prof.whatif.step_times import moved

if TYPE_CHECKING:
    from collections.abc import Mapping

    from usp_prof.whatif.graph import Graph, Ints, Timeline

_BY_EVENT = ("kernels", "launches", "ops", "annotations", "activities", "actions", "memory")
_AS_THEY_ARE = ("threads", "groups", "health", "ranks")
_DEVICE_RANGES = ("gpu_user_annotation",)


def retimed(tables: TableSet, graph: Graph, timeline: Timeline) -> TableSet:
    """Give the tables of a run as a replay of its graph would have it."""
    sources = {rank: MemorySource(_rank_tables(tables, graph, timeline, rank)) for rank in tables.ranks}
    found = TableSet(sources, manifest=tables.manifest, health=tables.health, topology=tables.topology)
    found.assumptions = tables.assumptions
    clocks = clock.of(tables)
    found.memo("clock", lambda: clocks)  # ends of calls move, clocks do not
    return found


class _Moves:
    """How the times of one rank move, on its own clock."""

    def __init__(self, tables: TableSet, graph: Graph, timeline: Timeline, rank: int) -> None:
        nodes = graph.nodes
        rows = np.flatnonzero((nodes.rank == rank) & graph.measured)
        event = nodes.event[rows] if nodes.event is not None else np.full(len(rows), -1)
        clocks = clock.of(tables)
        self.start, self.end = (clocks.local(rank, when[rows]) for when in (nodes.start, nodes.end))
        self.new_start = self.start + (timeline.start - nodes.start)[rows]
        self.new_end = self.end + (timeline.end - nodes.end)[rows]
        kind = nodes.kind[rows]
        self.device = (kind != NodeKind.HOST) & (kind != NodeKind.RETURN)
        events = tables.columns("events", rank)
        self.event_start, duration = events["start_ns"], events["dur_ns"]
        host = ~self.device if (~self.device).any() else kind == NodeKind.COMPUTE
        self.on_host = host
        self.steps = self._steps(tables, graph, timeline, rank, rows)
        ends = self.event_start + np.maximum(duration, 0)
        start, end = self.host(self.event_start), self.host(ends)
        ranges = events.matches("category", *_DEVICE_RANGES)
        start[ranges], end[ranges] = self.work(self.event_start[ranges]), self.work(ends[ranges])
        place = event[self.device]
        # A posted transfer's range ends when it is asked for, later than its node: by what the node moves, it moves.
        start[place] = self.event_start[place] + (timeline.start - nodes.start)[rows][self.device]
        end[place] = ends[place] + (timeline.end - nodes.end)[rows][self.device]
        self.events = start, np.where(duration < 0, duration, np.maximum(end - start, 0))

    def _steps(
        self, tables: TableSet, graph: Graph, timeline: Timeline, rank: int, rows: Ints
    ) -> dict[str, tuple[Ints, Ints]]:
        """Give where the steps' bounds were, and where they are now."""
        steps, clocks = tables.columns("steps", rank), clock.of(tables)
        work = rows[self.device]
        found = {}
        for name in ("start_ns", "end_ns"):
            aligned = clocks.align(rank, steps[name])
            shift = moved(aligned, work, graph, timeline) - aligned if len(work) else np.zeros_like(aligned)
            found[name] = (steps[name], steps[name] + shift)
        return found

    def host(self, when: Ints) -> Ints:
        """Move moments of the host: with the calls around them, and with the steps' bounds where there is no device."""
        before = [self.start[self.on_host], self.end[self.on_host]]
        after = [self.new_start[self.on_host], self.new_end[self.on_host]]
        if not (~self.device).any():
            before += [self.steps[name][0] for name in ("start_ns", "end_ns")]
            after += [self.steps[name][1] for name in ("start_ns", "end_ns")]
        return _warped(when, np.concatenate(before), np.concatenate(after))

    def work(self, when: Ints) -> Ints:
        """Move moments of the device."""
        rows = self.device
        return _warped(
            when,
            np.concatenate([self.start[rows], self.end[rows]]),
            np.concatenate([self.new_start[rows], self.new_end[rows]]),
        )


def _warped(when: Ints, before: Ints, after: Ints) -> Ints:
    """Move moments with anchors: evenly between two, with the nearest beyond all."""
    if not len(before):
        return when.copy()
    order = np.lexsort((after, before))
    before, after = before[order], np.maximum.accumulate(after[order])
    last = np.append(before[1:] != before[:-1], True)
    before, after = before[last], after[last]
    place = np.clip(np.searchsorted(before, when, side="right") - 1, 0, len(before) - 1)
    upper = np.minimum(place + 1, len(before) - 1)
    span = before[upper] - before[place]
    inside = (when >= before[0]) & (when <= before[-1]) & (span > 0)
    share = np.where(inside, (when - before[place]) / np.maximum(span, 1), 0.0)
    between = after[place] + np.rint(share * (after[upper] - after[place])).astype(np.int64)
    return np.where(inside, between, after[place] + when - before[place])


def _rank_tables(tables: TableSet, graph: Graph, timeline: Timeline, rank: int) -> Mapping[str, pa.Table]:
    moves = _Moves(tables, graph, timeline, rank)
    start, duration = moves.events
    found = {name: tables.arrow(name, [rank]) for name in _AS_THEY_ARE}
    found["events"] = _with(tables.arrow("events", [rank]), start_ns=start, dur_ns=duration)
    for name in _BY_EVENT:
        table = tables.arrow(name, [rank])
        row = table["event"].to_numpy()
        changes = {"start_ns": start[row]}
        if "dur_ns" in table.column_names:
            changes["dur_ns"] = duration[row]
        if name == "actions":
            ends = table["device_end_ns"].to_numpy()
            on_host = not (~moves.device).any()
            move = moves.host if on_host else moves.work
            changes["device_start_ns"] = move(table["device_start_ns"].to_numpy())
            changes["device_end_ns"] = move(ends)
        found[name] = _with(table, **changes)
    parts = tables.arrow("collectives", [rank])
    event, post = parts["event"].to_numpy(), parts["op_event"].to_numpy()
    row = np.where(event >= 0, event, post)
    known = row >= 0
    was = parts["start_ns"].to_numpy()
    found["collectives"] = _with(
        parts,
        start_ns=np.where(known, start[row], moves.host(was)),
        dur_ns=np.where(known, duration[row], parts["dur_ns"].to_numpy()),
    )
    steps = tables.arrow("steps", [rank])
    host = {name: moves.host(steps[name].to_numpy()) for name in ("host_start_ns", "host_end_ns")}
    found["steps"] = _with(steps, **{name: pair[1] for name, pair in moves.steps.items()}, **host)
    return found


def _with(table: pa.Table, **columns: Ints) -> pa.Table:
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), table.schema.field(name), pa.array(values))
    return table
