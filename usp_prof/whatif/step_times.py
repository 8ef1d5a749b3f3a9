"""How long are the steps of a timeline? Each rank's windows, moved as the nodes at their begin moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.tables import clock
from usp_prof.whatif.graph import NodeKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.graph import Flags, Graph, Ints, Timeline

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Parallel arrays: one entry for each rank and step that a replay can tell of."""

    rank: Ints
    step: Ints
    measured_ns: Ints
    replayed_ns: Ints

    @property
    def error(self) -> Floats:
        """Relative error of each step."""
        return np.asarray(np.abs(self.replayed_ns - self.measured_ns) / np.maximum(self.measured_ns, 1))

    @property
    def settled(self) -> Flags:
        """Leave the first step out where there are more: what it waited for lies before the recording."""
        if len(np.unique(self.step)) < 3:
            return np.ones(len(self.step), dtype=bool)
        return np.asarray(self.step != self.step.min())

    @property
    def mean_measured_ns(self) -> float:
        """Mean step over ranks and settled steps."""
        return float(self.measured_ns[self.settled].mean()) if len(self.rank) else float("nan")

    @property
    def mean_replayed_ns(self) -> float:
        """Mean replayed step over ranks and settled steps."""
        return float(self.replayed_ns[self.settled].mean()) if len(self.rank) else float("nan")


def step_times(tables: TableSet, graph: Graph, timeline: Timeline) -> StepTimes:
    """Measure the steps of a timeline. A step is known where work of its own and of its neighbours bounds it."""
    clocks = clock.of(tables)
    device = (graph.nodes.kind != NodeKind.HOST) & (graph.nodes.kind != NodeKind.RETURN) & graph.measured
    found: list[tuple[Ints, Ints, Ints, Ints]] = []
    for rank in tables.ranks:
        steps = tables.columns("steps", rank)
        if not len(steps):
            continue
        rows = np.flatnonzero(device & (graph.nodes.rank == rank))
        if not len(rows):
            continue
        begin = clocks.align(rank, steps["start_ns"])
        end = clocks.align(rank, steps["end_ns"])
        moved_begin = moved(begin, rows, graph, timeline)
        moved_end = moved(end, rows, graph, timeline)
        found.append((np.full(len(steps), rank), steps["step"], end - begin, moved_end - moved_begin))
    if not found:
        return StepTimes(*(np.zeros(0, np.int64) for _ in range(4)))
    return StepTimes(*(np.concatenate(column) for column in zip(*found, strict=True)))


def moved(when: Ints, rows: Ints, graph: Graph, timeline: Timeline) -> Ints:
    """Move moments with the first work that begins then or after; behind all work with the last end."""
    by_start = rows[np.argsort(graph.nodes.start[rows], kind="stable")]
    place = np.searchsorted(graph.nodes.start[by_start], when)
    inside = place < len(by_start)
    first = by_start[np.minimum(place, len(by_start) - 1)]
    with_first = timeline.start[first] - graph.nodes.start[first]
    added = np.flatnonzero((graph.nodes.rank == graph.nodes.rank[rows[0]]) & ~graph.measured)
    end_moved = int(timeline.end[np.append(rows, added)].max() - graph.nodes.end[rows].max())
    return np.where(inside, when + with_first, when + end_moved)
