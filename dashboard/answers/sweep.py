"""How does a figure change over two degrees of a configuration? A map of the fastest plan in each cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.charts.inputs import PlanGrid
from usp_prof.model.metric import Unit
from usp_prof.planner.search import grid
from usp_prof.report.document import Chart, DataTable, Section, TableColumn, Text
from usp_prof.report.format import quantity

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.planner.prediction import Prediction
    from usp_prof.planner.search import Plans

FIGURES: dict[str, tuple[Callable[[Prediction], float], Unit]] = {
    "tokens/s": (lambda plan: round(plan.tokens_per_second), Unit.COUNT),
    "MFU": (lambda plan: plan.mfu, Unit.FRACTION),
    "step": (lambda plan: plan.step_ns, Unit.NS),
    "memory": (lambda plan: plan.footprint.total_bytes, Unit.BYTES),
    "bubble": (lambda plan: plan.bubble_fraction, Unit.FRACTION),
}
"""What a map may show: how to read it off a plan, and its unit."""


def section(plans: Plans, down: str, across: str, what: str) -> Section:
    """Map a figure over two degrees; a cell is the fastest plan that has them."""
    cells = grid(plans, down, across)
    rows, columns = sorted({row for row, _ in cells}), sorted({column for _, column in cells})
    read, unit = FIGURES[what]
    plans_of = [[cells.get((row, column)) for column in columns] for row in rows]
    flat = [plan for line in plans_of for plan in line]
    chart = PlanGrid(
        what, across, down, tuple(columns), tuple(rows),
        np.array([[read(plan) if plan else np.nan for plan in line] for line in plans_of]),
        tuple(quantity(read(plan), unit) if plan else "" for plan in flat),
        tuple(str(plan.configuration) if plan else "nothing fits" for plan in flat),
    )  # fmt: skip
    listed = DataTable(
        "",
        (TableColumn(down), TableColumn(across), TableColumn("configuration"), TableColumn(what, unit)),
        tuple((row, column, str(plan.configuration), read(plan)) for (row, column), plan in sorted(cells.items())),
    )
    said = Text("Each cell is the fastest plan with these two degrees; an empty one has none that fits.", quiet=True)
    return Section("sweep", f"Sweep: {what} over {down} and {across}", (Chart("", chart), said, listed))
