"""Learn page in a real browser: pictures load, and a lesson's open runs link to Compare and Timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dashboard_visit import Visit

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
PICTURES = """() => { const found = [...document.querySelectorAll("[data-testid='stImage'] img")];
  return found.length && found.every((image) => image.complete && image.naturalWidth > 0) && found.length; }"""
"""The number of a lesson's pictures, once all are loaded."""


def test_a_lesson_shows_its_pictures_and_opens_its_runs_in_compare(visit: Visit) -> None:
    visit.go("learn")  # recorded-1f1b and recorded-interleaved are open
    assert visit.page.wait_for_function(PICTURES).json_value() == 2
    visit.check()
    visit.page.click("a:has-text('Compare interleaved with 1f1b')")
    visit.page.wait_for_selector(".st-key-at-compare", state="attached")
    visit.settle()
    visit.page.wait_for_selector("text=Timelines, aligned by step")
    visit.check()


def test_a_lesson_is_chosen_and_the_address_keeps_it(visit: Visit) -> None:
    visit.go("learn?lesson=zero")
    assert visit.page.wait_for_function(PICTURES).json_value() == 4
    visit.page.wait_for_selector("text=No run of this lesson is open")
    assert visit.page.locator("th").count() > 4
    visit.check()
