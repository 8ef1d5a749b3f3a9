"""Ranks at their places on the mesh, coloured by how late each is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, LinearColorMapper

from usp_prof.charts.frame import base, hover
from usp_prof.charts.heat_map import color_bar, diverging
from usp_prof.charts.inputs import Ground
from usp_prof.charts.theme import ink_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

    from usp_prof.charts.inputs import RankGrid
    from usp_prof.charts.theme import Theme

_FLOOR = 0.02
"""Deviations of less than 2 % keep the full scale, so that noise does not look like a fault."""
_LETTERS = 140
"""Letters that fit beneath the grid on a laptop."""
_NUMBERED = 40
"""Beyond so many columns numbers do not fit into their cells."""


def figure(data: RankGrid, theme: Theme) -> Figure:
    """Draw the grid. Against the median: ground colour there, warm where a rank takes longer, cool where less.

    Against nothing: ground colour at zero, warmer with the amount.
    """
    row, column = np.nonzero(data.rank >= 0)
    known = data.values_ns[row, column]
    median = float(np.nanmedian(known)) if np.isfinite(known).any() else float("nan")
    deviation = known / median - 1 if median > 0 else np.full(len(known), np.nan)
    palette = diverging(theme)
    if data.ground is Ground.NOTHING:
        palette = palette[len(palette) // 2 :]
        color, low, high = known / 1e6, 0.0, float(np.nanmax(known, initial=0.0)) / 1e6 or 1.0
    else:
        seen = np.abs(deviation[np.isfinite(deviation)])
        high = max(_FLOOR, float(seen.max(initial=0.0)))
        color, low = deviation, -high
    mapper = LinearColorMapper(palette=palette, low=low, high=high, nan_color=theme.panel)
    shade = np.nan_to_num((color - low) / (high - low), nan=-1.0) * (len(palette) - 1)
    source = ColumnDataSource(
        {
            "x": column.astype(float),
            "y": row.astype(float),
            "rank": data.rank[row, column],
            "name": [str(rank) for rank in data.rank[row, column].tolist()],
            "ms": known / 1e6,
            "deviation": deviation,
            "color": color,
            "ink": [ink_on(theme.panel if at < 0 else palette[int(at)]) for at in shade],
            "place": [f"{data.rows[r]} {data.columns[c]}".strip() for r, c in zip(row, column, strict=True)],
        }
    )
    plot = base(theme, int(min(900, 110 + 26 * max(2, len(data.rows)))), tools="pan,box_zoom,reset")
    plot.rect(
        "x", "y", 0.94, 0.9, source=source, fill_color={"field": "color", "transform": mapper},
        line_color=theme.grid,
    )  # fmt: skip
    if len(data.columns) <= _NUMBERED:
        plot.text(
            "x", "y", "name", source=source, text_align="center", text_baseline="middle", text_font_size="10px",
            text_color="ink", text_font=value(theme.font),
        )  # fmt: skip
    plot.x_range.start, plot.x_range.end = -0.5, len(data.columns) - 0.5
    plot.y_range.start, plot.y_range.end = len(data.rows) - 0.5, -0.5
    plot.grid.grid_line_color = None
    for axis, names, most in ((plot.xaxis, data.columns, _beside(data.columns)), (plot.yaxis, data.rows, 40)):
        every = max(1, -(-len(names) // most))
        axis[0].ticker = list(range(0, len(names), every))
        axis[0].major_label_overrides = dict(enumerate(names))
    tips = [("rank", "@rank"), ("", "@place"), (data.what, "@ms{0,0.000} ms")]
    if data.ground is Ground.MEDIAN:
        color_bar(plot, theme, mapper, f"{data.what} vs median")
        tips.append(("deviation", "@deviation{+0.0 %}"))
    else:
        color_bar(plot, theme, mapper, f"{data.what}, ms", "0,0.[0]")
    hover(plot, tips)
    return plot


def _beside(names: Sequence[str]) -> int:
    """Say how many of the names fit beside each other."""
    return max(4, _LETTERS // (max((len(name) for name in names), default=0) + 2))
