"""Predictions: the replayed step of a run with edits, the gain of the edits, and its error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf

from usp_prof.model.edit import Edit
from usp_prof.model.errors import UspProfError
from usp_prof.model.finding import GAIN, Basis
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import Graph, Timeline
from usp_prof.replay.representatives import Representatives
from usp_prof.replay.step_times import (
    graphs_per_pass,
    share_saved,
    step_times,
    timeline_of,
    timelines_of,
    unedited,
)
from usp_prof.replay.unexplained import (
    as_little_as_peers,
    unexplained_shares,
    unmatched_waits,
    without_unexplained,
    without_unmatched_waits,
)
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edits import Lean, Request, apply, kind_of, overrules, turn
from usp_prof.whatif.edits.pipeline import is_of_pipeline, lowered, relaid
from usp_prof.whatif.layout import Layout, layout_of
from usp_prof.whatif.lead import gain_after_first_step, gain_without_lead, without_waits_in_queue
from usp_prof.whatif.predicted_tables import retimed
from usp_prof.whatif.recording_cost import RecordingCost, recording_cost, without_host
from usp_prof.whatif.replayed_ranks import ranks_made_like_peers, ranks_of_edits
from usp_prof.whatif.rescheduled import Rescheduled, reschedule

_REORDERED = 0.1
"""Share of the effect of another action order that may not materialize."""


@dataclass(frozen=True, slots=True, eq=False)
class Edited:
    """The graph with edits applied, before it is replayed."""

    edits: tuple[Edit, ...]
    graph: Graph
    cautious: Callable[[], Graph] | None
    """Returns the graph from cautious models, memoized; `None` if no edit is modeled. Needed only for the error."""
    layout: Layout
    reordered: tuple[Edit, ...]
    """The edits of the pipeline's action order, which do not change the graph."""
    is_plain: bool
    """Whether there are no edits of the graph."""
    doubt: float = _REORDERED
    """Share of a modeled change that may not materialize."""

    @property
    def is_moved(self) -> bool:
        """Whether the action order changes in a run whose times were already changed by an edit."""
        return bool(self.reordered) and not self.is_plain

    def then(self, tables: TableSet, edit: Edit) -> Edited:
        """Return the result of one more edit: edits of the graph in order, then those of the pipeline."""
        remaining = tuple(before for before in self.edits if not overrules(edit, before))
        if len(remaining) < len(self.edits) or any(turn(before) > turn(edit) for before in remaining):
            return edited(tables, (*remaining, edit))
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
    """Return the recorded run without edits."""
    return Edited((), graph_of(tables), None, layout_of(tables), (), is_plain=True)


def edited(tables: TableSet, edits: Iterable[Edit]) -> Edited:
    """Return the run with edits applied in order of their turn; edits with equal turns keep the given order."""
    edited_run = as_recorded(tables)
    for edit in sorted(edits, key=turn):
        edited_run = edited_run.then(tables, edit)
    return edited_run


FLOOR_ERROR = 0.02
"""Minimum error of a gain. The replay of the unedited run is exact by construction (unexplained time becomes think
time), so its error is not informative. In 38 synthetic runs with the fault repaired, 36 gains were within this share of
the step."""
SHARED_ERROR = 0.05
"""The same for CPU traces: most paced pairs, recorded on shared cores, were within this share."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The mean step after edits, with its basis and error."""

    made: Edited
    recorded_ns: float
    """The step before the edits, as it was recorded."""
    replayed_ns: float
    """The replayed step after the edits of the graph, before the action order changes."""
    edited_ns: float
    """The step after all edits."""
    replay_error: float
    floor_error: float
    """Minimum error of any gain."""
    layout: Layout
    rescheduled: Rescheduled | None
    recording: RecordingCost
    device_ns: Callable[[], float]
    """Returns the step after the edits if the device never waited for the host, from a separate, memoized replay."""
    unexplained_error: Callable[[], float]
    """Returns the error of the gain from times that the graph cannot explain, from separate replays."""

    @property
    def is_free_of_recording(self) -> bool:
        """Whether the recording cost is known and subtracted from both steps and the gain."""
        return self.recording.is_known and self.recording.matters(self.recorded_ns)

    @property
    def before_ns(self) -> float:
        """The step before the edits, without the recording cost if it is known."""
        return self.recorded_ns - self.recording.ns if self.is_free_of_recording else self.recorded_ns

    @property
    def after_ns(self) -> float:
        """The step after the edits, without the recording cost if it is known."""
        return self._unrecorded_after_ns() if self.is_free_of_recording else self.edited_ns

    @property
    def gain_fraction(self) -> float:
        """The share of the step that the edits save."""
        return share_saved(self.before_ns, self.after_ns)

    @property
    def basis(self) -> Basis:
        """Basis of the gain: replayed or modeled."""
        return Basis.MODELLED if self.made.cautious is not None or self.rescheduled is not None else Basis.REPLAYED

    @property
    def least_error(self) -> float:
        """The error of any gain in this run."""
        return max(self.floor_error, self.replay_error)

    def error_fraction(self, cautious_ns: float | None) -> float:
        """Return the error as a share of the measured step; `cautious_ns` is the step with cautious models, if any."""
        if self.recorded_ns <= 0:  # no relative error for a step of zero length
            return self.least_error
        error = 0.0 if cautious_ns is None else abs(cautious_ns - self.replayed_ns) / self.recorded_ns
        if self.rescheduled is not None:
            error += self.rescheduled.error_ns / self.recorded_ns
        if self.basis is Basis.MODELLED:
            error = max(error, self.made.doubt * abs(1 - self.edited_ns / self.recorded_ns))
        return max(self.least_error, error, self._recording_error(), self.unexplained_error())

    def _unrecorded_after_ns(self) -> float:
        return self.recording.taken_from(self.edited_ns, self.device_ns())

    def _recording_error(self) -> float:
        """Return the error of the gain from recording cost that is unknown or hidden in the recorded step."""
        if not self.recording.host_ns:
            return 0.0
        hidden = self.recording.hidden_ns(self.edited_ns, self.device_ns()) / self.recorded_ns
        if self.recording.is_known or not self.recording.matters(self.recorded_ns):
            return hidden
        at_most = share_saved(self.recorded_ns - self.recording.ns, self._unrecorded_after_ns())
        return max(hidden, abs(self.gain_fraction - at_most))


