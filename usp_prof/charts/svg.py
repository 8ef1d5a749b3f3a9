"""SVG drawings of chart inputs, for pages and notebooks without JavaScript and Bokeh.

There are three kinds of drawing: boxes on named rows along a time axis (bars, schedules, timelines), points on two
logarithmic axes (bandwidth, roofline), and lines over time (memory). Every mark has a `<title>`, which browsers show as
a tooltip. Drawings have the colors of the light theme, which `recolored` and `following_browser` replace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from html import escape
from itertools import pairwise
from math import ceil, floor, log10

import numpy as np

from usp_prof.charts import inputs
from usp_prof.charts.inputs import ChartInput
from usp_prof.charts.svg_marks import (
    CHARACTER,
    WIDTH,
    fraction_text,
    framed,
    legend_row,
    line,
    number_text,
    text_at,
    ticks,
    time_text,
)
from usp_prof.charts.theme import DARK, LIGHT, Theme, ink_on
from usp_prof.model.metric import Unit
from usp_prof.model.printable import shortened


def recolored(svg: str, theme: Theme) -> str:
    """Replace the backgrounds, text colors and grays of a light drawing by those of a theme; hues stay."""
    colors = _replaced_colors(theme)
    svg = _STYLE.sub("", svg)  # the theme is fixed, so the drawing no longer follows the browser
    svg = svg.replace(f"background:{LIGHT.background}", f"background:{theme.background}")  # white is also a text color
    return re.sub("|".join(colors), lambda color: colors[color[0]], svg)


def following_browser(svg: str) -> str:
    """Add the dark theme to a light drawing; an image of it follows `prefers-color-scheme`."""
    rules = [f"svg{{background:{DARK.background}!important}}"]
    for light, dark in _replaced_colors(DARK).items():
        rules += [f'[{name}="{light}"]{{{name}:{dark}}}' for name in ("fill", "stroke") if f'{name}="{light}"' in svg]
    style = f"<style>@media (prefers-color-scheme:dark){{{''.join(rules)}}}</style>"
    start, end, rest = svg.partition(">")
    return f"{start}{end}{style}{rest}"


_STYLE = re.compile(r"<style>.*?</style>")


def _replaced_colors(theme: Theme) -> dict[str, str]:
    """Return the color of a theme for each light one that is no hue."""
    colors = {LIGHT.ink: theme.ink, LIGHT.muted: theme.muted, LIGHT.grid: theme.grid}
    return colors | {gray: theme.grays[role] for role, gray in LIGHT.grays.items()}


# Drawings, one per kind of input.


@singledispatch
def as_svg(data: ChartInput) -> str:
    """Draw a chart's input as an SVG element; empty for the few inputs that only Bokeh draws."""
    del data
    return ""


# Boxes on rows.

_ROW, _TOP, _BOTTOM, _RIGHT = 18, 30, 26, 20
_MOST_ROWS, _LABEL = 64, 40
_LEAST_PIXELS = 0.3
"""Minimum width of a box, so that none disappears."""


@dataclass(frozen=True, slots=True)
class _Box:
    row: int
    start: float
    end: float
    role: str
    tip: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class _Boxes:
    """Boxes on rows; `legend` pairs a label with its role."""

    rows: tuple[str, ...]
    boxes: tuple[_Box, ...]
    legend: tuple[tuple[str, str], ...]
    write: Callable[[float], str]
    until: float = 0
    frame: tuple[float, float] | None = None
    label_characters: int = 0


@as_svg.register(inputs.BreakdownRows)
def _breakdown(data: inputs.BreakdownRows) -> str:
    boxes = []
    for row, label in enumerate(data.labels):
        end = 0.0
        for part in data.parts:
            start, end = end, end + part.values_ns[row]
            if end > start:
                boxes.append(_Box(row, start, end, part.role, f"{label}: {part.label} {time_text(end - start)}"))
    legend = tuple((part.label, part.role) for part in data.parts if max(part.values_ns, default=0) > 0)
    return _drawn(_Boxes(data.labels, tuple(boxes), legend, time_text))


