"""Points and lines on two axes: bandwidth over bytes, rate over arithmetic intensity, memory and launches over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, FixedTicker, NumeralTickFormatter, Range1d, Span
from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

from usp_prof.charts.frame import (
    base,
    duration_ticks,
    hover,
    legend,
    picked_by_click,
    rate_ticks,
    size_ticker,
    size_ticks,
    time_ticks,
    write,
)
from usp_prof.charts.inputs import BandwidthPoints, LaunchLines, MemoryLines, RooflinePoints
from usp_prof.charts.theme import Theme
from usp_prof.columns.arrays import Floats

_NEAR = 64
"""Below this ratio of sizes, every power of two has a tick."""
_FEW_DECADES = 300
"""Below this ratio of rates, ticks are also at 2 and 5 of each power of ten."""
_MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "plus", "star", "hex", "x")


def bandwidth(data: BandwidthPoints, theme: Theme) -> Figure:
    """Draw both scales logarithmically; color is the axis, shape the collective."""
    plot = base(theme, 380, x_axis_type="log", y_axis_type="log")
    axes = np.asarray(data.axis, dtype=object)
    ops = np.asarray(data.op, dtype=object)
    drawable = (data.bytes > 0) & (data.busbw > 0)
    shapes = dict(zip(sorted(set(data.op)), _MARKERS * 4, strict=False))
    for axis in sorted(set(data.axis)):
        for op, shape in shapes.items():
            chosen = drawable & (axes == axis) & (ops == op)
            if chosen.any():
                source = ColumnDataSource(
                    {
                        "bytes": data.bytes[chosen],
                        "busbw": data.busbw[chosen],
                        "gbs": data.busbw[chosen] / 1e9,
                        "mib": data.bytes[chosen] / 2**20,
                        "what": [f"{axis} {op}"] * int(chosen.sum()),
                    }
                )
                plot.scatter(
                    "bytes",
                    "busbw",
                    source=source,
                    marker=shape,
                    size=7,
                    fill_color=theme.color(f"comm:{axis}"),
                    fill_alpha=0.65,
                    line_color=theme.muted,  # yellow would be invisible on white
                    line_width=0.5,
                    legend_label=f"{axis} {op}",
                )
    if np.isfinite(data.peak):
        _draw_peak(plot, data, theme)
    plot.xaxis.formatter = size_ticks()
    plot.xaxis.ticker = FixedTicker(ticks=_ticks(data.bytes[drawable]))
    plot.yaxis.formatter = rate_ticks("B/s")
    plot.yaxis.ticker = FixedTicker(ticks=_rates([*data.busbw[drawable], data.peak]))
    plot.xaxis.axis_label = "bytes of a call"
    plot.yaxis.axis_label = "bus bandwidth"
    hover(plot, [("", "@what"), ("size", "@mib{0,0.000} MiB"), ("bus bandwidth", "@gbs{0,0.000} GB/s")])
    legend(plot, theme)
    return plot


def _ticks(sizes: np.ndarray) -> list[float]:
    """Return powers of 4, or of 2 if the sizes are close."""
    near = len(sizes) > 0 and float(sizes.max()) < _NEAR * float(sizes.min())
    return [float((2 if near else 4) ** power) for power in range(44 if near else 22)]


def _rates(values: Sequence[float]) -> list[float]:
    """Return powers of 10, with 2 and 5 of each if the rates are close."""
    finite_rates = [value for value in values if np.isfinite(value)]
    near = len(finite_rates) > 0 and max(finite_rates) < _FEW_DECADES * min(finite_rates)
    return [float(first * 10**power) for power in range(18) for first in ((1, 2, 5) if near else (1,))]


def _draw_peak(plot: Figure, data: BandwidthPoints, theme: Theme) -> None:
    color = theme.color("reference")
    plot.add_layout(Span(location=data.peak, dimension="width", line_color=color, line_dash="dashed", line_width=1.5))
    look = {"x_units": "screen", "y_offset": 3, "background_fill_color": theme.background}
    write(plot, theme, data.peak_label, (8, data.peak), color, **look)
    positive_busbw = data.busbw[data.busbw > 0]
    lowest = float(positive_busbw.min()) if len(positive_busbw) else data.peak / 1000
    plot.y_range.start, plot.y_range.end = lowest / 2, max(data.peak, float(positive_busbw.max(initial=0))) * 3


def roofline(data: RooflinePoints, theme: Theme) -> Figure:
    """Draw the roofline and a mark per op, larger with its share of device time; labels state the gain per op."""
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
            "gain": share * np.maximum(1 - rate / roof, 0),
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
    lowest, highest = _draw_roof(plot, data, theme, intensity)
    slowest = min(float(rate.min(initial=data.peak_flops)), lowest * data.peak_bandwidth)
    plot.y_range = Range1d(slowest / _ROOM_BELOW, data.peak_flops * _ROOM_ABOVE)
    _name_largest(plot, source, theme, np.array([lowest, highest, slowest, data.peak_flops]))
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
            ("of the roofline", "@efficiency{0.0%}"),
            ("of device time", "@share{0.0%}"),
            ("device time saved at the roofline", "@gain{0.0%}"),
        ],
    )
    return plot


_NAMED = 3
"""Ops of a roofline with a label."""
_LARGE = 0.01
"""Ops whose time at the roofline would save a smaller share of device time get no label."""
_ROOM_BELOW, _ROOM_ABOVE = 2.5, 1.6
"""Factors beyond the lowest and highest rate: labels below marks and above the roof stay inside the chart."""
_SPAN = (950, 300)
"""Approximate width and height of a roofline, in pixels."""
_APART = (170, 24)
"""Labels closer than this would overlap, in pixels."""
_RIGHT_PART = 0.7
"""Labels of marks farther to the right stand to the left of their mark, inside the chart."""
_LETTER_PX, _LINE_PX = 6.2, 14
"""Approximate width of a letter and height of a line, in pixels."""
_LETTERS = 26
"""Longer labels are cut at the start, because the end of an op's name says most."""


