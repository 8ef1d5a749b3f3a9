"""Each page in a real browser: nothing fails, nothing is blank, nothing leaves this machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from dashboard.pages import PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
EXPECTED_404 = re.compile(r"/_stcore/(health|host-config)$")
"""Streamlit looks for its own root from a page's address; the first tries miss."""
PATIENCE_MS = 60_000


class Visit:
    """A page and what went wrong on it."""

    def __init__(self, page: Page, address: str) -> None:
        self.page, self.address = page, address
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(f"page error: {error}"))
        page.on("console", lambda message: self._console(message.type, message.text))
        page.on("request", lambda request: self._request(request.url))
        page.on("response", lambda response: self._response(response.status, response.url))

    def _console(self, kind: str, text: str) -> None:
        if kind == "error" and "404" not in text:
            self.faults.append(f"console: {text}")

    def _request(self, url: str) -> None:
        host = self.address.removeprefix("http://")
        if not url.startswith((self.address, f"ws://{host}", "data:", "blob:")):
            self.faults.append(f"left this machine: {url}")

    def _response(self, status: int, url: str) -> None:
        if status >= 400 and not EXPECTED_404.search(url):
            self.faults.append(f"{status} {url}")

    def go(self, path: str) -> None:
        self.page.goto(f"{self.address}/{path}")
        self.page.wait_for_selector("section[data-testid='stSidebar'] >> text=usp-prof", timeout=PATIENCE_MS)
        idle = "[data-testid='stApp'][data-test-script-state='notRunning']"
        self.page.wait_for_selector(idle, timeout=PATIENCE_MS)

    def check(self) -> None:
        exceptions = self.page.locator("[data-testid='stException']")
        assert exceptions.count() == 0, exceptions.first.inner_text()
        assert self.faults == []


@pytest.fixture(params=["light", "dark"])
def visit(browser: Browser, server: str, request: pytest.FixtureRequest) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1440, "height": 1000}, color_scheme=request.param)
    yield Visit(context.new_page(), server)
    context.close()


@pytest.fixture
def light(browser: Browser, server: str) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    yield Visit(context.new_page(), server)
    context.close()


def test_every_page_is_drawn_without_a_fault(visit: Visit) -> None:
    for page in PAGES:
        visit.go(page.PATH if page is not PAGES[0] else "")
        visit.page.wait_for_timeout(300)
        visit.check()
        shown = visit.page.inner_text("[data-testid='stMain']")
        assert len(shown) > 40, f"{page.TITLE} shows nothing: {shown}"


def painted(page: Page) -> dict[str, float]:
    """Count the colours on the timeline and read its range."""
    return page.evaluate(
        """() => { const find = (root) => { for (const e of root.querySelectorAll('*')) {
            if (e.classList && e.classList.contains('usp-timeline')) return e;
            if (e.shadowRoot) { const f = find(e.shadowRoot); if (f) return f; } } return null; };
          const host = find(document), canvas = host.querySelector('canvas'), line = host.timeline;
          const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data, seen = new Set();
          for (let i = 0; i < data.length; i += 4) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
          return { colors: seen.size, start: line.start, end: line.end, span: line.head.span_ns,
                   top: canvas.getBoundingClientRect().top, left: canvas.getBoundingClientRect().left,
                   slices: line.tile && line.tile.start ? line.tile.start.length : 0 }; }"""
    )


def test_the_timeline_is_zoomed_panned_and_remembered(light: Visit) -> None:
    page = light.page
    light.go("timeline")
    page.wait_for_timeout(800)
    whole = painted(page)
    assert whole["colors"] > 5
    assert (whole["start"], whole["end"]) == (0, whole["span"])
    page.mouse.move(whole["left"] + 700, whole["top"] + 60)
    for _ in range(10):
        page.mouse.wheel(0, -120)
    page.wait_for_timeout(600)
    zoomed = painted(page)
    assert zoomed["end"] - zoomed["start"] < 0.2 * whole["span"]
    page.keyboard.press("Tab")
    page.mouse.click(whole["left"] + 700, whole["top"] + 60)
    page.keyboard.press("d")
    page.wait_for_timeout(600)
    moved = painted(page)
    assert moved["start"] > zoomed["start"]
    assert f"range={round(moved['start'])}-{round(moved['end'])}" in page.url
    linked = Visit(page.context.new_page(), light.address)
    linked.go(page.url.removeprefix(f"{light.address}/"))
    linked.page.wait_for_timeout(800)
    again = painted(linked.page)
    assert abs(again["start"] - moved["start"]) <= 1
    linked.check()
    light.check()


def test_a_click_shows_what_a_slice_is(light: Visit) -> None:
    page = light.page
    light.go("timeline")
    page.wait_for_timeout(800)
    view = painted(page)
    spot = page.evaluate(
        """() => { const find = (root) => { for (const e of root.querySelectorAll('*')) {
            if (e.classList && e.classList.contains('usp-timeline')) return e;
            if (e.shadowRoot) { const f = find(e.shadowRoot); if (f) return f; } } return null; };
          const line = find(document).timeline, tile = line.tile; let best = 0;
          for (let i = 0; i < tile.dur.length; i++) if (tile.dur[i] > tile.dur[best]) best = i;
          let place = 0; while (tile.first[place + 1] <= best) place++;
          const row = line.rows.find((r) => tile.places.get(r.label) === place);
          const scale = (tile.end_ns - tile.start_ns) / tile.width;
          const at = tile.start_ns + (tile.start[best] + tile.dur[best] / 2) * scale;
          return { x: line.toX(at), y: line.rowY(row) + row.height / 2, name: line.names[tile.name[best]] }; }"""
    )
    page.mouse.click(view["left"] + spot["x"], view["top"] + spot["y"])
    page.wait_for_selector(f"text={spot['name'][:40]}", timeout=PATIENCE_MS)
    light.check()


@pytest.mark.parametrize(
    "path",
    [
        "timeline?range=9-1&ranks=<script>alert(1)</script>&find=((&steps=..%2F..",
        "query?sql=SELECT%20*%20FROM%20read_csv('%2Fetc%2Fpasswd')",
        "query?sql=COPY%20events%20TO%20'%2Ftmp%2Fstolen.csv'",
        "?run=999&ranks=999999999999999999999&steps=-1",
    ],
)
def test_hostile_addresses_do_no_harm(light: Visit, path: str) -> None:
    light.go(path)
    light.page.wait_for_timeout(500)
    light.check()
    assert "root:" not in light.page.inner_text("body")


@pytest.mark.parametrize(
    "query",
    [
        "/usp/tile",
        "/usp/tile?run=0&t0=0&t1=100&w=10&rows=0.99999",
        "/usp/tile?run=0&t0=100&t1=0&w=10&rows=0.0",
        "/usp/tile?run=0&t0=0&t1=100&w=99999999&rows=0.0",
        "/usp/tile?run=7&t0=0&t1=100&w=10&rows=0.0",
        "/usp/timeline?run=../../etc/passwd",
    ],
)
def test_routes_refuse_what_is_out_of_bounds(light: Visit, query: str) -> None:
    answer = light.page.request.get(f"{light.address}{query}")
    assert answer.status == 400
    assert len(answer.text()) < 200
