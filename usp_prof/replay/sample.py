"""Which steps stand for all of a long run? Stretches of consecutive ones, which are replayed side by side.

What an edit brings repeats from step to step, while what a replay costs grows with their number. A stretch leads in
with steps that do not count, since what they wait for lies before it, and ends with one in which the end of the last
counted step is seen. What comes in from outside comes when it was measured. Whether a stretch stands for all is for
`steady` to say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.lookup import lookup
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import Nodes
from usp_prof.replay.longest_path import as_measured, replay
from usp_prof.replay.plan import Plan, make_plan
from usp_prof.replay.step_times import bounds_of
from usp_prof.tables import clock

if TYPE_CHECKING:
    from usp_prof.replay.graph import Edges, Flags, Graph, Ints, Timeline
    from usp_prof.tables.table_set import TableSet

STRETCHES, LEAD, COUNTED = 3, 2, 6
"""So many stretches, each with steps that lead in, steps that count, and one more."""
WIDTH = LEAD + COUNTED + 1
LONG = 2 * STRETCHES * WIDTH
"""A run of fewer steps is replayed as a whole."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The counted steps of all ranks, an entry for each: the nodes with which it begins and ends, as the sample's."""

    begin: Ints
    end: Ints
    """The first node of the step behind it."""
    stretch: Ints
    nth: Ints
    """Its place among the counted steps of its stretch."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Part of a run's graph."""

    base: Graph
    """The recorded run's graph."""
    rows: Ints
    """Its nodes that are here."""
    place: Ints
    """Where each node of the run lies here, or -1."""
    step: Ints
    """The number of the step in which each node of the run begins, counted from 0; -1 before the first."""
    stretch: Ints
    """The stretch of each of the run's steps, or -1."""
    nodes: Nodes
    whole: Flags
    """Marks the nodes here whose call has all its members here."""
    steps: Steps
    labels: Ints
    """The run's steps as they call themselves."""

    @property
    def counted(self) -> Flags:
        """Mark the run's steps that count."""
        found = np.zeros(len(self.stretch), dtype=bool)
        found[self.step[self.rows[self.steps.begin]]] = True
        return found

    def narrowed(self, graph: Graph) -> Graph:
        """Give the part of an edited graph that is here."""
        edges, cut = self._edges(graph.edges)
        earliest = graph.earliest[self.rows]
        arrived = np.where(cut.at_end, self.base.nodes.end[cut.source], self.base.nodes.start[cut.source]) + cut.lag
        np.maximum.at(earliest, self.place[cut.target], arrived)
        heads = self.nodes.memo("loose", self._loose)
        before = self.rows[heads] - 1
        earliest[heads] = np.maximum(earliest[heads], self.base.nodes.end[before] + graph.gap[before + 1])
        return replace(
            graph,
            nodes=self.nodes,
            gap=graph.gap[self.rows],
            earliest=earliest,
            edges=edges,
            duration=graph.duration[self.rows],
            transfer=graph.transfer[self.rows],
            tied=graph.tied[self.rows] & self.whole,
        )

    def _loose(self) -> Ints:
        """Find the nodes whose lane goes on here, but not with the node before them."""
        lane, own = self.base.nodes.lane, self.nodes.lane
        follows = np.zeros(len(self.rows), dtype=bool)
        follows[1:] = own[1:] == own[:-1]
        return np.flatnonzero((self.rows > 0) & (lane[self.rows] == lane[self.rows - 1]) & ~follows)

    def _edges(self, edges: Edges) -> tuple[Edges, Edges]:
        """Give the edges that lie here, and those that come in from outside; most edits leave them as recorded."""
        if edges is self.base.edges:
            return self.nodes.memo("edges here", lambda: self._divided(edges))
        return self._divided(edges)

    def _divided(self, edges: Edges) -> tuple[Edges, Edges]:
        target = self.place[edges.target] >= 0
        here = target & (self.place[edges.source] >= 0)
        kept = edges.take(here)
        kept = replace(kept, source=self.place[kept.source], target=self.place[kept.target])
        return kept, edges.take(target & ~here)


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A sample of the run as it was recorded: what edits are compared with."""

    sample: Sample
    graph: Graph
    plan: Plan
    timeline: Timeline


def sample_of(tables: TableSet) -> Recorded | None:
    """Give the steps that stand for a long run; `None` where all are to be replayed."""
    return tables.memo("whatif sample", lambda: _recorded(_sample(tables)))


def _recorded(sample: Sample | None) -> Recorded | None:
    if sample is None:
        return None
    graph = sample.narrowed(sample.base)
    plan = make_plan(graph)
    return Recorded(sample, graph, plan, as_measured(graph) or replay(graph, plan))


def _sample(tables: TableSet) -> Sample | None:
    graph = graph_of(tables)
    labels = _shared(tables)
    count = len(labels)
    if count < LONG:
        return None
    step = _steps_of(tables, graph, labels)
    stretch, nth = np.full(count + 1, -1, np.int64), np.full(count, -1, np.int64)
    for number, low in enumerate(np.rint(np.linspace(0, count - WIDTH, STRETCHES)).astype(int).tolist()):
        stretch[low : low + WIDTH] = number
        nth[low + LEAD : low + LEAD + COUNTED] = np.arange(COUNTED)
    rows = np.flatnonzero(stretch[step] >= 0)
    place = np.full(len(graph.nodes), -1, np.int64)
    place[rows] = np.arange(len(rows))
    of_node = stretch[step]
    nodes, whole = _nodes(graph.nodes, rows, of_node[rows])
    steps = _counted(tables, graph, place, of_node, dict(zip(labels.tolist(), nth.tolist(), strict=True)))
    return Sample(graph, rows, place, step, stretch[:-1], nodes, whole, steps, labels) if len(steps.begin) else None


def _shared(tables: TableSet) -> Ints:
    """Give the steps that all ranks have, in order; none where a rank has others in between."""
    every = [tables.columns("steps", rank)["step"] for rank in tables.ranks]
    shared = every[0] if every else np.zeros(0, np.int64)
    for each in every[1:]:
        shared = shared[np.isin(shared, each)]
    for each in every:
        place = np.flatnonzero(np.isin(each, shared))
        if not np.array_equal(each[place], shared) or (np.diff(place) != 1).any():
            return shared[:0]
    return shared


def _steps_of(tables: TableSet, graph: Graph, labels: Ints) -> Ints:
    """Give the number of the step in which each node begins, by its time: not all say it."""
    clocks, found = clock.of(tables), np.full(len(graph.nodes), -1, np.int64)
    for rank in tables.ranks:
        rows, steps = graph.nodes.of_rank(rank), tables.columns("steps", rank)
        mine = np.isin(steps["step"], labels)
        opened, closed = (clocks.align(rank, steps[name][mine]) for name in ("start_ns", "end_ns"))
        number = np.searchsorted(opened, graph.nodes.start[rows], side="right") - 1
        found[rows] = np.where(graph.nodes.start[rows] < closed[-1], number, -1)
    return found


def _nodes(nodes: Nodes, rows: Ints, stretch: Ints) -> tuple[Nodes, Flags]:
    """Give these nodes, each stretch on lanes of its own, and mark those whose call is here with all its members."""
    call, inside = nodes.call[rows], nodes.call[rows] >= 0
    size = int(nodes.call.max(initial=-1)) + 1
    here, there = (np.bincount(each[each >= 0], minlength=size) for each in (call, nodes.call))
    whole = inside & lookup(here == there, call, missing=False)
    return (
        Nodes(
            nodes.rank[rows],
            nodes.lane[rows] * STRETCHES + stretch,
            nodes.kind[rows],
            nodes.start[rows],
            nodes.duration[rows],
            nodes.step[rows],
            nodes.axis[rows],
            nodes.name[rows],
            np.where(whole, call, -1),
            None if nodes.event is None else nodes.event[rows],
        ),
        np.asarray(whole),
    )


def _counted(tables: TableSet, graph: Graph, place: Ints, of_node: Ints, numbers: dict[int, int]) -> Steps:
    """Find the nodes with which the counted steps begin and end; those of ranks without work there are left out."""
    found = []
    for _, labels, begin, end in bounds_of(tables, graph):
        nth = np.array([numbers.get(label, -1) for label in labels.tolist()], np.int64)
        counts = (nth >= 0) & begin.inside & end.inside
        counts &= (of_node[begin.first] >= 0) & (of_node[begin.first] == of_node[end.first])
        first, last = begin.first[counts], end.first[counts]
        found.append(np.stack([place[first], place[last], of_node[first], nth[counts]]))
    return Steps(*(np.concatenate(found, axis=1) if found else np.zeros((4, 0), np.int64)))
