"""Pipeline bubble: as measured, ideal with the measured durations, and by the textbook formula."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from usp_prof.analyses.measures.pipeline_actions import (
    Actions,
    Guess,
    Ideal,
    all_identified,
    gather,
    guess,
    ideal,
    middle_step,
    order_of,
    pipelines,
)
from usp_prof.analyses.result import Listing, Result, columns_of, fields_of, in_order
from usp_prof.columns.intervals import union_by
from usp_prof.columns.rows import distinct, first_rows, group_codes, numbered, per_code, totals
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import FROM_ONE, Better, Metric, Unit, Value, Values
from usp_prof.model.printable import spans
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.model.topology import Axis
from usp_prof.schedule_orders import Kind
from usp_prof.tables import clock
from usp_prof.tables.table_set import TableSet

BUBBLE = Metric(
    "bubble_fraction", Unit.FRACTION, Better.LOWER, "Bubble",
    "Share of ranks x window in which no pipeline action runs. The window is from the first action's start to "
    "the last one's end over all stages. Without a step: the mean over steps.",
    ("rank", "step"),
)  # fmt: skip
IDEAL = Metric(
    "bubble_ideal_fraction", Unit.FRACTION, Better.LOWER, "Ideal bubble",
    "Bubble of the same order of actions, simulated with the measured durations of each stage and no other "
    "loss.",
)  # fmt: skip
BALANCED = Metric(
    "bubble_balanced_fraction", Unit.FRACTION, Better.LOWER, "Bubble of even stages",
    "The ideal bubble if all stages took the mean time: the cost of the schedule without uneven stages.",
)  # fmt: skip
TEXTBOOK = Metric(
    "bubble_textbook_fraction", Unit.FRACTION, Better.LOWER, "Textbook bubble",
    "Textbook value for the schedule, such as (p-1)/(m+p-1) for GPipe and 1F1B.",
)  # fmt: skip
STAGE_TIME = Metric(
    "stage_time", Unit.NS, Better.LOWER, "Action time per stage",
    "Median duration of a stage's actions of one kind (F, B, I, W).",
    ("stage", "kind"),
)  # fmt: skip
IMBALANCE = Metric(
    "stage_imbalance", Unit.RATIO, Better.LOWER, "Stage imbalance",
    "Largest work per micro-batch of a pipeline rank (all of its stages), divided by the mean over ranks.",
    within=FROM_ONE,
)  # fmt: skip
METRICS = (BUBBLE, IDEAL, BALANCED, TEXTBOOK, STAGE_TIME, IMBALANCE)


@dataclass(frozen=True, slots=True)
class RankStep:
    """One rank in one step's schedule: time in actions, and idle time by phase."""

    rank: int
    step: int
    window_ns: int
    busy_ns: int
    warm_up_idle_ns: int
    """Idle time before the rank's first backward."""
    steady_idle_ns: int
    cool_down_idle_ns: int
    """Idle time after the rank's last forward."""

    @property
    def bubble_fraction(self) -> float:
        """The share of the window outside actions."""
        return 1 - self.busy_ns / self.window_ns if self.window_ns else 0.0


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: the ranks that hold it, and the median length of its actions per kind; 0 for kinds that never ran."""

    stage: int
    ranks: tuple[int, ...]
    forward_ns: int
    backward_ns: int
    input_gradient_ns: int
    weight_gradient_ns: int

    @property
    def micro_batch_ns(self) -> int:
        """Time of all work of the stage for one micro-batch."""
        split = self.input_gradient_ns + self.weight_gradient_ns
        return self.forward_ns + max(self.backward_ns, split)


@dataclass(frozen=True, slots=True, eq=False)
class PipelineResult(Result):
    """The pipeline's bubble. Without actions, only `notes` has information."""

    actions: Actions
    cells: tuple[RankStep, ...]
    """Empty if the window is unknown: it needs all stages, on clocks that are tied to each other."""
    stages: tuple[Stage, ...]
    schedule: Guess
    bubbles: Ideal
    micro_batches: int
    notes: tuple[HealthRow, ...] = ()
    pipelines: tuple[tuple[int, ...], ...] = ()
    """Ranks of each pipeline, first stage first; empty if it is unknown which ranks form a pipeline."""

    def bubble_fraction(self, step: int | None = None) -> float:
        """Return the measured bubble of a step, or the mean over steps; NaN if unknown."""
        by_step = self._bubble_fractions()
        if step is None:
            return float(np.mean(list(by_step.values()))) if by_step else float("nan")
        return by_step.get(step, float("nan"))

    def _bubble_fractions(self) -> dict[int, float]:
        """Return the bubble by step, in order."""
        sums: dict[int, tuple[int, int]] = {}
        for cell in self.cells:
            window, busy = sums.get(cell.step, (0, 0))
            sums[cell.step] = window + cell.window_ns, busy + cell.busy_ns
        return {step: 1 - busy / window if window else 0.0 for step, (window, busy) in sorted(sums.items())}

    @property
    def imbalance(self) -> float:
        """Largest over mean work per micro-batch of a rank's stages; NaN without stages."""
        work: dict[tuple[int, ...], int] = {}
        for stage in self.stages:
            work[stage.ranks] = work.get(stage.ranks, 0) + stage.micro_batch_ns
        if not any(work.values()):
            return float("nan")
        mean = sum(work.values()) / len(work)
        return max(work.values()) / mean

    def values(self) -> Values:
        """Return the metric values, sorted by dimension."""
        wholes = (
            (BUBBLE, self.bubble_fraction()),
            (IDEAL, self.bubbles.measured),
            (BALANCED, self.bubbles.balanced),
            (TEXTBOOK, self.bubbles.textbook),
            (IMBALANCE, self.imbalance),
        )
        values = [Value(metric, figure) for metric, figure in wholes if not np.isnan(figure)]
        values += [Value(BUBBLE, bubble, {"step": step}) for step, bubble in self._bubble_fractions().items()]
        for rank in sorted({cell.rank for cell in self.cells}):
            by_step = [cell.bubble_fraction for cell in self.cells if cell.rank == rank]
            values.append(Value(BUBBLE, float(np.mean(by_step)), {"rank": rank}))
        values += [Value(BUBBLE, c.bubble_fraction, {"rank": c.rank, "step": c.step}) for c in self.cells]
        for stage in self.stages:
            lengths = (stage.forward_ns, stage.backward_ns, stage.input_gradient_ns, stage.weight_gradient_ns)
            for kind, ns in zip(Kind, lengths, strict=True):
                if ns:
                    values.append(Value(STAGE_TIME, ns, {"stage": stage.stage, "kind": str(kind)}))
        return in_order(values)

    def listing(self) -> Listing:
        """Return one row per rank and step as plain columns."""
        return fields_of(self.cells, RankStep) | columns_of(self.cells, "bubble_fraction")