@as_svg.register(inputs.AxisCommunication)
def _axes(data: inputs.AxisCommunication) -> str:
    boxes = []
    parts = zip(data.axes, data.exposed_ns, data.contended_ns, data.hidden_ns, strict=True)
    for row, (axis, exposed, contended, hidden) in enumerate(parts):
        end = 0.0
        for part, role, time in (
            ("exposed", f"comm:{axis}", exposed),
            ("contended", "idle:sync", contended),
            ("hidden", "idle:other", hidden),
        ):
            boxes.append(_Box(row, end, end + time, role, f"{axis}: {part} {time_text(time)}"))
            end += time
    legend = (
        ("exposed, in the color of the axis", "comm"),
        ("contended, attributed to another axis", "idle:sync"),
        ("hidden under compute", "idle:other"),
    )
    return _drawn(_Boxes(data.axes, tuple(boxes), legend, time_text))


@as_svg.register(inputs.RankBars)
def _rank_bars(data: inputs.RankBars) -> str:
    write = {Unit.FRACTION: fraction_text, Unit.NS: time_text}.get(data.unit, number_text)
    means = [f", mean {write(even)}" for even in data.even] or [""] * len(data.values)
    boxes = tuple(
        _Box(row, 0, value, data.role, f"{label}: {write(value)}{mean}")
        for row, (label, value, mean) in enumerate(zip(data.labels, data.values, means, strict=True))
    )
    return _drawn(_Boxes(data.labels, boxes, ((data.quantity, data.role),), write))


@as_svg.register(inputs.Waterfall)
def _waterfall(data: inputs.Waterfall) -> str:
    total = data.first_ns
    boxes = [_Box(0, 0, total, "measured", f"{data.first}: {time_text(total)}")]
    for row, (change, delta) in enumerate(zip(data.changes, data.delta_ns, strict=True), start=1):
        low, high = sorted((total, total + delta))
        role = "comm" if delta > 0 else "action:B"
        boxes.append(_Box(row, low, high, role, f"{change}: {'+' if delta > 0 else '-'}{time_text(abs(delta))}"))
        total += delta
    boxes.append(_Box(len(boxes), 0, total, "measured", f"{data.last}: {time_text(total)}"))
    legend = (("longer", "comm"), ("shorter", "action:B"))
    return _drawn(_Boxes((data.first, *data.changes, data.last), tuple(boxes), legend, time_text))


@as_svg.register(inputs.PipelineSchedule)
def _schedule(data: inputs.PipelineSchedule) -> str:
    names = inputs.ACTION_NAMES
    columns = (data.row, data.start_ns, data.end_ns, data.kind, data.stage, data.micro_batch)
    boxes = tuple(
        _Box(
            int(row), float(start), float(end), f"action:{kind}",
            f"{names.get(kind, kind)} of micro-batch {micro_batch}, stage {stage}: {time_text(end - start)}",
            str(micro_batch) if micro_batch >= 0 else "",
        )
        for row, start, end, kind, stage, micro_batch in zip(*columns, strict=True)
    )  # fmt: skip
    legend = tuple((names.get(kind, kind), f"action:{kind}") for kind in dict.fromkeys(data.kind))
    until = float(data.until_ns)
    return _drawn(_Boxes(data.rows, boxes, legend, time_text, until, label_characters=data.label_characters))


@as_svg.register(inputs.TimelineSlices)
def _timeline(data: inputs.TimelineSlices) -> str:
    coarse = range(data.level_start[0], data.level_start[1])  # a picture cannot be zoomed: use the coarsest level
    boxes = tuple(
        _Box(
            int(data.row[place]), float(data.start_ns[place]), float(data.end_ns[place]), data.roles[data.role[place]],
            f"{data.names[data.name[place]]}: {time_text(float(data.end_ns[place] - data.start_ns[place]))}",
        )
        for place in coarse
    )  # fmt: skip
    legend = tuple((role.removeprefix("comm:"), role) for role in data.roles)
    end = max(data.until_ns, int(data.end_ns.max(initial=1)))
    return _drawn(_Boxes(data.rows, boxes, legend, time_text, float(end), data.frame_ns, data.label_characters))


