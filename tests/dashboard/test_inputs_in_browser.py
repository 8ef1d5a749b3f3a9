"""Inputs of pages in a real browser: the address contains them, and the back button undoes them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from dashboard_visit import Visit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
BOXES = "[data-testid='stMain'] [data-testid='stCheckbox'] label"
TICKED = f"{BOXES}:has(input:checked)"
UNFOLDED = "[data-testid='stMain'] details[open]"
COUNT = "input[aria-label='Micro-batches']"


@pytest.fixture(scope="module")
def window(browser: Browser, server: str) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    yield Visit(context.new_page(), server)
    context.close()


@pytest.mark.parametrize(
    ("path", "input_", "chosen", "parameter"),
    [
        ("ranks", "summary:has-text('Critical path')", UNFOLDED, "open"),
        ("suggestions", BOXES, TICKED, "ticked"),
        ("suggestions", "summary:has-text('All findings')", f"{UNFOLDED} >> text=All findings", "open"),
        ("?open=by-rank", "[role=radio]:has-text('most')", "[role=radio][aria-checked=true]:has-text('most')", "order"),
    ],
)
def test_the_back_button_undoes_a_choice(window: Visit, path: str, input_: str, chosen: str, parameter: str) -> None:
    """Folds and ticks stayed as they were, and wrote the address again."""
    window.go(path)
    before = window.page.url
    window.page.locator(input_).first.click()
    window.page.wait_for_selector(chosen)
    window.page.wait_for_url(re.compile(f"{parameter}="))
    window.settle()
    window.page.go_back()
    window.page.wait_for_url(before)
    window.page.wait_for_selector(chosen, state="detached")
    window.settle()
    assert window.page.url == before
    window.check()


def test_another_run_has_none_of_the_ticks(window: Visit) -> None:
    window.go("suggestions?run=recorded-1f1b&ticked=0")
    window.page.wait_for_selector(TICKED)
    window.page.locator("section[data-testid='stSidebar'] [data-testid='stSelectbox'] input").click()
    window.page.click("[role=option]:has-text('eight-ranks')")
    window.page.wait_for_url(re.compile("run=eight-ranks"))
    window.page.wait_for_selector("text=no change selected")
    window.page.wait_for_selector(TICKED, state="detached")
    window.settle()
    assert "ticked" not in window.page.url
    window.check()


def test_a_tick_below_a_fold_stays_when_it_is_folded(window: Visit) -> None:
    window.go("suggestions?run=eight-ranks")
    number = window.page.locator(BOXES).count()
    window.page.click("summary:has-text('more:')")
    window.page.wait_for_function(f'() => document.querySelectorAll("{BOXES}").length > {number}')
    window.settle()
    enabled = window.page.locator(f"{BOXES}:not(:has(input:disabled))")
    enabled.last.click()
    window.page.wait_for_url(re.compile("ticked="))
    window.page.wait_for_selector("text=1 selected")
    window.settle()
    window.page.click("summary:has-text('more:')")
    window.page.wait_for_url(lambda url: "open=" not in url)
    window.settle()
    assert "ticked=" in window.page.url
    window.page.wait_for_selector("text=1 selected")
    window.check()


def test_a_number_of_a_link_can_be_removed(window: Visit) -> None:
    """An input with a default went back to it."""
    window.go("whatif?run=eight-ranks&edits=micro_batches%3D4")
    assert window.page.input_value(COUNT) == "4"
    window.page.fill(COUNT, "")
    window.page.press(COUNT, "Enter")
    window.page.wait_for_url(lambda url: "edits=" not in url)
    window.settle()
    assert window.page.input_value(COUNT) == ""
    window.check()


def test_a_typed_change_moves_to_its_own_input(window: Visit) -> None:
    field = "input[aria-label='More changes, separated by spaces']"
    window.go("whatif?run=eight-ranks")
    window.page.fill(field, "rank_as_peers=all micro_batches=4")
    window.page.press(field, "Enter")
    window.page.wait_for_url(re.compile("micro_batches"))
    window.page.wait_for_function(f"() => document.querySelector(\"{COUNT}\").value === '4'")
    window.settle()
    assert window.page.input_value(field) == "rank_as_peers=all"
    window.check()


def test_the_axes_of_a_chart_are_in_the_link(window: Visit) -> None:
    window.go("query?run=recorded-1f1b&x=op&y=parts")
    assert window.page.input_value("input[aria-label='Horizontal']") == "op"
    assert window.page.input_value("input[aria-label='Vertical']") == "parts"
    window.check()


def test_a_comparison_with_a_run_that_is_not_served_is_refused(window: Visit) -> None:
    """The link showed a comparison with another run."""
    window.go("compare?run=eight-ranks&before=repaired~1f0c93ab")
    window.page.wait_for_selector("[data-testid='stAlert']:has-text('is not served here')")
    assert window.page.locator("h1.usp-verdict").count() == 0
    assert "before=repaired" in window.page.url
    window.page.locator("[data-testid='stMain'] [data-testid='stSelectbox'] input").first.click()
    window.page.click("[role=option]:has-text('recorded-1f1b')")
    window.page.wait_for_selector("h1.usp-verdict:has-text('recorded-1f1b')")
    window.check()


def test_a_refused_change_is_explained_on_the_first_screen(window: Visit) -> None:
    """The explanation was below the inputs, and the first screen was empty."""
    window.go("whatif?run=eight-ranks&edits=rank_as_peers%3D99")
    box = window.page.locator("[data-testid='stAlert']:has-text('has no rank 99')").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 400
    window.check()
