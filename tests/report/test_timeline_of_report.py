"""Interactive timeline in the HTML report: its data, its size, and its client without a server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from usp_prof import open_run
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.timeline import page as timeline_page
from usp_prof.timeline.opened import open_timeline

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from usp_prof.run import Run

TRACES = Path(__file__).parents[2] / "traces"
MOST_BYTES = 2_000_000
MOST_SCREENS = 3
DECLARED = {
    "mesh": {"dp": 4, "tp": 2}, "shape": {"layers": 4}, "work": {"steps": 3, "micro_batches": 2}, "seed": 5,
    "faults": [{"kind": "slow_rank", "rank": 5, "factor": 1.5}],
}  # fmt: skip
LINE = "document.querySelector('.usp-timeline').timeline"
MIDDLE = f"""() => {{
  const line = {LINE}, tile = line.tile, row = line.rows.find((row) => row.base === 'compute' && row.rank === 5);
  const place = tile.places.get(row.label), scale = (tile.end_ns - tile.start_ns) / tile.width;
  const inView = (i) => tile.start_ns + tile.start[i] * scale > line.start && tile.dur[i] > 3;
  let i = tile.first[place];
  while (!inView(i)) i++;
  return [line.toX(tile.start_ns + (tile.start[i] + tile.dur[i] / 2) * scale), line.rowY(row) + 8];
}}"""
"""The middle of a slice in view."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("eight") / "run"
    write(Declaration.from_dict(DECLARED), folder)
    return open_run(folder, cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def report(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run.report().write(tmp_path_factory.mktemp("report") / "report.html")


def unpacked(block: bytes) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Read a block as the client does."""
    length = int.from_bytes(block[:4], "little")
    head = json.loads(block[4 : 4 + length])
    n, at = sum(head["counts"]), 4 + length
    wide = [np.frombuffer(block, np.uint8, 4 * n, at + 4 * n * i).reshape(4, n) for i in range(3)]
    columns = [planes.T.copy().view("<u4").ravel() for planes in wide]
    flat = [np.frombuffer(block, np.uint8, n, at + 12 * n + n * i) for i in range(2)]
    return head, [*columns, *flat]


def test_the_file_contains_every_slice_of_a_small_run(run: Run) -> None:
    store = open_timeline(run.tables)
    head, (gap, length, name, category, _) = unpacked(timeline_page.packed(store, list(store.ranks)))
    assert head["buckets_ns"] == [0, 0]
    at = place = 0
    for rank, rows in head["rows"].items():
        for index, row in enumerate(rows):
            count = head["counts"][place]
            line, _, number = store.line_of(int(rank), index)
            level = line.levels[0]
            span = slice(int(level.offsets[number]), int(level.offsets[number + 1]))
            start = np.cumsum(gap[at : at + count] + np.concatenate([[0], length[at : at + count]])[:count])
            assert start.tolist() == (level.start[span] + line.shift_ns).tolist(), row
            assert (np.abs(length[at : at + count] - level.rest["dur"][span]) <= 1).all(), row
            assert [head["names"][name_id] for name_id in name[at : at + count]] == [
                line.names[name_id] for name_id in level.rest["name"][span]
            ]
            assert category[at : at + count].tolist() == level.rest["category"][span].tolist()
            at, place = at + count, place + 1
    assert at == len(gap)


def test_a_large_run_is_merged_to_fit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_timeline(run.tables)
    monkeypatch.setattr(timeline_page, "DEVICE_ENTRIES", 600)
    monkeypatch.setattr(timeline_page, "HOST_ENTRIES", 400)
    head, (gap, length, *_) = unpacked(timeline_page.packed(store, list(store.ranks)))
    assert len(gap) <= 1000 * len(store.ranks)
    assert min(head["buckets_ns"]) > 0
    assert (gap < 2**31).all(), "entries of a row overlap"
    assert (length < 2**31).all()


@pytest.mark.browser
def test_the_report_opens_fast_and_needs_no_network(report: Path, browser: Browser) -> None:
    assert report.stat().st_size <= MOST_BYTES
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: faults.append(request.url) if not request.url.startswith("file:") else None)
    page.goto(report.as_uri())
    page.wait_for_function(f"() => {LINE}.root.dataset.sharp === 'true'")
    assert "Rank 5 computes" in page.inner_text(".verdict")
    assert page.evaluate("document.documentElement.scrollHeight") <= MOST_SCREENS * 900
    findings, tables = (page.locator(f".columns > div:nth-child({place})").bounding_box() for place in (1, 2))
    assert findings is not None
    assert tables is not None
    assert findings["y"] == tables["y"] < 900, "the findings start on the first screen"
    assert page.evaluate(f"{LINE}.scrollY") > 0
    in_view = (
        f"{LINE}.rows.some((row) => row.rank === 5 && {LINE}.rowY(row) > 0 && {LINE}.rowY(row) < {LINE}.viewHeight)"
    )
    assert page.evaluate(in_view), "opens on the straggler"
    assert page.evaluate(f"{LINE}.tile.counts || {LINE}.tile.first.length") > 8
    page.locator(".usp-timeline canvas").scroll_into_view_if_needed()
    box = page.locator(".usp-timeline canvas").bounding_box()
    assert box is not None
    page.evaluate(f"{LINE}.zoom(0.02, 700)")
    page.wait_for_function(f"() => {LINE}.isSharp()")
    x, y = page.evaluate(MIDDLE)
    page.mouse.click(box["x"] + x, box["y"] + y)
    page.wait_for_selector(".usp-dock dd")
    page.keyboard.press("/")
    page.keyboard.type("AllReduce")
    page.wait_for_function(f"() => {LINE}.hits && {LINE}.hits.count > 0")
    span = page.evaluate(f"{LINE}.end - {LINE}.start")
    page.keyboard.press("Enter")
    page.wait_for_function(f"() => {LINE}.at_hit >= 0 && {LINE}.picked")
    assert page.evaluate(f"{LINE}.end - {LINE}.start") == pytest.approx(span, rel=1e-6)
    page.keyboard.press("Escape")
    page.evaluate(f"{LINE}.selectArea([0, 10_000_000], [])")
    page.wait_for_selector(".usp-area-names tbody tr")
    page.click("#theme")
    assert faults == []
    page.close()


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_printed_timeline_is_complete_and_light(
    report: Path, browser: Browser, theme: Literal["light", "dark"]
) -> None:
    page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme=theme)
    page.goto(report.as_uri())
    page.wait_for_function(f"() => {LINE}.root.dataset.sharp === 'true'")
    before = page.evaluate(f"{LINE}.viewHeight")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function(f"() => {LINE}.mostScroll() === 0 && {LINE}.visible().length === {LINE}.rows.length")
    corner = f"[...{LINE}.context.getImageData(4, 60, 1, 1).data].slice(0, 3)"
    page.wait_for_function(f"() => {corner}.every((part) => part === 255)")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.wait_for_function(f"() => {LINE}.viewHeight === {before}")
    page.close()


@pytest.mark.browser
@pytest.mark.parametrize("paper", ["A4", "Letter"])
@pytest.mark.parametrize("name", ["recorded-1f1b", "recorded-slow-rank"])
def test_a_report_of_four_ranks_that_is_printed_at_once_is_one_sheet(
    tmp_path: Path, browser: Browser, paper: str, name: str
) -> None:
    """The timeline was still being unpacked, and later it had a sheet of its own, half of it empty."""
    run = open_run(TRACES / name, cache_dir=tmp_path / "cache")
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(run.report().write(tmp_path / "report.html").as_uri())
    pdf = page.pdf(format=paper)
    assert page.evaluate(f"{LINE}.tile !== null")
    assert len(set(re.findall(rb"/Contents (\d+) 0 R", pdf))) == 1
    page.close()


@pytest.mark.browser
def test_a_straggler_that_is_in_view_scrolls_nothing(tmp_path: Path, browser: Browser) -> None:
    """The rows of the first rank were scrolled out of sight, although all of the straggler's were visible."""
    declared = {"mesh": {"dp": 8}, "work": {"steps": 2}, "faults": [{"kind": "slow_rank", "rank": 2, "factor": 1.5}]}
    write(Declaration.from_dict(declared), tmp_path / "run")
    report = open_run(tmp_path / "run", cache_dir=tmp_path / "cache").report().write(tmp_path / "report.html")
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(report.as_uri())
    page.wait_for_function(f"() => {LINE}.root.dataset.sharp === 'true'")
    assert page.evaluate(f"{LINE}.mostScroll()") > 0
    assert page.evaluate(f"[{LINE}.data.focus, {LINE}.scrollY]") == [2, 0]
    page.close()


@pytest.mark.browser
def test_many_ranks_fit_on_a_printed_page_with_the_straggler(tmp_path: Path, browser: Browser) -> None:
    faults = [{"kind": "slow_rank", "rank": 37, "factor": 1.5}]
    declared = {"mesh": {"dp": 40}, "shape": {"layers": 2}, "work": {"steps": 2}, "faults": faults}
    write(Declaration.from_dict(declared), tmp_path / "run")
    report = open_run(tmp_path / "run", cache_dir=tmp_path / "cache").report().write(tmp_path / "report.html")
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(20_000)
    page.goto(report.as_uri())
    page.wait_for_function(f"() => {LINE}.root.dataset.sharp === 'true'")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function(f"() => {LINE}.mostScroll() === 0 && {LINE}.viewHeight <= 1030")
    page.emulate_media(media="print")
    assert page.locator(".usp-legend").is_visible()
    assert not page.locator(".usp-bar button").first.is_visible()
    page.emulate_media(media="screen")
    ranks = page.evaluate(f"{LINE}.ranks()")
    assert 37 in ranks
    assert page.evaluate(f"{LINE}.root.dataset.printed") == f"{len(ranks)} of 40 ranks"
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.wait_for_function(f"() => {LINE}.ranks().length === 40 && !{LINE}.root.dataset.printed")
    page.close()
