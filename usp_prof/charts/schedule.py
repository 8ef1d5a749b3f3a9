"""Pipeline schedule: actions of every stage over time, with their micro-batch numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, CustomJS, Range1d

from usp_prof.charts.frame import base, hover, legend, time_ticks
from usp_prof.charts.theme import ink_on

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

    from usp_prof.charts.inputs import PipelineSchedule
    from usp_prof.charts.theme import Theme

KINDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
_LABEL_PIXELS = 16

# Bokeh does not clip text to its box, so numbers are shown only where the box is wide enough at this zoom.
_SHOW_LABELS = """
const per_pixel = (range.end - range.start) / Math.max(1, plot.inner_width || 1000);
const width = source.data.width, shown = source.data.shown, text = source.data.text;
for (let i = 0; i < width.length; i++) shown[i] = width[i] / per_pixel > pixels ? text[i] : '';
source.change.emit();
"""


def figure(data: PipelineSchedule, theme: Theme) -> Figure:
    """Draw the schedule, a row a stage (or rank), a colour a kind."""
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
    for kind in [*KINDS, *sorted(set(data.kind) - set(KINDS))]:
        chosen = kinds == kind
        if chosen.any():
            _draw_kind(plot, data, theme, kind, chosen)
    plot.yaxis.ticker = list(range(rows))
    plot.yaxis.major_label_overrides = dict(enumerate(data.rows))
    plot.xaxis.formatter = time_ticks()
    plot.ygrid.grid_line_color = None
    legend(plot, theme)
    return plot


def _draw_kind(plot: Figure, data: PipelineSchedule, theme: Theme, kind: str, chosen: np.ndarray) -> None:
    start, end = data.start_ns[chosen], data.end_ns[chosen]
    text = [str(number) if number >= 0 else "" for number in data.micro_batch[chosen]]
    fits = (end - start) / max(1.0, float(plot.x_range.end)) * 1000 > _LABEL_PIXELS
    source = ColumnDataSource(
        {
            "left": start.astype(float),
            "right": end.astype(float),
            "middle": (start + end) / 2,
            "bottom": data.row[chosen] + 0.4,
            "top": data.row[chosen] - 0.4,
            "row": data.row[chosen].astype(float),
            "width": (end - start).astype(float),
            "ms": (end - start) / 1e6,
            "stage": data.stage[chosen],
            "micro_batch": data.micro_batch[chosen],
            "text": text,
            "shown": [label if fit else "" for label, fit in zip(text, fits, strict=True)],
        }
    )
    boxes = plot.quad(
        "left",
        "right",
        "top",
        "bottom",
        source=source,
        fill_color=theme.color(f"action:{kind}"),
        line_color=theme.background,
        line_width=0.7,
        legend_label=KINDS.get(kind, kind),
    )
    plot.text(
        "middle",
        "row",
        "shown",
        source=source,
        text_align="center",
        text_baseline="middle",
        text_color=ink_on(theme.color(f"action:{kind}")),
        text_font_size="11px",
        text_font=value(theme.font),
    )
    hover(
        plot,
        [("", f"{KINDS.get(kind, kind)} of micro-batch @micro_batch, stage @stage"), ("time", "@ms{0,0.000} ms")],
        [boxes],
    )
    relabel = CustomJS(
        args={"source": source, "range": plot.x_range, "plot": plot, "pixels": _LABEL_PIXELS}, code=_SHOW_LABELS
    )
    plot.x_range.js_on_change("end", relabel)
    plot.x_range.js_on_change("start", relabel)
