"""Rescheduled pipeline: the recorded actions with their measured durations, in the order of another schedule.

Each recorded step is compared with itself, so that a generally slower step does not affect the gain:

1. Simulate the recorded schedule with the step's own durations.
2. If the result is shorter than the step's window, add the same time to every action until it is as long.
3. Simulate the other schedule with these durations. The difference of the two windows is the time that the step saves.
4. The error is the time missed in 1 and the differences between steps in the saved share. If only full backwards were
   measured and the new order splits them, the error is at least the saved time: a split backward costs more than its
   halves, and a recording without it does not show how much.

Two steps that save 30 of 100 ms and 15 of 50 ms agree: the gain is 30%, and their difference adds no error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from usp_prof.model.edit import Edit
from usp_prof.model.errors import UsageError
from usp_prof.schedule import Shape, schedule_by_name
from usp_prof.schedule_orders import Action, Kind, Order, Timeline, order, simulate
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edits.pipeline import BALANCE, MOVE, PASSES, schedule_of
from usp_prof.whatif.layout import Layout, layout_of
from usp_prof.whatif.recorded_pipeline import Pipeline, pipeline_of, pipeline_steps

PROBE_NS = 100_000
"""Each action is lengthened by this; the longer window then shows the number of actions on the longest path."""


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """Mean windows over steps, in ns: measured, simulated in the recorded order, and simulated in the new order."""

    measured_ns: float
    simulated_ns: float
    other_ns: float
    timeline: Timeline
    """The new order in the median step."""
    span_ns: float
    """Time that a step adds to the run; less than its window if stages start the next step before all have ended."""
    other_span_ns: float
    error_ns: float
    """Error of the saved time."""
    guesses_halves: bool = False
    """Whether the new order splits backward, and the run has no measured times of both halves."""

    @property
    def saved_ns(self) -> float:
        """Time that the step saves, scaled from the simulated to the measured window."""
        if not self.simulated_ns:
            return 0.0
        return (self.span_ns - self.other_span_ns) * self.measured_ns / self.simulated_ns

    @property
    def bubble_fraction(self) -> float:
        """Bubble fraction of the new order in the median step."""
        return self.timeline.bubble_fraction


def reschedule(tables: TableSet, edits: Sequence[Edit], layout: Layout | None = None) -> Rescheduled:
    """Return the predicted effect of all pipeline edits: schedule, micro-batches, balanced stages, moved layers.

    Memoized for the recorded layout: rules predict an edit before the search does.
    """
    recorded = layout_of(tables)

    def predict(layout: Layout) -> Rescheduled:
        return of_steps(pipeline_of(tables), pipeline_steps(tables), edits, layout)

    if layout is None or layout == recorded:
        return tables.memo(("rescheduled", tuple(edits)), lambda: predict(recorded))
    return predict(layout)


def guesses_halves(tables: TableSet, edits: Sequence[Edit]) -> bool:
    """Return whether edits split backward in a run that has no measured times of both halves."""
    pipeline = pipeline_of(tables)
    return _guesses_halves(pipeline, _edited(pipeline, edits, layout_of(tables)).order)


def of_steps(median: Pipeline, steps: Sequence[Pipeline], edits: Sequence[Edit], layout: Layout) -> Rescheduled:
    """Return the comparison of each step with itself; the timeline of the new order is that of the median step."""
    compared = [_of_one_step(step, edits, layout) for step in steps]
    noise_ns = fmean(step.missed_ns for step in compared) + _noise(compared)
    rescheduled = Rescheduled(
        measured_ns=fmean(step.measured_ns for step in compared),
        simulated_ns=fmean(step.simulated_ns for step in compared),
        other_ns=fmean(step.other_ns for step in compared),
        timeline=_of_one_step(median, edits, layout).timeline,
        span_ns=fmean(step.span_ns for step in compared),
        other_span_ns=fmean(step.other_span_ns for step in compared),
        error_ns=noise_ns,
        guesses_halves=any(step.guesses_halves for step in compared),
    )
    if not rescheduled.guesses_halves:
        return rescheduled
    return replace(rescheduled, error_ns=max(noise_ns, abs(rescheduled.saved_ns)))


def _of_one_step(pipeline: Pipeline, edits: Sequence[Edit], layout: Layout) -> _Compared:
    edited = _edited(pipeline, edits, layout)
    return _compared(pipeline, edited.pipeline, edited.order, edited.stages)


@dataclass(frozen=True, slots=True)
class _EditedPipeline:
    """The recorded actions as edited, their new order, and the number of stages in it."""

    pipeline: Pipeline
    order: Order
    stages: int


def _edited(pipeline: Pipeline, edits: Sequence[Edit], layout: Layout) -> _EditedPipeline:
    wanted = as_recorded = _Wanted.recorded(pipeline, layout)
    for edit in edits:
        wanted = wanted.after(edit)
    reordered = (wanted.schedule, wanted.chunks, wanted.passes)
    if not wanted.is_named and reordered == (as_recorded.schedule, as_recorded.chunks, as_recorded.passes):
        return _EditedPipeline(wanted.pipeline, pipeline.order, pipeline.stages)
    schedule, ranks = schedule_by_name(wanted.schedule), len(pipeline.order)
    if schedule is None:
        raise UsageError(f"edit {edits[0]}: the run's own schedule is unknown", hint="name one: schedule=1f1b,m=16")
    stages = ranks * wanted.chunks if wanted.is_named else pipeline.stages
    return _EditedPipeline(wanted.pipeline, order(schedule, Shape(ranks, wanted.passes, wanted.chunks)), stages)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The pipeline with the edits so far."""

    pipeline: Pipeline
    """The recorded actions, scaled to the number of micro-batches, balanced, or with layers moved."""
    layout: Layout
    schedule: str
    chunks: int
    """Stages per rank."""
    passes: int
    """Micro-batches per step."""
    is_named: bool = False
    """Whether an edit has named a schedule; otherwise it is the run's own, in the recorded order."""

    @classmethod
    def recorded(cls, pipeline: Pipeline, layout: Layout) -> _Wanted:
        """Return the pipeline as it ran."""
        return cls(pipeline, layout, layout.schedule, layout.chunks, pipeline.micro_batches)

    def after(self, edit: Edit) -> _Wanted:
        """Return the pipeline with one more edit."""
        if edit.name == BALANCE:
            return replace(self, pipeline=_balanced(self.pipeline))
        if edit.name == MOVE:
            return replace(self, pipeline=_with_layers_moved(self.pipeline, edit, self.layout))
        if edit.name == PASSES:
            return replace(self, passes=max(int(edit.number()), 1))
        schedule, chunks = schedule_of(edit, self.schedule, self.chunks)
        passes = max(int(edit.number("m", default=float(self.passes))), 1)
        smaller = self.pipeline.scaled(self.passes / passes)  # the same batch in more, smaller pieces
        return replace(self, pipeline=smaller, schedule=schedule, chunks=chunks, passes=passes, is_named=True)


