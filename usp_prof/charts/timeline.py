"""Timelines: what every rank did when, and the actions of a pipeline.

A timeline shows more detail when zoomed in. The levels of detail are part of the page, and a few lines of JavaScript
select the finest one whose visible part is small enough to draw.
"""

from __future__ import annotations

import numpy as np
from bokeh.core.properties import value
from bokeh.models import BoxAnnotation, ColumnDataSource, CustomJS, FactorRange, Range1d
from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

from usp_prof.charts.frame import base, hover, legend, time_ticks
from usp_prof.charts.inputs import ACTION_NAMES, PipelineSchedule, TimelineSlices
from usp_prof.charts.theme import Theme, ink_on
from usp_prof.columns.arrays import Ints

VISIBLE = 4000
"""Slices drawn at once: this number can be redrawn within one animation frame."""

_ROW_HEIGHT = 15

_PICK_LEVEL = """
const d = all.data, x0 = range.start, x1 = range.end;
function first(from, to, value) {            // first slice of a level that starts at or after value
  while (from < to) { const mid = (from + to) >> 1; if (d.left[mid] < value) from = mid + 1; else to = mid; }
  return from;
}
let chosen = null;
for (let level = starts.length - 2; level >= 0 && chosen === null; level--) {
  const from = starts[level], to = starts[level + 1];
  const lo = first(from, to, x0 - longest[level]), hi = first(from, to, x1);
  if (hi - lo <= visible || level === 0) chosen = [lo, hi];
}
const [lo, hi] = chosen, out = {};
for (const key of ['left', 'right', 'row']) out[key] = d[key].slice(lo, hi);
out.y = []; out.color = []; out.name = []; out.what = []; out.where = [];
for (let i = lo; i < hi; i++) {
  out.y.push(rows[d.row[i]]); out.color.push(colors[d.role[i]]);
  out.name.push(names[d.name[i]]); out.what.push(roles[d.role[i]]); out.where.push(rows[d.row[i]]);
}
out.dur = Array.from(out.left, (left, i) => (out.right[i] - left) / 1e3);
shown.data = out;
"""


def timeline(data: TimelineSlices, theme: Theme) -> Figure:
    """Draw the timeline; the wheel zooms, drag pans, a box zooms in."""
    colors = [theme.color(role) for role in data.roles]
    begin = data.level_start[0]
    coarse = slice(begin, data.level_start[1])
    end = float(max(data.until_ns, data.end_ns.max(initial=1)))
    plot = base(
        theme,
        int(min(1400, 100 + _ROW_HEIGHT * max(4, len(data.rows)))),
        tools="xpan,xwheel_zoom,xbox_zoom,reset",
        active_scroll="xwheel_zoom",
        x_range=Range1d(0, end, bounds=(0, end), min_interval=100),
        y_range=FactorRange(*reversed(data.rows)),
    )
    shown = ColumnDataSource(_shown(data, colors, coarse))
    slices = plot.hbar(
        y="y",
        left="left",
        right="right",
        height=0.86,
        source=shown,
        fill_color="color",
        line_color="color",
        line_width=0.5,
    )
    _refine_on_zoom(plot, shown, data, colors)
    for role, color in zip(data.roles, colors, strict=True):  # colors of slices are data: the legend has its own marks
        plot.hbar([data.rows[0]], left=[np.nan], right=[np.nan], color=color, legend_label=role.removeprefix("comm:"))
    if data.frame_ns is not None:
        left, right = data.frame_ns
        frame = BoxAnnotation(left=left, right=right, fill_color=None, line_color=theme.ink, line_width=2)
        plot.add_layout(frame)
    legend(plot, theme)
    for box in plot.legend:
        box.click_policy = "none"
    plot.xaxis.formatter = time_ticks()
    plot.ygrid.grid_line_color = None
    plot.yaxis.major_label_text_font_size = "10px"
    hover(plot, [("", "@where · @what"), ("", "@name"), ("time", f"@dur{{0,0.000}} {chr(0x3BC)}s")], [slices])
    return plot


def _refine_on_zoom(plot: Figure, shown: ColumnDataSource, data: TimelineSlices, colors: list[str]) -> None:
    """Select the level of detail by the visible range."""
    everything = ColumnDataSource(
        {
            "left": data.start_ns.astype(float),
            "right": data.end_ns.astype(float),
            "row": data.row.astype(np.int32),
            "role": data.role.astype(np.int32),
            "name": data.name.astype(np.int32),
        }
    )
    pick = CustomJS(
        args={
            "all": everything,
            "shown": shown,
            "range": plot.x_range,
            "starts": list(data.level_start),
            "longest": _longest(data),
            "rows": list(data.rows),
            "roles": list(data.roles),
            "names": list(data.names),
            "colors": colors,
            "visible": VISIBLE,
        },
        code=_PICK_LEVEL,
    )
    for edge in ("start", "end"):
        plot.x_range.js_on_change(edge, pick)


