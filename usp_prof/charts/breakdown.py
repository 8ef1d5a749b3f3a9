"""Parts of each rank's step: stacked bars, one row a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from bokeh.models import ColumnDataSource, FactorRange

from usp_prof.charts.frame import base, hover, legend, time_ticks
from usp_prof.charts.theme import PATTERNS

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

    from usp_prof.charts.inputs import BreakdownRows
    from usp_prof.charts.theme import Theme

_ROW_HEIGHT = 22
_MAX_HEIGHT = 900


def figure(data: BreakdownRows, theme: Theme) -> Figure:
    """Draw the partition of each row."""
    rows = len(data.labels)
    height = int(min(_MAX_HEIGHT, 90 + rows * _ROW_HEIGHT))
    plot = base(theme, height, y_range=FactorRange(*reversed(data.labels)), tools="pan,xbox_zoom,reset")
    left = np.zeros(rows)
    whole = np.sum([part.values_ns for part in data.parts], axis=0) if data.parts else left
    for part in data.parts:
        values = np.asarray(part.values_ns, float)
        if not values.any():
            continue
        source = ColumnDataSource(
            {
                "row": list(data.labels),
                "left": left,
                "right": left + values,
                "ms": values / 1e6,
                "share": np.divide(values, whole, out=np.zeros(rows), where=whole > 0),
                "part": [part.label] * rows,
            }
        )
        plot.hbar(
            y="row",
            left="left",
            right="right",
            height=0.78,
            source=source,
            fill_color=theme.color(part.role),
            line_color=theme.background,
            line_width=0.5,
            hatch_pattern=PATTERNS.get(part.role),
            hatch_color=theme.muted,
            hatch_alpha=0.5,
            hatch_scale=8,
            hatch_weight=0.6,
            legend_label=part.label,
        )
        left = left + values
    plot.x_range.start = 0
    plot.xaxis.formatter = time_ticks()
    plot.ygrid.grid_line_color = None
    if rows * _ROW_HEIGHT > _MAX_HEIGHT:
        plot.yaxis.major_label_text_font_size = "8px"
    hover(plot, [("", "@row · @part"), ("time", "@ms{0,0.000} ms"), ("of the step", "@share{0.0 %}")])
    legend(plot, theme)
    return plot
