"""Another pipeline schedule: the recorded actions with their measured durations, in its order.

Each recorded step is compared with itself, so that a step that took longer as a whole says nothing against a gain:

1. Simulate the schedule that ran with the step's own durations.
2. Where that is shorter than the step's window, add the same time to every action, until it is as long.
3. Simulate the other schedule with these durations. The difference of the two windows is what the step would save.
4. The error is what 1 missed, how far the steps differ in the share that they save, and what the run leaves open: how a
   full backward divides into its halves.

Two steps that save 30 and 15 ms of 100 and 50 ms agree: the gain is 30%, and no error comes of their difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.errors import UsageError
from usp_prof.schedule import Shape, named
from usp_prof.schedule_orders import Action, Kind, Timeline, order, simulate
from usp_prof.whatif.edits.pipeline import BALANCE, MOVE, PASSES, schedule_of
from usp_prof.whatif.layout import layout_of
from usp_prof.whatif.recorded_pipeline import Pipeline, pipeline_of, pipeline_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.model.edit import Edit
    from usp_prof.schedule_orders import Order
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.layout import Layout

PROBE_NS = 100_000
"""Each action is made longer by this; the window then shows how many actions lie on the longest path."""
SPLIT_DOUBT = 0.05
"""Where only full backwards were measured, each half may take this share more or less than half of one."""


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """Mean windows over steps, in ns: as measured, as their own order is simulated, and as the new order is."""

    measured_ns: float
    simulated_ns: float
    other_ns: float
    timeline: Timeline
    """The new order in the median step."""
    span_ns: float
    """What of its own window a step adds to the run: less, where stages begin the next step before all have ended."""
    other_span_ns: float
    error_ns: float
    """How far the saving may be off."""

    @property
    def saved_ns(self) -> float:
        """What the step saves; what the simulation misses of the run is taken to be in proportion."""
        if not self.simulated_ns:
            return 0.0
        return (self.span_ns - self.other_span_ns) * self.measured_ns / self.simulated_ns

    @property
    def bubble_fraction(self) -> float:
        """The bubble of the new order in the median step."""
        return self.timeline.bubble_fraction


def reschedule(tables: TableSet, edits: Sequence[Edit], layout: Layout | None = None) -> Rescheduled:
    """Predict edits of the pipeline, all of them together: schedule, micro-batches, even stages, layers moved."""
    return of_steps(pipeline_of(tables), pipeline_steps(tables), edits, layout or layout_of(tables))


def of_steps(median: Pipeline, steps: Sequence[Pipeline], edits: Sequence[Edit], layout: Layout) -> Rescheduled:
    """Compare each step with itself; the new order is drawn as the median step takes it."""
    compared = [_of_one_step(step, edits, layout) for step in steps]
    return Rescheduled(
        measured_ns=fmean(step.measured_ns for step in compared),
        simulated_ns=fmean(step.simulated_ns for step in compared),
        other_ns=fmean(step.other_ns for step in compared),
        timeline=_of_one_step(median, edits, layout).timeline,
        span_ns=fmean(step.span_ns for step in compared),
        other_span_ns=fmean(step.other_span_ns for step in compared),
        error_ns=fmean(step.missed_ns + step.split_ns for step in compared) + _noise(compared),
    )


def _of_one_step(pipeline: Pipeline, edits: Sequence[Edit], layout: Layout) -> _Compared:
    wanted = as_recorded = _Wanted.of(pipeline, layout)
    for edit in edits:
        wanted = wanted.after(edit)
    reordered = (wanted.schedule, wanted.chunks, wanted.passes)
    if not wanted.is_named and reordered == (as_recorded.schedule, as_recorded.chunks, as_recorded.passes):
        return _compared(pipeline, wanted.pipeline, pipeline.order, pipeline.stages)
    schedule, ranks = named(wanted.schedule), len(pipeline.order)
    if schedule is None:
        raise UsageError(f"edit {edits[0]}: the run's own schedule is not known", hint="name one: schedule=1f1b,m=16")
    stages = ranks * wanted.chunks if wanted.is_named else pipeline.stages
    return _compared(pipeline, wanted.pipeline, order(schedule, Shape(ranks, wanted.passes, wanted.chunks)), stages)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What edits have made of the pipeline so far."""

    pipeline: Pipeline
    """The recorded actions: with less work where the batch is cut into more pieces, evened, or with layers moved."""
    layout: Layout
    schedule: str
    chunks: int
    """Stages on a rank."""
    passes: int
    """Micro-batches in a step."""
    is_named: bool = False
    """Whether an edit has named a schedule; else it is the run's own, in the order that was recorded."""

    @classmethod
    def of(cls, pipeline: Pipeline, layout: Layout) -> _Wanted:
        """Begin with the pipeline as it ran."""
        return cls(pipeline, layout, layout.schedule, layout.chunks, pipeline.micro_batches)

    def after(self, edit: Edit) -> _Wanted:
        """Make one edit more."""
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
    """What the simulation of its own order misses."""
    split_ns: float
    """What the new order's parts leave open."""
    own_noise_ns: float
    """What the saving owes to single actions that took longer than usual."""

    @property
    def saved_ns(self) -> float:
        """What this step saves."""
        return self.span_ns - self.other_span_ns


