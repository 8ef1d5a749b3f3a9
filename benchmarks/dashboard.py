"""How quickly does the timeline answer at the size of real runs? Prepares big timelines and drives headless Chromium.

    .venv/bin/python benchmarks/dashboard.py                    64 ranks x 1 M slices (4 GB of disk, minutes)
    .venv/bin/python benchmarks/dashboard.py --ranks 8 --slices 200000

The slices are those of a made-up run's first rank, repeated and jittered. Prints medians and 90th percentiles of: the
preparation of a rank, a tile on the server, the frame after a turn of the wheel, and the sharp picture after it, at
zooms from the whole run down to microseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dashboard import data  # noqa: E402 - after the path is set
from dashboard.timeline import store  # noqa: E402
from dashboard.timeline.rows import Slices, rank_slices  # noqa: E402
from dashboard.timeline.tile import encode  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

PORT = 8655
ZOOMS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 1e-4, 1e-5)
DRIVE = """async ({ share, turns }) => {
  const find = (root) => { for (const e of root.querySelectorAll('*')) {
    if (e.classList && e.classList.contains('usp-timeline')) return e;
    if (e.shadowRoot) { const f = find(e.shadowRoot); if (f) return f; } } return null; };
  const line = find(document).timeline, canvas = line.canvas, span = line.head.span_ns;
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const sharp = async (before) => { while (line.tile === before || !line.tile) await frame(); await frame(); };
  line.start = span * 0.3; line.end = line.start + span * share; line.asked = null;
  let before = line.tile; line.moved(); await sharp(before);
  const interim = [], settled = [];
  for (let i = 0; i < turns; i++) {
    before = line.tile;
    const start = performance.now(), wheel = { deltaY: i % 2 ? 60 : -60, bubbles: true, cancelable: true };
    const box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new WheelEvent('wheel', { ...wheel, clientX: box.left + 700, clientY: box.top + 200 }));
    await frame(); interim.push(performance.now() - start);
    await sharp(before); settled.push(performance.now() - start);
  }
  return { interim, settled };
}"""


def tiled(slices: Slices, wanted: int, seed: int) -> Slices:
    """Repeat a rank's slices in time until there are enough, each copy jittered a little."""
    rng = np.random.default_rng(seed)
    span = int((slices.start_ns + slices.dur_ns).max() - slices.start_ns.min()) + 1000
    copies = max(1, wanted // max(len(slices.start_ns), 1))
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
    print(f"{name:44} p50 {p50:8.2f}  p90 {p90:8.2f} {unit}")


def prepare(folder: Path, ranks: int, slices: int) -> float:
    """Make a small run of so many ranks, and give each a big timeline; gives the seconds of CPU a rank took."""
    traces = folder / "run"
    subprocess.run(
        [sys.executable, "-m", "usp_prof.cli.app", "synth", str(traces), "--mesh", f"dp={ranks}", "-q"], check=True
    )
    os.environ["USP_PROF_CACHE"] = str(folder / "cache")
    os.environ[data.PATHS_VARIABLE] = json.dumps([str(traces)])
    run = data.open_numbered(0)
    small = rank_slices(run.tables, run.tables.ranks[0])
    target = data.timeline_folder(run, 0)
    target.mkdir(parents=True)
    began = time.process_time()
    for rank in run.tables.ranks:
        rows = tuple(replace(row, rank=rank) for row in small.rows)
        store.write(replace(tiled(small, slices, rank), rows=rows), target / f"rank{rank}-{store.VERSION}")
    return (time.process_time() - began) / ranks


def tiles() -> list[float]:
    """Ask for tiles of up to 128 rows at all zooms, in this process."""
    lines, times = data.timeline_store(0), []
    rows = [(rank, i) for rank, line in lines.ranks.items() for i, row in enumerate(line.rows) if row.kind == "device"]
    for share in ZOOMS:
        for shift in np.linspace(0, 0.9, 8):
            start = int(lines.span_ns * shift * (1 - share))
            end = start + max(int(lines.span_ns * share), 1000)
            began = time.perf_counter()
            encode(lines.view(rows[:128], start, end, (end - start) / 1600), start, end, 1600)
            times.append(1e3 * (time.perf_counter() - began))
    return times


def browse(folder: Path, ranks: int) -> tuple[list[float], list[float], float]:
    """Turn the wheel in a browser at all zooms; gives interim and sharp times and the browser's heap in MB."""
    command = [sys.executable, "-m", "usp_prof.cli.app", "dashboard", str(folder / "run"), "--port", str(PORT)]
    interim, settled = [], []
    with subprocess.Popen([*command, "--no-browser"], stderr=subprocess.DEVNULL) as server, sync_playwright() as play:
        try:
            _wait(f"http://127.0.0.1:{PORT}/_stcore/health")
            options = ["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"]
            browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=options)
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            page.goto(f"http://127.0.0.1:{PORT}/timeline?ranks=0-{ranks - 1}")
            page.wait_for_selector(".usp-timeline canvas", timeout=300_000)
            page.wait_for_timeout(3000)
            for share in ZOOMS:
                found = page.evaluate(DRIVE, {"share": share, "turns": 12})
                print(f"    {share:8g} of the run: sharp p50 {np.median(found['settled']):7.1f} ms")
                interim += found["interim"]
                settled += found["settled"]
            heap = page.evaluate("() => performance.memory.usedJSHeapSize / 1e6")
            browser.close()
        finally:
            server.terminate()
    return interim, settled, heap


def _wait(address: str) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(address, timeout=1):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the dashboard did not start")


def main() -> None:
    """Prepare, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--slices", type=int, default=1_000_000, help="slices of a rank")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        each = prepare(folder, args.ranks, args.slices)
        print(f"{'prepare, CPU of a rank (bar 1 s)':44}     {each:8.2f} s")
        spread("tile on the server (bar p50 10 ms)", tiles())
        interim, settled, heap = browse(folder, args.ranks)
        spread("wheel to the next frame", interim)
        spread("wheel to sharp (bar p50 100, p90 200 ms)", settled)
        print(f"{'heap of the page (bar 400 MB)':44}     {heap:8.1f} MB")


if __name__ == "__main__":
    main()
