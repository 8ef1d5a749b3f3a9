"""What does each axis communicate, and how much of it does compute hide?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.charts.inputs import AxisCommunication
from usp_prof.model.metric import Unit
from usp_prof.report.document import Chart, DataTable, Section, TableColumn, Text
from usp_prof.report.frames import ROWS
from usp_prof.report.partition import axes_in_order
from usp_prof.report.sections.plain import notes
from usp_prof.report.sections.summary import communication

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.analyses.overlap import Hider
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block
    from usp_prof.report.figures import Figures

_SUMS = Text(
    "Total is the time in which any call runs; waiting and transfer are sums over calls, which may run at once. What a "
    "pipeline's receives wait is a bubble, in no total here.",
    quiet=True,
)


def build(context: Context, title: str) -> Section | None:
    """Show the axes, as bars and table, then the analysis' own table."""
    result = context.results.get("overlap")
    if result is None:
        return None
    blocks: list[Block] = []
    by_axis = communication(context.figures)
    if by_axis is not None:
        blocks += [by_axis, _SUMS]
    bars = axis_bars(context.figures)
    if bars is not None:
        blocks.append(Chart("Communication by axis, mean over ranks", bars))
    kinds = by_collective(context.figures)
    if kinds is not None:
        blocks.append(kinds)
    hiders = getattr(result, "hiders", ())
    if hiders:
        blocks.append(_hiders(hiders))
    return Section("overlap", title, (*blocks, *notes(result)))


def axis_bars(figures: Figures) -> AxisCommunication | None:
    """Give each axis' exposed and hidden time."""
    exposed = figures.along("exposed_comm_time", "axis")
    hidden = figures.along("hidden_comm_time", "axis")
    axes = axes_in_order(exposed | hidden)
    if not axes:
        return None
    return AxisCommunication(
        tuple(str(axis) for axis in axes),
        tuple(float(exposed.get(axis, 0)) for axis in axes),
        tuple(float(hidden.get(axis, 0)) for axis in axes),
    )


def by_collective(figures: Figures) -> DataTable | None:
    """List each axis' kinds of collectives, with what is hidden of them."""
    comm = figures.grid("comm_time", "axis", "collective")
    if not comm:
        return None
    hidden = figures.grid("hidden_comm_time", "axis", "collective")
    overlap = figures.grid("overlap_fraction", "axis", "collective")
    order = {axis: place for place, axis in enumerate(axes_in_order({axis for axis, _ in comm}))}
    rows = [
        (*key, comm[key], hidden.get(key), overlap.get(key))
        for key in sorted(comm, key=lambda key: (order[key[0]], -comm[key], key))
    ]
    columns = (
        TableColumn("axis"),
        TableColumn("collective"),
        TableColumn("total", Unit.NS),
        TableColumn("hidden", Unit.NS),
        TableColumn("overlap", Unit.FRACTION),
    )
    return DataTable("By kind of collective, mean over ranks", columns, tuple(rows))


def _hiders(hiders: Sequence[Hider]) -> DataTable:
    columns = (TableColumn("axis"), TableColumn("hidden under"), TableColumn("time", Unit.NS))
    rows = tuple((hider.axis, hider.name, hider.hidden_ns) for hider in hiders[:ROWS])
    return DataTable("What hides it, over all ranks and steps", columns, rows, more=max(0, len(hiders) - ROWS))
