"""HTML report in headless Chromium, without a network, in both themes."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from chart_samples import SAMPLES
from papers import HOSTILE, document

from usp_prof.charts.inputs import TimelineSlices
from usp_prof.model.metric import Unit
from usp_prof.report.document import Chart, DataTable, Section, TableColumn
from usp_prof.report.sections.timeline import Slices, levels
from usp_prof.report.writers import webpage

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.browser

DRAWN = "document.querySelectorAll('.chart[data-drawn]').length"
PAINTED = """() => {
  const canvases = (root) => [...root.querySelectorAll('*')].flatMap((item) => [
    ...(item.tagName === 'CANVAS' ? [item] : []), ...(item.shadowRoot ? canvases(item.shadowRoot) : [])]);
  const painted = (canvas) => canvas.width > 100
    && canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value);
  return [...document.querySelectorAll('.chart')].every((chart) => canvases(chart).some(painted));
}"""
SHOWN = """() => {
  const all = Bokeh.documents.flatMap((doc) => [...doc._all_models.values()]);
  const range = all.find((model) => model.type === 'Range1d' && model.min_interval === 100);
  const shown = all.find((model) => model.type === 'ColumnDataSource' && 'where' in model.data);
  return {count: shown.data.left.length, names: new Set(shown.data.name).size, start: range.start, end: range.end};
}"""
ZOOM = """([start, end]) => {
  const all = Bokeh.documents.flatMap((doc) => [...doc._all_models.values()]);
  const range = all.find((model) => model.type === 'Range1d' && model.min_interval === 100);
  range.setv({start, end});
}"""


def page_of(browser: Any, path: Path, theme: str, troubles: list[str]) -> Any:
    page = browser.new_page(viewport={"width": 1280, "height": 9000}, color_scheme=theme)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None)
    page.on("request", lambda request: troubles.append(request.url) if not request.url.startswith("file:") else None)
    page.goto(path.as_uri())
    return page


def test_every_chart_draws_in_both_themes_without_network_requests(browser: Any, tmp_path: Path) -> None:
    charts = tuple(Section(f"s{place}", HOSTILE, (Chart(HOSTILE, data),)) for place, data in enumerate(SAMPLES))
    path = tmp_path / "report.html"
    path.write_text(webpage.write([document(sections=charts)]), encoding="utf-8")
    for theme, other in (("light", "dark"), ("dark", "light")):
        troubles: list[str] = []
        page = page_of(browser, path, theme, troubles)
        assert page.evaluate(DRAWN) == 0, "sections are folded"
        page.click("#fold")
        page.wait_for_function(f"{DRAWN} === {len(SAMPLES)}")
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        page.wait_for_function(PAINTED)
        page.click("#theme")
        page.wait_for_function(f"[...document.querySelectorAll('.chart')].every(c => c.dataset.drawn === '{other}')")
        page.wait_for_function(PAINTED)
        assert troubles == []
        page.close()


def test_the_timeline_shows_more_detail_when_zoomed_in(browser: Any, tmp_path: Path) -> None:
    count = 20_000
    start = np.arange(count, dtype=np.int64) * 1_000
    zeros, names = np.zeros(count, np.int64), np.arange(count) % 50
    made, starts = levels(Slices(zeros, start, start + 600, zeros, names), 100_000)
    columns = (made.row, made.start_ns, made.end_ns, made.role, made.name)
    data = TimelineSlices(("rank 0",), *columns, ("compute",), tuple(f"kernel {n}" for n in range(50)), starts)
    path = tmp_path / "report.html"
    path.write_text(webpage.write([document(sections=(Section("t", "T", (Chart("T", data),)),))]), encoding="utf-8")
    troubles: list[str] = []
    page = page_of(browser, path, "light", troubles)
    page.click("#fold")
    page.wait_for_function(f"{DRAWN} === 1")
    overview = page.evaluate(SHOWN)
    assert overview["count"] == starts[1]
    page.evaluate(ZOOM, [0, 1_000_000])
    near = page.evaluate(SHOWN)
    assert near["count"] == pytest.approx(1000, abs=3)
    assert near["names"] == 50
    page.evaluate(ZOOM, [0, 20_000_000])
    assert page.evaluate(SHOWN)["count"] <= 4000
    assert troubles == []


PAGE_CONTENTS = re.compile(rb"/Contents (\d+) 0 R")
SCALE = re.compile(rb"^([\d.]+) 0 0 -\1 0 [\d.]+ cm\nq\n([\d.]+) 0 0 \2 ")
"""How a page of Chromium's PDF begins: points a device pixel, device pixels a CSS pixel."""
LABELS_PRINTED = """() => {
  const allIn = (root) => [...root.querySelectorAll('*')].flatMap((item) => [
    item, ...(item.shadowRoot ? allIn(item.shadowRoot) : [])]);
  const printed = (chart) => {
    const paper = chart.nextElementSibling, whole = allIn(chart).find((item) => item.tagName === 'CANVAS');
    const origin = whole.getBoundingClientRect();
    return allIn(chart).filter((item) => /legend/i.test(item.className) && item.textContent && !item.childElementCount)
      .map((item) => item.getBoundingClientRect()).filter((place) => place.width)
      .every((place) => paper.getContext('2d')
        .getImageData(place.left - origin.left, place.top - origin.top, place.width, place.height)
        .data.some((value, index) => index % 4 === 3 && value));
  };
  return [...document.querySelectorAll('.chart')].every(printed);
}"""
OPEN_AT_ONCE = """new MutationObserver(() => {
  for (const section of document.querySelectorAll("details:not([open])")) section.open = true;
}).observe(document, { childList: true, subtree: true })"""
"""Unfolds each section as soon as the browser has read it."""
PAPER = {"A4": (703, 1032), "Letter": (725, 966)}
"""What margins of 12 mm leave of a sheet, in CSS pixels."""
AS_WIDE_AS_ON_PAPER = 956
"""Width of a window whose charts are as wide as those that are drawn for paper."""
TOO_WIDE = """(width) => [...document.querySelectorAll('main *')]
  .filter((item) => item.checkVisibility() && item.getBoundingClientRect().right > width + 2)
  .map((item) => `${item.tagName} ${item.className} ${Math.round(item.getBoundingClientRect().right)}`)"""


