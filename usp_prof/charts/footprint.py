"""Memory of each pipeline rank by what fills it, and the room there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from bokeh.models import ColumnDataSource, FactorRange

from usp_prof.charts.frame import base, hover, legend, size_axis

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

    from usp_prof.charts.inputs import MemoryParts
    from usp_prof.charts.theme import Theme

_COLOURS = ("compute", "memcpy", "comm:cp", "comm:ep", "comm:dp", "comm:pp")
_ROW_HEIGHT = 26


def figure(data: MemoryParts, theme: Theme) -> Figure:
    """Draw the parts of each row."""
    rows = len(data.labels)
    plot = base(
        theme, int(min(900, 100 + rows * _ROW_HEIGHT)), y_range=FactorRange(*reversed(data.labels)),
        tools="pan,xbox_zoom,reset",
    )  # fmt: skip
    left = np.zeros(rows)
    for place, (label, sizes) in enumerate(data.parts):
        values = np.asarray(sizes, float)
        if not values.any():
            continue
        source = ColumnDataSource(
            {
                "row": list(data.labels),
                "left": left,
                "right": left + values,
                "gigabytes": values / 1e9,
                "part": [label] * rows,
            }
        )
        plot.hbar(
            y="row", left="left", right="right", height=0.78, source=source, legend_label=label,
            fill_color=theme.color(_COLOURS[place % len(_COLOURS)]), line_color=theme.background, line_width=0.5,
        )  # fmt: skip
        left = left + values
    size_axis(plot, float(left.max(initial=0)), data.room_bytes, theme.color("reference"))
    plot.ygrid.grid_line_color = None
    hover(plot, [("", "@row · @part"), ("memory", "@gigabytes{0.00} GB")])
    legend(plot, theme)
    return plot
