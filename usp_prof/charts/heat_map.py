"""Heat map of ranks and steps: each rank's deviation from the median of its step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from bokeh.models import ColorBar, ColumnDataSource, LinearColorMapper, NumeralTickFormatter

from usp_prof.charts.frame import base, hover

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name
    from numpy.typing import NDArray

    from usp_prof.charts.inputs import HeatMap
    from usp_prof.charts.theme import Theme

_FLOOR = 0.02
"""Deviations of less than 2 % keep the full scale, so that noise does not look like a fault."""

_COARSE = 0.1
_MOST_ROWS = 64
"""More ranks than this share rows."""


def figure(data: HeatMap, theme: Theme) -> Figure:
    """Draw the map: ground colour at the median, warm where a rank takes longer, cool where it takes less."""
    data, deviation, each = folded(data)
    known = np.isfinite(deviation)
    limit = max(_FLOOR, float(np.quantile(np.abs(deviation[known]), 0.99)) if known.any() else _FLOOR)
    mapper = LinearColorMapper(palette=diverging(theme), low=-limit, high=limit, nan_color=theme.panel)
    row, col = np.meshgrid(np.arange(len(data.ranks)), np.arange(len(data.steps)), indexing="ij")
    source = ColumnDataSource(
        {
            "x": col.ravel().astype(float),
            "y": row.ravel().astype(float),
            "deviation": deviation.ravel(),
            "ms": (data.values_ns / 1e6).ravel(),
            "rank": each.ravel(),
            "step": np.asarray(data.steps)[col.ravel()],
        }
    )
    height = int(min(900, 110 + 18 * max(4, len(data.ranks))))
    plot = base(theme, height, tools="pan,box_zoom,reset")
    plot.rect("x", "y", 1, 1, source=source, fill_color={"field": "deviation", "transform": mapper}, line_color=None)
    plot.x_range.range_padding = plot.y_range.range_padding = 0
    plot.y_range.flipped = True
    plot.grid.grid_line_color = None
    label_ranks(plot.xaxis, data.steps, "step", 24)
    label_ranks(
        plot.yaxis, data.ranks, "rank" if (each == each[:, :1]).all() else "from rank, the strangest of each", 48
    )
    color_bar(plot, theme, mapper, f"{data.what} vs median")
    hover(
        plot,
        [("rank", "@rank"), ("step", "@step"), (data.what, "@ms{0,0.000} ms"), ("deviation", "@deviation{+0.0 %}")],
    )
    return plot


def folded(data: HeatMap, most: int = _MOST_ROWS) -> tuple[HeatMap, NDArray[np.float64], NDArray[np.int64]]:
    """Give the map, its deviations and whose each is; of more ranks than fit, neighbours share a row.

    A shared row shows at each step the rank that is farthest from the median, so that no outlier is lost.
    """
    deviation = deviations(data.values_ns)
    ranks = np.asarray(data.ranks)
    count = -(-len(ranks) // most)
    if count <= 1:
        return data, deviation, np.broadcast_to(ranks[:, None], deviation.shape)
    heads = np.arange(0, len(ranks), count)
    pick = np.empty((len(heads), deviation.shape[1]), np.int64)
    for row, head in enumerate(heads.tolist()):
        pick[row] = head + np.argmax(np.nan_to_num(np.abs(deviation[head : head + count])), axis=0)
    at = np.arange(deviation.shape[1])
    kept = replace(data, ranks=tuple(ranks[heads].tolist()), values_ns=data.values_ns[pick, at])
    return kept, deviation[pick, at], ranks[pick]


def color_bar(plot: Figure, theme: Theme, mapper: LinearColorMapper, title: str, form: str = "") -> None:
    """Set the scale of a map's colours beside it; without a `form` in percents, whole ones where it is wide."""
    form = form or ("+0 %" if float(mapper.high or 0) >= _COARSE else "+0.0 %")
    bar = ColorBar(
        color_mapper=mapper,
        width=10,
        title=title,
        formatter=NumeralTickFormatter(format=form),
        background_fill_color=None,
        title_text_color=theme.muted,
        title_text_font=theme.font,
        title_text_font_style="normal",
        title_text_font_size="11px",
        major_label_text_color=theme.muted,
        major_label_text_font=theme.font,
        major_tick_line_color=None,
    )
    plot.add_layout(bar, "right")


def deviations(values_ns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give each value's deviation from the median over ranks of its step, as a fraction; NaN where unknown."""
    known = np.isfinite(values_ns).any(axis=0)
    median = np.full(values_ns.shape[1], np.nan)
    median[known] = np.nanmedian(values_ns[:, known], axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(median > 0, values_ns / median - 1, np.nan)


def label_ranks(axis: object, names: tuple[int, ...], title: str, most: int) -> None:
    """Write ranks or steps along an axis, at most so many of them, under a title."""
    every = max(1, -(-len(names) // most))
    ticks = list(range(0, len(names), every))
    axis[0].ticker = ticks  # type: ignore[index] # Bokeh's list of axes
    axis[0].major_label_overrides = {tick: str(names[tick]) for tick in ticks}  # type: ignore[index]
    axis[0].axis_label = title  # type: ignore[index]


def diverging(theme: Theme, half: int = 32) -> list[str]:
    """Mix from the fast colour over the ground to the slow one; the middle is the ground, so that nothing glares."""
    cool = [mix(theme.panel, theme.fast, i / half) for i in range(half, 0, -1)]
    warm = [mix(theme.panel, theme.slow, i / half) for i in range(1, half + 1)]
    return [*cool, theme.panel, *warm]


def mix(first: str, second: str, share: float) -> str:
    """Mix two colours; `share` of the second."""
    pairs = zip(_channels(first), _channels(second), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in pairs)


def _channels(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)
