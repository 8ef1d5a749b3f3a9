"""Waterfall: from one step to another, over what each change adds or takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, FactorRange, LabelSet

from usp_prof.charts.frame import base, hover, time_ticks

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

    from usp_prof.charts.inputs import Waterfall
    from usp_prof.charts.theme import Theme

_ROOM = 1.12
"""Room to the right of the longest bar, for its label."""


def figure(data: Waterfall, theme: Theme) -> Figure:
    """Draw one bar for each end and each change; what takes longer is warm, what is saved is cool."""
    delta = np.asarray(data.delta_ns, float)
    reached = data.first_ns + np.concatenate([[0.0], np.cumsum(delta)])
    last = float(reached[-1])
    low = np.concatenate([[0.0], np.minimum(reached[:-1], reached[1:]), [0.0]])
    high = np.concatenate([[data.first_ns], np.maximum(reached[:-1], reached[1:]), [last]])
    change = np.concatenate([[data.first_ns], delta, [last]])
    ends = (theme.muted,)
    colors = (*ends, *(theme.slow if each > 0 else theme.fast for each in delta), *ends)
    labels = _distinct([data.first, *data.changes, data.last])
    source = ColumnDataSource(
        {
            "label": labels,
            "low": low,
            "high": high,
            "ms": change / 1e6,
            "color": list(colors),
            "text": [_text(each, signed=0 < place <= len(delta)) for place, each in enumerate(change.tolist())],
        }
    )
    plot = base(theme, 70 + 28 * len(labels), y_range=FactorRange(*reversed(labels)), tools="xbox_zoom,reset")
    plot.hbar("label", left="low", right="high", height=0.66, source=source, fill_color="color", line_color=None)
    plot.add_layout(
        LabelSet(
            x="high",
            y="label",
            text="text",
            source=source,
            x_offset=5,
            text_baseline="middle",
            text_font_size="11px",
            text_color=theme.ink,
            text_font=value(theme.font),
        )
    )
    plot.x_range.start, plot.x_range.end = 0, float(high.max(initial=1.0)) * _ROOM
    plot.xaxis.formatter = time_ticks()
    plot.ygrid.grid_line_color = None
    hover(plot, [("", "@label"), ("", "@ms{+0,0.000} ms")])
    return plot


def _text(ns: float, *, signed: bool) -> str:
    scale, unit = next(((s, u) for s, u in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")) if abs(ns) >= s), (1.0, "ns"))
    return f"{ns / scale:+.3g} {unit}" if signed else f"{ns / scale:.3g} {unit}"


def _distinct(labels: list[str]) -> list[str]:
    """Tell bars of the same name apart, which an axis of names cannot."""
    return [label + " " * labels[:place].count(label) for place, label in enumerate(labels)]