def _compared(pipeline: Pipeline, other: Pipeline, new_order: Order, stages: int) -> _Compared:
    """Simulate the step's own order, and the new one, with what each action costs beside its work as the step shows."""
    without_overhead = _simulated(pipeline, pipeline.order, pipeline.stages)
    settled = _settled(pipeline, float(without_overhead.window))
    is_settled = settled is not pipeline
    before = _simulated(settled, pipeline.order, pipeline.stages) if is_settled else without_overhead
    other = replace(other, overhead_ns=settled.overhead_ns)
    after = _simulated(other, new_order, stages)

    # Another run has other noise: that of single actions counts where it makes one order longer than the other.
    noise_before = before.window - _simulated(replace(settled, own={}), pipeline.order, pipeline.stages).window
    noise_after = after.window - _simulated(replace(other, own={}), new_order, stages).window
    return _Compared(
        measured_ns=pipeline.window_ns,
        simulated_ns=float(before.window),
        other_ns=float(after.window),
        span_ns=_span(pipeline, before),
        other_span_ns=_span(pipeline, after),
        timeline=after,
        missed_ns=abs(float(without_overhead.window) - pipeline.window_ns),
        split_ns=_split_doubt(other, new_order, stages, after) if _guesses_halves(pipeline, new_order) else 0.0,
        own_noise_ns=abs(float(noise_before - noise_after)),
    )


def _noise(steps: Sequence[_Compared]) -> float:
    """Give the standard error of the mean saving: how far each step's is from the share that all of them save.

    Of a single step, what its own actions' noise makes of the saving.
    """
    if len(steps) < 2:
        return steps[0].own_noise_ns
    windows = np.array([step.simulated_ns for step in steps])
    saved = np.array([step.saved_ns for step in steps])
    apart = saved - windows * saved.sum() / max(windows.sum(), 1.0)
    return float(np.sqrt((apart**2).sum() / (len(steps) - 1) / len(steps)))


def _guesses_halves(pipeline: Pipeline, new_order: Order) -> bool:
    """Say whether the new order splits backward, and the run did not show how long either half takes."""
    halves = {Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT}
    measured = {kind for _, kind in pipeline.duration}
    wanted = {action.kind for actions in new_order for action in actions}
    return bool(halves & wanted) and not halves <= measured


def _span(pipeline: Pipeline, line: Timeline) -> float:
    """Give what a step adds: the window where all stages meet at its end, else the longest that one rank is at it."""
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
    """Add the same time to each action, until the run's own order takes as long as it did."""
    missing = pipeline.window_ns - simulated
    if missing <= 0:
        return pipeline
    longer = replace(pipeline, overhead_ns=pipeline.overhead_ns + PROBE_NS)
    window = _simulated(longer, longer.order, longer.stages).window
    on_path = max((window - simulated) / PROBE_NS, 1.0)  # actions on the longest path
    return replace(pipeline, overhead_ns=pipeline.overhead_ns + round(missing / on_path))


def _split_doubt(pipeline: Pipeline, new_order: Order, stages: int, line: Timeline) -> float:
    """Say how much the window of `line` depends on how a full backward divides."""

    def uneven(action: Action) -> int:
        sign = {Kind.INPUT_GRADIENT: 1, Kind.WEIGHT_GRADIENT: -1}.get(action.kind, 0)
        return round(_duration(pipeline, action, stages) * (1 + sign * SPLIT_DOUBT))

    return abs(simulate(new_order, uneven, transfer_ns=pipeline.transfer_ns).window - float(line.window))


def _balanced(pipeline: Pipeline) -> Pipeline:
    """Give every stage's actions the mean time of all stages'."""
    stages = range(pipeline.stages)
    duration: dict[tuple[int, Kind], int] = {}
    for kind in {kind for _, kind in pipeline.duration}:
        total = sum(pipeline.duration.get((stage, kind), 0) for stage in stages)
        duration |= dict.fromkeys([(stage, kind) for stage in stages], round(total / pipeline.stages))
    return _with_times(pipeline, duration)


def _with_layers_moved(pipeline: Pipeline, edit: Edit, layout: Layout) -> Pipeline:
    """Give one stage fewer layers and another more; a layer takes what the source's take on average."""
    layers = layout.model.layers if layout.model else 0
    source, target = (int(edit.number(key)) for key in ("source", "target"))
    count, stages = int(edit.number(default=1.0)), range(pipeline.stages)
    if not layers:
        hint = "give its config.json by --model or run.assume(model=...)"
        raise UsageError(f"edit {edit}: the model's number of layers is not known", hint=hint)
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
    """Give stages other mean times; an action that took longer than its stage's others does so still.

    A stage that gets less work does less of everything. What is added to a stage takes its mean time in each action:
    the pause of a small action is no longer in a larger stage.
    """
    own = {}
    for (stage, kind, number), took in pipeline.own.items():
        before, now = pipeline.duration.get((stage, kind), 0), duration[stage, kind]
        own[stage, kind, number] = round(took * now / before) if now < before else took + now - before
    return replace(pipeline, duration=duration, own=own)


def _duration(pipeline: Pipeline, action: Action, stages: int) -> int:
    """Give an action's time where `stages` share the layers that were on the measured stages.

    A stage of the other cut holds a share of the measured stage that lies at its place in the model. Where only full
    backwards were measured, each half is taken to be half of one.
    """
    cut = stages / pipeline.stages
    halves = (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)

    def of(stage: int) -> float:
        own = pipeline.work(stage, action.kind, action.micro_batch)
        if own is not None:
            return float(own)
        if action.kind in halves:
            return (pipeline.work(stage, Kind.BACKWARD, action.micro_batch) or 0) / 2
        if action.kind is Kind.BACKWARD:
            return float(sum(pipeline.work(stage, half, action.micro_batch) or 0 for half in halves))
        return 0.0

    if cut >= 1:
        return round(of(min(int(action.stage / cut), pipeline.stages - 1)) / cut) + pipeline.overhead_ns
    whole = round(1 / cut)  # several measured stages become one
    return round(sum(of(action.stage * whole + part) for part in range(whole))) + pipeline.overhead_ns
