"""Step times of a replay: start and end of each rank's steps, as recorded and after edits.

A step boundary within work moves with the work that starts next. If a rank is idle at a boundary, for example because
it waits for input after it, the boundary keeps its distance from the work before. An edit that shortens the wait then
shortens the step that waited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.rows import lookup, rows_by_code, sorted_by
from usp_prof.model.selection import EVERYTHING
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import Graph, Timeline
from usp_prof.replay.longest_path import replay, replay_together
from usp_prof.replay.plan import Plan, make_plan
from usp_prof.replay.rank_clocks import rank_clocks
from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Parallel arrays: one entry per rank and step whose duration a replay can compute."""

    rank: Ints
    step: Ints
    measured_ns: Ints
    replayed_ns: Ints
    is_complete: Flags
    """Marks of steps not cut by the end of the recording."""

    @property
    def error(self) -> Floats:
        """Relative error of the replay for each step."""
        return np.asarray(np.abs(self.replayed_ns - self.measured_ns) / np.maximum(self.measured_ns, 1))

    @property
    def mean_measured_ns(self) -> float:
        """Mean measured step over ranks and complete steps."""
        return float(self.measured_ns[self.is_complete].mean()) if len(self.rank) else float("nan")

    @property
    def mean_replayed_ns(self) -> float:
        """Mean replayed step over ranks and complete steps."""
        return float(self.replayed_ns[self.is_complete].mean()) if len(self.rank) else float("nan")


def share_saved(before_ns: float, after_ns: float) -> float:
    """Return the share of the step that is saved; negative if it gets longer."""
    return 1 - after_ns / before_ns if before_ns > 0 else 0.0


def step_times(tables: TableSet, graph: Graph, timeline: Timeline) -> StepTimes:
    """Return the step times of a timeline, for each rank that has work in the graph."""
    of_ranks = []
    for rank, step, begin, end in _bounds_of(tables, graph):
        begins, ends = _moved_steps(begin, end, graph, timeline)
        is_complete = tables.selects(EVERYTHING, step)
        of_ranks.append((np.full(len(step), rank), step, end.when - begin.when, ends - begins, is_complete))
    if not of_ranks:
        nothing = np.zeros(0, np.int64)
        return StepTimes(nothing, nothing, nothing, nothing, nothing.astype(bool))
    return StepTimes(*(np.concatenate(column) for column in zip(*of_ranks, strict=True)))


def _bounds_of(tables: TableSet, graph: Graph) -> list[tuple[int, Ints, Anchored, Anchored]]:
    """Return each rank's steps, with the anchors of their starts and ends."""
    if graph.added:
        return _bounds(tables, graph)
    key = ("whatif bounds of steps", id(graph.nodes))
    return tables.memo(key, lambda: (graph.nodes, _bounds(tables, graph)))[
        1
    ]  # a reference keeps the id in the key valid


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
    """Moments, each with the first node that starts then or later; moments after all nodes move with the last end."""

    when: Ints
    first: Ints
    inside: Flags
    place: Ints
    """Number of nodes that start before each moment."""
    ended: Ints
    """When the last of these nodes ended."""
    rows: Ints
    """The nodes, sorted by measured start."""

    def moved(self, graph: Graph, timeline: Timeline) -> Ints:
        """Return the moments, moved as the timeline moves the nodes."""
        begins = timeline.start[self.first]
        moments = self.when + begins - graph.nodes.start[self.first]
        # A step that starts with a wait keeps its start, so a shorter wait makes it shorter.
        opens = (self.place == 0) & (graph.nodes.start[self.first] > self.when)
        moments = np.where(opens, self.when, moments)
        # If the host marks steps, a wait belongs to the step that starts with it. If steps start with their first work,
        # it belongs to the step before.
        starts_with_wait = (self.place > 0) & (self.ended <= self.when) & (graph.nodes.start[self.first] > self.when)
        if starts_with_wait.any():
            ended = self._ended(graph, timeline)
            moments = np.where(starts_with_wait, np.minimum(ended + self.when - self.ended, begins), moments)
        if self.inside.all():
            return moments
        last = int(timeline.end[self.rows].max())
        if graph.added:  # a node added by an edit may be the last to end
            last = int(timeline.end[self._added(graph)].max(initial=last))
        end_moved = last - int(graph.nodes.end[self.rows].max())
        return np.where(self.inside, moments, self.when + end_moved)

    def _added(self, graph: Graph) -> Ints:
        """Return the nodes that an edit added to the same rank."""
        rows = np.arange(len(graph.nodes) - graph.added, len(graph.nodes))
        return np.asarray(rows[graph.nodes.rank[rows] == graph.nodes.rank[self.rows[0]]])

    def _ended(self, graph: Graph, timeline: Timeline) -> Ints:
        """Return when the last node that starts before each moment ends, including nodes added by an edit."""
        ended = np.maximum.accumulate(timeline.end[self.rows])[self.place - 1]
        added = sorted_by(graph.nodes.start, self._added(graph))
        place = np.searchsorted(graph.nodes.start[added], self.when)
        return np.asarray(np.maximum(ended, lookup(np.maximum.accumulate(timeline.end[added]), place - 1, missing=-1)))


