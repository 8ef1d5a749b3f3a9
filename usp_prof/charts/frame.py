"""Frame of all figures: background, axes, grid and tools, in the colors of a theme."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from bokeh.models import AdaptiveTicker, CustomJSTickFormatter, HoverTool, Label, TapTool, Title
from bokeh.plotting import figure as Figure  # noqa: N812 - a class under a function's name
from bokeh.plotting import figure as bokeh_figure

from usp_prof.charts.theme import Theme

WIDTH = 1080
PICKED = "picked"
"""Name of a column source whose marks can be clicked; its column `label` identifies a mark."""
_MOST_A_ROW = 9
"""Entries per legend row; longer legends use rows of equal length."""
_NEAR = 4
"""A limit above this multiple of the drawn values is left out, so that they stay visible."""

_TIME_TICKS = """
const range = Math.abs(ticks.length > 1 ? ticks[1] - ticks[0] : tick || 1);
const scales = [[1e9, ' s'], [1e6, ' ms'], [1e3, ' \\u03bcs'], [1, ' ns']];
const widest = Math.max(...ticks.map(Math.abs), range);
const [factor, unit] = scales.find(s => widest >= s[0]) || scales[3];
const digits = Math.max(0, Math.ceil(-Math.log10(range / factor) - 1e-9));
return (tick / factor).toFixed(Math.min(digits, 6)) + unit;
"""

_SCALED_TICKS = """
const [factor, unit] = scales.find(s => tick >= s[0] * 0.999) || scales[scales.length - 1];
return Number((tick / factor).toPrecision(3)) + unit;
"""
_DURATIONS = ((1e9, " s"), (1e6, " ms"), (1e3, " \u03bcs"), (1, " ns"))
_SIZES = ((2**40, " TiB"), (2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"), (1, " B"))
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))


def base(theme: Theme, height: int, **options: Any) -> Figure:  # noqa: ANN401 - Bokeh's own options
    """Build an empty figure in the theme: no toolbar logo, a light grid, scrolling only on request."""
    settings: dict[str, Any] = {
        "width": WIDTH,
        "height": height,
        "sizing_mode": "stretch_width",
        "tools": "pan,box_zoom,reset",
        "toolbar_location": "right",
        **options,
    }
    plot = bokeh_figure(**settings)
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    dress(plot, theme)
    return plot


def dress(plot: Figure, theme: Theme) -> None:
    """Apply the theme's colors to a figure."""
    plot.background_fill_color = theme.background
    plot.border_fill_color = theme.background
    plot.outline_line_color = None
    for axis in plot.axis:
        axis.axis_line_color = theme.grid
        axis.major_tick_line_color = theme.grid
        axis.minor_tick_line_color = None
        axis.major_tick_in = 0  # it would cover marks at the axis
        axis.major_label_text_color = theme.muted
        axis.axis_label_text_color = theme.muted
        axis.axis_label_text_font_style = "normal"
        axis.major_label_text_font = theme.font
        axis.axis_label_text_font = theme.font
        axis.major_label_text_font_size = "11px"
        axis.axis_label_text_font_size = "12px"
    for grid in plot.grid:
        grid.grid_line_color = theme.grid


def legend(plot: Figure, theme: Theme) -> None:
    """Style the legend and move it above the plot; a click hides a part."""
    for box in plot.legend:
        box.orientation = "horizontal"
        box.background_fill_color = None
        box.border_line_color = None
        box.label_text_color = theme.ink
        box.label_text_font = theme.font
        box.label_text_font_size = "11px"
        box.click_policy = "hide"
        box.padding = 0
        box.margin = 4
        box.spacing = 14
        rows = -(-len(box.items) // _MOST_A_ROW) or 1
        box.ncols = -(-len(box.items) // rows) or 1
        plot.add_layout(box, "above")


def write(plot: Figure, theme: Theme, text: str, place: tuple[float, float], color: str, **options: Any) -> None:  # noqa: ANN401 - Bokeh's own options
    """Write a text at a place of the plot."""
    x, y = place
    plot.add_layout(
        Label(x=x, y=y, text=text, text_color=color, text_font=theme.font, text_font_size="11px", **options)
    )


def hover(plot: Figure, tips: list[tuple[str, str]], renderers: list[Any] | None = None) -> None:
    """Show these fields in the tooltip of a mark."""
    tool = HoverTool(tooltips=tips, point_policy="follow_mouse", attachment="horizontal")
    if renderers is not None:
        tool.renderers = renderers
    plot.add_tools(tool)


def picked_by_click(plot: Figure, marks: Any, theme: Theme) -> None:  # noqa: ANN401 - a renderer of any glyph
    """Highlight a clicked mark; a page that shows the figure reads which one it is."""
    marks.data_source.name = PICKED
    marks.nonselection_glyph = None
    marks.selection_glyph = marks.glyph.clone(line_color=theme.ink, line_width=2.5)
    plot.add_tools(TapTool(renderers=[marks], mode="replace"))


def time_ticks() -> CustomJSTickFormatter:
    """Format nanoseconds on an axis in the unit of its visible range."""
    return CustomJSTickFormatter(code=_TIME_TICKS)


def duration_ticks() -> CustomJSTickFormatter:
    """Format nanoseconds on a logarithmic axis, each tick in its own unit."""
    return _scaled_ticks(_DURATIONS)


def size_ticks() -> CustomJSTickFormatter:
    """Format bytes on an axis."""
    return _scaled_ticks(_SIZES)


def size_ticker() -> AdaptiveTicker:
    """Place ticks at round numbers of bytes."""
    return AdaptiveTicker(base=1024, mantissas=[2**power for power in range(10)], desired_num_ticks=8)


def size_axis(plot: Figure, theme: Theme, most: float, room: float, ink: str) -> None:
    """Build an axis of bytes from 0 to `most`, with a line at the device's `room`, or its size if it is far beyond."""
    near = room <= _NEAR * most
    plot.x_range.start, plot.x_range.end = 0, 1.05 * max(room if near else 0.0, most)
    plot.xaxis.formatter = size_ticks()
    plot.xaxis.ticker = size_ticker()
    if near:
        plot.vspan(x=[room], line_color=ink, line_dash="4 3", line_width=1.5)
    if isfinite(room):
        unit, name = size_unit(room)
        where = "dashed line" if near else "beyond this scale"
        title = Title(text=f"usable memory per device: {room / unit:.3g} {name}, {where}", align="right")
        title.update(text_font=theme.font, text_font_size="11px", text_font_style="normal", text_color=ink)
        plot.add_layout(title, "above")


def size_unit(most: float) -> tuple[int, str]:
    """Return the unit of bytes for sizes up to `most`, and its size."""
    unit, name = next((scale for scale in _SIZES if most >= scale[0]), _SIZES[-1])
    return unit, name.strip()


def rate_ticks(unit: str) -> CustomJSTickFormatter:
    """Format a rate on an axis, with SI prefixes."""
    return _scaled_ticks([(factor, f" {prefix}{unit}") for factor, prefix in _PREFIXES])


def _scaled_ticks(scales: Sequence[tuple[float, str]]) -> CustomJSTickFormatter:
    """Format each tick with three digits in the largest unit that it reaches."""
    return CustomJSTickFormatter(code=_SCALED_TICKS, args={"scales": [list(scale) for scale in scales]})
