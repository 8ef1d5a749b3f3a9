"""What would the run be like with these changes? Replays before and after, and how sure the difference is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof.model.finding import Basis
from usp_prof.whatif.build import graph_of
from usp_prof.whatif.edits import Request, apply, kind_of
from usp_prof.whatif.layout import layout_of
from usp_prof.whatif.plan import Plan, make_plan
from usp_prof.whatif.replay import replay
from usp_prof.whatif.schedule import BALANCE, SCHEDULE, reschedule
from usp_prof.whatif.step_times import StepTimes, step_times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.model.edit import Edit
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.graph import Timeline

FLOOR_ERROR = 0.01
"""The replay of the unedited run is exact by construction (think time makes up for what is unexplained), so that its
error says nothing of an edit's: against made-up runs with the fault repaired, gains are within this share of the
step."""


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The step before and after, in ns; `gain_fraction` of the measured step, less than 0 where it gets slower."""

    edits: tuple[Edit, ...]
    before_ns: float
    after_ns: float
    replay_error: float
    basis: Basis
    error_fraction: float
    timeline: Timeline

    @property
    def gain_fraction(self) -> float:
        """The share of the step that the edits save."""
        return 1 - self.after_ns / self.before_ns if self.before_ns > 0 else 0.0


def predict(tables: TableSet, edits: Sequence[Edit]) -> Prediction:
    """Predict the mean step of a run with edits made, in their order."""
    graph = graph_of(tables)
    before = unedited(tables)
    changed, basis, error = graph, Basis.REPLAYED, 0.0
    for edit in edits:
        if edit.name not in (SCHEDULE, BALANCE):
            changed = apply(changed, Request(edit, tables, layout_of(tables)))
            basis = Basis.MODELLED if kind_of(edit).modelled else basis
    if changed is graph:  # another order of actions is no edit of the graph
        timeline, after_ns = _as_it_is(tables), before.mean_replayed_ns
    else:
        timeline = replay(changed, _plan(tables))
        after_ns = step_times(tables, changed, timeline).mean_replayed_ns
    for edit in edits:
        if edit.name in (SCHEDULE, BALANCE):
            moved = reschedule(tables, edit)
            after_ns *= 1 - moved.saved_ns / before.mean_measured_ns  # gains overlap: what is left shrinks in step
            basis, error = Basis.MODELLED, max(error, moved.error_ns / before.mean_measured_ns)
    return Prediction(
        tuple(edits),
        before.mean_measured_ns,
        after_ns,
        float(before.error.max(initial=0.0)),
        basis,
        max(FLOOR_ERROR, float(before.error.max(initial=0.0)), error),
        timeline,
    )


def unedited(tables: TableSet) -> StepTimes:
    """Replay the run as it is: how well the graph explains what was measured."""
    return tables.memo("whatif unedited", lambda: step_times(tables, graph_of(tables), _as_it_is(tables)))


def _as_it_is(tables: TableSet) -> Timeline:
    return tables.memo("whatif timeline", lambda: replay(graph_of(tables), _plan(tables)))


def _plan(tables: TableSet) -> Plan:
    return tables.memo("whatif plan", lambda: make_plan(graph_of(tables)))