def _shown(data: TimelineSlices, colors: list[str], rows: slice) -> dict[str, object]:
    row, role = data.row[rows], data.role[rows]
    return {
        "left": data.start_ns[rows].astype(float),
        "right": data.end_ns[rows].astype(float),
        "row": row.astype(np.int32),
        "y": [data.rows[i] for i in row],
        "where": [data.rows[i] for i in row],
        "what": [data.roles[i] for i in role],
        "color": [colors[i] for i in role],
        "name": [data.names[i] for i in data.name[rows]],
        "dur": (data.end_ns[rows] - data.start_ns[rows]) / 1e3,
    }


def _longest(data: TimelineSlices) -> list[float]:
    """Return each level's longest slice: how far left of the window a visible slice can start."""
    duration: Ints = data.end_ns - data.start_ns
    bounds = zip(data.level_start, data.level_start[1:], strict=False)
    return [float(duration[lo:hi].max(initial=0)) for lo, hi in bounds]


_LABEL_PIXELS = 16
_CHARACTER_PIXELS, _AXIS_PIXELS = 8, 16
"""Maximum width of a label's character, and the gap between label and plot."""

# Bokeh does not clip text to its box, so numbers are shown only where the box is wide enough at this zoom.
_SHOW_LABELS = """
const per_pixel = (range.end - range.start) / Math.max(1, plot.inner_width || 1000);
const width = source.data.width, shown = source.data.shown, text = source.data.text;
for (let i = 0; i < width.length; i++) shown[i] = width[i] / per_pixel > pixels ? text[i] : '';
source.change.emit();
"""


def schedule(data: PipelineSchedule, theme: Theme) -> Figure:
    """Draw the schedule, one row per stage (or rank), one color per kind."""
    rows = len(data.rows)
    end = float(max(data.until_ns, data.end_ns.max(initial=1)))
    plot = base(
        theme,
        100 + 34 * max(1, rows),
        tools="xpan,xwheel_zoom,xbox_zoom,reset",
        x_range=Range1d(0, end, bounds=(0, end)),
        y_range=Range1d(rows - 0.5, -0.5),
    )
    kinds = np.asarray(data.kind, dtype=object)
    for kind in [*ACTION_NAMES, *sorted(set(data.kind) - set(ACTION_NAMES))]:
        chosen = kinds == kind
        if chosen.any():
            _draw_kind(plot, data, theme, kind, chosen)
    plot.yaxis.ticker = list(range(rows))
    plot.yaxis.major_label_overrides = dict(enumerate(data.rows))
    if data.label_characters:
        plot.min_border_left = _AXIS_PIXELS + _CHARACTER_PIXELS * data.label_characters
    plot.xaxis.formatter = time_ticks()
    plot.ygrid.grid_line_color = None
    legend(plot, theme)
    return plot


def _draw_kind(plot: Figure, data: PipelineSchedule, theme: Theme, kind: str, chosen: np.ndarray) -> None:
    """Draw the boxes of one kind of action, and their micro-batches if the box is wide enough."""
    name, fill = ACTION_NAMES.get(kind, kind), theme.color(f"action:{kind}")
    source = _boxes(data, chosen, float(plot.x_range.end))
    boxes = plot.quad(
        "left", "right", "top", "bottom", source=source,
        fill_color=fill, line_color=theme.background, line_width=0.7, legend_label=name,
    )  # fmt: skip
    plot.text(
        "middle", "row", "shown", source=source, text_align="center", text_baseline="middle",
        text_color=ink_on(fill), text_font_size="11px", text_font=value(theme.font),
    )  # fmt: skip
    tips = [("", f"{name} of micro-batch @micro_batch, stage @stage"), ("time", "@ms{0,0.000} ms")]
    hover(plot, tips, [boxes])
    relabel = CustomJS(
        args={"source": source, "range": plot.x_range, "plot": plot, "pixels": _LABEL_PIXELS}, code=_SHOW_LABELS
    )
    plot.x_range.js_on_change("end", relabel)
    plot.x_range.js_on_change("start", relabel)


def _boxes(data: PipelineSchedule, chosen: np.ndarray, until_ns: float) -> ColumnDataSource:
    """Return the boxes of the selected actions; `shown` is empty if the label does not fit at full range."""
    start, end = data.start_ns[chosen], data.end_ns[chosen]
    row, micro_batch = data.row[chosen], data.micro_batch[chosen]
    labels = [str(number) if number >= 0 else "" for number in micro_batch]
    fits = (end - start) / max(1.0, until_ns) * 1000 > _LABEL_PIXELS  # as if the plot were 1000 pixels wide
    return ColumnDataSource(
        {
            "left": start.astype(float),
            "right": end.astype(float),
            "middle": (start + end) / 2,
            "bottom": row + 0.4,
            "top": row - 0.4,
            "row": row.astype(float),
            "width": (end - start).astype(float),
            "ms": (end - start) / 1e6,
            "stage": data.stage[chosen],
            "micro_batch": micro_batch,
            "text": labels,
            "shown": [label if fit else "" for label, fit in zip(labels, fits, strict=True)],
        }
    )
