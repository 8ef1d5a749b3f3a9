"""Predictions: replays before and after a change, and the error of their difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof.replay.replays import step_times, timeline_of, unedited
from usp_prof.whatif.edited import edited
from usp_prof.whatif.layout import Layout, layout_of
from usp_prof.whatif.outcome import outcome
from usp_prof.whatif.predicted_tables import retimed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.model.edit import Edit
    from usp_prof.model.finding import Basis
    from usp_prof.replay.graph import Graph, Timeline
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.reordering.schedule import Rescheduled


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The step before and after, in ns; `gain_fraction` of the measured step, less than 0 where it gets slower."""

    edits: tuple[Edit, ...]
    before_ns: float
    after_ns: float
    replay_error: float
    basis: Basis
    error_fraction: float
    graph: Graph
    timeline: Timeline
    """When the graph's nodes run; edits of the pipeline's order are not in it."""
    layout_before: Layout
    layout_after: Layout
    rescheduled: Rescheduled | None = None
    """What the last edit of the pipeline's order makes of it."""

    @property
    def gain_fraction(self) -> float:
        """The share of the step that the edits save."""
        return 1 - self.after_ns / self.before_ns if self.before_ns > 0 else 0.0


def predict(tables: TableSet, edits: Sequence[Edit]) -> Prediction:
    """Predict the mean step of a run with edits made: those of the graph in their order, then those of the pipeline."""
    made = edited(tables, edits)
    graphs = [made.graph] if made.cautious is None else [made.graph, made.cautious()]
    timelines = [timeline_of(tables, graph) for graph in graphs]
    steps = [step_times(tables, *pair).mean_replayed_ns for pair in zip(graphs, timelines, strict=True)]
    found = outcome(tables, made, steps[0], lambda: retimed(tables, made.graph, timelines[0]))
    return Prediction(
        tuple(edits),
        found.before_ns,
        found.after_ns,
        found.replay_error,
        found.basis,
        found.error_fraction(steps[1] if steps[1:] else None),
        made.graph,
        timelines[0],
        layout_of(tables),
        found.layout,
        found.rescheduled[-1] if found.rescheduled else None,
    )


__all__ = ["Prediction", "predict", "unedited"]
