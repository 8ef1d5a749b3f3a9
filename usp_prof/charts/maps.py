"""Maps: ranks over steps, ranks at their place in the mesh, bytes from rank to rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from bokeh.core.properties import value
from bokeh.models import Axis, ColorBar, ColumnDataSource, LinearColorMapper, NumeralTickFormatter
from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name

from usp_prof.charts.frame import base, hover, size_ticker, size_ticks
from usp_prof.charts.inputs import Ground, HeatMap, PeerMatrix, RankGrid
from usp_prof.charts.theme import Theme, ink_on, mix
from usp_prof.columns.arrays import Floats, Ints

_FLOOR = 0.02
"""Smallest full scale of deviations (2%), so that noise does not look like a fault."""

_COARSE = 0.1
"""Scales from this full scale on need no decimal in percent."""
_MOST_ROWS = 64
"""With more ranks, several share a row."""


def heat_map(data: HeatMap, theme: Theme) -> Figure:
    """Draw the map: neutral at the median, warm for slower ranks, cool for faster ones."""
    data, deviation, shown_rank = folded(data)
    is_measured = np.isfinite(deviation)
    limit = max(_FLOOR, float(np.quantile(np.abs(deviation[is_measured]), 0.99)) if is_measured.any() else _FLOOR)
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
    _label(plot.xaxis[0], data.steps, 24, "step")
    title = "rank" if (shown_rank == shown_rank[:, :1]).all() else "from rank; each row shows the outlier of its ranks"
    _label(plot.yaxis[0], data.ranks, 48, title)
    titled_color_bar(plot, theme, mapper, f"{data.quantity} vs median")
    hover(
        plot,
        [("rank", "@rank"), ("step", "@step"), (data.quantity, "@ms{0,0.000} ms"), ("deviation", "@deviation{+0.0%}")],
    )
    return plot


def folded(data: HeatMap, most: int = _MOST_ROWS) -> tuple[HeatMap, Floats, Ints]:
    """Return the map, its deviations and their ranks; with too many ranks, adjacent ones share a row.

    A shared row shows the rank farthest from the median in each step, so that no outlier is lost.
    """
    deviation = deviations(data.values_ns)
    ranks = np.asarray(data.ranks)
    count = -(-len(ranks) // most)
    if count <= 1:
        return data, deviation, np.broadcast_to(ranks[:, None], deviation.shape)
    heads = np.arange(0, len(ranks), count)  # first rank of each row
    # The rank that each row shows at each step.
    pick = np.empty((len(heads), deviation.shape[1]), np.int64)
    for row, head in enumerate(heads.tolist()):
        pick[row] = head + np.argmax(np.nan_to_num(np.abs(deviation[head : head + count])), axis=0)
    at = np.arange(deviation.shape[1])
    folded_map = replace(data, ranks=tuple(ranks[heads].tolist()), values_ns=data.values_ns[pick, at])
    return folded_map, deviation[pick, at], ranks[pick]


def color_bar(plot: Figure, theme: Theme, mapper: LinearColorMapper, **options: object) -> None:
    """Add the color scale of a map."""
    bar = ColorBar(
        color_mapper=mapper, width=10, background_fill_color=None, major_label_text_color=theme.muted,
        major_label_text_font=theme.font, major_tick_line_color=None, **options,
    )  # fmt: skip
    plot.add_layout(bar, "right")


def titled_color_bar(plot: Figure, theme: Theme, mapper: LinearColorMapper, title: str, form: str = "") -> None:
    """Add the color scale of a map under a title; without a `form` in percent."""
    form = form or ("+0%" if float(mapper.high or 0) >= _COARSE else "+0.0%")
    color_bar(
        plot, theme, mapper, title=title, formatter=NumeralTickFormatter(format=form), title_text_color=theme.muted,
        title_text_font=theme.font, title_text_font_style="normal", title_text_font_size="11px",
    )  # fmt: skip


def deviations(values_ns: Floats) -> Floats:
    """Return each value's deviation from the median of its step over ranks, as a fraction; NaN if unknown."""
    is_measured = np.isfinite(values_ns).any(axis=0)
    median = np.full(values_ns.shape[1], np.nan)
    median[is_measured] = np.nanmedian(values_ns[:, is_measured], axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(median > 0, values_ns / median - 1, np.nan)


def _label(axis: Axis, names: Sequence[object], most: int, title: str | None = None) -> None:
    """Label an axis, with up to this number of labels, under a title if there is one."""
    ticks = list(range(0, len(names), max(1, -(-len(names) // most))))
    axis.ticker = ticks
    axis.major_label_overrides = {tick: str(names[tick]) for tick in ticks}
    axis.axis_label = title


_SHADES = 64
"""Shades on either side of the neutral color, and from no traffic to the most."""


def diverging(theme: Theme) -> list[str]:
    """Mix colors from fast through the background to slow."""
    cool = [mix(theme.panel, theme.fast, i / _SHADES) for i in range(_SHADES, 0, -1)]
    warm = [mix(theme.panel, theme.slow, i / _SHADES) for i in range(1, _SHADES + 1)]
    return [*cool, theme.panel, *warm]


_LETTERS = 140
"""Characters that fit below the grid on a laptop."""
_NUMBERED = 40
"""With more columns, numbers do not fit in their cells."""


_ROWS_NAMED = 40
_FEW_ROWS = 8
"""Maximum number of row labels."""


def rank_grid(data: RankGrid, theme: Theme) -> Figure:
    """Draw the grid. Compared with the median: neutral there, warm for slower ranks, cool for faster ones.

    Compared with zero: neutral at zero, warmer with the amount.
    """
    row, column = np.nonzero(data.rank >= 0)
    shown_ns = data.values_ns[row, column]
    deviation = _from_median(shown_ns)
    unit_ns, unit = (1e6, "ms") if np.nanmax(shown_ns, initial=0) >= 1e6 else (1e3, "\u03bcs")
    if data.ground is Ground.NOTHING:
        color, mapper = shown_ns / unit_ns, _scale_from_zero(shown_ns / unit_ns, theme)
    else:
        color, mapper = deviation, _scale_around_median(deviation, theme)
    source = ColumnDataSource(
        {
            "x": column.astype(float),
            "y": row.astype(float),
            "rank": data.rank[row, column],
            "name": [str(rank) for rank in data.rank[row, column].tolist()],
            "ms": shown_ns / 1e6,
            "deviation": deviation,
            "color": color,
            "ink": _inks(color, mapper, theme),
            "place": [f"{data.rows[r]} {data.columns[c]}".strip() for r, c in zip(row, column, strict=True)],
        }
    )
    row_px = 26 if len(data.rows) <= _FEW_ROWS else 18  # low, so that more than the grid is on the first screen
    plot = base(theme, int(min(900, 110 + row_px * max(2, len(data.rows)))), tools="pan,box_zoom,reset")
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
    longest = max((len(name) for name in data.columns), default=0)
    _label(plot.xaxis[0], data.columns, max(4, _LETTERS // (longest + 2)))  # as many as fit next to each other
    _label(plot.yaxis[0], data.rows, _ROWS_NAMED)
    tips = [("rank", "@rank"), ("", "@place"), (data.quantity, "@ms{0,0.000} ms")]
    if data.ground is Ground.MEDIAN:
        titled_color_bar(plot, theme, mapper, f"{data.quantity} vs median")
        tips.append(("deviation", "@deviation{+0.0%}"))
    else:
        titled_color_bar(plot, theme, mapper, f"{data.quantity}, {unit}", "0,0.[0]")
    hover(plot, tips)
    return plot


def _from_median(values: Floats) -> Floats:
    """Return each value's deviation from the median of all, as a fraction; NaN if unknown."""
    median = float(np.nanmedian(values)) if np.isfinite(values).any() else float("nan")
    return values / median - 1 if median > 0 else np.full(len(values), np.nan)


def _scale_from_zero(amounts: Floats, theme: Theme) -> LinearColorMapper:
    """Return a color scale from neutral at zero to warm at the largest amount."""
    palette = diverging(theme)
    high = float(np.nanmax(amounts, initial=0.0)) or 1.0
    return LinearColorMapper(palette=palette[len(palette) // 2 :], low=0.0, high=high, nan_color=theme.panel)


def _scale_around_median(deviation: Floats, theme: Theme) -> LinearColorMapper:
    """Return a color scale around neutral at the median, as wide as the largest deviation."""
    reach = max(_FLOOR, float(np.abs(deviation[np.isfinite(deviation)]).max(initial=0.0)))
    return LinearColorMapper(palette=diverging(theme), low=-reach, high=reach, nan_color=theme.panel)


def _inks(values: Floats, mapper: LinearColorMapper, theme: Theme) -> list[str]:
    """Return the text color that is readable on each value's color."""
    # Index of each value in the palette; below 0 if unknown.
    share = (values - mapper.low) / (mapper.high - mapper.low)
    place = np.nan_to_num(share, nan=-1.0) * (len(mapper.palette) - 1)
    return [ink_on(theme.panel if at < 0 else mapper.palette[int(at)]) for at in place]


def peer_matrix(data: PeerMatrix, theme: Theme) -> Figure:
    """Draw the map, sources vertically and targets horizontally; pairs without traffic are background."""
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
    _label(plot.xaxis[0], data.ranks, 32, "to rank")
    _label(plot.yaxis[0], data.ranks, 48, "from rank")
    color_bar(plot, theme, mapper, formatter=size_ticks(), ticker=size_ticker())
    tips = [("", "rank @source to @target"), ("sent", "@mib{0,0.000} MiB"), ("transfers", "@transfers")]
    hover(plot, tips)
    return plot