def _drawn(data: _Boxes) -> str:
    rows = data.rows[:_MOST_ROWS]
    left = 16 + CHARACTER * min(_LABEL, max([data.label_characters, *map(len, rows)]))
    end = max([data.until, *(box.end for box in data.boxes)], default=0) or 1.0
    scale = (WIDTH - left - _RIGHT) / end
    bottom = _TOP + _ROW * len(rows)
    parts = [legend_row(data.legend, left)]
    for tick in ticks(end):
        parts.append(line(left + tick * scale, _TOP, left + tick * scale, bottom, LIGHT.grid))
        parts.append(text_at(left + tick * scale, bottom + 15, data.write(tick), LIGHT.muted, "middle"))
    for row, label in enumerate(rows):
        parts.append(text_at(left - 8, _TOP + _ROW * (row + 0.5) + 4, shortened(label, _LABEL), LIGHT.muted, "end"))
    shown = (box for box in data.boxes if box.row < len(rows) and box.end > box.start)
    parts += [_box(box, left, scale) for box in shown]
    if data.frame is not None:
        x, width = left + data.frame[0] * scale, (data.frame[1] - data.frame[0]) * scale
        size = f'width="{width:.1f}" height="{bottom - _TOP}"'
        parts.append(f'<rect x="{x:.1f}" y="{_TOP}" {size} fill="none" stroke="{LIGHT.ink}" stroke-width="2"/>')
    if len(data.rows) > len(rows):
        more = f"and {len(data.rows) - len(rows)} more rows"
        parts.append(text_at(left, bottom + _BOTTOM + 8, more, LIGHT.muted, "start"))
        bottom += 16
    return framed(parts, bottom + _BOTTOM)


def _box(box: _Box, left: float, scale: float) -> str:
    x, top = left + box.start * scale, _TOP + _ROW * box.row + 2
    width = max(_LEAST_PIXELS, (box.end - box.start) * scale)
    color = LIGHT.color(box.role)
    drawn = (
        f'<rect x="{x:.2f}" y="{top:.1f}" width="{width:.2f}" height="{_ROW - 4}" fill="{color}">'
        f"<title>{escape(box.tip)}</title></rect>"
    )
    if box.text and width > CHARACTER * len(box.text) + 2:
        drawn += text_at(x + width / 2, top + 11, box.text, ink_on(color), "middle")
    return drawn


# Points and lines on two axes


@as_svg.register(inputs.BandwidthPoints)
def _bandwidth(data: inputs.BandwidthPoints) -> str:
    tips = [
        f"{op} on {axis}: {number_text(rate)}B/s" for op, axis, rate in zip(data.op, data.axis, data.busbw, strict=True)
    ]
    roles = [f"comm:{axis}" for axis in data.axis]
    legend = tuple((axis, f"comm:{axis}") for axis in dict.fromkeys(data.axis))
    heads = ("bytes of a call", "bus bandwidth in B/s")
    return _points((data.bytes, data.busbw), tips, roles, legend, heads)


@as_svg.register(inputs.RooflinePoints)
def _roofline(data: inputs.RooflinePoints) -> str:
    tips = [f"{label}: {number_text(rate)}FLOP/s" for label, rate in zip(data.label, data.rate, strict=True)]
    legend = ((f"ops; {data.device}", "compute"),)
    heads = ("FLOP/byte", "FLOP/s")
    return _points((data.intensity, data.rate), tips, ["compute"] * len(tips), legend, heads)


