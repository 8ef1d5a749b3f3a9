"""Predictions: a run with edits made, its replayed step, what the edits gain, and how far that may be off."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import TYPE_CHECKING

from usp_prof.model.errors import UspProfError
from usp_prof.model.finding import GAIN, Basis
from usp_prof.replay.build import graph_of
from usp_prof.replay.representatives import Representatives
from usp_prof.replay.step_times import step_times, timeline_of, unedited
from usp_prof.whatif.edits import Lean, Request, apply, kind_of, overrules, turn
from usp_prof.whatif.edits.pipeline import is_of_pipeline, lowered, relaid
from usp_prof.whatif.layout import Layout, layout_of
from usp_prof.whatif.predicted_tables import retimed
from usp_prof.whatif.recording_cost import RecordingCost, recording_cost, without_launches
from usp_prof.whatif.rescheduled import Rescheduled, reschedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from usp_prof.model.edit import Edit
    from usp_prof.replay.graph import Graph, Timeline
    from usp_prof.tables.table_set import TableSet


_REORDERED = 0.1
"""Of what another order of actions changes, so much may not come about."""


@dataclass(frozen=True, slots=True, eq=False)
class Edited:
    """What edits make of the graph, before it is replayed."""

    edits: tuple[Edit, ...]
    graph: Graph
    cautious: Callable[[], Graph] | None
    """Makes the same by cautious models, once, where a model is in it: only who wants to know the error calls it."""
    layout: Layout
    reordered: tuple[Edit, ...]
    """The edits of the pipeline's order, which are no changes of the graph."""
    is_plain: bool
    """Whether no edit was of another kind."""
    doubt: float = _REORDERED
    """Of a modelled change, the share that may not come about."""

    @property
    def is_moved(self) -> bool:
        """Whether the order of actions changes in a run whose times an edit has moved already."""
        return bool(self.reordered) and not self.is_plain

    def then(self, tables: TableSet, edit: Edit) -> Edited:
        """Make one more edit: those of the graph in their order, those of the pipeline behind all of them."""
        kept = tuple(before for before in self.edits if not overrules(edit, before))
        if len(kept) < len(self.edits) or any(turn(before) > turn(edit) for before in kept):
            return edited(tables, (*kept, edit))
        changed, recorded = self, layout_of(tables)
        for part in lowered(edit, recorded):
            if is_of_pipeline(part, recorded):
                changed = replace(changed, reordered=(*changed.reordered, part))
            else:
                changed = _on_the_graph(changed, tables, part)
        return replace(changed, edits=(*self.edits, edit))


def _on_the_graph(made: Edited, tables: TableSet, edit: Edit) -> Edited:
    kind, cautious = kind_of(edit), made.cautious
    if cautious is not None or kind.modelled:
        before = cautious or (lambda: made.graph)
        cautious = cache(lambda: apply(before(), Request(edit, tables, made.layout, Lean.CAUTIOUS)))
    return replace(
        made,
        graph=apply(made.graph, Request(edit, tables, made.layout)),
        cautious=cautious,
        layout=kind.relayout(made.layout, edit),
        is_plain=False,
        doubt=max(made.doubt, kind.doubt),
    )


def as_recorded(tables: TableSet) -> Edited:
    """Begin without any edit."""
    return Edited((), graph_of(tables), None, layout_of(tables), (), is_plain=True)


def edited(tables: TableSet, edits: Iterable[Edit]) -> Edited:
    """Make edits one after the other: those whose turn is the same as they are given."""
    edited_run = as_recorded(tables)
    for edit in sorted(edits, key=turn):
        edited_run = edited_run.then(tables, edit)
    return edited_run


