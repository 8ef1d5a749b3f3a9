"""Section on the pipeline: the measured schedule, measured and ideal bubble, stages and ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from usp_prof.analyses.measures.pipeline_actions import middle_step
from usp_prof.analyses.pipeline import PipelineResult
from usp_prof.analyses.stragglers import StragglersResult
from usp_prof.charts.inputs import PipelineSchedule
from usp_prof.model.metric import Unit
from usp_prof.model.printable import counted, spans
from usp_prof.model.topology import Axis
from usp_prof.report.document import Block, Chart, DataTable, Text, data_table
from usp_prof.report.figures import Context
from usp_prof.report.format import quantity
from usp_prof.report.sections.plain import key_figures, listing_table, without_blanks
from usp_prof.schedule_orders import Timeline

_RANKS = (
    "rank", "step", "bubble_fraction", "window_ns", "busy_ns", "warm_up_idle_ns", "steady_idle_ns",
    "cool_down_idle_ns",
)  # fmt: skip
_RANKS_HEADS = {
    "warm_up_idle_ns": "warm-up idle", "steady_idle_ns": "steady idle", "cool_down_idle_ns": "cool-down idle",
}  # fmt: skip

_WINDOW = (
    "Bubble: share of the pipeline window in which ranks run no action. The window is from the start of the first "
    "action to the end of the last. The breakdown shows the idle time in it as idle: pipeline."
)


def build_pipeline(context: Context, result: PipelineResult) -> list[Block]:
    """Build the measured schedule, its stages and its ranks."""
    if not result.cells:
        return [_stages(result)] if result.stages else []
    blocks: list[Block] = [
        *key_figures(context, "pipeline"),
        Text(_WINDOW, quiet=True),
        Text(_looks_like(result), quiet=True),
    ]
    blocks += _schedules(context, result)
    if result.stages:
        blocks.append(_stages(result))
    blocks.append(listing_table(result.listing(), "Ranks and steps", _RANKS, _RANKS_HEADS))
    return blocks


def _schedules(context: Context, result: PipelineResult) -> list[Block]:
    """Draw the pipeline of the worst straggler, else the first pipeline, and its ideal order."""
    rank = late_rank(context)
    ranks = next((chart_input for chart_input in result.pipelines if rank in chart_input), None)
    measured, step = schedule(result, ranks)
    title = f"Step {step} as measured"
    if ranks is not None and len(result.pipelines) > 1:
        title += f", in the pipeline{_place(context, ranks)} of rank {rank}, for which the others wait"
    elif len(result.pipelines) > 1:
        title += f", in the first of {len(result.pipelines)} pipelines"
    elif result.stages and not result.pipelines:
        title += ", one rank a stage"
    ideal = ideal_schedule(result)
    drawn = [measured] if ideal is None else [measured, ideal]
    # Both have the same scale and margin, so the space to the right of the ideal is the loss of the run.
    until = max(int(chart_input.end_ns.max()) for chart_input in drawn)
    label = max(len(row) for chart_input in drawn for row in chart_input.rows)
    of_whom = "these ranks" if ranks in (None, *result.pipelines[:1]) else "the first pipeline's ranks"
    titles = [title, f"Ideal: the same order without delays, with the durations measured on {of_whom}"]
    return [
        Chart(each_title, replace(chart_input, until_ns=until, label_characters=label))
        for each_title, chart_input in zip(titles, drawn, strict=False)
    ]


def late_rank(context: Context) -> int | None:
    """Return the rank that others wait for longest, if stragglers were analyzed."""
    if "stragglers" not in context.results:
        return None
    culprits = cast("StragglersResult", context.results["stragglers"]).culprits
    return culprits[0].rank if culprits else None


def _place(context: Context, ranks: tuple[int, ...]) -> str:
    """Format the coordinates that all ranks of a pipeline share; empty if unknown."""
    topology = context.tables.topology
    places = [topology.coordinates.get(rank, {}) for rank in ranks]
    common = [
        f"{axis} {size}"
        for axis, size in places[0].items()
        if axis in topology.axes and axis != Axis.PP and all(coordinates.get(axis) == size for coordinates in places)
    ]
    return f" ({', '.join(common)})" if common else ""


def schedule(result: PipelineResult, ranks_drawn: tuple[int, ...] | None = None) -> tuple[PipelineSchedule, int]:
    """Return the actions of a pipeline's ranks in the middle step.

    Without `ranks`, the first rank with each stage; all ranks if stages are unknown.
    """
    actions = result.actions
    stages = _held(result) if ranks_drawn is None else {rank: _stages_of(result, rank) for rank in ranks_drawn}
    ranks = sorted(stages, key=lambda rank: (stages[rank], rank))
    step = middle_step(actions, ranks)
    shown = actions.take((actions.step == step) & np.isin(actions.rank, ranks))
    row_of_rank = {rank: row for row, rank in enumerate(ranks)}
    first = int(shown.start_ns.min())
    drawn = PipelineSchedule(
        tuple(_row(rank, stages[rank]) for rank in ranks),
        np.array([row_of_rank[rank] for rank in shown.rank.tolist()], np.int64),
        shown.start_ns - first,
        shown.end_ns - first,
        tuple(str(kind) for kind in shown.kind),
        shown.stage,
        shown.micro_batch,
    )
    return drawn, step


def ideal_schedule(result: PipelineResult) -> PipelineSchedule | None:
    """Return the simulated actions, with the durations of the first pipeline; None if none are simulated."""
    line = result.bubbles.line
    if line is None or not result.pipelines or line.ranks != len(result.pipelines[0]):
        return None
    return simulated_schedule(line, tuple(_row(rank, _stages_of(result, rank)) for rank in result.pipelines[0]))


def simulated_schedule(line: Timeline, rows: tuple[str, ...]) -> PipelineSchedule:
    """Return simulated actions as the chart draws them, one row per rank."""
    first = int(line.start.min(initial=0))
    return PipelineSchedule(
        rows,
        line.rank,
        line.start - first,
        line.end - first,
        tuple(str(action.kind) for action in line.actions),
        np.array([action.stage for action in line.actions], np.int64),
        np.array([action.micro_batch for action in line.actions], np.int64),
    )


def _held(result: PipelineResult) -> dict[int, list[int]]:
    """Return the first rank with each stage, and its stages; every rank if stages are unknown."""
    stages: dict[int, list[int]] = {}
    for stage in result.stages:
        stages.setdefault(stage.ranks[0], []).append(stage.stage)
    return stages or {rank: [] for rank in np.unique(result.actions.rank).tolist()}


def _stages_of(result: PipelineResult, rank: int) -> list[int]:
    return [stage.stage for stage in result.stages if rank in stage.ranks]


def _row(rank: int, stages: list[int]) -> str:
    return f"rank {rank}, stage {spans(stages)}" if stages else f"rank {rank}"


def _looks_like(result: PipelineResult) -> str:
    guess = result.schedule
    sentences = []
    if result.micro_batches:
        batches = f"{result.micro_batches} micro-batch{'es' if result.micro_batches > 1 else ''}"
        sentences.append(f"{batches} on {counted(len(result.stages), 'stage')}.")
    if guess.schedule is not None:
        likeness = quantity(guess.likeness, Unit.FRACTION)
        sentences.append(f"Recognized as {guess.schedule}: {likeness} of the actions are in its order.")
    if guess.declared:
        sentences.append(f"Declared as {guess.declared}.")
    if result.actions.source:
        sentences.append(f"Source of actions: {result.actions.source}.")
    return " ".join(sentences)


def _stages(result: PipelineResult) -> DataTable:
    columns = {"stage": None, "ranks": None, **dict.fromkeys(("micro-batch", "F", "B", "I", "W"), Unit.NS)}
    rows = [
        (
            stage.stage,
            spans(stage.ranks),
            stage.micro_batch_ns,
            stage.forward_ns or None,
            stage.backward_ns or None,
            stage.input_gradient_ns or None,
            stage.weight_gradient_ns or None,
        )
        for stage in result.stages
    ]
    return without_blanks(data_table("Stages, median length of an action", columns, rows))
