"""Visits to a page in a real browser: errors on it, and waits for conditions instead of a fixed time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dashboard.pages import PAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

PATIENCE_MS = 120_000
EXPECTED_404 = re.compile(r"/_stcore/(health|host-config)$")
"""Streamlit looks for its own root from a page's address; the first tries miss."""
FIND = """const find = (root) => { for (const e of root.querySelectorAll('*')) {
  if (e.classList && e.classList.contains('usp-timeline')) return e;
  if (e.shadowRoot) { const f = find(e.shadowRoot); if (f) return f; } } return null; };
const host = find(document), line = host && host.timeline;
"""
SETTLED = """() => {
  if (!document.querySelector("[data-testid='stApp'][data-test-script-state='notRunning']")) return false;
  const busy = "[data-testid='stSpinner'], [data-testid='stSkeleton'], [data-testid='stProgress']";
  if (document.querySelector(busy)) return false;
  const parts = (root, found) => { for (const e of root.querySelectorAll('*')) {
    if (e.matches('.usp-figure, .usp-timeline, .usp-wall, .usp-palette')) found.push(e);
    if (e.shadowRoot) parts(e.shadowRoot, found); } return found; };
  const isReady = (e) => e.dataset.ready || e.dataset.sharp === 'true' || e.dataset.drawn || e.palette?.data;
  // A component is on the page before its own elements are, and these before its script listens to keys.
  return [...document.querySelectorAll("[data-testid^='stBidiComponent']")].every((component) => {
    const found = parts(component, []).concat(component.shadowRoot ? parts(component.shadowRoot, []) : []);
    return found.length && found.every(isReady); });
}"""
"""The script has ended, every chart, timeline and wall is drawn, and the palette listens to its keys."""
COLORS = """() => {
  const most = (root, found) => { for (const e of root.querySelectorAll('*')) {
    if (e.shadowRoot) most(e.shadowRoot, found);
    if (!(e instanceof HTMLCanvasElement) || !e.width || !e.height) continue;
    const data = e.getContext('2d').getImageData(0, 0, e.width, e.height).data, seen = new Set();
    for (let i = 0; i < data.length; i += 4) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
    found.push(seen.size); } return found; };
  const hosts = [];
  const walk = (root) => { for (const e of root.querySelectorAll('*')) {
    if (e.matches('.usp-figure, .usp-timeline')) hosts.push(e); else if (e.shadowRoot) walk(e.shadowRoot); } };
  walk(document);
  return hosts.filter((host) => host.checkVisibility()).map((host) => Math.max(0, ...most(host, [])));
}"""
"""Script that returns the number of colors on each chart: the maximum over its canvases."""


LONGEST = """(() => { const t = line.tile; let best = -1;
  for (let i = 0; i < t.dur.length; i++)
    if (line.names[t.name[i]] === 'NAME' && (best < 0 || t.dur[i] > t.dur[best])) best = i;
  let place = 0; while (t.first[place + 1] <= best) place++;
  const row = line.rows.find((r) => t.places.get(r.label) === place), scale = (t.end_ns - t.start_ns) / t.width;
  const left = Math.max(line.toX(t.start_ns + t.start[best] * scale), line.gutter() + 2);
  const right = Math.min(line.toX(t.start_ns + (t.start[best] + t.dur[best]) * scale), line.width - 2);
  return [(left + right) / 2, line.rowY(row) + row.height / 2]; })()"""
"""The middle of the longest slice of a name."""


def link_to(title: str) -> str:
    """Select the link to a page: among the other pages of its section, or in the sidebar."""
    return f"[class*='st-key-at-'] a:has-text('{title}'), section[data-testid='stSidebar'] a:has-text('{title} in SQL')"


class Visit:
    """A page and its errors."""

    def __init__(self, page: Page, address: str) -> None:
        self.page, self.address = page, address
        self.faults: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.faults.append(f"page error: {error}"))
        page.on("console", lambda message: self._console(message.type, message.text))
        page.on("dialog", lambda dialog: self._dialog(dialog.message, dialog.dismiss))
        page.on("request", lambda request: self._request(request.url))
        page.on("response", lambda response: self._response(response.status, response.url))

    def _console(self, kind: str, text: str) -> None:
        if kind == "error" and "404" not in text:
            self.faults.append(f"console: {text}")

    def _dialog(self, text: str, dismiss: Callable[[], None]) -> None:
        self.faults.append(f"dialog: {text}")
        dismiss()

    def _request(self, url: str) -> None:
        host = self.address.removeprefix("http://")
        if not url.startswith((self.address, f"ws://{host}", "data:", "blob:")):
            self.faults.append(f"left this machine: {url}")

    def _response(self, status: int, url: str) -> None:
        if status >= 400 and not EXPECTED_404.search(url):
            self.faults.append(f"{status} {url}")

    def go(self, path: str) -> None:
        """Open an address and wait until its page is drawn."""
        self.page.goto(f"{self.address}/{path}")
        self.page.wait_for_selector("section[data-testid='stSidebar'] >> text=usp-prof", state="attached")
        self.settle()

    def settle(self) -> None:
        """Wait until the script has run, every chart is drawn and the timeline is sharp."""
        self.page.wait_for_function(SETTLED)

    def turn_to(self, title: str) -> None:
        """Switch to a page by its link, through its section if that is another."""
        page = next(page for page in PAGES if page.title == title)
        if self.page.locator(link_to(page.title)).count() == 0:
            self.page.click(f".st-key-room-{page.room.name.lower()} a")
            room = [
                other_page.path for other_page in PAGES if other_page.room is page.room
            ]  # it opens the first page that shows anything
            self.page.wait_for_selector(", ".join(f".st-key-at-{path}" for path in room), state="attached")
        if self.page.locator(f".st-key-at-{page.path}").count() == 0:
            self.page.locator(link_to(page.title)).first.click()
        self.page.wait_for_selector(f".st-key-at-{page.path}", state="attached")
        self.settle()

    def on_timeline(self, script: str) -> Any:
        """Evaluate an expression in which `line` is the timeline, once it exists."""
        result = f"line && line.head && line.tile && {{ value: {script} }}"
        return self.page.wait_for_function(f"() => {{ {FIND} return {result}; }}").json_value()["value"]

    def until_timeline(self, condition: str) -> None:
        """Wait until an expression of the timeline holds."""
        self.page.wait_for_function(f"() => {{ {FIND} return line && line.head && ({condition}); }}")

    def point(self, script: str) -> tuple[float, float]:
        """Return the position on the page of [x, y] on the timeline's canvas."""
        inside = f"(([x, y], box) => [box.left + x, box.top + y])({script}, line.canvas.getBoundingClientRect())"
        x, y = self.on_timeline(inside)
        return float(x), float(y)

    def drag(self, start: tuple[float, float], end: tuple[float, float], key: str = "") -> None:
        """Drag from one position to another while holding a key."""
        mouse, keyboard = self.page.mouse, self.page.keyboard
        if key:
            keyboard.down(key)
        mouse.move(*start)
        mouse.down()
        mouse.move(*end, steps=4)
        mouse.up()
        if key:
            keyboard.up(key)

    def check(self) -> None:
        """Fail if the page has errors."""
        exceptions = self.page.locator("[data-testid='stException']")
        assert exceptions.count() == 0, exceptions.first.inner_text()
        assert self.faults == [], self.faults
        self.page.wait_for_function(f"() => ({COLORS})().every((colors) => colors > 2)")  # a page just left may fade
