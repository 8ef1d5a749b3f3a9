"""How long does a step take, and which rank is slow at which step?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.charts.inputs import HeatMap, RankGrid
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
    places = rank_grid(context)
    if places is not None:
        blocks.append(Chart("Compute of each rank at its place on the axes, against the median", places))
    return Section("step_time", title, (*blocks, *notes(result)))


def rank_grid(context: Context) -> RankGrid | None:
    """Set compute time out on the mesh: the largest axis to the right, the others downward."""
    topology, compute = context.tables.topology, context.figures.along("compute_time", "rank")
    placed = {int(rank): topology.coordinates.get(int(rank), {}) for rank in compute}
    if not topology.axes or len(compute) < 2 or not all(placed.values()):
        return None
    across = max(topology.axes, key=lambda axis: topology.axes[axis])
    down = [axis for axis in topology.axes if axis != across]
    keys = sorted({tuple(place.get(axis, 0) for axis in down) for place in placed.values()})
    width = 1 + max(place.get(across, 0) for place in placed.values())
    if width > topology.axes[across]:  # somebody's coordinates lie outside the mesh
        return None
    rank = np.full((len(keys), width), -1, np.int64)
    values = np.full(rank.shape, np.nan)
    for each, place in placed.items():
        at = keys.index(tuple(place.get(axis, 0) for axis in down)), place.get(across, 0)
        if rank[at] >= 0:
            return None
        rank[at], values[at] = each, compute[each]
    names = tuple(" ".join(f"{axis} {at}" for axis, at in zip(down, key, strict=True)) for key in keys)
    return RankGrid("compute", tuple(f"{across} {at}" for at in range(width)), names, rank, values)


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