def _name_largest(plot: Figure, source: ColumnDataSource, theme: Theme, corners: Floats) -> None:
    """Label the ops with the largest gain next to their marks if there is space; each op is labeled once.

    The gain is the share of device time that an op, over all shapes, would save at the roofline.

    `corners` are the lowest and highest intensity and rate of the axes.
    """
    gain, labels = source.data["gain"], source.data["label"]
    ops = [str(label).partition(" ")[0].removeprefix("aten::") for label in labels]
    gain_of_op = {op: sum(gain[row] for row in range(len(ops)) if ops[row] == op) for op in dict.fromkeys(ops)}
    decades = np.maximum(np.log10(corners[1::2] / corners[::2]), 1.0)
    places = np.log10(np.stack([source.data["intensity"], source.data["rate"]], axis=1)) * (_SPAN / decades)
    row_of_op: dict[str, int] = {}
    large = [row for row in np.argsort(-gain, kind="stable").tolist() if gain_of_op[ops[row]] >= _LARGE]
    for row in large:
        op = ops[row]
        away = [np.abs(places[row] - places[other]) >= _APART for other in row_of_op.values()]
        if op not in row_of_op and len(row_of_op) < _NAMED and all(apart.any() for apart in away):
            row_of_op[op] = row
    for op, row in row_of_op.items():
        short = op if len(op) <= _LETTERS else f"…{op[1 - _LETTERS :]}"
        place = float(source.data["intensity"][row]), float(source.data["rate"][row])
        apart = float(source.data["size"][row]) / 2 + 4
        text = f"{short}: saves up to {100 * gain_of_op[op]:.0f}%"
        is_left = places[row][0] - np.log10(corners[0]) * (_SPAN / decades)[0] < _SPAN[0] * _RIGHT_PART
        look = {"text_baseline": "middle", "background_fill_color": theme.background, "background_fill_alpha": 0.8}
        side = _free_side(places - places[row], apart, len(text) * _LETTER_PX, is_left=is_left)
        write(plot, theme, text, place, theme.ink, **look, **side)


