"""Step times of a replay: when each rank's steps begin and end in a run as recorded, and as edits make it.

A step's bound that lies within work moves with the work that begins next. If a rank is idle at a bound, as when it
waits for its input behind it, the bound keeps its distance from the work before: what an edit takes out of the wait is
then taken from the step that waited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import lookup, rows_by_code, sorted_by
from usp_prof.replay.build import graph_of
from usp_prof.replay.longest_path import make_plan, replay
from usp_prof.replay.rank_clocks import rank_clocks

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Flags, Floats, Ints
    from usp_prof.replay.graph import Graph, Timeline
    from usp_prof.replay.longest_path import Plan
    from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Parallel arrays: one entry for each rank and step that a replay can tell of."""

    rank: Ints
    step: Ints
    measured_ns: Ints
    replayed_ns: Ints
    is_cut: Flags
    """The step ended with the recording, while others end with a wait: what it waited for is not in it."""

    @property
    def error(self) -> Floats:
        """Relative error of each step."""
        return np.asarray(np.abs(self.replayed_ns - self.measured_ns) / np.maximum(self.measured_ns, 1))

    @property
    def whole(self) -> Flags:
        """Marks of steps that were recorded whole: all but those cut by the end of the recording, if any is left."""
        is_whole = ~np.isin(self.step, self.step[self.is_cut])
        return is_whole if is_whole.any() else np.ones_like(is_whole)

    @property
    def mean_measured_ns(self) -> float:
        """Mean step over ranks and whole steps."""
        return float(self.measured_ns[self.whole].mean()) if len(self.rank) else float("nan")

    @property
    def mean_replayed_ns(self) -> float:
        """Mean replayed step over ranks and whole steps."""
        return float(self.replayed_ns[self.whole].mean()) if len(self.rank) else float("nan")


def step_times(tables: TableSet, graph: Graph, timeline: Timeline) -> StepTimes:
    """Measure the steps of a timeline. A step is known where work of its own and of its neighbours bounds it."""
    of_ranks = [
        (
            np.full(len(step), rank),
            step,
            end.when - begin.when,
            end.moved(graph, timeline) - begin.moved(graph, timeline),
            _is_cut(begin, end),
        )
        for rank, step, begin, end in _bounds_of(tables, graph)
    ]
    if not of_ranks:
        nothing = np.zeros(0, np.int64)
        return StepTimes(nothing, nothing, nothing, nothing, nothing.astype(bool))
    return StepTimes(*(np.concatenate(column) for column in zip(*of_ranks, strict=True)))


LEAST_WAIT = 0.1
"""A last step that lacks a smaller share than this is as good as the others."""


def _is_cut(begin: Anchored, end: Anchored) -> Flags:
    """Mark steps that end with the last work of all and are shorter by the wait with which the rank's others end."""
    # A step's end is not inside where no work of the rank begins then or later.
    wait, length, is_last = end.when - end.ended, end.when - begin.when, ~end.inside
    if is_last.all() or wait[~is_last].sum() <= LEAST_WAIT * length[~is_last].sum():
        return np.zeros(len(length), dtype=bool)
    return np.asarray(is_last & (wait <= 0) & (length < (1 - LEAST_WAIT) * length[~is_last].mean()))


def _bounds_of(tables: TableSet, graph: Graph) -> list[tuple[int, Ints, Anchored, Anchored]]:
    """Give each rank's steps, and what their begins and ends move with."""
    if graph.added:
        return _bounds(tables, graph)
    key = ("whatif bounds of steps", id(graph.nodes))
    return tables.memo(key, lambda: (graph.nodes, _bounds(tables, graph)))[1]  # holds on to what the key names


def _bounds(tables: TableSet, graph: Graph) -> list[tuple[int, Ints, Anchored, Anchored]]:
    clocks = rank_clocks(tables)
    device = ~graph.nodes.of_host & graph.measured
    work = rows_by_code(np.where(device, graph.nodes.rank, -1))
    of_ranks = []
    for rank in tables.ranks:
        steps = tables.columns("steps", rank)
        if len(steps) and rank in work:
            begin, end = (clocks.align_device(rank, steps[name]) for name in ("start_ns", "end_ns"))
            order = sorted_by(graph.nodes.start, work[rank])
            of_ranks.append((rank, steps["step"], _anchored(begin, order, graph), _anchored(end, order, graph)))
    return of_ranks