def _points(
    places: tuple[np.ndarray, np.ndarray],
    tips: Sequence[str],
    roles: Sequence[str],
    legend: Iterable[tuple[str, str]],
    heads: tuple[str, str],
) -> str:
    across, up = (np.asarray(values, float) for values in places)
    is_drawable = np.isfinite(across) & np.isfinite(up) & (across > 0) & (up > 0)
    if not is_drawable.any():
        return ""
    left, height = 70.0, 220.0
    x0, x1 = _decades(across[is_drawable])
    y0, y1 = _decades(up[is_drawable])
    x_scale, y_scale = (WIDTH - left - _RIGHT) / (x1 - x0), height / (y1 - y0)  # pixels per decade
    parts = [legend_row(legend, left)]
    for power in range(x0, x1 + 1):
        x = left + (power - x0) * x_scale
        parts.append(line(x, _TOP, x, _TOP + height, LIGHT.grid))
        parts.append(text_at(x, _TOP + height + 15, number_text(10.0**power), LIGHT.muted, "middle"))
    for power in range(y0, y1 + 1):
        y = _TOP + height - (power - y0) * y_scale
        parts.append(line(left, y, WIDTH - _RIGHT, y, LIGHT.grid))
        parts.append(text_at(left - 6, y + 4, number_text(10.0**power), LIGHT.muted, "end"))
    for place in np.flatnonzero(is_drawable).tolist():
        x = left + (log10(across[place]) - x0) * x_scale
        y = _TOP + height - (log10(up[place]) - y0) * y_scale
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{LIGHT.color(roles[place])}" fill-opacity="0.75">'
            f"<title>{escape(tips[place])}</title></circle>"
        )
    parts.append(text_at(WIDTH - _RIGHT, _TOP + height + 30, f"{heads[1]} over {heads[0]}", LIGHT.muted, "end"))
    return framed(parts, _TOP + height + 36)


def _decades(values: np.ndarray) -> tuple[int, int]:
    """Return the powers of ten around the values, at least one decade apart."""
    first = floor(log10(values.min()))
    return first, max(ceil(log10(values.max())), first + 1)


@as_svg.register(inputs.MemoryLines)
def _memory(data: inputs.MemoryLines) -> str:
    end = max((int(curve.time_ns.max(initial=0)) for curve in data.lines), default=0) or 1
    most = max((int(curve.allocated_bytes.max(initial=0)) for curve in data.lines), default=0) or 1
    left, height = 80.0, 200.0
    x_scale, y_scale = (WIDTH - left - _RIGHT) / end, height / most
    colors = [LIGHT.color(role) for role in ("compute", "comm", "action:B", "comm:pp", "memcpy", "comm:dp")]
    under = _TOP + height + 15
    parts = [text_at(left + tick * x_scale, under, time_text(tick), LIGHT.muted, "middle") for tick in ticks(end)]
    for tick in ticks(most):
        y = _TOP + height - tick * y_scale
        parts += [
            line(left, y, WIDTH - _RIGHT, y, LIGHT.grid),
            text_at(left - 6, y + 4, f"{number_text(tick)}B", LIGHT.muted, "end"),
        ]
    for place, curve in enumerate(data.lines):
        color = colors[place % len(colors)]
        steps = _thinned(curve.time_ns, curve.allocated_bytes)
        points = " ".join(f"{left + time * x_scale:.1f},{_TOP + height - size * y_scale:.1f}" for time, size in steps)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{color}"><title>{escape(curve.label)}</title></polyline>'
        )
        parts.append(text_at(left + 90 * place, 18, curve.label, color, "start"))
    return framed(parts, _TOP + height + _BOTTOM)


_MOST_POINTS = 2000
"""Points per line."""


def _thinned(time: np.ndarray, size: np.ndarray) -> list[tuple[int, int]]:
    """Keep at most `_MOST_POINTS` points, the highest of each section, so that peaks stay."""
    if len(time) <= _MOST_POINTS:
        return list(zip(time.tolist(), size.tolist(), strict=True))
    cuts = np.linspace(0, len(time), _MOST_POINTS + 1).astype(int).tolist()
    peak_places = [first + int(np.argmax(size[first:last])) for first, last in pairwise(cuts)]
    return list(zip(time[peak_places].tolist(), size[peak_places].tolist(), strict=True))
