"""Bars: stacked parts of a step or of memory, communication by axis, amounts by rank, changes as a waterfall."""

from __future__ import annotations

import math

import numpy as np
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, FactorRange, LabelSet, NumeralTickFormatter, Range1d
from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

from usp_prof.charts.frame import base, hover, legend, picked_by_click, size_axis, size_unit, time_ticks
from usp_prof.charts.inputs import AxisCommunication, BreakdownRows, MemoryParts, RankBars, Waterfall
from usp_prof.charts.theme import PATTERNS, Theme
from usp_prof.columns.arrays import Floats
from usp_prof.model.metric import Unit

_STEP_ROW_HEIGHT = 22
_MAX_HEIGHT = 900


class _Stack:
    """Parts of each row, drawn from left to right."""

    def __init__(self, plot: Figure, labels: tuple[str, ...], theme: Theme) -> None:
        self._plot, self._labels, self._theme = plot, list(labels), theme
        self.left = np.zeros(len(labels))
        """Where each row's next part begins."""

    def add(self, part: str, values: Floats, details: dict[str, object], fill: str, **look: object) -> None:
        """Draw the next part of each row, unless it is empty; `details` are the columns of the tooltip."""
        if not values.any():
            return
        columns = {"row": self._labels, "left": self.left, "right": self.left + values, "part": [part] * len(values)}
        self._plot.hbar(
            y="row", left="left", right="right", height=0.78, source=ColumnDataSource(columns | details),
            fill_color=fill, line_color=self._theme.background, line_width=0.5, legend_label=part, **look,
        )  # fmt: skip
        self.left = self.left + values


def breakdown(data: BreakdownRows, theme: Theme) -> Figure:
    """Draw the parts of each row's step; idle time is hatched by cause."""
    rows = len(data.labels)
    height = int(min(_MAX_HEIGHT, 90 + rows * _STEP_ROW_HEIGHT))
    plot = base(theme, height, y_range=FactorRange(*reversed(data.labels)), tools="pan,xbox_zoom,reset")
    step_ns = np.sum([part.values_ns for part in data.parts], axis=0) if data.parts else np.zeros(rows)
    hatch = {"hatch_color": theme.muted, "hatch_alpha": 0.5, "hatch_scale": 8, "hatch_weight": 0.6}
    stack = _Stack(plot, data.labels, theme)
    for part in data.parts:
        values = np.asarray(part.values_ns, float)
        share = np.divide(values, step_ns, out=np.zeros(rows), where=step_ns > 0)
        details = {"ms": values / 1e6, "share": share}
        stack.add(part.label, values, details, theme.color(part.role), hatch_pattern=PATTERNS.get(part.role), **hatch)
    plot.x_range.start = 0
    plot.xaxis.formatter = time_ticks()
    plot.ygrid.grid_line_color = None
    if rows * _STEP_ROW_HEIGHT > _MAX_HEIGHT:
        plot.yaxis.major_label_text_font_size = "8px"
    hover(plot, [("", "@row · @part"), ("time", "@ms{0,0.000} ms"), ("of the step", "@share{0.0%}")])
    legend(plot, theme)
    return plot


_MEMORY_ROW_HEIGHT = 26


def memory_parts(data: MemoryParts, theme: Theme) -> Figure:
    """Draw the memory of each pipeline rank by part, and the limit."""
    rows = len(data.labels)
    plot = base(
        theme, int(min(900, 120 + rows * _MEMORY_ROW_HEIGHT)), y_range=FactorRange(*reversed(data.labels)),
        tools="pan,xbox_zoom,reset",
    )  # fmt: skip
    stack = _Stack(plot, data.labels, theme)
    rows_of_sizes = zip(*(sizes for _, _, sizes in data.parts), strict=True)
    unit, name = size_unit(max((sum(row) for row in rows_of_sizes), default=0))
    for label, role, sizes in data.parts:
        values = np.asarray(sizes, float)
        stack.add(label, values, {"size": values / unit}, theme.color(role))
    size_axis(plot, theme, float(stack.left.max(initial=0)), data.room_bytes, theme.color("reference"))
    plot.ygrid.grid_line_color = None
    plot.xaxis.axis_label = "memory per rank"
    hover(plot, [("", "@row · @part"), ("memory", f"@size{{0,0.0}} {name}")])
    legend(plot, theme)
    return plot