@dataclass(frozen=True, slots=True)
class _Compared:
    """One step in its own order and in the new one; windows and spans as in `Rescheduled`, in ns."""

    measured_ns: float
    simulated_ns: float
    other_ns: float
    span_ns: float
    other_span_ns: float
    timeline: Timeline
    missed_ns: float
    """Time that the simulation of the recorded order misses."""
    guesses_halves: bool
    """As in `Rescheduled`."""
    own_noise_ns: Callable[[], float]
    """Returns the part of the saved time that comes from single actions that took longer than usual."""

    @property
    def saved_ns(self) -> float:
        """Time that this step saves."""
        return self.span_ns - self.other_span_ns


def _compared(pipeline: Pipeline, other: Pipeline, new_order: Order, stages: int) -> _Compared:
    """Simulate a step in its own order and in the new one, with the fixed cost per action fitted to the step."""
    without_overhead = _simulated(pipeline, pipeline.order, pipeline.stages)
    settled = _settled(pipeline, float(without_overhead.window))
    is_settled = settled is not pipeline
    before = _simulated(settled, pipeline.order, pipeline.stages) if is_settled else without_overhead
    other = replace(other, overhead_ns=settled.overhead_ns)
    after = _simulated(other, new_order, stages)

    def own_noise_ns() -> float:
        # Another run has other noise, so noise of single actions counts if it makes one order longer than the other.
        noise_before = before.window - _simulated(replace(settled, own={}), pipeline.order, pipeline.stages).window
        noise_after = after.window - _simulated(replace(other, own={}), new_order, stages).window
        return abs(float(noise_before - noise_after))

    return _Compared(
        measured_ns=pipeline.window_ns,
        simulated_ns=float(before.window),
        other_ns=float(after.window),
        span_ns=_span(pipeline, before),
        other_span_ns=_span(pipeline, after),
        timeline=after,
        missed_ns=abs(float(without_overhead.window) - pipeline.window_ns),
        guesses_halves=_guesses_halves(pipeline, new_order),
        own_noise_ns=own_noise_ns,
    )


def _noise(steps: Sequence[_Compared]) -> float:
    """Return the standard error of the mean saving, from each step's deviation from the common saved share.

    For a single step, return the part of the saving that comes from the noise of its actions.
    """
    if len(steps) < 2:
        return steps[0].own_noise_ns()
    windows = np.array([step.simulated_ns for step in steps])
    saved = np.array([step.saved_ns for step in steps])
    apart = saved - windows * saved.sum() / max(windows.sum(), 1.0)
    return float(np.sqrt((apart**2).sum() / (len(steps) - 1) / len(steps)))


