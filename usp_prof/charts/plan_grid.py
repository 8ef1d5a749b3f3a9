"""Grid of plans: a figure over two degrees, written in each cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, FactorRange, LinearColorMapper

from usp_prof.charts.frame import base, hover
from usp_prof.charts.heat_map import mix
from usp_prof.charts.theme import ink_on

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

    from usp_prof.charts.inputs import PlanGrid
    from usp_prof.charts.theme import Theme

_SHADES = 48


def figure(data: PlanGrid, theme: Theme) -> Figure:
    """Draw the map: the stronger a cell's colour, the larger its value; empty where nothing fits."""
    known = np.isfinite(data.values)
    low, high = (float(data.values[known].min()), float(data.values[known].max())) if known.any() else (0.0, 1.0)
    shades = [mix(theme.panel, theme.color("measured"), 0.08 + 0.8 * i / (_SHADES - 1)) for i in range(_SHADES)]
    mapper = LinearColorMapper(palette=shades, low=low, high=high if high > low else low + 1, nan_color=theme.panel)
    columns, rows = [str(each) for each in data.columns], [str(each) for each in data.rows]
    row, col = np.meshgrid(np.arange(len(rows)), np.arange(len(columns)), indexing="ij")
    place = np.nan_to_num((data.values - low) / (high - low or 1.0)).clip(0, 1) * (_SHADES - 1)
    grounds = [shades[int(each)] for each in place.ravel()]
    source = ColumnDataSource(
        {
            "x": [columns[i] for i in col.ravel()],
            "y": [rows[i] for i in row.ravel()],
            "value": data.values.ravel(),
            "text": list(data.texts),
            "label": list(data.labels),
            "ink": [ink_on(each) for each in grounds],
        }
    )
    plot = base(
        theme, int(min(900, 110 + 44 * len(rows))), x_range=FactorRange(*columns), y_range=FactorRange(*reversed(rows)),
        tools="reset",
    )  # fmt: skip
    plot.rect("x", "y", 0.97, 0.95, source=source, fill_color={"field": "value", "transform": mapper}, line_color=None)
    plot.text(
        "x", "y", text="text", source=source, text_align="center", text_baseline="middle", text_color="ink",
        text_font=value(theme.font), text_font_size="12px",
    )  # fmt: skip
    plot.grid.grid_line_color = None
    plot.xaxis.axis_label, plot.yaxis.axis_label = data.across, data.down
    hover(plot, [(data.what, "@text"), ("", "@label")], [plot.renderers[0]])
    return plot
