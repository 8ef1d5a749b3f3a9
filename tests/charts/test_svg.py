"""SVG drawings: marks are at their values, texts are escaped, large inputs are bounded."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from chart_samples import SAMPLES

from usp_prof.charts import inputs
from usp_prof.charts.svg import as_svg, following_browser, recolored
from usp_prof.charts.svg_marks import legend_row
from usp_prof.charts.theme import DARK, LIGHT

NAME = "{http://www.w3.org/2000/svg}"
NOT_DRAWN = (
    inputs.HeatMap, inputs.PeerMatrix, inputs.RankGrid, inputs.PlanPoints, inputs.PlanGrid, inputs.MemoryParts,
    inputs.LaunchLines,
)  # fmt: skip


def marks(data: inputs.ChartInput, tag: str = "rect") -> list[ET.Element]:
    """Return the marks with a text, without those of the legend."""
    root = ET.fromstring(as_svg(data))  # noqa: S314 - our own
    return [mark for mark in root.iter(NAME + tag) if mark.find(NAME + "title") is not None]


@pytest.mark.parametrize("data", SAMPLES, ids=lambda data: type(data).__name__)
def test_every_chart_input_is_drawn_or_listed_as_not_drawn(data: inputs.ChartInput) -> None:
    drawn = as_svg(data)
    assert bool(drawn) is not isinstance(data, NOT_DRAWN)
    if drawn:
        ET.fromstring(drawn)  # noqa: S314 - our own


def test_bars_are_as_long_as_their_times_and_adjacent() -> None:
    rows = inputs.BreakdownRows(
        ("rank 0",), (inputs.Part("compute", "compute", (3e6,)), inputs.Part("idle", "idle:host", (1e6,)))
    )
    first, second = marks(rows)
    widths = [float(mark.attrib["width"]) for mark in (first, second)]
    assert widths[0] == pytest.approx(3 * widths[1], abs=0.05)
    assert float(second.attrib["x"]) == pytest.approx(float(first.attrib["x"]) + widths[0], abs=0.02)


def test_a_waterfall_ends_at_the_sum() -> None:
    boxes = marks(inputs.Waterfall("before", 10e6, ("compute", "tp"), (-4e6, 1e6), "after"))
    widths = [float(box.attrib["width"]) for box in boxes]
    assert widths[-1] == pytest.approx(widths[0] * 0.7, rel=0.01)
    assert widths[1] == pytest.approx(widths[0] * 0.4, rel=0.01)


@pytest.mark.parametrize("kind", [inputs.PipelineSchedule, inputs.TimelineSlices])
def test_charts_to_compare_share_their_left_margin(kind: type[inputs.ChartInput]) -> None:
    data = next(sample for sample in SAMPLES if isinstance(sample, kind))
    shorter = replace(data, rows=tuple("r" * (place + 1) for place in range(len(data.rows))))  # type: ignore[type-var]
    first, second = (
        [mark.attrib["x"] for mark in marks(replace(drawing, label_characters=30))]  # type: ignore[arg-type]
        for drawing in (data, shorter)
    )
    assert first == second
    assert first != [mark.attrib["x"] for mark in marks(shorter)]


def test_legend_names_do_not_overlap() -> None:
    """In DejaVu Sans, the broadest of the fonts, memcpy takes 47.9 pixels at 11 px."""
    drawn = legend_row([("memcpy", "memcpy"), ("dp", "comm:dp")], 0)
    root = ET.fromstring(f"<svg>{drawn}</svg>")  # noqa: S314 - our own
    name, square = root.findall("text")[0], root.findall("rect")[1]
    assert float(square.attrib["x"]) > float(name.attrib["x"]) + 48


def colors_of(drawing: str) -> set[str]:
    return set(re.findall("#[0-9A-F]{6}", drawing))


def test_a_dark_drawing_has_the_grays_of_the_dark_theme_and_the_same_hues() -> None:
    rows = inputs.BreakdownRows(
        ("rank 0",), (inputs.Part("compute", "compute", (3e6,)), inputs.Part("idle", "idle:bubble", (1e6,)))
    )
    assert colors_of(as_svg(rows)) == {
        *(LIGHT.background, LIGHT.ink, LIGHT.muted, LIGHT.grid), LIGHT.color("compute"), LIGHT.color("idle:bubble")
    }  # fmt: skip
    assert colors_of(recolored(as_svg(rows), DARK)) == {
        *(DARK.background, DARK.ink, DARK.muted, DARK.grid), DARK.color("compute"), DARK.color("idle:bubble")
    }  # fmt: skip
    assert recolored(as_svg(rows), LIGHT) == as_svg(rows)


def test_a_drawing_follows_the_theme_of_the_browser() -> None:
    rows = inputs.BreakdownRows(("rank 0",), (inputs.Part("idle", "idle:bubble", (1e6,)),))
    drawn = following_browser(as_svg(rows))
    ET.fromstring(drawn)  # noqa: S314 - our own
    for light, dark in ((LIGHT.ink, DARK.ink), (LIGHT.grays["idle:bubble"], DARK.grays["idle:bubble"])):
        assert f'[fill="{light}"]{{fill:{dark}}}' in drawn
    assert recolored(drawn, DARK) == recolored(as_svg(rows), DARK)


def test_points_are_placed_on_a_log_scale_and_unknown_ones_omitted() -> None:
    points = inputs.BandwidthPoints(
        np.array([1e3, 1e4, 1e5, np.nan]), np.array([1e9, 1e10, 1e11, 1e9]), ("tp",) * 4, ("all_reduce",) * 4, 0.0, ""
    )
    across = [float(mark.attrib["cx"]) for mark in marks(points, "circle")]
    assert len(across) == 3
    assert across[1] - across[0] == pytest.approx(across[2] - across[1], abs=0.2)


def test_names_cannot_break_out_of_the_drawing() -> None:
    name = '"><script>alert(1)</script>'
    drawn = as_svg(inputs.BreakdownRows((name,), (inputs.Part(name, "compute", (1.0,)),)))
    assert "<script>" not in drawn


def test_many_rows_are_cut_and_counted() -> None:
    labels = tuple(f"rank {rank}" for rank in range(500))
    drawn = as_svg(inputs.BreakdownRows(labels, (inputs.Part("compute", "compute", (1.0,) * 500),)))
    assert "and 436 more rows" in drawn


def test_a_long_line_keeps_its_peak() -> None:
    size = np.zeros(100_000, np.int64)
    size[54_321] = 1000
    line = inputs.MemoryLine("rank 0", np.arange(100_000), size, size)
    (drawn,) = marks(inputs.MemoryLines((line,)), "polyline")
    heights = [float(point.split(",")[1]) for point in drawn.attrib["points"].split()]
    assert len(heights) == 2000
    assert min(heights) == pytest.approx(30)
