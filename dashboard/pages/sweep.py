"""How does speed or memory change from configuration to configuration? Heat maps over any two of their degrees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import planning, state
from dashboard.components.blocks import theme
from dashboard.components.download import table
from dashboard.components.figure import figure
from usp_prof.charts import draw as draw_chart
from usp_prof.charts.inputs import PlanGrid
from usp_prof.model.metric import Unit
from usp_prof.planner.search import GRID_AXES, grid
from usp_prof.report.format import quantity

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.planner.prediction import Prediction

TITLE = "Sweep"
PATH = "sweep"

FIGURES: dict[str, tuple[Callable[[Prediction], float], Callable[[float], str]]] = {
    "tokens/s": (lambda plan: plan.tokens_per_second, lambda value: f"{value:,.0f}"),
    "MFU": (lambda plan: plan.mfu, lambda value: f"{value:.1%}"),
    "step": (lambda plan: plan.step_ns, lambda value: quantity(value, Unit.NS)),
    "memory": (lambda plan: float(plan.footprint.total_bytes), lambda value: quantity(value, Unit.BYTES)),
    "bubble": (lambda plan: plan.bubble_fraction, lambda value: f"{value:.1%}"),
}
"""What a map may show: how to read it off a plan, and how to write it."""


def draw() -> None:
    """Draw the page."""
    learnt, plans = planning.ask()
    planning.said(learnt, plans)
    if not plans.best:
        st.warning("Nothing fits, so that there is nothing to compare.")
        st.info("Choose more devices, or a device with more memory.")
        return
    place = st.columns(3)
    down = _axis(place[0], "Down", "down", GRID_AXES)
    across = _axis(place[1], "Across", "across", tuple(axis for axis in (*GRID_AXES[1:], GRID_AXES[0]) if axis != down))
    what = place[2].selectbox("Figure", tuple(FIGURES), tuple(FIGURES).index(state.word("figure", tuple(FIGURES))))
    state.keep("figure", None if what == next(iter(FIGURES)) else what)
    cells = grid(plans, down, across)
    rows, columns = sorted({row for row, _ in cells}), sorted({column for _, column in cells})
    read, write = FIGURES[what]
    plans_of = [[cells.get((row, column)) for column in columns] for row in rows]
    values = np.array([[read(plan) if plan else np.nan for plan in line] for line in plans_of])
    flat = [plan for line in plans_of for plan in line]
    chart = PlanGrid(
        what, across, down, tuple(columns), tuple(rows), values,
        tuple(write(read(plan)) if plan else "" for plan in flat),
        tuple(str(plan.configuration) if plan else "nothing fits" for plan in flat),
    )  # fmt: skip
    figure(draw_chart(chart, theme(dark=state.is_dark())), key="sweep-grid")
    st.caption("Each cell is the fastest plan with these two degrees; an empty one has none that fits.")
    frame = pd.DataFrame(
        [
            {down: row, across: column, "configuration": str(plan.configuration), what: read(plan)}
            for (row, column), plan in sorted(cells.items())
        ]
    )
    shown = frame.assign(**{what: [write(value) for value in frame[what]]})
    table(frame, "sweep", shown=shown)


def _axis(place: st.delta_generator.DeltaGenerator, label: str, name: str, offered: tuple[str, ...]) -> str:
    chosen: str = place.selectbox(label, offered, offered.index(state.word(name, offered)))
    state.keep(name, None if chosen == offered[0] else chosen)
    return chosen
