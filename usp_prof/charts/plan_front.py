"""Plans as points: memory over speed of all that fit, and the front that none beats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from bokeh.models import ColumnDataSource

from usp_prof.charts.frame import base, hover, legend, rate_ticks, size_axis

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

    from usp_prof.charts.inputs import PlanPoints
    from usp_prof.charts.theme import Theme


def figure(data: PlanPoints, theme: Theme) -> Figure:
    """Draw a mark for each plan and join those of the front."""
    plot = base(theme, 380)
    colour, front = theme.color("measured"), theme.color("reference")
    unit, name = (2**30, "GiB") if data.memory_bytes.max(initial=0) >= 2**30 else (2**20, "MiB")
    for chosen, ink, size, label in ((~data.front, colour, 6, "fits"), (data.front, front, 10, "best at its memory")):
        source = ColumnDataSource(
            {
                "speed": data.tokens_per_second[chosen],
                "memory": data.memory_bytes[chosen],
                "size": data.memory_bytes[chosen] / unit,
                "mfu": data.mfu[chosen],
                "label": [text for text, keep in zip(data.label, chosen.tolist(), strict=True) if keep],
            }
        )
        plot.scatter(
            "memory", "speed", source=source, size=size, fill_color=ink, fill_alpha=0.6, line_color=theme.muted,
            line_width=0.5, legend_label=label,
        )  # fmt: skip
    order = np.argsort(data.memory_bytes[data.front])
    plot.line(
        data.memory_bytes[data.front][order],
        data.tokens_per_second[data.front][order],
        line_color=front,
        line_dash="4 3",
    )
    size_axis(plot, float(data.memory_bytes.max(initial=0)), data.room_bytes, theme.muted)
    plot.y_range.start = 0
    plot.xaxis.axis_label = "memory of the fullest rank"
    plot.yaxis.axis_label = "predicted speed"
    plot.yaxis.formatter = rate_ticks("tokens/s")
    tips = [
        ("", "@label"),
        ("speed", "@speed{0,0} tokens/s"),
        ("MFU", "@mfu{0.0 %}"),
        ("memory", f"@size{{0,0.0}} {name}"),
    ]
    hover(plot, tips)
    legend(plot, theme)
    return plot
