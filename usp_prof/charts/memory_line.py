"""Memory over time: a line a rank of what is allocated, above it what the allocator holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bokeh.models import ColumnDataSource, Label

from usp_prof.charts.frame import base, hover, legend, size_ticker, size_ticks, time_ticks

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

    from usp_prof.charts.inputs import MemoryLines
    from usp_prof.charts.theme import Theme

_COLOURS = ("compute", "comm:dp", "comm:cp", "comm:pp")


def figure(data: MemoryLines, theme: Theme) -> Figure:
    """Draw each rank's allocated bytes as a step line, reserved ones dashed, and the levels to hold them against."""
    plot = base(theme, 320, tools="pan,xwheel_zoom,box_zoom,reset")
    lines = []
    for place, line in enumerate(data.lines):
        ink = theme.color(_COLOURS[place % len(_COLOURS)])
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