_HIDDEN_ALPHA = 0.35
SHORTEST_MS, LEAST_HIDDEN = 0.001, 0.005
"""Smaller exposed times are written as 0 ms; smaller hidden shares, which round to 0%, are left out."""
_ROOM, _ROOM_FOR_TIME, _ROOM_FOR_SHARE, _ROOM_FOR_BOTH = 1.05, 1.2, 1.4, 1.7
"""Length of an axis per length of its longest bar: without text next to it, with a time, with a share, with both."""


def axis_communication(data: AxisCommunication, theme: Theme) -> Figure:
    """Draw a bar per axis: exposed in full color, contended hatched, hidden under compute faint."""
    exposed, contended, hidden = (
        np.asarray(part, float) for part in (data.exposed_ns, data.contended_ns, data.hidden_ns)
    )
    total = exposed + contended + hidden
    fraction = np.divide(hidden, total, out=np.zeros(len(total)), where=total > 0)
    source = ColumnDataSource(
        {
            "axis": list(data.axes),
            "exposed": exposed,
            "without_compute": exposed + contended,
            "total": total,
            "exposed_ms": exposed / 1e6,
            "contended_ms": contended / 1e6,
            "hidden_ms": hidden / 1e6,
            "fraction": fraction,
            "color": [theme.color(f"comm:{axis}") for axis in data.axes],
            "text": [_exposed_and_hidden(*part) for part in zip(exposed.tolist(), fraction.tolist(), strict=True)],
        }
    )
    plot = base(
        theme, 100 + 34 * max(1, len(data.axes)), y_range=FactorRange(*reversed(data.axes)), tools="xbox_zoom,reset"
    )
    plot.hbar("axis", left=0, right="exposed", height=0.62, source=source, fill_color="color", line_color=None)
    faint = {"height": 0.62, "source": source, "fill_color": "color", "fill_alpha": _HIDDEN_ALPHA}
    faint |= {"line_color": "color", "line_alpha": _HIDDEN_ALPHA}
    plot.hbar(
        "axis", left="exposed", right="without_compute", hatch_pattern="/", hatch_color="color", hatch_scale=6, **faint
    )
    plot.hbar("axis", left="without_compute", right="total", **faint)
    _write_at_bars(plot, source, "total", "axis", theme, theme.muted)
    plot.x_range.start = 0
    plot.x_range.end = float(total.max(initial=0) * _ROOM_FOR_BOTH) or 1.0
    plot.xaxis.formatter = time_ticks()
    plot.xaxis.ticker.desired_num_ticks = 4  # the chart may fill half a page
    plot.xaxis.axis_label = "solid: exposed, hatched: contended, faint: hidden"
    plot.ygrid.grid_line_color = None
    hover(
        plot,
        [
            ("axis", "@axis"),
            ("exposed", "@exposed_ms{0,0.000} ms"),
            ("contended", "@contended_ms{0,0.000} ms"),
            ("hidden", "@hidden_ms{0,0.000} ms"),
            ("overlap", "@fraction{0.0%}"),
        ],
    )
    return plot


def _exposed_and_hidden(exposed_ns: float, hidden_fraction: float) -> str:
    """Return the exposed time, and the hidden share unless it rounds to 0%."""
    exposed_ms = exposed_ns / 1e6
    digits = max(0, 2 - math.floor(math.log10(exposed_ms))) if exposed_ms >= SHORTEST_MS else 0
    hidden = f", {100 * hidden_fraction:.0f}% hidden" if hidden_fraction >= LEAST_HIDDEN else ""
    return f" {exposed_ms:,.{digits}f} ms{hidden}"


_MOST_HEIGHT = 620
_REACH = 0.45
_NAMED = 40
"""With more bars, names would overlap; the tooltip shows them."""


