"""How did the pipeline run, how much of it is bubble, and how much of that did the schedule promise?"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from usp_prof.charts.inputs import PipelineSchedule
from usp_prof.model.metric import Unit
from usp_prof.report.document import Chart, DataTable, Section, TableColumn, Text
from usp_prof.report.format import quantity
from usp_prof.report.frames import frame_table
from usp_prof.report.sections.plain import key_figures, notes
from usp_prof.report.words import spans

if TYPE_CHECKING:
    from usp_prof.analyses.pipeline import PipelineResult
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block

_RANKS = {
    "rank": "",
    "step": "",
    "bubble_fraction": "",
    "window_ns": "",
    "busy_ns": "",
    "warm_up_idle_ns": "warm-up idle",
    "steady_idle_ns": "steady idle",
    "cool_down_idle_ns": "cool-down idle",
}


def build(context: Context, title: str) -> Section | None:
    """Show the schedule as it ran, its stages and its ranks."""
    if "pipeline" not in context.results:
        return None
    result = cast("PipelineResult", context.results["pipeline"])
    if not result.cells:
        return Section("pipeline", title, tuple(notes(result)))
    blocks: list[Block] = [*key_figures(result), Text(_looks_like(result), quiet=True)]
    drawn, step = schedule(result)
    blocks.append(Chart(f"Step {step}, one rank a stage", drawn))
    blocks.append(_stages(result))
    blocks.append(frame_table(result.to_pandas(), "Ranks and steps", _RANKS))
    return Section("pipeline", title, (*blocks, *notes(result)))


def schedule(result: PipelineResult) -> tuple[PipelineSchedule, int]:
    """Take the actions of the middle step, of the first rank that holds each stage."""
    actions = result.actions
    steps = np.unique(actions.step)
    step = int(steps[len(steps) // 2])
    stages: dict[int, list[int]] = {}
    for stage in result.stages:
        stages.setdefault(stage.ranks[0], []).append(stage.stage)
    ranks = sorted(stages, key=lambda rank: stages[rank])
    mine = actions.take((actions.step == step) & np.isin(actions.rank, ranks))
    place = {rank: row for row, rank in enumerate(ranks)}
    first = int(mine.start_ns.min())
    drawn = PipelineSchedule(
        tuple(f"rank {rank}, stage {spans(stages[rank])}" for rank in ranks),
        np.array([place[rank] for rank in mine.rank.tolist()], np.int64),
        mine.start_ns - first,
        mine.end_ns - first,
        tuple(str(kind) for kind in mine.kind),
        mine.stage,
        mine.micro_batch,
    )
    return drawn, step


def _looks_like(result: PipelineResult) -> str:
    guess = result.schedule
    said = [f"{result.micro_batches} micro-batches on {len(result.stages)} stages."] if result.micro_batches else []
    if guess.schedule is not None:
        likeness = quantity(guess.likeness, Unit.FRACTION)
        said.append(f"Looks like {guess.schedule}: {likeness} of the actions are in its order.")
    if guess.declared:
        said.append(f"Declared as {guess.declared}.")
    if result.actions.source:
        said.append(f"Actions are known from: {result.actions.source}.")
    return " ".join(said)


def _stages(result: PipelineResult) -> DataTable:
    columns = (
        TableColumn("stage"),
        TableColumn("ranks"),
        TableColumn("micro-batch", Unit.NS),
        TableColumn("F", Unit.NS),
        TableColumn("B", Unit.NS),
        TableColumn("I", Unit.NS),
        TableColumn("W", Unit.NS),
    )
    rows = tuple(
        (
            stage.stage,
            spans(stage.ranks),
            stage.micro_batch_ns,
            *(
                length or None
                for length in (
                    stage.forward_ns,
                    stage.backward_ns,
                    stage.input_gradient_ns,
                    stage.weight_gradient_ns,
                )
            ),
        )
        for stage in result.stages
    )
    known = [place for place in range(len(columns)) if any(row[place] is not None for row in rows)]
    return DataTable(
        "Stages, median length of an action",
        tuple(columns[place] for place in known),
        tuple(tuple(row[place] for place in known) for row in rows),
    )
