"""Plans: memory over speed of all plans that fit, and a figure over two degrees."""

from __future__ import annotations

import numpy as np
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, FactorRange, GlyphRenderer, LinearColorMapper
from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

from usp_prof.charts.frame import base, hover, legend, rate_ticks, size_axis, size_unit
from usp_prof.charts.inputs import PlanGrid, PlanPoints
from usp_prof.charts.theme import Theme, ink_on, mix


def plan_points(data: PlanPoints, theme: Theme) -> Figure:
    """Draw a mark per plan, connect those of the Pareto front, and label one of them."""
    plot = base(theme, 380)
    unit, unit_name = size_unit(float(data.memory_bytes.max(initial=0)))
    marks = _marks(plot, data, theme, unit)
    # A dashed line joins the plans of the front, from the least memory to the most.
    front = np.flatnonzero(data.front)[np.argsort(data.memory_bytes[data.front])]
    style = {"line_color": theme.color("reference"), "line_dash": "4 3"}
    plot.line(data.memory_bytes[front], data.tokens_per_second[front], **style)
    if len(data.label):
        _name_one(plot, data, theme)
    size_axis(plot, theme, float(data.memory_bytes.max(initial=0)), data.room_bytes, theme.muted)
    plot.y_range.start, plot.y_range.end = 0, 1.12 * max(data.tokens_per_second.max(initial=0), 1e-9)
    plot.xaxis.axis_label = "memory of the fullest rank"
    plot.yaxis.axis_label = "predicted speed"
    plot.yaxis.formatter = rate_ticks("tokens/s")
    tips = [
        ("", "@label"),
        ("speed", "@speed{0,0} tokens/s"),
        ("MFU", "@mfu{0.0%}"),
        ("memory", f"@size{{0,0.0}} {unit_name}"),
    ]
    hover(plot, tips, marks)
    legend(plot, theme)
    return plot


def _marks(plot: Figure, data: PlanPoints, theme: Theme, unit: float) -> list[GlyphRenderer]:
    """Draw plans that fit, the front, and the recorded plan; `unit` is the bytes per unit of sizes in tooltips."""
    ran = np.arange(len(data.label)) == data.recorded
    looks = (
        (~data.front & ~ran, theme.color("measured"), 6, "circle", "fits"),
        (data.front & ~ran, theme.color("reference"), 10, "circle", "best at its memory"),
        (ran, theme.ink, 14, "diamond", "recorded configuration, predicted"),
    )  # fmt: skip
    marks = []
    for chosen, ink, size, marker, label in looks:
        if not chosen.any():
            continue
        source = ColumnDataSource(
            {
                "speed": data.tokens_per_second[chosen],
                "memory": data.memory_bytes[chosen],
                "size": data.memory_bytes[chosen] / unit,
                "mfu": data.mfu[chosen],
                "label": [text for text, keep in zip(data.label, chosen.tolist(), strict=True) if keep],
            }
        )
        drawn = plot.scatter(
            "memory", "speed", source=source, size=size, marker=marker, fill_color=ink,
            fill_alpha=1.0 if chosen is ran else 0.6, line_color=theme.background if chosen is ran else theme.muted,
            line_width=0.5, legend_label=label,
        )  # fmt: skip
        marks.append(drawn)
    return marks


def _name_one(plot: Figure, data: PlanPoints, theme: Theme) -> None:
    """Draw the label of one plan above its mark, towards the middle of the plot, and a ring around the mark."""
    memory, speed = data.memory_bytes[data.labeled], data.tokens_per_second[data.labeled]
    is_right = memory > data.memory_bytes.max() / 2
    plot.text(
        [memory], [speed], [data.label[data.labeled]],
        y_offset=-9, text_align="right" if is_right else "left", text_baseline="bottom",
        text_color=theme.ink, text_font=value(theme.font), text_font_size="12px",
        background_fill_color=theme.background, background_fill_alpha=0.85, padding=2,
    )  # fmt: skip
    plot.scatter([memory], [speed], size=12, fill_color=None, line_color=theme.ink, line_width=2)


_SHADES = 48


def plan_grid(data: PlanGrid, theme: Theme) -> Figure:
    """Draw the map: stronger colors for larger values; empty if nothing fits."""
    has_value = np.isfinite(data.values)
    low, high = (
        (float(data.values[has_value].min()), float(data.values[has_value].max())) if has_value.any() else (0.0, 1.0)
    )
    shades = [mix(theme.panel, theme.color("measured"), 0.08 + 0.8 * i / (_SHADES - 1)) for i in range(_SHADES)]
    mapper = LinearColorMapper(palette=shades, low=low, high=high if high > low else low + 1, nan_color=theme.panel)
    columns, rows = [str(degree) for degree in data.columns], [str(degree) for degree in data.rows]
    row, col = np.meshgrid(np.arange(len(rows)), np.arange(len(columns)), indexing="ij")
    place = np.nan_to_num((data.values - low) / (high - low or 1.0)).clip(0, 1) * (_SHADES - 1)
    grounds = [shades[int(shade)] for shade in place.ravel()]
    source = ColumnDataSource(
        {
            "x": [columns[i] for i in col.ravel()],
            "y": [rows[i] for i in row.ravel()],
            "value": data.values.ravel(),
            "text": list(data.texts),
            "label": list(data.labels),
            "ink": [ink_on(ground) for ground in grounds],
        }
    )
    plot = base(
        theme, int(min(900, 110 + 44 * len(rows))), x_range=FactorRange(*columns), y_range=FactorRange(*reversed(rows)),
        tools="reset",
    )  # fmt: skip
    plot.rect("x", "y", 0.97, 0.95, source=source, fill_color={"field": "value", "transform": mapper}, line_color=None)
    plot.text(
        "x", "y", text="text", source=source, text_align="center", text_baseline="middle", text_color="ink",
        text_font=value(theme.font), text_font_size="12px",
    )  # fmt: skip
    plot.grid.grid_line_color = None
    plot.xaxis.axis_label, plot.yaxis.axis_label = data.across, data.down
    hover(plot, [(data.quantity, "@text"), ("", "@label")], [plot.renderers[0]])
    return plot
