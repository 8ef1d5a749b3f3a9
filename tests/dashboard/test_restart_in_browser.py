"""Server restart under an open page: it keeps its picture, and continues when the server is back."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from dashboard_visit import FIND, Visit

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
OTHER_HOST = "127.0.0.2"
"""An address of this machine; the server requires a token on all but 127.0.0.1."""
COLORS = f"""() => {{ {FIND} const {{ width, height }} = line.canvas;
  const pixels = line.canvas.getContext('2d').getImageData(0, 0, width, height).data;
  return new Set(new Uint32Array(pixels.buffer)).size; }}"""


def test_an_open_page_continues_when_the_server_is_back(
    serving: Callable[..., AbstractContextManager[str]], browser: Browser, run_folder: Path
) -> None:
    with serving(run_folder) as address:
        visit = Visit(browser.new_page(viewport={"width": 1440, "height": 900}), address)
        visit.go("timeline")
        visit.until_timeline("host.dataset.sharp === 'true'")
    visit.on_timeline("(line.canvas.focus(), 1)")
    visit.page.keyboard.press("w")
    visit.until_timeline("line.away > 1 && !line.message")
    visit.page.wait_for_selector("text=The usp-prof server does not answer")
    assert visit.page.evaluate(COLORS) > 5  # the picture of the last tile, stretched
    with serving(run_folder, port=int(address.rpartition(":")[2])):
        visit.until_timeline("line.away === 0 && host.dataset.sharp === 'true'")
        visit.turn_to("Ranks")
        assert visit.page.locator("[data-testid='stException']").count() == 0
        visit.page.close()


def test_a_page_asks_for_the_new_link_when_the_server_is_back_with_another_token(
    serving: Callable[..., AbstractContextManager[str]], browser: Browser, run_folder: Path
) -> None:
    context = browser.new_context()
    with serving(run_folder, host=OTHER_HOST) as link:
        page = context.new_page()
        page.goto(link)
        page.wait_for_selector("[data-testid='stMetricValue']")
    page.wait_for_selector("text=The usp-prof server does not answer")
    with serving(run_folder, host=OTHER_HOST, port=urlsplit(link).port) as new_link:
        page.wait_for_selector("text=Open the link that it printed in another tab")
        assert "CORS" not in page.locator("[role='dialog']").inner_text()
        context.new_page().goto(new_link)
        page.wait_for_selector("[role='dialog']", state="detached")
        context.close()
