"""Bars of ranks or experts, with a mark at the even share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from bokeh.models import ColumnDataSource, FactorRange, NumeralTickFormatter, Range1d

from usp_prof.charts.frame import base, hover, picked_by_click, time_ticks

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

    from usp_prof.charts.inputs import RankBars
    from usp_prof.charts.theme import Theme

_MOST_HEIGHT = 620
_REACH = 0.45
_NAMED = 40
"""Beyond so many bars names would lie on one another: the pointer tells them."""


def figure(data: RankBars, theme: Theme) -> Figure:
    """Draw the bars top down, each with a mark at the mean of its group."""
    values = np.asarray(data.values, float)
    even = np.asarray(data.even or (0.0,) * len(values), float)
    source = ColumnDataSource(
        {
            "label": list(data.labels),
            "value": values,
            "shown": values / 1e6 if data.is_time else values,
            "even": even,
            "ratio": np.divide(values, even, out=np.ones(len(values)), where=even > 0),
            "below": [(label, -_REACH) for label in data.labels],
            "above": [(label, _REACH) for label in data.labels],
        }
    )
    height = 90 + min(_MOST_HEIGHT, 22 * max(2, len(values)))
    plot = base(theme, height, y_range=FactorRange(*reversed(data.labels)), tools="reset")
    fill = theme.color(data.role)
    bars = plot.hbar("label", left=0, right="value", height=0.7, source=source, fill_color=fill, line_color=None)
    picked_by_click(plot, bars, theme)
    marks = ((theme.background, 5), (theme.ink, 2)) if data.even else ()
    for color, width in marks:  # with a rim, to be seen on bars of any colour
        plot.segment("even", "below", "even", "above", source=source, line_color=color, line_width=width)
    plot.x_range = Range1d(0, 1.05 * max(float(values.max(initial=0.0)), float(even.max(initial=0.0))) or 1.0)
    plot.xaxis.formatter = time_ticks() if data.is_time else NumeralTickFormatter(format="0,0")
    plot.xaxis.axis_label = f"{data.what}; the mark is the mean of the group" if data.even else data.what
    plot.ygrid.grid_line_color = None
    if len(values) > _NAMED:
        plot.yaxis.major_label_text_font_size = "0px"
        plot.yaxis.major_tick_line_color = None
    number = "@shown{0,0.000} ms" if data.is_time else "@shown{0,0.[0]}"
    over = [("over the mean", "@ratio{0.00} x")] if data.even else []
    hover(plot, [("", "@label"), (data.what, number), *over], [bars])
    return plot
