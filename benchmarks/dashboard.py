"""How quickly does the dashboard answer at the size of real runs? Prepares a big run and drives headless Chromium.

    python benchmarks/dashboard.py                                   64 ranks x 1 M slices: 4 GB of disk
    python benchmarks/dashboard.py --ranks 8 --slices 200000 --parts tile wheel
    python benchmarks/dashboard.py --folder /tmp/big --parts use     ten minutes of use; /tmp/big is kept and used again
    python benchmarks/dashboard.py --folder /tmp/big --parts use --look 0.4     six hundred pages in that time

What lies on the timeline is a recorded run's ranks, repeated and jittered until there are enough slices; the run behind
the other pages is a made-up one of as many ranks. Server and browser do all that they do for anybody. Parts:

    prepare   CPU seconds to prepare one rank, from the tables of a recorded trace repeated to size
    tile      the server's answer to a view of up to 128 rows, at all zooms
    wheel     from a turn of the wheel to the next frame, and to the sharp picture, at all zooms
    paint     from the address to Overview's key figures, findings, the step's parts and the chart of each rank's step,
              all of them drawn; how long the command takes until the address answers; from a click to another page
    switches  Bokeh's documents and views, and the page's heap, before and after 50 page switches
    users     five users at once, each turning the wheel twice a second
    ranks     Overview and Ranks of a run of 512 ranks
    use       ten minutes of turning, panning, picking and page switches: the browser's memory afterwards, in a browser
              that keeps no record of what it fetched (see plain_browser.py)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import large_trace  # noqa: E402 - after the path is set
from plain_browser import plain_browser  # noqa: E402

from dashboard.timeline import overlays, store  # noqa: E402
from dashboard.timeline.rows import Slices, rank_slices  # noqa: E402
from dashboard.timeline.tiles import encode  # noqa: E402
from usp_prof import open_run  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plain_browser import PlainPage
    from playwright.sync_api import Browser, CDPSession, Page

PORT = 8655
PARTS = ("prepare", "tile", "wheel", "paint", "switches", "users", "ranks", "use")
RECORDED = ROOT / "traces" / "recorded-5d"
ZOOMS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 1e-4, 1e-5)
MANY = 512
TURNS = 14
LOOK = """const find = (root) => { for (const e of root.querySelectorAll('*')) {
    if (e.classList && e.classList.contains('usp-timeline')) return e;
    if (e.shadowRoot) { const f = find(e.shadowRoot); if (f) return f; } } return null; };
  const frame = () => new Promise((done) => requestAnimationFrame(done));
"""
SHARP = "() => {" + LOOK + "const host = find(document); return Boolean(host && host.dataset.sharp === 'true'); }"
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
    if (pause) await new Promise((done) => setTimeout(done, pause * (0.5 + Math.random())));
    before = line.tile;
    const start = performance.now(), wheel = { deltaY: i % 2 ? 60 : -60, bubbles: true, cancelable: true };
    canvas.dispatchEvent(new WheelEvent('wheel', { ...wheel, clientX: box.left + 700, clientY: box.top + 200 }));
    await frame(); interim.push(performance.now() - start);
    await sharp(before); settled.push(performance.now() - start);
  }
  return { interim, settled };
}"""
)
USEFUL = """() => { const all = (what) => [...document.querySelectorAll(what)];
  const look = () => {
    const figures = all("[data-testid='stMetricValue']"), said = all("h1.usp-verdict").length;
    const findings = figures.some((each) => each.closest("[data-testid='stMetric']").innerText.startsWith("gain"))
      || all("[data-testid='stAlert']").length;
    const timeline = all(".st-key-worst-step [data-testid^='stBidiComponent']").length;
    if (figures.length && said && findings && timeline) window.useful ??= performance.now();
    else requestAnimationFrame(look); };
  requestAnimationFrame(look); }"""
