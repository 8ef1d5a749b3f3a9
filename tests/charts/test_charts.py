"""Charts: each draws exactly its input, in both themes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from bokeh.models import ColorBar, Label, Segment, Title, VSpan
from bokeh.models import Text as TextGlyph
from chart_samples import SAMPLES

from usp_prof import charts
from usp_prof.charts import inputs, maps
from usp_prof.charts.theme import DARK, HUES, LIGHT, THEMES, Theme, ink_on
from usp_prof.model.metric import Unit

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource

FOLDER = Path(charts.__file__).parent
SHARED = {"__init__", "inputs", "theme", "frame", "levels", "svg", "svg_marks"}


def sources(plot: Any) -> list[ColumnDataSource]:
    return [renderer.data_source for renderer in plot.renderers if hasattr(renderer, "data_source")]


def test_every_chart_is_in_the_list_with_a_sample() -> None:
    files = [path for path in FOLDER.glob("*.py") if path.stem not in SHARED]
    drawing = re.compile(r"^def ([a-z]\w*)\(data: \w+, theme: Theme\) -> Figure:", re.MULTILINE)
    functions = {f"{path.stem}.{name}" for path in files for name in drawing.findall(path.read_text(encoding="utf-8"))}
    assert functions == set(charts.CHARTS.values())
    assert {type(sample) for sample in SAMPLES} == set(charts.CHARTS)


@pytest.mark.parametrize("theme", THEMES.values(), ids=list(THEMES))
@pytest.mark.parametrize("data", SAMPLES, ids=lambda data: type(data).__name__)
def test_a_chart_uses_the_colors_of_the_theme(data: inputs.ChartInput, theme: Theme) -> None:
    plot = charts.draw(data, theme)
    assert plot.background_fill_color == theme.background
    assert plot.border_fill_color == theme.background
    assert sources(plot)
    assert plot.toolbar.logo is None


def test_breakdown_bars_add_up_to_the_whole() -> None:
    data = inputs.BreakdownRows(
        ("rank 0", "rank 1"),
        (
            inputs.Part("compute", "compute", (5.0, 6.0)),
            inputs.Part("none", "memcpy", (0.0, 0.0)),
            inputs.Part("exposed tp", "comm:tp", (2.0, 1.0)),
        ),
    )
    first, second = sources(charts.draw(data, LIGHT))
    assert first.data["right"].tolist() == second.data["left"].tolist() == [5.0, 6.0]
    assert second.data["right"].tolist() == [7.0, 7.0]
    assert second.data["share"].tolist() == [2 / 7, 1 / 7]


def test_many_ranks_stay_within_the_page() -> None:
    labels = tuple(f"rank {rank}" for rank in range(512))
    data = inputs.BreakdownRows(labels, (inputs.Part("compute", "compute", (1.0,) * 512),))
    assert charts.draw(data, LIGHT).height <= 900


def test_deviations_are_relative_to_the_median_of_the_step() -> None:
    values = np.array([[10.0, np.nan], [10.0, 4.0], [12.0, 5.0]])
    deviation = maps.deviations(values)
    assert deviation[:, 0].tolist() == [0.0, 0.0, pytest.approx(0.2)]
    assert np.isnan(deviation[0, 1])
    assert np.isnan(maps.deviations(np.array([[np.nan], [np.nan]]))).all()


def test_a_heat_map_without_known_values_is_drawn() -> None:
    charts.draw(inputs.HeatMap("compute", (0, 1), (0,), np.full((2, 1), np.nan)), DARK)


def test_bandwidth_charts_omit_values_without_a_logarithm() -> None:
    data = inputs.BandwidthPoints(
        np.array([0.0, 1e6]), np.array([1e9, 1e9]), ("tp", "tp"), ("send", "send"), float("nan"), ""
    )
    (only,) = sources(charts.draw(data, LIGHT))
    assert only.data["bytes"].tolist() == [1e6]


def test_the_link_peak_is_drawn_even_without_calls() -> None:
    nothing = np.zeros(0)
    plot = charts.draw(inputs.BandwidthPoints(nothing, nothing, (), (), 3e11, "NVLink"), LIGHT)
    assert any(getattr(item, "location", None) == 3e11 for item in plot.center)


def test_the_timeline_contains_all_levels_and_shows_the_coarse_one_first() -> None:
    data = next(sample for sample in SAMPLES if isinstance(sample, inputs.TimelineSlices))
    plot = charts.draw(data, LIGHT)
    shown, *legend = sources(plot)
    assert len(shown.data["left"]) == data.level_start[1]
    assert len(legend) == len(data.roles)
    (callback,) = plot.x_range.js_property_callbacks["change:end"]
    assert len(callback.args["all"].data["left"]) == len(data.row)
    assert callback.args["starts"] == list(data.level_start)


def test_micro_batch_numbers_are_drawn_only_if_they_fit() -> None:
    data = inputs.PipelineSchedule(
        ("stage 0",),
        np.zeros(2, np.int64),
        np.array([0, 1_000_000]),
        np.array([1_000_000, 1_000_100]),
        ("F", "F"),
        np.zeros(2, np.int64),
        np.array([0, 1]),
    )
    boxes = sources(charts.draw(data, LIGHT))[0]
    assert boxes.data["shown"] == ["0", ""]
    assert boxes.data["text"] == ["0", "1"]


def test_a_role_has_one_color_and_falls_back_to_its_family() -> None:
    for theme in THEMES.values():
        assert theme.color("comm:tp") == HUES["comm:tp"]
        assert theme.color("comm:new") == HUES["comm"]
        assert theme.color("idle:new") == theme.grays["idle"]
        assert theme.color("nothing") == theme.muted


@pytest.mark.parametrize("color", [*HUES.values(), "#FFFFFF", "#000000", "#777777"])
def test_text_on_a_color_is_readable(color: str) -> None:
    """WCAG requires a contrast of 4.5 for small text; black or white always reaches it."""

    def light(shade: str) -> float:
        parts = [int(shade[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    first, second = sorted((light(color), light(ink_on(color))))
    assert (second + 0.05) / (first + 0.05) > 4.2


def test_axes_have_different_colors() -> None:
    colors = [HUES[f"comm:{axis}"] for axis in ("tp", "dp", "dp_shard", "dp_replicate", "pp", "cp", "ep", "world")]
    assert len(set(colors)) == len(colors)


def test_a_waterfall_goes_from_the_first_to_the_last() -> None:
    data = inputs.Waterfall("before", 100.0, ("idle", "idle", "exposed"), (-20.0, 5.0, -1.0), "after")
    bars = sources(charts.draw(data, LIGHT))[0].data
    assert bars["low"].tolist() == [0, 80, 80, 84, 0]
    assert bars["high"].tolist() == [100, 100, 85, 85, 84]
    assert bars["text"] == ["100 ns", "-20 ns", "+5 ns", "-1 ns", "84 ns"]
    assert len(set(bars["label"])) == 5


def test_a_peer_matrix_draws_only_pairs_with_traffic() -> None:
    data = inputs.PeerMatrix((0, 3, 7), np.array([[0, 2, 0], [0, 0, 0], [1, 0, 0.0]]), np.full((3, 3), -1))
    cells = sources(charts.draw(data, DARK))[0].data
    assert list(zip(cells["source"], cells["target"], cells["bytes"], strict=True)) == [(0, 3, 2), (7, 0, 1)]


def test_a_grid_of_ranks_omits_empty_places() -> None:
    data = inputs.RankGrid("compute", ("a", "b"), ("c", "d"), np.array([[0, 1], [2, -1]]), np.array([[1, 3], [1, 1.0]]))
    cells = sources(charts.draw(data, LIGHT))[0].data
    assert cells["rank"].tolist() == [0, 1, 2]
    assert cells["deviation"].tolist() == [0, 2, 0]


def test_neighboring_ranks_share_a_row_but_outliers_do_not() -> None:
    values = np.ones((512, 3))
    values[301, 1] = 1.5
    folded, deviation, rank = maps.folded(inputs.HeatMap("compute", tuple(range(512)), (0, 1, 2), values))
    assert folded.values_ns.shape == deviation.shape == rank.shape == (64, 3)
    assert folded.ranks[:3] == (0, 8, 16)
    assert rank[deviation == 0.5].tolist() == [301]


def test_few_ranks_have_a_row_each() -> None:
    data = inputs.HeatMap("compute", (0, 2), (0,), np.ones((2, 1)))
    folded, _, rank = maps.folded(data)
    assert folded is data
    assert rank.tolist() == [[0], [2]]


def test_a_capacity_far_above_the_lines_is_named_without_flattening_them() -> None:
    line = inputs.MemoryLine("rank 0", np.array([0, 1]), np.array([10**9, 10**9]), np.array([2 * 10**9, 2 * 10**9]))
    plot = charts.draw(inputs.MemoryLines((line,), (("capacity", 80e9), ("predicted peak", 4e9))), LIGHT)
    assert plot.y_range.end == pytest.approx(4.4e9)
    assert {label.text for label in plot.select(Label)} == {"capacity, above", "predicted peak"}
    assert [entry.label.value for entry in plot.legend.items] == ["rank 0", "reserved (dashed)"]


def test_reserved_memory_of_several_ranks_is_in_the_legend() -> None:
    lines = tuple(
        inputs.MemoryLine(f"rank {rank}", np.array([0, 1]), np.array([10, 10]), np.array([20, 20])) for rank in range(2)
    )
    plot = charts.draw(inputs.MemoryLines(lines, ()), LIGHT)
    assert [entry.label.value for entry in plot.legend.items] == ["rank 0", "rank 1", "reserved (dashed)"]


def test_a_mean_of_all_bars_is_one_line() -> None:
    bars = inputs.RankBars("idle", ("rank 0", "rank 1"), (1e6, 3e6), (2e6, 2e6), "idle:host", Unit.NS)
    plot = charts.draw(bars, LIGHT)
    marks = [renderer.glyph for renderer in plot.renderers if isinstance(renderer.glyph, Segment | VSpan)]
    assert [type(mark) for mark in marks] == [VSpan]  # a second one in the color of the paper cut the bars
    own = replace(bars, even=(2e6, 1e6))
    marks = [renderer.glyph for renderer in charts.draw(own, LIGHT).renderers]
    assert any(isinstance(mark, Segment) for mark in marks)


def test_short_delays_are_drawn_in_microseconds() -> None:
    """A scale from 0 to 0.3 ms had the same label on several ticks."""
    grid = inputs.RankGrid(
        "delay", ("",), ("a", "b"), np.array([[0], [1]]), np.array([[0.0], [3e5]]), inputs.Ground.NOTHING
    )
    (bar,) = charts.draw(grid, LIGHT).select(ColorBar)
    assert bar.title == "delay, \u03bcs"
    (bar,) = charts.draw(replace(grid, values_ns=grid.values_ns * 10), LIGHT).select(ColorBar)
    assert bar.title == "delay, ms"


@pytest.mark.parametrize(("room", "where"), [(150.0, "dashed line"), (1e6, "beyond this scale")])
def test_the_memory_of_a_device_is_named_in_the_chart(room: float, where: str) -> None:
    parts = inputs.MemoryParts(("rank 0",), (("weights", "compute", (100.0,)),), room)
    (title,) = (title for title in charts.draw(parts, LIGHT).select(Title) if title.text)
    assert title.text.startswith("usable memory per device: ")
    assert title.text.endswith(where)


def test_roofline_labels_name_the_largest_ops_once_without_overlap() -> None:
    labels = ("aten::mm 8x8", "aten::mm 9x9", "aten::bmm 8x8", "aten::_scaled_dot_product_flash_attention 8x8")
    intensity, rate = np.array([100.0, 120.0, 101.0, 1.0]), np.array([1e14, 1e14, 1e14, 1e12])
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    plot = charts.draw(inputs.RooflinePoints(labels, intensity, rate, shares, 3e14, 2e12, "GPU"), LIGHT)
    shown_texts = {label.text for label in plot.select(Label) if "%" in label.text}
    assert shown_texts == {"mm: saves up to 38%", "…t_product_flash_attention: saves up to 5%"}
    decades = np.log10(plot.y_range.end / plot.y_range.start)
    room_px = (plot.height - 80) / decades * np.log10(rate.min() / plot.y_range.start)
    assert room_px > 35  # the lowest mark and the label below it


@pytest.mark.parametrize(("other", "below"), [(800.0, True), (8.0, False)])
def test_a_roofline_label_covers_no_other_mark(other: float, below: bool) -> None:
    """Ops near the compute limit are in one line, so a label at the side was written over them."""
    data = inputs.RooflinePoints(
        ("aten::mm 8x8", "aten::bmm 8x8"), np.array([1000.0, other]), np.array([2e14, 2e14]), np.array([0.9, 0.001]),
        3e14, 2e12, "GPU",
    )  # fmt: skip
    label = next(label for label in charts.draw(data, LIGHT).select(Label) if "saves" in label.text)
    assert (label.y_offset < 0) is below
    assert (label.text_align == "center") is below


def test_the_labeled_plan_has_its_label_next_to_its_mark() -> None:
    plans = inputs.PlanPoints(
        ("fast", "startable"), np.array([1e5, 8e4]), np.array([6e9, 2e9]), np.array([0.4, 0.3]),
        np.array([True, False]), 64e9, labeled=1,
    )  # fmt: skip
    (text,) = [renderer for renderer in charts.draw(plans, LIGHT).renderers if isinstance(renderer.glyph, TextGlyph)]
    assert list(text.data_source.data["text"]) == ["startable"]
