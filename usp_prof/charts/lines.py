"""Lines over time, one a rank: memory, and how far the host runs ahead of its device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from bokeh.models import ColumnDataSource, Label

from usp_prof.charts.frame import base, duration_ticks, hover, legend, size_ticker, size_ticks, time_ticks

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

    from usp_prof.charts.inputs import LaunchLines, MemoryLines
    from usp_prof.charts.theme import Theme


_ROLES = ("compute", "comm:dp", "comm:cp", "comm:pp")


def memory_lines(data: MemoryLines, theme: Theme) -> Figure:
    """Draw each rank's allocated bytes as a step line, reserved ones dashed, and the levels to hold them against."""
    plot = base(theme, 320, tools="pan,xwheel_zoom,box_zoom,reset")
    lines = []
    for place, line in enumerate(data.lines):
        ink = theme.color(_ROLES[place % len(_ROLES)])
        for label, sizes, dash in ((line.label, line.allocated_bytes, "solid"), ("", line.reserved_bytes, "4 3")):
            source = ColumnDataSource(
                {
                    "time": line.time_ns,
                    "bytes": sizes,
                    "gigabytes": sizes / 1e9,
                    "what": [f"{line.label}, {'allocated' if label else 'reserved'}"] * len(sizes),
                }
            )
            options = {"legend_label": label} if label else {"line_alpha": 0.6}
            lines.append(
                plot.step("time", "bytes", source=source, mode="after", line_color=ink, line_dash=dash, **options)
            )
    for name, size in data.levels:
        plot.hspan(y=[size], line_color=theme.color("reference"), line_dash="2 3", line_width=1.5)
        plot.add_layout(
            Label(
                x=8, y=size, x_units="screen", y_offset=3, text=name, text_color=theme.color("reference"),
                text_font=theme.font, text_font_size="11px",
            )
        )  # fmt: skip
    plot.y_range.start = 0
    most = [float(line.reserved_bytes.max(initial=0)) for line in data.lines] + [size for _, size in data.levels]
    plot.y_range.end = 1.1 * max(most, default=1.0)
    plot.xaxis.formatter = time_ticks()
    plot.yaxis.formatter = size_ticks()
    plot.yaxis.ticker = size_ticker()
    plot.xaxis.axis_label = "since each rank's first allocator event"
    hover(plot, [("", "@what"), ("memory", "@gigabytes{0.000} GB")], lines)
    legend(plot, theme)
    return plot


_LEAST_NS = 1000
"""Leads below are drawn here: clocks of host and device tell no less, and nothing has no logarithm."""


def launch_lines(data: LaunchLines, theme: Theme) -> Figure:
    """Draw a dot for each launch: its time, and how long after it the device work began; a colour a rank.

    A lead of some milliseconds means that the host runs ahead. Where it falls to the launch latency (some
    microseconds), the device waits for its host.
    """
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
        ink = theme.color(_ROLES[place % len(_ROLES)])
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