def _free_side(away: Floats, apart: float, width: float, *, is_left: bool) -> dict[str, Any]:
    """Return where a label is drawn: at the side of its mark, or below it if it would cover fewer marks there.

    `away` are the distances of all marks in pixels, to the right and up.
    """

    def covered(start: float, height: float) -> int:
        across = (away[:, 0] >= start) & (away[:, 0] <= start + width)
        return int((across & (np.abs(away[:, 1] - height) <= _LINE_PX)).sum())

    low = -apart - _LINE_PX / 2
    if covered(-width / 2, low) < covered(apart if is_left else -apart - width, 0.0):
        return {"y_offset": low, "text_align": "center"}
    return {"x_offset": apart} if is_left else {"x_offset": -apart, "text_align": "right"}


def _draw_roof(plot: Figure, data: RooflinePoints, theme: Theme, intensity: np.ndarray) -> tuple[float, float]:
    """Draw the bandwidth slope and the compute limit; return their range of intensities."""
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
    text = f"{data.device}: {data.peak_flops / 1e12:,.4g} TFLOP/s, {data.peak_bandwidth / 1e9:,.4g} GB/s"
    # At the right end: from the ridge on, a long name would leave the chart.
    write(plot, theme, text, (high, data.peak_flops), color, y_offset=4, text_align="right")
    return low, high


# Lines over time, one per rank: memory, and the lead of the host over its device.

_ROLES = ("compute", "comm:dp", "comm:cp", "comm:pp")


def memory_lines(data: MemoryLines, theme: Theme) -> Figure:
    """Draw each rank's allocated bytes as a step line, reserved bytes dashed, and reference levels."""
    plot = base(theme, 320, tools="pan,xwheel_zoom,box_zoom,reset")
    lines = []
    for kind, dash, alpha in (("allocated", "solid", 1.0), ("reserved", "4 3", 0.7)):
        for place, line in enumerate(data.lines):
            sizes = line.allocated_bytes if kind == "allocated" else line.reserved_bytes
            source = ColumnDataSource(
                {
                    "time": line.time_ns,
                    "bytes": sizes,
                    "gigabytes": sizes / 1e9,
                    "what": [f"{line.label}, {kind}"] * len(sizes),
                }
            )
            lines.append(
                plot.step(
                    "time", "bytes", source=source, mode="after", line_dash=dash, line_width=1.5, line_alpha=alpha,
                    line_color=theme.color(_ROLES[place % len(_ROLES)]),
                    legend_label=line.label if kind == "allocated" else "reserved (dashed)",
                )
            )  # fmt: skip
    plot.y_range.start = 0
    most_bytes = _most_bytes(data)
    plot.y_range.end = 1.1 * max([most_bytes, *(size for _, size in data.levels if size <= _PRESSED * most_bytes)])
    for name, size in data.levels:
        # A level far above the lines would flatten them; it is named at the upper edge.
        is_above = size > plot.y_range.end
        if not is_above:
            plot.hspan(y=[size], line_color=theme.color("reference"), line_dash="2 3", line_width=1.5)
        # The name of a level below a line is written below it, where it covers less of the line.
        beside = 3 if size >= most_bytes else -16
        text, y, offset = (f"{name}, above", plot.y_range.end, -16) if is_above else (name, size, beside)
        look = {"background_fill_color": theme.background, "background_fill_alpha": 0.8}
        write(plot, theme, text, (8, y), theme.color("reference"), x_units="screen", y_offset=offset, **look)
    plot.xaxis.formatter = time_ticks()
    plot.yaxis.formatter = size_ticks()
    plot.yaxis.ticker = size_ticker()
    plot.xaxis.axis_label = "since each rank's first allocator event"
    hover(plot, [("", "@what"), ("memory", "@gigabytes{0.000} GB")], lines)
    legend(plot, theme)
    return plot


_PRESSED = 5.0
"""A level above this multiple of the highest line would flatten the lines."""


def _most_bytes(data: MemoryLines) -> float:
    """Return the highest point of all lines."""
    drawn = [float(max(line.reserved_bytes.max(initial=0), line.allocated_bytes.max(initial=0))) for line in data.lines]
    return max(drawn, default=0.0) or 1.0


_LEAST_NS = 1000
"""Shorter times are drawn here: clocks of host and device are not more accurate, and zero has no logarithm."""


def launch_lines(data: LaunchLines, theme: Theme) -> Figure:
    """Draw a dot per launch: its time, and the time until its work started; one color per rank.

    Some milliseconds mean that the host runs ahead. At the launch latency (some microseconds), the device waits for its
    host.
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
