"""Headless Chromium on the dashboard: server, browser, scripts that run in the page, and its process's memory."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from harness import ROOT
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from playwright.sync_api import Browser, Page

PORT = 8655
LOOK = """const find = (root) => { for (const e of root.querySelectorAll('*')) {
    if (e.classList && e.classList.contains('usp-timeline')) return e;
    if (e.shadowRoot) { const f = find(e.shadowRoot); if (f) return f; } } return null; };
  const frame = () => new Promise((done) => requestAnimationFrame(done));
"""
SHARP = "() => {" + LOOK + "const host = find(document); return Boolean(host && host.dataset.sharp === 'true'); }"
"""Returns whether the timeline shows the picture of its last move, rather than a stretched older one."""
DRIVE = (
    "async ({ share, turns, pause }) => {"
    + LOOK
    + """
  const line = find(document).timeline, canvas = line.canvas, span = line.head.span_ns;
  const box = canvas.getBoundingClientRect();
  const sharp = async (before) => { while (line.tile === before || !line.tile) await frame(); await frame(); };
  line.start = span * (0.2 + 0.5 * Math.random()); line.end = line.start + span * share;
  let before = line.tile; line.moved(); await sharp(before);
  const interim = [], settled = [];
  for (let i = 0; i < turns; i++) {
    // A hand turns at any moment; right after a frame, each turn would wait for the whole next one.
    await new Promise((done) => setTimeout(done, pause * (0.5 + Math.random()) + 16.7 * Math.random()));
    before = line.tile;
    const start = performance.now();
    const wheel = { deltaY: i % 2 ? 60 : -60, ctrlKey: true, bubbles: true, cancelable: true };
    canvas.dispatchEvent(new WheelEvent('wheel', { ...wheel, clientX: box.left + 700, clientY: box.top + 200 }));
    await frame(); interim.push(performance.now() - start);
    await sharp(before); settled.push(performance.now() - start);
  }
  return { interim, settled };
}"""
)
"""Turns the wheel `turns` times with `share` of the run in view; returns milliseconds to the next and to the sharp
frame."""
USEFUL = """() => { const all = (what) => [...document.querySelectorAll(what)];
  const look = () => {
    const figures = all("[data-testid='stMetricValue']"), said = all("h1.usp-verdict").length;
    const findings = figures.some((each) => each.closest("[data-testid='stMetric']").innerText.startsWith("gain"))
      || all("[data-testid='stAlert']").length;
    const timeline = all(".st-key-worst-step [data-testid^='stBidiComponent']").length;
    if (figures.length && said && findings && timeline) window.useful ??= performance.now();
    else requestAnimationFrame(look); };
  requestAnimationFrame(look); }"""
"""Records when Overview is usable: its sentence, key figures, findings and the timeline of the worst step exist."""
SWITCH = """async ({ name, path }) => {
  const link = [...document.querySelectorAll('a')].find((a) => a.innerText.trim() === name);
  const start = performance.now(); link.click();
  const there = () => document.querySelector(`.st-key-at-${path}`)
    && document.querySelector("[data-testid='stApp'][data-test-script-state='notRunning']");
  while (!there()) await new Promise((done) => requestAnimationFrame(done));
  return performance.now() - start;
}"""
"""Clicks a page's link; returns milliseconds until that page is drawn."""
COUNTS = """() => ({ documents: window.Bokeh ? window.Bokeh.documents.length : 0,
  views: window.Bokeh ? [...(window.Bokeh.index.roots ?? Object.values(window.Bokeh.index))].length : 0,
  heap: performance.memory.usedJSHeapSize / 1e6 })"""
PLAYABLE = "() => {" + LOOK + "const host = find(document); return Boolean(host?.timeline?.playButton); }"
LONGEST_FRAMES = (
    "async () => {"
    + LOOK
    + """
  const host = find(document), found = [];
  for (let i = 0; i < 5; i++) {
    delete host.dataset.longestFrame;
    host.timeline.playButton.click();
    while (!host.dataset.longestFrame) await frame();
    found.push(Number(host.dataset.longestFrame));
  }
  return [found, host.timeline.tile.start.length];
}"""
)
"""Plays five times; returns the longest frame of each in ms, and the number of moving slices."""
WALL_DRAWN = """() => { const find = (root) => { for (const e of root.querySelectorAll('*')) {
    if (e.matches('.usp-wall')) return e;
    if (e.shadowRoot) { const f = find(e.shadowRoot); if (f) return f; } } return null; };
  return Number(find(document)?.dataset.drawn ?? 0); }"""
