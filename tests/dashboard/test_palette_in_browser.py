"""Command palette, clickable ops, and counters in a real browser."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import TimeoutError as TookTooLong

if TYPE_CHECKING:
    from dashboard_visit import Visit

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
MADE_UP = "run=eight-ranks"
CLICKS, PATIENCE_MS = 4, 10_000
DOT = """() => {
  const host = document.querySelector('.usp-figure[data-ready]'), view = host && host.views.roots[0];
  const source = view && view.model.document.get_model_by_name('picked');
  if (!source) return null;
  const place = view.frame.bbox, box = view.canvas_view.el.getBoundingClientRect(), data = source.data;
  // A paced run has waits instead of ops, and no kernel is tied to them.
  const i = Array.from(data.label).findIndex((label) => !label.startsWith("("));
  const [x, y] = data.intensity ? [data.intensity[i], data.rate[i]] : [data.value[i] / 2, data.label[i]];
  return [data.label[i], box.left + view.frame.x_scale.compute(x), box.top + view.frame.y_scale.compute(y)];
}"""
"""The first mark of an op: its label and its place."""


def open_palette(visit: Visit, key: str) -> None:
    """Press its key, and wait until it can be typed into."""
    visit.page.keyboard.press(key)
    visit.page.locator(".usp-palette dialog[open] input").wait_for()


def test_the_palette_opens_pages_and_ranks_by_keys(visit: Visit) -> None:
    visit.go(f"kernels?{MADE_UP}")
    keyboard = visit.page.keyboard
    open_palette(visit, "Control+k")
    keyboard.type("memo")
    keyboard.press("Enter")
    visit.page.wait_for_url(re.compile(f"/memory.*{MADE_UP}"))
    visit.settle()
    open_palette(visit, "/")
    keyboard.type("rank 5")
    keyboard.press("Enter")
    visit.page.wait_for_url(re.compile(r"/timeline\?"))
    visit.settle()
    assert 5 in visit.on_timeline("line.rows.map((row) => row.rank)")
    open_palette(visit, "Control+k")
    keyboard.type("allreduce")
    visit.page.wait_for_selector("[role=option] small:text-is('on the timeline')")
    keyboard.press("Escape")
    visit.page.wait_for_function("() => !document.querySelector('dialog[open]')")
    visit.check()


def test_a_slash_typed_into_a_field_does_not_open_the_palette(visit: Visit) -> None:
    visit.go("query")
    visit.page.click("textarea")
    visit.page.keyboard.type("/")
    assert visit.page.locator("dialog[open]").count() == 0
    assert "/" in visit.page.input_value("textarea")


def clicked(visit: Visit) -> str:
    """Click the first mark until its op is shown: a chart that is drawn once more under the pointer loses a click."""
    for _ in range(CLICKS):
        label, x, y = visit.page.wait_for_function(DOT).json_value()
        visit.page.mouse.click(x, y)
        shown = visit.page.locator("[class*='st-key-picked-op'] a:has-text('Rank')").first
        with suppress(TookTooLong):
            shown.wait_for(timeout=PATIENCE_MS)
            return str(label)
    raise AssertionError("no op is shown")


@pytest.mark.parametrize("run", ["run=recorded-1f1b", MADE_UP])
def test_a_clicked_op_shows_its_calls(visit: Visit, run: str) -> None:
    visit.go(f"kernels?{run}")
    label = clicked(visit)
    visit.settle()
    assert label.split(" ")[0] in visit.page.inner_text(".st-key-picked-op").replace("\u00ad", "")
    visit.page.locator(".st-key-picked-op a:has-text('Rank')").first.click()
    visit.page.wait_for_url(re.compile(r"/timeline\?.*picked="))
    visit.settle()
    visit.until_timeline("line.picked && line.picked.event >= 0")
    visit.page.wait_for_selector("text=/\\d+, event \\d+/")
    visit.check()


def test_counters_are_below_their_rank_and_show_their_value(visit: Visit) -> None:
    visit.go(f"timeline?{MADE_UP}&ranks=0-1&show=counters")
    kinds = visit.on_timeline("line.rows.filter((row) => row.rank === 0).map((row) => row.kind)")
    assert kinds.index("counters") > kinds.index("device")
    row = "line.rows.find((row) => row.base === 'queue')"
    busy = f"""(() => {{ const place = line.tile.places.get({row}.label), at = line.tile.first[place] + 3;
      const scale = (line.tile.end_ns - line.tile.start_ns) / line.tile.width;
      return [line.toX(line.tile.start_ns + (line.tile.start[at] + line.tile.dur[at] / 2) * scale),
        line.rowY({row}) + {row}.height - 4]; }})()"""
    visit.page.mouse.move(*visit.point(busy))
    visit.until_timeline("/kernels\\ntop of the row/.test(line.tip.textContent)")
    visit.check()
