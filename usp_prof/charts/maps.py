"""Maps: ranks over steps, ranks at their places on the mesh, bytes from rank to rank."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from bokeh.core.properties import value
from bokeh.models import ColorBar, ColumnDataSource, LinearColorMapper, NumeralTickFormatter

from usp_prof.charts.frame import base, hover, size_ticker, size_ticks
from usp_prof.charts.inputs import Ground
from usp_prof.charts.theme import ink_on, mix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bokeh.models import Axis
    from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

    from usp_prof.charts.inputs import HeatMap, PeerMatrix, RankGrid
    from usp_prof.charts.theme import Theme
    from usp_prof.columns.arrays import Floats, Ints


_FLOOR = 0.02
"""Deviations of less than 2% keep the full scale, so that noise does not look like a fault."""

_COARSE = 0.1
_MOST_ROWS = 64
"""More ranks than this share rows."""


def heat_map(data: HeatMap, theme: Theme) -> Figure:
    """Draw the map: ground colour at the median, warm where a rank takes longer, cool where it takes less."""
    data, deviation, shown_rank = folded(data)
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
            "rank": shown_rank.ravel(),
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
    title = "rank" if (shown_rank == shown_rank[:, :1]).all() else "from rank; each row shows the outlier of its ranks"
    label_ranks(plot.yaxis, data.ranks, title, 48)
    color_bar(plot, theme, mapper, f"{data.what} vs median")
    hover(
        plot,
        [("rank", "@rank"), ("step", "@step"), (data.what, "@ms{0,0.000} ms"), ("deviation", "@deviation{+0.0%}")],
    )
    return plot


def folded(data: HeatMap, most: int = _MOST_ROWS) -> tuple[HeatMap, Floats, Ints]:
    """Give the map, its deviations and whose each is; of more ranks than fit, neighbours share a row.

    A shared row shows at each step the rank that is farthest from the median, so that no outlier is lost.
    """
    deviation = deviations(data.values_ns)
    ranks = np.asarray(data.ranks)
    count = -(-len(ranks) // most)
    if count <= 1:
        return data, deviation, np.broadcast_to(ranks[:, None], deviation.shape)
    heads = np.arange(0, len(ranks), count)  # the first rank of each row
    # The rank that each row shows at each step.
    pick = np.empty((len(heads), deviation.shape[1]), np.int64)
    for row, head in enumerate(heads.tolist()):
        pick[row] = head + np.argmax(np.nan_to_num(np.abs(deviation[head : head + count])), axis=0)
    at = np.arange(deviation.shape[1])
    kept = replace(data, ranks=tuple(ranks[heads].tolist()), values_ns=data.values_ns[pick, at])
    return kept, deviation[pick, at], ranks[pick]


def color_bar(plot: Figure, theme: Theme, mapper: LinearColorMapper, title: str, form: str = "") -> None:
    """Set the scale of a map's colours beside it; without a `form` in percents, whole ones where it is wide."""
    form = form or ("+0%" if float(mapper.high or 0) >= _COARSE else "+0.0%")
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


def deviations(values_ns: Floats) -> Floats:
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


_SHADES = 32
"""Shades on either side of the ground colour."""


def diverging(theme: Theme) -> list[str]:
    """Mix from the fast colour over the ground to the slow one; the middle is the ground, so that nothing glares."""
    cool = [mix(theme.panel, theme.fast, i / _SHADES) for i in range(_SHADES, 0, -1)]
    warm = [mix(theme.panel, theme.slow, i / _SHADES) for i in range(1, _SHADES + 1)]
    return [*cool, theme.panel, *warm]


_LETTERS = 140
"""Letters that fit beneath the grid on a laptop."""
_NUMBERED = 40
"""Beyond so many columns numbers do not fit into their cells."""


_ROWS_NAMED = 40


def rank_grid(data: RankGrid, theme: Theme) -> Figure:
    """Draw the grid. Against the median: ground colour there, warm where a rank takes longer, cool where less.

    Against nothing: ground colour at zero, warmer with the amount.
    """
    row, column = np.nonzero(data.rank >= 0)
    known = data.values_ns[row, column]
    deviation = _from_median(known)
    if data.ground is Ground.NOTHING:
        color, mapper = known / 1e6, _warmer(known / 1e6, theme)
    else:
        color, mapper = deviation, _either_side(deviation, theme)
    source = ColumnDataSource(
        {
            "x": column.astype(float),
            "y": row.astype(float),
            "rank": data.rank[row, column],
            "name": [str(rank) for rank in data.rank[row, column].tolist()],
            "ms": known / 1e6,
            "deviation": deviation,
            "color": color,
            "ink": _inks(color, mapper, theme),
            "place": [f"{data.rows[r]} {data.columns[c]}".strip() for r, c in zip(row, column, strict=True)],
        }
    )
    plot = base(theme, int(min(900, 110 + 26 * max(2, len(data.rows)))), tools="pan,box_zoom,reset")
    plot.rect(
        "x", "y", 0.94, 0.9, source=source, fill_color={"field": "color", "transform": mapper},
        line_color=theme.grid,
    )  # fmt: skip
    if len(data.columns) <= _NUMBERED:
        plot.text(
            "x", "y", "name", source=source, text_align="center", text_baseline="middle", text_font_size="10px",
            text_color="ink", text_font=value(theme.font),
        )  # fmt: skip
    plot.x_range.start, plot.x_range.end = -0.5, len(data.columns) - 0.5
    plot.y_range.start, plot.y_range.end = len(data.rows) - 0.5, -0.5
    plot.grid.grid_line_color = None
    _name_axis(plot.xaxis[0], data.columns, _beside(data.columns))
    _name_axis(plot.yaxis[0], data.rows, _ROWS_NAMED)
    tips = [("rank", "@rank"), ("", "@place"), (data.what, "@ms{0,0.000} ms")]
    if data.ground is Ground.MEDIAN:
        color_bar(plot, theme, mapper, f"{data.what} vs median")
        tips.append(("deviation", "@deviation{+0.0%}"))
    else:
        color_bar(plot, theme, mapper, f"{data.what}, ms", "0,0.[0]")
    hover(plot, tips)
    return plot


