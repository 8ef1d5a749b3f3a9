"""Roofline: each op's throughput over its arithmetic intensity, beneath the device's limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from bokeh.models import ColumnDataSource, Label, NumeralTickFormatter

from usp_prof.charts.frame import base, hover, picked_by_click, rate_ticks

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

    from usp_prof.charts.inputs import RooflinePoints
    from usp_prof.charts.theme import Theme


def figure(data: RooflinePoints, theme: Theme) -> Figure:
    """Draw the roof and a mark for each op, larger with its share of device time."""
    plot = base(theme, 400, x_axis_type="log", y_axis_type="log")
    drawable = (data.intensity > 0) & (data.rate > 0)
    intensity, rate, share = data.intensity[drawable], data.rate[drawable], data.share[drawable]
    roof = np.minimum(data.peak_flops, intensity * data.peak_bandwidth)
    source = ColumnDataSource(
        {
            "intensity": intensity,
            "rate": rate,
            "size": 6 + 34 * np.sqrt(share),
            "share": share,
            "tflops": rate / 1e12,
            "efficiency": rate / roof,
            "label": [label for label, keep in zip(data.label, drawable, strict=True) if keep],
        }
    )
    marks = plot.scatter(
        "intensity",
        "rate",
        source=source,
        size="size",
        fill_color=theme.color("measured"),
        fill_alpha=0.65,
        line_color=theme.ink,
        line_width=0.5,
    )
    picked_by_click(plot, marks, theme)
    _draw_roof(plot, data, theme, intensity)
    plot.xaxis.axis_label = "arithmetic intensity, FLOP per byte"
    plot.yaxis.axis_label = "achieved rate"
    plot.yaxis.formatter = rate_ticks("FLOP/s")
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0.[000]")
    hover(
        plot,
        [
            ("", "@label"),
            ("rate", "@tflops{0,0.000} TFLOP/s"),
            ("intensity", "@intensity{0,0.0} FLOP/B"),
            ("of the roof", "@efficiency{0.0 %}"),
            ("of device time", "@share{0.0 %}"),
        ],
    )
    return plot


def _draw_roof(plot: Figure, data: RooflinePoints, theme: Theme, intensity: np.ndarray) -> None:
    ridge = data.peak_flops / data.peak_bandwidth
    low = min(ridge / 100, float(intensity.min(initial=ridge)) / 2)
    high = max(ridge * 20, float(intensity.max(initial=ridge)) * 2)
    color = theme.color("reference")
    plot.line(
        [low, ridge, high],
        [low * data.peak_bandwidth, data.peak_flops, data.peak_flops],
        line_color=color,
        line_width=2,
    )
    plot.add_layout(
        Label(
            x=high,
            y=data.peak_flops,
            text_align="right",  # at the roof's right end: from the ridge on, a long name would leave the chart
            text=f"{data.device}: {data.peak_flops / 1e12:,.4g} TFLOP/s, {data.peak_bandwidth / 1e9:,.4g} GB/s",
            text_color=color,
            text_font=theme.font,
            text_font_size="11px",
            y_offset=4,
        )
    )