FLOOR_ERROR = 0.02
"""The replay of the unedited run is exact by construction (think time makes up for what is unexplained), so that its
error says nothing of an edit's: of 38 freshly made-up runs with the fault repaired, 36 gains are within this share of
the step."""
SHARED_ERROR = 0.05
"""The same on CPU traces: paced pairs, recorded on shared cores, mostly came out within this."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The mean step after edits, and how it is known."""

    made: Edited
    recorded_ns: float
    """The step before the edits, as it was recorded."""
    replayed_ns: float
    """After them as the replay has it, before another order of actions."""
    edited_ns: float
    """After all of them."""
    replay_error: float
    floor_error: float
    """How well gains are known at best."""
    layout: Layout
    rescheduled: Rescheduled | None
    recording: RecordingCost
    device_ns: Callable[[], float]
    """Gives the step after the edits if the device waited for no launch; a replay of its own, made once."""

    @property
    def is_free_of_recording(self) -> bool:
        """Whether what recording costs is known and taken out of the step before, the step after and the gain."""
        return self.recording.is_known and self.recording.matters(self.recorded_ns)

    @property
    def before_ns(self) -> float:
        """The step before the edits: where it is known, one that is not recorded."""
        return self.recorded_ns - self.recording.ns if self.is_free_of_recording else self.recorded_ns

    @property
    def after_ns(self) -> float:
        """The step after the edits, recorded or not as the one before."""
        return self._unrecorded_after_ns() if self.is_free_of_recording else self.edited_ns

    @property
    def gain_fraction(self) -> float:
        """The share of the step that the edits save."""
        return share_saved(self.before_ns, self.after_ns)

    @property
    def basis(self) -> Basis:
        """How it is known."""
        return Basis.MODELLED if self.made.cautious is not None or self.rescheduled is not None else Basis.REPLAYED

    @property
    def least_error(self) -> float:
        """The error of any gain in this run."""
        return max(self.floor_error, self.replay_error)

    def error_fraction(self, cautious_ns: float | None) -> float:
        """Say by what share of the measured step it may be wrong, by the replay with cautious models where one is."""
        if self.recorded_ns <= 0:  # a step of no time has no share to be wrong by
            return self.least_error
        error = 0.0 if cautious_ns is None else abs(cautious_ns - self.replayed_ns) / self.recorded_ns
        if self.rescheduled is not None:
            error += self.rescheduled.error_ns / self.recorded_ns
        if self.basis is Basis.MODELLED:
            error = max(error, self.made.doubt * abs(1 - self.edited_ns / self.recorded_ns))
        return max(self.least_error, error, self._recording_error())

    def _unrecorded_after_ns(self) -> float:
        return self.recording.taken_from(self.edited_ns, self.device_ns())

    def _recording_error(self) -> float:
        """Give what the gain may be wrong by for what recording costs: where that is not known, or does not show."""
        if not self.recording.host_ns:
            return 0.0
        hidden = self.recording.hidden_ns(self.edited_ns, self.device_ns()) / self.recorded_ns
        if self.recording.is_known or not self.recording.matters(self.recorded_ns):
            return hidden
        at_most = share_saved(self.recorded_ns - self.recording.ns, self._unrecorded_after_ns())
        return max(hidden, abs(self.gain_fraction - at_most))


def share_saved(before_ns: float, after_ns: float) -> float:
    """Give the share of a step that a shorter one saves; below 0 where it is longer."""
    return 1 - after_ns / before_ns if before_ns > 0 else 0.0


def outcome(tables: TableSet, made: Edited, replayed_ns: float, moved: Callable[[], TableSet]) -> Outcome:
    """Put the replay and the pipeline's order together; `moved` gives the tables as the replay moves them."""
    before = unedited(tables)
    if not len(before.step):
        raise UspProfError(
            "there is no step with device work to replay", hint="record steps: usp-prof info shows which there are"
        )
    saved_ns, now, other = 0.0, made.layout, None
    if made.reordered:
        other = reschedule(moved() if made.is_moved else tables, made.reordered, made.layout)
        saved_ns = other.saved_ns
    for edit in made.reordered:
        now = relaid(now, edit)
    if not GAIN.holds(1 - (replayed_ns - saved_ns) / max(before.mean_measured_ns, 1.0)):
        raise UspProfError("the edits would save more than the whole step", hint="see the health of the run's clocks")
    error = float(before.error.max(initial=0.0))
    return Outcome(
        made,
        before.mean_measured_ns,
        replayed_ns,
        replayed_ns - saved_ns,
        error,
        _floor(tables),
        now,
        other,
        recording_cost(tables),
        cache(lambda: without_launches(tables, made.graph, made.layout) - saved_ns),
    )