def compute(tables: TableSet, selection: Selection = EVERYTHING) -> PipelineResult:
    """Compute the bubble of the selected steps. It covers all ranks, whichever ranks are selected."""
    actions = gather(tables, selection)
    declared = tables.declared.schedule
    has_pipeline_traffic = any(
        tables.columns("collectives", rank).matches("axis", str(Axis.PP)).any() for rank in tables.ranks
    )
    if not has_pipeline_traffic and (not all_identified(actions) or len(np.unique(actions.stage)) < _LEAST_STAGES):
        actions = actions.take(np.zeros(len(actions.rank), bool))  # marks of a run without a pipeline
    notes = _notes(tables, actions, has_pipeline_traffic=has_pipeline_traffic)
    nothing = Ideal(float("nan"), float("nan"), float("nan"))
    if not len(actions.rank):
        return PipelineResult(actions, (), (), Guess(None, 0.0, declared), nothing, 0, tuple(notes))
    absent, untied = _absent_stages(tables, actions), _untied_clocks(tables, actions)
    notes += [*absent, *untied]
    cells = () if absent or untied else _cells(actions)
    if not all_identified(actions):
        notes.append(_KINDS_ONLY)
    if absent or not all_identified(actions):
        schedule_guess = Guess(None, 0.0, declared)
        return PipelineResult(actions, cells, (), schedule_guess, nothing, 0, tuple(sorted(notes)))
    chains = pipelines(actions)
    schedule_guess, bubbles, count = Guess(None, 0.0, declared), nothing, 0
    if chains:
        observed = order_of(actions, chains[0], middle_step(actions, chains[0]))
        schedule_guess = guess(observed, declared)
        bubbles = ideal(observed, actions.take(np.isin(actions.rank, chains[0])), schedule_guess)
        count = len({action.micro_batch for acts in observed for action in acts})
    else:
        detail = "stages have different numbers of ranks, so the order of ranks and the ideal bubble are unknown"
        notes.append(HealthRow("pipeline_irregular", Severity.INFO, detail=detail))
    if chains and np.isnan(bubbles.measured):
        detail = "actions are missing (ranks not read, or a step cut by the window): no ideal bubble"
        notes.append(HealthRow("pipeline_incomplete", Severity.INFO, detail=detail))
    notes.sort()
    return PipelineResult(actions, cells, _stages(actions), schedule_guess, bubbles, count, tuple(notes), tuple(chains))


