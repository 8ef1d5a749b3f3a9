"""Response times of the dashboard at the size of real runs, measured with headless Chromium.

    python benchmarks/dashboard_speed.py    64 ranks x 1 M slices: 4 GB of disk
    python benchmarks/dashboard_speed.py --ranks 8 --slices 200000 --parts tile wheel
    python benchmarks/dashboard_speed.py --folder /tmp/big --parts use   ten minutes of use; /tmp/big is kept and reused
    python benchmarks/dashboard_speed.py --folder /tmp/big --parts use --look 0.4     six hundred pages in that time

The timeline has the ranks of a recorded run, repeated with jitter until there are enough slices. The other pages use a
synthetic run with the same number of ranks. Server and browser run as for any user. Parts:

    prepare   CPU seconds to prepare one rank, from the tables of a recorded trace repeated to size
    tile      the server's answer to a view of up to 128 rows, at all zooms
    wheel     from a turn of the wheel to the next frame, and to the sharp picture, at all zooms
    pick      from a click on a slice to its details, and the page's reruns meanwhile
    report    size of the HTML report of 8 recorded and 64 synthetic ranks, and its first paint
    paint     from the address to Overview's key figures, findings, the step's parts and the chart of each rank's step,
              all of them drawn; from the command's start until the address answers; from a click to another page
    switches  Bokeh's documents and views, and the page's heap, before and after 50 page switches
    play      the longest frame while a repair of 16 ranks is played, from recorded to predicted
    users     five concurrent users, each turning the wheel twice per second, while the server reads another run
    ranks     Overview and Ranks of a run of 512 ranks
    wall      the wall of 1,024 ranks on the Ranks page, from the request to the picture
    area      from selecting an area (rows in view or all ranks, up to the whole run) to the list of its contents
    use       ten minutes of turning, panning, picking and page switches: the browser's memory afterwards, in a browser
              that does not store fetched data (see dashboard_use.py)
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from dashboard_pages import (
    AREA,
    COUNTS,
    DRIVE,
    HOME,
    LONGEST_FRAMES,
    PICK,
    PLAYABLE,
    SHARP,
    SWITCH,
    WALL_DRAWN,
    ZOOMS,
    chromium,
    first_useful,
    new_page,
    say,
    served,
    spread,
    tour,
    visit,
)
from dashboard_runs import (
    MANY,
    PLAYED,
    RECORDED,
    SLOW,
    UNREAD,
    WALLED,
    fill,
    made_up,
    never_read,
    prepare_one,
    tiles,
    with_slow_rank,
)
from dashboard_use import use
from harness import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, CDPSession, Page

PARTS = (
    "prepare",
    "tile",
    "wheel",
    "pick",
    "paint",
    "switches",
    "play",
    "users",
    "ranks",
    "wall",
    "area",
    "report",
    "use",
)
TURNS = 14
"""Turns of the wheel at each zoom."""


def wheel(browser: Browser, address: str, ranks: int) -> None:
    """Turn the wheel at all zooms."""
    page = visit(browser, f"{address}/timeline?ranks=0-{ranks - 1}")
    interim, settled, busy = [], [], []
    meter = page.context.new_cdp_session(page)
    meter.send("Performance.enable", {"timeDomain": "threadTicks"})
    for share in ZOOMS:
        before = _task_ms(meter)
        times_ms = page.evaluate(DRIVE, {"share": share, "turns": TURNS, "pause": 0})
        busy.append((_task_ms(meter) - before) / (TURNS + 1))
        spread(f"  {share:8g} of the run in view, wheel to sharp", times_ms["settled"])
        interim += times_ms["interim"]
        settled += times_ms["settled"]
    spread("wheel to the next frame (bar: one frame, 16.7 ms)", interim)
    spread("wheel to sharp (bar p50 100, p90 200 ms)", settled)
    spread("  CPU of the page's main thread for a turn, over zooms", busy)
    page.context.close()


def _task_ms(meter: CDPSession) -> float:
    """Return the CPU time of the page's main thread."""
    metrics = meter.send("Performance.getMetrics")["metrics"]
    return 1e3 * next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


def paint(traces: Path, browser: Browser) -> None:
    """Open Overview on a cold and a warm server, and switch pages."""
    fresh, warm, up = [], [], []
    for _ in range(3):
        began = time.perf_counter()
        with served(traces) as address:
            up.append(1e3 * (time.perf_counter() - began))
            fresh.append(first_useful(browser, address))
            warm += [first_useful(browser, address) for _ in range(3)]
            page = new_page(browser)
            page.goto(address)
            page.wait_for_selector("[data-testid='stMetricValue']", timeout=120_000)
            switched = [page.evaluate(SWITCH, {"name": name, "path": path}) for _ in range(4) for name, path in tour()]
            page.context.close()
    spread("the command, until its address answers", up)
    spread("Overview, server just started, empty browser (bar 2 s)", fresh)
    spread("Overview, warm server, empty browser (bar 2 s)", warm)
    spread("page switch, click to content (bar 500 ms)", switched)