def _floor(tables: TableSet) -> float:
    """Say how well gains are known at best: worse where ranks without devices share the cores of one machine."""
    on_device = any(len(tables.columns("kernels", rank)) for rank in tables.ranks)
    return FLOOR_ERROR if on_device else SHARED_ERROR


# Gains of edits: the share of the measured step that each saves, how that is known, and how far it may be off.


@dataclass(frozen=True, slots=True)
class Gain:
    """What edits save, as a share of the measured step, how that is known, and how far it may be off."""

    gain_fraction: float
    basis: Basis
    error_fraction: float
    step_ns: float
    """The step before the edits, of which the gain is a share."""


def gain_of(tables: TableSet, made: Edited, least: float = -inf) -> Gain:
    """Replay what edits make of the run; raises where that cannot be done.

    Where less than `least` is saved, nobody asks how sure that is, and the replays that tell are left out.
    """
    timeline = timeline_of(tables, made.graph)
    replayed_ns = step_times(tables, made.graph, timeline).mean_replayed_ns
    effect = outcome(tables, made, replayed_ns, lambda: retimed(tables, made.graph, timeline))
    if effect.gain_fraction < least:
        return Gain(effect.gain_fraction, effect.basis, effect.least_error, effect.before_ns)
    cautious_ns = None
    if made.cautious is not None:
        cautious = made.cautious()
        cautious_ns = step_times(tables, cautious, timeline_of(tables, cautious)).mean_replayed_ns
    return Gain(effect.gain_fraction, effect.basis, effect.error_fraction(cautious_ns), effect.before_ns)


# Predictions: replays before and after a change, and the error of their difference.


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The step before and after, in ns; `gain_fraction` of the step before, less than 0 where it gets slower.

    Both are of steps that nobody records where it is known how long these take, else of recorded ones.
    """

    edits: tuple[Edit, ...]
    before_ns: float
    after_ns: float
    recorded_ns: float
    """The step before as it was recorded, of which the tables are."""
    edited_ns: float
    """The same after the edits, of which the predicted tables are."""
    replay_error: float
    basis: Basis
    error_fraction: float
    graph: Graph
    timeline: Timeline
    """When the graph's nodes run; edits of the pipeline's order are not in it."""
    layout_before: Layout
    layout_after: Layout
    replayed: Representatives
    """The ranks that were replayed, of which all of this is."""
    rescheduled: Rescheduled | None = None
    """What the edits of the pipeline's order make of it."""

    @property
    def gain_fraction(self) -> float:
        """The share of the step that the edits save."""
        return share_saved(self.before_ns, self.after_ns)


def predict(tables: TableSet, edits: Sequence[Edit]) -> Prediction:
    """Predict the mean step of all of these ranks with edits made; see `predict_on`."""
    return predict_on(Representatives(tables), edits)


def predict_on(replayed: Representatives, edits: Sequence[Edit]) -> Prediction:
    """Predict the mean step with edits made: those of the graph in their order, then those of the pipeline.

    Where the ranks stand for others, their doubt is in the error.
    """
    tables = replayed.tables
    made = edited(tables, edits)
    graphs = [made.graph] if made.cautious is None else [made.graph, made.cautious()]
    timelines = [timeline_of(tables, graph) for graph in graphs]
    steps = [step_times(tables, *pair).mean_replayed_ns for pair in zip(graphs, timelines, strict=True)]
    effect = outcome(tables, made, steps[0], lambda: retimed(tables, made.graph, timelines[0]))
    return Prediction(
        tuple(edits),
        effect.before_ns,
        effect.after_ns,
        effect.recorded_ns,
        effect.edited_ns,
        effect.replay_error,
        effect.basis,
        effect.error_fraction(steps[1] if steps[1:] else None) + replayed.doubt,
        made.graph,
        timelines[0],
        layout_of(tables),
        effect.layout,
        replayed,
        effect.rescheduled,
    )


__all__ = ["Prediction", "predict", "predict_on", "unedited"]
