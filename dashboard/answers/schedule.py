"""What would another pipeline schedule look like? The measured actions in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.model.metric import Unit
from usp_prof.report.document import Chart, KeyFigure, KeyFigures, Section
from usp_prof.report.format import quantity
from usp_prof.report.sections.pipeline import simulated_schedule

if TYPE_CHECKING:
    from usp_prof.algebra.schedules.simulation import Timeline
    from usp_prof.charts.inputs import PipelineSchedule
    from usp_prof.model.edit import Edit
    from usp_prof.whatif.schedule import Rescheduled


def section(edit: Edit, found: Rescheduled) -> Section:
    """Set out the window under another schedule beside the measured one, and its actions."""
    simulated = f"its own order simulated: {quantity(found.simulated_ns, Unit.NS)}"
    figures = (
        KeyFigure("window, measured", found.measured_ns, Unit.NS, simulated),
        KeyFigure(f"window under {edit.value}", found.other_ns, Unit.NS, f"± {quantity(found.error_ns, Unit.NS)}"),
        KeyFigure("bubble", found.bubble_fraction, Unit.FRACTION),
    )
    return Section(
        "another", f"Under another schedule: {edit}", (KeyFigures(figures), Chart("", as_chart(found.timeline)))
    )


def as_chart(line: Timeline) -> PipelineSchedule:
    """Give simulated actions as the chart draws them."""
    stages = [
        sorted({a.stage for a, r in zip(line.actions, line.rank.tolist(), strict=True) if r == rank})
        for rank in range(line.ranks)
    ]
    return simulated_schedule(line, tuple(f"stage {', '.join(map(str, held))}" for held in stages))
