"""Predictions: the replayed step of a run with edits, the gain of the edits, and its error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from usp_prof.model.edit import Edit
from usp_prof.model.errors import UspProfError
from usp_prof.model.finding import Basis
from usp_prof.replay.graph import Graph, Timeline
from usp_prof.replay.representatives import Representatives
from usp_prof.replay.step_times import graphs_per_pass, share_saved, step_times, timeline_of, timelines_of
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edited import Edited, as_recorded, edited
from usp_prof.whatif.layout import Layout, layout_of
from usp_prof.whatif.outcome import outcome
from usp_prof.whatif.predicted_tables import retimed
from usp_prof.whatif.rescheduled import Rescheduled

# Gains of edits: the saved share of the measured step, its basis and its error.


@dataclass(frozen=True, slots=True)
class Gain:
    """Saved share of the measured step, with its basis and error."""

    gain_fraction: float
    basis: Basis
    error_fraction: float
    step_ns: float
    """The step before the edits; the gain is a share of it."""
    unexplained_fraction: float = 0.0
    """The part of the error from times that the graph cannot explain."""


def gain_of(tables: TableSet, made: Edited, least: float = -inf, timeline: Timeline | None = None) -> Gain:
    """Return the gain of edits from a replay (`timeline`, if known); raises if the edited run cannot be replayed.

    If the gain is below `least`, its error is not needed, and the replays that determine it are skipped.
    """
    timeline = timeline or timeline_of(tables, made.graph)
    replayed_ns = step_times(tables, made.graph, timeline).mean_replayed_ns
    effect = outcome(tables, made, replayed_ns, lambda: retimed(tables, made.graph, timeline))
    if effect.gain_fraction < least:
        return Gain(effect.gain_fraction, effect.basis, effect.least_error, effect.before_ns)
    cautious_ns = None
    if made.cautious is not None:
        cautious = made.cautious()
        cautious_ns = step_times(tables, cautious, timeline_of(tables, cautious)).mean_replayed_ns
    error = effect.error_fraction(cautious_ns)
    return Gain(effect.gain_fraction, effect.basis, error, effect.before_ns, effect.unexplained_error())


def replayed_alone(tables: TableSet, edits: Sequence[Edit]) -> Iterator[tuple[Edited, Timeline] | UspProfError]:
    """Yield the run with each edit alone and its replay, or why there is none; several are replayed in one pass."""
    at_once = graphs_per_pass(tables)
    for first in range(0, len(edits), at_once):
        runs = [_edited_or_error(tables, edit) for edit in edits[first : first + at_once]]
        timelines = iter(timelines_of(tables, [run.graph for run in runs if isinstance(run, Edited)]))
        for run in runs:
            yield run if isinstance(run, UspProfError) else (run, next(timelines))


def _edited_or_error(tables: TableSet, edit: Edit) -> Edited | UspProfError:
    try:
        return as_recorded(tables).then(tables, edit)
    except UspProfError as error:
        return error


def gains_alone(tables: TableSet, edits: Sequence[Edit]) -> list[float]:
    """Return the gain of each edit alone as a fraction of the step, or 0 if it cannot be made."""
    return [_gain_or_nothing(tables, replayed) for replayed in replayed_alone(tables, edits)]


def _gain_or_nothing(tables: TableSet, replayed: tuple[Edited, Timeline] | UspProfError) -> float:
    if isinstance(replayed, UspProfError):
        return 0.0
    made, timeline = replayed
    try:
        return gain_of(tables, made, inf, timeline).gain_fraction
    except UspProfError:
        return 0.0


# Predictions: replays before and after a change, and the error of their difference.


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The step before and after edits, in ns.

    Both exclude the recording cost if it is known.
    """

    edits: tuple[Edit, ...]
    before_ns: float
    after_ns: float
    recorded_ns: float
    """The recorded step before the edits, which matches the recorded tables."""
    edited_ns: float
    """The step after the edits including recording cost, which matches the predicted tables."""
    replay_error: float
    basis: Basis
    error_fraction: float
    graph: Graph
    timeline: Timeline
    """Times of the graph's nodes, without edits of the pipeline's action order."""
    layout_before: Layout
    layout_after: Layout
    replayed: Representatives
    """The ranks that were replayed."""
    rescheduled: Rescheduled | None = None
    """Effect of the edits of the pipeline's action order."""

    @property
    def gain_fraction(self) -> float:
        """The share of the step that the edits save."""
        return share_saved(self.before_ns, self.after_ns)


def predict(tables: TableSet, edits: Sequence[Edit], made: tuple[Edited, Timeline] | None = None) -> Prediction:
    """Return the predicted mean step of all ranks with edits; see `predict_on`."""
    return predict_on(Representatives(tables), edits, made)


def predict_on(
    replayed: Representatives, edits: Sequence[Edit], made: tuple[Edited, Timeline] | None = None
) -> Prediction:
    """Return the predicted mean step with edits: those of the graph in order, then those of the pipeline.

    If the ranks represent others, their doubt is included in the error. `made` is the run with these edits and its
    replay, if they are at hand.
    """
    tables = replayed.tables
    edited_run, timeline = made or (edited(tables, edits), None)
    graphs = [edited_run.graph] if edited_run.cautious is None else [edited_run.graph, edited_run.cautious()]
    timelines = [timeline or timeline_of(tables, graphs[0]), *(timeline_of(tables, graph) for graph in graphs[1:])]
    steps = [step_times(tables, *pair).mean_replayed_ns for pair in zip(graphs, timelines, strict=True)]
    effect = outcome(tables, edited_run, steps[0], lambda: retimed(tables, edited_run.graph, timelines[0]))
    return Prediction(
        tuple(edits),
        effect.before_ns,
        effect.after_ns,
        effect.recorded_ns,
        effect.edited_ns,
        effect.replay_error,
        effect.basis,
        effect.error_fraction(steps[1] if steps[1:] else None) + replayed.doubt,
        edited_run.graph,
        timelines[0],
        layout_of(tables),
        effect.layout,
        replayed,
        effect.rescheduled,
    )