def moved_steps(begin: Ints, end: Ints, rows: Ints, graph: Graph, timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the starts and ends of a rank's steps, moved with its work.

    A boundary moves with the first work that starts then or later, or with the last end after all work. A step before
    which nothing was recorded does not get longer because its work starts earlier.
    """
    order = sorted_by(graph.nodes.start, rows)
    return _moved_steps(_anchored(begin, order, graph), _anchored(end, order, graph), graph, timeline)


def _moved_steps(begin: Anchored, end: Anchored, graph: Graph, timeline: Timeline) -> tuple[Ints, Ints]:
    begins, ends = begin.moved(graph, timeline), end.moved(graph, timeline)
    opens, as_long = begin.place == 0, ends - (end.when - begin.when)
    return np.where(opens & (begins < begin.when), np.clip(as_long, begins, begin.when), begins), ends


def _anchored(when: Ints, by_start: Ints, graph: Graph) -> Anchored:
    place = np.searchsorted(graph.nodes.start[by_start], when)
    ended = np.maximum.accumulate(graph.nodes.end[by_start])[place - 1]
    inside = place < len(by_start)
    return Anchored(when, by_start[np.minimum(place, len(by_start) - 1)], inside, place, ended, by_start)


def unedited(tables: TableSet) -> StepTimes:
    """Return the step times of the unedited replay, which show how well the graph explains the run."""
    return tables.memo(
        "whatif unedited", lambda: step_times(tables, graph_of(tables), timeline_of(tables, graph_of(tables)))
    )


# Timelines of the run's graphs, recorded or edited.

_MOST_NODES = 4_000_000
"""Maximum number of nodes, over all graphs, that are replayed in one pass; each needs about 100 bytes."""


def timeline_of(tables: TableSet, graph: Graph) -> Timeline:
    """Return the timeline of a graph of the run; that of the recorded graph is memoized."""
    recorded = graph_of(tables)
    if graph is recorded:
        return tables.memo("whatif timeline", lambda: replay(recorded, _plan_of(tables)))
    return replay(graph, _plan_of(tables) if graph.waits_as(recorded) else None)


def timelines_of(tables: TableSet, graphs: Sequence[Graph]) -> list[Timeline]:
    """Return the timelines of up to `graphs_per_pass` graphs; those with the recorded dependencies take one pass."""
    recorded = graph_of(tables)
    is_alike = [graph is not recorded and graph.waits_as(recorded) for graph in graphs]
    alike = [graph for graph, fits in zip(graphs, is_alike, strict=True) if fits]
    in_one_pass = iter(replay_together(alike, _plan_of(tables)) if alike else ())
    return [
        next(in_one_pass) if fits else timeline_of(tables, graph) for graph, fits in zip(graphs, is_alike, strict=True)
    ]


def graphs_per_pass(tables: TableSet) -> int:
    """Return how many graphs of the run are replayed in one pass."""
    return max(1, _MOST_NODES // max(1, len(graph_of(tables).nodes)))


def _plan_of(tables: TableSet) -> Plan:
    """Return the replay plan of the run, which works for every graph with the recorded dependencies."""
    return tables.memo("whatif plan", lambda: make_plan(graph_of(tables)))
