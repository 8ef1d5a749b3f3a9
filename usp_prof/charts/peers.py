"""Bytes from each rank to each other, as a map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from bokeh.models import ColorBar, ColumnDataSource, LinearColorMapper

from usp_prof.charts.frame import base, hover, size_ticker, size_ticks
from usp_prof.charts.heat_map import label_ranks, mix

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

    from usp_prof.charts.inputs import PeerMatrix
    from usp_prof.charts.theme import Theme

_SHADES = 64


def figure(data: PeerMatrix, theme: Theme) -> Figure:
    """Draw the map, sources downward and targets to the right; nothing sent is the ground."""
    source, target = np.nonzero(data.bytes > 0)
    most = float(data.bytes.max(initial=1.0)) or 1.0
    palette = [mix(theme.panel, theme.accent, 0.15 + 0.85 * i / (_SHADES - 1)) for i in range(_SHADES)]
    mapper = LinearColorMapper(palette=palette, low=0, high=most)
    columns = ColumnDataSource(
        {
            "x": target.astype(float),
            "y": source.astype(float),
            "bytes": data.bytes[source, target],
            "mib": data.bytes[source, target] / 2**20,
            "transfers": [str(n) if n >= 0 else "not known" for n in data.transfers[source, target].tolist()],
            "source": np.asarray(data.ranks)[source],
            "target": np.asarray(data.ranks)[target],
        }
    )
    side = int(min(720, 130 + max(14, 26 - len(data.ranks) // 4) * max(4, len(data.ranks))))
    plot = base(theme, side, tools="pan,box_zoom,reset", sizing_mode="fixed", width=side + 130)
    plot.rect("x", "y", 0.96, 0.96, source=columns, fill_color={"field": "bytes", "transform": mapper}, line_color=None)
    edge = len(data.ranks) - 0.5
    plot.x_range.start, plot.x_range.end = -0.5, edge
    plot.y_range.start, plot.y_range.end = edge, -0.5
    plot.grid.grid_line_color = None
    label_ranks(plot.xaxis, data.ranks, "to rank", 32)
    label_ranks(plot.yaxis, data.ranks, "from rank", 48)
    bar = ColorBar(
        color_mapper=mapper,
        width=10,
        formatter=size_ticks(),
        ticker=size_ticker(),
        background_fill_color=None,
        major_label_text_color=theme.muted,
        major_label_text_font=theme.font,
        major_tick_line_color=None,
    )
    plot.add_layout(bar, "right")
    tips = [("", "rank @source to @target"), ("sent", "@mib{0,0.000} MiB"), ("transfers", "@transfers")]
    hover(plot, tips)
    return plot
