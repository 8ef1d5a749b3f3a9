"""Play the fix: animation from recorded to predicted, skipped for users with reduced motion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from dashboard_visit import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
AT_REST = "[line.share, line.head.lasts_ns, Math.max(...line.tile.start.map((s, i) => s + line.tile.dur[i]))]"


def test_the_picture_goes_from_recorded_to_predicted(browser: Browser, server: str) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 1000}, reduced_motion="reduce")
    visit = Visit(context.new_page(), server)
    visit.go("whatif?run=eight-ranks&edits=rank_as_peers%3D5&open=play")
    share, (before_ns, after_ns), before_px = visit.on_timeline(AT_REST)
    assert share == 0
    assert after_ns < before_ns
    button = visit.page.locator(".usp-play button")
    button.click()
    share, _, after_px = visit.on_timeline(AT_REST)
    assert share == 1  # at once
    assert after_px / before_px == pytest.approx(after_ns / before_ns, rel=0.01)
    button.click()
    visit.until_timeline("line.share === 0 && !host.dataset.longestFrame")
    visit.page.emulate_media(reduced_motion="no-preference")
    button.click()
    visit.until_timeline("line.share === 1 && host.dataset.longestFrame")
    visit.check()
    context.close()


def test_a_change_that_no_page_has_replayed_is_not_played(browser: Browser, server: str) -> None:
    with browser.new_context() as context:
        answer = context.request.get(f"{server}/usp/fix?run=eight-ranks&t0=0&t1=9000000&ranks=0-1&edits=no_pauses")
        assert answer.status == 400
        measured = context.request.get(f"{server}/usp/fix?run=eight-ranks&t0=0&t1=9000000&ranks=0-1")
        assert measured.ok
