"""How long does a step take, and which rank is slow at which step?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.charts.inputs import HeatMap
from usp_prof.model.metric import Unit
from usp_prof.report.document import Chart, DataTable, Section, TableColumn
from usp_prof.report.sections.plain import key_figures, notes

if TYPE_CHECKING:
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block
    from usp_prof.report.figures import Figures

_ROWS = 40


def build(context: Context, title: str) -> Section | None:
    """Show the job's steps and the map of ranks over steps."""
    result = context.results.get("step_time")
    if result is None:
        return None
    blocks: list[Block] = [*key_figures(result)]
    steps = context.figures.along("job_step_time", "step")
    if len(steps) > 1:
        between = context.figures.along("step_spread", "step")
        rows = tuple((step, value, between.get(step)) for step, value in list(steps.items())[:_ROWS])
        columns = (TableColumn("step"), TableColumn("time", Unit.NS), TableColumn("ranks differ by", Unit.FRACTION))
        blocks.append(DataTable("Steps of the job", columns, rows, more=max(0, len(steps) - _ROWS)))
    heat = heat_map(context.figures)
    if heat is not None:
        blocks.append(Chart("Compute of each rank and step, against the step's median", heat))
    return Section("step_time", title, (*blocks, *notes(result)))


def heat_map(figures: Figures) -> HeatMap | None:
    """Set compute time out by rank and step; collectives make step times equal, compute shows who is slow."""
    grid = figures.grid("compute_time", "rank", "step")
    ranks = sorted({int(rank) for rank, _ in grid})
    steps = sorted({int(step) for _, step in grid})
    if len(ranks) < 2:
        return None
    values = np.full((len(ranks), len(steps)), np.nan)
    row = {rank: place for place, rank in enumerate(ranks)}
    column = {step: place for place, step in enumerate(steps)}
    for (rank, step), value in grid.items():
        values[row[int(rank)], column[int(step)]] = value
    return HeatMap("compute", tuple(ranks), tuple(steps), values)