def switches(browser: Browser, address: str) -> None:
    """Switch pages 50 times, and count leftover objects."""
    page = new_page(browser)
    page.goto(address)
    page.wait_for_selector("[data-testid='stMetricValue']", timeout=120_000)
    places = [("Timeline", "timeline"), HOME, *tour()]
    for name, path in places:
        page.evaluate(SWITCH, {"name": name, "path": path})
    before = _counts(page)
    for i in range(50):
        name, path = places[i % len(places)]
        page.evaluate(SWITCH, {"name": name, "path": path})
    for name, path in (HOME, ("Host", "host"), places[-1]):
        page.evaluate(SWITCH, {"name": name, "path": path})
    after = _counts(page)
    for kind in before:
        print(
            f"{kind + ' before and after 50 page switches':58}     {before[kind]:8.1f} to {after[kind]:.1f}",
            flush=True,
        )
    page.context.close()


def _counts(page: Page) -> dict[str, float]:
    page.wait_for_timeout(1500)
    page.context.new_cdp_session(page).send("HeapProfiler.collectGarbage")
    counts: dict[str, float] = page.evaluate(COUNTS)
    return counts


def play(folder: Path, browser: Browser) -> None:
    """Play the predicted gain of repairing the slow rank in a run of 16 ranks, five times."""
    with served(with_slow_rank(folder)) as address:
        page = new_page(browser)
        page.goto(f"{address}/whatif?edits=rank_as_peers%3D{SLOW}&open=play")
        page.wait_for_function(PLAYABLE, timeout=300_000)
        meter = page.context.new_cdp_session(page)
        meter.send("Performance.enable", {"timeDomain": "threadTicks"})
        before = _task_ms(meter)
        longest, slices = page.evaluate(LONGEST_FRAMES)
        busy = (_task_ms(meter) - before) / len(longest)
        say(f"playing {PLAYED} ranks, {slices:,} slices: the longest frame (bar 100 ms)", max(longest), "ms")
        say("  the same, median of five", float(np.median(longest)), "ms")
        say("  CPU of the page's main thread for once, 2.4 s", busy, "ms")
        page.context.close()


def users(traces: Path, folder: Path, browser: Browser, ranks: int) -> None:
    """Turn the wheel with five concurrent users while the server reads a run that was never read."""
    with served(traces, never_read(folder)) as address:
        pages = [visit(browser, f"{address}/timeline?ranks=0-{ranks - 1}") for _ in range(5)]
        reader = new_page(browser)
        reader.goto(f"{address}/?run={UNREAD}")
        reader.wait_for_selector("[data-testid='stSpinner'], [data-testid='stProgress']", timeout=60_000)
        settled = []
        for share in (0.3, 0.03, 0.001):
            for page in pages:
                page.evaluate(
                    f"(order) => {{ window.turning = ({DRIVE})(order); }}", {"share": share, "turns": 20, "pause": 500}
                )
            for page in pages:
                settled += page.evaluate("() => window.turning")["settled"]
            is_read = reader.locator("[data-testid='stMetricValue']").count() > 0
            print(f"  {share:g} of the run in view; the other run is {'read' if is_read else 'still being read'}")
        spread("five users during a cold read, wheel to sharp (bar p90 300 ms)", settled)
        for page in (*pages, reader):
            page.context.close()


def many(folder: Path, browser: Browser) -> None:
    """Open Overview and Ranks of a large prepared run."""
    traces = made_up(folder, MANY)
    with served(traces) as address:
        page = new_page(browser)
        page.goto(address)
        page.wait_for_selector("[data-testid='stMetricValue']", timeout=600_000)
        page.context.close()
        say(f"Overview of {MANY} ranks (bar 3 s)", first_useful(browser, address) / 1e3, "s")
        page = new_page(browser)
        page.goto(address)
        page.wait_for_selector("[data-testid='stMetricValue']", timeout=600_000)
        say(
            f"Ranks of {MANY} ranks, from a click (bar 3 s)",
            page.evaluate(SWITCH, {"name": "Ranks", "path": "ranks"}) / 1e3,
            "s",
        )
        page.context.close()


def wall(folder: Path, browser: Browser) -> None:
    """Draw the wall of many ranks, five times, in a browser without a cache."""
    drawn = []
    with served(made_up(folder, WALLED)) as address:
        for _ in range(6):
            page = new_page(browser)
            page.goto(f"{address}/ranks")
            page.wait_for_function(WALL_DRAWN, timeout=900_000)
            drawn.append(float(page.evaluate(WALL_DRAWN)))
            page.context.close()
    say(f"the wall of {WALLED} ranks, for the first reader", drawn[0], "ms")
    spread("  for the next five (bar 300 ms)", drawn[1:])


