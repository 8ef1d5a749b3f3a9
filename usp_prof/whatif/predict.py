"""What would the run be like with these changes? Replays before and after, and how sure the difference is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from usp_prof.model.errors import UspProfError
from usp_prof.model.finding import Basis
from usp_prof.whatif.build import graph_of
from usp_prof.whatif.edits import Lean, Request, apply, kind_of
from usp_prof.whatif.edits.pipeline import is_of_pipeline, lowered, relaid
from usp_prof.whatif.layout import Layout, layout_of
from usp_prof.whatif.plan import Plan, make_plan
from usp_prof.whatif.replay import at_once, replay, replay_all
from usp_prof.whatif.retimed import retimed
from usp_prof.whatif.schedule import Rescheduled, reschedule
from usp_prof.whatif.step_times import StepTimes, step_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from usp_prof.model.edit import Edit
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.graph import Graph, Timeline

T = TypeVar("T")

FLOOR_ERROR = 0.01
"""The replay of the unedited run is exact by construction (think time makes up for what is unexplained), so that its
error says nothing of an edit's: against made-up runs with the fault repaired, gains are within this share of the
step."""
SHARED_ERROR = 0.05
"""The same on CPU traces: paced pairs, recorded on shared cores, mostly came out within this."""

MODEL_ERROR = 0.02
"""Where a model filled in what the trace cannot hold, the error is this much of the step at least."""
_REORDERED = 0.1
"""Of what another order of actions changes, so much may not come about."""


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
class _Made:
    """What edits make of the graph, before it is replayed."""

    edits: tuple[Edit, ...]
    graph: Graph
    cautious: Graph | None
    """The same by cautious models, where a model is in it."""
    layout: Layout
    reordered: tuple[Edit, ...]
    """The edits of the pipeline's order, which are no changes of the graph."""
    is_plain: bool
    """Whether no edit was of another kind."""
    doubt: float = _REORDERED
    """Of a modelled change, the share that may not come about."""


@dataclass(frozen=True, slots=True, eq=False)
class _Replayed:
    timeline: Timeline
    after_ns: float


def predict(tables: TableSet, edits: Sequence[Edit]) -> Prediction:
    """Predict the mean step of a run with edits made: those of the graph in their order, then those of the pipeline."""
    made = _made(tables, edits)
    return _predicted(tables, made, _replayed(tables, _graphs([made])))


def predict_all(tables: TableSet, wanted: Sequence[Sequence[Edit]]) -> Iterator[Prediction | UspProfError]:
    """Predict for each of several sets of edits; for what cannot be done the error. Several are replayed at once."""
    width = max(1, at_once(graph_of(tables)) // 2)
    for low in range(0, len(wanted), width):
        made = [_attempted(partial(_made, tables, edits)) for edits in wanted[low : low + width]]
        good = [each for each in made if isinstance(each, _Made)]
        replayed = _replayed(tables, _graphs(good))
        for each in made:
            yield _attempted(partial(_predicted, tables, each, replayed)) if isinstance(each, _Made) else each


def _attempted(make: Callable[[], T]) -> T | UspProfError:
    try:
        return make()
    except UspProfError as error:
        return error


def _made(tables: TableSet, edits: Sequence[Edit]) -> _Made:
    layout = layout_of(tables)
    every = [part for edit in edits for part in lowered(edit, layout)]
    plain = [edit for edit in every if not is_of_pipeline(edit, layout)]
    graph, after = _edited(tables, plain, Lean.EXPECTED)
    modelled = any(kind_of(edit).modelled for edit in plain)
    cautious = _edited(tables, plain, Lean.CAUTIOUS)[0] if modelled else None
    reordered = tuple(edit for edit in every if is_of_pipeline(edit, layout))
    doubt = max([_REORDERED, *(kind_of(edit).doubt for edit in plain)])
    return _Made(tuple(edits), graph, cautious, after, reordered, not plain, doubt)


def _graphs(made: Sequence[_Made]) -> list[Graph]:
    """List what is to be replayed."""
    return [graph for each in made for graph in (each.graph, each.cautious) if graph is not None]


def _predicted(tables: TableSet, made: _Made, replayed: Mapping[int, _Replayed]) -> Prediction:
    before = unedited(tables)
    found = replayed[id(made.graph)]
    error, basis = 0.0, Basis.REPLAYED
    if made.cautious is not None:
        basis = Basis.MODELLED
        error = abs(replayed[id(made.cautious)].after_ns - found.after_ns) / before.mean_measured_ns
    after_ns, now, other = found.after_ns, made.layout, None
    moved = tables if made.is_plain or not made.reordered else retimed(tables, made.graph, found.timeline)
    for edit in made.reordered:
        other = reschedule(moved, edit, now)
        after_ns -= other.saved_ns
        now = relaid(now, edit)
        basis, error = Basis.MODELLED, error + other.error_ns / before.mean_measured_ns
    replay_error = float(before.error.max(initial=0.0))
    if basis is Basis.MODELLED:
        error = max(error, MODEL_ERROR, made.doubt * abs(1 - after_ns / before.mean_measured_ns))
    return Prediction(
        made.edits,
        before.mean_measured_ns,
        after_ns,
        replay_error,
        basis,
        max(_floor(tables), replay_error, error),
        made.graph,
        found.timeline,
        layout_of(tables),
        now,
        other,
    )


def _floor(tables: TableSet) -> float:
    """Say how well gains are known at best: worse where ranks without devices share the cores of one machine."""
    on_device = any(len(tables.columns("kernels", rank)) for rank in tables.ranks)
    return FLOOR_ERROR if on_device else SHARED_ERROR


def unedited(tables: TableSet) -> StepTimes:
    """Replay the run as it is: how well the graph explains what was measured."""
    return tables.memo("whatif unedited", lambda: step_times(tables, graph_of(tables), _as_it_is(tables)))


def _edited(tables: TableSet, edits: Sequence[Edit], lean: Lean) -> tuple[Graph, Layout]:
    """Make edits one after the other."""
    graph, layout = graph_of(tables), layout_of(tables)
    for edit in edits:
        graph = apply(graph, Request(edit, tables, layout, lean))
        layout = kind_of(edit).relayout(layout, edit)
    return graph, layout


def _replayed(tables: TableSet, graphs: Sequence[Graph]) -> dict[int, _Replayed]:
    """Replay graphs, by their identity: at once those that the unedited graph's plan serves."""
    base = graph_of(tables)
    found = {id(base): _Replayed(_as_it_is(tables), unedited(tables).mean_replayed_ns)}
    others = [graph for graph in graphs if graph is not base]
    same = [graph for graph in others if graph.waits_as(base)]
    rewired = [(graph, replay(graph)) for graph in others if not graph.waits_as(base)]
    for graph, timeline in [*zip(same, replay_all(same, _plan(tables)), strict=True), *rewired]:
        found[id(graph)] = _Replayed(timeline, step_times(tables, graph, timeline).mean_replayed_ns)
    return found


def _as_it_is(tables: TableSet) -> Timeline:
    return tables.memo("whatif timeline", lambda: replay(graph_of(tables), _plan(tables)))


def _plan(tables: TableSet) -> Plan:
    return tables.memo("whatif plan", lambda: make_plan(graph_of(tables)))
