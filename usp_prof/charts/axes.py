"""Communication by parallel axis, and how much of it the step waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, FactorRange, LabelSet

from usp_prof.charts.frame import base, hover, time_ticks

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

    from usp_prof.charts.inputs import AxisCommunication
    from usp_prof.charts.theme import Theme

_HIDDEN_ALPHA = 0.35
_ROOM = 1.3
"""Room to the right of the longest bar, for its label."""


def figure(data: AxisCommunication, theme: Theme) -> Figure:
    """Draw a bar for each axis: exposed in full colour, hidden behind compute in a faint one."""
    exposed = np.asarray(data.exposed_ns, float)
    hidden = np.asarray(data.hidden_ns, float)
    total = exposed + hidden
    fraction = np.divide(hidden, total, out=np.zeros(len(total)), where=total > 0)
    source = ColumnDataSource(
        {
            "axis": list(data.axes),
            "exposed": exposed,
            "total": total,
            "exposed_ms": exposed / 1e6,
            "hidden_ms": hidden / 1e6,
            "fraction": fraction,
            "color": [theme.color(f"comm:{axis}") for axis in data.axes],
            "text": [f" {100 * share:.0f} % hidden" for share in fraction],
        }
    )
    plot = base(
        theme, 100 + 34 * max(1, len(data.axes)), y_range=FactorRange(*reversed(data.axes)), tools="xbox_zoom,reset"
    )
    plot.hbar("axis", left=0, right="exposed", height=0.62, source=source, fill_color="color", line_color=None)
    plot.hbar(
        "axis",
        left="exposed",
        right="total",
        height=0.62,
        source=source,
        fill_color="color",
        fill_alpha=_HIDDEN_ALPHA,
        line_color="color",
        line_alpha=_HIDDEN_ALPHA,
    )
    plot.add_layout(
        LabelSet(
            x="total",
            y="axis",
            text="text",
            source=source,
            text_baseline="middle",
            text_color=theme.muted,
            text_font=value(theme.font),
            text_font_size="11px",
        )
    )
    plot.x_range.start = 0
    plot.x_range.end = float(total.max(initial=0) * _ROOM) or 1.0
    plot.xaxis.formatter = time_ticks()
    plot.xaxis.axis_label = "time of a step: solid is exposed, faint is hidden behind compute"
    plot.ygrid.grid_line_color = None
    hover(
        plot,
        [
            ("axis", "@axis"),
            ("exposed", "@exposed_ms{0,0.000} ms"),
            ("hidden", "@hidden_ms{0,0.000} ms"),
            ("overlap", "@fraction{0.0 %}"),
        ],
    )
    return plot