def outcome(tables: TableSet, made: Edited, replayed_ns: float, moved: Callable[[], TableSet]) -> Outcome:
    """Return the outcome of graph and pipeline edits; `moved` returns the tables as moved by the replay."""
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
        raise UspProfError(
            "the edits would save more than the whole step",
            hint="check the clocks: usp-prof analyze RUN --section clock --section health",
        )
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
        cache(lambda: without_host(tables, made.graph, made.layout) - saved_ns),
        cache(lambda: _unexplained_error(tables, made, replayed_ns)),
    )


def _unexplained_error(tables: TableSet, made: Edited, replayed_ns: float) -> float:
    """Return how much the gain of the graph's edits changes if unexplained times were not there.

    The gain is compared with that of other cases: all unexplained idle time is gone before and after the edits; ranks
    that become like their peers also lose what they have more of it; the edited ranks make all waits disappear whose
    other side is unknown; or the first step, which got longer because its start moved, does not count.
    """
    if made.is_plain:
        return 0.0

    def step_ns(graph: Graph) -> float:
        return step_times(tables, graph, timeline_of(tables, graph)).mean_replayed_ns

    recorded_ns = unedited(tables).mean_measured_ns
    gain = share_saved(recorded_ns, replayed_ns)
    like_peers = ranks_made_like_peers(made.edits, tables.ranks)
    gains = [gain]
    if unexplained_shares(tables):
        explained_ns = tables.memo(
            "step without unexplained time", lambda: step_ns(without_unexplained(graph_of(tables), tables))
        )
        gains.append(share_saved(explained_ns, step_ns(without_unexplained(made.graph, tables))))
        if like_peers:
            gains.append(share_saved(recorded_ns, step_ns(as_little_as_peers(made.graph, tables, like_peers))))
    ranks = ranks_of_edits(made.edits, tables.ranks)
    if (at_once := without_waits_in_queue(made.graph, tables, ranks, recorded_ns)) is not None:
        gains.append(share_saved(recorded_ns, step_ns(at_once)))
    if like_peers and unmatched_waits(tables).any():
        gains.append(share_saved(recorded_ns, step_ns(without_unmatched_waits(made.graph, tables))))
    gains += [gain_after_first_step(made.graph, tables, gain), gain_without_lead(made.graph, tables, replayed_ns)]
    return max(abs(other - gain) for other in gains)


def _floor(tables: TableSet) -> float:
    """Return the minimum error of a gain, which is larger if ranks without devices share cores."""
    on_device = any(len(tables.columns("kernels", rank)) for rank in tables.ranks)
    return FLOOR_ERROR if on_device else SHARED_ERROR


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


def predict(tables: TableSet, edits: Sequence[Edit]) -> Prediction:
    """Return the predicted mean step of all ranks with edits; see `predict_on`."""
    return predict_on(Representatives(tables), edits)


def predict_on(replayed: Representatives, edits: Sequence[Edit]) -> Prediction:
    """Return the predicted mean step with edits: those of the graph in order, then those of the pipeline.

    If the ranks represent others, their doubt is included in the error.
    """
    tables = replayed.tables
    edited_run = edited(tables, edits)
    graphs = [edited_run.graph] if edited_run.cautious is None else [edited_run.graph, edited_run.cautious()]
    timelines = [timeline_of(tables, graph) for graph in graphs]
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


__all__ = ["Prediction", "predict", "predict_on", "unedited"]
