"""What would another pipeline schedule save? The same actions with their measured durations, in another order.

The schedule that ran is simulated with the measured durations, and so is the other one; the difference of the two
windows is what the step would save. What the simulation of the run's own schedule misses is the error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.algebra.schedules.action import Action, Kind, Order
from usp_prof.algebra.schedules.orders import Schedule, Shape, named, order
from usp_prof.algebra.schedules.simulation import simulate
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.tables import clock

if TYPE_CHECKING:
    from usp_prof.model.edit import Edit
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.graph import Ints

SCHEDULE, BALANCE = "schedule", "balance_stages"
"""The edits that reorder or re-cut the pipeline's actions."""

_KINDS = tuple(str(kind) for kind in Kind)


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """Windows in ns: as measured, as its own order is simulated, and as the new order is."""

    measured_ns: float
    simulated_ns: float
    other_ns: float
    bubble_fraction: float

    @property
    def saved_ns(self) -> float:
        """What the step saves."""
        return self.simulated_ns - self.other_ns

    @property
    def error_ns(self) -> float:
        """What the simulation of the run's own schedule misses."""
        return abs(self.simulated_ns - self.measured_ns)


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """What the pipeline did: mean time of each (stage, kind), the ranks' own order, and the measured window."""

    duration: dict[tuple[int, Kind], int]
    order: Order
    micro_batches: int
    window_ns: float
    overhead_ns: int = 0
    """What each action costs beside its work, however small it is: posting, marks, the gap to the next."""

    @property
    def stages(self) -> int:
        """Number of stages."""
        return max(stage for stage, _ in self.duration) + 1


def reschedule(tables: TableSet, edit: Edit) -> Rescheduled:
    """Predict another schedule; keys: v (stages on each rank), m (micro-batches, with the work of each as it is)."""
    pipeline = pipeline_of(tables)
    if edit.name == BALANCE:
        return _balanced(pipeline)
    schedule = named(edit.value)
    if schedule is None:
        raise unknown_name("schedule", edit.value, [str(each) for each in Schedule])
    chunks = int(edit.number("v", default=2.0 if schedule in (Schedule.ZBV, Schedule.DUALPIPE_V) else 1.0))
    if schedule in (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB) and not edit.place("v"):
        chunks = 2
    ranks = len(pipeline.order)
    micro_batches = int(edit.number("m", default=float(pipeline.micro_batches)))
    other = order(schedule, Shape(ranks, micro_batches, chunks))
    mine = simulate(pipeline.order, lambda action: _duration(pipeline, action, pipeline.stages))
    stages = ranks * chunks
    theirs = simulate(other, lambda action: _duration(pipeline, action, stages))
    scale = pipeline.micro_batches / micro_batches  # the same batch in more, smaller pieces
    return Rescheduled(pipeline.window_ns, float(mine.window), theirs.window * scale, theirs.bubble_fraction)


def _balanced(pipeline: Pipeline) -> Rescheduled:
    """Simulate the run's own order with every stage's work the mean of all stages'."""
    kinds = {kind for _, kind in pipeline.duration}
    mean = {
        kind: round(sum(pipeline.duration.get((s, kind), 0) for s in range(pipeline.stages)) / pipeline.stages)
        for kind in kinds
    }
    mine = simulate(pipeline.order, lambda action: _duration(pipeline, action, pipeline.stages))
    even = simulate(pipeline.order, lambda action: mean[action.kind] + pipeline.overhead_ns)
    return Rescheduled(pipeline.window_ns, float(mine.window), float(even.window), even.bubble_fraction)


def pipeline_of(tables: TableSet) -> Pipeline:
    """Gather the pipeline's actions; raises where the run has none."""
    clocks = clock.of(tables)
    rows = []
    for rank in tables.ranks:
        actions = tables.columns("actions", rank)
        codes, texts = actions.codes("kind")
        kind = np.array([_KINDS.index(text) if text in _KINDS else -1 for text in texts] + [-1])[codes]
        begin, end = (clocks.align(rank, actions[name]) for name in ("device_start_ns", "device_end_ns"))
        busy = _busy(tables, rank, actions["device_start_ns"], actions["device_end_ns"])
        rows.append(
            np.stack(
                [
                    np.full(len(kind), rank),
                    actions["step"],
                    actions["stage"],
                    kind,
                    actions["micro_batch"],
                    begin,
                    end,
                    busy,
                ]
            )
        )
    found = np.concatenate(rows, axis=1)
    found = found[:, (found[1] >= 0) & (found[2] >= 0) & (found[3] >= 0) & (found[4] >= 0)]
    if not found.shape[1]:
        raise UsageError("the run has no pipeline actions with stage and micro-batch", hint="mark them with pp::F ...")
    _, _, stage, kind, number, _, _, busy = found
    duration = {
        (int(s), Kind(_KINDS[k])): int(np.median(busy[(stage == s) & (kind == k)]))
        for s, k in {(int(s), int(k)) for s, k in zip(stage.tolist(), kind.tolist(), strict=True)}
    }
    return Pipeline(duration, _own_order(found), int(number.max()) + 1, _window(found), _overhead(found))


