"""Launch lead: how long after its launch each piece of device work began, over time.

A lead of some milliseconds means that the host runs ahead; where it falls to the launch latency (some microseconds),
the device waits for its host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from bokeh.models import ColumnDataSource

from usp_prof.charts.frame import base, duration_ticks, hover, legend, time_ticks

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

    from usp_prof.charts.inputs import LaunchLines
    from usp_prof.charts.theme import Theme

_COLOURS = ("compute", "comm:dp", "comm:cp", "comm:pp")
_LEAST_NS = 1000
"""Leads below are drawn here: clocks of host and device tell no less, and nothing has no logarithm."""


def figure(data: LaunchLines, theme: Theme) -> Figure:
    """Draw a dot for each launch, a colour a rank."""
    plot = base(theme, 300, tools="pan,xwheel_zoom,box_zoom,reset", y_axis_type="log")
    dots = []
    for place, line in enumerate(data.lines):
        source = ColumnDataSource(
            {
                "time": line.time_ns,
                "lead": np.maximum(line.lead_ns, _LEAST_NS),
                "us": line.lead_ns / 1e3,
                "what": [line.label] * len(line.lead_ns),
            }
        )
        ink = theme.color(_COLOURS[place % len(_COLOURS)])
        dots.append(
            plot.scatter(
                "time", "lead", source=source, size=5, fill_color=ink, line_color=None, fill_alpha=0.6,
                legend_label=line.label,
            )
        )  # fmt: skip
    plot.xaxis.formatter = time_ticks()
    plot.yaxis.formatter = duration_ticks()
    plot.xaxis.axis_label = "since the first launch"
    plot.yaxis.axis_label = "from launch to start"
    hover(plot, [("", "@what"), ("lead", "@us{0,0.0} \u03bcs")], dots)
    legend(plot, theme)
    return plot