"""Milliseconds from the wall's request to its picture; 0 until it is drawn."""
PICK = (
    "async (share) => {"
    + LOOK
    + """
  const host = find(document), line = host.timeline, tile = line.tile, canvas = line.canvas;
  const box = canvas.getBoundingClientRect(), scale = (tile.end_ns - tile.start_ns) / tile.width;
  const inView = (i) => { let place = 0; while (tile.first[place + 1] <= i) place++;
    const row = line.rows.find((each) => tile.places.get(each.label) === place);
    const x = line.toX(tile.start_ns + (tile.start[i] + tile.dur[i] / 2) * scale);
    const y = row && line.rowY(row) + row.height / 2;
    const isIn = row && x > line.gutter() + 5 && x < line.width - 5 && y > 60 && y < line.viewHeight - 5;
    const isNew = tile.event[i] >= 0 && `${row?.rank}.${tile.event[i]}` !== host.dataset.detailed;
    return isIn && isNew && row.kind === 'device' ? [x, y] : null; };
  let at = null;
  const first = Math.floor(share * tile.dur.length);
  for (let i = first; i < tile.dur.length && !at; i++) if (tile.dur[i] > 2) at = inView(i);
  if (!at) return null;
  const before = host.dataset.detailed, hand = (kind) => canvas.dispatchEvent(new MouseEvent(kind, {
    bubbles: true, composed: true, clientX: box.left + at[0], clientY: box.top + at[1] }));
  const start = performance.now();
  hand('mousemove'); hand('mousedown'); hand('mouseup'); hand('click');
  while (host.dataset.detailed === before && performance.now() - start < 5000) await frame();
  await frame();
  return performance.now() - start;
}"""
)
"""Clicks a slice; returns the milliseconds until its details are shown, or None without a slice in view."""
AREA = (
    "async ({ share, all }) => {"
    + LOOK
    + """
  const host = find(document), line = host.timeline, canvas = line.canvas, box = canvas.getBoundingClientRect();
  const hand = (target, kind, x, y) => target.dispatchEvent(new MouseEvent(kind, {
    bubbles: true, composed: true, shiftKey: true, clientX: box.left + x, clientY: box.top + y }));
  const before = host.dataset.listed, left = line.gutter() + 4, right = left + (line.width - left - 4) * share;
  const [top, bottom] = all ? [20, 24] : [60, line.viewHeight - 4]; // along the axis: all rows, in view or not
  hand(canvas, 'mousedown', left, top); hand(canvas, 'mousemove', right, bottom);
  const start = performance.now();
  hand(canvas, 'mouseup', right, bottom);
  while (!host.dataset.listed || host.dataset.listed === before) await frame();
  await frame();
  return performance.now() - start;
}"""
)
"""Selects an area over all rows, or those in view; returns the milliseconds until its contents are listed and drawn."""
ZOOMS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 1e-4, 1e-5)
"""Visible shares of the run."""
HOME = ("Diagnose", "overview")
PLACES = (
    ("Communication", "communication"), ("Kernels", "kernels"), ("Ranks", "ranks"), ("Host", "host"),
    ("Query in SQL", "query"),
)  # fmt: skip
"""Links to click, and the path of the page to which each leads."""


def spread(name: str, values: Sequence[float], unit: str = "ms") -> None:
    """Print a median and a 90th percentile."""
    p50, p90 = np.percentile(values, [50, 90])
    print(f"{name:58} p50 {p50:8.2f}  p90 {p90:8.2f} {unit}", flush=True)


def say(name: str, value: float, unit: str) -> None:
    """Print one value."""
    print(f"{name:58}     {value:8.2f} {unit}", flush=True)


def tour() -> list[tuple[str, str]]:
    """Return the pages to visit in order: each place, alternating with home."""
    return [stop for place in PLACES for stop in (place, HOME)]


@contextmanager
def served(*runs: Path) -> Iterator[str]:
    """Serve runs, and yield the address; stop if another server has the port, since its figures would be measured."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            raise SystemExit(f"port {PORT} is in use, perhaps by a server of an earlier benchmark: end it first")
    command = [sys.executable, "-m", "usp_prof.cli.app", "dashboard", *map(str, runs)]
    with subprocess.Popen(
        [*command, "--port", str(PORT), "--no-browser"],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
        start_new_session=True,
    ) as server:
        try:
            _wait(f"http://127.0.0.1:{PORT}/_stcore/health")
            yield f"http://127.0.0.1:{PORT}"
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a headless browser."""
    options = ["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"]
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        try:
            yield browser
        finally:
            browser.close()


def _wait(address: str) -> None:
    for _ in range(1500):
        try:
            with urllib.request.urlopen(address, timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the dashboard did not start")


def new_page(browser: Browser) -> Page:
    """Open an empty page in a browser without a cache."""
    return browser.new_context(viewport={"width": 1440, "height": 900}).new_page()


def visit(browser: Browser, address: str) -> Page:
    """Open the timeline of all ranks and wait until it is sharp."""
    page = new_page(browser)
    page.goto(address)
    page.wait_for_function(SHARP, timeout=300_000)
    return page


def first_useful(browser: Browser, address: str) -> float:
    """Return the milliseconds until Overview is usable, in an empty browser."""
    page = new_page(browser)
    page.add_init_script(f"({USEFUL})()")
    page.goto(address)
    page.wait_for_function("() => window.useful", timeout=120_000)
    useful_ms: float = page.evaluate("() => window.useful")
    page.context.close()
    return useful_ms


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a browser's largest renderer process, in MB."""

    own_mb: float
    """Anonymous and shared memory and swap (the private footprint in Chromium's task manager), and pixels."""
    resident_mb: float
    """All mapped pages, including the program's code."""


def memory() -> Memory:
    """Measure the largest renderer process."""
    renderers = [Memory(0.0, 0.0)]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"--type=renderer" in (folder / "cmdline").read_bytes():
                lines = (line.split() for line in (folder / "status").read_text().splitlines())
                sizes = {words[0]: int(words[1]) * 1024 / 1e6 for words in lines if words[-1] == "kB"}
                own = sizes["RssAnon:"] + sizes["RssShmem:"] + sizes["VmSwap:"]
                renderers.append(Memory(own, sizes["VmRSS:"]))
        except (OSError, ValueError, KeyError):
            continue
    return max(renderers, key=lambda process: process.own_mb)