def rank_bars(data: RankBars, theme: Theme) -> Figure:
    """Draw the bars from top to bottom, each with a mark at the mean of its group."""
    values = np.asarray(data.values, float)
    even = np.asarray(data.even or (0.0,) * len(values), float)
    source = ColumnDataSource(
        {
            "label": list(data.labels),
            "value": values,
            "shown": values / 1e6 if data.unit is Unit.NS else values,
            "text": list(data.texts or ("",) * len(values)),
            "even": even,
            "ratio": np.divide(values, even, out=np.ones(len(values)), where=even > 0),
            "color": [theme.slow if label in data.apart else theme.color(data.role) for label in data.labels],
            "below": [(label, -_REACH) for label in data.labels],
            "above": [(label, _REACH) for label in data.labels],
        }
    )
    height = 90 + min(_MOST_HEIGHT, 22 * max(2, len(values)))
    plot = base(theme, height, y_range=FactorRange(*reversed(data.labels)), tools="reset")
    bars = plot.hbar("label", left=0, right="value", height=0.7, source=source, fill_color="color", line_color=None)
    picked_by_click(plot, bars, theme)
    if len(set(data.even)) == 1:
        plot.vspan(x=[data.even[0]], line_color=theme.ink, line_width=2)
    elif data.even:
        for color, width in ((theme.background, 5), (theme.ink, 2)):  # a border sets short marks off from the bars
            plot.segment("even", "below", "even", "above", source=source, line_color=color, line_width=width)
    if data.texts:
        _write_at_bars(plot, source, "value", "label", theme, theme.ink, x_offset=5)
    room = _ROOM_FOR_SHARE if data.texts else _ROOM
    plot.x_range = Range1d(0, room * max(float(values.max(initial=0.0)), float(even.max(initial=0.0))) or 1.0)
    ticks = NumeralTickFormatter(format="0%" if data.unit is Unit.FRACTION else "0,0")
    plot.xaxis.formatter = time_ticks() if data.unit is Unit.NS else ticks
    plot.xaxis.axis_label = f"{data.quantity}; line: mean of all ranks" if data.even else data.quantity
    plot.ygrid.grid_line_color = None
    if len(values) > _NAMED:
        plot.yaxis.major_label_text_font_size = "0px"
        plot.yaxis.major_tick_line_color = None
    number = {Unit.FRACTION: "@shown{0.0%}", Unit.NS: "@shown{0,0.000} ms"}.get(data.unit, "@shown{0,0.[0]}")
    over = [("over the mean", "@ratio{0.00} x")] if data.even else []
    hover(plot, [("", "@label"), (data.quantity, number), *over], [bars])
    return plot


def waterfall(data: Waterfall, theme: Theme) -> Figure:
    """Draw a bar for each end and each change; increases are warm, savings are cool.

    For the steps 10, +3, -1, the bars cover 0 to 10, 10 to 13, 12 to 13 and 0 to 12.
    """
    delta = np.asarray(data.delta_ns, float)
    reached = data.first_ns + np.concatenate([[0.0], np.cumsum(delta)])
    last = float(reached[-1])
    # One entry per bar, including the two ends.
    low = np.concatenate([[0.0], np.minimum(reached[:-1], reached[1:]), [0.0]])
    high = np.concatenate([[data.first_ns], np.maximum(reached[:-1], reached[1:]), [last]])
    change = np.concatenate([[data.first_ns], delta, [last]])
    colors = [theme.muted, *(theme.slow if change_ns > 0 else theme.fast for change_ns in delta), theme.muted]
    labels = _distinct([data.first, *data.changes, data.last])
    source = ColumnDataSource(
        {
            "label": labels,
            "low": low,
            "high": high,
            "ms": change / 1e6,
            "color": colors,
            "text": [_text(length, signed=0 < place <= len(delta)) for place, length in enumerate(change.tolist())],
        }
    )
    plot = base(theme, 70 + 28 * len(labels), y_range=FactorRange(*reversed(labels)), tools="xbox_zoom,reset")
    plot.hbar("label", left="low", right="high", height=0.66, source=source, fill_color="color", line_color=None)
    _write_at_bars(plot, source, "high", "label", theme, theme.ink, x_offset=5)
    plot.x_range.start, plot.x_range.end = 0, float(high.max(initial=1.0)) * _ROOM_FOR_TIME
    plot.xaxis.formatter = time_ticks()
    plot.ygrid.grid_line_color = None
    hover(plot, [("", "@label"), ("", "@ms{+0,0.000} ms")])
    return plot


def _write_at_bars(
    plot: Figure, source: ColumnDataSource, x: str, y: str, theme: Theme, color: str, **options: float
) -> None:
    """Draw the source's `text` to the right of the places x, y."""
    plot.add_layout(
        LabelSet(
            x=x, y=y, text="text", source=source, text_baseline="middle", text_color=color,
            text_font=value(theme.font), text_font_size="11px", **options,
        )
    )  # fmt: skip


def _text(ns: float, *, signed: bool) -> str:
    scale, unit = next(((s, u) for s, u in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")) if abs(ns) >= s), (1.0, "ns"))
    return f"{ns / scale:+.3g} {unit}" if signed else f"{ns / scale:.3g} {unit}"


def _distinct(labels: list[str]) -> list[str]:
    """Make names of bars unique, as a categorical axis requires."""
    return [label + " " * labels[:place].count(label) for place, label in enumerate(labels)]