"""Notes when Overview is of use: its sentence, key figures, findings and the timeline of the worst step are there."""
SWITCH = """async ({ name, path }) => {
  const link = [...document.querySelectorAll('a')].find((a) => a.innerText.trim() === name);
  const start = performance.now(); link.click();
  const there = () => document.querySelector(`.st-key-at-${path}`)
    && document.querySelector("[data-testid='stApp'][data-test-script-state='notRunning']");
  while (!there()) await new Promise((done) => requestAnimationFrame(done));
  return performance.now() - start;
}"""
COUNTS = """() => ({ documents: window.Bokeh ? window.Bokeh.documents.length : 0,
  views: window.Bokeh ? [...(window.Bokeh.index.roots ?? Object.values(window.Bokeh.index))].length : 0,
  heap: performance.memory.usedJSHeapSize / 1e6 })"""
HOME = ("Diagnose", "overview")
PLACES = (
    ("Communication", "communication"), ("Kernels", "kernels"), ("Ranks", "ranks"), ("Host", "host"),
    ("Query in SQL", "query"),
)  # fmt: skip
"""The links that are clicked, and the path of the page to which each leads."""


def tiled(slices: Slices, wanted: int, seed: int) -> Slices:
    """Repeat a rank's slices in time until there are enough, each copy jittered a little."""
    rng = np.random.default_rng(seed)
    span = int((slices.start_ns + slices.dur_ns).max() - slices.start_ns.min()) + 1000
    copies = max(1, -(-wanted // max(len(slices.start_ns), 1)))
    columns: dict[str, list[Any]] = {name: [] for name in ("start_ns", "dur_ns", "event", "name", "category")}
    offsets = [0]
    shifts = np.arange(copies) * span + rng.integers(0, 900, copies)
    for low, high in zip(slices.offsets[:-1], slices.offsets[1:], strict=True):
        part = slice(int(low), int(high))
        columns["start_ns"].append((slices.start_ns[part][None, :] + shifts[:, None]).ravel())
        for name in ("dur_ns", "event", "name", "category"):
            columns[name].append(np.tile(getattr(slices, name)[part], copies))
        offsets.append(offsets[-1] + copies * int(high - low))
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    return replace(slices, offsets=np.array(offsets), **joined)


def spread(name: str, values: Sequence[float], unit: str = "ms") -> None:
    """Print a median and a 90th percentile."""
    p50, p90 = np.percentile(values, [50, 90])
    print(f"{name:58} p50 {p50:8.2f}  p90 {p90:8.2f} {unit}", flush=True)


def say(name: str, value: float, unit: str) -> None:
    """Print one figure."""
    print(f"{name:58}     {value:8.2f} {unit}", flush=True)


def made_up(folder: Path, ranks: int) -> Path:
    """Make a small run of so many ranks, once."""
    traces = folder / f"run{ranks}"
    if not traces.exists():
        mesh = f"dp={ranks}" if ranks < MANY else f"dp={ranks // 8},tp=4,pp=2"
        command = [sys.executable, "-m", "usp_prof.cli.app", "synth", str(traces), "--mesh", mesh, "-q"]
        subprocess.run(command, check=True, cwd=ROOT)
    return traces


def fill(folder: Path, ranks: int, slices: int) -> Path:
    """Give a made-up run of so many ranks big timelines, once."""
    traces = made_up(folder, ranks)
    run, recorded = open_run(traces), open_run(RECORDED)
    small = [rank_slices(recorded.tables, rank) for rank in recorded.ranks]

    def write(target: Path) -> None:
        origin = min(int(one.start_ns.min()) for one in small)
        for rank in run.ranks:
            mine = small[rank % len(small)]
            big = tiled(replace(mine, rows=tuple(replace(row, rank=rank) for row in mine.rows)), slices, rank)
            store.write(big, target / f"rank{rank}")
        steps = [(i, origin + i * 10**9, origin + (i + 1) * 10**9) for i in range(20)]
        (target / "run.json").write_text(json.dumps({"steps": steps}), encoding="utf-8")

    run.derived(store.FORM, write)
    run.derived(overlays.FORM, lambda target: overlays.prepare(run.tables, target))
    return traces


def prepare_one(folder: Path, slices: int) -> None:
    """Prepare one rank from its tables, and print what it takes."""
    traces = folder / "one"
    traces.mkdir(exist_ok=True)
    if not (traces / "rank0.json").exists():
        large_trace.build(RECORDED / "rank0.json.gz", traces / "rank0.json", events=slices)
    tables = open_run(traces).tables
    for name in ("events", "activities", "steps"):
        tables.columns(name, 0)
    with tempfile.TemporaryDirectory() as target:
        began, wall = time.process_time(), time.perf_counter()
        store.prepare(tables, Path(target) / "made")
        say(
            f"prepare {len(tables.columns('events', 0)):,} events of a rank, CPU (bar 1 s)",
            time.process_time() - began,
            "s",
        )
        say("  the same by the clock", time.perf_counter() - wall, "s")


def tiles(traces: Path) -> tuple[list[float], list[float]]:
    """Ask for tiles of up to 128 rows at all zooms, in this process; gives times by the clock and of the CPU, in ms."""
    run, times, busy = open_run(traces), [], []
    folder, over = (run.derived(form, _never) for form in (store.FORM, overlays.FORM))
    lines = store.load(folder, run.ranks, over)
    rows = [(rank, i) for rank in lines.ranks for i, row in enumerate(lines.rows(rank)) if row.kind != "host"]
    for share in ZOOMS:
        for shift in np.linspace(0, 0.9, 8):
            start = int(lines.span_ns * shift * (1 - share))
            end = start + max(int(lines.span_ns * share), 1000)
            began, spent = time.perf_counter(), time.process_time()
            encode(lines.view(rows[:128], start, end, (end - start) / 1600), start, end, 1600)
            times.append(1e3 * (time.perf_counter() - began))
            busy.append(1e3 * (time.process_time() - spent))
    return times, busy


def _never(_: Path) -> None:
    raise SystemExit("the timelines are not there: run without --folder, or with another one")


@contextmanager
def served(traces: Path) -> Iterator[str]:
    """Serve a run; gives the address."""
    command = [sys.executable, "-m", "usp_prof.cli.app", "dashboard", str(traces), "--port", str(PORT), "--no-browser"]
    with subprocess.Popen(
        command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ROOT, start_new_session=True
    ) as server:
        try:
            _wait(f"http://127.0.0.1:{PORT}/_stcore/health")
            yield f"http://127.0.0.1:{PORT}"
        finally:
            os.killpg(server.pid, signal.SIGTERM)


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


def visit(browser: Browser, address: str) -> Page:
    """Open the timeline of all ranks and wait until it is sharp."""
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    page.goto(address)
    page.wait_for_function(SHARP, timeout=300_000)
    return page


def wheel(browser: Browser, address: str, ranks: int) -> None:
    """Turn the wheel at all zooms."""
    page = visit(browser, f"{address}/timeline?ranks=0-{ranks - 1}")
    interim, settled, busy = [], [], []
    meter = page.context.new_cdp_session(page)
    meter.send("Performance.enable", {"timeDomain": "threadTicks"})
    for share in ZOOMS:
        before = _task_ms(meter)
        found = page.evaluate(DRIVE, {"share": share, "turns": TURNS, "pause": 0})
        busy.append((_task_ms(meter) - before) / (TURNS + 1))
        spread(f"  {share:8g} of the run in view, wheel to sharp", found["settled"])
        interim += found["interim"]
        settled += found["settled"]
    spread("wheel to the next frame (bar: one frame, 16.7 ms)", interim)
    spread("wheel to sharp (bar p50 100, p90 200 ms)", settled)
    spread("  CPU of the page's main thread for a turn, over zooms", busy)
    page.context.close()


def _task_ms(meter: CDPSession) -> float:
    """Read the CPU time that the page's main thread has spent."""
    found = meter.send("Performance.getMetrics")["metrics"]
    return 1e3 * next(float(each["value"]) for each in found if each["name"] == "TaskDuration")


def paint(traces: Path, browser: Browser) -> None:
    """Open Overview on a new server, on one that is warm, and switch pages."""
    fresh, warm, up = [], [], []
    for _ in range(3):
        began = time.perf_counter()
        with served(traces) as address:
            up.append(1e3 * (time.perf_counter() - began))
            fresh.append(_first_useful(browser, address))
            warm += [_first_useful(browser, address) for _ in range(3)]
            page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
            page.goto(address)
            page.wait_for_function("() => document.querySelector(\"[data-test-script-state='notRunning']\")")
            switched = [page.evaluate(SWITCH, {"name": name, "path": path}) for _ in range(4) for name, path in _tour()]
            page.context.close()
    spread("the command, until its address answers", up)
    spread("Overview, server just started, empty browser (bar 2 s)", fresh)
    spread("Overview, warm server, empty browser (bar 2 s)", warm)
    spread("page switch, click to content (bar 500 ms)", switched)


def _tour() -> list[tuple[str, str]]:
    return [stop for place in PLACES for stop in (place, HOME)]


def _first_useful(browser: Browser, address: str) -> float:
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    page.add_init_script(f"({USEFUL})()")
    page.goto(address)
    page.wait_for_function("() => window.useful", timeout=120_000)
    found: float = page.evaluate("() => window.useful")
    page.context.close()
    return found


def switches(browser: Browser, address: str) -> None:
    """Switch pages 50 times and count what is left behind."""
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    page.goto(address)
    page.wait_for_selector("[data-testid='stMetricValue']", timeout=120_000)
    tour = [("Timeline", "timeline"), HOME, *_tour()]
    for name, path in tour:
        page.evaluate(SWITCH, {"name": name, "path": path})
    before = _counts(page)
    for i in range(50):
        name, path = tour[i % len(tour)]
        page.evaluate(SWITCH, {"name": name, "path": path})
    for name, path in (HOME, ("Host", "host"), tour[-1]):
        page.evaluate(SWITCH, {"name": name, "path": path})
    after = _counts(page)
    for what in before:
        print(
            f"{what + ' before and after 50 page switches':58}     {before[what]:8.1f} to {after[what]:.1f}", flush=True
        )
    page.context.close()


def _counts(page: Page) -> dict[str, float]:
    page.wait_for_timeout(1500)
    page.context.new_cdp_session(page).send("HeapProfiler.collectGarbage")
    found: dict[str, float] = page.evaluate(COUNTS)
    return found


def users(browser: Browser, address: str, ranks: int) -> None:
    """Let five users turn the wheel at once."""
    pages = [visit(browser, f"{address}/timeline?ranks=0-{ranks - 1}") for _ in range(5)]
    settled = []
    for share in (0.3, 0.03, 0.001):
        for page in pages:
            page.evaluate(
                f"(order) => {{ window.turning = ({DRIVE})(order); }}", {"share": share, "turns": 20, "pause": 500}
            )
        for page in pages:
            settled += page.evaluate("() => window.turning")["settled"]
    spread("five users at once, wheel to sharp (bar p90 300 ms)", settled)
    for page in pages:
        page.context.close()


def many(folder: Path, browser: Browser) -> None:
    """Open Overview and Ranks of a large run that is prepared."""
    traces = made_up(folder, MANY)
    with served(traces) as address:
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto(address)
        page.wait_for_selector("[data-testid='stMetricValue']", timeout=600_000)
        page.context.close()
        say(f"Overview of {MANY} ranks (bar 3 s)", _first_useful(browser, address) / 1e3, "s")
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto(address)
        page.wait_for_selector("[data-testid='stMetricValue']", timeout=600_000)
        say(
            f"Ranks of {MANY} ranks, from a click (bar 3 s)",
            page.evaluate(SWITCH, {"name": "Ranks", "path": "ranks"}) / 1e3,
            "s",
        )
        page.context.close()


def use(address: str, ranks: int, minutes: float, look: float) -> None:
    """Use the dashboard for some minutes, each page for `look` seconds: what does the page's process hold?"""
    with plain_browser() as page:
        page.goto(f"{address}/timeline?ranks=0-{ranks - 1}")
        page.until(SHARP)
        end, rounds, seen = time.monotonic() + 60 * minutes, 0, [memory()]
        while time.monotonic() < end:
            _round(page, look)
            rounds += 1
            seen.append(memory())
            say(f"  after round {rounds}, the page's process alone", seen[-1].own_mb, "MB")
        say(f"memory after {minutes:g} minutes and {rounds} rounds (bar 400 MB)", seen[-1].own_mb, "MB")
        say("  the most after any round", max(each.own_mb for each in seen), "MB")
        say("  with the program's code, which all of its processes share", seen[-1].resident_mb, "MB")
        say("  the page's heap of that", float(page.evaluate(COUNTS)["heap"]), "MB")
        for _ in range(2):
            page.collect()
            time.sleep(1.5)
        say("after a collection: the page's process alone", memory().own_mb, "MB")
        say("  the page's heap of that", float(page.evaluate(COUNTS)["heap"]), "MB")


def _round(page: PlainPage, look: float) -> None:
    """Turn the wheel at all zooms, pick a slice, and look at page after page."""
    for share in ZOOMS:
        page.evaluate(DRIVE, {"share": share, "turns": 6, "pause": 300})
    page.click(900, 400)
    time.sleep(1.5)  # a click on a page's name in the same moment would be lost
    page.until("() => Boolean(document.querySelector(\"[data-test-script-state='notRunning']\"))")
    for name, path in [*_tour(), ("Timeline", "timeline")]:
        page.evaluate(SWITCH, {"name": name, "path": path})
        time.sleep(look)
    page.until(SHARP)


@dataclass(frozen=True, slots=True)
class Memory:
    """What the largest renderer process of a browser holds, in MB."""

    own_mb: float
    """Anonymous and shared memory and swap: what Chromium's task manager shows (its private footprint), and pixels."""
    resident_mb: float
    """All pages that are mapped, the program's own code too."""


def memory() -> Memory:
    """Measure the largest renderer process."""
    found = [Memory(0.0, 0.0)]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"--type=renderer" in (folder / "cmdline").read_bytes():
                lines = (line.split() for line in (folder / "status").read_text().splitlines())
                sizes = {words[0]: int(words[1]) * 1024 / 1e6 for words in lines if words[-1] == "kB"}
                own = sizes["RssAnon:"] + sizes["RssShmem:"] + sizes["VmSwap:"]
                found.append(Memory(own, sizes["VmRSS:"]))
        except (OSError, ValueError, KeyError):
            continue
    return max(found, key=lambda each: each.own_mb)


def main() -> None:
    """Prepare, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--slices", type=int, default=1_000_000, help="slices of a rank")
    parser.add_argument(
        "--folder", type=Path, help="where the big run is kept (default: made anew, removed afterwards)"
    )
    parser.add_argument("--parts", nargs="+", choices=[*PARTS, "fill"], default=list(PARTS))
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the dashboard is used")
    parser.add_argument("--look", type=float, default=3.0, help="how many seconds each page is looked at")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["USP_PROF_CACHE"] = str(folder / "cache")
        measure(args, folder)


def measure(args: argparse.Namespace, folder: Path) -> None:
    """Measure the parts asked for."""
    parts = set(args.parts)
    if "prepare" in parts:
        prepare_one(folder, args.slices)
    if "ranks" in parts:
        with chromium() as browser:
            many(folder, browser)
    if parts <= {"prepare", "ranks"}:
        return
    traces = fill(folder, args.ranks, args.slices)
    if "tile" in parts:
        times, busy = tiles(traces)
        spread("tile of 128 rows on the server (bar p50 10 ms)", times)
        spread("  the same, CPU", busy)
    if not parts - {"prepare", "ranks", "tile", "fill"}:
        return
    with chromium() as browser:
        if parts & {"wheel", "switches", "users", "use"}:
            with served(traces) as address:
                for part, measured in (
                    ("wheel", lambda: wheel(browser, address, args.ranks)),
                    ("switches", lambda: switches(browser, address)),
                    ("users", lambda: users(browser, address, args.ranks)),
                    ("use", lambda: use(address, args.ranks, args.minutes, args.look)),
                ):
                    if part in parts:
                        measured()
        if "paint" in parts:
            paint(traces, browser)


if __name__ == "__main__":
    main()