@dataclass(frozen=True, slots=True, eq=False)
class Anchored:
    """Moments, and for each the first node that begins then or after; those behind all nodes go with the last end."""

    when: Ints
    first: Ints
    inside: Flags
    place: Ints
    """How many nodes begin before each moment."""
    ended: Ints
    """When the last of these had ended."""
    rows: Ints
    """The nodes, by their measured start."""

    def moved(self, graph: Graph, timeline: Timeline) -> Ints:
        """Move the moments as a timeline moves the nodes."""
        begins = timeline.start[self.first]
        moments = self.when + begins - graph.nodes.start[self.first]
        # A step that opens with a wait keeps its begin: it is shorter if the wait is.
        opens = (self.place == 0) & (graph.nodes.start[self.first] > self.when)
        moments = np.where(opens, self.when, moments)
        idle = (self.place > 0) & (self.ended <= self.when)
        if idle.any():
            ended = self._ended(graph, timeline)
            moments = np.where(idle, np.minimum(ended + self.when - self.ended, begins), moments)
        if self.inside.all():
            return moments
        last = int(timeline.end[self.rows].max())
        if graph.added:  # what an edit puts in may be what ends last
            last = int(timeline.end[self._added(graph)].max(initial=last))
        end_moved = last - int(graph.nodes.end[self.rows].max())
        return np.where(self.inside, moments, self.when + end_moved)

    def _added(self, graph: Graph) -> Ints:
        """Give what an edit put into the same rank."""
        rows = np.arange(len(graph.nodes) - graph.added, len(graph.nodes))
        return np.asarray(rows[graph.nodes.rank[rows] == graph.nodes.rank[self.rows[0]]])

    def _ended(self, graph: Graph, timeline: Timeline) -> Ints:
        """Give when the last node that begins before each moment ends; also of those that an edit put in there."""
        ended = np.maximum.accumulate(timeline.end[self.rows])[self.place - 1]
        added = sorted_by(graph.nodes.start, self._added(graph))
        place = np.searchsorted(graph.nodes.start[added], self.when)
        return np.asarray(np.maximum(ended, lookup(np.maximum.accumulate(timeline.end[added]), place - 1, missing=-1)))


def moved(when: Ints, rows: Ints, graph: Graph, timeline: Timeline) -> Ints:
    """Move moments with the first work that begins then or after; behind all work with the last end."""
    return _anchored(when, sorted_by(graph.nodes.start, rows), graph).moved(graph, timeline)


def _anchored(when: Ints, by_start: Ints, graph: Graph) -> Anchored:
    place = np.searchsorted(graph.nodes.start[by_start], when)
    ended = np.maximum.accumulate(graph.nodes.end[by_start])[place - 1]
    inside = place < len(by_start)
    return Anchored(when, by_start[np.minimum(place, len(by_start) - 1)], inside, place, ended, by_start)


def unedited(tables: TableSet) -> StepTimes:
    """Replay the run as it is: how well the graph explains what was measured."""
    return tables.memo(
        "whatif unedited", lambda: step_times(tables, graph_of(tables), timeline_of(tables, graph_of(tables)))
    )


def timeline_of(tables: TableSet, graph: Graph) -> Timeline:
    """Replay a graph of the run: the recorded one, or what edits made of it."""
    recorded = graph_of(tables)
    if graph is recorded:
        return tables.memo("whatif timeline", lambda: replay(recorded, _plan_of(tables)))
    return replay(graph, _plan_of(tables) if graph.waits_as(recorded) else None)


def _plan_of(tables: TableSet) -> Plan:
    """Give the order in which the run is replayed; it serves every graph that waits as the recorded one does."""
    return tables.memo("whatif plan", lambda: make_plan(graph_of(tables)))