IMAGE = re.compile(
    rb"/Subtype /Image\s*/Width (\d+)\s*/Height (\d+)\s*/ColorSpace (?:/DeviceRGB|\[/ICCBased [^]]*\])"
    rb"[^>]*?/Length (\d+)>> stream\n"
)


def pictures(pdf: bytes) -> list[np.ndarray]:
    """Read the color images of a PDF by Chromium: rows x columns x 3."""
    images = []
    for match in IMAGE.finditer(pdf):
        width, height, length = (int(number) for number in match.groups())
        pixels = zlib.decompress(pdf[match.end() : match.end() + length])
        images.append(np.frombuffer(pixels, np.uint8).reshape(height, width, 3))
    return images


def points_of_css_pixel(pdf: bytes) -> set[float]:
    """Read the size of a CSS pixel in points on each page: 0.75, or less if Chromium shrank the page."""
    points = set()
    for (number,) in {match.groups() for match in PAGE_CONTENTS.finditer(pdf)}:
        begin = re.search(rb"(?<!\d)" + number + rb" 0 obj.*?stream\r?\n", pdf, re.DOTALL)
        assert begin is not None
        scale = SCALE.match(zlib.decompressobj().decompress(pdf[begin.end() :], 200))
        assert scale is not None
        points.add(round(float(scale[1]) * float(scale[2]), 3))
    return points


def colors(picture: np.ndarray) -> int:
    """Count the colors of a picture."""
    return len(np.unique(picture.reshape(-1, 3), axis=0))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_report_that_is_printed_at_once_has_all_its_charts(browser: Any, tmp_path: Path, theme: str) -> None:
    charts = tuple(Section(f"s{place}", "chart", (Chart("", data),)) for place, data in enumerate(SAMPLES))
    path = tmp_path / "report.html"
    path.write_text(webpage.write([document(sections=charts)]), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=theme)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.add_init_script("window.requestIdleCallback = () => {}")  # nothing scrolls, and the browser is never idle
    page.add_init_script(OPEN_AT_ONCE)
    page.goto(path.as_uri())
    pdf = page.pdf(format="A4")
    assert faults == []
    assert sum(colors(picture) > 2 for picture in pictures(pdf)) >= len(SAMPLES)
    assert points_of_css_pixel(pdf) == {0.75}
    assert page.locator(".paper").count() == 0  # removed again


def test_folded_sections_are_not_printed(browser: Any, tmp_path: Path) -> None:
    """A report of 16 ranks filled 21 sheets."""
    charts = tuple(Section(f"s{place}", "chart", (Chart("", data),)) for place, data in enumerate(SAMPLES))
    path = tmp_path / "report.html"
    path.write_text(webpage.write([document(sections=charts)]), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(path.as_uri())
    pdf = page.pdf(format="A4")
    assert len(set(PAGE_CONTENTS.findall(pdf))) == 1
    assert [picture.shape for picture in pictures(pdf) if colors(picture) > 2] == []


@pytest.mark.parametrize("paper", PAPER)
def test_a_report_prints_with_its_charts_within_the_sheet(browser: Any, tmp_path: Path, paper: str) -> None:
    heads = tuple(TableColumn(f"a rather long head {number}", Unit.NS) for number in range(12))
    table = DataTable("Wide", (TableColumn("name"), *heads), (("kernel_" * 12, *range(0, 12 * 10**9, 10**9)),))
    charts = tuple(Section(f"s{place}", "chart", (Chart("", data),)) for place, data in enumerate(SAMPLES))
    path = tmp_path / "report.html"
    path.write_text(webpage.write([document(sections=(*charts, Section("wide", "Wide", (table,))))]), encoding="utf-8")
    page = browser.new_page(viewport={"width": AS_WIDE_AS_ON_PAPER, "height": 800})
    page.set_default_timeout(120_000)
    page.add_init_script(OPEN_AT_ONCE)
    page.goto(path.as_uri())
    pdf = page.pdf(format=paper, prefer_css_page_size=False)
    assert points_of_css_pixel(pdf) == {0.75}
    printed = pictures(pdf)
    drawn = [picture for picture in printed if colors(picture) > 2]
    assert len(drawn) >= len(SAMPLES), [(picture.shape, colors(picture)) for picture in printed]
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.set_viewport_size({"width": AS_WIDE_AS_ON_PAPER, "height": 30_000})  # every chart is near, so it is drawn
    page.wait_for_function("[...document.querySelectorAll('.chart')].every((chart) => chart.dataset.drawn)")
    assert page.evaluate(LABELS_PRINTED)
    page.emulate_media(media="print")
    width, height = PAPER[paper]
    page.set_viewport_size({"width": width, "height": height})
    assert page.evaluate(TOO_WIDE, width) == []
    assert page.locator("canvas.paper").count() == len(SAMPLES)