def _overhead(found: Ints) -> int:
    """Measure what an action takes beside its work, and the gap to the rank's next where nothing is awaited."""
    order_ = np.lexsort((found[5], found[0], found[1]))
    step, rank, begin, end, busy = (found[row][order_] for row in (1, 0, 5, 6, 7))
    same = (step[1:] == step[:-1]) & (rank[1:] == rank[:-1])
    gaps = np.maximum(begin[1:] - end[:-1], 0)[same]
    beside = float(np.median(end - begin - busy))
    return round(beside + (float(np.quantile(gaps, 0.25)) if len(gaps) else 0.0))


def _busy(tables: TableSet, rank: int, begin: Ints, end: Ints) -> Ints:
    """Measure each action without its waits for pipeline transfers: what of it overlaps other activities."""
    work = tables.columns("activities", rank)
    rows = ~(work.matches("kind", "communication") & work.matches("axis", "pp"))
    start = work["start_ns"][rows]
    order_ = np.argsort(start, kind="stable")
    start = start[order_]
    reach = np.maximum.accumulate((work["start_ns"] + work["dur_ns"])[rows][order_]) if len(start) else start
    head = np.ones(len(start), dtype=bool)
    head[1:] = start[1:] > reach[:-1] if len(start) else False
    last = np.append(np.flatnonzero(head)[1:] - 1, len(start) - 1).astype(np.int64)
    low, high = start[head], reach[last] if len(start) else start
    if not len(low):
        return end - begin
    # Between the activities of one action the host thinks: that belongs to it, a receive's wait before it does not.
    first = np.searchsorted(high, begin, side="right")
    after = np.searchsorted(low, end, side="left") - 1
    inside = (first < len(low)) & (after >= first)
    first, after = np.minimum(first, len(low) - 1), np.maximum(after, 0)
    return np.where(inside, np.minimum(high[after], end) - np.maximum(low[first], begin), end - begin)


def _duration(pipeline: Pipeline, action: Action, stages: int) -> int:
    """Give an action's time where `stages` share the layers that were on the measured stages.

    A stage of the other cut holds a share of the measured stage that lies at its place in the model. Where only full
    backwards were measured, each half is taken to be half of one.
    """
    cut = stages / pipeline.stages
    stage = min(int(action.stage / cut), pipeline.stages - 1)
    known = pipeline.duration
    if (stage, action.kind) in known:
        return round(known[stage, action.kind] / cut) + pipeline.overhead_ns
    halves = (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
    if action.kind in halves:
        return round(known.get((stage, Kind.BACKWARD), 0) / 2 / cut) + pipeline.overhead_ns
    if action.kind is Kind.BACKWARD:
        return round(sum(known.get((stage, half), 0) for half in halves) / cut) + pipeline.overhead_ns
    return pipeline.overhead_ns


def _own_order(found: Ints) -> Order:
    """Give the order in which the ranks of one pipeline acted in the last step."""
    rank, step, stage, kind, number, begin, _, _ = found
    homes: dict[tuple[int, ...], int] = {}
    for each in np.unique(rank).tolist():
        homes.setdefault(tuple(np.unique(stage[rank == each]).tolist()), each)
    orders = []
    for stages in sorted(homes):
        mine = (rank == homes[stages]) & (step == step[rank == homes[stages]].max())
        rows = np.flatnonzero(mine)[np.argsort(begin[mine], kind="stable")]
        orders.append(tuple(Action(int(stage[i]), Kind(_KINDS[int(kind[i])]), int(number[i])) for i in rows.tolist()))
    return tuple(orders)


def _window(found: Ints) -> float:
    """Give the median over steps of first begin to last end."""
    step, begin, end = found[1], found[5], found[6]
    windows = [float(end[step == each].max() - begin[step == each].min()) for each in np.unique(step).tolist()]
    return float(np.median(windows))