def _from_median(values: Floats) -> Floats:
    """Give each value's deviation from the median of all, as a fraction; NaN where it is not known."""
    median = float(np.nanmedian(values)) if np.isfinite(values).any() else float("nan")
    return values / median - 1 if median > 0 else np.full(len(values), np.nan)


def _warmer(amounts: Floats, theme: Theme) -> LinearColorMapper:
    """Colour amounts from the ground, at zero, to the warm end, at the largest."""
    palette = diverging(theme)
    high = float(np.nanmax(amounts, initial=0.0)) or 1.0
    return LinearColorMapper(palette=palette[len(palette) // 2 :], low=0.0, high=high, nan_color=theme.panel)


def _either_side(deviation: Floats, theme: Theme) -> LinearColorMapper:
    """Colour deviations to both sides of the ground, as far as the largest reaches."""
    reach = max(_FLOOR, float(np.abs(deviation[np.isfinite(deviation)]).max(initial=0.0)))
    return LinearColorMapper(palette=diverging(theme), low=-reach, high=reach, nan_color=theme.panel)


def _inks(values: Floats, mapper: LinearColorMapper, theme: Theme) -> list[str]:
    """Give the text colour that reads well on each value's colour."""
    # Place of each value in the palette; below 0 where it is not known.
    share = (values - mapper.low) / (mapper.high - mapper.low)
    place = np.nan_to_num(share, nan=-1.0) * (len(mapper.palette) - 1)
    return [ink_on(theme.panel if at < 0 else mapper.palette[int(at)]) for at in place]


def _name_axis(axis: Axis, names: Sequence[str], most: int) -> None:
    """Write names along an axis, every so many where more would lie on one another."""
    axis.ticker = list(range(0, len(names), max(1, -(-len(names) // most))))
    axis.major_label_overrides = dict(enumerate(names))


def _beside(names: Sequence[str]) -> int:
    """Say how many of the names fit beside each other."""
    return max(4, _LETTERS // (max((len(name) for name in names), default=0) + 2))


_SHADES = 64


def peer_matrix(data: PeerMatrix, theme: Theme) -> Figure:
    """Draw the map, sources downward and targets to the right; nothing sent is the ground."""
    source, target = np.nonzero(data.bytes > 0)
    most = float(data.bytes.max(initial=1.0)) or 1.0
    palette = [mix(theme.panel, theme.accent, 0.15 + 0.85 * i / (_SHADES - 1)) for i in range(_SHADES)]
    mapper = LinearColorMapper(palette=palette, low=0, high=most)
    columns = ColumnDataSource(
        {
            "x": target.astype(float),
            "y": source.astype(float),
            "bytes": data.bytes[source, target],
            "mib": data.bytes[source, target] / 2**20,
            "transfers": [str(n) if n >= 0 else "not known" for n in data.transfers[source, target].tolist()],
            "source": np.asarray(data.ranks)[source],
            "target": np.asarray(data.ranks)[target],
        }
    )
    side = int(min(720, 130 + max(14, 26 - len(data.ranks) // 4) * max(4, len(data.ranks))))
    plot = base(theme, side, tools="pan,box_zoom,reset", sizing_mode="fixed", width=side + 130)
    plot.rect("x", "y", 0.96, 0.96, source=columns, fill_color={"field": "bytes", "transform": mapper}, line_color=None)
    edge = len(data.ranks) - 0.5
    plot.x_range.start, plot.x_range.end = -0.5, edge
    plot.y_range.start, plot.y_range.end = edge, -0.5
    plot.grid.grid_line_color = None
    label_ranks(plot.xaxis, data.ranks, "to rank", 32)
    label_ranks(plot.yaxis, data.ranks, "from rank", 48)
    bar = ColorBar(
        color_mapper=mapper,
        width=10,
        formatter=size_ticks(),
        ticker=size_ticker(),
        background_fill_color=None,
        major_label_text_color=theme.muted,
        major_label_text_font=theme.font,
        major_tick_line_color=None,
    )
    plot.add_layout(bar, "right")
    tips = [("", "rank @source to @target"), ("sent", "@mib{0,0.000} MiB"), ("transfers", "@transfers")]
    hover(plot, tips)
    return plot