def pick(browser: Browser, address: str, ranks: int) -> None:
    """Click slices at several zooms; no click may rerun the page."""
    page = visit(browser, f"{address}/timeline?ranks=0-{ranks - 1}")
    reruns: list[object] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda sent: reruns.append(sent)))  # noqa: PLW0108 - Playwright marks the function
    page.reload()
    page.wait_for_function(SHARP, timeout=300_000)
    reruns.clear()
    picked_ms = []
    for share in ZOOMS[1:7]:
        page.evaluate(DRIVE, {"share": share, "turns": 0, "pause": 0})
        clicks_ms = [page.evaluate(PICK, at / 10) for at in range(8)]
        picked_ms += [click_ms for click_ms in clicks_ms if click_ms is not None]
    spread(f"{len(picked_ms)} slices picked, click to details (bar 100 ms)", picked_ms)
    say("  messages to Streamlit meanwhile (bar 0)", len(reruns), "")
    page.context.close()


def report(folder: Path, browser: Browser) -> None:
    """Write HTML reports, and open them."""
    for name, traces, ranks in (
        ("8 recorded", RECORDED, ("--ranks", "0-7")),
        ("64 synthetic", made_up(folder, 64), ()),
    ):
        file = folder / f"{name.replace(' ', '-')}.html"
        command = [sys.executable, "-m", "usp_prof.cli.app", "analyze", str(traces), *ranks, "--format", "html", "-q"]
        subprocess.run([*command, "-o", str(file)], check=True, cwd=ROOT)
        say(f"HTML report of {name} ranks (bars 2 and 12 MB)", file.stat().st_size / 1e6, "MB")
        painted_ms = []
        for _ in range(5):
            page = new_page(browser)
            page.goto(file.as_uri())
            page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length")
            paint_entry = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
            painted_ms.append(float(page.evaluate(paint_entry)))
            page.context.close()
        spread("  first paint (bar 1000 ms)", painted_ms)


def area(browser: Browser, address: str, ranks: int) -> None:
    """Select areas of the whole run in view, on all ranks."""
    page = visit(browser, f"{address}/timeline?ranks=0-{ranks - 1}")
    for share in (0.05, 0.3, 1.0):
        for name, takes_all in (("rows in view", False), (f"all rows of {ranks} ranks", True)):
            # Each area is a few pixels smaller than the previous one, because an identical answer would go unnoticed.
            listed_ms = [page.evaluate(AREA, {"share": share - at / 100, "all": takes_all}) for at in range(5)]
            spread(f"an area of {share:g} of the run, {name} (bar 300 ms)", listed_ms)
    page.context.close()


def main() -> None:
    """Prepare, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--slices", type=int, default=1_000_000, help="slices of a rank")
    parser.add_argument("--folder", type=Path, help="where the big run is kept (default: a temporary folder)")
    parser.add_argument("--parts", nargs="+", choices=[*PARTS, "fill"], default=list(PARTS))
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the dashboard is used")
    parser.add_argument("--look", type=float, default=3.0, help="how many seconds each page is looked at")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["USP_PROF_CACHE"] = str(folder / "cache")
        measure(args, folder)


def _measure_other_runs(parts: set[str], folder: Path) -> None:
    """Measure the parts that use runs other than the large one."""
    wanted = [
        measured
        for part, measured in (("ranks", many), ("wall", wall), ("play", play), ("report", report))
        if part in parts
    ]
    if wanted:
        with chromium() as browser:
            for measured in wanted:
                measured(folder, browser)


def measure(args: argparse.Namespace, folder: Path) -> None:
    """Measure the selected parts."""
    parts = set(args.parts)
    if "prepare" in parts:
        events, cpu_seconds, seconds = prepare_one(folder, args.slices)
        say(f"prepare {events:,} events of a rank, CPU (bar 1 s)", cpu_seconds, "s")
        say("  the same by the clock", seconds, "s")
    _measure_other_runs(parts, folder)
    if parts <= {"prepare", "ranks", "wall", "play", "report"}:
        return
    traces = fill(folder, args.ranks, args.slices)
    if "tile" in parts:
        times, busy = tiles(traces, ZOOMS)
        spread("tile of 128 rows on the server (bar p50 10 ms)", times)
        spread("  the same, CPU", busy)
    if not parts - {"prepare", "ranks", "wall", "play", "report", "tile", "fill"}:
        return
    with chromium() as browser:
        if "users" in parts:
            users(traces, folder, browser, args.ranks)
        if parts & {"wheel", "pick", "switches", "area", "use"}:
            with served(traces) as address:
                for part, measured in (
                    ("wheel", lambda: wheel(browser, address, args.ranks)),
                    ("pick", lambda: pick(browser, address, args.ranks)),
                    ("switches", lambda: switches(browser, address)),
                    ("area", lambda: area(browser, address, args.ranks)),
                    ("use", lambda: use(address, args.ranks, args.minutes, args.look)),
                ):
                    if part in parts:
                        measured()
        if "paint" in parts:
            paint(traces, browser)


if __name__ == "__main__":
    main()
