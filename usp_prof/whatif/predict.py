"""What would the run be like with these changes? Replays before and after, and how sure the difference is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof.model.finding import Basis
from usp_prof.whatif.build import graph_of
from usp_prof.whatif.edits import Lean, Request, apply, kind_of
from usp_prof.whatif.edits.pipeline import is_of_pipeline, lowered, relaid
from usp_prof.whatif.layout import Layout, layout_of
from usp_prof.whatif.plan import Plan, make_plan
from usp_prof.whatif.replay import replay
from usp_prof.whatif.retimed import retimed
from usp_prof.whatif.schedule import Rescheduled, reschedule
from usp_prof.whatif.step_times import StepTimes, step_times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.model.edit import Edit
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.graph import Graph, Timeline

FLOOR_ERROR = 0.01
"""The replay of the unedited run is exact by construction (think time makes up for what is unexplained), so that its
error says nothing of an edit's: against made-up runs with the fault repaired, gains are within this share of the
step."""

MODEL_ERROR, MODEL_SHARE = 0.02, 0.1
"""Where a model filled in what the trace cannot hold: this much of the step at least, and this share of the change."""


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


@dataclass(frozen=True, slots=True, eq=False)
class _Replayed:
    graph: Graph
    timeline: Timeline
    layout: Layout
    after_ns: float


def predict(tables: TableSet, edits: Sequence[Edit]) -> Prediction:
    """Predict the mean step of a run with edits made: those of the graph in their order, then those of the pipeline."""
    before, layout = unedited(tables), layout_of(tables)
    made = [part for edit in edits for part in lowered(edit, layout)]
    plain = [edit for edit in made if not is_of_pipeline(edit, layout)]
    found = _replayed(tables, plain, Lean.EXPECTED)
    error, basis = 0.0, Basis.REPLAYED
    if any(kind_of(edit).modelled for edit in plain):
        basis = Basis.MODELLED
        error = abs(_replayed(tables, plain, Lean.CAUTIOUS).after_ns - found.after_ns) / before.mean_measured_ns
    after_ns, now, other = found.after_ns, found.layout, None
    reordered = [edit for edit in made if is_of_pipeline(edit, layout)]
    moved = retimed(tables, found.graph, found.timeline) if plain and reordered else tables
    for edit in reordered:
        other = reschedule(moved, edit, now)
        after_ns -= other.saved_ns
        now = relaid(now, edit)
        basis, error = Basis.MODELLED, error + other.error_ns / before.mean_measured_ns
    replay_error = float(before.error.max(initial=0.0))
    if basis is Basis.MODELLED:
        error = max(error, MODEL_ERROR, MODEL_SHARE * abs(1 - after_ns / before.mean_measured_ns))
    return Prediction(
        tuple(edits),
        before.mean_measured_ns,
        after_ns,
        replay_error,
        basis,
        max(FLOOR_ERROR, replay_error, error),
        found.graph,
        found.timeline,
        layout,
        now,
        other,
    )


def unedited(tables: TableSet) -> StepTimes:
    """Replay the run as it is: how well the graph explains what was measured."""
    return tables.memo("whatif unedited", lambda: step_times(tables, graph_of(tables), _as_it_is(tables)))


def _replayed(tables: TableSet, edits: Sequence[Edit], lean: Lean) -> _Replayed:
    """Make edits one after the other and replay what comes out."""
    graph, layout = graph_of(tables), layout_of(tables)
    changed = graph
    for edit in edits:
        changed = apply(changed, Request(edit, tables, layout, lean))
        layout = kind_of(edit).relayout(layout, edit)
    if changed is graph:
        return _Replayed(graph, _as_it_is(tables), layout, unedited(tables).mean_replayed_ns)
    same = changed.waits_as(graph)
    timeline = replay(changed, _plan(tables) if same else make_plan(changed))
    return _Replayed(changed, timeline, layout, step_times(tables, changed, timeline).mean_replayed_ns)


def _as_it_is(tables: TableSet) -> Timeline:
    return tables.memo("whatif timeline", lambda: replay(graph_of(tables), _plan(tables)))


def _plan(tables: TableSet) -> Plan:
    return tables.memo("whatif plan", lambda: make_plan(graph_of(tables)))