_LEAST_STAGES = 2
_KINDS_ONLY = HealthRow(
    "pipeline_unnamed",
    Severity.INFO,
    detail="actions do not name their stage and micro-batch, so the ideal bubble is unknown; "
    "mark actions with pp::F stage=... mb=...",
)


def _cells(actions: Actions) -> tuple[RankStep, ...]:
    """Return the rank-steps, ordered by step and rank. All are computed at once, as a run has many of them."""
    cell = group_codes(actions.step, actions.rank)
    count = int(cell.max()) + 1
    row = first_rows(cell)
    step, rank = numbered(actions.step[row])[1], actions.rank[row]
    low = per_code(step, per_code(cell, actions.start_ns, np.minimum, count), np.minimum, int(step.max()) + 1)[step]
    high = per_code(step, per_code(cell, actions.end_ns, np.maximum, count), np.maximum, int(step.max()) + 1)[step]
    forward = actions.kind == str(Kind.FORWARD)
    turn, last = high.copy(), np.full(count, np.iinfo(np.int64).min)
    turn[distinct(cell[~forward])] = np.iinfo(np.int64).max
    np.minimum.at(turn, cell[~forward], actions.start_ns[~forward])
    np.maximum.at(last, cell[forward], actions.end_ns[forward])
    last = np.maximum(last, turn)
    home, start, end = union_by(cell, actions.start_ns, actions.end_ns)
    idle = []
    for begin, until in ((low, turn), (turn, last), (last, high)):
        inside = np.minimum(end, until[home]) - np.maximum(start, begin[home])
        idle.append(until - begin - totals(home, np.maximum(inside, 0), count))
    hidden = totals(cell, actions.end_ns - actions.start_ns - actions.busy_ns, count)
    busy = totals(home, end - start, count) - hidden
    columns = (rank, actions.step[row], high - low, busy, *idle)
    return tuple(RankStep(*row) for row in zip(*(column.tolist() for column in columns), strict=True))


def _stages(actions: Actions) -> tuple[Stage, ...]:
    stages = []
    for stage in np.unique(actions.stage).tolist():
        rows = actions.stage == stage
        ranks = tuple(np.unique(actions.rank[rows]).tolist())
        lengths = []
        for kind in Kind:
            chosen = actions.busy_ns[rows & (actions.kind == str(kind))]
            lengths.append(int(np.median(chosen)) if len(chosen) else 0)
        stages.append(Stage(stage, ranks, *lengths))
    return tuple(stages)


def _notes(tables: TableSet, actions: Actions, *, has_pipeline_traffic: bool) -> list[HealthRow]:
    notes = []
    if not len(actions.rank):
        if has_pipeline_traffic:
            detail = "pipeline actions are neither marked nor recognizable, so the bubble is unknown"
            notes.append(HealthRow("pipeline_unmarked", Severity.INFO, detail=detail))
        return notes
    if actions.source == "inferred":
        detail = "no action is marked; forward and backward work between sends and receives counts as actions"
        notes.append(HealthRow("pipeline_inferred", Severity.INFO, detail=detail))
    missing = [rank for rank in tables.ranks if not len(tables.columns("actions", rank))]
    if missing:
        detail = "these ranks mark no pipeline actions"
        notes.append(HealthRow("pipeline_unmarked", Severity.INFO, count=len(missing), detail=detail))
    return notes


def _absent_stages(tables: TableSet, actions: Actions) -> list[HealthRow]:
    """Return an error if stages were not read. Window, ideal and imbalance need all stages."""
    places = [tables.topology.coordinates.get(rank, {}).get(Axis.PP, -1) for rank in np.unique(actions.rank).tolist()]
    absent = sorted(set(range(tables.topology.axes.get(Axis.PP, 1))) - set(places))
    if not absent or -1 in places:  # -1: the rank's stage is unknown
        return []
    detail = f"pipeline ranks {spans(absent)} were not read, so the bubble is unknown"
    return [HealthRow("pipeline_incomplete", Severity.ERROR, detail=detail)]


def _untied_clocks(tables: TableSet, actions: Actions) -> list[HealthRow]:
    """Return an error if the ranks' clocks cannot be compared. The window of the schedule spans all of them."""
    clocks = clock.fit_clocks(tables)
    if len(np.unique(clocks.component[np.isin(clocks.ranks, actions.rank)])) <= 1:
        return []
    detail = "no collective connects the clocks of the stages, so the bubble is unknown"
    return [HealthRow("pipeline_clocks", Severity.ERROR, detail=detail)]
