"""Links restore the sender's view: opened directly, reloaded, with the back button, and in a second window."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from dashboard_visit import LONGEST, Visit

from dashboard.pages import PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
MADE_UP = "eight-ranks"
"""The name of the run of eight ranks."""
VIEW = """JSON.stringify([[...line.folded], [...line.pinned], line.picked && line.picked.event,
  Math.round(line.start), Math.round(line.end)])"""


@pytest.fixture(scope="module")
def window(browser: Browser, server: str) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    yield Visit(context.new_page(), server)
    context.close()


def test_the_landing_page_also_opens_at_its_own_path(window: Visit) -> None:
    window.go(f"{PAGES[0].path}?ranks=1")
    assert window.page.locator("[role=dialog]").count() == 0
    assert "1 of 4 ranks" in window.page.inner_text("[data-testid='stMain']")
    window.check()


def test_folds_pins_range_and_the_picked_slice_are_in_the_link(window: Visit) -> None:
    window.go("timeline")
    mouse, page = window.page.mouse, window.page
    mouse.click(*window.point("[30, line.rowY(line.rows.find((row) => row.rank === 1)) + 6]"))
    window.until_timeline("line.folded.has(1)")
    row = "line.rows.find((row) => row.rank === 3 && row.base === 'compute')"
    mouse.click(*window.point(f"[90, line.rowY({row}) + 6]"))
    window.until_timeline("line.rows[0].pinned && host.dataset.sharp === 'true'")
    mouse.click(*window.point(LONGEST.replace("NAME", "gloo:all_reduce")))
    page.wait_for_selector("text=The same call on 4 ranks")
    window.on_timeline("(line.canvas.focus(), 1)")
    page.keyboard.press("w")
    page.wait_for_url(re.compile(r"(?=.*folds=1)(?=.*pins=3\.)(?=.*picked=\d)(?=.*range=)"))
    page.fill("input[aria-label='Search']", "all_reduce")
    page.wait_for_url(re.compile(r"(?=.*find=all_reduce)(?=.*folds=1)(?=.*picked=\d)(?=.*range=)"))
    window.settle()
    seen = window.on_timeline(VIEW)

    other = Visit(page.context.new_page(), window.address)
    other.go(page.url.removeprefix(f"{window.address}/"))
    other.page.wait_for_selector("text=The same call on 4 ranks")
    assert other.on_timeline(VIEW) == seen
    other.check()
    other.page.close()

    page.reload()
    window.until_timeline(f"{VIEW} === {seen!r}")
    window.turn_to("Compare")
    page.go_back()
    window.until_timeline(f"{VIEW} === {seen!r}")
    window.turn_to("Compare")  # not by going forward: Streamlit may rewrite the address, which drops later history
    window.turn_to("Timeline")  # by its tab, which names nothing: as it was left
    window.until_timeline(f"{VIEW} === {seen!r}")
    window.on_timeline("(line.canvas.focus(), 1)")
    page.keyboard.press("Escape")
    page.wait_for_url(lambda url: "picked" not in url)
    window.check()


def test_the_back_button_returns_from_show_me(window: Visit) -> None:
    window.go(f"?run={MADE_UP}")
    page, entries = window.page, window.page.evaluate("() => window.history.length")
    page.locator("a:has-text('Show me')").first.click()
    page.wait_for_selector(".st-key-at-timeline", state="attached")
    page.wait_for_url(lambda url: "range=" in url)  # written once the canvas has stood still for a quarter of a second
    window.settle()
    shown = page.url
    assert "only=" in shown
    page.go_back()
    page.wait_for_selector(".st-key-at-overview", state="attached")
    page.wait_for_selector("text=8 of 8 ranks")
    window.settle()
    assert page.url == f"{window.address}/?run={MADE_UP}"
    assert page.evaluate("() => window.history.length") == entries + 1, "one entry for one click"
    page.go_forward()
    page.wait_for_selector(".st-key-at-timeline", state="attached")
    page.wait_for_url(shown)
    window.settle()
    window.check()


@pytest.mark.full
def test_each_window_keeps_its_view(window: Visit) -> None:
    window.go("timeline?folds=all")
    other = Visit(window.page.context.new_page(), window.address)
    other.go("timeline?folds=0-2")
    assert window.on_timeline("[...line.folded]") == ["all"]
    assert other.on_timeline("[...line.folded]") == [0, 2]
    other.check()
    other.page.close()


def test_unknown_names_in_a_link_are_ignored_and_listed(window: Visit) -> None:
    window.go("timeline?pins=99.1-0.99999-1.0-%3Cb%3E&folds=x-%C2%B2-1&picked=0.999999999&range=5-1")
    assert window.on_timeline("[[...line.pinned], [...line.folded], line.picked]") == [["1.0"], [1], None]
    remark = window.page.locator(".usp-ignored")
    assert remark.inner_text() == "Not in this run, so ignored: range=5-1, picked=0.999999999"
    window.go("timeline?only=99&by=nosuch&show=exposed,nosuch&focus=99&at=nosuch&area=9-3")
    words = "only=99, by=nosuch, at=nosuch, show=exposed,nosuch, area=9-3, focus=99"
    assert remark.inner_text() == f"Not in this run, so ignored: {words}"
    window.go(f"timeline?run={MADE_UP}&only=1-2&by=tp&show=host&focus=1&at=middle&area=5-900000")
    assert remark.inner_text() == ""
    window.check()