def _guesses_halves(pipeline: Pipeline, new_order: Order) -> bool:
    """Return whether the new order splits backward, and the run has no measured times of both halves."""
    halves = {Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT}
    measured = {kind for _, kind in pipeline.duration}
    wanted = {action.kind for actions in new_order for action in actions}
    return bool(halves & wanted) and not halves <= measured


def _span(pipeline: Pipeline, line: Timeline) -> float:
    """Return the time that a step adds: its window if all stages synchronize, otherwise its longest rank's time."""
    if pipeline.meets:
        return float(line.window)
    lengths = []
    for rank in range(line.ranks):
        own = line.rank == rank
        lengths.append(int(line.end[own].max() - line.start[own].min()))
    return float(max(lengths))


def _simulated(pipeline: Pipeline, actions: Order, stages: int) -> Timeline:
    return simulate(actions, lambda action: _duration(pipeline, action, stages), transfer_ns=pipeline.transfer_ns)


def _settled(pipeline: Pipeline, simulated: float) -> Pipeline:
    """Return the pipeline with the same time added to each action, so that its own order takes as long as measured."""
    missing = pipeline.window_ns - simulated
    if missing <= 0:
        return pipeline
    longer = replace(pipeline, overhead_ns=pipeline.overhead_ns + PROBE_NS)
    window = _simulated(longer, longer.order, longer.stages).window
    on_path = max((window - simulated) / PROBE_NS, 1.0)  # actions on the longest path
    return replace(pipeline, overhead_ns=pipeline.overhead_ns + round(missing / on_path))


def _balanced(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with the mean time of all stages for every stage's actions."""
    stages = range(pipeline.stages)
    duration: dict[tuple[int, Kind], int] = {}
    for kind in {kind for _, kind in pipeline.duration}:
        total = sum(pipeline.duration.get((stage, kind), 0) for stage in stages)
        duration |= dict.fromkeys([(stage, kind) for stage in stages], round(total / pipeline.stages))
    return _with_times(pipeline, duration)


def _with_layers_moved(pipeline: Pipeline, edit: Edit, layout: Layout) -> Pipeline:
    """Return the pipeline with layers moved between two stages; a layer takes the average time in the source stage."""
    layers = layout.model.layers if layout.model else 0
    source, target = (int(edit.number(key)) for key in ("source", "target"))
    count, stages = int(edit.number(default=1.0)), range(pipeline.stages)
    if not layers:
        hint = "give its config.json by --model or run.assume(model=...)"
        raise UsageError(f"edit {edit}: the model's number of layers is unknown", hint=hint)
    if source not in stages or target not in stages:
        raise UsageError(f"edit {edit}: there is no such stage", hint=f"stages are 0 to {pipeline.stages - 1}")
    own = layers // pipeline.stages
    if not 0 < count <= own:
        raise UsageError(f"edit {edit}: a stage has {own} layers", hint="move at least one, and no more than these")
    duration = dict(pipeline.duration)
    for kind in {kind for _, kind in duration}:
        share = round(duration.get((source, kind), 0) * count / own)
        duration[source, kind] = duration.get((source, kind), 0) - share
        duration[target, kind] = duration.get((target, kind), 0) + share
    return _with_times(pipeline, duration)


def _with_times(pipeline: Pipeline, duration: dict[tuple[int, Kind], int]) -> Pipeline:
    """Return the pipeline with other mean times of stages; the noise of single actions is kept.

    If a stage gets less work, its actions shrink in proportion. If it gets more, the same time is added to each action,
    so a pause in one action does not grow with the stage.
    """
    own = {}
    for (stage, kind, number), took in pipeline.own.items():
        before, now = pipeline.duration.get((stage, kind), 0), duration[stage, kind]
        own[stage, kind, number] = round(took * now / before) if now < before else took + now - before
    return replace(pipeline, duration=duration, own=own)


def _duration(pipeline: Pipeline, action: Action, stages: int) -> int:
    """Return an action's time if the layers of the measured stages are divided into `stages`.

    A stage of the new division holds a share of the measured stage at the same place in the model. If only full
    backwards were measured, each half takes half of one.
    """
    cut = stages / pipeline.stages
    halves = (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)

    def time_of(stage: int) -> float:
        own = pipeline.work(stage, action.kind, action.micro_batch)
        if own is not None:
            return float(own)
        if action.kind in halves:
            return (pipeline.work(stage, Kind.BACKWARD, action.micro_batch) or 0) / 2
        if action.kind is Kind.BACKWARD:
            return float(sum(pipeline.work(stage, half, action.micro_batch) or 0 for half in halves))
        return 0.0

    if cut >= 1:
        return round(time_of(min(int(action.stage / cut), pipeline.stages - 1)) / cut) + pipeline.overhead_ns
    merged = round(1 / cut)  # number of measured stages that become one
    return round(sum(time_of(action.stage * merged + part) for part in range(merged))) + pipeline.overhead_ns
