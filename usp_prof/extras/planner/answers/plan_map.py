"""Plan map: a metric over two degrees; each cell is the fastest plan that the trainer can start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from usp_prof.charts.inputs import PlanGrid
from usp_prof.extras.planner.answers.plan import in_words, nothing_fits, recorded_plan
from usp_prof.extras.planner.calibration import Calibration
from usp_prof.extras.planner.launch import refusal as refusal_by
from usp_prof.extras.planner.predict import Prediction as Plan
from usp_prof.extras.planner.search import Plans
from usp_prof.model.metric import Unit
from usp_prof.report.document import Chart, Section, Text, data_table
from usp_prof.report.format import quantity

FIGURES: dict[str, tuple[Callable[[Plan], float], Unit]] = {
    "tokens/s": (lambda plan: plan.tokens_per_second, Unit.PER_SECOND),
    "MFU": (lambda plan: plan.mfu, Unit.FRACTION),
    "step": (lambda plan: plan.step_ns, Unit.NS),
    "memory": (lambda plan: plan.footprint.total_bytes, Unit.BYTES),
    "bubble": (lambda plan: plan.bubble_fraction, Unit.FRACTION),
}
"""Metrics of a map: how to compute each from a plan, and its unit."""
LESS_IS_BETTER = frozenset({"step", "memory", "bubble"})
REFUSED = "cannot start"
"""Text of a cell whose plans fit in memory, but cannot be started by the trainer."""

Place = tuple[int, int]
"""Row and column of a cell: its two degrees."""


class Cell(NamedTuple):
    """The fastest plan with two degrees, and why the trainer can start none of them; empty if it can."""

    plan: Plan
    refusal: str


def cells_of(plans: Plans, down: str, across: str, trainer: str) -> dict[Place, Cell]:
    """Return the fastest plan that the trainer can start for each pair of degrees, else the fastest with the reason."""
    cells: dict[Place, Cell] = {}
    for plan in plans.best:  # the fastest first
        place = getattr(plan.configuration, down), getattr(plan.configuration, across)
        if place in cells and not cells[place].refusal:
            continue
        refusal = refusal_by(trainer, plans.question.model, plan.configuration)
        if place not in cells or not refusal:
            cells[place] = Cell(plan, refusal)
    return cells


def verdict(
    plans: Plans, down: str, across: str, figure: str, trainer: str, calibration: Calibration | None = None
) -> str:  # fmt: skip
    """Return the degrees with the best and worst metric among plans that can start, and the recorded ones."""
    cells = cells_of(plans, down, across, trainer)
    if not cells:
        return nothing_fits(plans)
    able = {place: cell.plan for place, cell in cells.items() if not cell.refusal}
    if able:
        text = _best_and_worst(able, down, across, figure, trainer)
    else:
        fastest = cells[_place(plans.best[0], down, across)]
        text = f"{trainer} can start none of the {plans.fitting:,} plans that fit: {fastest.refusal}"
    if (ran := recorded_plan(calibration, plans.question)) is not None:
        row, column = _place(ran, down, across)
        text += (
            f". The recorded configuration ({down} {row}, {across} {column}) is predicted at {_written(ran, figure)}"
        )
    return f"{text}."


def _best_and_worst(cells: Mapping[Place, Plan], down: str, across: str, figure: str, trainer: str) -> str:
    read, _ = FIGURES[figure]
    ordered = sorted(cells.items(), key=lambda cell: read(cell[1]), reverse=figure not in LESS_IS_BETTER)
    (row, column), best = ordered[0]
    text = (
        f"Best {figure} of the plans that {trainer} can start: {_written(best, figure)} with {down} {row} and {across} "
        f"{column} ({in_words(best.configuration)})"
    )
    if len(ordered) > 1:
        (row, column), worst = ordered[-1]
        text += f". Worst cell: {_written(worst, figure)} with {down} {row} and {across} {column}"
    return text


def _place(plan: Plan, down: str, across: str) -> Place:
    return getattr(plan.configuration, down), getattr(plan.configuration, across)


def _written(plan: Plan, figure: str) -> str:
    read, unit = FIGURES[figure]
    text = quantity(read(plan), unit)
    return text.removesuffix("/s").replace(" ", "") if unit is Unit.PER_SECOND else text  # 7.51M tokens/s


def section(
    plans: Plans, down: str, across: str, figure: str, trainer: str, calibration: Calibration | None = None
) -> Section:  # fmt: skip
    """Build the map of a metric over two degrees.

    It marks the recorded plan, and has no value for plans that the trainer cannot start.
    """
    cells = cells_of(plans, down, across, trainer)
    rows, columns = sorted({row for row, _ in cells}), sorted({column for _, column in cells})
    places = [(row, column) for row in rows for column in columns]
    read, unit = FIGURES[figure]
    able = {place: cell.plan for place, cell in cells.items() if not cell.refusal}
    values = np.array([read(able[place]) if place in able else np.nan for place in places])
    recorded = recorded_plan(calibration, plans.question)
    recorded_place = _place(recorded, down, across) if recorded is not None else None
    chart = PlanGrid(
        figure, across, down, tuple(columns), tuple(rows), values.reshape(len(rows), len(columns)),
        tuple(_text(cells.get(place), figure, recorded if place == recorded_place else None) for place in places),
        tuple(_label(cells.get(place), trainer) for place in places),
    )  # fmt: skip
    why = f"why {trainer} cannot start it"
    cell_rows = [
        (row, column, str(cell.plan.configuration), read(cell.plan), cell.refusal)
        for (row, column), cell in sorted(cells.items())
    ]
    columns_of_table = {down: None, across: None, "configuration": None, figure: unit, why: None}
    cell_table = data_table("", columns_of_table, cell_rows, prose=(why,))
    note = Text(
        f"Each cell shows the {figure} of the fastest plan with these two degrees that {trainer} can start. An "
        f"empty cell has no plan that fits. Hover over '{REFUSED}' for the reason.",
        quiet=True,
    )
    return Section("sweep", f"Sweep: {figure} over {down} and {across}", (Chart("", chart), note, cell_table))


def _text(cell: Cell | None, figure: str, recorded: Plan | None) -> str:
    mark = f" (recorded: {_written(recorded, figure)})" if recorded is not None else ""
    if cell is None:
        return mark
    return f"{REFUSED if cell.refusal else _written(cell.plan, figure)}{mark}"


def _label(cell: Cell | None, trainer: str) -> str:
    if cell is None:
        return "nothing fits"
    return f"{cell.plan.configuration}; {trainer}: {cell.refusal}" if cell.refusal else str(cell.plan.configuration)
